//! What the library stands in front of: calls that move data.
//!
//! The signatures and what is promised are the C library's. Each function looks for a lease and
//! makes the call that the program made where there is none.

use std::ffi::{c_int, c_void};

use bedplate_lease::Direction::{Read, Write};

use crate::calls::steady;
use crate::direct::{self, Memory};
use crate::sys;

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn read(fd: c_int, buf: *mut c_void, count: usize) -> isize {
    match steady(|| direct::io_here(fd, Read, Memory::Buffer(buf, count))) {
        Some(done) => done,
        // SAFETY: the program's own call.
        None => unsafe { sys::__read(fd, buf, count) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn write(fd: c_int, buf: *const c_void, count: usize) -> isize {
    match steady(|| direct::io_here(fd, Write, Memory::Buffer(buf.cast_mut(), count))) {
        Some(done) => done,
        // SAFETY: the program's own call.
        None => unsafe { sys::__write(fd, buf, count) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pread(
    fd: c_int,
    buf: *mut c_void,
    count: usize,
    offset: i64,
) -> isize {
    match steady(|| direct::io(fd, Read, Memory::Buffer(buf, count), offset)) {
        Some(done) => done,
        // SAFETY: the program's own call.
        None => unsafe { sys::__pread64(fd, buf, count, offset) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwrite(
    fd: c_int,
    buf: *const c_void,
    count: usize,
    offset: i64,
) -> isize {
    match steady(|| direct::io(fd, Write, Memory::Buffer(buf.cast_mut(), count), offset)) {
        Some(done) => done,
        // SAFETY: the program's own call.
        None => unsafe { sys::__pwrite64(fd, buf, count, offset) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pread64(
    fd: c_int,
    buf: *mut c_void,
    count: usize,
    offset: i64,
) -> isize {
    // SAFETY: the program's own call.
    unsafe { pread(fd, buf, count, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwrite64(
    fd: c_int,
    buf: *const c_void,
    count: usize,
    offset: i64,
) -> isize {
    // SAFETY: the program's own call.
    unsafe { pwrite(fd, buf, count, offset) }
}

/// The checks that a compiler adds where it knows a buffer's size.
fn check_size(count: usize, size: usize) {
    if count > size {
        // SAFETY: ends the program, as the C library does.
        unsafe { sys::__chk_fail() }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    buf: *mut c_void,
    count: usize,
    size: usize,
) -> isize {
    check_size(count, size);
    // SAFETY: the program's own call.
    unsafe { read(fd, buf, count) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __pread_chk(
    fd: c_int,
    buf: *mut c_void,
    count: usize,
    offset: i64,
    size: usize,
) -> isize {
    check_size(count, size);
    // SAFETY: the program's own call.
    unsafe { pread(fd, buf, count, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __pread64_chk(
    fd: c_int,
    buf: *mut c_void,
    count: usize,
    offset: i64,
    size: usize,
) -> isize {
    check_size(count, size);
    // SAFETY: the program's own call.
    unsafe { pread(fd, buf, count, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn readv(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize {
    let done = steady(|| direct::io_here(fd, Read, direct::gather(fd, parts, count)?));
    // SAFETY: the program's own call.
    done.unwrap_or_else(|| unsafe {
        sys::cancellable(libc::SYS_readv, [fd as usize, parts as usize, count as usize, 0, 0, 0])
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn writev(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
) -> isize {
    let done = steady(|| direct::io_here(fd, Write, direct::gather(fd, parts, count)?));
    // SAFETY: the program's own call.
    done.unwrap_or_else(|| unsafe {
        sys::cancellable(libc::SYS_writev, [fd as usize, parts as usize, count as usize, 0, 0, 0])
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn preadv(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: i64,
) -> isize {
    let done = steady(|| direct::io(fd, Read, direct::gather(fd, parts, count)?, offset));
    let (fd, parts, count) = (fd as usize, parts as usize, count as usize);
    // SAFETY: the program's own call.
    done.unwrap_or_else(|| unsafe {
        sys::cancellable(libc::SYS_preadv, [fd, parts, count, offset as usize, 0, 0])
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwritev(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: i64,
) -> isize {
    let done = steady(|| direct::io(fd, Write, direct::gather(fd, parts, count)?, offset));
    let (fd, parts, count) = (fd as usize, parts as usize, count as usize);
    // SAFETY: the program's own call.
    done.unwrap_or_else(|| unsafe {
        sys::cancellable(libc::SYS_pwritev, [fd, parts, count, offset as usize, 0, 0])
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn preadv64(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: i64,
) -> isize {
    // SAFETY: the program's own call.
    unsafe { preadv(fd, parts, count, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwritev64(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: i64,
) -> isize {
    // SAFETY: the program's own call.
    unsafe { pwritev(fd, parts, count, offset) }
}

/// With flags, or where the descriptor stands: the mount's.
fn is_plain(offset: i64, flags: c_int) -> bool {
    offset >= 0 && flags == 0
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn preadv2(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> isize {
    if is_plain(offset, flags) {
        // SAFETY: the program's own call.
        return unsafe { preadv(fd, parts, count, offset) };
    }
    let (fd, parts, count) = (fd as usize, parts as usize, count as usize);
    let arguments = [fd, parts, count, offset as usize, 0, flags as usize];
    // SAFETY: the program's own call.
    unsafe { sys::cancellable(libc::SYS_preadv2, arguments) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwritev2(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> isize {
    if is_plain(offset, flags) {
        // SAFETY: the program's own call.
        return unsafe { pwritev(fd, parts, count, offset) };
    }
    let (fd, parts, count) = (fd as usize, parts as usize, count as usize);
    let arguments = [fd, parts, count, offset as usize, 0, flags as usize];
    // SAFETY: the program's own call.
    unsafe { sys::cancellable(libc::SYS_pwritev2, arguments) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn preadv64v2(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> isize {
    // SAFETY: the program's own call.
    unsafe { preadv2(fd, parts, count, offset, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwritev64v2(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> isize {
    // SAFETY: the program's own call.
    unsafe { pwritev2(fd, parts, count, offset, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fdatasync(fd: c_int) -> c_int {
    let done = steady(|| direct::sync(fd));
    // SAFETY: takes a number only.
    done.unwrap_or_else(|| unsafe {
        sys::cancellable(libc::SYS_fdatasync, [fd as usize, 0, 0, 0, 0, 0])
    }) as c_int
}

/// More than data: times that the daemon knows better. The mount's, always.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fsync(fd: c_int) -> c_int {
    steady(|| direct::count_full_sync(fd));
    // SAFETY: takes a number only.
    unsafe { sys::cancellable(libc::SYS_fsync, [fd as usize, 0, 0, 0, 0, 0]) as c_int }
}
