//! Appends to a file that rests on the mount: into memory that this process shares with the daemon.
//!
//! ```text
//!   write at the end ─► a buffer is open, with room ─► copied there, the cursor moved ─► done
//!          ├──────────► full, or none, and writes come in order ─► ask (ioctl) ─► as above
//!          └──────────► elsewhere, or closed meanwhile ─► the mount
//! ```
//!
//! A file rests that grows by parts of sectors, as a log does, or fast, as in a load. There each write
//! was a request. The daemon takes what was appended whenever something needs it, and needs no answer
//! for that; this process may end at any time. One thread at a time has its turn at a buffer
//! (I-LSE-12); another one that comes meanwhile asks the mount, which then takes the buffer back.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use bedplate_lease::wire::{APPEND_IOCTL, TailRequest};
use bedplate_lease::{APPEND_BYTES, APPENDS_PER_CLIENT, AppendRoom, Direction, Lease, State};

use crate::due::{is_due, make_due};
use crate::mount::MOUNTS;
use crate::process::{self, has_size_limit};
use crate::sys::{Fd, syscall};
use crate::visit::{Memory, Visit};

/// Files that are appended to at the same time share a seat where they are more.
const SEATS: usize = 64;

/// So many appends, and losing the buffer is no longer soon.
const APPENDS_ENOUGH: u32 = 4;

/// When to ask for a buffer.
struct Seat {
    /// The lease of the file whose end it knows.
    file: AtomicU64,
    /// Where the last write ended that the mount made.
    end: AtomicU64,
    /// Writes that do not ask, and how many it will be after the next time.
    skip: AtomicU32,
    step: AtomicU32,
    /// Appends since it was asked.
    appends: AtomicU32,
}

static ALL: [Seat; SEATS] = [const {
    Seat {
        file: AtomicU64::new(0),
        end: AtomicU64::new(0),
        skip: AtomicU32::new(0),
        step: AtomicU32::new(0),
        appends: AtomicU32::new(0),
    }
}; SEATS];

/// The epoch of the process of which a thread has its turn at a buffer; 0: none has.
static TURNS: [[AtomicU64; APPENDS_PER_CLIENT]; MOUNTS] =
    [const { [const { AtomicU64::new(0) }; APPENDS_PER_CLIENT] }; MOUNTS];

fn seat(visit: &Visit) -> &'static Seat {
    &ALL[(visit.open.lease.entry as usize + visit.open.mount) % SEATS]
}

/// A thread's turn at a buffer. It waits for none: a signal's handler may come in the midst of it.
struct Turn(&'static AtomicU64);

impl Turn {
    fn take(visit: &Visit, room: &AppendRoom) -> Option<Self> {
        let turn = TURNS.get(visit.open.mount)?.get(room.buffer())?;
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

/// Appends to the file that this process has a buffer for, where the write goes there. Nothing is
/// done elsewhere.
#[inline]
pub fn write(fd: Fd, visit: &Visit, memory: Memory, place: u64) -> Option<isize> {
    let room = visit.mount.slots.append_room(visit.open.lease)?;
    let len = memory.len() as u64;
    if room.offset != place || len == 0 || visit.open.is_durable {
        return None;
    }
    if len <= room.room {
        return append(fd, visit, memory, room);
    }
    // What it holds goes to the file, and there is room again.
    if len <= APPEND_BYTES && ask_daemon(fd, visit, place, len) {
        return append_anew(fd, visit, memory, place);
    }
    None
}

/// Asks for a buffer for a write that the mount is to make otherwise, where writes come in order, and
/// appends to it.
#[cold]
pub fn begin(fd: Fd, visit: &Visit, memory: Memory, place: u64) -> Option<isize> {
    // The file ends there, and this write goes elsewhere: a load writes over its older pages in order.
    if visit.mount.slots.append_room(visit.open.lease).is_some() {
        return None;
    }
    let (seat, len) = (seat(visit), memory.len() as u64);
    let Lease { entry, generation } = visit.open.lease;
    let file = generation << 32 | u64::from(entry) << 2 | visit.open.mount as u64;
    if seat.file.swap(file, Relaxed) != file {
        make_due(&seat.skip, &seat.step);
        seat.end.store(0, Relaxed);
    }
    let is_in_order = seat.end.load(Relaxed) == place && place > 0;
    seat.end.store(place.saturating_add(len), Relaxed);
    let asks = is_in_order
        && (1..=APPEND_BYTES).contains(&len)
        && !visit.open.is_durable
        && is_due(&seat.skip, &seat.step)
        && process::is_home()
        && !has_size_limit();
    if !asks {
        return None;
    }
    seat.appends.store(0, Relaxed);
    if ask_daemon(fd, visit, place, len) { append_anew(fd, visit, memory, place) } else { None }
}

fn append_anew(fd: Fd, visit: &Visit, memory: Memory, place: u64) -> Option<isize> {
    let room = visit.mount.slots.append_room(visit.open.lease)?;
    let fits = room.offset == place && memory.len() as u64 <= room.room;
    if fits { append(fd, visit, memory, room) } else { None }
}

#[cold]
fn ask_daemon(fd: Fd, visit: &Visit, offset: u64, len: u64) -> bool {
    if !visit.is_still(fd) {
        return false;
    }
    let mut bytes = TailRequest { client: visit.mount.slots.client(), offset, len }.encode();
    // SAFETY: the request's number says how many bytes go and come back.
    let result =
        unsafe { syscall!(libc::SYS_ioctl, visit.open.guard, APPEND_IOCTL, bytes.as_mut_ptr()) };
    result == 0 && TailRequest::is_given(&bytes)
}

#[inline]
fn append(fd: Fd, visit: &Visit, memory: Memory, room: AppendRoom) -> Option<isize> {
    let (mount, lease) = (visit.mount, visit.open.lease);
    if mount.reader.state() != State::Serving {
        return None;
    }
    let turn = Turn::take(visit, &room)?;
    // Another thread may have appended before this one's turn, there.
    let is_same = mount.slots.append_room(lease) == Some(room);
    if !is_same || !visit.is_still(fd) || !put(visit, &room, memory) {
        return None;
    }
    mount.slots.touch(lease.entry);
    if !mount.slots.append(&room, memory.len() as u64) {
        return None;
    }
    drop(turn);
    mount.slots.count_done(visit.slot, Direction::Write);
    let appends = &seat(visit).appends;
    let count = appends.load(Relaxed).saturating_add(1);
    appends.store(count, Relaxed);
    if count == APPENDS_ENOUGH {
        make_due(&seat(visit).skip, &seat(visit).step);
    }
    Some(memory.len() as isize)
}

/// Copies the caller's bytes to the buffer; `false` where they are no memory.
fn put(visit: &Visit, room: &AppendRoom, memory: Memory) -> bool {
    let mut behind = 0;
    let mut put = |at: *const u8, len: usize| {
        if at.is_null() {
            return len == 0;
        }
        // SAFETY: the caller's buffer of `len` bytes, as for the call that it made.
        let bytes = unsafe { std::slice::from_raw_parts(at, len) };
        visit.mount.slots.put_appended(room, behind, bytes);
        behind += len as u64;
        true
    };
    match memory {
        Memory::Buffer(at, len) => put(at.cast_const().cast(), len),
        Memory::Vector(parts, count, _) => {
            // SAFETY: the caller's parts, which were looked at before.
            let parts = unsafe { std::slice::from_raw_parts(parts, count) };
            parts.iter().all(|part| put(part.iov_base.cast_const().cast(), part.iov_len))
        }
    }
}

/// Returns where the file ends, where this process appends to it.
pub fn own_end(visit: &Visit) -> Option<u64> {
    let is_serving = visit.mount.reader.state() == State::Serving;
    visit.mount.slots.append_room(visit.open.lease).filter(|_| is_serving).map(|room| room.offset)
}
