//! Rollbacks of files that programs have open.

use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::mpsc;
use std::time::Duration;

use bedplate_serve::control::Answer;
use rustix::mount::UnmountFlags;

use crate::harness::{Mounted, ask, checkpoint, done, forced_rollback};

/// What is dirty in the kernel when it is told to forget a file, in bytes.
const DIRTY: usize = 4 << 20;
/// How long nothing happens until it is taken for a hang.
const HANG: Duration = Duration::from_secs(120);

/// The event thread that was to answer a rollback waited for it, and the rollback for the kernel to
/// write dirty pages, which wanted an event thread: with one of them always, and with any number
/// where as many answers were waited for. Nothing but the end of the connection helped.
#[test]
fn i_lin_1_rollbacks_need_no_event_thread_that_waits() {
    for (threads, files) in [(1, 1), (1, 3), (2, 6)] {
        let Some(m) = Mounted::new(&format!("threads={threads}")) else { return };
        let open = |i: usize| {
            std::fs::File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(m.path(&format!("f{i}")))
                .unwrap()
        };
        let opens: Vec<_> = (0..files).map(open).collect();
        opens.iter().for_each(|file| file.write_all_at(&[1; 5000], 0).unwrap());
        opens.iter().for_each(|file| file.sync_all().unwrap());
        done(&m, &checkpoint("c"));
        opens.iter().for_each(|file| file.write_all_at(&[2; 9000], 0).unwrap());
        opens.iter().for_each(|file| file.sync_all().unwrap());
        opens.iter().for_each(|file| file.write_all_at(&vec![3; DIRTY], 0).unwrap());
        let (told, hears) = mpsc::channel();
        for i in 0..files {
            let (told, root) = (told.clone(), m.root().to_owned());
            // Detached, so that a hang ends with the mount.
            std::thread::spawn(move || {
                let answer = ask(&root, &forced_rollback("c", Some(&format!("/f{i}"))));
                told.send(matches!(answer, Answer::Done(_))).unwrap_or_default();
            });
        }
        for _ in 0..files {
            let answered = hears.recv_timeout(HANG);
            if answered.is_err() {
                // Nothing else frees the processes that wait in the kernel, this one among them.
                rustix::mount::unmount(m.root(), UnmountFlags::FORCE).unwrap_or_default();
            }
            assert_eq!(
                answered,
                Ok(true),
                "I-LIN-1: {files} rollbacks with {threads} event threads"
            );
        }
        drop(opens);
        m.finish();
    }
}

/// How a file is opened for appends.
const WAYS: [(&str, i32); 5] = [
    ("", 0),
    ("", libc::O_DIRECT),
    ("::direct", 0),
    ("::concurrent", 0),
    ("::concurrent+cache", 0),
];

/// The kernel kept the size from before a forced rollback: an append landed there, with zeros
/// between, and `fstat` told it.
#[test]
fn s_32_s_57_an_open_file_has_the_size_that_a_rollback_gave_it() {
    for options in crate::data::ALL {
        let Some(m) = Mounted::new(options) else { return };
        let append = |name: &str, flags: i32| {
            let mut open = std::fs::File::options();
            open.read(true)
                .append(true)
                .create(true)
                .custom_flags(flags)
                .open(m.path(name))
                .unwrap()
        };
        for (round, (suffix, flags)) in WAYS.into_iter().enumerate() {
            for (before, after) in [(12_288, 4096), (4096, 12_288)] {
                let what =
                    format!("S-57: '{options}', '{suffix}', {flags:#o}, {before} to {after}");
                let name = format!("f{round}-{before}");
                let file = append(&format!("{name}{suffix}"), flags);
                let page = |byte: u8| {
                    let mut page = bedplate_block::AlignedBuf::zeroed(4096);
                    page.fill(byte);
                    page
                };
                let fill =
                    |size: u64| (0..size / 4096).for_each(|_| (&file).write_all(&page(1)).unwrap());
                fill(after);
                file.sync_all().unwrap();
                done(&m, &checkpoint(&name));
                if before < after {
                    file.set_len(before).unwrap();
                } else {
                    fill(before - after);
                }
                file.sync_all().unwrap();
                done(&m, &forced_rollback(&name, Some(&format!("/{name}"))));
                assert_eq!(file.metadata().unwrap().len(), after, "{what}");
                (&file).write_all(&page(2)).unwrap();
                assert_eq!(file.metadata().unwrap().len(), after + 4096, "S-32: {what}");
                let expected = [vec![1; after as usize], vec![2; 4096]].concat();
                assert!(std::fs::read(m.path(&name)).unwrap() == expected, "S-32: {what}");
                drop(file);
                assert!(
                    !m.root().read_dir().unwrap().any(|entry| entry
                        .unwrap()
                        .file_name()
                        .to_string_lossy()
                        .contains("visit"))
                );
            }
        }
        m.finish();
    }
}

/// A file that is open and has no name any more is reached as well as any other.
#[test]
fn s_57_a_removed_file_that_is_open_gets_the_size_of_its_checkpoint() {
    for options in ["", "mode=concurrent"] {
        let Some(m) = Mounted::new(options) else { return };
        let mut file = std::fs::File::options()
            .read(true)
            .append(true)
            .create(true)
            .open(m.path("f"))
            .unwrap();
        file.write_all(&[1; 100]).unwrap();
        std::fs::remove_file(m.path("f")).unwrap();
        file.sync_all().unwrap();
        done(&m, &checkpoint("c"));
        file.write_all(&[2; 100]).unwrap();
        file.sync_all().unwrap();
        done(&m, &forced_rollback("c", None));
        let size = file.metadata().unwrap().len();
        let mut content = Vec::new();
        file.write_all(&[3; 10]).unwrap();
        file.rewind().unwrap();
        file.read_to_end(&mut content).unwrap();
        assert!(
            size == 100 && content == [vec![1; 100], vec![3; 10]].concat(),
            "S-57: '{options}': {size}, {content:?}"
        );
        drop(file);
        m.finish();
    }
}
