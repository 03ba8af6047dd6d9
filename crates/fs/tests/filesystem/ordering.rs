//! What overlapping I/O may see of each other, and in which order changes of one inode survive.

use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_block::AlignedBuf;
use bedplate_fs::{
    FileKind, InodeLockSetting, InodeNo, IoMode, MountOptions, OpenOptions, SetAttr,
};

use crate::common::{around_kill, formatted, new_file};

/// Larger than any single copy below, so that nothing is atomic by accident.
const LEN: usize = 256 << 10;
const SECTOR: usize = 512;

/// Runs three writers and two readers over one range of one file; `seen` judges every read.
fn overlap(mode: IoMode, inode_lock: InodeLockSetting, seen: impl Fn(&[u8]) + Sync) {
    let options = MountOptions { mode, inode_lock, ..MountOptions::default() };
    let fs = bedplate_fs::FileSystem::mount(formatted(), None, options).unwrap();
    let file = fs.open("f", &OpenOptions::create()).unwrap();
    file.write_at(&AlignedBuf::zeroed(LEN), 0).unwrap();
    file.sync_all().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (1..=3u8)
            .map(|fill| {
                let file = &file;
                scope.spawn(move || {
                    let mut buf = AlignedBuf::zeroed(LEN);
                    buf.fill(fill);
                    (0..60).for_each(|_| assert_eq!(file.write_at(&buf, 0).unwrap(), 0));
                })
            })
            .collect();
        for _ in 0..2 {
            scope.spawn(|| {
                let mut buf = AlignedBuf::zeroed(LEN);
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(file.read_at(&mut buf, 0).unwrap(), LEN);
                    seen(&buf);
                }
            });
        }
        let results: Vec<_> =
            writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.unwrap());
    });
    let mut buf = AlignedBuf::zeroed(LEN);
    file.read_at(&mut buf, 0).unwrap();
    seen(&buf);
}

fn whole(buf: &[u8]) {
    assert!(buf.iter().all(|byte| *byte == buf[0]), "a read saw parts of two writes");
}

#[test]
fn s_21_a_cached_read_sees_a_write_wholly_or_not_at_all() {
    overlap(IoMode::Cached, InodeLockSetting::Range, whole);
}

#[test]
fn s_22_a_direct_read_sees_a_write_wholly_or_not_at_all() {
    overlap(IoMode::Direct, InodeLockSetting::Range, whole);
    overlap(IoMode::Direct, InodeLockSetting::Whole, whole);
}

#[test]
fn s_23_a_concurrent_read_sees_whole_sectors() {
    overlap(IoMode::Concurrent, InodeLockSetting::Range, |buf| buf.chunks(SECTOR).for_each(whole));
}

/// I-INO-1: threads change one inode in different ways at once; what memory showed last survives.
#[test]
fn i_ino_1_the_last_image_of_an_inode_survives() {
    let last = std::cell::RefCell::new(None);
    around_kill(
        |fs| {
            let ino = fs.make(InodeNo::ROOT, b"f", FileKind::File, new_file(), 0).unwrap().ino;
            let set = |change: &SetAttr| assert_eq!(fs.set_attr(ino, change).unwrap().ino, ino);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    (0..300u32).for_each(|i| {
                        set(&SetAttr { mode: Some(i % 0o1000), ..SetAttr::default() });
                    });
                });
                scope.spawn(|| {
                    (0..300u32).for_each(|i| set(&SetAttr { uid: Some(i), ..SetAttr::default() }));
                });
                scope.spawn(|| {
                    let file = fs
                        .open(
                            "f",
                            &OpenOptions {
                                mode: Some(IoMode::Concurrent),
                                ..OpenOptions::read_write()
                            },
                        )
                        .unwrap();
                    (0..300u64).for_each(|i| {
                        assert_eq!(file.write_at(&[1; 100], i * 100).unwrap(), i * 100);
                    });
                });
                scope.spawn(|| {
                    for i in 0..100 {
                        let name = format!("link{i}");
                        fs.link(ino, InodeNo::ROOT, name.as_bytes()).unwrap();
                        fs.unlink(InodeNo::ROOT, name.as_bytes()).unwrap();
                    }
                });
            });
            last.replace(Some(fs.attr(ino).unwrap()));
        },
        |fs| {
            let expected = last.take().unwrap();
            assert_eq!(
                (expected.mode, expected.uid, expected.size, expected.nlink),
                (299, 299, 30_000, 1)
            );
            assert_eq!(fs.attr(expected.ino).unwrap(), expected);
        },
    );
}
