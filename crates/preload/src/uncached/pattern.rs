//! Which files are meant: `BEDPLATE_DIRECT`, patterns with a colon between them.
//!
//! `*` is any bytes and `?` one. A pattern without a slash is compared with a file's name, one with
//! a slash with its whole path.

use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicUsize};

use crate::sys::{self, Fd, syscall};

/// The longest path that is compared.
pub const PATH_BYTES: usize = 4096;

/// A copy of the patterns, for programs that write over their environment; and its length, or that
/// nothing was looked for yet.
static PATTERNS: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static LEN: AtomicUsize = AtomicUsize::new(UNKNOWN);
const UNKNOWN: usize = usize::MAX;

unsafe extern "C" {
    fn getenv(name: *const c_char) -> *const c_char;
}

fn patterns() -> &'static [u8] {
    let mut len = LEN.load(Acquire);
    if len == UNKNOWN {
        len = look();
    }
    let at = PATTERNS.load(Relaxed);
    if at.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the copy that `look` made, which has `len` bytes and stays.
    unsafe { std::slice::from_raw_parts(at, len) }
}

#[cold]
fn look() -> usize {
    // SAFETY: the name ends with a zero; what is returned does, too.
    let given = unsafe {
        let value = getenv(c"BEDPLATE_DIRECT".as_ptr());
        if value.is_null() { &[][..] } else { CStr::from_ptr(value).to_bytes() }
    };
    let copy = if given.is_empty() {
        None
    } else {
        sys::map(given.len(), libc::PROT_READ | libc::PROT_WRITE, None)
    };
    let len = copy.map_or(0, |copy| {
        // SAFETY: new memory of that many bytes.
        unsafe { std::ptr::copy_nonoverlapping(given.as_ptr(), copy, given.len()) };
        PATTERNS.store(copy, Relaxed);
        given.len()
    });
    LEN.store(len, Release);
    len
}

/// Tells whether any file may be meant.
#[inline]
pub fn are_given() -> bool {
    !patterns().is_empty()
}

/// Tells whether the file of a path is meant.
pub fn matches(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    patterns()
        .split(|byte| *byte == b':')
        .filter(|pattern| !pattern.is_empty())
        .any(|pattern| is_like(pattern, if pattern.contains(&b'/') { path } else { name }))
}

/// Compares bytes with one pattern, without going deeper for each star: what follows a star is
/// looked for again one byte later, and an earlier star never needs to be tried again.
fn is_like(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut of, mut star) = (0, 0, None);
    while of < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at + 1, of));
                at += 1;
            }
            Some(&byte) if byte == b'?' || byte == text[of] => {
                at += 1;
                of += 1;
            }
            _ => {
                let Some((behind, from)) = star else { return false };
                star = Some((behind, from + 1));
                (at, of) = (behind, from + 1);
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// The kernel's link to an open file.
pub struct Link([u8; 32]);

impl Link {
    pub fn new(fd: Fd) -> Self {
        use std::io::Write;
        let mut path = [0; 32];
        // It has room for every number, and the zero behind it.
        let written = write!(&mut path[..31], "/proc/self/fd/{fd}");
        debug_assert!(written.is_ok(), "a number is short");
        Self(path)
    }

    /// Returns its own path, which ends with a zero.
    pub fn path(&self) -> &[u8] {
        &self.0
    }

    /// Reads where it leads.
    pub fn read<'a>(&self, path: &'a mut [u8; PATH_BYTES]) -> Option<&'a [u8]> {
        // SAFETY: the link's path ends with a zero; the kernel fills at most what is there.
        let len = unsafe {
            syscall!(
                libc::SYS_readlinkat,
                libc::AT_FDCWD,
                self.0.as_ptr(),
                path.as_mut_ptr(),
                PATH_BYTES
            )
        };
        path.get(..usize::try_from(len).ok()?)
    }
}
