//! The locks of a file, the very source files, under a checker that runs its threads in every kind
//! of order; and the change of a file's service over them, as `data/open.rs` makes it.
#![expect(
    clippy::duplicate_mod,
    reason = "the model checks the very source that runs, over other surroundings"
)]
#![allow(dead_code, reason = "the model needs a part of what the source offers")]

#[path = "../../inode_lock.rs"]
mod inode_lock;
mod mixed_open;
#[path = "../../range_lock.rs"]
mod range_lock;
mod sync;

use std::ops::Range;
use std::sync::Arc;

use inode_lock::InodeLock;
use range_lock::{RangeLock, Sharing};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;

use crate::lock::{HELP_AFTER, Help};

/// Another thread goes on meanwhile.
struct Yields;

impl Help for Yields {
    fn help(&self) {
        thread::yield_now();
    }
}

/// The holders: an exclusive holder adds this, a shared one 1.
const ALONE: u64 = 1 << 32;

/// Enters a place that a lock guards, stays a while, and leaves.
fn visit(place: &AtomicU64, sharing: Sharing, rule: &str) {
    let weight = if sharing == Sharing::Exclusive { ALONE } else { 1 };
    let met = place.fetch_add(weight, Ordering::SeqCst);
    assert!(if sharing == Sharing::Exclusive { met == 0 } else { met < ALONE }, "{rule}");
    thread::yield_now();
    place.fetch_sub(weight, Ordering::SeqCst);
}

fn spawn_all(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    let threads: Vec<_> = threads.into_iter().collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no thread fails"));
}

/// Readers and writers; one reader's hold is ended by another thread, as I/O in flight does it
/// (I-LCK-2).
fn inode_lock(readers: usize, writers: usize) {
    let shared: Arc<(InodeLock, AtomicU64)> = Arc::default();
    let reader = || {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            let (lock, place) = &*shared;
            drop((lock.shared(&Yields), visit(place, Sharing::Shared, "I-LCK-1")));
            if lock.try_acquire_shared() {
                visit(place, Sharing::Shared, "I-LCK-1");
                let other = Arc::clone(&shared);
                thread::spawn(move || other.0.release_shared()).join().expect("I-LCK-2");
            }
        })
    };
    let writer = || {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            let (lock, place) = &*shared;
            for _ in 0..2 {
                let _held = lock.exclusive(&Yields);
                visit(place, Sharing::Exclusive, "I-LCK-1");
            }
        })
    };
    let writers: Vec<_> = (0..writers).map(|_| writer()).collect();
    spawn_all((0..readers).map(|_| reader()).chain(writers));
    assert!(!shared.0.is_held(), "all have left");
}

/// I-LCK-1, I-LCK-2; and that no thread waits for ever, because the checker reports a deadlock.
#[test]
fn no_order_of_threads_breaks_the_inode_lock() {
    shuttle::check_random(|| inode_lock(2, 2), 2000);
    shuttle::check_pct(|| inode_lock(2, 2), 2000, 4);
    shuttle::check_random(|| inode_lock(1, 3), 1000);
}

fn ranges() {
    let lock = Arc::new(RangeLock::default());
    let cells: Arc<[AtomicU64; 4]> = Arc::new(std::array::from_fn(|_| AtomicU64::new(0)));
    let user = |range: Range<u64>, sharing: Sharing| {
        let (lock, cells) = (Arc::clone(&lock), Arc::clone(&cells));
        thread::spawn(move || {
            for _ in 0..2 {
                let _held = lock.lock(range.clone(), sharing, &Yields);
                cells[range.start as usize..range.end as usize]
                    .iter()
                    .for_each(|cell| visit(cell, sharing, "I-RNG-1"));
            }
        })
    };
    let sharing =
        || if thread_rng().gen_range(0..2) == 0 { Sharing::Shared } else { Sharing::Exclusive };
    spawn_all([
        user(0..3, Sharing::Exclusive),
        user(1..4, sharing()),
        user(0..2, Sharing::Shared),
        user(2..4, sharing()),
    ]);
    let state = lock.state.lock();
    assert!(state.held.0.is_empty() && state.waiting.is_empty(), "I-RNG-2: all have left");
}

/// I-RNG-1, I-RNG-2; and that no thread stands in line for ever.
#[test]
fn no_order_of_threads_breaks_the_range_lock() {
    shuttle::check_random(ranges, 2000);
    shuttle::check_pct(ranges, 2000, 4);
}
