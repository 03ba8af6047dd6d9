//! Files of any file system, past the page cache: `bedplate run --direct`.
//!
//! ```text
//!  program ── pread ──► calls ──► uncached::io ──► a second descriptor of the file, O_DIRECT
//!                         └───────────────────────► the program's own descriptor     everything else
//! ```
//!
//! The program keeps its own descriptor, through the page cache, and with it every call that is not
//! served here. The kernel keeps direct I/O and its page cache coherent, but for pages that are
//! mapped: a file that the program maps is left alone.
//!
//! What is whole blocks goes directly. A read of anything else reads the blocks around it into
//! memory of the library's; a write of anything else goes through the page cache, is written at
//! once, and leaves the cache when the file is synced or closed. An idea of PolyServe's mount
//! option `dboptimize`, which did so for a whole file system.

mod bounce;
pub mod io;
mod pattern;
mod table;

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::mount;
use crate::own;
use crate::process::{self, Held};
use crate::sys::{self, Fd, syscall};
pub use pattern::{Link, PATH_BYTES};
use table::Uncached;

/// What is counted.
#[derive(Clone, Copy)]
pub enum Count {
    /// Files that were opened so.
    Files,
    /// Reads that went directly.
    Reads,
    /// Writes that went directly.
    Writes,
    /// Reads and writes, of those, through memory of the library's.
    Bounced,
    /// Writes that went through the page cache, because they are not whole blocks.
    Odd,
    /// Calls that the file system refused to carry out directly.
    Failed,
    /// Files whose file system takes no direct I/O, or that could not be opened a second time.
    Refused,
}

/// The counts with their names.
pub const COUNTS: [(Count, &str); 7] = [
    (Count::Files, "files"),
    (Count::Reads, "reads"),
    (Count::Writes, "writes"),
    (Count::Bounced, "bounced"),
    (Count::Odd, "buffered-writes"),
    (Count::Failed, "failed"),
    (Count::Refused, "refused"),
];

static COUNTED: [AtomicU64; COUNTS.len()] = [const { AtomicU64::new(0) }; COUNTS.len()];

fn count(what: Count) {
    COUNTED[what as usize].fetch_add(1, Relaxed);
}

/// Returns how often something was counted.
pub fn counted(what: Count) -> u64 {
    COUNTED[what as usize].load(Relaxed)
}

/// Takes the lock, in a child after a fork with the tables of leases emptied of what was the
/// parent's; second descriptors stay good there.
fn lock() -> Option<Held> {
    process::lock(mount::forget_parents)
}

/// Files that are opened for this are not opened a second time.
const REFUSED: i32 = libc::O_PATH | libc::O_DIRECTORY | libc::O_DIRECT;

/// A file was opened, and has no lease.
pub fn opened(fd: Fd, flags: i32) {
    if fd < 0 || fd as usize >= table::FDS || !pattern::are_given() {
        return;
    }
    let errno = sys::errno();
    // A number that was closed behind the library's back.
    forget(fd);
    if flags & REFUSED == 0 && !crate::table::is_leased(fd) {
        consider(fd, flags);
    }
    sys::set_errno(errno);
}

fn consider(fd: Fd, flags: i32) -> Option<()> {
    let wanted = libc::STATX_TYPE | libc::STATX_INO | libc::STATX_DIOALIGN;
    let stat = sys::statx(fd, 0, wanted)?;
    if u32::from(stat.stx_mode) & libc::S_IFMT != libc::S_IFREG {
        return None;
    }
    let (link, mut path) = (pattern::Link::new(fd), [0; pattern::PATH_BYTES]);
    if !pattern::matches(link.read(&mut path)?) {
        return None;
    }
    let held = lock()?;
    // A file system that tells an alignment of 0 takes no direct I/O.
    let is_able = stat.stx_mask & libc::STATX_DIOALIGN == 0 || stat.stx_dio_offset_align != 0;
    let opened = if is_able { open_again(&link, flags) } else { None };
    let Some(direct) = opened.and_then(own::move_away) else {
        count(Count::Refused);
        return None;
    };
    let align = |told: u32| if told == 0 { table::ALIGNMENT } else { u64::from(told) };
    let file = Uncached {
        direct,
        identity: (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino),
        may_read: flags & libc::O_ACCMODE != libc::O_WRONLY,
        may_write: flags & libc::O_ACCMODE != libc::O_RDONLY,
        memory_alignment: align(stat.stx_dio_mem_align),
        alignment: align(stat.stx_dio_offset_align),
    };
    if !table::set(&held, fd, Some(&file)) {
        own::close(direct);
        return None;
    }
    count(Count::Files);
    Some(())
}

/// Opens the file that a descriptor leads to once more.
fn open_again(link: &pattern::Link, flags: i32) -> Option<Fd> {
    let kept = flags & (libc::O_ACCMODE | libc::O_SYNC | libc::O_DSYNC | libc::O_NOATIME);
    let flags = kept | libc::O_DIRECT | libc::O_CLOEXEC | libc::O_LARGEFILE;
    // SAFETY: the path is the link's, and ends with a zero.
    let direct =
        unsafe { syscall!(libc::SYS_openat, libc::AT_FDCWD, link.path().as_ptr(), flags, 0) };
    (direct >= 0).then_some(direct as Fd)
}

/// A descriptor was copied, in this process.
pub fn copied(from: Fd, to: Fd) {
    if to < 0 || from == to || !pattern::are_given() {
        return;
    }
    let errno = sys::errno();
    forget(to);
    if let Some(file) = table::find(from)
        && let Some(held) = lock()
        && let Some(direct) = own::copy_away(file.direct)
        && !table::set(&held, to, Some(&Uncached { direct, ..file }))
    {
        own::close(direct);
    }
    sys::set_errno(errno);
}

/// A descriptor is about to be closed, or used by what is not seen here.
pub fn forget(fd: Fd) {
    if table::find(fd).is_some() {
        let errno = sys::errno();
        leave(fd);
        sys::set_errno(errno);
    }
}

#[cold]
fn leave(fd: Fd) {
    let Some(held) = lock() else { return };
    let Some(file) = table::find(fd) else { return };
    drop_pages(fd, &file);
    table::set(&held, fd, None);
    own::close(file.direct);
}

/// All descriptors from `first` to `last` are about to be closed.
pub fn forget_all(first: usize, last: usize) {
    table::used(first, last).for_each(forget);
}

/// The file is about to be mapped: none of its descriptors is served here any more.
pub fn mapped(fd: Fd) {
    let Some(file) = table::find(fd) else { return };
    for other in table::used(0, table::FDS) {
        if table::find(other).is_some_and(|other| other.identity == file.identity) {
            forget(other);
        }
    }
}

/// Tells whether a descriptor is served here.
pub fn serves(fd: Fd) -> bool {
    table::find(fd).is_some()
}

/// A sync has written what went through the page cache.
pub fn synced(fd: Fd) {
    if let Some(file) = table::find(fd) {
        let errno = sys::errno();
        drop_pages(fd, &file);
        sys::set_errno(errno);
    }
}

/// Has the kernel forget the file's pages, where some were written.
fn drop_pages(fd: Fd, file: &Uncached) {
    if table::take_odd(fd) && file.size(fd).is_some() {
        // SAFETY: takes numbers only.
        unsafe { syscall!(libc::SYS_fadvise64, fd, 0, 0, libc::POSIX_FADV_DONTNEED) };
    }
}
