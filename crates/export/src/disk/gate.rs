//! Writes to a file of the system: many of whole sectors past the page cache, or one through it.
//!
//! A page of the cache holds several sectors. One that is written back with a sector that changed
//! in part would bring back what a direct write replaced beside it, so the two never meet: I-GAT-1.

use parking_lot::{Condvar, Mutex};

/// Passes for direct writes, and one for a buffered one.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<State>,
    free: Condvar,
}

#[derive(Debug, Default)]
struct State {
    direct: usize,
    buffered: bool,
    /// Buffered writes that wait; direct ones let them go first.
    waiting: usize,
}

impl Gate {
    /// Takes a pass for a direct write; `false` while a buffered one is under way or waits.
    pub fn try_direct(&self) -> bool {
        let mut state = self.state.lock();
        let free = !state.buffered && state.waiting == 0;
        state.direct += usize::from(free);
        free
    }

    /// Waits for a pass for a direct write, by a thread that holds none.
    pub fn direct<T>(&self, write: impl FnOnce() -> T) -> T {
        let mut state = self.state.lock();
        while state.buffered || state.waiting > 0 {
            self.free.wait(&mut state);
        }
        state.direct += 1;
        drop(state);
        let result = write();
        self.end_direct();
        result
    }

    /// Gives a pass for a direct write back.
    pub fn end_direct(&self) {
        let mut state = self.state.lock();
        assert!(state.direct > 0, "a direct write ends that began");
        state.direct -= 1;
        if state.direct == 0 {
            self.free.notify_all();
        }
    }

    /// Writes through the page cache, once no direct write is under way; `write` leaves no dirty
    /// page behind.
    pub fn buffered<T>(&self, write: impl FnOnce() -> T) -> T {
        let mut state = self.state.lock();
        state.waiting += 1;
        while state.buffered || state.direct > 0 {
            self.free.wait(&mut state);
        }
        state.waiting -= 1;
        state.buffered = true;
        assert!(state.direct == 0, "I-GAT-1: no direct write is beside a buffered one");
        drop(state);
        let result = write();
        let was = std::mem::replace(&mut self.state.lock().buffered, false);
        assert!(was, "I-GAT-1: a buffered write that ends was the only one");
        self.free.notify_all();
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::time::Duration;

    use super::*;

    #[test]
    fn i_gat_1_a_buffered_write_waits_for_direct_ones_and_goes_before_the_next() {
        let (gate, written) = (Arc::new(Gate::default()), Arc::new(AtomicBool::new(false)));
        assert!(gate.try_direct() && gate.try_direct(), "direct ones go side by side");
        let buffered = std::thread::spawn({
            let (gate, written) = (Arc::clone(&gate), Arc::clone(&written));
            move || gate.buffered(|| written.store(true, SeqCst))
        });
        while gate.try_direct() {
            gate.end_direct();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!written.load(SeqCst), "two direct ones are under way");
        gate.end_direct();
        gate.end_direct();
        gate.direct(|| assert!(written.load(SeqCst), "the one that waited went first"));
        buffered.join().unwrap();
        assert!(gate.try_direct());
    }
}
