//! The locks that models of concurrency use in place of those with ranks, whose order a model does
//! not check: every step of these is a point where the checker may switch threads.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync as shuttled;
use shuttle::sync::{RwLockReadGuard, RwLockWriteGuard};

const CLEAN: &str = "no thread panicked";

#[derive(Debug, Default)]
pub struct Mutex<T, const LOCK: usize = 0>(shuttled::Mutex<T>);

/// `None` only while the lock is given up for a moment.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    mutex: &'a shuttled::Mutex<T>,
    held: Option<shuttled::MutexGuard<'a, T>>,
}

impl<T, const LOCK: usize> Mutex<T, LOCK> {
    pub fn new(value: T) -> Self {
        Self(shuttled::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: &self.0, held: Some(self.0.lock().expect(CLEAN)) }
    }
}

impl<T> MutexGuard<'_, T> {
    pub fn unlocked<U>(guard: &mut Self, work: impl FnOnce() -> U) -> U {
        guard.held = None;
        let result = work();
        guard.held = Some(guard.mutex.lock().expect(CLEAN));
        result
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.held.as_ref().expect(CLEAN)
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect(CLEAN)
    }
}

#[derive(Debug, Default)]
pub struct Condvar(shuttled::Condvar);

/// How a wait ended.
pub struct Waited {
    timed_out: bool,
}

impl Waited {
    pub fn timed_out(&self) -> bool {
        self.timed_out
    }
}

impl Condvar {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.held = guard.held.take().map(|held| self.0.wait(held).expect(CLEAN));
    }

    /// Now and then the time is over at once; otherwise it never is, so that a wake-up that was
    /// lost is a deadlock, which the checker reports.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) -> Waited {
        let timed_out = thread_rng().gen_range(0..8) == 0;
        if timed_out {
            MutexGuard::unlocked(guard, shuttle::thread::yield_now);
        } else {
            self.wait(guard);
        }
        Waited { timed_out }
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[derive(Debug)]
pub struct RwLock<T, const LOCK: usize = 0>(shuttled::RwLock<T>);

impl<T, const LOCK: usize> RwLock<T, LOCK> {
    pub fn new(value: T) -> Self {
        Self(shuttled::RwLock::new(value))
    }

    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().expect(CLEAN)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().expect(CLEAN)
    }
}
