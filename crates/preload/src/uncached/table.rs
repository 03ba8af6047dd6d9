//! Which descriptors have a second one, for direct I/O: a cell a descriptor, read without a lock.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};

use crate::process;
use crate::sys::{self, Fd};

/// Descriptors from here on have none.
pub const FDS: usize = 4096;

/// The alignment where the file system tells none.
pub const ALIGNMENT: u64 = 4096;

/// A file that is read and written past the page cache.
#[derive(Clone, Copy)]
pub struct Uncached {
    /// The second descriptor.
    pub direct: Fd,
    /// Device and inode.
    pub identity: (u32, u32, u64),
    /// Opened for reading.
    pub may_read: bool,
    /// Opened for writing.
    pub may_write: bool,
    /// The alignment of memory: a power of two.
    pub memory_alignment: u64,
    /// The alignment of offsets and lengths: a power of two.
    pub alignment: u64,
}

impl Uncached {
    /// Returns the file's size, if a descriptor still leads to it: its number may have been closed,
    /// and used again, by what is not seen here.
    pub fn size(&self, fd: Fd) -> Option<u64> {
        let wanted = libc::STATX_INO | libc::STATX_SIZE;
        let stat = sys::statx(fd, libc::AT_STATX_DONT_SYNC, wanted)?;
        let identity = (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino);
        (identity == self.identity).then_some(stat.stx_size)
    }
}

struct Cell {
    seq: AtomicU64,
    word: AtomicU64,
    device: AtomicU64,
    inode: AtomicU64,
    odd: AtomicBool,
}

const DIRECT_BITS: u32 = 16;
const MEMORY_AT: u32 = DIRECT_BITS;
const PLACE_AT: u32 = MEMORY_AT + 8;
const FLAGS_AT: u32 = PLACE_AT + 8;
const VALID: u64 = 1 << 63;
const _: () =
    assert!(crate::table::OWN_MAX <= 1 << DIRECT_BITS, "a word has room for each own number");

static CELLS: [Cell; FDS] = [const {
    Cell {
        seq: AtomicU64::new(0),
        word: AtomicU64::new(0),
        device: AtomicU64::new(0),
        inode: AtomicU64::new(0),
        odd: AtomicBool::new(false),
    }
}; FDS];

/// One more than the highest descriptor that ever had a second one.
static USED: AtomicUsize = AtomicUsize::new(0);

fn cell(fd: Fd) -> Option<&'static Cell> {
    usize::try_from(fd).ok().and_then(|fd| CELLS.get(fd))
}

/// Looks a descriptor up.
#[inline]
pub fn find(fd: Fd) -> Option<Uncached> {
    let cell = cell(fd)?;
    if cell.word.load(Relaxed) == 0 {
        return None;
    }
    let seq = cell.seq.load(Acquire);
    let word = cell.word.load(Acquire);
    let (device, inode) = (cell.device.load(Acquire), cell.inode.load(Acquire));
    if word & VALID == 0 || !seq.is_multiple_of(2) || cell.seq.load(Relaxed) != seq {
        return None;
    }
    let flag = |at: u32| word >> (FLAGS_AT + at) & 1 != 0;
    Some(Uncached {
        direct: (word & ((1 << DIRECT_BITS) - 1)) as Fd,
        identity: ((device >> 32) as u32, device as u32, inode),
        may_read: flag(0),
        may_write: flag(1),
        memory_alignment: 1 << (word >> MEMORY_AT & 0x3f),
        alignment: 1 << (word >> PLACE_AT & 0x3f),
    })
}

/// Changes a cell; tells whether there is one. The caller holds the process's lock.
pub fn set(_held: &process::Held, fd: Fd, file: Option<&Uncached>) -> bool {
    let Some(cell) = cell(fd) else { return false };
    let seq = cell.seq.load(Relaxed) & !1;
    cell.seq.store(seq + 1, Relaxed);
    fence(Release);
    let word = file.map_or(0, |file| {
        debug_assert!(
            file.alignment.is_power_of_two() && file.memory_alignment.is_power_of_two(),
            "the kernel's alignments are powers of two"
        );
        cell.device.store(u64::from(file.identity.0) << 32 | u64::from(file.identity.1), Relaxed);
        cell.inode.store(file.identity.2, Relaxed);
        cell.odd.store(false, Relaxed);
        let flags = [file.may_read, file.may_write];
        let flags = (0..).zip(flags).fold(0, |all, (at, flag)| all | u64::from(flag) << at);
        VALID
            | file.direct as u64
            | u64::from(file.memory_alignment.trailing_zeros()) << MEMORY_AT
            | u64::from(file.alignment.trailing_zeros()) << PLACE_AT
            | flags << FLAGS_AT
    });
    cell.word.store(word, Relaxed);
    USED.fetch_max(fd as usize + 1, Relaxed);
    cell.seq.store(seq + 2, Release);
    true
}

/// All descriptors in a range that may have a second one.
pub fn used(first: usize, last: usize) -> impl Iterator<Item = Fd> {
    let end = USED.load(Relaxed).min(last.saturating_add(1));
    (first..end).map(|fd| fd as Fd)
}

/// Notes that something was written through the page cache.
pub fn note_odd(fd: Fd) {
    if let Some(cell) = cell(fd) {
        cell.odd.store(true, Relaxed);
    }
}

/// Tells whether something was, since this was asked last.
pub fn take_odd(fd: Fd) -> bool {
    cell(fd).is_some_and(|cell| cell.odd.swap(false, Relaxed))
}
