//! Rollbacks to checkpoints: of everything, of a file, of a directory.

use std::collections::BTreeMap;

use bedplate_fs::{ErrorKind, InodeNo, IoMode, NewFile, OpenOptions, RollbackOptions};

use crate::checkpoints::{
    MODES, change, differing, everything, of_checkpoint, sound, whole, write,
};
use crate::support::{Random, device, format, mount_as};

pub fn all_back() -> RollbackOptions {
    RollbackOptions::default()
}

fn back(path: &str) -> RollbackOptions {
    RollbackOptions { path: Some(path.into()), force: false }
}

/// S-56: everything is what it was, to the byte; the rollback of the rollback undoes it; every
/// checkpoint in between shows what it showed.
#[test]
fn s_56_a_rollback_brings_everything_back_and_can_be_undone() {
    for seed in 20..24 {
        let device = device(96 << 20, 512);
        format(&device, 4096);
        let mut random = Random::new(seed);
        let mut fs = mount_as(&device, IoMode::Cached);
        fs.create_dir_all("/d0").unwrap();
        fs.create_dir_all("/d1").unwrap();
        let mut expected: BTreeMap<String, BTreeMap<String, Vec<u8>>> = BTreeMap::new();
        for round in 0..24 {
            (0..random.below(15)).for_each(|_| change(&fs, &mut random));
            let now = whole(&fs);
            match random.below(4) {
                0 | 1 => {
                    fs.create_checkpoint(format!("c{round}"), &everything()).unwrap();
                    expected.insert(format!("c{round}"), now);
                }
                2 if !expected.is_empty() => {
                    let (name, then) =
                        expected.iter().nth(random.below(expected.len() as u64) as usize).unwrap();
                    let done = fs.rollback(name, &all_back()).unwrap();
                    let shown = whole(&fs);
                    assert!(
                        shown == *then,
                        "seed {seed}, round {round}: back to {name}: {:?}",
                        differing(then, &shown)
                    );
                    if random.chance(2) {
                        let undone = fs.rollback(&done.undo, &all_back()).unwrap();
                        assert!(whole(&fs) == now, "seed {seed}, round {round}: undone");
                        fs.delete_checkpoint(undone.undo).unwrap();
                    }
                    expected.insert(done.undo, now);
                }
                _ => {
                    fs.unmount().unwrap();
                    sound(&device);
                    fs = mount_as(&device, IoMode::Cached);
                }
            }
            for (name, was) in &expected {
                let shown = of_checkpoint(&fs, name);
                assert!(
                    shown == *was,
                    "seed {seed}, round {round}: checkpoint {name} changed: {:?}",
                    differing(was, &shown)
                );
            }
        }
        expected.keys().for_each(|name| fs.delete_checkpoint(name).unwrap());
        fs.sync().unwrap();
        let (now, free, inodes) = (whole(&fs), fs.statfs().free_bytes, fs.statfs().inodes);
        fs.unmount().unwrap();
        sound(&device);
        let fs = mount_as(&device, IoMode::Cached);
        assert_eq!((fs.statfs().free_bytes, fs.statfs().inodes), (free, inodes));
        assert_eq!(whole(&fs), now);
    }
}

fn only(all: &BTreeMap<String, Vec<u8>>, below: &str) -> BTreeMap<String, Vec<u8>> {
    all.iter()
        .filter(|(path, _)| path.starts_with(below))
        .map(|(path, content)| (path.clone(), content.clone()))
        .collect()
}

/// S-56: one file or directory comes back, whatever became of it, and nothing else changes.
#[test]
fn s_56_a_file_or_a_directory_comes_back_alone() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    fs.create_dir_all("/db/sub").unwrap();
    for (path, fill) in [("/db/a", 1), ("/db/b", 2), ("/db/sub/c", 3), ("/other", 4)] {
        write(&fs, path, 0, &[fill; 40960], IoMode::Concurrent);
    }
    fs.create_checkpoint("then", &everything()).unwrap();
    let then = whole(&fs);
    let proved = |what: &str| {
        let now = whole(&fs);
        assert!(
            only(&now, "/db") == only(&then, "/db"),
            "{what}: {:?}",
            differing(&only(&then, "/db"), &only(&now, "/db"))
        );
    };
    write(&fs, "/db/a", 8192, &[9; 8192], IoMode::Concurrent);
    write(&fs, "/other", 0, &[9; 8192], IoMode::Concurrent);
    fs.rollback("then", &back("/db/a")).unwrap();
    proved("written over");
    assert_ne!(whole(&fs)["/other"], then["/other"], "it was not asked for");
    fs.remove("/db/a").unwrap();
    fs.rollback("then", &back("/db/a")).unwrap();
    proved("removed");
    write(&fs, "/db/new", 0, &[7; 4096], IoMode::Concurrent);
    fs.remove("/db/b").unwrap();
    fs.rename_path("/db/new", "/db/b").unwrap();
    fs.rollback("then", &back("/db/b")).unwrap();
    proved("replaced");
    fs.rename_path("/db/a", "/db/sub/a").unwrap();
    fs.remove("/db/sub/c").unwrap();
    fs.create_dir_all("/db/more/below").unwrap();
    write(&fs, "/db/more/below/x", 0, &[7; 4096], IoMode::Concurrent);
    let done = fs.rollback("then", &back("/db")).unwrap();
    proved("a directory in which things came, went and moved");
    assert!(done.rows > 0);
    for path in ["/db/sub/c", "/db/sub", "/db/a", "/db/b", "/db"] {
        fs.remove(path).unwrap();
    }
    fs.rollback("then", &back("/db")).unwrap();
    proved("a directory that was removed");
    fs.rename_path("/db/a", "/kept").unwrap();
    let count = fs.checkpoints().len();
    assert_eq!(
        fs.rollback("then", &back("/db")).unwrap_err().kind,
        ErrorKind::Invalid,
        "what has a name elsewhere by now is not torn from it"
    );
    assert_eq!(fs.rollback("then", &back("/never")).unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(fs.checkpoints().len(), count, "a refused rollback leaves nothing behind");
    fs.rollback("then", &all_back()).unwrap();
    assert_eq!(whole(&fs), then);
    fs.unmount().unwrap();
    sound(&device);
}

/// S-56: a symbolic link that stands where a file was goes; what it leads to stays. A link that was
/// there then is followed.
#[test]
fn s_56_a_link_that_took_the_name_of_a_file_is_not_followed() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Cached);
    write(&fs, "/file", 0, &[1; 8192], IoMode::Cached);
    write(&fs, "/other", 0, &[2; 8192], IoMode::Cached);
    fs.symlink(InodeNo::ROOT, b"link", b"file", NewFile::default()).unwrap();
    fs.create_checkpoint("then", &everything()).unwrap();
    let then = whole(&fs);
    fs.remove("/file").unwrap();
    fs.symlink(InodeNo::ROOT, b"file", b"other", NewFile::default()).unwrap();
    fs.rollback("then", &back("/file")).unwrap();
    assert!(whole(&fs) == then, "{:?}", differing(&then, &whole(&fs)));
    write(&fs, "/file", 0, &[3; 4096], IoMode::Cached);
    fs.rollback("then", &back("/link")).unwrap();
    assert!(whole(&fs) == then, "{:?}", differing(&then, &whole(&fs)));
    fs.unmount().unwrap();
    sound(&device);
}

/// S-56: what a kernel remembers of a file lives through a rollback that takes the file away, and
/// one that brings it back: it forgets all its look-ups at once.
#[test]
fn s_56_look_ups_are_counted_over_a_rollback_and_its_undo() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Cached);
    fs.create_checkpoint("then", &everything()).unwrap();
    write(&fs, "/file", 0, &[1; 8192], IoMode::Cached);
    let ino = fs.resolve("/file").unwrap().ino;
    fs.retain(ino).unwrap();
    let done = fs.rollback("then", &all_back()).unwrap();
    assert_eq!(fs.retain(ino).unwrap_err().kind, ErrorKind::NotFound);
    fs.rollback(&done.undo, &all_back()).unwrap();
    fs.retain(ino).unwrap();
    fs.forget(ino, 1);
    assert!(fs.is_retained(ino), "one of two look-ups was forgotten");
    fs.forget(ino, 1);
    assert!(!fs.is_retained(ino));
    fs.remove("/file").unwrap();
    assert_eq!(fs.retain(ino).unwrap_err().kind, ErrorKind::NotFound, "nothing keeps it");
    fs.unmount().unwrap();
    sound(&device);
}

/// S-57: open files are named and refused, or go on with what comes back.
#[test]
fn s_57_open_files_stand_in_the_way_unless_forced() {
    for mode in MODES {
        let device = device(64 << 20, 512);
        format(&device, 4096);
        let fs = mount_as(&device, mode);
        write(&fs, "/old", 0, &[1; 20_000], mode);
        fs.create_checkpoint("then", &everything()).unwrap();
        let then = whole(&fs);
        let options = OpenOptions { mode: Some(mode), ..OpenOptions::create() };
        let (old, new) = (fs.open("/old", &options).unwrap(), fs.open("/new", &options).unwrap());
        old.write_at(&[2; 30_000], 0).unwrap();
        new.write_at(&[3; 10_000], 0).unwrap();
        let refused = fs.rollback("then", &all_back()).unwrap_err();
        assert!(
            refused.kind == ErrorKind::Busy
                && refused.message.contains("/old")
                && refused.message.contains("/new"),
            "{refused}"
        );
        assert_eq!(fs.checkpoints().len(), 1, "a refused rollback leaves nothing behind");
        fs.rollback("then", &RollbackOptions { path: None, force: true }).unwrap();
        assert_eq!(whole(&fs), then);
        let mut buf = vec![0; 30_000];
        assert_eq!((old.read_at(&mut buf, 0).unwrap(), old.size()), (20_000, 20_000));
        assert!(buf[..20_000].iter().all(|byte| *byte == 1), "{mode}");
        assert_eq!(new.read_at(&mut buf, 0).unwrap(), 10_000, "it lives on without a name");
        new.write_at(&[4; 10_000], 0).unwrap();
        old.write_at(&[5; 10_000], 15_000).unwrap();
        assert_eq!(old.size(), 25_000);
        assert_eq!(of_checkpoint(&fs, "then"), then);
        drop((old, new));
        let now = whole(&fs);
        fs.unmount().unwrap();
        sound(&device);
        let fs = mount_as(&device, mode);
        assert_eq!(whole(&fs), now);
        assert_eq!(of_checkpoint(&fs, "then"), then);
    }
}
