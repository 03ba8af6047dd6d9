//! Release-behind: which pages of a file leave the caches behind a sequential read or write.
//!
//! ```text
//!   the file's own ─► else the volume's tunable ─► the library cache (`bedplate_cache::Release`), and a front end whose callers cache
//! ```
//!
//! It is kept in the extended attribute [`ATTRIBUTE`], which files get from the directory they are
//! made in.

use std::sync::Arc;

use super::DataPath;
use crate::engine::Engine;
use crate::inode::Inode;
use crate::statistics::Counters;
use crate::{InodeNo, ReleaseBehind, Result};
use bedplate_cache::Release;
use bedplate_store::Table;

/// The extended attribute that holds the code, one byte.
pub(crate) const ATTRIBUTE: &[u8] = b"user.bedplate.release_behind";

/// Lets the cache's part of a file follow a change of what is set on it, or of the tunable.
pub(crate) fn release_changed(fs: &Engine, inode: &Arc<Inode>) {
    let io = DataPath::new(fs, inode);
    if let Some(cached) = io.cached_if_any() {
        cached.set_release(io.release());
    }
}

impl Engine {
    /// Returns what is set on a file or directory.
    pub(crate) fn own_release_behind(&self, ino: InodeNo) -> Result<Option<ReleaseBehind>> {
        let stored = self.row_of(Table::Xattr, ino, ATTRIBUTE)?;
        Ok(stored.and_then(|bytes| match bytes[..] {
            [code] => ReleaseBehind::of_code(code.into()),
            _ => None,
        }))
    }
}

impl DataPath<'_> {
    /// Returns which pages of the file leave the caches.
    pub(crate) fn release_behind(self) -> ReleaseBehind {
        let generation = self.fs.epoch_generation();
        self.state().release_behind.get(generation).unwrap_or_else(|| {
            // It is a hint: what cannot be read is none.
            let own = self.fs.own_release_behind(self.inode.ino).unwrap_or_default();
            let found = own.unwrap_or_else(|| self.fs.tuning().release_behind());
            self.state().release_behind.set(generation, found);
            found
        })
    }

    /// As [`release_behind`](Self::release_behind), as the library cache takes it.
    pub(super) fn release(self) -> Release {
        let found = self.release_behind();
        Release { read: found.reads(), written: found.writes() }
    }

    /// Counts bytes that left a cache, the library's or that of its callers.
    pub(crate) fn count_released(self, bytes: u64) {
        Counters::add(&self.inode.counters.released_bytes, bytes);
    }
}
