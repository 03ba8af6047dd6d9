//! Rollbacks of files that programs have open.

use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::time::Duration;

use bedplate_serve::control::Answer;
use rustix::mount::UnmountFlags;

use crate::harness::{Mounted, ask, checkpoint, done, forced_rollback};

/// What is dirty in the kernel when it is told to forget a file, in bytes.
const DIRTY: usize = 4 << 20;
/// How long nothing happens until it is taken for a hang.
const HANG: Duration = Duration::from_secs(120);

/// The event thread that was to answer a rollback waited for it, and the rollback for the kernel to write dirty pages, which wanted an event thread: with one
/// of them always, and with any number where as many answers were waited for. Nothing but the end of the connection helped.
#[test]
fn i_lin_1_rollbacks_need_no_event_thread_that_waits() {
    for (threads, files) in [(1, 1), (1, 3), (2, 6)] {
        let Some(m) = Mounted::new(&format!("threads={threads}")) else { return };
        let open = |i: usize| std::fs::File::options().read(true).write(true).create(true).truncate(false).open(m.path(&format!("f{i}"))).unwrap();
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
                let answer = ask(&root, &format!("{i}"), &forced_rollback("c", Some(&format!("/f{i}"))));
                told.send(matches!(answer, Answer::Done(_))).unwrap_or_default();
            });
        }
        for _ in 0..files {
            let answered = hears.recv_timeout(HANG);
            if answered.is_err() {
                // Nothing else frees who waits in the kernel, this process among them.
                rustix::mount::unmount(m.root(), UnmountFlags::FORCE).unwrap_or_default();
            }
            assert_eq!(answered, Ok(true), "I-LIN-1: {files} rollbacks with {threads} event threads");
        }
        drop(opens);
        m.finish();
    }
}
