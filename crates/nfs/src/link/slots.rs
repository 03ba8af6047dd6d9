//! The bound on calls in flight.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// As many calls as there may be at once.
#[derive(Debug)]
pub struct Slots {
    free: Mutex<usize>,
    freed: Condvar,
}

/// The right to one of them, until it is dropped.
#[derive(Debug)]
pub struct Slot(Arc<Slots>);

impl Slots {
    pub fn new(count: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::new(count), freed: Condvar::new() })
    }

    /// Waits for a free one.
    pub fn take(self: &Arc<Self>) -> Slot {
        let mut free = self.free.lock();
        while *free == 0 {
            self.freed.wait(&mut free);
        }
        *free -= 1;
        Slot(Arc::clone(self))
    }

    /// Takes one where one is free.
    pub fn try_take(self: &Arc<Self>) -> Option<Slot> {
        let mut free = self.free.lock();
        *free = free.checked_sub(1)?;
        Some(Slot(Arc::clone(self)))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *self.0.free.lock() += 1;
        self.0.freed.notify_one();
    }
}
