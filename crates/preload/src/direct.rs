//! I/O from the calling thread to the device, where the lease allows it. `None` is: ask the mount.
//!
//! - I-LSE-4: a descriptor that is no longer the file for which the lease was given does no I/O
//!   under it: it is compared with the guard after the slot is set.

use std::ffi::c_void;

use bedplate_lease::wire::SYNC_IOCTL;
use bedplate_lease::{Direction, Fallback, Io, Lease, Permit, State};

use crate::cached;
use crate::mount;
use crate::odd;
use crate::open;
use crate::overwrites;
use crate::rested;
use crate::sys::{self, Fd, syscall};
use crate::tail::{self, Told};
use crate::thread;
use crate::visit::{Memory, Visit, enter, transfer, whole};

/// How often a write is made again of which the tail was taken away before it was there.
const TIMES_AGAIN: u32 = 2;

/// What became of a read or write.
enum Attempt {
    /// It is done; or nothing was, and the mount is to be asked.
    Ended(Option<isize>),
    /// It went to a tail that this process has no more, or that others do not fill up to it.
    Lost,
}

/// Reads or writes at a place; the whole of it, or nothing.
#[inline]
pub fn io(fd: Fd, direction: Direction, memory: Memory, offset: i64) -> Option<isize> {
    let visit = enter(fd)?;
    match attempt(fd, &visit, direction, memory, offset) {
        Attempt::Ended(done) => done,
        Attempt::Lost => write_again(fd, &visit, memory, offset),
    }
}

/// Returns whether a read from here on would go to the device: what the kernel reads ahead for it is
/// read once more, past the page cache. In the daemon's cache it would be found.
#[cold]
pub fn reads_on_device(fd: Fd, offset: i64, len: i64) -> bool {
    let errno = sys::errno();
    let would = || {
        let Visit { open, mount, slot } = enter(fd).filter(|visit| visit.open.may_read)?;
        if mount.reader.cached_file(open.lease).is_some() {
            return None;
        }
        let sector = mount.reader.geometry().alignment_bytes;
        let start = u64::try_from(offset).ok()? / sector * sector;
        let end =
            start.checked_add(u64::try_from(len).ok()?.max(1))?.checked_next_multiple_of(sector)?;
        let io = Io { direction: Direction::Read, offset: start, len: end - start };
        mount.reader.begin_growth(&mount.slots, slot, open.lease, io, 0).ok()?;
        mount.slots.leave(slot);
        Some(())
    };
    let would = would().is_some();
    sys::set_errno(errno);
    would
}

#[cold]
fn write_again(fd: Fd, visit: &Visit, memory: Memory, offset: i64) -> Option<isize> {
    for _ in 0..TIMES_AGAIN {
        if let Attempt::Ended(done) = attempt(fd, visit, Direction::Write, memory, offset) {
            return done;
        }
    }
    visit.mount.slots.count_fallback(visit.slot, Fallback::BeyondSize);
    tail::mounted(visit, || mounted(fd, Direction::Write, memory, offset))
}

#[inline]
fn attempt(fd: Fd, visit: &Visit, direction: Direction, memory: Memory, offset: i64) -> Attempt {
    let Visit { open, mount, slot } = visit;
    let is_allowed = match direction {
        Direction::Read => open.may_read,
        _ => open.may_write && !mount.is_read_only(),
    };
    let Ok(place) = u64::try_from(offset) else { return Attempt::Ended(None) };
    if !is_allowed {
        mount.slots.count_fallback(*slot, Fallback::Forbidden);
        return Attempt::Ended(None);
    }
    if memory.is_mapped() {
        mount.slots.count_fallback(*slot, Fallback::Other);
        return Attempt::Ended(None);
    }
    let in_memory = match direction {
        Direction::Read => cached::read(fd, visit, memory, place),
        _ => rested::write(fd, visit, memory, place),
    };
    if in_memory.is_some() {
        return Attempt::Ended(in_memory);
    }
    let asked = Io { direction, offset: place, len: memory.len() as u64 };
    let around = sectors_around(visit, asked, memory);
    let io = around.unwrap_or(asked);
    let permit = match begin(fd, visit, io, memory) {
        Ok(permit) => permit,
        Err(fallback) => {
            return Attempt::Ended(not_permitted(
                fd,
                visit,
                fallback,
                (io.direction, memory, offset),
            ));
        }
    };
    if !visit.is_still(fd) {
        return Attempt::Ended(visit.lost(fd));
    }
    let errno = sys::errno();
    let done = moved(visit, memory, (asked, around), &permit);
    sys::set_errno(errno);
    // Errors too are the mount's to find and to report.
    if done != Some(memory.len() as isize) {
        let fallback = if done.is_none() { Fallback::Unaligned } else { Fallback::Other };
        return Attempt::Ended(visit.give_up(fallback));
    }
    let told = match direction {
        Direction::Write => wrote(visit, &permit, asked),
        _ => Told::There,
    };
    mount.slots.leave(*slot);
    if !told.wait(visit) {
        return Attempt::Lost;
    }
    mount.slots.count_done(*slot, direction);
    let is_durable = direction != Direction::Write || !open.is_durable || make_durable(fd);
    Attempt::Ended(if is_durable { done } else { Some(-1) })
}

/// Tells of a write that is on the device.
#[inline]
fn wrote(visit: &Visit, permit: &Permit, asked: Io) -> Told {
    overwrites::wrote(visit, asked.offset, asked.len);
    tail::wrote(visit, permit, asked.offset)
}

/// Moves the bytes of I/O that was permitted, or of the whole sectors around it.
#[inline]
fn moved(
    visit: &Visit,
    memory: Memory,
    (asked, around): (Io, Option<Io>),
    permit: &Permit,
) -> Option<isize> {
    match (around, memory) {
        _ if permit.is_odd_owner => odd::write(visit, memory, asked, permit),
        (Some(around), Memory::Buffer(buf, len)) => {
            let skip = (asked.offset - around.offset) as usize;
            part(visit, buf, len, skip, around.len as usize, permit.device_offset)
        }
        _ => transfer(visit, asked.direction, memory, permit.device_offset),
    }
}

/// Does what is left of I/O that may not go to the device.
#[cold]
fn not_permitted(
    fd: Fd,
    visit: &Visit,
    fallback: Fallback,
    (direction, memory, offset): (Direction, Memory, i64),
) -> Option<isize> {
    match fallback {
        Fallback::BeyondSize if direction == Direction::Write => {
            tail::mounted(visit, || mounted(fd, direction, memory, offset))
        }
        Fallback::Revoked if direction == Direction::Write => {
            rested::begin(fd, visit, memory, offset as u64).or_else(|| refused(fd, visit, fallback))
        }
        fallback => refused(fd, visit, fallback),
    }
}

/// Sets the slot where the I/O may go to the device, if need be after the daemon was asked for what
/// it takes.
#[inline]
fn begin(fd: Fd, visit: &Visit, io: Io, memory: Memory) -> Result<Permit, Fallback> {
    let Visit { open, mount, slot } = visit;
    let begin =
        |ahead_bytes| mount.reader.begin_growth(&mount.slots, *slot, open.lease, io, ahead_bytes);
    let mut begun = begin(0);
    if io.direction == Direction::Write {
        begun = match begun {
            Err(Fallback::Unaligned) if odd::ask(fd, visit, io, memory) => begin(0),
            Err(lacks @ (Fallback::BeyondSize | Fallback::Revoked)) => {
                tail::begin_again(fd, visit, io, lacks, begin)
            }
            begun => begun,
        };
    }
    begun.inspect_err(|fallback| mount.slots.count_fallback(*slot, *fallback))
}

/// The lease came to an end where its entry is another file's: the descriptor goes without.
#[cold]
pub fn refused<T>(fd: Fd, visit: &Visit, fallback: Fallback) -> Option<T> {
    let is_mine = |found: Option<Lease>| found.is_none_or(|lease| lease == visit.open.lease);
    if fallback == Fallback::Revoked && !is_mine(visit.mount.reader.find(visit.open.inode)) {
        open::closing(fd);
    }
    None
}

/// Returns the whole sectors around a read that is not aligned, where they are few enough to be
/// read into memory of the thread's own.
#[inline]
fn sectors_around(visit: &Visit, io: Io, memory: Memory) -> Option<Io> {
    let mask = visit.mount.reader.geometry().alignment_bytes - 1;
    let is_odd = (io.offset | io.len) & mask != 0 && io.len != 0;
    if !is_odd || io.direction != Direction::Read || !matches!(memory, Memory::Buffer(..)) {
        return None;
    }
    let start = io.offset & !mask;
    let end = io.offset.checked_add(io.len)?.checked_add(mask)? & !mask;
    debug_assert!(
        start <= io.offset && io.offset + io.len <= end && (end - start) & mask == 0,
        "whole sectors hold what is asked for: {start} to {end}"
    );
    let is_short = end - start <= thread::BOUNCE_BYTES as u64;
    is_short.then_some(Io { offset: start, len: end - start, ..io })
}

/// Reads whole sectors, and copies the part that was asked for.
fn part(
    visit: &Visit,
    buf: *mut c_void,
    len: usize,
    skip: usize,
    sectors: usize,
    at: u64,
) -> Option<isize> {
    let bounce = thread::bounce(visit.open.mount, visit.slot)?.cast::<c_void>();
    let done = whole(visit.mount.device(), Direction::Read, bounce, sectors, at);
    if done != sectors as isize {
        return Some(-1);
    }
    debug_assert!(
        skip + len <= sectors && sectors <= thread::BOUNCE_BYTES,
        "what is asked for lies in the sectors that are read: {len} at {skip} of {sectors}"
    );
    // SAFETY: the caller's buffer of `len` bytes; `skip + len` is at most `sectors`, which the
    // slot's memory has, and it is of this thread while the slot is set.
    unsafe { std::ptr::copy_nonoverlapping(bounce.byte_add(skip).cast_const(), buf, len) };
    Some(len as isize)
}

/// Makes what was written durable, by a flush or through the mount.
fn make_durable(fd: Fd) -> bool {
    let done = sync(fd).unwrap_or_else(|| {
        // SAFETY: takes a number only.
        sys::with_errno(unsafe { syscall!(libc::SYS_fdatasync, fd) })
    });
    done == 0
}

/// Makes the file's data durable by a flush of the device.
pub fn sync(fd: Fd) -> Option<isize> {
    let visit = enter(fd)?;
    overwrites::synced(&visit);
    let Visit { open, mount, slot } = &visit;
    match mount.reader.begin_sync(&mount.slots, *slot, open.lease) {
        Ok(()) => {}
        Err(Fallback::Unsynced) => return visit.is_still(fd).then(|| synced_by_daemon(&visit))?,
        Err(_) => return None,
    }
    if !visit.is_still(fd) {
        return visit.lost(fd);
    }
    // SAFETY: takes a number only.
    let done = unsafe { syscall!(libc::SYS_fdatasync, mount.device()) };
    mount.slots.count_done(*slot, Direction::Sync);
    mount.slots.leave(*slot);
    if done == 0 {
        // A flush that failed in the daemon meanwhile counts for all: the mount reports it.
        return (mount.reader.state() == State::Serving).then_some(0);
    }
    if done == -(libc::EINTR as isize) {
        return None;
    }
    // The kernel reports it once: all have to know before this call returns (S-33).
    open::flush_failed(mount, -done as i32);
    Some(sys::with_errno(done))
}

/// Has the daemon make the file's data durable, beside syncs of other threads. Nothing where that did
/// not succeed: `fdatasync` does it, or tells why not.
#[cold]
fn synced_by_daemon(visit: &Visit) -> Option<isize> {
    // SAFETY: the request's number says that no bytes go or come back.
    let done = unsafe { syscall!(libc::SYS_ioctl, visit.open.guard, SYNC_IOCTL, 0) };
    (done == 0).then_some(0)
}

/// Counts a sync that has to make more durable than data.
pub fn count_full_sync(fd: Fd) {
    if let Some(visit) = enter(fd) {
        overwrites::synced(&visit);
        visit.mount.slots.count_fallback(visit.slot, Fallback::Unsynced);
    }
}

/// Reads or writes where the descriptor stands, and moves that on. The kernel keeps the place, so
/// that copies and children share it, and moves it before the I/O: of two that come together each
/// has a part of its own.
pub fn io_here(fd: Fd, direction: Direction, memory: Memory) -> Option<isize> {
    const SECTOR: usize = 512;
    let len = memory.len();
    // What is read in odd pieces may pass the end of the file.
    let is_odd = !len.is_multiple_of(SECTOR);
    if len == 0 || (is_odd && direction == Direction::Read) {
        return None;
    }
    open::find(fd)?;
    // SAFETY: takes numbers only.
    let seek = |by: i64| unsafe { syscall!(libc::SYS_lseek, fd, by, libc::SEEK_CUR) };
    let after = seek(len as i64);
    if after < 0 {
        return None;
    }
    let place = after as i64 - len as i64;
    let done =
        io(fd, direction, memory, place).unwrap_or_else(|| mounted(fd, direction, memory, place));
    // What was not moved is still to come.
    if done != len as isize {
        seek(done.max(0) as i64 - len as i64);
    }
    Some(done)
}

/// The same through the mount.
fn mounted(fd: Fd, direction: Direction, memory: Memory, place: i64) -> isize {
    // SAFETY: the caller's memory, as for the call that it made.
    let result = unsafe {
        match (memory, direction) {
            (Memory::Buffer(buf, len), Direction::Read) => {
                syscall!(libc::SYS_pread64, fd, buf, len, place)
            }
            (Memory::Buffer(buf, len), _) => syscall!(libc::SYS_pwrite64, fd, buf, len, place),
            (Memory::Vector(parts, count, _), Direction::Read) => {
                syscall!(libc::SYS_preadv, fd, parts, count, place, 0)
            }
            (Memory::Vector(parts, count, _), _) => {
                syscall!(libc::SYS_pwritev, fd, parts, count, place, 0)
            }
        }
    };
    sys::with_errno(result)
}

/// Takes parts of memory as one I/O: one part as a buffer, several where each is aligned.
pub fn gather(fd: Fd, parts: *const libc::iovec, count: i32) -> Option<Memory> {
    const PARTS_MAX: i32 = 1024;
    let open = open::find(fd)?;
    let mount = mount::get(open.mount)?;
    if parts.is_null() || !(1..=PARTS_MAX).contains(&count) {
        return None;
    }
    // SAFETY: the caller's parts, as for the call that it made.
    let all = unsafe { std::slice::from_raw_parts(parts, count as usize) };
    if let [one] = all {
        return Some(Memory::Buffer(one.iov_base, one.iov_len));
    }
    let alignment = mount.memory_alignment.max(512);
    let mut sum = 0_usize;
    for part in all {
        if !(part.iov_base as u64 | part.iov_len as u64).is_multiple_of(alignment) {
            return None;
        }
        sum = sum.checked_add(part.iov_len)?;
    }
    Some(Memory::Vector(parts, count as usize, sum))
}
