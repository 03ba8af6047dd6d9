//! The door to locks: those of `parking_lot`, each with its row in the table of ranks.
//!
//! In a debug build every thread knows which ranked locks it holds, and taking one that is not
//! above them all panics with both names, whether or not the threads that would make a deadlock of
//! it are there. A lock that is tried, not waited for, need not be above the others; what is taken
//! under it does. In a release build the types are those of `parking_lot` with nothing added.
//!
//! I-RANK-1: a thread that waits for a lock holds only locks of lower rank, and of its own kind
//! only such with a smaller number, or any under a lock whose holders have an order of their own.

mod held;
#[cfg(feature = "model")]
#[doc(hidden)]
pub mod model;
pub mod rank;

use std::fmt;
use std::ops::{Deref, DerefMut};

pub use held::{Held, Place};

/// A mutex with a rank: the constant of [`rank`] in its type.
#[derive(Default)]
pub struct Mutex<T, const LOCK: usize>(parking_lot::Mutex<T>);

/// A read-write lock with a rank: the constant of [`rank`] in its type.
#[derive(Default)]
pub struct RwLock<T, const LOCK: usize>(parking_lot::RwLock<T>);

/// A condition that the holder of a ranked mutex waits for.
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

/// The guard of a ranked lock.
#[must_use]
pub struct Guard<G> {
    guard: G,
    held: Held,
}

/// The guard of a [`Mutex`].
pub type MutexGuard<'a, T> = Guard<parking_lot::MutexGuard<'a, T>>;
/// The shared guard of an [`RwLock`].
pub type RwLockReadGuard<'a, T> = Guard<parking_lot::RwLockReadGuard<'a, T>>;
/// The exclusive guard of an [`RwLock`].
pub type RwLockWriteGuard<'a, T> = Guard<parking_lot::RwLockWriteGuard<'a, T>>;
/// The shared guard of a part of what an [`RwLock`] guards.
pub type MappedRwLockReadGuard<'a, T> = Guard<parking_lot::MappedRwLockReadGuard<'a, T>>;
/// The exclusive guard of a part of what an [`RwLock`] guards.
pub type MappedRwLockWriteGuard<'a, T> = Guard<parking_lot::MappedRwLockWriteGuard<'a, T>>;

impl<G> Guard<G> {
    /// Makes another guard of the same hold.
    pub fn map<H>(guard: Self, work: impl FnOnce(G) -> H) -> Guard<H> {
        Guard { guard: work(guard.guard), held: guard.held }
    }

    /// Makes another guard of the same hold, or ends it.
    pub fn try_map<H>(guard: Self, work: impl FnOnce(G) -> Option<H>) -> Option<Guard<H>> {
        let held = guard.held;
        work(guard.guard).map(|guard| Guard { guard, held })
    }
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;
    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

impl<G: fmt::Debug> fmt::Debug for Guard<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

impl<T, const LOCK: usize> Mutex<T, LOCK> {
    /// Makes a mutex that is free.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    /// Waits for the mutex.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = Place::of(LOCK).take();
        Guard { guard: self.0.lock(), held }
    }

    /// Takes the mutex if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().map(|guard| Guard { guard, held: Place::of(LOCK).taken() })
    }

    /// Returns what the mutex guards, which no other thread can reach.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    /// Returns what the mutex guarded.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T, const LOCK: usize> RwLock<T, LOCK> {
    /// Makes a lock that is free.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value))
    }

    /// Waits for the lock, shared.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let held = Place::of(LOCK).take();
        Guard { guard: self.0.read(), held }
    }

    /// Takes the lock shared once more on a thread that holds it shared, also while another thread
    /// waits to hold it alone: this does not wait, so its rank does not matter.
    #[inline]
    pub fn read_again(&self) -> RwLockReadGuard<'_, T> {
        Guard { guard: self.0.read_recursive(), held: Place::of(LOCK).taken() }
    }

    /// Waits for the lock, alone.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let held = Place::of(LOCK).take();
        Guard { guard: self.0.write(), held }
    }

    /// As [`read_again`](Self::read_again), also on a thread that does not hold the lock; does not
    /// wait.
    #[inline]
    pub fn try_read_again(&self) -> Option<RwLockReadGuard<'_, T>> {
        let guard = self.0.try_read_recursive()?;
        Some(Guard { guard, held: Place::of(LOCK).taken() })
    }

    /// Takes the lock alone if it is free.
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write().map(|guard| Guard { guard, held: Place::of(LOCK).taken() })
    }

    /// Returns what the lock guards, which no other thread can reach.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T: fmt::Debug, const LOCK: usize> fmt::Debug for Mutex<T, LOCK> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: fmt::Debug, const LOCK: usize> fmt::Debug for RwLock<T, LOCK> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Condvar {
    /// Makes a condition for which nothing waits.
    #[must_use]
    pub const fn new() -> Self {
        Self(parking_lot::Condvar::new())
    }

    /// Gives the mutex up, sleeps until woken, and takes it again. The thread holds what it held,
    /// so its rank counts on.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.0.wait(&mut guard.guard);
    }

    /// Wakes one thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// Returns what the thread says when it panics; `None` where it does not, as in a build without
    /// the check.
    fn panic_of(work: impl FnOnce()) -> Option<String> {
        catch_unwind(AssertUnwindSafe(work))
            .err()
            .map(|said| *said.downcast::<String>().expect("a formatted message"))
    }

    #[cfg(debug_assertions)]
    #[test]
    fn the_order_is_that_of_the_ranks_as_they_are_written() {
        for row in rank::TABLE {
            let (base, rest) =
                row.rank.strip_prefix('G').map_or((0, row.rank), |rest| (1000, rest));
            let (number, part) = rest.strip_suffix('a').map_or((rest, 0), |number| (number, 10));
            let (number, part) =
                number.strip_suffix('b').map_or((number, part), |number| (number, 20));
            let order = number
                .parse::<f64>()
                .map_or(u32::MAX, |number| base + (number * 100.0).round() as u32 + part);
            assert_eq!((row.order, row.rank == "leaf"), (order, order == u32::MAX), "{row:?}");
        }
    }

    #[test]
    fn i_rank_1_taking_a_lower_rank_panics_with_both_names() {
        let (map, names) = (
            RwLock::<(), { rank::EXTENT_MAP }>::default(),
            Mutex::<(), { rank::NAMES }>::default(),
        );
        drop((names.lock(), map.read()));
        let said = panic_of(|| drop((map.write(), names.lock())));
        assert_eq!(said.is_some(), cfg!(debug_assertions));
        assert!(said.is_none_or(|said| said.contains("'names lock' (rank 1, ")
            && said.contains("'extent map' (rank 3, ")));
        // Nothing is left of it.
        drop((names.lock(), map.write()));
    }

    #[test]
    fn i_rank_1_locks_of_one_kind_are_taken_by_rising_numbers() {
        let inode = |number| Place::numbered(rank::INODE, number);
        drop((inode(7).take(), inode(8).take()));
        assert_eq!(
            panic_of(|| drop((inode(8).take(), inode(7).take()))).is_some(),
            cfg!(debug_assertions)
        );
        assert_eq!(
            panic_of(|| drop((inode(8).take(), inode(8).take()))).is_some(),
            cfg!(debug_assertions)
        );
        let (room, tunables) =
            (Mutex::<(), { rank::ROOM }>::default(), Mutex::<(), { rank::TUNABLES }>::default());
        assert_eq!(
            panic_of(|| drop((room.lock(), tunables.lock()))).is_some(),
            cfg!(debug_assertions),
            "two locks of one rank"
        );
    }

    #[test]
    fn i_rank_1_attributes_of_several_inodes_are_locked_under_the_names_alone() {
        let (names, attributes) = (
            Mutex::<(), { rank::NAMES }>::default(),
            [(); 2].map(|()| Mutex::<(), { rank::ATTRIBUTES }>::default()),
        );
        let both = || drop((attributes[0].lock(), attributes[1].lock()));
        assert_eq!(panic_of(both).is_some(), cfg!(debug_assertions));
        let held = names.lock();
        both();
        drop(held);
    }

    #[test]
    fn i_rank_1_nothing_is_taken_under_a_leaf() {
        let (allocator, views) =
            (Mutex::<(), { rank::ALLOCATOR }>::default(), RwLock::<(), { rank::VIEWS }>::default());
        assert_eq!(
            panic_of(|| drop((allocator.lock(), views.read()))).is_some(),
            cfg!(debug_assertions)
        );
    }

    #[test]
    fn a_lock_that_is_tried_is_not_waited_for() {
        let (map, names) = (
            RwLock::<(), { rank::EXTENT_MAP }>::default(),
            Mutex::<(), { rank::NAMES }>::default(),
        );
        let held = map.read();
        assert!(map.try_write().is_none() && map.try_read_again().is_some());
        drop(held);
        let tried = map.try_write();
        assert!(tried.is_some() && map.try_read_again().is_none());
        // What was tried is noted as held.
        assert_eq!(panic_of(|| drop(names.lock())).is_some(), cfg!(debug_assertions));
        drop(tried);
        drop(names.lock());
    }

    #[test]
    fn guards_are_dropped_in_any_order() {
        let (names, map) = (
            Mutex::<u8, { rank::NAMES }>::new(1),
            RwLock::<Option<u8>, { rank::EXTENT_MAP }>::new(Some(2)),
        );
        let (first, second) = (names.lock(), map.write());
        drop(first);
        assert_eq!(
            panic_of(|| drop(names.lock())).is_some(),
            cfg!(debug_assertions),
            "the map is still held"
        );
        let second = Guard::map(second, |map| {
            parking_lot::RwLockWriteGuard::map(map, |map| map.as_mut().unwrap())
        });
        assert_eq!(*second, 2);
        assert_eq!(
            panic_of(|| drop(names.lock())).is_some(),
            cfg!(debug_assertions),
            "a part of the map is still held"
        );
        drop(second);
        drop(names.lock());
    }

    #[test]
    fn what_is_tried_needs_no_rank_and_counts_for_what_follows() {
        let (names, room) =
            (Mutex::<(), { rank::NAMES }>::default(), Mutex::<(), { rank::ROOM }>::default());
        let held = names.lock();
        let tried = room.try_lock().unwrap();
        drop(held);
        drop(names.lock());
        let tunables = Mutex::<(), { rank::TUNABLES }>::default();
        assert_eq!(panic_of(|| drop(tunables.lock())).is_some(), cfg!(debug_assertions));
        drop(tried);
    }

    #[test]
    fn a_shared_hold_is_taken_again_under_higher_locks() {
        let (change, names) =
            (RwLock::<(), { rank::CHANGE }>::default(), Mutex::<(), { rank::NAMES }>::default());
        let outer = change.read();
        let held = names.lock();
        let inner = change.read_again();
        drop(outer);
        drop((held, inner));
        drop(change.write());
    }
}
