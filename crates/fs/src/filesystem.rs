//! The mounted file system: the interface of names and inodes.

use std::path::Path;
use std::sync::Arc;

use block::BlockDevice;

use crate::{
    Attr, CheckReport, DirEntry, File, FileKind, FormatOptions, FormatReport, FsInfo, InodeNo, IoMode, MountOptions, NewFile, OpenOptions,
    RenameMode, Result, SetAttr, Statfs,
};

/// A mounted file system. Cheap to clone; every method may be called from any number of threads.
///
/// The last clone dropped without [`unmount`](Self::unmount) leaves the volume as a crash would: sound, to be recovered at the next mount.
#[derive(Clone)]
pub struct FileSystem {}

impl FileSystem {
    /// Writes an empty file system onto `device`, with the intent log on `log` when one is given.
    ///
    /// # Errors
    /// `Exists` when either device holds a volume and `force` is off; `Invalid` for options out of range or a device too small; device errors.
    pub fn format(device: &Arc<dyn BlockDevice>, log: Option<&Arc<dyn BlockDevice>>, options: &FormatOptions) -> Result<FormatReport> {
        todo!()
    }
    /// Mounts: reads the superblock, recovers, rebuilds the free space, removes orphans.
    ///
    /// # Errors
    /// `NotAVolume`, `NewerFormat`, `Corrupt` with offset and field, `NotFound` when the log device is missing or another volume's, device errors.
    pub fn mount(device: Arc<dyn BlockDevice>, log: Option<Arc<dyn BlockDevice>>, options: MountOptions) -> Result<Self> {
        todo!()
    }
    /// Reads the superblock only and says whether a separate log device is needed and which volume this is.
    ///
    /// # Errors
    /// As [`mount`](Self::mount).
    pub fn probe(device: &Arc<dyn BlockDevice>) -> Result<FormatReport> {
        todo!()
    }
    /// Makes everything durable and marks the volume clean. Files still open keep failing with `Busy` afterwards.
    ///
    /// # Errors
    /// `Io` when the last writes fail.
    pub fn unmount(self) -> Result<()> {
        todo!()
    }
    /// Checks an unmounted volume; with `repair` mends what can be mended without guessing.
    ///
    /// # Errors
    /// Only what keeps the check from running at all; inconsistencies are findings.
    pub fn check(device: &Arc<dyn BlockDevice>, log: Option<&Arc<dyn BlockDevice>>, repair: bool) -> Result<CheckReport> {
        todo!()
    }
    /// Makes everything that was acknowledged durable.
    ///
    /// # Errors
    /// The latched error after a failed write or flush.
    pub fn sync(&self) -> Result<()> {
        todo!()
    }
    /// Takes over the device's present size; returns the new size in bytes. Does nothing where the device did not grow.
    ///
    /// # Errors
    /// `Invalid` when the device shrank; device errors.
    pub fn grow(&self) -> Result<u64> {
        todo!()
    }
    /// Returns totals.
    #[must_use]
    pub fn statfs(&self) -> Statfs {
        todo!()
    }
    /// Returns everything worth knowing.
    #[must_use]
    pub fn info(&self) -> FsInfo {
        todo!()
    }

    // ---- inode interface, for translators ----

    /// Finds a name in a directory (`.` and `..` too).
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NameTooLong`.
    pub fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        todo!()
    }
    /// Returns an inode's attributes.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn attr(&self, ino: InodeNo) -> Result<Attr> {
        todo!()
    }
    /// Changes attributes; permission checks are the front end's.
    ///
    /// # Errors
    /// `NotFound`, `ReadOnly`, `TooLarge`, `IsDirectory` for a size.
    pub fn set_attr(&self, ino: InodeNo, change: &SetAttr) -> Result<Attr> {
        todo!()
    }
    /// Keeps an inode alive (also without a name) until the matching [`forget`](Self::forget)s.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn retain(&self, ino: InodeNo) -> Result<()> {
        todo!()
    }
    /// Gives back `count` retentions.
    pub fn forget(&self, ino: InodeNo, count: u64) {
        todo!()
    }
    /// Makes a file, directory, device node, pipe or socket (not a symbolic link). The new object inherits the directory's I/O mode.
    ///
    /// # Errors
    /// `Exists`, `NotFound`, `NotDirectory`, `NameTooLong`, `Invalid` name, `NoSpace`, `ReadOnly`.
    pub fn make(&self, dir: InodeNo, name: &[u8], kind: FileKind, new: NewFile, rdev: u32) -> Result<Attr> {
        todo!()
    }
    /// Makes an unnamed file that lives until it is closed, or gets a name by [`link`](Self::link) (`O_TMPFILE`). It is retained once.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub fn make_unnamed(&self, dir: InodeNo, new: NewFile) -> Result<Attr> {
        todo!()
    }
    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As [`make`](Self::make); `Invalid` for a target that is empty or longer than 4,095 bytes.
    pub fn symlink(&self, dir: InodeNo, name: &[u8], target: &[u8], new: NewFile) -> Result<Attr> {
        todo!()
    }
    /// Reads a symbolic link.
    ///
    /// # Errors
    /// `Invalid` when it is none.
    pub fn read_link(&self, ino: InodeNo) -> Result<Vec<u8>> {
        todo!()
    }
    /// Gives an inode another name.
    ///
    /// # Errors
    /// `Exists`, `NotPermitted` for a directory, `TooManyLinks`.
    pub fn link(&self, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        todo!()
    }
    /// Removes a name of something that is not a directory; an open file lives on until closed.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`.
    pub fn unlink(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        todo!()
    }
    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NotEmpty`.
    pub fn rmdir(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        todo!()
    }
    /// Renames, atomically also across a crash.
    ///
    /// # Errors
    /// As `rename(2)`; `Invalid` when a directory would move below itself.
    pub fn rename(&self, from_dir: InodeNo, from: &[u8], to_dir: InodeNo, to: &[u8], mode: RenameMode) -> Result<()> {
        todo!()
    }
    /// Returns up to `limit` entries (without `.` and `..`) whose names come after `after` in byte order.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`.
    pub fn read_dir(&self, dir: InodeNo, after: Option<&[u8]>, limit: usize) -> Result<Vec<DirEntry>> {
        todo!()
    }
    /// Returns the directory that holds `dir`; the root is its own parent.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`.
    pub fn parent(&self, dir: InodeNo) -> Result<InodeNo> {
        todo!()
    }
    /// Returns an extended attribute's value.
    ///
    /// # Errors
    /// `NoAttribute`, `NotFound`.
    pub fn get_xattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        todo!()
    }
    /// Sets an extended attribute: up to 255 bytes of name, 65,536 of value. `create`: refuse an existing one; `replace`: refuse a missing one.
    ///
    /// # Errors
    /// `Exists`, `NoAttribute`, `Range`, `NoSpace`.
    pub fn set_xattr(&self, ino: InodeNo, name: &[u8], value: &[u8], create: bool, replace: bool) -> Result<()> {
        todo!()
    }
    /// Returns the names of the extended attributes.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn list_xattr(&self, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        todo!()
    }
    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NoAttribute`.
    pub fn remove_xattr(&self, ino: InodeNo, name: &[u8]) -> Result<()> {
        todo!()
    }
    /// Makes an inode's own metadata and, for a directory, its entries durable.
    ///
    /// # Errors
    /// The latched error after a failed write or flush.
    pub fn sync_inode(&self, ino: InodeNo) -> Result<()> {
        todo!()
    }
    /// Opens a regular file.
    ///
    /// # Errors
    /// `IsDirectory`, `Invalid` for special nodes, `ReadOnly`.
    pub fn open_inode(&self, ino: InodeNo, options: &OpenOptions) -> Result<File> {
        todo!()
    }
    /// Sets the I/O mode of a file (also a live one) or directory; `None` lets it fall back to the mount's.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` for other kinds, `ReadOnly`.
    pub fn set_io_mode(&self, ino: InodeNo, mode: Option<IoMode>) -> Result<()> {
        todo!()
    }

    // ---- path interface ----

    /// Follows a path from the root, symbolic links too; returns what it names.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `TooManyLinks` after 40 symbolic links.
    pub fn resolve(&self, path: impl AsRef<Path>) -> Result<Attr> {
        todo!()
    }
    /// Opens a file by path; a suffix (`users.dbf::concurrent`) asks for a mode.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve) and [`open_inode`](Self::open_inode).
    pub fn open(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File> {
        todo!()
    }
    /// Makes a directory and the missing ones above it.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<Attr> {
        todo!()
    }
    /// Removes a file or empty directory by path.
    ///
    /// # Errors
    /// As [`unlink`](Self::unlink) and [`rmdir`](Self::rmdir).
    pub fn remove(&self, path: impl AsRef<Path>) -> Result<()> {
        todo!()
    }
    /// Renames by path (replacing).
    ///
    /// # Errors
    /// As [`rename`](Self::rename).
    pub fn rename_path(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        todo!()
    }
}

/// Splits a name suffix: `users.dbf::concurrent` becomes (`users.dbf`, concurrent). A name without a known suffix is returned whole.
#[must_use]
pub fn split_mode_suffix(name: &[u8]) -> (&[u8], Option<IoMode>) {
    todo!()
}
