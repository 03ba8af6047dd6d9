//! Locks on rows: a write to a row, or anything that needs all of it to agree, has it alone. All
//! that a call needs are taken at once, so there is no circular wait. Like a pass of the gate, a
//! lock does not belong to a thread; a thread that waits for one carries out what others left under
//! way.

use std::sync::Arc;

use bedplate_block::sync::{Place, rank};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::gate::RECHECK_INTERVAL;
use crate::planted::{Mistake, is_planted};

/// First and last row.
pub(crate) type Span = (u64, u64);

/// The rows that are locked now. Rank G0.5: after a region is entered or locked, before everything
/// else.
#[derive(Debug, Default)]
pub(crate) struct RowLocks {
    held: Mutex<Vec<Span>>,
    freed: Condvar,
}

/// Rows that are locked until it is dropped.
#[derive(Debug)]
pub(crate) struct RowsHeld {
    locks: Arc<RowLocks>,
    spans: Vec<Span>,
}

fn meets(held: &[Span], spans: &[Span]) -> bool {
    !is_planted(Mistake::RowsNotLocked)
        && held.iter().any(|one| spans.iter().any(|two| one.0 <= two.1 && two.0 <= one.1))
}

impl RowLocks {
    /// Waits until all rows are free and takes them.
    pub fn lock(self: &Arc<Self>, spans: &[Span], mut help: impl FnMut()) -> RowsHeld {
        Place::of(rank::ROWS).check();
        let mut held = self.held.lock();
        while meets(&held, spans) {
            MutexGuard::unlocked(&mut held, &mut help);
            if meets(&held, spans) {
                self.freed.wait_for(&mut held, RECHECK_INTERVAL);
            }
        }
        self.take(&mut held, spans)
    }

    /// Takes rows if all of them are free.
    pub fn try_lock(self: &Arc<Self>, spans: &[Span]) -> Option<RowsHeld> {
        let mut held = self.held.lock();
        (!meets(&held, spans)).then(|| self.take(&mut held, spans))
    }

    fn take(self: &Arc<Self>, held: &mut Vec<Span>, spans: &[Span]) -> RowsHeld {
        held.extend(spans);
        RowsHeld { locks: Arc::clone(self), spans: spans.to_vec() }
    }
}

impl Drop for RowsHeld {
    fn drop(&mut self) {
        let mut held = self.locks.held.lock();
        for span in &self.spans {
            if let Some(at) = held.iter().position(|one| one == span) {
                held.swap_remove(at);
            }
        }
        self.locks.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_do_not_meet_are_locked_side_by_side() {
        let locks = Arc::new(RowLocks::default());
        let first = locks.lock(&[(0, 3), (9, 9)], || ());
        let second = locks.try_lock(&[(4, 8)]).unwrap();
        assert!(locks.try_lock(&[(20, 21), (8, 9)]).is_none());
        let counter = Mutex::new(0);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let _held = locks.lock(&[(3, 4)], || ());
                *counter.lock() += 1;
            });
            *counter.lock() += 10;
            drop((first, second));
            waiting.join().unwrap();
        });
        assert_eq!((*counter.lock(), locks.held.lock().len()), (11, 0));
    }

    #[test]
    fn who_waits_for_rows_helps_who_holds_them() {
        let locks = Arc::new(RowLocks::default());
        let mut first = Some(locks.lock(&[(5, 6)], || ()));
        let second = locks.lock(&[(6, 7)], || drop(first.take()));
        drop(second);
        assert!(first.is_none() && locks.held.lock().is_empty());
    }
}
