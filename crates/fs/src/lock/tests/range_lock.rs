use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use proptest::prelude::*;

use crate::lock::range_lock::{EXCLUSIVE, Segments};
use crate::lock::{Help, NoHelp, RangeLock, Sharing};

fn range() -> impl Strategy<Value = Range<u64>> {
    (0..30u64, 1..12u64).prop_map(|(start, len)| start..start + len)
}

fn sharing() -> impl Strategy<Value = Sharing> {
    prop_oneof![2 => Just(Sharing::Shared), 1 => Just(Sharing::Exclusive)]
}

proptest! {
    #[test]
    fn segments_admit_what_single_bytes_admit(steps in prop::collection::vec((range(), sharing(), any::<prop::sample::Index>(), any::<bool>()), 1..80)) {
        let lock = RangeLock::default();
        let mut held: Vec<(Range<u64>, Sharing)> = Vec::new();
        for (range, sharing, index, release) in steps {
            if release && !held.is_empty() {
                let (range, sharing) = held.swap_remove(index.index(held.len()));
                lock.release(range, sharing);
            } else {
                let conflict = held.iter().any(|(other, how)| {
                    range.start < other.end && other.start < range.end && (sharing == Sharing::Exclusive || *how == Sharing::Exclusive)
                });
                prop_assert_eq!(lock.try_acquire(range.clone(), sharing), !conflict, "I-RNG-1");
                if !conflict {
                    held.push((range, sharing));
                }
            }
            let state = lock.state.lock();
            let segments: Vec<_> = state.held.0.iter().map(|(start, (end, holders))| (*start, *end, *holders)).collect();
            for byte in 0..64 {
                let holders = held.iter().filter(|(range, how)| range.contains(&byte) && *how == Sharing::Shared).count() as u32;
                let found = segments.iter().find(|(start, end, _)| (*start..*end).contains(&byte)).map_or(0, |segment| segment.2);
                let exclusive = held.iter().any(|(range, how)| range.contains(&byte) && *how == Sharing::Exclusive);
                prop_assert_eq!(found, if exclusive { EXCLUSIVE } else { holders }, "byte {}", byte);
            }
            prop_assert!(segments.len() <= 2 * held.len(), "I-RNG-2: {} segments for {} ranges", segments.len(), held.len());
        }
    }
}

proptest! {
    /// A gap behind the last segment that a waiter's range meets was filled twice where another
    /// segment begins at the range's end: the second filling overlapped what the first had been
    /// joined with, and the line stood for ranges that overlap themselves.
    #[test]
    fn a_line_of_waiters_is_disjoint_and_keeps_the_strictest(waiters in prop::collection::vec((range(), sharing()), 1..20)) {
        let mut line = Segments::default();
        for (at, (range, sharing)) in waiters.iter().enumerate() {
            line.add_waiting(range.clone(), *sharing);
            let segments: Vec<_> = line.0.iter().map(|(start, (end, holders))| (*start, *end, *holders)).collect();
            prop_assert!(segments.windows(2).all(|pair| pair[0].1 <= pair[1].0),
                "I-RNG-2: {:?} overlap", segments);
            for byte in 0..64 {
                let over = waiters[..=at].iter().filter(|(range, _)| range.contains(&byte));
                let wanted = over.fold(0, |holders, (_, sharing)| if *sharing == Sharing::Exclusive || holders == EXCLUSIVE { EXCLUSIVE } else { holders + 1 });
                let found = segments.iter().find(|(start, end, _)| (*start..*end).contains(&byte)).map_or(0, |segment| segment.2);
                prop_assert_eq!(found, wanted, "byte {}", byte);
            }
        }
    }
}

#[test]
fn disjoint_writers_run_at_once_and_overlapping_ones_take_turns() {
    let lock = RangeLock::default();
    let a = lock.lock(0..10, Sharing::Exclusive, &NoHelp);
    let b = lock.lock(10..20, Sharing::Exclusive, &NoHelp);
    assert!(!lock.try_acquire(5..6, Sharing::Shared));
    drop(a);
    assert!(lock.try_acquire(5..6, Sharing::Shared));
    drop(b);
    lock.release(5..6, Sharing::Shared);
    assert!(lock.state.lock().held.0.is_empty());
}

#[test]
fn a_waiting_writer_is_not_overtaken_by_readers() {
    let lock = RangeLock::default();
    let wrote = AtomicBool::new(false);
    let reader = lock.lock(0..10, Sharing::Shared, &NoHelp);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _guard = lock.lock(5..15, Sharing::Exclusive, &NoHelp);
            wrote.store(true, Ordering::SeqCst);
        });
        while lock.state.lock().waiting.is_empty() {
            thread::yield_now();
        }
        assert!(!lock.try_acquire(6..7, Sharing::Shared), "stands behind the writer");
        assert!(lock.try_acquire(0..5, Sharing::Shared), "does not touch what the writer wants");
        lock.release(0..5, Sharing::Shared);
        drop(reader);
        drop(lock.lock(6..7, Sharing::Shared, &NoHelp));
        assert!(wrote.load(Ordering::SeqCst));
    });
}

#[test]
fn threads_never_meet_in_an_exclusive_range() {
    let lock = RangeLock::default();
    let cells: Vec<AtomicU64> = (0..16).map(|_| AtomicU64::new(0)).collect();
    const WRITER: u64 = 1 << 32;
    thread::scope(|scope| {
        for seed in 0..6u64 {
            let (lock, cells) = (&lock, &cells);
            scope.spawn(move || {
                let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                for _ in 0..1500 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let start = random % 16;
                    let end = (start + 1 + (random >> 8) % 6).min(16);
                    let (sharing, mark) = if random >> 20 & 1 == 0 {
                        (Sharing::Shared, 1)
                    } else {
                        (Sharing::Exclusive, WRITER)
                    };
                    let _guard = lock.lock(start..end, sharing, &NoHelp);
                    for cell in &cells[start as usize..end as usize] {
                        let met = cell.fetch_add(mark, Ordering::SeqCst);
                        assert!(if mark == 1 { met < WRITER } else { met == 0 }, "I-RNG-1");
                    }
                    for cell in &cells[start as usize..end as usize] {
                        cell.fetch_sub(mark, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    let state = lock.state.lock();
    assert!(state.held.0.is_empty() && state.waiting.is_empty());
}

#[test]
fn who_waits_long_helps_those_in_the_way() {
    struct Completer<'a>(&'a RangeLock, AtomicBool);
    impl Help for Completer<'_> {
        fn help(&self) {
            if !self.1.swap(true, Ordering::SeqCst) {
                self.0.release(0..4, Sharing::Shared);
            }
        }
    }
    let lock = RangeLock::default();
    lock.acquire(0..4, Sharing::Shared, &NoHelp);
    let help = Completer(&lock, AtomicBool::new(false));
    drop(lock.lock(3..5, Sharing::Exclusive, &help));
    assert!(help.1.load(Ordering::SeqCst));
}
