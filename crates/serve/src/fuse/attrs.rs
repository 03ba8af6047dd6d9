//! Attributes: `getattr`, `setattr`, `statfs`.

use std::sync::Arc;
use std::time::Duration;

use bedplate_fs::{Attr, FileKind, InodeNo, SetAttr};

use super::errno::Answer;
use super::names::{Caller, KERNEL_TTL, WRITTEN_TTL};
use super::open_files::{KernelPages, OpenFile};
use super::privileges::{remove_capabilities, without_set_id};
use super::shared::Shared;

/// Totals in the units of `statvfs`.
pub(super) struct Totals {
    pub(super) blocks: u64,
    pub(super) free: u64,
    pub(super) available: u64,
    pub(super) files: u64,
    pub(super) files_free: u64,
    pub(super) block_size: u32,
}

impl Shared {
    /// Returns how long the kernel may keep attributes of an inode.
    pub(super) fn attr_ttl(&self, ino: InodeNo) -> Duration {
        match ino {
            _ if self.files.has_cached_writers(ino) => WRITTEN_TTL,
            _ if self.size_moves(ino) => Duration::ZERO,
            _ => KERNEL_TTL,
        }
    }

    /// Returns the I/O size that `stat` reports.
    pub(super) fn preferred_io(&self, attr: &Attr) -> u32 {
        match attr.kind {
            FileKind::File => self.fs.preferred_io(attr.io_mode),
            _ => self.block_size,
        }
    }

    /// Makes the kernel ask for the attributes of a file that is written through its page cache,
    /// after it was given blocks: what the kernel got with the name it would keep as long as the
    /// file is open. When it is closed the kernel asks by itself.
    pub(super) fn ask_for_attributes_again(self: &Arc<Self>, open: &OpenFile) {
        if open.inode.must_ask_again() {
            self.ask_in_a_moment(&open.inode);
        }
    }

    pub(super) fn getattr(&self, ino: InodeNo) -> Answer<Attr> {
        Ok(self.fs.attr(ino)?)
    }

    /// Returns whether the size of a file moves without a request: a program with a lease makes it
    /// grow.
    pub(super) fn size_moves(&self, ino: InodeNo) -> bool {
        let moves = || self.files.any_of(ino).is_some_and(|open| open.file.size_moves());
        self.desk.get().is_some() && moves()
    }

    /// Makes the kernel's size of a leased file at least what it is, and has the kernel ask for
    /// attributes again. Waits for the kernel.
    ///
    /// To say that an answer is old is not enough: the kernel drops an answer to a question about
    /// attributes when it learns anything else of the file while the question is under way, and
    /// `lseek(SEEK_END)` then goes by the size that it had (`fuse_change_attributes`, `attr_version`).
    pub(super) fn raise_size(&self, ino: InodeNo) {
        let told = self.files.any_of(ino).and_then(|open| {
            let last = open.file.size().checked_sub(1)?;
            let mut byte = [0];
            let is_read = matches!(open.file.read_at(&mut byte, last), Ok(1));
            // Where it has pages they are right, and programs make them grow.
            let has_none = matches!(open.inode.kernel_pages(), KernelPages::Nothing);
            (is_read && has_none).then(|| self.kernel.raise_size(ino, last, byte[0]))
        });
        if told.is_none() {
            self.kernel.drop_attributes(ino);
        }
    }

    pub(super) fn setattr(
        &self,
        caller: Caller,
        ino: InodeNo,
        mut change: SetAttr,
    ) -> Answer<Attr> {
        if self.visits.are_of(caller, ino) {
            // The kernel is to learn what there is.
            return self.getattr(ino);
        }
        if let Some(mode) = change.mode {
            if mode & (libc::S_ISUID | libc::S_ISGID) != 0 {
                self.privileges.granted();
            }
        } else {
            change.mode = self.mode_without_privileges(caller, ino, &change)?;
        }
        Ok(self.fs.set_attr(ino, &change)?)
    }

    /// Returns the permission bits that a change of owner or size leaves, when it takes any away.
    ///
    /// Not every request that takes privileges away carries the kernel's flag for it
    /// (`FATTR_KILL_SUIDGID`), so the change itself tells. They go with a change of owner always, with
    /// a change of size when the caller lacks `CAP_FSETID`, and alone, with no change at all, before a
    /// write.
    fn mode_without_privileges(
        &self,
        caller: Caller,
        ino: InodeNo,
        change: &SetAttr,
    ) -> Answer<Option<u32>> {
        let owner = change.uid.is_some() || change.gid.is_some();
        let alone = !owner
            && change.size.is_none()
            && change.atime.is_none()
            && change.mtime.is_none()
            && change.ctime.is_none();
        let set_id = owner || alone || (change.size.is_some() && !caller.keeps_set_id());
        if owner || alone || change.size.is_some() {
            let attr = self.fs.attr(ino)?;
            remove_capabilities(&self.fs, ino)?;
            if set_id {
                return Ok(without_set_id(&attr, caller));
            }
        }
        Ok(None)
    }

    pub(super) fn statfs(&self) -> Totals {
        let totals = self.fs.statfs();
        let unit = u64::from(totals.block_size);
        let free = totals.free_bytes / unit;
        Totals {
            blocks: totals.total_bytes / unit,
            free,
            available: totals.available_bytes / unit,
            // Inodes take their space from the same blocks as everything else: there is no other
            // limit.
            files: totals.inodes + free,
            files_free: free,
            block_size: totals.block_size,
        }
    }
}
