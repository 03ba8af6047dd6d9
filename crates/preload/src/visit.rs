//! A call's visit to a file under its lease: the slot that is set for it, and the bytes that are
//! moved.

use std::ffi::c_void;

use bedplate_lease::{Direction, Fallback};

use crate::maps;
use crate::mount::{self, Mount};
use crate::open;
use crate::sys::{self, Fd, syscall};
use crate::table::Open;
use crate::thread;

/// Memory of the caller's.
#[derive(Clone, Copy)]
pub enum Memory {
    /// One buffer.
    Buffer(*mut c_void, usize),
    /// Several, which are aligned.
    Vector(*const libc::iovec, usize, usize),
}

impl Memory {
    pub fn len(self) -> usize {
        match self {
            Self::Buffer(_, len) | Self::Vector(_, _, len) => len,
        }
    }

    /// Shows the caller's bytes, part by part, with how many were before; `false` where one is no
    /// memory, and what was shown is to be forgotten.
    pub fn each_part(self, mut show: impl FnMut(u64, &[u8])) -> bool {
        let mut behind = 0;
        let mut part = |at: *const u8, len: usize| {
            if at.is_null() {
                return len == 0;
            }
            // SAFETY: the caller's buffer of `len` bytes, as for the call that it made.
            show(behind, unsafe { std::slice::from_raw_parts(at, len) });
            behind += len as u64;
            true
        };
        match self {
            Self::Buffer(at, len) => part(at.cast_const().cast(), len),
            Self::Vector(parts, count, _) => {
                // SAFETY: the caller's parts, which were looked at before.
                let parts = unsafe { std::slice::from_raw_parts(parts, count) };
                parts.iter().all(|it| part(it.iov_base.cast_const().cast(), it.iov_len))
            }
        }
    }

    /// Tells whether it may be a mapping of a file: the fault of a page would ask the mount, while
    /// the mount waits for the slot.
    pub fn is_mapped(self) -> bool {
        match self {
            Self::Buffer(at, len) => maps::may_hold(at as usize, len),
            Self::Vector(..) => maps::may_hold(0, usize::MAX),
        }
    }
}

/// An open file with its mount, and the slot of this thread, which is set.
pub struct Visit {
    pub open: Open,
    pub mount: &'static Mount,
    pub slot: usize,
}

/// Finds a lease for the descriptor and the thread's slot.
pub fn enter(fd: Fd) -> Option<Visit> {
    let open = open::find(fd)?;
    let mount = mount::get(open.mount)?;
    let Some(slot) = thread::slot(open.mount, mount) else {
        mount.slots.count_unserved();
        return None;
    };
    let now = sys::stack_pointer();
    if mount.slots.is_set(slot) && !was_left(mount, slot, now) {
        mount.slots.count_unserved();
        return None;
    }
    mount.slots.note_frame(slot, now);
    Some(Visit { open, mount, slot })
}

/// Tells whether the call that set the slot was left by `siglongjmp`: this one is not below it on
/// the stack. A call on a signal's own stack cannot tell.
#[cold]
fn was_left(mount: &Mount, slot: usize, now: u64) -> bool {
    const STACK_BYTES_MAX: u64 = 1 << 23;
    let was = mount.slots.frame(slot);
    let is_left = now >= was && now - was < STACK_BYTES_MAX && !sys::is_on_signal_stack();
    if is_left {
        mount.slots.leave(slot);
    }
    is_left
}

impl Visit {
    /// Compares the descriptor with what it was (I-LSE-4).
    pub fn is_still(&self, fd: Fd) -> bool {
        if self.mount.has_query {
            return sys::is_same(fd, self.open.guard) == Some(true);
        }
        let flags = |fd| sys::fcntl(fd, libc::F_GETFL, 0);
        let (now, was) = (sys::identity(fd), sys::identity(self.open.guard));
        now.is_some() && now == was && flags(fd) == flags(self.open.guard)
    }

    /// Ends a visit that came to nothing.
    pub fn give_up<T>(&self, fallback: Fallback) -> Option<T> {
        self.mount.slots.leave(self.slot);
        self.mount.slots.count_fallback(self.slot, fallback);
        None
    }

    /// As above, of a descriptor that is another file's.
    #[cold]
    pub fn lost<T>(&self, fd: Fd) -> Option<T> {
        self.give_up::<()>(Fallback::Other);
        open::closing(fd);
        None
    }
}

/// Moves the bytes; nothing where memory is not aligned and too long to be copied.
pub fn transfer(visit: &Visit, direction: Direction, memory: Memory, at: u64) -> Option<isize> {
    let (mount, device) = (visit.mount, visit.mount.device());
    match memory {
        Memory::Vector(parts, count, _) => {
            let number = match direction {
                Direction::Read => libc::SYS_preadv,
                _ => libc::SYS_pwritev,
            };
            // SAFETY: the caller's parts, as for the call that it made.
            Some(unsafe { syscall!(number, device, parts, count, at, 0) })
        }
        Memory::Buffer(buf, len) if (buf as u64).is_multiple_of(mount.memory_alignment) => {
            Some(whole(device, direction, buf, len, at))
        }
        Memory::Buffer(buf, len) => {
            if len > thread::BOUNCE_BYTES {
                return None;
            }
            let bounce = thread::bounce(visit.open.mount, visit.slot)?.cast::<c_void>();
            if direction == Direction::Write {
                // SAFETY: the caller's buffer of `len` bytes; the slot's memory is at least as long
                // and of this thread while the slot is set.
                unsafe { std::ptr::copy_nonoverlapping(buf.cast_const(), bounce, len) };
            }
            let done = whole(device, direction, bounce, len, at);
            if direction == Direction::Read && done == len as isize {
                // SAFETY: as above.
                unsafe { std::ptr::copy_nonoverlapping(bounce.cast_const(), buf, len) };
            }
            Some(done)
        }
    }
}

pub fn whole(device: Fd, direction: Direction, buf: *mut c_void, len: usize, at: u64) -> isize {
    let number = match direction {
        Direction::Read => libc::SYS_pread64,
        _ => libc::SYS_pwrite64,
    };
    // SAFETY: the caller's buffer, as for the call that it made, or the slot's memory.
    unsafe { syscall!(number, device, buf, len, at) }
}
