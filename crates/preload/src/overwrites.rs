//! Overwrites of a file that rests on the mount: into the buffer for what is appended to it
//! (`buffers.rs`), each with its place.
//!
//! A load writes its pages a second time, in order, and a log goes through blocks that it has had
//! before. Neither is synced before much of that is written: each page would be a write of the device,
//! or a request, for which the program waits. A file that is handed out, and that a thread writes over
//! so, is made to rest.

use std::cell::Cell;

use bedplate_lease::{OVERWRITE_BYTES, OVERWRITE_UNIT, OverwriteRoom, State};

use crate::buffers::{Turn, ask_daemon, may_ask, name_of, note_end, note_write};
use crate::sys::Fd;
use crate::visit::{Memory, Visit};

/// So many writes of the device, one after the other and without a sync, and the next ones go to a
/// buffer if they may; and how many it takes at most after that was refused.
const WRITES: u32 = 32;
const WRITES_MAX: u32 = 1 << 14;

/// From how many bytes on a write is large enough by itself.
const LARGE_BYTES: u64 = 64 << 10;

/// Writes of the device that a thread makes one after the other.
#[derive(Clone, Copy)]
struct Stream {
    file: u64,
    end: u64,
    writes: u32,
    /// How many there are to be before a buffer is asked for.
    wanted: u32,
}

thread_local! {
    static STREAM: Cell<Stream> =
        const { Cell::new(Stream { file: 0, end: 0, writes: 0, wanted: WRITES }) };
}

/// Notes a write of the device.
#[inline]
pub fn wrote(visit: &Visit, place: u64, len: u64) {
    let (file, was) = (name_of(visit), STREAM.get());
    let goes_on = was.file == file && was.end == place && len < LARGE_BYTES;
    let writes = if goes_on { was.writes.saturating_add(1) } else { 0 };
    STREAM.set(Stream { file, end: place.saturating_add(len), writes, ..was });
}

/// Notes a sync: writes count anew from here on.
pub fn synced(visit: &Visit) {
    let was = STREAM.get();
    if was.file == name_of(visit) {
        STREAM.set(Stream { writes: 0, ..was });
    }
}

/// Makes a write in a buffer that is asked for, where it goes on with many of the device.
#[inline]
pub fn go_on(fd: Fd, visit: &Visit, memory: Memory, place: u64) -> Option<isize> {
    let was = STREAM.get();
    let is_long = was.writes >= was.wanted && was.end == place && was.file == name_of(visit);
    if is_long { begin(fd, visit, memory, place, was) } else { None }
}

#[cold]
fn begin(fd: Fd, visit: &Visit, memory: Memory, place: u64, was: Stream) -> Option<isize> {
    let asks = is_fit(visit, place, memory.len() as u64) && may_ask(visit);
    let is_given = asks && ask_daemon(fd, visit, place, memory.len() as u64);
    let done = if is_given { anew(fd, visit, memory, place) } else { None };
    let wanted = if done.is_some() { WRITES } else { (was.wanted * 2).min(WRITES_MAX) };
    STREAM.set(Stream { writes: 0, wanted, ..was });
    done
}

/// Returns whether a write is one that may be an overwrite, as far as its place and length go.
pub fn is_fit(visit: &Visit, place: u64, len: u64) -> bool {
    let unit = visit.mount.reader.geometry().alignment_bytes.max(OVERWRITE_UNIT);
    (place | len).is_multiple_of(unit) && (1..LARGE_BYTES).contains(&len)
}

/// Writes over bytes of the file that this process has a buffer for. Nothing is done elsewhere.
#[inline]
pub fn write(fd: Fd, visit: &Visit, memory: Memory, place: u64) -> Option<isize> {
    let room = visit.mount.slots.overwrite_room(visit.open.lease)?;
    let len = memory.len() as u64;
    if !room.allows(place, len) || !is_fit(visit, place, len) || visit.open.is_durable {
        return None;
    }
    if len <= room.room {
        return overwrite(fd, visit, (memory, place), room);
    }
    // What it holds goes to the file, and there is room again.
    if ask_daemon(fd, visit, place, len) { anew(fd, visit, memory, place) } else { None }
}

/// As [`write`], in a buffer that was just asked for.
pub fn anew(fd: Fd, visit: &Visit, memory: Memory, place: u64) -> Option<isize> {
    let room = visit.mount.slots.overwrite_room(visit.open.lease)?;
    let len = memory.len() as u64;
    let fits = len <= room.room && room.allows(place, len) && is_fit(visit, place, len);
    if fits { overwrite(fd, visit, (memory, place), room) } else { None }
}

#[inline]
fn overwrite(
    fd: Fd,
    visit: &Visit,
    (memory, place): (Memory, u64),
    room: OverwriteRoom,
) -> Option<isize> {
    let (mount, lease, len) = (visit.mount, visit.open.lease, memory.len() as u64);
    debug_assert!(len < OVERWRITE_BYTES, "an overwrite fits in an empty buffer: {len} bytes");
    if mount.reader.state() != State::Serving {
        return None;
    }
    let turn = Turn::take(visit, room.buffer())?;
    // Another thread may have written before this one's turn.
    let is_same = mount.slots.overwrite_room(lease) == Some(room);
    let put = |behind, bytes: &[u8]| mount.slots.put_overwrite(&room, behind, bytes);
    if !is_same || !visit.is_still(fd) || !memory.each_part(put) {
        return None;
    }
    mount.slots.touch(lease.entry);
    if !mount.slots.overwrite(&room, place, len) {
        return None;
    }
    drop(turn);
    note_write(visit);
    note_end(visit, place + len);
    Some(len as isize)
}
