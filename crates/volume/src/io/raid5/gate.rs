//! The gate: every batch of writes holds a pass from its plan to its end in place; what needs that
//! no batch is under way has the gate alone.
//!
//! A pass does not belong to a thread: a queue's batch keeps it while the queue's owner does
//! something else. So a thread that waits for the gate carries out what others left under way
//! (`help`).

use std::sync::Arc;
use std::time::Duration;

use bedplate_block::sync::{Place, rank};
use parking_lot::{Condvar, Mutex, MutexGuard};

/// How long a waiting thread sleeps before it looks again for batches to carry out.
pub(super) const RECHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Rank G1.5: after rows and a dirty region log.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    passes: usize,
    alone: bool,
    /// How many want it alone: no pass is given out before they had it.
    wanted: usize,
}

/// Leave to write rows.
#[derive(Debug)]
pub(super) struct Pass(Arc<Gate>);

/// Nothing is under way as long as this lives.
#[derive(Debug)]
pub(crate) struct Alone<'a>(&'a Gate);

impl Gate {
    /// Returns a pass, unless the gate is held alone or wanted so.
    pub(super) fn pass(self: &Arc<Self>) -> Option<Pass> {
        let mut state = self.state.lock();
        if state.alone || state.wanted > 0 {
            return None;
        }
        state.passes += 1;
        Some(Pass(Arc::clone(self)))
    }

    /// Sleeps until there may be a pass, or for a moment; returns false at once where there may be
    /// one now.
    pub(super) fn wait(&self) -> bool {
        let mut state = self.state.lock();
        let taken = state.alone || state.wanted > 0;
        if taken {
            self.changed.wait_for(&mut state, RECHECK_INTERVAL);
        }
        taken
    }

    /// Waits until all passes are given back; meanwhile none is given out.
    pub(super) fn alone(&self, mut help: impl FnMut()) -> Alone<'_> {
        Place::of(rank::GATE).check();
        let mut state = self.state.lock();
        state.wanted += 1;
        while state.alone || state.passes > 0 {
            MutexGuard::unlocked(&mut state, &mut help);
            if state.alone || state.passes > 0 {
                self.changed.wait_for(&mut state, RECHECK_INTERVAL);
            }
        }
        state.wanted -= 1;
        state.alone = true;
        Alone(self)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.passes -= 1;
        if state.passes == 0 {
            self.0.changed.notify_all();
        }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.state.lock().alone = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone_means_that_no_pass_is_out_and_who_waits_for_that_helps() {
        let gate = Arc::new(Gate::default());
        let mut passes = vec![gate.pass().unwrap(), gate.pass().unwrap()];
        let alone = gate.alone(|| {
            assert!(gate.pass().is_none(), "the gate is wanted alone");
            passes.pop();
        });
        assert!(gate.pass().is_none());
        drop(alone);
        assert!(passes.is_empty() && gate.pass().is_some());
    }
}
