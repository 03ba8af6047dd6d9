//! What the library stands in front of: calls that move data.
//!
//! The signatures and what is promised are the C library's. Each function looks for a lease and
//! makes the call that the program made where there is none.

use std::ffi::{c_int, c_void};

use bedplate_lease::Direction::{self, Read, Write};
use bedplate_trace::{Call, how};

use crate::calls::steady;
use crate::direct;
use crate::open;
use crate::sys::{self, Fd, syscall};
use crate::tail;
use crate::traced::{self, Asked, Began};
use crate::uncached;
use crate::visit::Memory;

/// Exports functions under the C library's names, with its signatures: each name is one line of
/// what it does.
macro_rules! exported {
    ($($name:ident($($argument:ident: $kind:ty),*) = $work:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> isize {
            $work
        }
    )*};
}

type Buf = *mut c_void;
type ConstBuf = *const c_void;
type Parts = *const libc::iovec;

// Where no place is named, the descriptor's. A name with `64` is the same call, of programs that
// were built for large files; one with `_chk` knows the buffer's size.
exported! {
    read(fd: Fd, buf: Buf, count: usize) = buffer(Read, fd, buf, count, None);
    write(fd: Fd, buf: ConstBuf, count: usize) = buffer(Write, fd, buf.cast_mut(), count, None);
    pread(fd: Fd, buf: Buf, count: usize, at: i64) = buffer(Read, fd, buf, count, Some(at));
    pread64(fd: Fd, buf: Buf, count: usize, at: i64) = buffer(Read, fd, buf, count, Some(at));
    pwrite(fd: Fd, buf: ConstBuf, count: usize, at: i64) =
        buffer(Write, fd, buf.cast_mut(), count, Some(at));
    pwrite64(fd: Fd, buf: ConstBuf, count: usize, at: i64) =
        buffer(Write, fd, buf.cast_mut(), count, Some(at));
    __read_chk(fd: Fd, buf: Buf, count: usize, size: usize) =
        buffer(Read, fd, buf, within(size, count), None);
    __pread_chk(fd: Fd, buf: Buf, count: usize, at: i64, size: usize) =
        buffer(Read, fd, buf, within(size, count), Some(at));
    __pread64_chk(fd: Fd, buf: Buf, count: usize, at: i64, size: usize) =
        buffer(Read, fd, buf, within(size, count), Some(at));

    readv(fd: Fd, parts: Parts, count: c_int) = vector(Read, fd, parts, count, None);
    writev(fd: Fd, parts: Parts, count: c_int) = vector(Write, fd, parts, count, None);
    preadv(fd: Fd, parts: Parts, count: c_int, at: i64) = vector(Read, fd, parts, count, Some(at));
    preadv64(fd: Fd, parts: Parts, count: c_int, at: i64) =
        vector(Read, fd, parts, count, Some(at));
    pwritev(fd: Fd, parts: Parts, count: c_int, at: i64) =
        vector(Write, fd, parts, count, Some(at));
    pwritev64(fd: Fd, parts: Parts, count: c_int, at: i64) =
        vector(Write, fd, parts, count, Some(at));
    preadv2(fd: Fd, parts: Parts, count: c_int, at: i64, flags: c_int) =
        vector_with_flags(Read, fd, parts, count, at, flags);
    preadv64v2(fd: Fd, parts: Parts, count: c_int, at: i64, flags: c_int) =
        vector_with_flags(Read, fd, parts, count, at, flags);
    pwritev2(fd: Fd, parts: Parts, count: c_int, at: i64, flags: c_int) =
        vector_with_flags(Write, fd, parts, count, at, flags);
    pwritev64v2(fd: Fd, parts: Parts, count: c_int, at: i64, flags: c_int) =
        vector_with_flags(Write, fd, parts, count, at, flags);
}

/// The check that a compiler adds where it knows a buffer's size; returns the count.
fn within(size: usize, count: usize) -> usize {
    if count > size {
        // SAFETY: ends the program, as the C library does.
        unsafe { sys::__chk_fail() }
    }
    count
}

/// Records a call that moved data, where it is recorded.
#[inline]
fn moved(began: Option<Began>, direction: Direction, asked: Asked, done: isize) -> isize {
    if let Some(began) = began {
        let call = if direction == Read { Call::Read } else { Call::Write };
        steady(|| began.ended(call, &asked, done));
    }
    done
}

/// Moves data between a file and one buffer.
#[inline]
fn buffer(direction: Direction, fd: Fd, buf: Buf, count: usize, at: Option<i64>) -> isize {
    let began = steady(|| traced::begin(fd));
    let done = buffer_moved(direction, fd, buf, count, at);
    let (bytes, memory) = (count as u64, buf as u64);
    moved(began, direction, Asked { at, bytes, memory, ..Asked::default() }, done)
}

#[inline]
fn buffer_moved(direction: Direction, fd: Fd, buf: Buf, count: usize, at: Option<i64>) -> isize {
    let memory = Memory::Buffer(buf, count);
    let done = steady(|| match at {
        Some(at) => direct::io(fd, direction, memory, at),
        None => direct::io_here(fd, direction, memory),
    })
    .or_else(|| steady(|| uncached::io::buffer(fd, direction, buf, count, at)));
    // SAFETY: the program's own call.
    done.unwrap_or_else(|| unsafe {
        match (direction, at) {
            (Read, None) => sys::__read(fd, buf, count),
            (Read, Some(at)) => sys::__pread64(fd, buf, count, at),
            (_, None) => sys::__write(fd, buf, count),
            (_, Some(at)) => sys::__pwrite64(fd, buf, count, at),
        }
    })
}

/// Says what a call with several parts of memory asks for.
fn asked_of(parts: Parts, count: c_int, at: Option<i64>, flags: c_int) -> Asked {
    let count = usize::try_from(count).unwrap_or(0);
    let durable = if flags & (libc::RWF_DSYNC | libc::RWF_SYNC) != 0 { how::DURABLE } else { 0 };
    // SAFETY: the caller's parts, as for the call that it made; read when that has succeeded.
    let (bytes, memory) = unsafe {
        let first = if count == 0 || parts.is_null() { 0 } else { (*parts).iov_base as u64 };
        (traced::bytes_of(parts, count), first)
    };
    Asked { at, bytes, flags: flags as u32, how: how::VECTOR | durable, memory }
}

/// Records such a call. Of one that failed the parts may be no memory: they are not looked at.
#[inline]
fn vector_recorded(
    began: Option<Began>,
    direction: Direction,
    (parts, count, at, flags): (Parts, c_int, Option<i64>, c_int),
    done: isize,
) -> isize {
    if began.is_none() {
        return done;
    }
    let readable = if done < 0 { std::ptr::null() } else { parts };
    moved(began, direction, asked_of(readable, count, at, flags), done)
}

/// Moves data between a file and several parts of memory.
#[inline]
fn vector(direction: Direction, fd: Fd, parts: Parts, count: c_int, at: Option<i64>) -> isize {
    let began = steady(|| traced::begin(fd));
    let done = vector_moved(direction, fd, parts, count, at);
    vector_recorded(began, direction, (parts, count, at, 0), done)
}

fn vector_moved(
    direction: Direction,
    fd: Fd,
    parts: Parts,
    count: c_int,
    at: Option<i64>,
) -> isize {
    let done = steady(|| {
        let memory = direct::gather(fd, parts, count)?;
        match at {
            Some(at) => direct::io(fd, direction, memory, at),
            None => direct::io_here(fd, direction, memory),
        }
    })
    .or_else(|| steady(|| uncached::io::vector(fd, direction, parts, count, at)));
    let number = match (direction, at) {
        (Read, None) => libc::SYS_readv,
        (Read, Some(_)) => libc::SYS_preadv,
        (_, None) => libc::SYS_writev,
        (_, Some(_)) => libc::SYS_pwritev,
    };
    let arguments = [fd as usize, parts as usize, count as usize, at.unwrap_or(0) as usize, 0, 0];
    // SAFETY: the program's own call.
    done.unwrap_or_else(|| unsafe { sys::cancellable(number, arguments) })
}

/// The same with flags. With any of them, or at the descriptor's place (an offset of -1), it is
/// the mount's.
fn vector_with_flags(
    direction: Direction,
    fd: Fd,
    parts: Parts,
    count: c_int,
    at: i64,
    flags: c_int,
) -> isize {
    if at >= 0 && flags == 0 {
        return vector(direction, fd, parts, count, Some(at));
    }
    let began = steady(|| traced::begin(fd));
    let number = if direction == Read { libc::SYS_preadv2 } else { libc::SYS_pwritev2 };
    let arguments = [fd as usize, parts as usize, count as usize, at as usize, 0, flags as usize];
    // SAFETY: the program's own call.
    let done = unsafe { sys::cancellable(number, arguments) };
    let place = (at != -1).then_some(at);
    vector_recorded(began, direction, (parts, count, place, flags), done)
}

/// Advice to read ahead would fill the page cache of a file that goes past it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_fadvise(
    fd: c_int,
    at: i64,
    len: i64,
    advice: c_int,
) -> c_int {
    let is_vain = || uncached::serves(fd) || direct::reads_on_device(fd, at, len);
    if advice == libc::POSIX_FADV_WILLNEED && steady(is_vain) {
        return 0;
    }
    // SAFETY: takes numbers only. The result is the error's number.
    -(unsafe { syscall!(libc::SYS_fadvise64, fd, at, len, advice) }) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_fadvise64(
    fd: c_int,
    at: i64,
    len: i64,
    advice: c_int,
) -> c_int {
    // SAFETY: takes numbers only.
    unsafe { posix_fadvise(fd, at, len, advice) }
}

/// Where a file ends that this process makes grow the kernel has to ask: it is answered here. Of a
/// file that another may make grow the mount is asked by `fstat`, which tells the answer itself:
/// `lseek` goes by the size that the kernel has after it, and the kernel drops answers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn lseek(fd: Fd, offset: i64, whence: i32) -> i64 {
    let at = steady(|| {
        let told = || open::find(fd).and_then(|_| u64::try_from(sys::stat(fd)?.st_size).ok());
        let is_end = whence == libc::SEEK_END;
        let end = if is_end { tail::own_end(fd).or_else(told) } else { None };
        end.and_then(|end| i64::try_from(end).ok()?.checked_add(offset)).filter(|at| *at >= 0)
    });
    let (offset, whence) = at.map_or((offset, whence), |at| (at, libc::SEEK_SET));
    // SAFETY: takes numbers only.
    sys::with_errno(unsafe { syscall!(libc::SYS_lseek, fd, offset, whence) }) as i64
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn lseek64(fd: Fd, offset: i64, whence: i32) -> i64 {
    // SAFETY: the program's own call.
    unsafe { lseek(fd, offset, whence) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn copy_file_range(
    from: Fd,
    from_at: *mut i64,
    to: Fd,
    to_at: *mut i64,
    len: usize,
    flags: u32,
) -> isize {
    let errno = sys::errno();
    steady(|| {
        // The kernel asks where the file ends.
        if open::find(from).is_some() {
            sys::stat(from);
        }
    });
    sys::set_errno(errno);
    let began = steady(|| traced::begin(from));
    let arguments =
        [from as usize, from_at as usize, to as usize, to_at as usize, len, flags as usize];
    // SAFETY: the program's own call.
    let done = unsafe { sys::cancellable(libc::SYS_copy_file_range, arguments) };
    if let Some(began) = began {
        let asked = Asked { bytes: len as u64, at: Some(0), ..Asked::default() };
        steady(|| began.ended(Call::Copy, &asked, done));
    }
    done
}
