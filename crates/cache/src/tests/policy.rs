//! What is read, kept and evicted: counted, on one thread.

use super::*;

fn read(file: &CachedFile, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    let (n, _) = file.read_at(&mut buf, offset).expect("the backing is sound");
    buf.truncate(n);
    buf
}

/// S-110
#[test]
fn a_scan_does_not_evict_the_hot_set() {
    const CAP: u64 = 256;
    let t = setup(&options(CAP), &pattern(8 << 20));
    let hot: Vec<u64> = (0..128).map(|i| i * 16 * 4096 + 4096).collect();
    // Larger than the cache by far, behind the hot pages' first appearance.
    for _ in 0..4 {
        hot.iter().for_each(|&at| drop(read(&t.file, at, 4096)));
    }
    let (scanned, _backing) = second_file(&t, 40 << 20);
    let mut misses = 0;
    for (step, offset) in (0..(40_u64 << 20)).step_by(4096).enumerate() {
        read(&scanned, offset, 4096);
        let before = t.cache.counters().misses;
        read(&t.file, hot[step % hot.len()], 4096);
        misses += t.cache.counters().misses - before;
    }
    let reads = (40 << 20) / 4096;
    assert!(misses * 50 < reads, "{misses} of {reads} hot reads missed during the scan");
}

/// S-110: a small cache, a reader in large steps, and others whose misses come between two of its
/// reads.
#[test]
fn a_scan_reads_nothing_twice_and_leaves_nothing_behind() {
    const PAGES: u64 = 1024;
    let t = setup(&options(PAGES), &pattern(8 << 20));
    let mut random = Random(3);
    // 7 of 8 reads go to a tenth of the file.
    let mut transaction = |reads: u64| {
        for _ in 0..reads {
            let page = if random.below(8) > 0 { random.below(200) } else { random.below(2048) };
            read(&t.file, page * 4096 + 8, 4000);
        }
    };
    transaction(10_000);
    let (size, step) = (24_u64 << 20, 256 << 10);
    let (scanned, backing) = second_file(&t, size as usize);
    let before = t.cache.counters().misses;
    for offset in (0..size).step_by(step) {
        read(&scanned, offset, step);
        transaction(50);
    }
    let asked: u64 = backing
        .calls()
        .iter()
        .map(|call| if let Call::Read(_, len) = call { *len as u64 } else { 0 })
        .sum();
    assert_eq!(asked, size, "pages left before the scan came to them");
    let missed = t.cache.counters().misses - before;
    assert!(missed < 96 * 50 / 6, "{missed} of {} reads missed", 96 * 50);
}

/// Another file in the same cache.
fn second_file(t: &Setup, len: usize) -> (CachedFile, Arc<MemoryFile>) {
    let backing = MemoryFile::new(4096, 4096, &vec![1; len]);
    let weak: Weak<MemoryFile> = Arc::downgrade(&backing);
    (t.cache.file(8, weak, Arc::new(AtomicU64::new(len as u64))), backing)
}

#[test]
fn a_scan_in_tiny_steps_does_not_evict_the_hot_set_either() {
    let t = setup(&options(64), &pattern(1 << 20));
    let hot: Vec<u64> = (0..32).map(|i| i * 7 * 4096).collect();
    for _ in 0..4 {
        hot.iter().for_each(|&at| drop(read(&t.file, at, 100)));
    }
    let (scanned, _backing) = second_file(&t, 1 << 20);
    (0..(1_u64 << 20)).step_by(128).for_each(|at| drop(read(&scanned, at, 128)));
    let before = t.cache.counters().misses;
    hot.iter().for_each(|&at| drop(read(&t.file, at, 100)));
    let missed = t.cache.counters().misses - before;
    assert!(missed <= 4, "{missed} of 32 hot pages were evicted");
}

#[test]
fn sequential_reads_ask_for_windows_that_double() {
    let t = setup(&options(64 << 8), &pattern(16 << 20));
    let mut calls = Vec::new();
    for offset in (0..(8_u64 << 20)).step_by(4096) {
        read(&t.file, offset, 4096);
        calls.extend(t.backing.calls());
    }
    let sizes: Vec<usize> = calls
        .iter()
        .map(|c| if let Call::Read(_, len) = c { len >> 10 } else { panic!("no writes") })
        .collect();
    // 64 KiB at once; then windows of 128 KiB to 2 MiB, in requests of 1 MiB at most, one window
    // ahead of the reader's.
    assert_eq!(sizes[..4], [64, 128, 256, 512]);
    assert_eq!(sizes[4..], [1024; 11], "{calls:?}");
    assert_contiguous(&calls);
    let counters = t.cache.counters();
    assert_eq!(counters.misses, 1, "only the first read waited");
    assert_eq!(counters.read_ahead_wasted, 0);
}

fn assert_contiguous(calls: &[Call]) {
    let mut at = 0;
    for call in calls {
        let Call::Read(offset, len) = *call else { panic!("no writes") };
        assert_eq!(offset, at, "each page is asked for once, in order");
        at += len as u64;
    }
}

#[test]
fn random_reads_ask_for_their_own_pages_only() {
    let t = setup(&options(4096), &pattern(16 << 20));
    let mut random = Random(1);
    let mut pages = 0;
    for _ in 0..200 {
        let page = 1 + random.below(2000) * 2;
        t.backing.calls();
        read(&t.file, page * 4096, 4096);
        let asked: usize = t
            .backing
            .calls()
            .iter()
            .map(|c| if let Call::Read(_, len) = c { len / 4096 } else { 0 })
            .sum();
        pages += asked;
    }
    assert!(pages <= 400, "200 random reads of a page asked for {pages} pages");
}

/// I-CACHE-1: a fill brings the rest of a page and leaves what was written to it before.
#[test]
fn a_fill_does_not_overwrite_what_is_newer() {
    let t = setup(&CacheOptions { io_align: 512, ..options(64) }, &pattern(4096));
    t.file.write_at(&[9; 512], 512).expect("room");
    let mut expected = pattern(4096);
    expected[512..1024].fill(9);
    assert_eq!(read(&t.file, 0, 4096), expected);
}

/// I-CACHE-5: a file served past the cache leaves nothing in it.
#[test]
fn nothing_enters_while_a_file_is_paused() {
    let t = setup(&options(64), &pattern(100_000));
    read(&t.file, 0, 4096);
    t.file.pause();
    assert_eq!(t.cache.counters().resident_bytes, 0);
    assert_eq!(read(&t.file, 0, 50_000), pattern(50_000));
    assert_eq!(t.cache.counters().resident_bytes, 0);
    t.file.resume();
    read(&t.file, 0, 4096);
    assert!(t.cache.counters().resident_bytes > 0);
}

#[test]
fn a_tail_is_zero_beyond_the_end() {
    let t = setup(&options(64), &pattern(5000));
    assert_eq!(read(&t.file, 0, 10_000), pattern(5000));
    t.file.write_at(&[9], 8000).expect("room");
    let mut expected = pattern(5000);
    expected.resize(8000, 0);
    expected.push(9);
    assert_eq!(read(&t.file, 0, 10_000), expected, "I-CACHE-8");
}

#[test]
fn many_pages_never_pass_the_cap() {
    let t = setup(&options(64), &pattern(4 << 20));
    let mut random = Random(3);
    for _ in 0..3000 {
        let at = random.below(1000) * 4096;
        if random.below(2) == 0 {
            read(&t.file, at, 20_000);
        } else {
            t.file.write_at(&[1; 9000], at).expect("room");
        }
        let counters = t.cache.counters();
        assert!(
            counters.resident_bytes <= 64 * 4096 && counters.dirty_bytes <= 64 * 4096,
            "I-CACHE-6: {counters:?}"
        );
    }
    assert!(t.cache.counters().evictions > 0, "the cap was felt");
}

#[test]
fn a_failed_read_is_the_readers_error_and_leaves_nothing() {
    let t = setup(&options(64), &pattern(100_000));
    t.backing.reads_left.store(0, Ordering::SeqCst);
    let mut buf = [0; 100];
    assert_eq!(t.file.read_at(&mut buf, 50_000).expect_err("injected").kind, ErrorKind::Io);
    assert_eq!(read(&t.file, 50_000, 100), pattern(100_000)[50_000..50_100]);
}
