//! Appends to a file that rests on the mount: into the buffer that this process has for it
//! (`buffers.rs`).

use bedplate_lease::{APPEND_BYTES, AppendRoom, State};

use crate::buffers::{Turn, ask_daemon, note_write};
use crate::sys::Fd;
use crate::visit::{Memory, Visit};

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
        return anew(fd, visit, memory, place);
    }
    None
}

/// As [`write`], in a buffer that was just asked for.
pub fn anew(fd: Fd, visit: &Visit, memory: Memory, place: u64) -> Option<isize> {
    let room = visit.mount.slots.append_room(visit.open.lease)?;
    let fits = room.offset == place && memory.len() as u64 <= room.room;
    if fits { append(fd, visit, memory, room) } else { None }
}

#[inline]
fn append(fd: Fd, visit: &Visit, memory: Memory, room: AppendRoom) -> Option<isize> {
    let (mount, lease) = (visit.mount, visit.open.lease);
    if mount.reader.state() != State::Serving {
        return None;
    }
    let turn = Turn::take(visit, room.buffer())?;
    // Another thread may have appended before this one's turn, there.
    let is_same = mount.slots.append_room(lease) == Some(room);
    let put = |behind, bytes: &[u8]| mount.slots.put_appended(&room, behind, bytes);
    if !is_same || !visit.is_still(fd) || !memory.each_part(put) {
        return None;
    }
    mount.slots.touch(lease.entry);
    if !mount.slots.append(&room, memory.len() as u64) {
        return None;
    }
    drop(turn);
    note_write(visit);
    Some(memory.len() as isize)
}

/// Returns where the file ends, where this process appends to it.
pub fn own_end(visit: &Visit) -> Option<u64> {
    let is_serving = visit.mount.reader.state() == State::Serving;
    visit.mount.slots.append_room(visit.open.lease).filter(|_| is_serving).map(|room| room.offset)
}
