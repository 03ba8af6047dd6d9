//! One record of the arena: eight words.
//!
//! ```text
//!  word 0   kind (8 bits) | how (8) | errno (16) | descriptor (32)      written last
//!       1   begin, in nanoseconds of the monotonic clock
//!       2   how long it took
//!       3   file (32) | flags (32)
//!       4   offset
//!       5   bytes asked for
//!       6   bytes moved, or what else the call returned
//!       7   request of an asynchronous call, or the memory's address
//! ```
//!
//! A slot whose first word is zero was not written, or not written whole.

use serde::{Deserialize, Serialize};

/// Words of a slot.
pub const WORDS: usize = 8;

/// The file of a call that has none.
pub const NO_FILE: u32 = 0;

/// The head of a chunk.
pub const CHUNK: u8 = 1;
/// A file's identity, with its path behind it.
pub const FILE: u8 = 2;
/// A process, with its program's path behind it.
pub const PROCESS: u8 = 3;
/// 56 bytes of a path.
pub const TEXT: u8 = 4;
/// Calls from here on.
const CALLS: u8 = 16;

/// What a program called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Call {
    /// `open` and its kin.
    Open,
    /// `close`.
    Close,
    /// `read`, `pread`, `readv` …, and reads of asynchronous requests.
    Read,
    /// `write`, `pwrite`, `writev` …, and writes of asynchronous requests.
    Write,
    /// `fsync`.
    Sync,
    /// `fdatasync`.
    DataSync,
    /// `sync_file_range`.
    RangeSync,
    /// `syncfs`.
    FsSync,
    /// `ftruncate`.
    Truncate,
    /// `fallocate`.
    Allocate,
    /// `mmap` of a file.
    Map,
    /// `copy_file_range`.
    Copy,
    /// `io_uring_setup`.
    Ring,
    /// A request was handed over (`io_submit`).
    Submit,
    /// Its end was collected (`io_getevents`).
    Complete,
}

impl Call {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 15] = [
        Self::Open,
        Self::Close,
        Self::Read,
        Self::Write,
        Self::Sync,
        Self::DataSync,
        Self::RangeSync,
        Self::FsSync,
        Self::Truncate,
        Self::Allocate,
        Self::Map,
        Self::Copy,
        Self::Ring,
        Self::Submit,
        Self::Complete,
    ];

    /// Returns its number in slots and files.
    #[must_use]
    pub fn number(self) -> u8 {
        CALLS + self as u8
    }

    /// Returns the call of a number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number.checked_sub(CALLS)?)).copied()
    }

    /// Returns the word for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Close => "close",
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "fsync",
            Self::DataSync => "fdatasync",
            Self::RangeSync => "sync_file_range",
            Self::FsSync => "syncfs",
            Self::Truncate => "ftruncate",
            Self::Allocate => "fallocate",
            Self::Map => "mmap",
            Self::Copy => "copy_file_range",
            Self::Ring => "io_uring_setup",
            Self::Submit => "io_submit",
            Self::Complete => "io_getevents",
        }
    }

    /// Tells whether it makes writes durable.
    #[must_use]
    pub fn is_sync(self) -> bool {
        matches!(self, Self::Sync | Self::DataSync | Self::FsSync)
    }

    /// Tells whether it moves data of a file.
    #[must_use]
    pub fn is_move(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }
}

/// Bits of how a call was made.
pub mod how {
    /// The call named its place.
    pub const PLACED: u8 = 1;
    /// Several parts of memory.
    pub const VECTOR: u8 = 2;
    /// An asynchronous request.
    pub const ASYNC: u8 = 4;
    /// A request whose end was not collected while it was recorded.
    pub const UNFINISHED: u8 = 8;
    /// The call itself asked for its data to be durable.
    pub const DURABLE: u8 = 16;
}

/// A call as it is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The call.
    pub call: Call,
    /// Bits of [`how`].
    pub how: u8,
    /// The error's number; 0 of a call that succeeded.
    pub errno: u16,
    /// The descriptor.
    pub fd: i32,
    /// When it began, in nanoseconds of the monotonic clock.
    pub begin_ns: u64,
    /// How long it took in nanoseconds.
    pub took_ns: u64,
    /// The file's number; [`NO_FILE`].
    pub file: u32,
    /// Flags of the call.
    pub flags: u32,
    /// Where in the file.
    pub offset: u64,
    /// How many bytes were asked for.
    pub asked: u64,
    /// What the call returned.
    pub result: i64,
    /// The memory's address, or what an asynchronous request is known by.
    pub key: u64,
}

impl Slot {
    pub(crate) fn words(&self) -> [u64; WORDS] {
        [
            head(self.call.number(), self.how, self.errno, self.fd as u32),
            self.begin_ns,
            self.took_ns,
            u64::from(self.file) | u64::from(self.flags) << 32,
            self.offset,
            self.asked,
            self.result as u64,
            self.key,
        ]
    }

    pub(crate) fn of(words: &[u64; WORDS]) -> Option<Self> {
        Some(Self {
            call: Call::of(words[0] as u8)?,
            how: (words[0] >> 8) as u8,
            errno: (words[0] >> 16) as u16,
            fd: (words[0] >> 32) as u32 as i32,
            begin_ns: words[1],
            took_ns: words[2],
            file: words[3] as u32,
            flags: (words[3] >> 32) as u32,
            offset: words[4],
            asked: words[5],
            result: words[6] as i64,
            key: words[7],
        })
    }
}

/// The first word of a slot.
pub const fn head(kind: u8, how: u8, errno: u16, rest: u32) -> u64 {
    kind as u64 | (how as u64) << 8 | (errno as u64) << 16 | (rest as u64) << 32
}

/// What a descriptor leads to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Identity {
    /// The file's number among all processes of the trace.
    pub file: u32,
    /// The device's number, as `stat` tells it.
    pub device: u64,
    /// The inode.
    pub inode: u64,
    /// The size when it was seen.
    pub size_bytes: u64,
    /// It is a block device.
    pub is_device: bool,
}
