//! What the library stands in front of: calls that open, close and copy descriptors.
//!
//! The signatures and what is promised are the C library's; arguments behind the last that it
//! declares by name are declared here as numbers, which are passed alike.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

use bedplate_trace::Call;

use crate::sys::{self, syscall};
use crate::traced::{self, Asked};
use crate::{aio, maps, open as opens, table, uncached};

/// Runs the library's own part of a call. A panic there ends the program: nothing may unwind into
/// it but a cancellation, and none happens in here.
#[inline]
pub fn steady<T>(part: impl FnOnce() -> T) -> T {
    struct Aborts;
    impl Drop for Aborts {
        fn drop(&mut self) {
            std::process::abort();
        }
    }
    let aborts = Aborts;
    let result = part();
    std::mem::forget(aborts);
    result
}

/// A call of the program found no number for a descriptor: gives back those of the library's own,
/// and tells whether any were in the way.
fn make_room() -> bool {
    let made = opens::make_room();
    if made {
        uncached::forget_all(0, usize::MAX);
    }
    made
}

fn fail(errno: c_int) -> c_int {
    sys::set_errno(errno);
    -1
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn openat(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    let arguments = [directory as usize, path as usize, flags as usize, mode as usize, 0, 0];
    let began = steady(traced::begin_any);
    // SAFETY: the program's own call.
    let open = || unsafe { sys::cancellable(libc::SYS_openat, arguments) } as c_int;
    let mut fd = open();
    if fd < 0 && steady(make_room) {
        fd = open();
    }
    steady(|| {
        opens::opened(fd, flags);
        uncached::opened(fd, flags);
        traced::opened(began, fd, path, flags);
    });
    fd
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the program's own call.
    unsafe { openat(libc::AT_FDCWD, path, flags, mode) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the program's own call.
    unsafe { openat(libc::AT_FDCWD, path, flags, mode) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn openat64(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    // SAFETY: the program's own call.
    unsafe { openat(directory, path, flags, mode) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the program's own call.
    unsafe { openat(libc::AT_FDCWD, path, flags, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the program's own call.
    unsafe { openat(libc::AT_FDCWD, path, flags, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __openat_2(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: the program's own call.
    unsafe { openat(directory, path, flags, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __openat64_2(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: the program's own call.
    unsafe { openat(directory, path, flags, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn creat(path: *const c_char, mode: c_uint) -> c_int {
    let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
    // SAFETY: the program's own call.
    unsafe { openat(libc::AT_FDCWD, path, flags, mode) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn creat64(path: *const c_char, mode: c_uint) -> c_int {
    // SAFETY: the program's own call.
    unsafe { creat(path, mode) }
}

/// Says before a descriptor is closed whether it is the program's to close.
fn may_close(fd: c_int) -> bool {
    if table::is_own(fd) {
        return false;
    }
    if !matches!(table::find(fd), table::Found::Nothing) {
        opens::closing(fd);
    }
    uncached::forget(fd);
    true
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if !steady(|| may_close(fd)) {
        return fail(libc::EBADF);
    }
    let began = steady(|| traced::begin_close(fd));
    // SAFETY: the program's own call.
    let done = unsafe { sys::__close(fd) };
    if let Some(began) = began {
        steady(|| began.ended(Call::Close, &Asked::default(), done as isize));
    }
    done
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOEXEC: c_int = 4;
    steady(|| {
        if flags & CLOEXEC == 0 && first <= last {
            opens::closing_all(first as usize, last as usize);
            uncached::forget_all(first as usize, last as usize);
            traced::closed_all(first as usize, last as usize);
        }
        close_between(first, last, flags)
    })
}

/// Closes a range but for the library's own numbers in it.
fn close_between(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let mut from = first;
    while let Some(own) = table::next_own(from as usize).filter(|&own| own <= last as usize) {
        let own = own as c_uint;
        // SAFETY: takes numbers only.
        let part = || unsafe { syscall!(libc::SYS_close_range, from, own - 1, flags) };
        if own > from && sys::with_errno(part()) != 0 {
            return -1;
        }
        if own == last {
            return 0;
        }
        from = own + 1;
    }
    // SAFETY: takes numbers only.
    sys::with_errno(unsafe { syscall!(libc::SYS_close_range, from, last, flags) }) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    // SAFETY: takes numbers only.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    steady(|| {
        if table::is_own(fd) {
            return fail(libc::EBADF);
        }
        // SAFETY: takes a number only.
        copied(fd, || unsafe { syscall!(libc::SYS_dup, fd) })
    })
}

/// Carries a copy out: `copy` asks the kernel for it.
fn copied(from: c_int, copy: impl Fn() -> isize) -> c_int {
    let mut to = sys::with_errno(copy()) as c_int;
    if to < 0 && make_room() {
        to = sys::with_errno(copy()) as c_int;
    }
    opens::copied(from, to);
    uncached::copied(from, to);
    traced::copied(from, to);
    to
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(from: c_int, to: c_int) -> c_int {
    steady(|| {
        if from != to {
            return copy_to(from, to, 0);
        }
        let is_open = !table::is_own(from) && sys::fcntl(from, libc::F_GETFD, 0) >= 0;
        if is_open { to } else { fail(libc::EBADF) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    steady(|| copy_to(from, to, flags))
}

/// Copies to a number that the program chose. One of the library's own is as one that another
/// thread is just opening.
fn copy_to(from: c_int, to: c_int, flags: c_int) -> c_int {
    if table::is_own(from) {
        return fail(libc::EBADF);
    }
    if table::is_own(to) {
        return fail(libc::EBUSY);
    }
    let is_open = from != to && sys::fcntl(from, libc::F_GETFD, 0) >= 0;
    if is_open && !matches!(table::find(to), table::Found::Nothing) {
        opens::closing(to);
    }
    if is_open {
        uncached::forget(to);
    }
    // SAFETY: takes numbers only.
    copied(from, || unsafe { syscall!(libc::SYS_dup3, from, to, flags) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    let done = steady(|| {
        if table::is_own(fd) {
            return Some(fail(libc::EBADF));
        }
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                Some(copied(fd, || sys::fcntl(fd, command, argument)))
            }
            libc::F_SETFL if argument as c_int & libc::O_APPEND != 0 => {
                opens::drop_file(fd);
                None
            }
            _ => None,
        }
    });
    // SAFETY: the program's own call.
    done.unwrap_or_else(|| unsafe { sys::__fcntl(fd, command, argument) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the program's own call.
    unsafe { fcntl(fd, command, argument) }
}

/// Streams read and write within the C library, and close there.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut c_void {
    steady(|| {
        if !matches!(table::find(fd), table::Found::Nothing) {
            opens::closing(fd);
        }
        uncached::forget(fd);
        traced::closed(fd);
    });
    // SAFETY: the program's own call.
    unsafe { sys::_IO_fdopen(fd, mode) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mmap(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let began = if flags & libc::MAP_ANONYMOUS == 0 { steady(|| traced::begin(fd)) } else { None };
    let is_file = flags & libc::MAP_ANONYMOUS == 0
        && steady(|| {
            uncached::mapped(fd);
            opens::suspend(fd)
        });
    // SAFETY: the program's own call.
    let mapped = unsafe { syscall!(libc::SYS_mmap, at, len, protection, flags, fd, offset) };
    if is_file && !(-4095..0).contains(&mapped) {
        maps::note(mapped as usize, len);
    }
    let mapped = sys::with_errno(mapped);
    if let Some(began) = began {
        let (bytes, flags) = (len as u64, flags as u32);
        let asked = Asked { at: Some(offset), bytes, flags, ..Asked::default() };
        let done = if mapped == -1 { -1 } else { 0 };
        steady(|| began.ended(Call::Map, &asked, done));
    }
    mapped as *mut c_void
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mmap64(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the program's own call.
    unsafe { mmap(at, len, protection, flags, fd, offset) }
}

/// Calls by number, of which those on descriptors are as above, and those of asynchronous requests
/// the library's own.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: the program's own call.
    unsafe {
        let result = match number {
            libc::SYS_close => close(a as c_int),
            libc::SYS_close_range => close_range(a as c_uint, b as c_uint, c as c_int),
            libc::SYS_dup => dup(a as c_int),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => dup2(a as c_int, b as c_int),
            libc::SYS_dup3 => dup3(a as c_int, b as c_int, c as c_int),
            _ => {
                let all = [a, b, c, d, e, f];
                let done = steady(|| aio::call(number, all));
                let done = sys::with_errno(done.unwrap_or_else(|| sys::call6(number, all)));
                if number == libc::SYS_io_uring_setup
                    && let Some(began) = steady(traced::begin_any)
                {
                    steady(|| began.ended(Call::Ring, &Asked::default(), done));
                }
                return done as c_long;
            }
        };
        c_long::from(result)
    }
}
