//! Where everything lies in the control memory.
//!
//! ```text
//! word 0     header: magic, version, words, mount, alignment, buckets, entries, map words, device
//!     16     state      \
//!     32     sealed      | a line of two cache lines each: a store to one
//!     48     durable     | takes no other from the readers' caches
//!     64     sharing    /
//!     80     hash: a word a bucket, 0 = free, else the number of an entry plus 1
//!      …     entries of 16 words
//!      …     maps: extents of 3 words, sorted: place in the file, place on the device,
//!            bytes | 1 where writing is allowed
//! ```
//!
//! All numbers are native words: both sides run on one machine.

use std::fmt;
use std::sync::atomic::Ordering;

use crate::words::Words;

/// The version of everything that client and daemon share: layout and messages.
pub const LAYOUT_VERSION: u32 = 8;

pub(crate) const CONTROL_MAGIC: u64 = u64::from_le_bytes(*b"BPLCTRL1");
pub(crate) const SLOTS_MAGIC: u64 = u64::from_le_bytes(*b"BPLSLOT1");

/// Words of two cache lines, which processors fetch in pairs.
pub(crate) const LINE: usize = 16;

pub(crate) const MAGIC: usize = 0;
pub(crate) const VERSION: usize = 1;
pub(crate) const WORDS: usize = 2;
const MOUNT: usize = 3;
const ALIGNMENT: usize = 4;
const BUCKETS: usize = 5;
const ENTRIES: usize = 6;
const MAP_WORDS: usize = 7;
const DEVICE_BYTES: usize = 8;
pub(crate) const STATE: usize = LINE;
pub(crate) const SEALED: usize = 2 * LINE;
pub(crate) const DURABLE: usize = 3 * LINE;
pub(crate) const SHARING: usize = 4 * LINE;
const HASH: usize = 5 * LINE;
const _: () = assert!(
    STATE < SEALED && SEALED < DURABLE && DURABLE < SHARING && SHARING < HASH,
    "what different processors write lies in cache lines of its own"
);

pub(crate) const ENTRY_WORDS: usize = LINE;
pub(crate) const EXTENT_WORDS: usize = 3;

/// Words of an entry.
pub(crate) mod entry {
    pub const SEQ: usize = 0;
    pub const GENERATION: usize = 1;
    pub const INODE: usize = 2;
    pub const FLAGS: usize = 3;
    pub const SIZE: usize = 4;
    pub const UNSEALED: usize = 5;
    pub const DATA_LSN: usize = 6;
    pub const SHARING: usize = 7;
    pub const MAP_AT: usize = 8;
    pub const MAP_COUNT: usize = 9;
    /// The client that may write parts of sectors; 0: none.
    pub const ODD_OWNER: usize = 10;
    /// The client that has blocks behind the end of the file, its tail; 0: none.
    pub const TAIL_OWNER: usize = 11;
    /// Where the tail ends, in bytes of the file.
    pub const TAIL_END: usize = 12;
    /// The number by which the daemon's cache knows the file, whose pages may be read there; 0: none.
    pub const CACHE_FILE: usize = 13;
    /// The number of the tail: another for each that is given.
    pub const TAIL_NUMBER: usize = 14;
}

const _: () = assert!(DEVICE_BYTES < STATE && entry::TAIL_NUMBER < ENTRY_WORDS);

/// What may be done with a file under its lease.
pub(crate) mod flag {
    pub const READ: u64 = 1;
    pub const WRITE: u64 = 2;
    pub const SYNC: u64 = 4;
}

/// The bit of an extent's third word that allows writing.
pub(crate) const WRITABLE: u64 = 1;

/// Most entries: what a slot can name, and a bound for what is believed of a header.
pub(crate) const ENTRIES_MAX: usize = 1 << 20;

/// What the mount as a whole allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum State {
    /// Nothing: memory that was never set up, a mount that ends, a device that failed.
    Stopped = 0,
    /// Everything that the entries allow.
    Serving = 1,
    /// Reads only.
    ReadOnly = 2,
}

impl State {
    /// A number that is no state allows nothing.
    pub(crate) fn of(word: u64) -> Self {
        match word {
            1 => Self::Serving,
            2 => Self::ReadOnly,
            _ => Self::Stopped,
        }
    }
}

/// How large the parts of a control memory are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// A number of this mount that no other mount has, not 0.
    pub mount: u64,
    /// What place and length of direct I/O are multiples of, in bytes: a power of two.
    pub alignment_bytes: u64,
    /// Files that can be published at the same time.
    pub entries: usize,
    /// Extents that all maps together can have, at most.
    pub extents: usize,
    /// The device's size: no extent passes it.
    pub device_bytes: u64,
}

impl Geometry {
    /// Returns how many words the control memory needs.
    pub fn words(&self) -> usize {
        self.map_at() + self.extents * EXTENT_WORDS
    }

    pub(crate) fn buckets(&self) -> usize {
        (self.entries * 2).next_power_of_two()
    }

    pub(crate) fn bucket_at(&self, bucket: usize) -> usize {
        HASH + (bucket & (self.buckets() - 1))
    }

    pub(crate) fn entry_at(&self, entry: usize) -> usize {
        HASH + self.buckets() + entry * ENTRY_WORDS
    }

    pub(crate) fn map_at(&self) -> usize {
        self.entry_at(self.entries)
    }

    fn check(&self) -> Result<(), LayoutError> {
        let sound = self.mount != 0
            && self.alignment_bytes.is_power_of_two()
            && (512..=1 << 20).contains(&self.alignment_bytes)
            && (1..=ENTRIES_MAX).contains(&self.entries)
            && (1..=1 << 32).contains(&self.extents);
        if sound { Ok(()) } else { Err(LayoutError::Damaged) }
    }

    /// Writes the header into fresh memory; its magic comes last.
    pub(crate) fn write(&self, words: &impl Words) -> Result<(), LayoutError> {
        self.check()?;
        if words.count() < self.words() {
            return Err(LayoutError::TooSmall);
        }
        let fields = [
            (VERSION, u64::from(LAYOUT_VERSION)),
            (WORDS, self.words() as u64),
            (MOUNT, self.mount),
            (ALIGNMENT, self.alignment_bytes),
            (BUCKETS, self.buckets() as u64),
            (ENTRIES, self.entries as u64),
            (MAP_WORDS, (self.extents * EXTENT_WORDS) as u64),
            (DEVICE_BYTES, self.device_bytes),
        ];
        for (at, value) in fields {
            words.store(at, value, Ordering::Relaxed);
        }
        words.store(MAGIC, CONTROL_MAGIC, Ordering::Release);
        Ok(())
    }

    /// Reads the header, of which nothing is believed that does not fit the memory's size.
    pub(crate) fn read(words: &impl Words) -> Result<Self, LayoutError> {
        check_head(words, CONTROL_MAGIC)?;
        let get = |at| words.load(at, Ordering::Relaxed);
        let size = |at| usize::try_from(get(at)).map_err(|_| LayoutError::Damaged);
        let geometry = Self {
            mount: get(MOUNT),
            alignment_bytes: get(ALIGNMENT),
            entries: size(ENTRIES)?,
            extents: size(MAP_WORDS)? / EXTENT_WORDS,
            device_bytes: get(DEVICE_BYTES),
        };
        geometry.check()?;
        if geometry.words() > words.count() || size(BUCKETS)? != geometry.buckets() {
            return Err(LayoutError::Damaged);
        }
        Ok(geometry)
    }
}

/// Compares magic and version, which both memories begin with.
pub(crate) fn check_head(words: &impl Words, magic: u64) -> Result<(), LayoutError> {
    if words.load(MAGIC, Ordering::Acquire) != magic {
        return Err(LayoutError::Damaged);
    }
    match words.load(VERSION, Ordering::Relaxed) {
        version if version == u64::from(LAYOUT_VERSION) => Ok(()),
        _ => Err(LayoutError::Version),
    }
}

/// Where the search for an inode begins in the hash.
pub(crate) fn first_bucket(inode: u64) -> usize {
    (inode.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize
}

/// Why a shared memory cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutError {
    /// Not the memory of a lease, or its header contradicts itself.
    Damaged,
    /// Made by another version of the program.
    Version,
    /// The memory is smaller than what is to be put into it.
    TooSmall,
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Damaged => "the shared memory of the lease is not what its header says",
            Self::Version => "the shared memory of the lease is of another version of bedplate",
            Self::TooSmall => "the shared memory of the lease is too small for what it has to hold",
        })
    }
}

impl std::error::Error for LayoutError {}
