//! The plain values of the interface.

use serde::Serialize;

use crate::{Epoch, FileKind, InodeNo, IoMode, Timestamp};

/// How a file's writes are kept from tearing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Untorn {
    /// The unit in bytes: a write within one aligned unit is after a power cut wholly there or
    /// wholly absent.
    pub bytes: u32,
    /// The device promises it by itself; otherwise writes go to new blocks, and one record remaps
    /// them.
    pub by_device: bool,
}

/// What `stat` tells of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attr {
    /// The inode.
    pub ino: InodeNo,
    /// What it is.
    pub kind: FileKind,
    /// Permission bits with set-user-ID, set-group-ID and sticky (`0o7777`).
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as `makedev(3)` builds it.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated bytes.
    pub allocated_bytes: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth.
    pub btime: Timestamp,
    /// The I/O mode set on the file, or on the directory for what is created in it.
    pub io_mode: Option<IoMode>,
}

/// Changes to a file's attributes; `None` leaves a field alone.
#[derive(Debug, Clone, Default)]
pub struct SetAttr {
    /// New permission bits.
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size in bytes: truncates or extends with a hole.
    pub size: Option<u64>,
    /// New access time.
    pub atime: Option<Timestamp>,
    /// New modification time.
    pub mtime: Option<Timestamp>,
    /// New change time (write-back caches send it); the present where absent.
    pub ctime: Option<Timestamp>,
}

/// Owner and permission bits of a new file (the caller has applied its umask).
#[derive(Debug, Clone, Copy, Default)]
pub struct NewFile {
    /// Permission bits, `0o7777`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group; a directory with the set-group-ID bit overrides it with its own.
    pub gid: u32,
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name: 1 to 255 bytes, neither `/` nor NUL in it.
    pub name: Vec<u8>,
    /// The inode it names.
    pub ino: InodeNo,
    /// What that is.
    pub kind: FileKind,
}

/// How `rename` treats an existing target (`renameat2(2)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RenameMode {
    /// Replaces the target.
    #[default]
    Replace,
    /// Refuses with `Exists`.
    NoReplace,
    /// Exchanges both names.
    Exchange,
    /// Replaces the target and leaves a whiteout (a character device 0/0) at the source.
    Whiteout,
}

/// What `fallocate(2)` can ask of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocateMode {
    /// Allocates unwritten blocks; extends the size unless `keep_size`.
    Preallocate {
        /// Leaves the size alone.
        keep_size: bool,
    },
    /// Frees the blocks wholly inside the range and zeroes the edges; the size stays.
    PunchHole,
    /// Makes the range read as zeros while keeping it allocated; extends the size unless
    /// `keep_size`.
    ZeroRange {
        /// Leaves the size alone.
        keep_size: bool,
    },
    /// Removes the range and moves what follows down; block-aligned.
    CollapseRange,
    /// Inserts a hole and moves what follows up; block-aligned.
    InsertRange,
}

/// One piece of a file's extent map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ExtentInfo {
    /// Offset in the file, bytes.
    pub file_offset: u64,
    /// Offset on the volume, bytes.
    pub volume_offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Allocated but not yet written: reads as zeros.
    pub unwritten: bool,
    /// The epoch it was born in.
    pub birth: Epoch,
}

/// Totals of the file system, in bytes and inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Statfs {
    /// Block size in bytes.
    pub block_size: u32,
    /// Size of the file system in bytes, without superblocks and log.
    pub total_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Free bytes less the reserve kept so that a full volume can still delete.
    pub available_bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
}
