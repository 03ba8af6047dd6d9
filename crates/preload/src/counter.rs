//! The daemon's counter of this process's asynchronous requests, one for each mount.
//!
//! What keeps the daemon from taking a process for gone while the kernel is at work for it is
//! mapped, and not in a descriptor: descriptors are closed before the kernel waits for the requests
//! of a process that ends, mappings are taken away after it.

use crate::mount::Mount;
use crate::sys::{self, Fd, syscall};
use crate::{open, own};

const PAGE_BYTES: usize = 4096;

/// Returns the counter; asks the daemon for it the first time.
#[inline]
pub fn of(mount: &Mount) -> Option<Fd> {
    mount.counter().unwrap_or_else(|| ask(mount))
}

#[cold]
fn ask(mount: &Mount) -> Option<Fd> {
    let held = open::lock()?;
    // Another thread may have asked meanwhile.
    if let Some(counter) = mount.counter() {
        return counter;
    }
    let counter = mount.ask_requests(&held).and_then(|[counter, life]| {
        let is_kept = keep(life) && keep(mount.claim());
        sys::close(life);
        if is_kept {
            return own::move_away(counter);
        }
        sys::close(counter);
        None
    });
    mount.set_counter(&held, counter);
    counter
}

/// Keeps an open file for as long as this process has its memory; no child of a fork keeps it.
fn keep(fd: Fd) -> bool {
    // SAFETY: a new mapping takes nothing away from others, and this one allows no access.
    unsafe {
        let flags = libc::MAP_PRIVATE;
        let at = syscall!(libc::SYS_mmap, 0, PAGE_BYTES, libc::PROT_NONE, flags, fd, 0);
        let is_mapped = !(-4095..0).contains(&at);
        is_mapped && syscall!(libc::SYS_madvise, at, PAGE_BYTES, libc::MADV_DONTFORK) == 0
    }
}
