//! The way of answered slots back to their lane.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::ptr;

use parking_lot::Mutex;

use crate::slot::Slot;

thread_local! {
    /// What the calling thread, a lane, has answered itself.
    static ANSWERED: RefCell<Vec<Slot>> = const { RefCell::new(Vec::new()) };
    /// The returns of the calling thread's lane, by their address, which is never looked at.
    static LANE: Cell<*const Returns> = const { Cell::new(ptr::null()) };
}

/// Where answered slots of a lane come back to it.
#[derive(Debug)]
pub(crate) struct Returns {
    /// What other threads have answered; a leaf.
    answered: Mutex<Vec<Slot>>,
    /// Read by the lane's ring.
    pub(crate) waker: OwnedFd,
}

impl Returns {
    pub(crate) fn new(waker: OwnedFd) -> Self {
        Self { answered: Mutex::default(), waker }
    }

    /// Makes the calling thread the lane of these.
    pub(crate) fn are_of_this_thread(&self) {
        LANE.set(self);
    }

    /// Takes an answered slot, and wakes the lane where it is another thread.
    pub(crate) fn take(&self, slot: Slot) {
        if ptr::eq(LANE.get(), self) {
            ANSWERED.with_borrow_mut(|answered| answered.push(slot));
            return;
        }
        self.answered.lock().push(slot);
        if let Err(error) = rustix::io::write(&self.waker, &1_u64.to_ne_bytes()) {
            // It is full after 2^64 answers.
            tracing::error!("a thread that serves the kernel was not woken: {error}");
        }
    }

    /// Returns a slot that the calling thread, which is the lane, has answered.
    pub(crate) fn own() -> Option<Slot> {
        ANSWERED.with_borrow_mut(Vec::pop)
    }

    /// Returns what other threads have answered. They wake the lane after each.
    pub(crate) fn of_others(&self) -> Vec<Slot> {
        std::mem::take(&mut *self.answered.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn a_slot_comes_back_by_the_lane_itself_or_with_a_wake_up() {
        let returns = || Returns::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let (lane, other) = (returns(), returns());
        lane.are_of_this_thread();
        let is_woken = |of: &Returns| rustix::io::read(&of.waker, &mut [0; 8]).is_ok();
        lane.take(Slot::new(7, 8192));
        assert!(!is_woken(&lane) && lane.of_others().is_empty());
        assert_eq!(Returns::own().map(|slot| slot.index), Some(7));
        assert!(Returns::own().is_none());
        other.take(Slot::new(1, 8192));
        assert!(is_woken(&other), "it is another lane's");
        std::thread::scope(|scope| scope.spawn(|| lane.take(Slot::new(2, 8192))).join().unwrap());
        assert!(is_woken(&lane) && Returns::own().is_none());
        assert_eq!(lane.of_others().iter().map(|slot| slot.index).collect::<Vec<_>>(), [2]);
    }
}
