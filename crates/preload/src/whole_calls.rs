//! What the library stands in front of: calls on files as a whole, syncs and sizes.
//!
//! The signatures and what is promised are the C library's.

use std::ffi::c_int;

use bedplate_trace::Call;

use crate::calls::steady;
use crate::direct;
use crate::sys::{self, Fd};
use crate::traced::{self, Asked};
use crate::uncached;

/// Makes a call on a descriptor and records it.
#[inline]
fn recorded(call: Call, fd: Fd, asked: &Asked, make: impl FnOnce() -> isize) -> c_int {
    let began = steady(|| traced::begin(fd));
    let done = make();
    if let Some(began) = began {
        steady(|| began.ended(call, asked, done));
    }
    done as c_int
}

/// What a call on a part of a file is asked for.
fn part(at: i64, len: i64, flags: u32) -> Asked {
    Asked { at: Some(at), bytes: len.max(0) as u64, flags, ..Asked::default() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fdatasync(fd: c_int) -> c_int {
    recorded(Call::DataSync, fd, &Asked::default(), || {
        let done = steady(|| direct::sync(fd));
        // SAFETY: takes a number only.
        let done = done.unwrap_or_else(|| unsafe {
            sys::cancellable(libc::SYS_fdatasync, [fd as usize, 0, 0, 0, 0, 0])
        });
        steady(|| uncached::synced(fd));
        done
    })
}

/// More than data: times that the daemon knows better. The mount's, always.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fsync(fd: c_int) -> c_int {
    recorded(Call::Sync, fd, &Asked::default(), || {
        steady(|| direct::count_full_sync(fd));
        // SAFETY: takes a number only.
        let done = unsafe { sys::cancellable(libc::SYS_fsync, [fd as usize, 0, 0, 0, 0, 0]) };
        steady(|| uncached::synced(fd));
        done
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn syncfs(fd: c_int) -> c_int {
    // SAFETY: takes a number only.
    recorded(Call::FsSync, fd, &Asked::default(), || unsafe {
        sys::with_errno(sys::call6(libc::SYS_syncfs, [fd as usize, 0, 0, 0, 0, 0]))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sync_file_range(fd: c_int, at: i64, len: i64, flags: u32) -> c_int {
    let arguments = [fd as usize, at as usize, len as usize, flags as usize, 0, 0];
    // SAFETY: takes numbers only.
    recorded(Call::RangeSync, fd, &part(at, len, flags), || unsafe {
        sys::cancellable(libc::SYS_sync_file_range, arguments)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ftruncate(fd: c_int, len: i64) -> c_int {
    // SAFETY: takes numbers only.
    recorded(Call::Truncate, fd, &part(len, 0, 0), || unsafe {
        sys::with_errno(sys::call6(libc::SYS_ftruncate, [fd as usize, len as usize, 0, 0, 0, 0]))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ftruncate64(fd: c_int, len: i64) -> c_int {
    // SAFETY: the program's own call.
    unsafe { ftruncate(fd, len) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fallocate(fd: c_int, mode: c_int, at: i64, len: i64) -> c_int {
    let arguments = [fd as usize, mode as usize, at as usize, len as usize, 0, 0];
    // SAFETY: takes numbers only.
    recorded(Call::Allocate, fd, &part(at, len, mode as u32), || unsafe {
        sys::cancellable(libc::SYS_fallocate, arguments)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fallocate64(fd: c_int, mode: c_int, at: i64, len: i64) -> c_int {
    // SAFETY: the program's own call.
    unsafe { fallocate(fd, mode, at, len) }
}
