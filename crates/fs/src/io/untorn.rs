//! Untorn writes: on a file that asks for it, a page is after a power cut what it was before a write or what the write made it, and never a part of each.
//!
//! ```text
//!   write, within one aligned unit ─► the device's own unit is as large, and the page lies in one of them? yes ─► in place
//!                                        │ no
//!                                        └► new blocks, and one record that remaps them: the record is the atom
//! ```
//!
//! The redirect is that of checkpoints: to a writer of such a file every written block is a hole. The unit is kept in the extended attribute
//! [`ATTRIBUTE`], which files get from the directory they are made in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Io;
use crate::inode::Inode;
use crate::planted::{PlantedBug, planted};
use crate::row::Table;
use crate::state::Fs;
use crate::{Error, ErrorKind, InodeNo, Result, Untorn};

/// The extended attribute that holds the unit, u32.
pub(crate) const ATTRIBUTE: &[u8] = b"user.bedplate.untorn";

/// The units that can be asked for, in bytes.
const BYTES_MIN: u32 = 4 << 10;
const BYTES_MAX: u32 = 64 << 10;

/// A file's unit in bytes; 0: none.
#[derive(Debug, Default)]
pub(crate) struct Unit(AtomicU32);

impl Unit {
    pub(super) fn bytes(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, bytes: u32) {
        self.0.store(bytes, Ordering::Relaxed);
    }
}

impl Fs {
    /// Returns the unit of a file, or of what is made in a directory; 0: none.
    pub(crate) fn untorn_bytes(&self, ino: InodeNo) -> Result<u32> {
        let stored = self.row_of(Table::Xattr, ino, ATTRIBUTE)?;
        Ok(stored.and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes))
    }

    /// Sets or takes away the unit; what is written from then on is served so.
    pub(crate) fn set_untorn(&self, ino: InodeNo, bytes: Option<u32>) -> Result<()> {
        self.begin_change()?;
        let changing = self.change();
        let inode = self.file_or_directory(&changing, ino, "nothing of it is written untorn")?;
        if let Some(bytes) = bytes {
            self.check_untorn(bytes)?;
        }
        let lsn = self.set_own_xattr(&inode, ATTRIBUTE, bytes.map(|bytes| bytes.to_le_bytes().to_vec()));
        // Who writes in place by the old rule is done when this returns.
        drop(inode.data.lock.exclusive(self));
        drop((inode, changing));
        self.meta.sync(lsn)
    }

    fn check_untorn(&self, bytes: u32) -> Result<()> {
        if !bytes.is_power_of_two() || !(BYTES_MIN..=BYTES_MAX).contains(&bytes) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("{bytes} bytes cannot be written untorn: choose a power of two from 4 KiB to 64 KiB"),
            ));
        }
        if bytes < self.block_size && bytes > self.geometry.untorn_unit {
            let message =
                format!("{bytes} bytes are less than a block of {} bytes, and more than the device writes untorn by itself", self.block_size);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(())
    }

    /// Returns how a file's writes are kept from tearing.
    pub(crate) fn untorn(&self, inode: &Arc<Inode>) -> Result<Option<Untorn>> {
        let bytes = self.untorn_bytes(inode.ino)?;
        Ok((bytes > 0).then_some(Untorn { bytes, by_device: bytes <= self.geometry.untorn_unit }))
    }
}

impl Io<'_> {
    /// Returns whether every written block of the file is to be written elsewhere.
    pub(super) fn redirects_all(self) -> bool {
        self.floor() == crate::Epoch(u32::MAX) && !planted(PlantedBug::UntornInPlace)
    }

    /// Returns the device offset of a range that the device itself writes untorn, in place.
    pub(super) fn find_untorn(self, offset: u64, len: u64) -> Result<Option<u64>> {
        if !self.redirects_all() {
            return Ok(None);
        }
        let unit = u64::from(self.fs.geometry.untorn_unit);
        let asked = u64::from(self.state().untorn.bytes());
        if asked > unit || len > asked {
            return Ok(None);
        }
        let (held, cloned) = self.floors();
        let found = self.find_born(offset, len)?.filter(|(_, birth)| *birth > held.max(cloned));
        Ok(found.map(|(at, _)| at).filter(|at| at / unit == (at + len - 1) / unit))
    }
}
