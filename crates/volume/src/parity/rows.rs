//! Locks on rows: who writes a row, or needs all of it to agree, has it alone. All that a call needs are taken at once, so nobody waits in a circle.

use parking_lot::{Condvar, Mutex};

/// First and last row.
pub(crate) type Span = (u64, u64);

/// The rows that are locked now. Rank G0.5: after a region is entered or locked, before everything else.
#[derive(Debug, Default)]
pub(crate) struct RowLocks {
    held: Mutex<Vec<Span>>,
    freed: Condvar,
}

/// Rows that are locked until it is dropped.
#[derive(Debug)]
pub(crate) struct RowsHeld<'a> {
    locks: &'a RowLocks,
    spans: Vec<Span>,
}

impl RowLocks {
    /// Waits until all rows are free and takes them.
    pub fn lock(&self, spans: Vec<Span>) -> RowsHeld<'_> {
        let mut held = self.held.lock();
        while held.iter().any(|one| spans.iter().any(|two| one.0 <= two.1 && two.0 <= one.1)) {
            self.freed.wait(&mut held);
        }
        held.extend(&spans);
        RowsHeld { locks: self, spans }
    }
}

impl Drop for RowsHeld<'_> {
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
        let locks = RowLocks::default();
        let first = locks.lock(vec![(0, 3), (9, 9)]);
        let second = locks.lock(vec![(4, 8)]);
        let counter = Mutex::new(0);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let _held = locks.lock(vec![(3, 4)]);
                *counter.lock() += 1;
            });
            *counter.lock() += 10;
            drop((first, second));
            waiting.join().unwrap();
        });
        assert_eq!((*counter.lock(), locks.held.lock().len()), (11, 0));
    }
}
