//! Growth: a write that goes on where a file ends goes to blocks there which the daemon gave to this
//! process.
//!
//! ```text
//!   write at the end ─► within the tail ─► device ─► how far it is filled, told in the slots
//!          └──────────► no tail, or behind it ─► ask (ioctl) ─► given: as above; else the mount
//! ```
//!
//! Where the file ends the kernel learns when it asks the daemon. What looks at the kernel's own idea
//! of it has the kernel ask first, or is answered here.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use bedplate_lease::wire::{TAIL_IOCTL, TailRequest};
use bedplate_lease::{Io, Lease};

use crate::process;
use crate::sys::{Fd, syscall};
use crate::visit::{Visit, enter};

/// Shorter files grow through the mount: most stay short.
const SIZE_MIN: u64 = 64 << 10;

/// Files that grow at the same time share a seat where they are more.
const SEATS: usize = 64;

/// The next request waits for more writes each time that the tail was lost soon, up to so many.
const SKIP_MAX: u32 = 255;

/// So many writes into a tail, and losing it is no longer soon.
const WRITES_ENOUGH: u32 = 4;

/// When to ask for a tail.
struct Seat {
    /// Writes that do not ask.
    skip: AtomicU32,
    /// How many it will be after the next time.
    step: AtomicU32,
    /// Writes since it was asked.
    writes: AtomicU32,
    /// The lease under which it was last asked.
    asked: AtomicU64,
}

static ALL: [Seat; SEATS] = [const {
    Seat {
        skip: AtomicU32::new(0),
        step: AtomicU32::new(0),
        writes: AtomicU32::new(0),
        asked: AtomicU64::new(0),
    }
}; SEATS];

fn seat(visit: &Visit) -> &'static Seat {
    &ALL[(visit.open.lease.entry as usize + visit.open.mount) % SEATS]
}

impl Seat {
    /// Tells whether it is time to ask.
    fn is_time(&self, visit: &Visit) -> bool {
        let Lease { entry, generation } = visit.open.lease;
        let asked = generation << 32 | u64::from(entry) << 2 | visit.open.mount as u64;
        if self.asked.swap(asked, Relaxed) != asked {
            self.skip.store(0, Relaxed);
            self.step.store(0, Relaxed);
        }
        let skip = self.skip.load(Relaxed);
        if skip > 0 {
            self.skip.store(skip - 1, Relaxed);
            return false;
        }
        let step = self.step.load(Relaxed);
        self.skip.store(step, Relaxed);
        self.step.store((step * 2 + 1).min(SKIP_MAX), Relaxed);
        self.writes.store(0, Relaxed);
        true
    }
}

/// Asks the daemon for a tail, long enough for a write that was not permitted because it passes the
/// end of the file; returns whether this process has it now. Not each time: where two processes make
/// one file grow, they would take it from each other.
#[cold]
pub fn ask(fd: Fd, visit: &Visit, io: Io) -> bool {
    let mount = visit.mount;
    if io.offset < SIZE_MIN
        || !mount.reader.lacks_tail(&mount.slots, visit.open.lease, io)
        || !process::is_home()
    {
        return false;
    }
    if !seat(visit).is_time(visit) || has_size_limit() || !visit.is_still(fd) {
        return false;
    }
    let bytes = TailRequest { client: mount.slots.client(), offset: io.offset, len: io.len };
    let mut bytes = bytes.encode();
    // SAFETY: the request's number says how many bytes go and come back.
    let result =
        unsafe { syscall!(libc::SYS_ioctl, visit.open.guard, TAIL_IOCTL, bytes.as_mut_ptr()) };
    result == 0 && TailRequest::is_given(&bytes)
}

/// Counts a write into the tail.
#[inline]
pub fn filled(visit: &Visit) {
    let seat = seat(visit);
    let writes = seat.writes.load(Relaxed).wrapping_add(1);
    seat.writes.store(writes, Relaxed);
    if writes == WRITES_ENOUGH {
        seat.skip.store(0, Relaxed);
        seat.step.store(0, Relaxed);
    }
}

/// Tells whether the process may make no file larger than some size, which the kernel sees to.
fn has_size_limit() -> bool {
    let mut limit = [0_u64; 2];
    // SAFETY: the kernel fills two words.
    let done =
        unsafe { syscall!(libc::SYS_prlimit64, 0, libc::RLIMIT_FSIZE, 0, limit.as_mut_ptr()) };
    done != 0 || limit[0] != libc::RLIM_INFINITY
}

/// Returns where a file ends that this process alone makes grow.
pub fn own_end(fd: Fd) -> Option<u64> {
    let visit = enter(fd)?;
    let end = visit.mount.reader.own_end(&visit.mount.slots, visit.open.lease)?;
    visit.is_still(fd).then_some(end)
}
