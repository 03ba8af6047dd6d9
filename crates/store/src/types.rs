//! Addresses, ordinals, and the values that rows hold.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Identifies a file for as long as it exists; numbers are not reused while the volume lives. The
/// root directory is [`InodeNo::ROOT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InodeNo(pub u64);

impl InodeNo {
    /// The root directory.
    pub const ROOT: Self = Self(1);

    /// The directory `.checkpoints` of the root.
    pub const CHECKPOINTS: Self = Self(0xffff << Self::BITS);

    /// Bits that numbers on a volume have; those above tell checkpoints apart while it is mounted.
    pub const BITS: u32 = 48;

    /// The first number that is no inode's: a front end may give those from here up to
    /// `.checkpoints` a meaning of its own.
    pub const OF_FRONT_END: Self = Self(0xfff0 << Self::BITS);

    /// Whether a volume may hold it: numbers are given in order, so none that is far away was ever
    /// given.
    pub fn is_possible(self) -> bool {
        (1..1 << Self::BITS).contains(&self.0)
    }
}

/// Ordinal of a block on the volume; its byte address is this times the block size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct BlockNo(pub u64);

/// Ordinal of a block within a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct FileBlock(pub u64);

/// Ordinal of a record in the intent log, from 1; 0 stands before the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
pub struct Lsn(pub u64);

/// All parts of a run of blocks have the record of the whole.
impl bedplate_block::RunValue for Lsn {}

/// Counts checkpoints: an extent remembers the epoch it was born in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
pub struct Epoch(pub u32);

/// Nanoseconds since the Unix epoch, negative before it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Returns the present, in the steps of the kernel's clock tick (1 to 10 ms), as kernel file
    /// systems stamp their files.
    #[must_use]
    #[inline]
    pub fn now() -> Self {
        // The exact clock costs more than the rest of a write to memory.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        Self(now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let nanos = |d: Duration| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX);
        Self(match time.duration_since(UNIX_EPOCH) {
            Ok(after) => nanos(after),
            Err(before) => -nanos(before.duration()),
        })
    }
}

impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> Self {
        let distance = Duration::from_nanos(time.0.unsigned_abs());
        if time.0 >= 0 { UNIX_EPOCH + distance } else { UNIX_EPOCH - distance }
    }
}

/// What kind of object an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// A regular file.
    File = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A named pipe.
    Fifo = 4,
    /// A socket.
    Socket = 5,
    /// A character device node.
    CharDevice = 6,
    /// A block device node.
    BlockDevice = 7,
}

/// How one open file moves its data: S-20 to S-30 of `docs/semantics.md`, and
/// `docs/guide/modes.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum IoMode {
    /// Library cache with read-ahead and write-behind; lock shared / exclusive.
    #[serde(rename = "cached")]
    Cached = 1,
    /// No cache; byte-range shared / byte-range exclusive.
    #[serde(rename = "direct")]
    Direct = 2,
    /// No cache; shared / shared.
    #[serde(rename = "concurrent")]
    Concurrent = 3,
    /// Reads cached; writes go direct, then the cached copy is refreshed; shared / shared.
    #[serde(rename = "concurrent+cache")]
    ConcurrentCache = 4,
}

impl IoMode {
    /// All modes, in the order of their on-disk codes.
    pub const ALL: [Self; 4] =
        [Self::Cached, Self::Direct, Self::Concurrent, Self::ConcurrentCache];

    /// Returns the name as users write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Direct => "direct",
            Self::Concurrent => "concurrent",
            Self::ConcurrentCache => "concurrent+cache",
        }
    }

    /// Returns whether the device is the only place that has a file's bytes, and readers and
    /// writers need not know of each other: so that other processes may read and write there.
    #[must_use]
    pub fn may_be_leased(self) -> bool {
        match self {
            Self::Concurrent => true,
            Self::Cached | Self::Direct | Self::ConcurrentCache => false,
        }
    }

    /// Returns whether other processes may read a file's pages in the library cache: what is there is
    /// what a read returns, and a write has reached the device before it is.
    #[must_use]
    pub fn may_share_cache(self) -> bool {
        match self {
            Self::ConcurrentCache => true,
            Self::Cached | Self::Direct | Self::Concurrent => false,
        }
    }

    /// Returns whether reads and writes go through the library cache.
    #[must_use]
    #[inline]
    pub fn uses_library_cache(self) -> bool {
        match self {
            Self::Cached | Self::ConcurrentCache => true,
            Self::Direct | Self::Concurrent => false,
        }
    }

    /// Returns whether a write stays in a cache, the library's or its caller's, and reaches the
    /// device later, in pieces that the cache chooses.
    #[must_use]
    #[inline]
    pub fn writes_behind(self) -> bool {
        match self {
            Self::Cached => true,
            Self::Direct | Self::Concurrent | Self::ConcurrentCache => false,
        }
    }

    /// Returns whether a write goes to the device at once and then into the library cache.
    #[must_use]
    #[inline]
    pub fn writes_through(self) -> bool {
        match self {
            Self::ConcurrentCache => true,
            Self::Cached | Self::Direct | Self::Concurrent => false,
        }
    }

    /// Returns whether reads and writes lock their byte ranges against each other.
    #[must_use]
    #[inline]
    pub fn locks_ranges(self) -> bool {
        match self {
            Self::Direct => true,
            Self::Cached | Self::Concurrent | Self::ConcurrentCache => false,
        }
    }

    /// Returns what an `O_DIRECT` open gets where this mode is asked for: never a mode whose writes
    /// stay in a cache.
    #[must_use]
    #[inline]
    pub fn with_direct_flag(self) -> Self {
        match self {
            Self::Cached | Self::Direct => Self::Direct,
            Self::Concurrent => Self::Concurrent,
            Self::ConcurrentCache => Self::ConcurrentCache,
        }
    }

    /// Returns how strict the order is that the mode keeps between reads and writes: of the opens
    /// of one file that all go past the cache, the strictest mode serves them all.
    #[must_use]
    pub fn strictness(self) -> u8 {
        match self {
            Self::Cached => 3,
            Self::Direct => 2,
            Self::Concurrent => 1,
            Self::ConcurrentCache => 0,
        }
    }
}

impl std::fmt::Display for IoMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for IoMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|mode| mode.name() == text).ok_or_else(|| {
            format!("unknown I/O mode '{text}': use cached, direct, concurrent or concurrent+cache")
        })
    }
}
