//! S-250: release-behind, counted, on one thread.

use super::*;
use crate::Release;

const BOTH: Release = Release { read: true, written: true };
const STEP: usize = 64 << 10;

fn read(file: &CachedFile, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    let (n, _) = file.read_at(&mut buf, offset).expect("the backing is sound");
    buf.truncate(n);
    buf
}

fn second_file(t: &Setup, content: &[u8]) -> (CachedFile, Arc<MemoryFile>, Arc<AtomicU64>) {
    let backing = MemoryFile::new(4096, 4096, content);
    let weak: Weak<MemoryFile> = Arc::downgrade(&backing);
    let size = Arc::new(AtomicU64::new(content.len() as u64));
    (t.cache.file(8, weak, Arc::clone(&size)), backing, size)
}

/// A cache of 256 pages, half of it a hot set.
fn with_hot_set() -> (Setup, Vec<u64>) {
    let t = setup(&options(256), &pattern(8 << 20));
    let hot: Vec<u64> = (0..128).map(|i| i * 16 * 4096 + 4096).collect();
    for _ in 0..4 {
        hot.iter().for_each(|&at| drop(read(&t.file, at, 4096)));
    }
    (t, hot)
}

fn misses(t: &Setup, hot: &[u64]) -> u64 {
    let before = t.cache.counters().misses;
    hot.iter().for_each(|&at| drop(read(&t.file, at, 4096)));
    t.cache.counters().misses - before
}

#[test]
fn s_250_a_scan_leaves_nothing_behind_and_evicts_nothing() {
    let (t, hot) = with_hot_set();
    let before = t.cache.counters();
    let content = pattern((4 << 20) + 1000);
    let (scanned, backing, _size) = second_file(&t, &content);
    scanned.set_release(BOTH);
    let mut seen = Vec::new();
    for offset in (0..content.len()).step_by(STEP) {
        seen.extend(read(&scanned, offset as u64, STEP));
    }
    assert_eq!(seen, content);
    let after = t.cache.counters();
    assert_eq!(after.resident_bytes, before.resident_bytes, "S-250: pages of the scan stayed");
    assert_eq!(after.evictions, before.evictions, "S-250: the scan evicted");
    assert_eq!(after.released, content.len().div_ceil(4096) as u64);
    assert_eq!(misses(&t, &hot), 0);
    let asked: u64 = backing
        .calls()
        .iter()
        .map(|call| if let Call::Read(_, len) = call { *len as u64 } else { 0 })
        .sum();
    assert_eq!(asked, content.len().next_multiple_of(4096) as u64, "pages were read twice");
}

#[test]
fn s_250_a_reader_in_tiny_steps_releases_each_page_once() {
    let t = setup(&options(64), &pattern(1 << 20));
    t.file.set_release(BOTH);
    (0..(1_u64 << 20)).step_by(100).for_each(|at| drop(read(&t.file, at, 100)));
    let counters = t.cache.counters();
    assert_eq!((counters.resident_bytes, counters.released), (0, 256), "S-250");
    assert_eq!(counters.read_ahead_wasted, 0);
}

#[test]
fn s_250_written_pages_leave_when_they_are_written() {
    let (t, hot) = with_hot_set();
    let before = t.cache.counters();
    let content = pattern(4 << 20);
    let (loaded, backing, _size) = second_file(&t, &[]);
    loaded.set_release(BOTH);
    for (step, bytes) in content.chunks(12_000).enumerate() {
        loaded.write_at(bytes, step as u64 * 12_000).expect("room");
    }
    loaded.flush().expect("the backing is sound");
    let after = t.cache.counters();
    assert_eq!(backing.content(), content);
    assert_eq!(after.resident_bytes, before.resident_bytes, "S-250: written pages stayed");
    assert_eq!(after.released, 1024);
    assert_eq!(misses(&t, &hot), 0);
}

#[test]
fn s_250_what_is_not_sequential_or_not_asked_for_stays() {
    let t = setup(&options(1024), &pattern(8 << 20));
    t.file.set_release(BOTH);
    let mut random = Random(5);
    let mut pages = BTreeSet::new();
    for _ in 0..100 {
        let page = random.below(60) * 32 + 5;
        pages.insert(page);
        read(&t.file, page * 4096, 4096);
        t.file.write_at(&[1; 4096], page * 4096).expect("room");
    }
    t.file.flush().expect("the backing is sound");
    assert_eq!(t.cache.counters().resident_bytes, pages.len() as u64 * 4096);
    for (release, left) in [
        (Release::default(), 32),
        (Release { read: false, written: true }, 32),
        (Release { read: true, written: false }, 0),
    ] {
        let (scanned, _backing, _size) = second_file(&t, &pattern(128 << 10));
        let before = t.cache.counters().resident_bytes;
        scanned.set_release(release);
        (0..8).for_each(|step| drop(read(&scanned, step * 16384, 16384)));
        let stayed = t.cache.counters().resident_bytes - before;
        assert_eq!(stayed, left * 4096, "{release:?}");
    }
}

/// A page of the scanned file itself that is used again and again.
#[test]
fn s_250_a_hot_page_outlives_the_scan_of_its_own_file() {
    let t = setup(&options(256), &pattern(4 << 20));
    t.file.set_release(BOTH);
    (0..5).for_each(|_| drop(read(&t.file, 100 * 4096, 4096)));
    (0..64).for_each(|step| drop(read(&t.file, step * STEP as u64, STEP)));
    let counters = t.cache.counters();
    assert_eq!(counters.resident_bytes, 4096, "S-250");
    read(&t.file, 100 * 4096, 4096);
    assert_eq!(t.cache.counters().misses, counters.misses);
}

/// A failed write-behind keeps its pages: they are all there is of what was written.
#[test]
fn s_250_what_could_not_be_written_stays() {
    let t = setup(&options(256), &[]);
    t.file.set_release(BOTH);
    t.file.write_at(&pattern(100_000), 0).expect("room");
    t.backing.writes_left.store(0, Ordering::SeqCst);
    t.file.flush().expect_err("injected");
    assert_eq!(read(&t.file, 0, 100_000), pattern(100_000), "S-250: unwritten pages left");
    t.file.flush().expect("the cause is gone");
    assert_eq!(t.backing.content(), pattern(100_000));
}
