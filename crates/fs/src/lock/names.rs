//! Changes of names: side by side where their directories differ.
//!
//! ```text
//!   create, remove, link, rename a file ─► names lock, shared ─► the directories it changes, in order
//!   rename a directory, clone, freeze   ─► names lock, alone
//! ```
//!
//! The names in a directory, and the extended attributes of an inode, change under the *directory
//! lock* of its number. There are [`LOCKS`] of them, and several numbers share one. A directory is
//! removed under its own as well, so that nothing is made in it meanwhile (I-NAM-1). What walks
//! through parents, or changes more directories than it can name beforehand, holds the names lock
//! alone.

use bedplate_block::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, rank};

use super::change::{Counted, cover};
use super::sync::{Held, Mutex, MutexGuard, Place};
use crate::InodeNo;

/// Directory locks of a file system: far more than threads that change names at once.
const LOCKS: usize = 64;
/// Most directories that one change names beforehand.
const TOGETHER_MAX: usize = 2;

/// The names lock and the directory locks.
#[derive(Debug)]
pub(crate) struct NamesLock {
    /// Rank 1: alone for what changes more than its directories.
    all: RwLock<(), { rank::NAMES }>,
    /// Each for the inode numbers that [`slot`] maps to it.
    directories: [Mutex<()>; LOCKS],
}

/// The names of some directories, or all, held: no other thread changes them.
#[must_use]
#[derive(Debug)]
pub(crate) struct Names<'a> {
    _directories: [Option<Directory<'a>>; TOGETHER_MAX],
    _all: All<'a>,
    _cover: Counted,
}

#[derive(Debug)]
enum All<'a> {
    Shared(#[expect(dead_code, reason = "held")] RwLockReadGuard<'a, ()>),
    Alone(#[expect(dead_code, reason = "held")] RwLockWriteGuard<'a, ()>),
}

#[derive(Debug)]
struct Directory<'a> {
    _lock: MutexGuard<'a, ()>,
    _held: Held,
}

impl Default for NamesLock {
    fn default() -> Self {
        Self { all: RwLock::default(), directories: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl NamesLock {
    /// Waits for all changes of names; later ones wait.
    pub(crate) fn alone(&self) -> Names<'_> {
        let all = All::Alone(self.all.write());
        Names { _directories: [None, None], _all: all, _cover: cover() }
    }

    /// Waits for changes of names in the directory, or of the extended attributes of the inode.
    pub(crate) fn of(&self, ino: InodeNo) -> Names<'_> {
        let all = All::Shared(self.all.read());
        Names { _directories: [Some(self.directory(slot(ino))), None], _all: all, _cover: cover() }
    }

    /// As [`of`](Self::of) for two directories, which may be one.
    pub(crate) fn of_both(&self, first: InodeNo, second: InodeNo) -> Names<'_> {
        let all = All::Shared(self.all.read());
        let (first, second) = (slot(first), slot(second));
        let lower = self.directory(first.min(second));
        let upper = (first != second).then(|| self.directory(first.max(second)));
        Names { _directories: [Some(lower), upper], _all: all, _cover: cover() }
    }

    fn directory(&self, slot: usize) -> Directory<'_> {
        let held = Place::numbered(rank::DIRECTORY, slot as u64).take();
        Directory { _lock: self.directories[slot].lock(), _held: held }
    }
}

/// Returns which directory lock is that of an inode. Neighbouring numbers have different ones.
fn slot(ino: InodeNo) -> usize {
    (ino.0 % LOCKS as u64) as usize
}
