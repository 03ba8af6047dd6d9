//! Stands in for the locks of the cache: every step of these is a point where the checker may switch threads.

use std::ops::{Deref, DerefMut};

use shuttle::sync as shuttled;
pub(super) use shuttle::sync::atomic::AtomicU64;
pub(super) use shuttle::sync::{RwLockReadGuard, RwLockWriteGuard};

const CLEAN: &str = "no thread panicked";

#[derive(Debug, Default)]
pub(super) struct Mutex<T>(shuttled::Mutex<T>);

/// `None` only while a condition is waited for.
#[derive(Debug)]
pub(super) struct MutexGuard<'a, T>(Option<shuttled::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub(super) fn new(value: T) -> Self {
        Self(shuttled::Mutex::new(value))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().expect(CLEAN)))
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_ref().expect(CLEAN)
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect(CLEAN)
    }
}

#[derive(Debug, Default)]
pub(super) struct Condvar(shuttled::Condvar);

impl Condvar {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.0 = guard.0.take().map(|held| self.0.wait(held).expect(CLEAN));
    }

    pub(super) fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[derive(Debug)]
pub(super) struct RwLock<T>(shuttled::RwLock<T>);

impl<T> RwLock<T> {
    pub(super) fn new(value: T) -> Self {
        Self(shuttled::RwLock::new(value))
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().expect(CLEAN)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().expect(CLEAN)
    }
}
