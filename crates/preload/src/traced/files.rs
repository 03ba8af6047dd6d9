//! Which descriptor is which file of the trace: a word a descriptor, read without a lock.
//!
//! Numbers of files are given out by the arena to all processes, so that what a child inherited is
//! what its parent had. A descriptor that is not known is looked up when it is first used.

use std::ffi::{CStr, c_char};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use bedplate_trace::{Identity, NO_FILE};

use super::{arena, record};
use crate::process;
use crate::sys::{self, Fd};
use crate::uncached::{Link, PATH_BYTES};

/// Descriptors from here on are not recorded.
const FDS: usize = 1 << 16;
/// The descriptor leads to nothing that is recorded.
const IGNORED: u32 = u32::MAX;

static FILES: [AtomicU32; FDS] = [const { AtomicU32::new(NO_FILE) }; FDS];

fn cell(fd: Fd) -> Option<&'static AtomicU32> {
    usize::try_from(fd).ok().and_then(|fd| FILES.get(fd))
}

/// Returns the file of a descriptor; nothing where it is not recorded.
#[inline]
pub fn find(fd: Fd) -> Option<u32> {
    match cell(fd)?.load(Relaxed) {
        IGNORED => None,
        NO_FILE => look(fd),
        file => Some(file),
    }
}

/// As above, of one that was looked up before.
pub fn known(fd: Fd) -> Option<u32> {
    let file = cell(fd)?.load(Relaxed);
    (file != NO_FILE && file != IGNORED).then_some(file)
}

/// Looks a descriptor up.
#[cold]
fn look(fd: Fd) -> Option<u32> {
    let cell = cell(fd)?;
    let errno = sys::errno();
    let found = recorded(fd);
    sys::set_errno(errno);
    // A child of `vfork` has descriptors of its own and its parent's memory.
    let is_open = found.is_some() || sys::fcntl(fd, libc::F_GETFD, 0) >= 0;
    if is_open && (process::is_home() || process::epoch() == 0) {
        cell.store(found.unwrap_or(IGNORED), Relaxed);
    }
    found
}

/// Records what a descriptor leads to.
fn recorded(fd: Fd) -> Option<u32> {
    let arena = arena::get()?;
    let stat = sys::stat(fd)?;
    let is_device = stat.st_mode & libc::S_IFMT == libc::S_IFBLK;
    if !is_device && stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        return None;
    }
    let mut path = [0; PATH_BYTES];
    let path = Link::new(fd).read(&mut path).unwrap_or(&[]);
    let file = Identity {
        file: arena.next_file(),
        device: if is_device { stat.st_rdev } else { stat.st_dev },
        inode: stat.st_ino,
        size_bytes: stat.st_size.max(0) as u64,
        is_device,
    };
    record::push_file(&file, path);
    Some(file.file)
}

/// Records a path that was named in vain, and returns its number.
pub fn named(path: *const c_char) -> u32 {
    let Some(arena) = arena::get().filter(|_| !path.is_null()) else { return NO_FILE };
    // The kernel could not read it.
    if sys::errno() == libc::EFAULT {
        return NO_FILE;
    }
    // SAFETY: the kernel has read the path up to its zero.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let file = Identity { file: arena.next_file(), ..Identity::default() };
    record::push_file(&file, path);
    file.file
}

/// A descriptor is another file's from now on, or none's.
pub fn forget(fd: Fd) {
    if let Some(cell) = cell(fd) {
        cell.store(NO_FILE, Relaxed);
    }
}

/// A descriptor is about to be closed.
pub fn closed(fd: Fd) {
    if arena::is_on() {
        forget(fd);
    }
}

/// All descriptors from `first` to `last` are about to be closed.
pub fn closed_all(first: usize, last: usize) {
    if arena::is_on() {
        for fd in first..=last.min(FDS - 1) {
            forget(fd as Fd);
        }
    }
}

/// A descriptor was copied.
pub fn copied(from: Fd, to: Fd) {
    if to < 0 || from == to || !arena::is_on() {
        return;
    }
    let known = cell(from).map_or(NO_FILE, |cell| cell.load(Relaxed));
    if let Some(cell) = cell(to) {
        cell.store(if process::is_home() { known } else { NO_FILE }, Relaxed);
    }
}
