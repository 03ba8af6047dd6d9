//! Which descriptors have a lease, and which numbers are the library's own.
//!
//! A cell a descriptor, read without a lock under a sequence and changed under the process's lock.
//! One that waits for its lease counts its calls down in the cell.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize, fence};

use bedplate_lease::Lease;

use crate::process;
use crate::sys::Fd;

/// Descriptors from here on have no lease.
pub const FDS: usize = 1 << 14;

/// Numbers from here on are never the library's own.
pub const OWN_MAX: usize = 4096;
const _: () = assert!(
    OWN_MAX.is_multiple_of(64) && OWN_MAX <= FDS,
    "own descriptors fill whole words, and are among all"
);

/// An open file with a lease.
#[derive(Clone, Copy)]
pub struct Open {
    /// The mount's place in the table of mounts.
    pub mount: usize,
    /// The file.
    pub inode: u64,
    /// Its entry.
    pub lease: Lease,
    /// A second descriptor of the same open file: what the first has to be still.
    pub guard: Fd,
    /// Opened for reading.
    pub may_read: bool,
    /// Opened for writing.
    pub may_write: bool,
    /// Every write is durable when it returns.
    pub is_durable: bool,
}

struct Cell {
    seq: AtomicU64,
    word: AtomicU64,
    generation: AtomicU64,
    inode: AtomicU64,
}

const ENTRY_BITS: u32 = 20;
const GUARD_AT: u32 = ENTRY_BITS;
const GUARD_BITS: u32 = 13;
const MOUNT_AT: u32 = GUARD_AT + GUARD_BITS;
const MOUNT_BITS: u32 = 2;
const READ_AT: u32 = MOUNT_AT + MOUNT_BITS;
const EPOCH_AT: u32 = READ_AT + 3;
const VALID: u64 = 1 << 63;
/// Of a word that is not valid: the descriptor waits, for as many calls as the bits below say.
const WAITING: u64 = 1 << 32;
const EPOCH_MASK: u64 = (1 << (63 - EPOCH_AT)) - 1;
/// How many mounts have a number that a word has room for.
pub const MOUNTS_MAX: usize = 1 << MOUNT_BITS;
const _: () = assert!(
    EPOCH_AT + 16 <= 63 && EPOCH_MASK & (VALID >> EPOCH_AT) == 0,
    "a word has room for an epoch beside its other parts"
);

static CELLS: [Cell; FDS] = [const {
    Cell {
        seq: AtomicU64::new(0),
        word: AtomicU64::new(0),
        generation: AtomicU64::new(0),
        inode: AtomicU64::new(0),
    }
}; FDS];

/// One more than the highest descriptor that ever had a lease.
static USED: AtomicUsize = AtomicUsize::new(0);

static OWN: [AtomicU64; OWN_MAX / 64] = [const { AtomicU64::new(0) }; OWN_MAX / 64];

/// What the table says of a descriptor.
pub enum Found {
    /// No lease.
    Nothing,
    /// No lease yet.
    Waiting,
    /// A lease of this process.
    Leased(Open),
    /// A lease of the process that this one was forked from.
    Inherited(Open),
}

/// Looks a descriptor up.
#[inline]
pub fn find(fd: Fd) -> Found {
    let Some(cell) = usize::try_from(fd).ok().and_then(|fd| CELLS.get(fd)) else {
        return Found::Nothing;
    };
    if cell.word.load(Relaxed) == 0 {
        return Found::Nothing;
    }
    let seq = cell.seq.load(Acquire);
    let word = cell.word.load(Acquire);
    let generation = cell.generation.load(Acquire);
    let inode = cell.inode.load(Acquire);
    if !seq.is_multiple_of(2) || cell.seq.load(Relaxed) != seq {
        return Found::Nothing;
    }
    if word & VALID == 0 {
        return if word & WAITING == 0 { Found::Nothing } else { Found::Waiting };
    }
    let bits = |at: u32, count: u32| (word >> at) & ((1 << count) - 1);
    let open = Open {
        mount: bits(MOUNT_AT, MOUNT_BITS) as usize,
        inode,
        lease: Lease { entry: bits(0, ENTRY_BITS) as u32, generation },
        guard: bits(GUARD_AT, GUARD_BITS) as Fd,
        may_read: bits(READ_AT, 1) != 0,
        may_write: bits(READ_AT + 1, 1) != 0,
        is_durable: bits(READ_AT + 2, 1) != 0,
    };
    let is_own = (word >> EPOCH_AT) & EPOCH_MASK == process::epoch() & EPOCH_MASK;
    if is_own { Found::Leased(open) } else { Found::Inherited(open) }
}

/// Tells whether a descriptor has a lease or waits for one, or did in the process that this one was
/// forked from.
pub fn is_leased(fd: Fd) -> bool {
    !matches!(find(fd), Found::Nothing)
}

/// Changes a cell; the caller holds the process's lock.
pub fn set(_held: &process::Held, fd: Fd, open: Option<&Open>) {
    let Some(cell) = usize::try_from(fd).ok().and_then(|fd| CELLS.get(fd)) else { return };
    let seq = begin_change(cell);
    if let Some(open) = open {
        debug_assert!(
            fits(open.lease, open.guard) && open.mount < MOUNTS_MAX,
            "what a word has no room for is not leased"
        );
        cell.generation.store(open.lease.generation, Relaxed);
        cell.inode.store(open.inode, Relaxed);
        let flags = [open.may_read, open.may_write, open.is_durable];
        let flags = (0..).zip(flags).fold(0, |all, (at, flag)| all | u64::from(flag) << at);
        let word = VALID
            | u64::from(open.lease.entry)
            | (open.guard as u64) << GUARD_AT
            | (open.mount as u64) << MOUNT_AT
            | flags << READ_AT
            | (process::epoch() & EPOCH_MASK) << EPOCH_AT;
        cell.word.store(word, Relaxed);
        USED.fetch_max(fd as usize + 1, Relaxed);
    } else {
        cell.word.store(0, Relaxed);
    }
    cell.seq.store(seq + 2, Release);
}

/// Begins to change a cell; returns the sequence that it had.
fn begin_change(cell: &Cell) -> u64 {
    // Odd may be what a fork left of a change in the parent.
    let seq = cell.seq.load(Relaxed) & !1;
    cell.seq.store(seq + 1, Relaxed);
    fence(Release);
    seq
}

/// A descriptor gets its lease after so many calls; the caller holds the process's lock.
pub fn wait(_held: &process::Held, fd: Fd, calls: u32) {
    let Some(cell) = usize::try_from(fd).ok().and_then(|fd| CELLS.get(fd)) else { return };
    let seq = begin_change(cell);
    cell.word.store(WAITING | u64::from(calls), Relaxed);
    USED.fetch_max(fd as usize + 1, Relaxed);
    cell.seq.store(seq + 2, Release);
}

/// Counts a call of a descriptor that waits; tells whether it was the last, which one caller is
/// told.
pub fn waited(fd: Fd) -> bool {
    let Some(cell) = usize::try_from(fd).ok().and_then(|fd| CELLS.get(fd)) else { return false };
    let left = |word: u64| word.checked_sub(1).filter(|left| left & WAITING != 0);
    let before = cell
        .word
        .fetch_update(Relaxed, Relaxed, |word| if word & VALID == 0 { left(word) } else { None });
    before == Ok(WAITING | 1)
}

/// All descriptors in a range that may have a lease.
pub fn used(first: usize, last: usize) -> impl Iterator<Item = Fd> {
    let end = USED.load(Relaxed).min(last.saturating_add(1));
    (first..end).map(|fd| fd as Fd)
}

/// Tells whether an entry's number fits into a cell.
pub fn fits(lease: Lease, guard: Fd) -> bool {
    lease.entry < 1 << ENTRY_BITS && (0..1 << GUARD_BITS).contains(&guard)
}

/// Tells whether the number is the library's own.
pub fn is_own(fd: Fd) -> bool {
    let place = usize::try_from(fd).ok().and_then(|fd| Some((OWN.get(fd / 64)?, fd % 64)));
    place.is_some_and(|(word, bit)| word.load(Relaxed) >> bit & 1 != 0)
}

/// Notes that a number is, or is no more, the library's own.
pub fn set_own(fd: Fd, is_own: bool) {
    let Some(word) = usize::try_from(fd).ok().and_then(|fd| OWN.get(fd / 64)) else { return };
    let bit = 1 << (fd % 64);
    if is_own {
        word.fetch_or(bit, Relaxed)
    } else {
        word.fetch_and(!bit, Relaxed)
    };
}

/// Returns the first of the library's own numbers from `first` on.
pub fn next_own(first: usize) -> Option<usize> {
    (first..OWN_MAX).find(|&fd| is_own(fd as Fd))
}
