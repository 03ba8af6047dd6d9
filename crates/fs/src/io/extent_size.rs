//! Extent sizes: how many bytes of a file are wanted in one run of the volume (XFS calls that hint `extsize`).
//!
//! ```text
//!   the file's own ─► else the volume's tunable ─► blocks behind what is allocated are kept for the file, also while nobody has it open
//! ```
//!
//! What is kept is in memory only and taken back when space runs out (I-SPC-4), so a hint costs no space and fails no write. It is kept in the extended
//! attribute [`ATTRIBUTE`], which files get from the directory they are made in.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Io;
use crate::row::Table;
use crate::state::Fs;
use crate::{Error, ErrorKind, InodeNo, Result};

/// The extended attribute that holds the size in bytes, u64.
pub(crate) const ATTRIBUTE: &[u8] = b"user.bedplate.extsize";

/// The largest size in bytes; also of the volume's.
pub(crate) const BYTES_MAX: u64 = 1 << 30;

/// What a file wants, in bytes; 0: nothing.
#[derive(Debug, Default)]
pub(crate) struct ExtentSize(AtomicU64);

impl ExtentSize {
    pub(super) fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    /// Returns whether something was wanted when blocks were allocated last.
    pub(super) fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// Says whether extents can have such a size; 0: none is wanted.
pub(crate) fn is_possible(bytes: u64, block_size: u64) -> bool {
    bytes.is_multiple_of(block_size) && bytes <= BYTES_MAX
}

/// Returns why they cannot.
pub(crate) fn refusal(bytes: u64, block_size: u64) -> String {
    format!("{bytes} bytes cannot be the size of extents: choose a multiple of the block size {block_size}, at most 1 GiB")
}

impl Fs {
    /// Returns the size that is set on a file or directory; 0: none.
    pub(crate) fn extent_size(&self, ino: InodeNo) -> Result<u64> {
        let stored = self.row_of(Table::Xattr, ino, ATTRIBUTE)?;
        Ok(stored.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes).min(BYTES_MAX))
    }

    /// Sets it, or takes it away; what is allocated from then on goes by it.
    pub(crate) fn set_extent_size(&self, ino: InodeNo, bytes: Option<u64>) -> Result<()> {
        self.begin_change()?;
        let changing = self.change();
        let inode = self.file_or_directory(&changing, ino, "it has no extents")?;
        let block = u64::from(self.block_size);
        if let Some(bytes) = bytes.filter(|bytes| *bytes == 0 || !is_possible(*bytes, block)) {
            return Err(Error::new(ErrorKind::Invalid, refusal(bytes, block)));
        }
        let lsn = self.set_own_xattr(&inode, ATTRIBUTE, bytes.map(|bytes| bytes.to_le_bytes().to_vec()));
        drop((inode, changing));
        self.meta.sync(lsn)
    }
}

impl Io<'_> {
    /// Looks up what the file wants; part of finding its floor.
    pub(super) fn find_extent_size(self) {
        // It is a hint: what cannot be read is none.
        let own = self.fs.extent_size(self.inode.ino).unwrap_or(0);
        self.state().extent_size.set(if own > 0 { own } else { self.fs.tuning.extent_size() });
    }

    /// Returns how many blocks the file wants in one run; 0: whatever comes.
    pub(super) fn extent_blocks(self) -> u64 {
        self.floor();
        self.fs.grid.block_after(self.state().extent_size.0.load(Ordering::Relaxed))
    }
}
