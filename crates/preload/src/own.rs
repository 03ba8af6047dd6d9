//! Descriptors of the library's own: where they lie in the process's table.
//!
//! They lie beyond the process's limit of descriptors, so that a program may open as many files as
//! without the library. A number beyond the limit is given out only while the limit is raised; what
//! lies there stays when it falls again (`setrlimit(2)` says so of open descriptors).
//!
//! Where the limit may not be raised they lie in its upper quarter, and are given back when a call
//! of the program fails for want of a number.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crate::sys::{self, Fd, syscall};
use crate::table;

/// Some file of this process lies in the program's part of the table.
static AMONG_OTHERS: AtomicBool = AtomicBool::new(false);
/// The program has had need of all its numbers.
static CROWDED: AtomicBool = AtomicBool::new(false);

/// A program that may have fewer keeps them all.
const FEW: u64 = 64;

/// A soft and a hard limit.
type Limit = [u64; 2];

/// Closes a descriptor of the library's own.
pub fn close(fd: Fd) {
    table::set_own(fd, false);
    sys::close(fd);
}

/// Moves a descriptor out of the way of the program's.
pub fn move_away(fd: Fd) -> Option<Fd> {
    let moved = copy_away(fd);
    sys::close(fd);
    moved
}

/// Copies a descriptor to where the library's own lie. The caller holds the process's lock.
pub fn copy_away(fd: Fd) -> Option<Fd> {
    let limit = get_limit()?;
    let copy = copy_beyond(fd, limit).or_else(|| copy_up(fd, limit[0]))?;
    debug_assert!(copy != fd, "a copy has a number of its own: {fd}");
    table::set_own(copy, true);
    Some(copy)
}

/// A call of the program found no number. Says whether numbers of the library's own are in the way,
/// of which none are taken from now on.
pub fn is_in_the_way() -> bool {
    let is = AMONG_OTHERS.load(Relaxed);
    if is {
        CROWDED.store(true, Relaxed);
    }
    is
}

/// Copies to a number beyond the limit.
fn copy_beyond(fd: Fd, limit: Limit) -> Option<Fd> {
    if limit[0] >= table::OWN_MAX as u64 {
        return None;
    }
    let raised = [table::OWN_MAX as u64, limit[1].max(table::OWN_MAX as u64)];
    // What it was at that moment, should the program be changing it.
    let before = swap_limit(raised)?;
    let first = before[0].min(table::OWN_MAX as u64 - 1);
    let copy = copy_from(fd, first);
    let found = swap_limit(before);
    // The program set another one meanwhile: that one counts.
    if let Some(found) = found.filter(|found| *found != raised) {
        swap_limit(found);
    }
    copy
}

/// Copies into the upper quarter of what the limit allows.
fn copy_up(fd: Fd, limit: u64) -> Option<Fd> {
    if limit < FEW || CROWDED.load(Relaxed) {
        return None;
    }
    let copy = copy_from(fd, limit.min(table::OWN_MAX as u64) / 4 * 3);
    // A table of so many numbers is not filled.
    if copy.is_some() && limit < table::OWN_MAX as u64 {
        AMONG_OTHERS.store(true, Relaxed);
    }
    copy
}

fn copy_from(fd: Fd, first: u64) -> Option<Fd> {
    let copy = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, first as usize);
    if (0..table::OWN_MAX as isize).contains(&copy) {
        return Some(copy as Fd);
    }
    if copy >= 0 {
        sys::close(copy as Fd);
    }
    None
}

fn get_limit() -> Option<Limit> {
    let mut limit = [0; 2];
    // SAFETY: the kernel fills two words.
    let done =
        unsafe { syscall!(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, limit.as_mut_ptr()) };
    (done == 0).then_some(limit)
}

/// Sets the limit and returns the one that it replaces; nothing where that is not allowed.
fn swap_limit(new: Limit) -> Option<Limit> {
    let mut old = [0; 2];
    // SAFETY: the kernel reads two words and fills two.
    let done = unsafe {
        syscall!(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, new.as_ptr(), old.as_mut_ptr())
    };
    (done == 0).then_some(old)
}
