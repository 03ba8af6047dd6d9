//! Reads and writes past the page cache. `None` is: make the call as the program does.

use std::ffi::c_void;

use bedplate_lease::Direction;

use super::bounce::{self, Bounce};
use super::table::{self, Uncached};
use super::{Count, count, forget};
use crate::sys::{self, Fd, syscall};

/// A write in one piece at the least, where its middle is whole blocks and its ends are not.
const MIDDLE_BYTES_MIN: u64 = 64 << 10;
/// What the page cache holds: the unit in which the two ways are kept apart.
const PAGE: u64 = 4096;

/// Reads or writes at a place, or where the descriptor stands.
#[inline]
pub fn buffer(
    fd: Fd,
    direction: Direction,
    buf: *mut c_void,
    len: usize,
    at: Option<i64>,
) -> Option<isize> {
    let file = table::find(fd)?;
    let part = libc::iovec { iov_base: buf, iov_len: len };
    moved(fd, &file, direction, &[part], at)
}

/// The same with several parts of memory.
pub fn vector(
    fd: Fd,
    direction: Direction,
    parts: *const libc::iovec,
    count: i32,
    at: Option<i64>,
) -> Option<isize> {
    const PARTS_MAX: i32 = 1024;
    let file = table::find(fd)?;
    if parts.is_null() || !(1..=PARTS_MAX).contains(&count) {
        return None;
    }
    // SAFETY: the caller's parts, as for the call that it made.
    let parts = unsafe { std::slice::from_raw_parts(parts, count as usize) };
    moved(fd, &file, direction, parts, at)
}

#[cold]
fn moved(
    fd: Fd,
    file: &Uncached,
    direction: Direction,
    parts: &[libc::iovec],
    at: Option<i64>,
) -> Option<isize> {
    let Some(size) = file.size(fd) else {
        forget(fd);
        return None;
    };
    let is_write = direction == Direction::Write;
    let is_served = if is_write { file.may_write } else { file.may_read };
    let len = parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.iov_len))?;
    if !is_served || len == 0 || isize::try_from(len).is_err() {
        return None;
    }
    // Asked each time: any descriptor of the open file may have changed it, in any process.
    if is_write && sys::fcntl(fd, libc::F_GETFL, 0) as i32 & libc::O_APPEND != 0 {
        // The kernel finds the end.
        table::note_odd(fd);
        count(Count::Odd);
        return None;
    }
    let errno = sys::errno();
    let call = Call { fd, file, direction, parts, size };
    let done = match at {
        Some(at) => call.all_parts(u64::try_from(at).ok()?),
        None => call.here(len),
    };
    sys::set_errno(errno);
    match done {
        Some(Done::Moved(bytes)) => Some(bytes as isize),
        Some(Done::Failed(error)) => Some(sys::with_errno(error)),
        None => None,
    }
}

/// What came of a call.
enum Done {
    Moved(usize),
    /// The kernel's negative number.
    Failed(isize),
}

/// A call of the program.
struct Call<'a> {
    fd: Fd,
    file: &'a Uncached,
    direction: Direction,
    parts: &'a [libc::iovec],
    /// The file's size when the call came.
    size: u64,
}

impl Call<'_> {
    /// Reads or writes where the descriptor stands, and moves that on: first, so that of two calls
    /// that come together each has a part of its own.
    fn here(&self, len: usize) -> Option<Done> {
        // SAFETY: takes numbers only.
        let seek = |by: i64| unsafe { syscall!(libc::SYS_lseek, self.fd, by, libc::SEEK_CUR) };
        let after = seek(len as i64);
        if after < 0 {
            return None;
        }
        let place = after as u64 - len as u64;
        let done = self.all_parts(place).unwrap_or_else(|| self.as_the_program(place));
        let bytes = if let Done::Moved(bytes) = done { bytes } else { 0 };
        if bytes != len {
            seek(bytes as i64 - len as i64);
        }
        Some(done)
    }

    /// The program's own call, at a place.
    fn as_the_program(&self, at: u64) -> Done {
        let number = match self.direction {
            Direction::Read => libc::SYS_preadv,
            _ => libc::SYS_pwritev,
        };
        // SAFETY: the caller's parts, as for the call that it made.
        let done =
            unsafe { syscall!(number, self.fd, self.parts.as_ptr(), self.parts.len(), at, 0) };
        if done < 0 { Done::Failed(done) } else { Done::Moved(done as usize) }
    }

    /// Moves one part after the other, until one is not moved whole. Nothing, where nothing was
    /// moved and the program's own call may still do it.
    fn all_parts(&self, at: u64) -> Option<Done> {
        let mut sum = 0;
        for part in self.parts {
            let (buf, len) = (part.iov_base.cast::<u8>(), part.iov_len);
            let place = at + sum as u64;
            let done = match self.direction {
                Direction::Read => read(self.file, self.size, buf, len, place),
                _ => write(self.fd, self.file, buf, len, place),
            };
            match done {
                None if sum == 0 => return None,
                Some(Done::Failed(error)) if sum == 0 => return Some(Done::Failed(error)),
                None | Some(Done::Failed(_)) => break,
                Some(Done::Moved(bytes)) => {
                    sum += bytes;
                    if bytes != len {
                        break;
                    }
                }
            }
        }
        Some(Done::Moved(sum))
    }
}

/// Makes one direct call; nothing where the kernel refuses it.
fn direct(
    file: &Uncached,
    direction: Direction,
    buf: *mut u8,
    len: usize,
    at: u64,
) -> Option<usize> {
    let number = match direction {
        Direction::Read => libc::SYS_pread64,
        _ => libc::SYS_pwrite64,
    };
    // SAFETY: the caller's memory, as for the call that it made, or a piece of the library's.
    let done = unsafe { syscall!(number, file.direct, buf, len, at) };
    if done < 0 {
        count(Count::Failed);
        return None;
    }
    Some(done as usize)
}

fn is_aligned(file: &Uncached, buf: *const u8, len: usize, at: u64) -> bool {
    (at | len as u64).is_multiple_of(file.alignment)
        && buf.addr().is_multiple_of(file.memory_alignment as usize)
}

/// Whole blocks go to the caller's memory, but for the last one of the file: the kernel may fill all
/// of its memory, where a read through the page cache leaves alone what lies behind the end.
fn read(file: &Uncached, size: u64, buf: *mut u8, len: usize, at: u64) -> Option<Done> {
    if !is_aligned(file, buf, len, at) {
        return read_around(file, buf, len, at).map(Done::Moved);
    }
    let within = (size - size % file.alignment).saturating_sub(at).min(len as u64) as usize;
    debug_assert!(
        within <= len && (within as u64).is_multiple_of(file.alignment),
        "whole blocks of the file go to the caller's memory: {within} of {len} bytes"
    );
    let mut done = 0;
    if within > 0 {
        done = direct(file, Direction::Read, buf, within, at)?;
        count(Count::Reads);
    }
    if done == within && within < len {
        // SAFETY: within the caller's memory.
        let rest = unsafe { buf.add(done) };
        match read_around(file, rest, len - done, at + done as u64) {
            None if done == 0 => return None,
            more => done += more.unwrap_or(0),
        }
    }
    Some(Done::Moved(done))
}

/// Reads the blocks around what is asked for, and copies that.
fn read_around(file: &Uncached, buf: *mut u8, len: usize, at: u64) -> Option<usize> {
    let bounce = Bounce::take()?;
    let mut done = 0;
    while done < len {
        let place = at + done as u64;
        let start = place - place % file.alignment;
        let skip = (place - start) as usize;
        let wanted = (skip + len - done).next_multiple_of(file.alignment as usize);
        let wanted = wanted.min(bounce::BYTES);
        let Some(got) = direct(file, Direction::Read, bounce.memory(), wanted, start) else {
            return (done > 0).then_some(done);
        };
        debug_assert!(
            skip < wanted && got <= wanted && wanted <= bounce::BYTES,
            "the blocks around a read hold its first byte, and fit the piece: {got} of {wanted}"
        );
        let bytes = got.saturating_sub(skip).min(len - done);
        // SAFETY: the caller's memory has `len` bytes, the piece `got`; they do not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(bounce.memory().add(skip), buf.add(done), bytes);
        }
        done += bytes;
        if got < wanted {
            break;
        }
    }
    count(Count::Reads);
    count(Count::Bounced);
    Some(done)
}

fn write(fd: Fd, file: &Uncached, buf: *mut u8, len: usize, at: u64) -> Option<Done> {
    if (at | len as u64).is_multiple_of(file.alignment) {
        return match write_blocks(file, buf, len, at) {
            Some(bytes) => Some(Done::Moved(bytes)),
            None => Some(odd(fd, buf, len, at)),
        };
    }
    let unit = PAGE.max(file.alignment);
    let end = at + len as u64;
    let (first, last) = (at.next_multiple_of(unit), end - end % unit);
    if last < first + MIDDLE_BYTES_MIN {
        return Some(odd(fd, buf, len, at));
    }
    debug_assert!(
        at <= first && first < last && last <= end,
        "the middle of a write lies in it: {first} to {last} of {at} to {end}"
    );
    let mut sum = 0;
    for (from, to, is_odd) in [(at, first, true), (first, last, false), (last, end, true)] {
        let (skip, len) = ((from - at) as usize, (to - from) as usize);
        if len == 0 {
            continue;
        }
        // SAFETY: within the caller's memory.
        let piece = unsafe { buf.add(skip) };
        let whole = if is_odd { None } else { write_blocks(file, piece, len, from) };
        let done = whole.map_or_else(|| odd(fd, piece, len, from), Done::Moved);
        match done {
            Done::Failed(error) if sum == 0 => return Some(Done::Failed(error)),
            Done::Failed(_) => break,
            Done::Moved(bytes) => {
                sum += bytes;
                if bytes != len {
                    break;
                }
            }
        }
    }
    Some(Done::Moved(sum))
}

/// Writes whole blocks; nothing where none of them could be written.
fn write_blocks(file: &Uncached, buf: *mut u8, len: usize, at: u64) -> Option<usize> {
    if is_aligned(file, buf, len, at) {
        let bytes = direct(file, Direction::Write, buf, len, at)?;
        count(Count::Writes);
        return Some(bytes);
    }
    let bounce = Bounce::take()?;
    let mut done = 0;
    while done < len {
        let piece = (len - done).min(bounce::BYTES);
        // SAFETY: the caller's memory has `len` bytes, the piece as many as are copied; they do not
        // overlap.
        unsafe { std::ptr::copy_nonoverlapping(buf.add(done), bounce.memory(), piece) };
        let Some(bytes) = direct(file, Direction::Write, bounce.memory(), piece, at + done as u64)
        else {
            break;
        };
        done += bytes;
        if bytes != piece {
            break;
        }
    }
    if done == 0 {
        return None;
    }
    count(Count::Writes);
    count(Count::Bounced);
    Some(done)
}

/// Writes through the page cache, and has the kernel begin to write it to the device.
fn odd(fd: Fd, buf: *mut u8, len: usize, at: u64) -> Done {
    // SAFETY: the caller's memory, as for the call that it made.
    let done = unsafe { syscall!(libc::SYS_pwrite64, fd, buf, len, at) };
    if done < 0 {
        return Done::Failed(done);
    }
    count(Count::Odd);
    table::note_odd(fd);
    // SAFETY: takes numbers only.
    unsafe { syscall!(libc::SYS_sync_file_range, fd, at, done, libc::SYNC_FILE_RANGE_WRITE) };
    Done::Moved(done as usize)
}
