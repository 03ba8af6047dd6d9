//! What was just synced of a small file and is written over: a rollback journal whose head says how
//! many pages count.

use bedplate_fs::{AllocateMode, IoMode, OpenOptions};

use crate::delayed::Growing;

const RECORD: usize = 4 + 4096 + 4;

/// A journal of two pages as SQLite writes it, synced.
fn journal(mode: IoMode, delay: bool) -> Growing {
    let mut it = Growing::new(mode);
    it.file =
        it.fs.open("/f", &OpenOptions { delay_writes: delay, ..OpenOptions::create() }).unwrap();
    it.write(0, &[1; 512]);
    for page in 0..2 {
        it.write(512 + page * RECORD, &[2; 4]);
        it.write(516 + page * RECORD, &[3; 4096]);
        it.write(4612 + page * RECORD, &[4; 4]);
    }
    it.file.sync_data().unwrap();
    it
}

/// Reads, writes and flushes of the device while the head is written over and synced.
fn head(it: &mut Growing, at: usize, fill: u8) -> (u64, u64, u64) {
    let before = it.device.counters();
    it.write(at, &[fill; 20]);
    it.file.sync_data().unwrap();
    let after = it.device.counters();
    (after.reads - before.reads, after.writes - before.writes, after.flushes - before.flushes)
}

#[test]
fn s_546_a_journals_head_costs_no_seal() {
    for (mode, delay, reads) in [
        (IoMode::Concurrent, true, 0),
        (IoMode::Direct, true, 0),
        (IoMode::Concurrent, false, 1),
        (IoMode::Direct, false, 1),
        (IoMode::Cached, false, 0),
    ] {
        let mut it = journal(mode, delay);
        let what = format!("{mode}, delayed: {delay}");
        assert_eq!(head(&mut it, 8, 5), (reads, 2, 1), "{what}: the block, the log, one flush");
        let (_, writes, flushes) = head(&mut it, 8, 6);
        assert_eq!((writes, flushes), (2, 2), "{what}: once a file, then it is sealed");
        it.compare_after_death(&what);
    }
}

/// A write past the caches is on the device when it returns: it stays in place.
#[test]
fn s_546_what_does_not_wait_is_written_in_place() {
    let mut it = journal(IoMode::Concurrent, true);
    let before = it.file.extents().unwrap();
    it.write(0, &bedplate_block::AlignedBuf::from_slice(&[7; 512]));
    it.file.sync_data().unwrap();
    assert_eq!(it.file.extents().unwrap(), before);
    it.compare_after_death("past the caches");
}

/// Without a free block the head is written where it lies.
#[test]
fn s_546_a_full_volume_writes_in_place() {
    let mut it = journal(IoMode::Concurrent, true);
    let fill = it.fs.open("/fill", &OpenOptions::create()).unwrap();
    for step in [1 << 20, 64 << 10, 4096] {
        let mut at = fill.size();
        while fill.allocate(AllocateMode::Preallocate { keep_size: false }, at, step).is_ok() {
            at = fill.size();
        }
    }
    it.file.sync_data().unwrap();
    let before = it.file.extents().unwrap();
    head(&mut it, 8, 5);
    assert_eq!(it.file.extents().unwrap(), before, "there is no other place");
    Growing::holds(&it.file, &it.model, "full");
}
