//! The plain values of the interface.

use serde::{Deserialize, Serialize};

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

/// What one step of a trim did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TrimStep {
    /// Where the next step begins, in bytes of the volume; `None`: this was the last.
    pub next: Option<u64>,
    /// Free bytes that the device was told of.
    pub discarded_bytes: u64,
    /// In how many runs.
    pub runs: u64,
    /// Free bytes in runs that are shorter than was asked for, or too scarce to be withheld.
    pub passed_bytes: u64,
    /// Whether the device takes discards at all. A group with parity takes none, nor does one with
    /// copies on members that do not read as zeros afterwards.
    pub is_supported: bool,
}

/// Which pages of a file leave the caches behind a sequential read or write, as soon as they are
/// used or written: for files that are read or written once, and larger than memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[repr(u8)]
#[serde(rename_all = "lowercase")]
pub enum ReleaseBehind {
    /// None.
    #[default]
    Off = 0,
    /// Those that were read.
    Read = 1,
    /// Those that were written.
    Write = 2,
    /// Both.
    Both = 3,
}

impl ReleaseBehind {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 4] = [Self::Off, Self::Read, Self::Write, Self::Both];

    /// Returns the one of a code; `None` for what is none.
    #[must_use]
    pub fn of_code(code: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|release| *release as u64 == code)
    }

    /// Returns the name as users write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Read => "read",
            Self::Write => "write",
            Self::Both => "both",
        }
    }

    /// Returns whether pages that were read leave.
    #[must_use]
    pub fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Both)
    }

    /// Returns whether pages that were written leave.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Both)
    }
}

impl std::fmt::Display for ReleaseBehind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for ReleaseBehind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|release| release.name() == text);
        found.ok_or_else(|| format!("'{text}' is none of off, read, write and both"))
    }
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

/// Owner and permission bits of a new file.
#[derive(Debug, Clone, Copy, Default)]
pub struct NewFile {
    /// Permission bits, `0o7777`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group; a directory with the set-group-ID bit overrides it with its own.
    pub gid: u32,
    /// Permission bits that the caller's umask takes away where the directory has no default access
    /// control list; 0 where they are taken away already.
    pub umask: u32,
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
