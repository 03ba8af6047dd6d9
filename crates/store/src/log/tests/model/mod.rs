//! The protocol of group commit, the very source file, under a checker that runs its threads in
//! every kind of order.

use std::panic::catch_unwind;
use std::sync::Arc;

#[expect(
    clippy::duplicate_mod,
    reason = "the model checks the very source that runs, over other surroundings"
)]
#[path = "../../group.rs"]
mod group;
mod sync;

use crate::planted::{PlantedBug, plant};
use group::Group;
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shuttle::thread;

/// What the callers' work does, reduced to what must hold: what was wished before a call began is
/// done when it returns.
#[derive(Debug)]
struct Work {
    group: Group,
    wished: AtomicU64,
    done: AtomicU64,
    rounds: AtomicU64,
    busy: AtomicBool,
}

impl Work {
    fn new() -> Arc<Self> {
        let (wished, done, rounds, busy) = Default::default();
        Arc::new(Self { group: Group::new(), wished, done, rounds, busy })
    }

    fn call(&self) {
        let wish = self.wished.fetch_add(1, Ordering::SeqCst) + 1;
        self.group.join(|| self.round());
        assert!(self.done.load(Ordering::SeqCst) >= wish, "I-GROUP-2");
    }

    /// A round of a caller whose own work it has to be.
    fn call_alone(&self) {
        let wish = self.wished.fetch_add(1, Ordering::SeqCst) + 1;
        let mut ran = 0;
        self.group.lead_alone(|| {
            ran += 1;
            self.round();
        });
        assert_eq!(ran, 1, "no other round stands in for it");
        assert!(self.done.load(Ordering::SeqCst) >= wish, "I-GROUP-2");
    }

    fn round(&self) {
        assert!(!self.busy.swap(true, Ordering::SeqCst), "I-GROUP-1");
        let wished = self.wished.load(Ordering::SeqCst);
        thread::yield_now();
        self.rounds.fetch_add(1, Ordering::SeqCst);
        self.done.fetch_max(wished, Ordering::SeqCst);
        assert!(self.busy.swap(false, Ordering::SeqCst), "I-GROUP-1");
    }
}

fn callers(threads: usize, calls: usize) {
    let work = Work::new();
    let threads: Vec<_> = (0..threads)
        .map(|_| {
            let work = Arc::clone(&work);
            thread::spawn(move || (0..calls).for_each(|_| work.call()))
        })
        .collect();
    let count = (threads.len() * calls) as u64;
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(work.group.arrivals(), count);
    assert!(work.rounds.load(Ordering::SeqCst) <= count);
}

/// I-GROUP-1, I-GROUP-2; and I-GROUP-3, because the checker reports a deadlock.
#[test]
fn no_order_of_threads_breaks_the_protocol() {
    shuttle::check_random(|| callers(3, 2), 3000);
    shuttle::check_pct(|| callers(4, 2), 3000, 4);
}

fn callers_beside_one_alone(threads: usize) {
    let work = Work::new();
    let threads: Vec<_> = (0..threads)
        .map(|number| {
            let work = Arc::clone(&work);
            thread::spawn(move || {
                (0..2).for_each(|_| if number == 0 { work.call_alone() } else { work.call() });
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

/// I-GROUP-1, I-GROUP-2, I-GROUP-3: also while one leads whatever the others did.
#[test]
fn no_order_of_threads_breaks_the_protocol_beside_a_round_alone() {
    shuttle::check_random(|| callers_beside_one_alone(3), 3000);
    shuttle::check_pct(|| callers_beside_one_alone(4), 3000, 4);
}

/// The checker is worth something only if it sees a caller that is answered before a round served
/// it.
#[test]
fn i_group_2_a_waiter_that_is_answered_early_is_found() {
    plant(Some(PlantedBug::SeventhAnsweredEarly));
    let found = catch_unwind(|| shuttle::check_random(|| callers(4, 2), 3000));
    plant(None);
    let what = found.expect_err("SeventhAnsweredEarly went unnoticed");
    let what = what
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| what.downcast_ref::<&str>().copied())
        .unwrap_or_default();
    assert!(what.contains("I-GROUP-2"), "by another rule: {what}");
}
