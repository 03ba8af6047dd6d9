//! Buffers for files that rest on the mount: memory that this process shares with the daemon, for what
//! it appends to a file (`appends.rs`) and writes over it (`overwrites.rs`).
//!
//! ```text
//!   write ─► a buffer is open, with room ─► copied there, the cursor moved ─► done
//!     ├────► full, or none, and writes come in order ─► ask (ioctl) ─► as above
//!     └────► elsewhere, or closed meanwhile ─► the mount
//! ```
//!
//! A file rests that grows by parts of sectors, as a log does, or fast, as in a load. There each write
//! was a request. The daemon takes what is in the buffer whenever something needs it, and needs no answer
//! for that; this process may end at any time. One thread at a time has its turn at a buffer
//! (I-LSE-12); another one that comes meanwhile asks the mount, which then takes what is there.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use bedplate_lease::wire::{APPEND_IOCTL, TailRequest};
use bedplate_lease::{APPENDS_PER_CLIENT, Direction, Lease};

use crate::due::{is_due, make_due};
use crate::mount::MOUNTS;
use crate::process::{self, has_size_limit};
use crate::sys::{Fd, syscall};
use crate::visit::Visit;

/// Files that are written to at the same time share a seat where they are more.
const SEATS: usize = 64;

/// So many writes, and losing the buffer is no longer soon.
const WRITES_ENOUGH: u32 = 4;

/// When to ask for a buffer.
struct Seat {
    /// The lease of the file whose end it knows.
    file: AtomicU64,
    /// Where the last write ended that the mount made, or that was an overwrite.
    end: AtomicU64,
    /// Writes that do not ask, and how many it will be after the next time.
    skip: AtomicU32,
    step: AtomicU32,
    /// Writes to the buffer since it was asked.
    writes: AtomicU32,
}

static ALL: [Seat; SEATS] = [const {
    Seat {
        file: AtomicU64::new(0),
        end: AtomicU64::new(0),
        skip: AtomicU32::new(0),
        step: AtomicU32::new(0),
        writes: AtomicU32::new(0),
    }
}; SEATS];

/// The epoch of the process of which a thread has its turn at a buffer; 0: none has.
static TURNS: [[AtomicU64; APPENDS_PER_CLIENT]; MOUNTS] =
    [const { [const { AtomicU64::new(0) }; APPENDS_PER_CLIENT] }; MOUNTS];

fn seat(visit: &Visit) -> &'static Seat {
    &ALL[(visit.open.lease.entry as usize + visit.open.mount) % SEATS]
}

/// A thread's turn at a buffer. It waits for none: a signal's handler may come in the midst of it.
pub struct Turn(&'static AtomicU64);

impl Turn {
    /// Takes the turn at a buffer, unless another thread has it.
    pub fn take(visit: &Visit, buffer: usize) -> Option<Self> {
        let turn = TURNS.get(visit.open.mount)?.get(buffer)?;
        let (was, epoch) = (turn.load(Relaxed), process::epoch());
        // A turn of another epoch is one that a thread of the parent had during the fork.
        let is_free = was != epoch && turn.compare_exchange(was, epoch, Acquire, Relaxed).is_ok();
        is_free.then_some(Self(turn))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(0, Release);
    }
}

/// Notes a write that the mount is to make, and returns whether it is time to ask for a buffer: writes
/// come in order, and this one may go there (`is_fit`).
pub fn is_time(visit: &Visit, place: u64, len: u64, is_fit: impl FnOnce() -> bool) -> bool {
    let seat = seat(visit);
    let file = name_of(visit);
    if seat.file.swap(file, Relaxed) != file {
        make_due(&seat.skip, &seat.step);
        seat.end.store(0, Relaxed);
    }
    let is_in_order = seat.end.load(Relaxed) == place && place > 0;
    seat.end.store(place.saturating_add(len), Relaxed);
    let is_time =
        is_in_order && len > 0 && is_fit() && is_due(&seat.skip, &seat.step) && may_ask(visit);
    if is_time {
        seat.writes.store(0, Relaxed);
    }
    is_time
}

/// Returns whether this process asks for a buffer for an open file at all.
pub fn may_ask(visit: &Visit) -> bool {
    !visit.open.is_durable && process::is_home() && !has_size_limit()
}

/// Names a lease in one word.
pub fn name_of(visit: &Visit) -> u64 {
    let Lease { entry, generation } = visit.open.lease;
    generation << 32 | u64::from(entry) << 2 | visit.open.mount as u64
}

/// Notes a write that went to the buffer: once there are some, its loss is not soon.
pub fn note_write(visit: &Visit) {
    visit.mount.slots.count_done(visit.slot, Direction::Write);
    let seat = seat(visit);
    let count = seat.writes.load(Relaxed).saturating_add(1);
    seat.writes.store(count, Relaxed);
    if count == WRITES_ENOUGH {
        make_due(&seat.skip, &seat.step);
    }
}

/// Notes where a write before the end of the file ended: what goes on there is in order.
pub fn note_end(visit: &Visit, end: u64) {
    seat(visit).end.store(end, Relaxed);
}

/// Asks the daemon for a buffer for a write; what this process has in one for the file goes to the
/// file first. Returns whether it has one now.
#[cold]
pub fn ask_daemon(fd: Fd, visit: &Visit, offset: u64, len: u64) -> bool {
    if !visit.is_still(fd) {
        return false;
    }
    let mut bytes = TailRequest { client: visit.mount.slots.client(), offset, len }.encode();
    // SAFETY: the request's number says how many bytes go and come back.
    let result =
        unsafe { syscall!(libc::SYS_ioctl, visit.open.guard, APPEND_IOCTL, bytes.as_mut_ptr()) };
    result == 0 && TailRequest::is_given(&bytes)
}
