//! Extent sizes: how many bytes of a file are wanted in one run of the volume (XFS calls that hint
//! `extsize`).
//!
//! ```text
//!   the file's own ─► else the volume's tunable ─► blocks behind what is allocated are kept for the file, also while it is not open
//! ```
//!
//! What is kept is in memory only and taken back when space runs out (I-SPC-4), so a hint costs no
//! space and fails no write. It is kept in the extended attribute [`ATTRIBUTE`], which files get
//! from the directory they are made in.

use super::DataPath;
use crate::engine::Engine;
use crate::options::EXTENT_SIZE_MAX;
use crate::{InodeNo, Result};
use bedplate_store::Table;

/// The extended attribute that holds the size in bytes, u64.
pub(crate) const ATTRIBUTE: &[u8] = b"user.bedplate.extsize";

impl Engine {
    /// Returns the size that is set on a file or directory; 0: none.
    pub(crate) fn extent_size(&self, ino: InodeNo) -> Result<u64> {
        let stored = self.row_of(Table::Xattr, ino, ATTRIBUTE)?;
        Ok(stored
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, u64::from_le_bytes)
            .min(EXTENT_SIZE_MAX))
    }
}

impl DataPath<'_> {
    /// Looks up what the file wants; part of finding its copy-on-write epoch.
    pub(super) fn find_extent_size(self) {
        // It is a hint: what cannot be read is none.
        let own = self.fs.extent_size(self.inode.ino).unwrap_or(0);
        self.state().extent_size.set(if own > 0 { own } else { self.fs.tuning().extent_size() });
    }

    /// Returns how many blocks the file wants in one run; 0: whatever comes.
    pub(super) fn extent_blocks(self) -> u64 {
        self.cow_epoch();
        self.fs.grid().block_after(self.state().extent_size.bytes())
    }
}
