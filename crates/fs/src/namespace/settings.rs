//! Settings of single files and directories that are kept in extended attributes: how writes are
//! kept from tearing, checksums, the size of extents, which pages leave the caches, and on which
//! members files lie.

use std::sync::Arc;

use crate::data::{
    EXTENT_SIZE, INTEGRITY, PLACEMENT, RELEASE_BEHIND, UNTORN, encode_placement, release_changed,
};
use crate::engine::Engine;
use crate::inode::Inode;
use crate::options::{extent_size_refusal, is_extent_size};
use crate::{Error, ErrorKind, InodeNo, ReleaseBehind, Result, Untorn};

/// The units that can be asked for, in bytes.
const UNTORN_BYTES_MIN: u32 = 4 << 10;
const UNTORN_BYTES_MAX: u32 = 64 << 10;
const _: () = assert!(
    UNTORN_BYTES_MIN.is_power_of_two()
        && UNTORN_BYTES_MAX.is_power_of_two()
        && UNTORN_BYTES_MIN < UNTORN_BYTES_MAX,
    "the sizes of untorn writes are powers of two"
);

impl Engine {
    /// Sets or takes away the unit; what is written from then on is served so.
    pub(crate) fn set_untorn(&self, ino: InodeNo, bytes: Option<u32>) -> Result<()> {
        self.begin_change()?;
        let changing = self.change();
        let inode = self.file_or_directory(&changing, ino, "nothing of it is written untorn")?;
        if let Some(bytes) = bytes {
            self.check_untorn(bytes)?;
        }
        let lsn =
            self.set_own_xattr(&inode, UNTORN, bytes.map(|bytes| bytes.to_le_bytes().to_vec()));
        // Writes in place by the old rule are done when this returns.
        crate::data::end_tail_of(self, &inode)?;
        drop((inode, changing));
        self.sync_to(lsn)
    }

    fn check_untorn(&self, bytes: u32) -> Result<()> {
        if !bytes.is_power_of_two() || !(UNTORN_BYTES_MIN..=UNTORN_BYTES_MAX).contains(&bytes) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "{bytes} bytes cannot be written untorn: choose a power of two from 4 KiB to \
                     64 KiB"
                ),
            ));
        }
        if bytes < self.block_size() && bytes > self.geometry().untorn_unit {
            let message = format!(
                "{bytes} bytes are less than a block of {} bytes, and more than the device writes \
                 untorn by itself",
                self.block_size()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(())
    }

    /// Returns how a file's writes are kept from tearing.
    pub(crate) fn untorn(&self, inode: &Arc<Inode>) -> Result<Option<Untorn>> {
        let bytes = self.untorn_bytes(inode.ino)?;
        Ok((bytes > 0).then_some(Untorn { bytes, by_device: bytes <= self.geometry().untorn_unit }))
    }

    /// Has what is written from then on get checksums, or not.
    pub(crate) fn set_integrity(&self, ino: InodeNo, on: bool) -> Result<()> {
        self.begin_change()?;
        let changing = self.change();
        let inode = self.file_or_directory(&changing, ino, "nothing of it has checksums")?;
        if on && !self.may_have_sums() {
            let message = format!(
                "the volume has format version {}, which has no checksums of file data: unmount \
                 it and run 'bedplate upgrade'",
                self.superblock().version()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let lsn = self.set_own_xattr(&inode, INTEGRITY, on.then(|| vec![1]));
        // Writes by the old rule are done when this returns.
        crate::data::end_tail_of(self, &inode)?;
        drop((inode, changing));
        self.sync_to(lsn)
    }

    /// Sets it, or takes it away; what is allocated from then on goes by it.
    pub(crate) fn set_extent_size(&self, ino: InodeNo, bytes: Option<u64>) -> Result<()> {
        self.begin_change()?;
        let changing = self.change();
        let inode = self.file_or_directory(&changing, ino, "it has no extents")?;
        let block = u64::from(self.block_size());
        if let Some(bytes) = bytes.filter(|bytes| *bytes == 0 || !is_extent_size(*bytes, block)) {
            return Err(Error::new(ErrorKind::Invalid, extent_size_refusal(bytes, block)));
        }
        let lsn = self.set_own_xattr(
            &inode,
            EXTENT_SIZE,
            bytes.map(|bytes| bytes.to_le_bytes().to_vec()),
        );
        drop((inode, changing));
        self.sync_to(lsn)
    }

    /// Sets which pages leave the caches, or takes it away; of open files at once.
    pub(crate) fn set_release_behind(
        &self,
        ino: InodeNo,
        release: Option<ReleaseBehind>,
    ) -> Result<()> {
        self.begin_change()?;
        let changing = self.change();
        let inode = self.file_or_directory(&changing, ino, "it has no pages")?;
        let lsn =
            self.set_own_xattr(&inode, RELEASE_BEHIND, release.map(|release| vec![release as u8]));
        release_changed(self, &inode);
        drop((inode, changing));
        self.sync_to(lsn)
    }

    /// Sets on which members a file is to lie, by their names, or takes it away; what is allocated
    /// from then on goes by it.
    pub(crate) fn set_placement(&self, ino: InodeNo, members: Option<&[String]>) -> Result<()> {
        self.begin_change()?;
        let changing = self.change();
        let inode = self.file_or_directory(&changing, ino, "it has no blocks to place")?;
        let wanted = members.map(|names| self.members_named(names)).transpose()?;
        let lsn = self.set_own_xattr(&inode, PLACEMENT, wanted.as_deref().map(encode_placement));
        // What is kept for its next append lies where it was to lie.
        self.drop_ahead(ino);
        drop((inode, changing));
        self.sync_to(lsn)
    }
}
