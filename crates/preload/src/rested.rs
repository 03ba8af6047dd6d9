//! Writes to a file that rests on the mount, or is about to: to the buffer that this process has for it.

use bedplate_lease::APPEND_BYTES;

use crate::buffers::{ask_daemon, is_time};
use crate::sys::Fd;
use crate::visit::{Memory, Visit};
use crate::{appends, overwrites};

/// Makes a write in the buffer for the file, if there is one and it goes there. Nothing is done
/// elsewhere.
#[inline]
pub fn write(fd: Fd, visit: &Visit, memory: Memory, place: u64) -> Option<isize> {
    appends::write(fd, visit, memory, place)
        .or_else(|| overwrites::write(fd, visit, memory, place))
        .or_else(|| overwrites::go_on(fd, visit, memory, place))
}

/// Asks for a buffer for a write that the mount is to make otherwise, where writes come in order, and
/// makes it there.
#[cold]
pub fn begin(fd: Fd, visit: &Visit, memory: Memory, place: u64) -> Option<isize> {
    let len = memory.len() as u64;
    // The file ends elsewhere.
    let writes_over = visit.mount.slots.append_room(visit.open.lease).is_some();
    let is_fit = || len <= APPEND_BYTES && (!writes_over || overwrites::is_fit(visit, place, len));
    if !is_time(visit, place, len, is_fit) || !ask_daemon(fd, visit, place, len) {
        return None;
    }
    appends::anew(fd, visit, memory, place).or_else(|| overwrites::anew(fd, visit, memory, place))
}
