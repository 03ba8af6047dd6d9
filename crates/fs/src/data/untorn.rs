//! Untorn writes: on a file that asks for it, a page is after a power cut what it was before a
//! write or what the write made it, and never a part of each.
//!
//! ```text
//!   write, within one aligned unit ─► the device's own unit is as large, and the page lies in one of them? yes ─► in place
//!                                        │ no
//!                                        └► new blocks, and one record that remaps them: the record is the atom
//! ```
//!
//! The redirect is that of checkpoints: to a writer of such a file every written block is a hole.
//! The unit is kept in the extended attribute [`ATTRIBUTE`], which files get from the directory
//! they are made in.

use super::DataPath;
use crate::engine::Engine;
use crate::{InodeNo, Result};
use bedplate_store::{PlantedBug, Table, planted};

/// The extended attribute that holds the unit, u32.
pub(crate) const ATTRIBUTE: &[u8] = b"user.bedplate.untorn";

impl Engine {
    /// Returns the unit of a file, or of what is made in a directory; 0: none.
    pub(crate) fn untorn_bytes(&self, ino: InodeNo) -> Result<u32> {
        let stored = self.row_of(Table::Xattr, ino, ATTRIBUTE)?;
        Ok(stored.and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes))
    }
}

impl DataPath<'_> {
    /// Returns whether every written block of the file is to be written elsewhere.
    pub(super) fn redirects_all(self) -> bool {
        self.cow_epoch() == crate::Epoch(u32::MAX) && !planted(PlantedBug::UntornInPlace)
    }

    /// Returns the device offset of a range that the device itself writes untorn, in place.
    pub(super) fn find_untorn(self, offset: u64, len: u64) -> Result<Option<u64>> {
        if !self.redirects_all() || self.gives_sums() {
            return Ok(None);
        }
        let unit = u64::from(self.fs.geometry().untorn_unit);
        let asked = u64::from(self.state().untorn.bytes());
        if asked > unit || len > asked {
            return Ok(None);
        }
        let (held, cloned) = self.cow_epochs();
        let found = self.find_data(offset, len)?;
        let own = found.filter(|found| found.birth > held.max(cloned) && !found.summed);
        Ok(own.map(|found| found.at).filter(|at| at / unit == (at + len - 1) / unit))
    }
}
