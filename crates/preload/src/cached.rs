//! Reads out of the daemon's cache, without a request: of files in `concurrent+cache`.
//!
//! No slot is set, and nothing waits for such a read: what was copied is used if nothing of it
//! changed meanwhile (I-LSE-10), and the file may still be read so. Else the mount is asked, which
//! has the pages in its cache then.

use bedplate_lease::Seen;

use crate::shared::{Shared, copy_out};
use crate::sys::Fd;
use crate::visit::{Memory, Visit};

/// Pages of one read at most: a longer one is the mount's.
const PAGES_MAX: usize = 65;

/// Reads all that is asked for, or nothing.
#[inline]
pub fn read(fd: Fd, visit: &Visit, memory: Memory, place: u64) -> Option<isize> {
    let cache = visit.mount.cache.as_ref()?;
    let Visit { open, mount, slot } = visit;
    let file = mount.reader.cached_file(open.lease)?;
    let (len, page_bytes) = (memory.len(), cache.pages.shape().page_bytes);
    let end = place.checked_add(len as u64).filter(|_| len > 0)?;
    let mut all = [Seen::default(); PAGES_MAX];
    let pages = place / page_bytes as u64..end.div_ceil(page_bytes as u64);
    let seen = all.get_mut(..usize::try_from(pages.end - pages.start).ok()?)?;
    for (seen, page) in seen.iter_mut().zip(pages) {
        *seen = cache.pages.find(file.file, page)?;
    }
    if !visit.is_still(fd) {
        return None;
    }
    let mut into = Into::new(memory);
    for (i, seen) in seen.iter().enumerate() {
        let start = if i == 0 { (place % page_bytes as u64) as usize } else { 0 };
        let end = page_bytes.min(start + len - into.done);
        let at = seen.frame as usize * page_bytes + start;
        into.copy(cache.frames, at, end - start);
        cache.pages.note_use(seen, start, end);
    }
    let is_whole = seen.iter().all(|seen| cache.pages.is_still(seen));
    if !is_whole || !mount.reader.is_still_cached(open.lease, &file) {
        return None;
    }
    mount.slots.count_hit(*slot);
    Some(len as isize)
}

/// The caller's memory as it fills.
struct Into {
    memory: Memory,
    done: usize,
    /// Of several parts: the one that is filled, and how much of it is.
    part: usize,
    within: usize,
}

impl Into {
    fn new(memory: Memory) -> Self {
        Self { memory, done: 0, part: 0, within: 0 }
    }

    /// Copies bytes of the frames behind those that were copied.
    fn copy(&mut self, frames: Shared, mut at: usize, len: usize) {
        let end = at + len;
        while at < end {
            let (to, room) = self.room();
            let now = room.min(end - at);
            // SAFETY: the caller's memory, as for the call that it made, of `room` bytes from here.
            unsafe { copy_out(frames, at, to, now) };
            at += now;
            self.done += now;
            self.within += now;
        }
    }

    fn room(&mut self) -> (*mut u8, usize) {
        let parts = match self.memory {
            Memory::Buffer(start, len) => {
                return (start.cast::<u8>().wrapping_add(self.done), len - self.done);
            }
            Memory::Vector(parts, ..) => parts,
        };
        loop {
            // SAFETY: the caller's parts, as for the call that it made; their lengths add up to
            // that of the memory, of which some is left.
            let part = unsafe { &*parts.add(self.part) };
            if self.within < part.iov_len {
                let at = part.iov_base.cast::<u8>().wrapping_add(self.within);
                return (at, part.iov_len - self.within);
            }
            self.part += 1;
            self.within = 0;
        }
    }
}
