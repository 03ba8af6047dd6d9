//! The arena: found once in a process, and mapped for as long as that lives.

use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize};

use bedplate_trace::{Arena, HEADER_BYTES};

use crate::sys::{self, syscall};

/// Where the program finds the arena's path.
const VARIABLE: &CStr = c"BEDPLATE_TRACE";

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
static WORDS: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
static LEN: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    fn getenv(name: *const c_char) -> *const c_char;
}

/// Tells whether calls are recorded.
#[inline]
pub fn is_on() -> bool {
    match STATE.load(Acquire) {
        OFF => false,
        ON => true,
        _ => look(),
    }
}

/// Returns the arena, which lives as long as the process.
pub fn get() -> Option<Arena<'static>> {
    let at = WORDS.load(Acquire);
    if at.is_null() {
        return None;
    }
    // SAFETY: the mapping that `look` made, which is never unmapped, of so many words; they are
    // shared with other processes and only ever used as atomic ones.
    Arena::open(unsafe { std::slice::from_raw_parts(at, LEN.load(Acquire)) })
}

#[cold]
fn look() -> bool {
    let errno = sys::errno();
    // SAFETY: a name that lives; what is returned is only read.
    let path = unsafe { getenv(VARIABLE.as_ptr()) };
    let mapped = if path.is_null() { None } else { map(path) };
    if let Some((at, bytes)) = mapped {
        LEN.store(bytes / size_of::<AtomicU64>(), Release);
        WORDS.store(at.cast(), Release);
    }
    let is_on = get().is_some_and(|arena| arena.admits(sys::pid()));
    STATE.store(if is_on { ON } else { OFF }, Release);
    sys::set_errno(errno);
    is_on
}

/// Maps the file of a path. A second thread that comes here too maps it once more, which does no
/// harm.
fn map(path: *const c_char) -> Option<(*mut u8, usize)> {
    let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: the path ends with a zero.
    let fd = unsafe { syscall!(libc::SYS_openat, libc::AT_FDCWD, path, flags, 0) };
    if fd < 0 {
        return None;
    }
    let fd = fd as sys::Fd;
    let size = sys::stat(fd).map_or(0, |stat| stat.st_size as usize);
    let mapped = if size > HEADER_BYTES {
        sys::map(size, libc::PROT_READ | libc::PROT_WRITE, Some(fd))
    } else {
        None
    };
    sys::close(fd);
    mapped.map(|at| (at, size))
}

/// A child of a fork records unless only one process does.
pub fn admit_child(pid: u32) -> bool {
    let admitted = get().is_some_and(|arena| arena.admits(pid));
    if !admitted {
        STATE.store(OFF, Relaxed);
    }
    admitted
}
