//! Descriptors come, go and are copied: which of them get a lease.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use bedplate_lease::Reason;
use bedplate_lease::wire::{LEASE_IOCTL, OFFER_BYTES, Offer, Request};

use crate::mount::{self, Mount};
use crate::own;
use crate::process::{self, Held};
use crate::report;
use crate::sys::{self, Fd, syscall};
use crate::table::{self, Found, Open};

/// Where files have no lease: numbers of devices, plus 1.
static FOREIGN: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

fn is_foreign(dev: u64) -> bool {
    (FOREIGN.iter().map(|seen| seen.load(Relaxed)).take_while(|&seen| seen != 0))
        .any(|seen| seen == dev.wrapping_add(1))
}

fn note_foreign(dev: u64) {
    let _ = FOREIGN.iter().any(|place| {
        let was = place.compare_exchange(0, dev.wrapping_add(1), Relaxed, Relaxed);
        was.is_ok() || was == Err(dev.wrapping_add(1))
    });
}

/// What says that a lease is not for this open.
const REFUSED: i32 = libc::O_PATH | libc::O_APPEND | libc::O_DIRECTORY;

/// A new file of a mount that the process knows asks for its lease after so many calls. One that has
/// fewer, as a rollback journal does, is gone before a lease would be of use, and asking costs more
/// than each of them.
const CALLS_OF_A_NEW_FILE: u32 = 64;

/// `O_SYNC` without the bit that it has in common with `O_DSYNC`.
const SYNC_ALONE: i32 = libc::O_SYNC & !libc::O_DSYNC;

/// Takes the lock, in a child after a fork with the tables emptied of what was the parent's.
pub fn lock() -> Option<Held> {
    process::lock(mount::forget_parents)
}

/// A file was opened: it gets a lease, if it can have one.
pub fn opened(fd: Fd, flags: i32) {
    if fd < 0 {
        return;
    }
    let errno = sys::errno();
    // A number that has a lease was closed behind the library's back.
    if !matches!(table::find(fd), Found::Nothing) {
        closing(fd);
    }
    if flags & REFUSED == 0 && (fd as usize) < table::FDS {
        consider(fd, flags, None);
    }
    sys::set_errno(errno);
}

/// Asks for a lease, or lets a file that is new wait for it. `guard` is a second descriptor of the
/// file, where there is one already.
fn consider(fd: Fd, flags: i32, guard: Option<Fd>) {
    let stat = sys::stat(fd).filter(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG);
    let stat = stat.filter(|stat| !is_foreign(stat.st_dev));
    let is_new = |stat: &libc::stat| flags & libc::O_CREAT != 0 && stat.st_size == 0;
    let is_mounted = |stat: &libc::stat| mount::all().any(|mount| mount.dev == stat.st_dev);
    if stat.is_some_and(|stat| is_new(&stat) && is_mounted(&stat)) {
        if let Some(held) = lock() {
            table::wait(&held, fd, CALLS_OF_A_NEW_FILE);
        }
        return;
    }
    let leased = stat.and_then(|stat| Some((stat, lock()?))).and_then(|(stat, held)| {
        let access = flags & libc::O_ACCMODE;
        // The first file to be written gets the process a device that it may write.
        let is_enough = |mount: &usize| {
            access == libc::O_RDONLY || !mount::get(*mount).is_some_and(Mount::is_read_only)
        };
        let found = known(&stat)
            .filter(|(mount, ..)| is_enough(mount))
            .or_else(|| asked(&held, fd, stat.st_dev));
        let (mount, inode, lease) = found?;
        let guard = match guard {
            Some(guard) => guard,
            None => own::copy_away(fd)?,
        };
        let open = Open {
            mount,
            inode,
            lease,
            guard,
            may_read: access != libc::O_WRONLY,
            may_write: access != libc::O_RDONLY && flags & SYNC_ALONE == 0,
            is_durable: flags & libc::O_DSYNC != 0,
        };
        let fits = table::fits(lease, guard);
        table::set(&held, fd, fits.then_some(&open));
        fits.then_some(())
    });
    if leased.is_none()
        && let Some(guard) = guard
    {
        own::close(guard);
    }
}

/// A file that this process has under a lease already is not asked for again.
fn known(stat: &libc::stat) -> Option<(usize, u64, bedplate_lease::Lease)> {
    let same = table::used(0, table::FDS).find_map(|fd| match table::find(fd) {
        Found::Leased(open) if open.inode == stat.st_ino => {
            let mount = mount::get(open.mount)?;
            (mount.dev == stat.st_dev).then_some((mount, open))
        }
        _ => None,
    });
    let (mount, open) = same?;
    (mount.reader.find(open.inode) == Some(open.lease))
        .then_some((open.mount, open.inode, open.lease))
}

/// Asks the mount, over the descriptor, and then the daemon.
fn asked(held: &Held, fd: Fd, dev: u64) -> Option<(usize, u64, bedplate_lease::Lease)> {
    let mut bytes = [0_u8; OFFER_BYTES];
    // SAFETY: the request's number says how many bytes come back.
    let result = unsafe { syscall!(libc::SYS_ioctl, fd, LEASE_IOCTL, bytes.as_mut_ptr()) };
    let offer = if result == 0 { Offer::decode(&bytes) } else { None };
    let Some(offer) = offer else {
        note_foreign(dev);
        return None;
    };
    let leased = offer.leased.and_then(|place| mount::publish(held, &offer, &place, dev));
    match leased {
        Ok((mount, lease)) => Some((mount, offer.inode, lease)),
        Err(reason) => {
            report::refused(reason);
            if reason == Reason::Version {
                note_foreign(dev);
            }
            None
        }
    }
}

/// Returns what the table says of a descriptor; in a child of a fork after the lease was asked for
/// again.
#[inline]
pub fn find(fd: Fd) -> Option<Open> {
    match table::find(fd) {
        Found::Nothing => None,
        Found::Waiting => ripen(fd),
        Found::Leased(open) => Some(open),
        Found::Inherited(open) => revive(fd, &open),
    }
}

/// Counts a call of a file that was new when it was opened, and asks for its lease at the last.
#[cold]
fn ripen(fd: Fd) -> Option<Open> {
    report::was_new();
    if !table::waited(fd) {
        return None;
    }
    let errno = sys::errno();
    table::set(&lock()?, fd, None);
    let flags = sys::fcntl(fd, libc::F_GETFL, 0);
    if flags >= 0 && flags as i32 & REFUSED == 0 {
        // These flags say no more that the file was made.
        consider(fd, flags as i32 & !libc::O_CREAT, None);
    }
    sys::set_errno(errno);
    match table::find(fd) {
        Found::Leased(open) => Some(open),
        _ => None,
    }
}

#[cold]
fn revive(fd: Fd, open: &Open) -> Option<Open> {
    let errno = sys::errno();
    let held = lock()?;
    table::set(&held, fd, None);
    drop(held);
    let flags = sys::fcntl(fd, libc::F_GETFL, 0);
    let is_same = sys::is_same(fd, open.guard) == Some(true);
    if is_same && flags >= 0 && flags as i32 & REFUSED == 0 {
        consider(fd, flags as i32, Some(open.guard));
    } else if is_same {
        own::close(open.guard);
    } else {
        table::set_own(open.guard, false);
    }
    sys::set_errno(errno);
    match table::find(fd) {
        Found::Leased(open) => Some(open),
        _ => None,
    }
}

/// A descriptor is about to be closed, or turned out to be another file's: it has no lease from now
/// on, and its file stays open no longer than the program has it.
#[cold]
pub fn closing(fd: Fd) {
    let errno = sys::errno();
    if let Some(held) = lock() {
        forget(&held, fd);
    }
    sys::set_errno(errno);
}

fn forget(held: &Held, fd: Fd) {
    let (open, is_inherited) = match table::find(fd) {
        Found::Nothing => return,
        Found::Waiting => return table::set(held, fd, None),
        Found::Leased(open) => (open, false),
        Found::Inherited(open) => (open, true),
    };
    table::set(held, fd, None);
    table::set_own(open.guard, false);
    // The number of the guard may be another file's, if something closed it unseen.
    let is_guard = sys::is_same(fd, open.guard) == Some(true)
        || sys::stat(open.guard).is_some_and(|stat| {
            let is_kept = sys::fcntl(open.guard, libc::F_GETFD, 0) == libc::FD_CLOEXEC as isize;
            let mount = mount::get(open.mount);
            is_kept
                && stat.st_ino == open.inode
                && mount.is_none_or(|mount| mount.dev == stat.st_dev)
        });
    if is_guard {
        sys::close(open.guard);
    }
    let is_last = !is_inherited && others(&open).next().is_none();
    if is_last && let Some(mount) = mount::get(open.mount) {
        let _ = mount.ask(held, &Request::Close { inode: open.inode });
    }
}

/// A call of the program found no number for a descriptor: gives back those of the library's own
/// that are in the way, and tells whether there were any. Files that were open have no lease then.
#[cold]
pub fn make_room() -> bool {
    if sys::errno() != libc::EMFILE || !own::is_in_the_way() {
        return false;
    }
    closing_all(0, table::FDS);
    true
}

/// Other descriptors of the same file with a lease.
fn others(open: &Open) -> impl Iterator<Item = Fd> {
    let (mount, inode) = (open.mount, open.inode);
    table::used(0, table::FDS).filter(move |&fd| {
        matches!(table::find(fd), Found::Leased(o) if o.mount == mount && o.inode == inode)
    })
}

/// All descriptors from `first` to `last` are about to be closed.
pub fn closing_all(first: usize, last: usize) {
    for fd in table::used(first, last) {
        if !matches!(table::find(fd), Found::Nothing) {
            closing(fd);
        }
    }
}

/// A descriptor was copied, in this process: the copy has a lease too.
pub fn copied(from: Fd, to: Fd) {
    if to < 0 || to as usize >= table::FDS || from == to {
        return;
    }
    let errno = sys::errno();
    if !matches!(table::find(to), Found::Nothing) {
        closing(to);
    }
    if matches!(table::find(from), Found::Waiting) {
        if let Some(held) = lock() {
            table::wait(&held, to, CALLS_OF_A_NEW_FILE);
        }
    } else if let Some(open) = find(from)
        && let Some(held) = lock()
        && sys::is_same(to, open.guard) == Some(true)
        && let Some(guard) = own::copy_away(to)
    {
        table::set(&held, to, Some(&Open { guard, ..open }));
    }
    sys::set_errno(errno);
}

/// An open file is about to be used in a way that a lease does not see: all descriptors of it lose
/// theirs.
pub fn drop_file(fd: Fd) {
    let Some(open) = find(fd) else { return };
    for other in table::used(0, table::FDS) {
        let is_leased = matches!(table::find(other), Found::Leased(_));
        if is_leased && (other == fd || sys::is_same(other, open.guard) == Some(true)) {
            closing(other);
        }
    }
}

/// The file is about to be mapped: no process has it under a lease when this returns. Tells whether
/// it may be a file of a mount.
pub fn suspend(fd: Fd) -> bool {
    let errno = sys::errno();
    let open = find(fd);
    if let Some(open) = &open
        && let (Some(held), Some(mount)) = (lock(), mount::get(open.mount))
    {
        let _ = mount.ask(&held, &Request::Suspend { inode: open.inode });
    }
    // A page behind what the kernel takes for the end would be an error.
    if open.is_some() {
        sys::stat(fd);
    }
    let is_mounted = open.is_some()
        || sys::stat(fd).is_some_and(|stat| {
            stat.st_mode & libc::S_IFMT == libc::S_IFREG && !is_foreign(stat.st_dev)
        });
    sys::set_errno(errno);
    is_mounted
}

/// Tells the daemon of a flush that failed, and waits until it has latched that.
#[cold]
pub fn flush_failed(mount: &Mount, errno: i32) {
    if let Some(held) = lock() {
        let _ = mount.ask(&held, &Request::FlushFailed { errno: errno.unsigned_abs() });
    }
}
