//! How dirty pages reach the backing.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::*;

#[test]
fn small_sequential_writes_are_written_behind_in_large_runs() {
    let t = setup(&options(4096), &[]);
    for offset in (0..(4_u64 << 20) + 100_000).step_by(1000) {
        t.file.write_at(&[7; 1000], offset).expect("room");
    }
    let behind = t.backing.calls();
    assert_eq!(
        behind,
        [0, 1, 2, 3].map(|i| Call::Write(i << 20, 1 << 20)),
        "full runs are written early"
    );
    t.file.flush().expect("sound");
    assert!(t.backing.calls().len() == 1, "the rest goes out in one write");
    assert_eq!(t.backing.content(), vec![7; t.size.load(Ordering::SeqCst) as usize]);
}

#[test]
fn scattered_writes_are_coalesced_in_file_order() {
    let t = setup(&options(4096), &pattern(1 << 20));
    for page in [9_u64, 3, 11, 10, 4, 30] {
        t.file.write_at(&[1; 4096], page * 4096).expect("room");
    }
    t.file.flush().expect("sound");
    assert_eq!(
        t.backing.calls(),
        [
            Call::Write(3 * 4096, 8192),
            Call::Write(9 * 4096, 3 * 4096),
            Call::Write(30 * 4096, 4096)
        ]
    );
}

#[test]
fn whole_blocks_are_written_without_reading_and_partial_ones_read_what_they_need() {
    let t = setup(&options(4096), &pattern(1 << 20));
    t.file.write_at(&[1; 8192], 4096).expect("room");
    t.file.write_at(&[1; 10], 2 << 20).expect("room");
    assert_eq!(t.backing.calls(), [], "whole blocks, and blocks beyond the end");
    t.file.write_at(&[1; 8192], 40_960 + 100).expect("room");
    assert_eq!(
        t.backing.calls(),
        [Call::Read(40_960, 4096), Call::Read(49_152, 4096)],
        "the two edges"
    );
}

#[test]
fn sectors_smaller_than_a_page_are_written_without_reading() {
    let t =
        setup(&CacheOptions { io_align: 512, block_size: 512, ..options(64) }, &pattern(1 << 20));
    t.file.write_at(&[1; 1024], 4096 + 512).expect("room");
    t.file.flush().expect("sound");
    assert_eq!(t.backing.calls(), [Call::Write(4608, 1024)]);
    let mut buf = [0; 4096];
    t.file.read_at(&mut buf, 4096).expect("sound");
    let mut expected = pattern(1 << 20)[4096..8192].to_vec();
    expected[512..1536].fill(1);
    assert_eq!(buf[..], expected);
}

#[test]
fn only_old_pages_are_written_by_the_daemon() {
    let t = setup(&options(64), &pattern(1 << 20));
    t.file.write_at(&[1; 4096], 0).expect("room");
    let between = Instant::now();
    while Instant::now() <= between {
        std::thread::sleep(Duration::from_micros(1));
    }
    t.file.write_at(&[1; 4096], 40_960).expect("room");
    t.cache.flush_aged(between).expect("sound");
    assert_eq!(t.backing.calls(), [Call::Write(0, 4096)]);
    t.cache.flush_all().expect("sound");
    assert_eq!(t.backing.calls(), [Call::Write(40_960, 4096)]);
}

#[test]
fn a_failed_write_behind_is_told_once_and_loses_nothing() {
    let t = setup(&options(64), &pattern(1 << 20));
    t.file.write_at(&[1; 4096], 8192).expect("room");
    t.backing.writes_left.store(0, Ordering::SeqCst);
    t.cache.flush_aged(Instant::now()).expect_err("injected");
    assert_eq!(t.file.dirty_bytes(), 4096, "the page is dirty again");
    let told =
        t.file.flush().expect_err("the next sync says what failed, though it could write it now");
    assert!(told.message.contains("8192..12288") && told.message.contains("inode 7"), "{told}");
    t.file.flush().expect("told, and written");
    assert_eq!(t.backing.content()[8192..12288], [1; 4096]);
}

/// An error of a write-behind stays for the next flush, whatever else writes the pages out before.
#[test]
fn s_520_what_is_no_sync_writes_pages_and_tells_no_error_of_before() {
    let t = setup(&options(64), &pattern(1 << 20));
    for others in 0..3 {
        t.file.write_at(&[1; 4096], 8192).expect("room");
        t.backing.writes_left.store(0, Ordering::SeqCst);
        t.cache.flush_aged(Instant::now()).expect_err("injected");
        match others {
            0 => t.file.write_dirty(),
            1 => t.file.write_dirty_range(8192, 4096),
            _ => t.cache.write_dirty(),
        }
        .expect("they can be written now");
        assert_eq!(t.file.dirty_bytes(), 0);
        assert!(t.file.flush().expect_err("of before").message.contains("8192..12288"));
        t.file.flush().expect("told");
    }
}

#[test]
fn every_flush_fails_while_the_backing_does() {
    let t = setup(&options(64), &pattern(1 << 20));
    t.file.write_at(&[1; 4096], 0).expect("room");
    for _ in 0..3 {
        t.backing.writes_left.store(0, Ordering::SeqCst);
        t.file.flush().expect_err("injected");
    }
    t.file.flush().expect("told three times, now written");
}

#[test]
fn no_space_is_met_by_the_writer_not_by_write_behind() {
    let t = setup(&options(64), &pattern(8192));
    t.backing.reserves_left.store(0, Ordering::SeqCst);
    assert_eq!(t.file.write_at(&[1; 4096], 0).expect_err("injected").kind, ErrorKind::NoSpace);
    assert_eq!(t.file.dirty_bytes(), 0);
    t.file.flush().expect("nothing to do");
}

#[test]
fn what_a_truncate_cuts_off_is_never_written() {
    let t = setup(&CacheOptions { io_align: 512, block_size: 512, ..options(64) }, &[]);
    t.file.write_at(&[1; 20_000], 0).expect("room");
    drop(t.file.begin_truncate(700));
    t.file.flush().expect("sound");
    assert_eq!(t.backing.calls(), [Call::Write(0, 1024)]);
    assert_eq!(t.backing.content(), [1; 700]);
}

#[test]
fn dropping_everything_forgets_dirty_pages() {
    let t = setup(&options(1024), &pattern(100_000));
    t.file.write_at(&[1; 50_000], 0).expect("room");
    t.file.drop_all();
    t.file.flush().expect("nothing to do");
    assert_eq!(
        (
            t.backing.calls().into_iter().filter(|c| matches!(c, Call::Write(..))).count(),
            t.file.dirty_bytes()
        ),
        (0, 0)
    );
    assert_eq!(t.cache.counters().resident_bytes, 0);
}

/// I-CACHE-6: the background has stopped after a failure, so the writer meets the limit and writes
/// back itself.
#[test]
fn a_writer_who_would_pass_the_dirty_share_writes_back_itself() {
    let t = setup(&options(64), &[]);
    t.backing.writes_left.store(0, Ordering::SeqCst);
    for page in 0..200_u64 {
        t.file.write_at(&[1; 4096], page * 4096).expect("room");
        assert!(t.file.dirty_bytes() <= 32 * 4096, "half the cap");
    }
    assert!(t.cache.counters().throttled > 0);
    t.file.flush().expect_err("the failure in the background");
    assert_eq!(t.backing.content(), vec![1; 200 * 4096]);
}

/// The last hold of the inode ends on the thread that carries its pages: nothing waits for itself,
/// and nothing stays in memory.
#[test]
fn a_file_dropped_while_its_pages_are_written_leaves_nothing() {
    struct Holder {
        file: Mutex<Option<CachedFile>>,
    }
    impl Backing for Holder {
        fn read_direct(&self, _buf: &mut [u8], _offset: u64) -> Result<usize> {
            Ok(0)
        }
        fn write_direct(&self, _buf: &[u8], _offset: u64, _size_after: u64) -> Result<()> {
            drop(self.file.lock().take());
            Ok(())
        }
        fn reserve(&self, _offset: u64, _len: u64) -> Result<()> {
            Ok(())
        }
        fn size(&self) -> u64 {
            0
        }
    }
    let cache = PageCache::new(&options(4096));
    let holder = Arc::new(Holder { file: Mutex::default() });
    let weak: Weak<Holder> = Arc::downgrade(&holder);
    let file = cache.file(1, weak, Arc::default());
    file.write_at(&vec![1; 3 << 19], 0).expect("room");
    *holder.file.lock() = Some(file);
    cache.flush_all().expect("the write succeeded");
    assert_eq!((cache.counters().dirty_bytes, cache.counters().resident_bytes), (0, 0));
}

/// A flush waits for a write that another thread began, and that write fails, after an earlier
/// failure was told: the flush must not succeed.
#[test]
fn a_flush_hears_of_a_failure_it_waited_for_although_an_earlier_one_was_told() {
    /// Fails the first write, and every one at 1 MiB while `failing`, which it holds back until
    /// `open`.
    #[derive(Default)]
    struct Gate {
        passed_first: AtomicBool,
        failing: AtomicBool,
        held: AtomicBool,
        open: AtomicBool,
    }
    impl Backing for Gate {
        fn read_direct(&self, buf: &mut [u8], _offset: u64) -> Result<usize> {
            Ok(buf.len())
        }
        fn write_direct(&self, _buf: &[u8], offset: u64, _size_after: u64) -> Result<()> {
            self.held.store(offset == 1 << 20, Ordering::SeqCst);
            while offset == 1 << 20 && !self.open.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let fails = !self.passed_first.swap(true, Ordering::SeqCst)
                || (offset == 1 << 20 && self.failing.load(Ordering::SeqCst));
            if fails { Err(Error::new(ErrorKind::Io, "injected")) } else { Ok(()) }
        }
        fn reserve(&self, _offset: u64, _len: u64) -> Result<()> {
            Ok(())
        }
        fn size(&self) -> u64 {
            2 << 20
        }
    }
    let cache = PageCache::new(&options(4096));
    let gate = Arc::new(Gate { failing: AtomicBool::new(true), ..Gate::default() });
    let weak: Weak<Gate> = Arc::downgrade(&gate);
    let file = cache.file(1, weak, Arc::new(AtomicU64::new(2 << 20)));
    file.write_at(&[1; 4096], 0).expect("room");
    file.flush_range(0, 4096).expect_err("the first failure is told");
    file.write_at(&[2; 4096], 1 << 20).expect("room");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| file.flush_range(1 << 20, 4096));
        while !gate.held.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let waiting = scope.spawn(|| file.flush());
        // Long enough for the flush to find the other write under way; if it is not, the flush
        // writes the page itself and fails by itself.
        std::thread::sleep(Duration::from_millis(50));
        gate.open.store(true, Ordering::SeqCst);
        other.join().expect("no panic").expect_err("it failed");
        let told = waiting.join().expect("no panic");
        assert!(
            told.is_err() || file.dirty_bytes() == 0,
            "a flush succeeded over pages that are still dirty"
        );
    });
    gate.failing.store(false, Ordering::SeqCst);
    file.flush().ok();
    file.flush().expect("sound");
    assert_eq!(file.dirty_bytes(), 0);
}
