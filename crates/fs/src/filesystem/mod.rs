//! The mounted file system: the interface of names and inodes.

mod checkpoints;
mod info;
mod lease;
mod path;
mod place;
mod room;
mod scrub;
mod size;
mod trial;

use std::collections::HashMap;
use std::sync::Arc;

use bedplate_block::BlockDevice;
use bedplate_store::Superblock;
use parking_lot::Mutex;

use crate::background::{Daemon, checkpoint_scheduler, defragmenter, sync_daemon};
use crate::data::DataPath;
use crate::engine::Engine;
use crate::namespace::NewAcl;
use crate::namespace::make::{Making, check_target};
use crate::{
    AclKind, Attr, CheckReport, DefragStep, DirEntry, Error, ErrorKind, File, FileActivity,
    FileKind, FilePath, FormatOptions, FormatReport, Fragmentation, InodeNo, IoMode, MountOptions,
    NewFile, OpenOptions, ReleaseBehind, RenameMode, Result, SetAttr, SetGroupId, Statfs, Tunable,
    TunableState, TuneOptions, Untorn, UpgradeReport, check, format, mount, upgrade,
};
pub use info::{FsInfo, IoThreads};

/// A mounted file system. Cheap to clone; every method may be called from any number of threads.
///
/// The last clone dropped without [`unmount`](Self::unmount) leaves the volume as a crash would:
/// sound, to be recovered at the next mount.
#[derive(Clone)]
pub struct FileSystem {
    inner: Arc<Inner>,
}

/// Dropped with the last clone: the daemons first, the checkpoint scheduler and the defragmenter
/// before the sync daemon.
struct Inner {
    daemons: Mutex<Vec<Daemon>>,
    fs: Arc<Engine>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.fs.stop_helpers();
    }
}

impl FileSystem {
    pub(crate) fn state(&self) -> &Arc<Engine> {
        &self.inner.fs
    }

    /// Writes an empty file system onto `device`, with the intent log on `log` when one is given.
    ///
    /// # Errors
    /// `Exists` when either device holds a volume and `force` is off; `Invalid` for options out of
    /// range or a device too small; device errors.
    pub fn format(
        device: &Arc<dyn BlockDevice>,
        log: Option<&Arc<dyn BlockDevice>>,
        options: &FormatOptions,
    ) -> Result<FormatReport> {
        format::format(device, log, options)
    }
    /// Mounts: reads the superblock, recovers, rebuilds the free space, removes orphans.
    ///
    /// # Errors
    /// `NotAVolume`, `NewerFormat`, `Corrupt` with offset and field, `NotFound` when the log device
    /// is missing or another volume's, device errors.
    pub fn mount(
        device: Arc<dyn BlockDevice>,
        log: Option<Arc<dyn BlockDevice>>,
        options: MountOptions,
    ) -> Result<Self> {
        let fs = mount::mount(device, log, options)?;
        let mut daemons = Vec::new();
        if !fs.is_read_only() {
            fs.set_discarding(fs.options().discard);
            if fs.options().schedules {
                daemons.push(checkpoint_scheduler::start(&fs).map_err(no_thread)?);
            }
            daemons.push(defragmenter::start(&fs).map_err(no_thread)?);
            daemons.push(sync_daemon::start(&fs).map_err(no_thread)?);
        }
        Ok(Self { inner: Arc::new(Inner { daemons: Mutex::new(daemons), fs }) })
    }
    /// Reads the superblock only and says whether a separate log device is needed and which volume
    /// this is.
    ///
    /// # Errors
    /// As [`mount`](Self::mount).
    pub fn probe(device: &Arc<dyn BlockDevice>) -> Result<FormatReport> {
        let superblock = Superblock::read(device)?.superblock;
        Ok(FormatReport {
            uuid: superblock.uuid_text(),
            block_size: superblock.block_size,
            size_bytes: superblock.size_bytes,
            log_bytes: superblock.log.len,
            log_separate: superblock.log_separate,
            clean: superblock.clean,
        })
    }
    /// Makes everything durable and marks the volume clean. Files still open keep failing with
    /// `Busy` afterwards.
    ///
    /// # Errors
    /// `Io` when the last writes fail.
    pub fn unmount(self) -> Result<()> {
        drop(std::mem::take(&mut *self.inner.daemons.lock()));
        self.inner.fs.stop_helpers();
        self.inner.fs.end_leases();
        mount::unmount(&self.inner.fs)
    }
    /// Checks an unmounted volume; with `repair` mends what can be mended without guessing.
    ///
    /// # Errors
    /// Only what keeps the check from running at all; inconsistencies are findings.
    pub fn check(
        device: &Arc<dyn BlockDevice>,
        log: Option<&Arc<dyn BlockDevice>>,
        repair: bool,
    ) -> Result<CheckReport> {
        check::check(device, log, repair)
    }
    /// Checks an unmounted volume, and reads every block that has a checksum, those of checkpoints
    /// included.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn check_data(
        device: &Arc<dyn BlockDevice>,
        log: Option<&Arc<dyn BlockDevice>>,
    ) -> Result<CheckReport> {
        check::check_data(device, log)
    }
    /// Makes an unmounted volume of an older format one of the present format, in place. A power
    /// cut leaves it whole, in one of the two; then it is begun again.
    ///
    /// # Errors
    /// As a mount; `NoSpace` when there is no room for the new metadata, and the volume is as it
    /// was.
    pub fn upgrade(
        device: &Arc<dyn BlockDevice>,
        log: Option<&Arc<dyn BlockDevice>>,
    ) -> Result<UpgradeReport> {
        upgrade::upgrade(device, log)
    }
    /// Makes everything that was acknowledged durable.
    ///
    /// # Errors
    /// The latched error after a failed write or flush.
    pub fn sync(&self) -> Result<()> {
        self.inner.fs.sync_everything()
    }
    /// Returns totals.
    #[must_use]
    pub fn statfs(&self) -> Statfs {
        self.inner.fs.statfs()
    }
    /// Returns everything worth knowing.
    #[must_use]
    pub fn info(&self) -> FsInfo {
        info::info(&self.inner.fs)
    }

    /// Returns what a file did in this mount.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn activity(&self, ino: InodeNo) -> Result<FileActivity> {
        self.inner.fs.activity(ino)
    }
    /// Returns what those files did that did anything, by rising inode number, from the first after
    /// `after` (0: from the first); at most `limit`.
    #[must_use]
    pub fn activities(&self, after: InodeNo, limit: usize) -> Vec<FileActivity> {
        self.inner.fs.activities(after, limit)
    }
    /// Lets counters and histograms begin anew: of one file, or of all and of the file system.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn reset_statistics(&self, ino: Option<InodeNo>) -> Result<()> {
        self.inner.fs.reset_statistics(ino)
    }
    /// Returns how all tunables stand, in the order of [`TUNABLES`](crate::TUNABLES).
    #[must_use]
    pub fn tunables(&self) -> Vec<TunableState> {
        self.inner.fs.tunables()
    }
    /// Returns the value of a tunable that is in effect; 0 of what is set by `format`.
    #[must_use]
    pub fn tunable(&self, tunable: Tunable) -> u64 {
        self.inner.fs.tuning().value(tunable)
    }
    /// Changes tunables, all or none: in effect when it returns and, unless `live_only`, durable in
    /// the volume. How many threads serve a mount is for the front end to follow
    /// ([`Tunable::Threads`]). Returns how they stand then.
    ///
    /// # Errors
    /// `Invalid` for a value out of its range or a tunable that cannot be changed so; `ReadOnly`
    /// where it would be stored; `Io` when dirty pages must be written first and cannot be: then
    /// nothing has changed.
    pub fn tune(&self, change: &TuneOptions) -> Result<Vec<TunableState>> {
        self.inner.fs.tune(change)
    }
    /// Returns one path of each inode that has a name. Reads every name of the file system once:
    /// ask for many at once, and remember them.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn paths_of(&self, inodes: &[InodeNo]) -> Result<HashMap<InodeNo, FilePath>> {
        self.inner.fs.paths_of(inodes)
    }

    // ---- inode interface, for translators ----

    /// Finds a name in a directory (`.` and `..` too).
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NameTooLong`.
    pub fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        self.inner.fs.lookup(dir, name)
    }
    /// Returns an inode's attributes.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn attr(&self, ino: InodeNo) -> Result<Attr> {
        self.inner.fs.attr(ino)
    }
    /// Changes attributes; permission checks are the front end's.
    ///
    /// # Errors
    /// `NotFound`, `ReadOnly`, `TooLarge`, `IsDirectory` for a size.
    pub fn set_attr(&self, ino: InodeNo, change: &SetAttr) -> Result<Attr> {
        self.set_attr_with_room(ino, change)
    }
    /// Keeps an inode alive (also without a name) until the matching [`forget`](Self::forget)s;
    /// returns whether another retention or an open did before.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn retain(&self, ino: InodeNo) -> Result<bool> {
        self.inner.fs.inode(ino)?.pin()
    }
    /// Returns whether an inode is kept alive, by [`retain`](Self::retain) or an open.
    #[must_use]
    pub fn is_retained(&self, ino: InodeNo) -> bool {
        self.inner.fs.is_pinned(ino)
    }
    /// Gives back `count` retentions.
    pub fn forget(&self, ino: InodeNo, count: u64) {
        if let Some(inode) = self.inner.fs.unpin_number(ino, count) {
            self.inner.fs.reclaim_if_dead(&inode);
        }
    }
    /// Makes a file, directory, device node, pipe or socket (not a symbolic link). The new object
    /// inherits the directory's I/O mode.
    ///
    /// # Errors
    /// `Exists`, `NotFound`, `NotDirectory`, `NameTooLong`, `Invalid` name, `NoSpace`, `ReadOnly`.
    pub fn make(
        &self,
        dir: InodeNo,
        name: &[u8],
        kind: FileKind,
        new: NewFile,
        rdev: u32,
    ) -> Result<Attr> {
        if kind == FileKind::Symlink {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a symbolic link needs a target: use symlink",
            ));
        }
        self.make_with_room(dir, name, &Making { kind, new, rdev, target: &[] })
    }
    /// Makes an unnamed file that lives until it is closed, or gets a name by [`link`](Self::link)
    /// (`O_TMPFILE`). It is retained once.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub fn make_unnamed(&self, dir: InodeNo, new: NewFile) -> Result<Attr> {
        self.inner.fs.begin_make_unnamed(dir)?;
        self.inner.fs.with_room(|| self.inner.fs.make_unnamed(dir, new))
    }
    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As [`make`](Self::make); `Invalid` for a target that is empty or longer than 4,095 bytes.
    pub fn symlink(&self, dir: InodeNo, name: &[u8], target: &[u8], new: NewFile) -> Result<Attr> {
        check_target(target)?;
        self.make_with_room(
            dir,
            name,
            &Making {
                kind: FileKind::Symlink,
                new: NewFile { mode: 0o777, ..new },
                rdev: 0,
                target,
            },
        )
    }
    /// Reads a symbolic link.
    ///
    /// # Errors
    /// `Invalid` when it is none.
    pub fn read_link(&self, ino: InodeNo) -> Result<Vec<u8>> {
        self.inner.fs.read_link(ino)
    }
    /// Gives an inode another name.
    ///
    /// # Errors
    /// `Exists`, `NotPermitted` for a directory, `TooManyLinks`.
    pub fn link(&self, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        self.inner.fs.link(ino, dir, name)
    }
    /// Removes a name of something that is not a directory; an open file lives on until closed.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`.
    pub fn unlink(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        self.inner.fs.unlink(dir, name)
    }
    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NotEmpty`.
    pub fn rmdir(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        self.inner.fs.rmdir(dir, name)
    }
    /// Renames, atomically also across a crash.
    ///
    /// # Errors
    /// As `rename(2)`; `Invalid` when a directory would move below itself.
    pub fn rename(
        &self,
        from_dir: InodeNo,
        from: &[u8],
        to_dir: InodeNo,
        to: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.inner.fs.rename(from_dir, from, to_dir, to, mode)
    }
    /// Returns up to `limit` entries (without `.` and `..`) whose names come after `after` in byte
    /// order.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`.
    pub fn read_dir(
        &self,
        dir: InodeNo,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<DirEntry>> {
        self.inner.fs.read_dir(dir, after, limit)
    }
    /// Returns the directory that holds `dir`; the root is its own parent.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`.
    pub fn parent(&self, dir: InodeNo) -> Result<InodeNo> {
        self.inner.fs.parent(dir)
    }
    /// Returns an extended attribute's value.
    ///
    /// # Errors
    /// `NoAttribute`, `NotFound`.
    pub fn get_xattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        self.inner.fs.get_xattr(ino, name)
    }
    /// Sets an extended attribute: up to 255 bytes of name, 65,536 of value. `create`: refuse an
    /// existing one; `replace`: refuse a missing one. Those of access control lists are set as by
    /// [`set_acl`](Self::set_acl).
    ///
    /// # Errors
    /// `Exists`, `NoAttribute`, `Range`, `NoSpace`; those of [`set_acl`](Self::set_acl).
    pub fn set_xattr(
        &self,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        create: bool,
        replace: bool,
    ) -> Result<()> {
        if let Some(kind) = AclKind::of_name(name) {
            let set_gid = SetGroupId::Keep;
            return self.set_new_acl(ino, &NewAcl { kind, value, set_gid, create, replace });
        }
        self.inner.fs.begin_set_xattr(ino, name, value)?;
        self.inner.fs.with_room(|| self.inner.fs.set_xattr(ino, name, value, create, replace))
    }
    /// Sets an access control list, in the bytes of its extended attribute
    /// ([`AclKind::name`]). An access list sets the permission bits too, and is not kept where they
    /// say all that it says. What is made in a directory with a default list gets it. The list is
    /// stored and kept true to the mode; permissions are checked by the kernel of a mount.
    ///
    /// # Errors
    /// `Invalid` for bytes that are no list, and for a default list of what is no directory;
    /// `Unsupported` for symbolic links; `NotFound`, `NoSpace`, `ReadOnly`.
    pub fn set_acl(
        &self,
        ino: InodeNo,
        kind: AclKind,
        value: &[u8],
        set_gid: SetGroupId,
    ) -> Result<()> {
        let new = NewAcl { kind, value, set_gid, create: false, replace: false };
        self.set_new_acl(ino, &new)
    }
    fn set_new_acl(&self, ino: InodeNo, new: &NewAcl<'_>) -> Result<()> {
        let acl = self.inner.fs.begin_set_acl(ino, new)?;
        self.inner.fs.with_room(|| self.inner.fs.set_acl(ino, &acl, new))
    }
    /// Returns whether anything of the volume has, or had, an access control list.
    #[must_use]
    pub fn has_acls(&self) -> bool {
        self.inner.fs.acl_note().may_be()
    }
    /// Returns the names of the extended attributes.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn list_xattr(&self, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        self.inner.fs.list_xattr(ino)
    }
    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NoAttribute`.
    pub fn remove_xattr(&self, ino: InodeNo, name: &[u8]) -> Result<()> {
        self.inner.fs.remove_xattr(ino, name)
    }
    /// Makes an inode's own metadata and, for a directory, its entries durable.
    ///
    /// # Errors
    /// The latched error after a failed write or flush.
    pub fn sync_inode(&self, ino: InodeNo) -> Result<()> {
        self.inner.fs.sync_inode(ino)
    }
    /// Opens a regular file.
    ///
    /// # Errors
    /// `IsDirectory`, `Invalid` for special nodes, `ReadOnly`.
    pub fn open_inode(&self, ino: InodeNo, options: &OpenOptions) -> Result<File> {
        File::open(&self.inner.fs, &self.inner.fs.inode(ino)?, options)
    }
    /// Sets the I/O mode of a file (also a live one) or directory; `None` lets it fall back to the
    /// mount's.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` for other kinds, `ReadOnly`.
    pub fn set_io_mode(&self, ino: InodeNo, mode: Option<IoMode>) -> Result<()> {
        self.inner.fs.set_io_mode(ino, mode)
    }

    // ---- properties of files ----

    /// Keeps writes of a file from tearing, also a live one, or those of what is created in a
    /// directory from then on; `None` ends it.
    ///
    /// A write that begins and ends on blocks and lies within one aligned unit of so many bytes (a
    /// power of two, 4 to 64 KiB) is then after a power cut wholly there or wholly absent. Not so
    /// in mode `cached`, where the cache writes, or on a mount, where the kernel does.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` for other kinds and sizes, `ReadOnly`.
    pub fn set_untorn(&self, ino: InodeNo, bytes: Option<u32>) -> Result<()> {
        self.inner.fs.set_untorn(ino, bytes)
    }
    /// Returns how writes of a file, or of what is created in a directory, are kept from tearing.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn untorn(&self, ino: InodeNo) -> Result<Option<Untorn>> {
        self.inner.fs.untorn(&self.inner.fs.inode(ino)?)
    }

    /// Has what is written to a file from then on, also to a live one, get checksums, or what is
    /// written to files that are created in a directory; every read of such a block is compared
    /// with its checksum. `false` ends it for what is written then.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` for other kinds, and on a volume of a format before version 5,
    /// `ReadOnly`.
    pub fn set_integrity(&self, ino: InodeNo, on: bool) -> Result<()> {
        self.inner.fs.set_integrity(ino, on)
    }
    /// Returns whether what is written to a file, or to files that are created in a directory, gets
    /// checksums.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn integrity(&self, ino: InodeNo) -> Result<bool> {
        let fs = &self.inner.fs;
        fs.has_integrity(fs.inode(ino)?.ino)
    }
    /// Returns how many bytes of a file have checksums, in whole blocks.
    ///
    /// # Errors
    /// `NotFound`, `Io`, `Corrupt`.
    pub fn summed_bytes(&self, ino: InodeNo) -> Result<u64> {
        let fs = &self.inner.fs;
        DataPath::new(fs, &fs.inode(ino)?).summed_bytes()
    }

    /// Asks for a file's blocks in runs of so many bytes (a multiple of the block size, at most 1
    /// GiB), also a live one's, or those of what is created in a directory from then on; `None`
    /// ends it. A hint: where the free space has no such run, the file gets what there is.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` for other kinds and sizes, `ReadOnly`.
    pub fn set_extent_size(&self, ino: InodeNo, bytes: Option<u64>) -> Result<()> {
        self.inner.fs.set_extent_size(ino, bytes)
    }
    /// Returns what [`set_extent_size`](Self::set_extent_size) set on a file or directory.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn extent_size(&self, ino: InodeNo) -> Result<Option<u64>> {
        self.inner.fs.inode(ino)?;
        Ok(Some(self.inner.fs.extent_size(ino)?).filter(|bytes| *bytes > 0))
    }

    /// Says which pages of a file leave the caches behind a sequential read or write, also of a
    /// live one, or of what is created in a directory from then on; `None`: as the tunable says.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` for other kinds, `ReadOnly`.
    pub fn set_release_behind(&self, ino: InodeNo, release: Option<ReleaseBehind>) -> Result<()> {
        self.inner.fs.set_release_behind(ino, release)
    }
    /// Returns what [`set_release_behind`](Self::set_release_behind) set on a file or directory.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn release_behind(&self, ino: InodeNo) -> Result<Option<ReleaseBehind>> {
        self.inner.fs.inode(ino)?;
        self.inner.fs.own_release_behind(ino)
    }

    /// Returns how scattered a file is on the volume.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn fragmentation(&self, ino: InodeNo) -> Result<Fragmentation> {
        self.inner.fs.fragmentation(&self.inner.fs.inode(ino)?)
    }
    /// Moves the next scattered part of a file, 1 MiB at most, at or after the offset `from` in
    /// bytes, to where it lies together; call it again with [`DefragStep::next`]. Reads and writes
    /// of the file wait for one step at a time. Blocks that checkpoints need are left alone unless
    /// `unshare`: then the file gets copies of its own, and the checkpoint keeps the old ones.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` for what is not a regular file, `ReadOnly`, `Io`.
    pub fn defragment(&self, ino: InodeNo, from: u64, unshare: bool) -> Result<DefragStep> {
        self.inner.fs.defragment(&self.inner.fs.inode(ino)?, from, unshare)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is the argument of map_err")]
fn no_thread(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("the sync daemon cannot be started: {error}"))
}
