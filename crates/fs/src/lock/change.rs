//! Changes: what a checkpoint, its deletion and a rollback wait for.
//!
//! ```text
//!   change by path or number ─► change lock, shared ─► pin the inode ─► names, order and inode locks ─► record ─► … ─► last record ─► all released
//!   freeze ─► change lock, alone ─► names lock ─► order locks of open files ─► nothing dirty ─► inode locks of open files ─► its own records
//! ```
//!
//! A change is *covered* from before it looks at the rows until its last record is committed. There
//! are four covers, and a freeze waits for each (`checkpoint/freeze.rs`): the change lock, shared,
//! as [`Changing`]; the names lock; the inode lock of a file that is open; and a dirty page of the
//! library cache, while it is written back. A change of several records needs no other protection:
//! no checkpoint shows its middle, and no rollback falls between two of its records. Which changes
//! these are and what holds between their records stands in `docs/locks.md`.
//!
//! - I-CHG-1: a row of a file is committed only under a cover.
//! - I-CHG-2: between two records of a truncation the file has its new size and an orphan row;
//!   between two of a reclaim the inode has no name.

use std::cell::Cell;
use std::marker::PhantomData;

use bedplate_block::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, rank};

thread_local! {
    /// Covers that this thread holds.
    static COVERS: Cell<usize> = const { Cell::new(0) };
    /// Shared holds of change locks among them.
    static CHANGES: Cell<usize> = const { Cell::new(0) };
}

/// Counts in a cell while it lives, on the thread that made it.
#[derive(Debug)]
pub(super) struct Counted {
    cell: &'static std::thread::LocalKey<Cell<usize>>,
    _of_this_thread: PhantomData<*const ()>,
}

impl Counted {
    fn new(cell: &'static std::thread::LocalKey<Cell<usize>>) -> Self {
        cell.set(cell.get() + 1);
        Self { cell, _of_this_thread: PhantomData }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.cell.set(self.cell.get() - 1);
    }
}

/// Notes a cover that a lock of names makes, until it is dropped.
pub(super) fn cover() -> Counted {
    Counted::new(&COVERS)
}

/// Returns whether this thread holds a cover that a lock makes: the change lock or the names lock.
pub(crate) fn is_covered() -> bool {
    COVERS.get() > 0
}

/// The change lock, rank 0.9.
#[derive(Debug, Default)]
pub(crate) struct ChangeLock(RwLock<(), { rank::CHANGE }>);

/// The change lock, held shared, or alone by the freeze on this thread. Functions that change files
/// which may be closed take it as an argument.
#[must_use]
#[derive(Debug)]
pub(crate) struct Changing<'a> {
    _lock: Option<RwLockReadGuard<'a, ()>>,
    _counted: [Counted; 2],
}

/// The change lock, held alone: no change is under way.
#[must_use]
#[derive(Debug)]
pub(crate) struct Unchanging<'a> {
    _lock: RwLockWriteGuard<'a, ()>,
    _cover: Counted,
}

impl ChangeLock {
    /// Waits for a freeze under way. A thread may hold the lock several times, also while a freeze
    /// waits for it.
    pub(crate) fn shared(&self) -> Changing<'_> {
        let lock = if CHANGES.get() > 0 { self.0.read_again() } else { self.0.read() };
        Changing { _lock: Some(lock), _counted: [Counted::new(&COVERS), Counted::new(&CHANGES)] }
    }

    /// As [`shared`](Self::shared), where no freeze is under way; does not wait.
    pub(crate) fn if_shared(&self) -> Option<Changing<'_>> {
        let lock = self.0.try_read_again()?;
        let counted = [Counted::new(&COVERS), Counted::new(&CHANGES)];
        Some(Changing { _lock: Some(lock), _counted: counted })
    }

    /// Waits for the changes under way; later ones wait.
    pub(crate) fn alone(&self) -> Unchanging<'_> {
        debug_assert!(
            CHANGES.get() == 0,
            "I-CHG-1: a thread that changes something does not wait for all changes to end"
        );
        Unchanging { _lock: self.0.write(), _cover: Counted::new(&COVERS) }
    }
}

impl Unchanging<'_> {
    /// Allows the freeze itself a change.
    pub(crate) fn changing(&self) -> Changing<'_> {
        Changing { _lock: None, _counted: [Counted::new(&COVERS), Counted::new(&CHANGES)] }
    }
}
