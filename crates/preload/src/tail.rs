//! Growth: a write that goes on where a file ends goes to blocks there which the daemon gave to this
//! process.
//!
//! ```text
//!   write at the end ─► within the tail ─► device ─► how far it is filled, told in the slots
//!          ├──────────► no tail, or behind it ─► ask (ioctl) ─► given: as above; else the mount
//!          └──────────► what lies before it is not there yet ─► device ─► wait for that; else once more
//! ```
//!
//! Threads that share out places at the end reach the device in another order, and one that asked the
//! mount would take the tail from all. So such a write goes to the device, too, and then waits for those
//! before it, which take it along ([`Order`]); where there is no tail for it yet, it waits for one. It
//! waits with no slot set: what it waits for may need the daemon, and the daemon the slot. Of a file
//! that one thread makes grow there are none to wait for.
//!
//! Where the file ends the kernel learns when it asks the daemon. What looks at the kernel's own idea
//! of it has the kernel ask first, or is answered here.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use bedplate_lease::wire::{TAIL_GAP_BYTES_MAX, TAIL_IOCTL, TailRequest};
use bedplate_lease::{Fallback, Io, Noted, ORDER_WORDS, Order, Permit, TailName};

use crate::due::{is_due, make_due};
use crate::process::has_size_limit;
use crate::sys::{Fd, syscall};
use crate::visit::{Visit, enter};
use crate::{appends, buffers, process, report};

/// Shorter files grow through the mount: most stay short.
const SIZE_MIN: u64 = 64 << 10;

/// Files that grow at the same time share a seat where they are more.
const SEATS: usize = 64;

/// So many writes into a tail, and losing it is no longer soon.
const WRITES_ENOUGH: u32 = 4;

/// How long a write waits for another, in nanoseconds; it is waked where that is done sooner.
const WAIT_NS: i64 = 100_000;

/// How often a write sees to what it lacks before the mount is asked.
const WAYS: u32 = 3;

/// How often it looks again without having been waked.
const LOOKS: u32 = 100;

/// After so many writes of one thread, those of another are over.
const WRITES_TOGETHER: u32 = 64;

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
    /// The lease under which a thread is asking; 0: none is.
    asking: AtomicU64,
    /// Writes behind the end that are with the mount.
    with_mount: AtomicU32,
    /// The thread that wrote last, by its slot; of a child of a fork, another than its parent's.
    thread: AtomicU64,
    /// Writes of it until others count no more.
    together: AtomicU32,
    /// Writes that wait for others.
    waiting: AtomicU32,
    /// Changes when what they wait for may have come.
    moved: AtomicU32,
    /// Writes that do not wait, after one that waited for nothing, and how many it will be next.
    hurry: AtomicU32,
    hurry_step: AtomicU32,
}

static ALL: [Seat; SEATS] = [const {
    Seat {
        skip: AtomicU32::new(0),
        step: AtomicU32::new(0),
        writes: AtomicU32::new(0),
        asked: AtomicU64::new(0),
        asking: AtomicU64::new(0),
        with_mount: AtomicU32::new(0),
        thread: AtomicU64::new(0),
        together: AtomicU32::new(0),
        waiting: AtomicU32::new(0),
        moved: AtomicU32::new(0),
        hurry: AtomicU32::new(0),
        hurry_step: AtomicU32::new(0),
    }
}; SEATS];

/// Of each seat the writes that came early.
static EARLY: [[AtomicU64; ORDER_WORDS]; SEATS] =
    [const { [const { AtomicU64::new(0) }; ORDER_WORDS] }; SEATS];

fn seat_number(visit: &Visit) -> usize {
    (visit.open.lease.entry as usize + visit.open.mount) % SEATS
}

fn seat(visit: &Visit) -> &'static Seat {
    &ALL[seat_number(visit)]
}

fn early(visit: &Visit) -> Order<&'static [AtomicU64]> {
    Order::new(&EARLY[seat_number(visit)])
}

/// Which lease it is, and of which process, in a word that is not 0: what a thread of the parent left
/// at a fork, or one that left its call for good, holds up no other lease.
fn name_of(visit: &Visit) -> u64 {
    (buffers::name_of(visit) ^ process::epoch() << 56).max(1)
}

impl Seat {
    /// Tells whether it is time to ask.
    fn is_time(&self, visit: &Visit) -> bool {
        let asked = name_of(visit);
        if self.asked.swap(asked, Relaxed) != asked {
            make_due(&self.skip, &self.step);
            make_due(&self.hurry, &self.hurry_step);
        }
        let is_time = is_due(&self.skip, &self.step);
        if is_time {
            self.writes.store(0, Relaxed);
        }
        is_time
    }

    /// Takes note of the thread that writes.
    fn note_thread(&self, visit: &Visit) {
        let (epoch, slot) = (process::epoch() << 32, visit.slot as u64 + 1);
        let before = self.thread.load(Relaxed);
        let together = self.together.load(Relaxed);
        if before == epoch | slot {
            self.together.store(together.saturating_sub(1), Relaxed);
            return;
        }
        let is_second = before >> 32 == epoch >> 32 && before != 0;
        self.together.store(if is_second { WRITES_TOGETHER } else { 0 }, Relaxed);
        self.thread.store(epoch | slot, Relaxed);
    }

    /// Tells whether several threads make files grow.
    fn has_threads(&self) -> bool {
        self.together.load(Relaxed) > 0
    }

    /// How far behind what is filled a write may begin: not where one waited for nothing lately.
    fn ahead_bytes(&self) -> u64 {
        let is_worth = self.has_threads() && self.hurry.load(Relaxed) == 0;
        if is_worth { TAIL_GAP_BYTES_MAX } else { 0 }
    }

    fn is_asking(&self, visit: &Visit) -> bool {
        self.asking.load(SeqCst) == name_of(visit)
    }

    /// Wakes the writes that wait.
    fn wake(&self) {
        // Either this thread sees that one waits, or that one what this thread has done.
        fence(SeqCst);
        if self.waiting.load(Relaxed) > 0 {
            self.moved.fetch_add(1, SeqCst);
            // SAFETY: wakes what waits for the word.
            unsafe {
                syscall!(libc::SYS_futex, &raw const self.moved, libc::FUTEX_WAKE, i32::MAX);
            }
        }
    }

    /// Waits until something is so, which is looked at each time that this is waked, and so many times
    /// besides.
    fn wait_until(&self, looks: u32, mut is_so: impl FnMut() -> bool) {
        self.waiting.fetch_add(1, SeqCst);
        let mut left = looks;
        while left > 0 {
            let moved = self.moved.load(SeqCst);
            if is_so() {
                break;
            }
            let time = libc::timespec { tv_sec: 0, tv_nsec: WAIT_NS };
            let (word, time) = (&raw const self.moved, &raw const time);
            // SAFETY: waits until the word is another, for so long, or wakes for nothing.
            let done = unsafe { syscall!(libc::SYS_futex, word, libc::FUTEX_WAIT, moved, time) };
            left -= u32::from(done == -(libc::ETIMEDOUT as isize));
        }
        self.waiting.fetch_sub(1, SeqCst);
    }
}

/// Begins a write again that was not permitted behind the end of the file, or while that was changed,
/// once what it lacks is there.
#[cold]
pub fn begin_again(
    fd: Fd,
    visit: &Visit,
    io: Io,
    mut lacks: Fallback,
    begin: impl Fn(u64) -> Result<Permit, Fallback>,
) -> Result<Permit, Fallback> {
    let seat = seat(visit);
    if lacks == Fallback::BeyondSize || lacks == Fallback::Revoked {
        seat.note_thread(visit);
    }
    let ahead_bytes = seat.ahead_bytes();
    if ahead_bytes > 0 && lacks == Fallback::BeyondSize {
        match begin(ahead_bytes) {
            Ok(permit) => return Ok(permit),
            Err(fallback) => lacks = fallback,
        }
    }
    // One that waited until the tail is full asks for another.
    for _ in 0..WAYS {
        let is_given = match lacks {
            Fallback::BeyondSize => ask(fd, visit, io) || follow(visit, io),
            Fallback::Revoked => follow(visit, io),
            _ => false,
        };
        if !is_given {
            break;
        }
        match begin(ahead_bytes) {
            Ok(permit) => return Ok(permit),
            Err(fallback) => lacks = fallback,
        }
    }
    Err(lacks)
}

/// Asks the daemon for a tail, long enough for a write that was not permitted because it passes the
/// end of the file; returns whether this process has it now. Not each time: where two processes make
/// one file grow, they would take it from each other.
#[cold]
fn ask(fd: Fd, visit: &Visit, io: Io) -> bool {
    let mount = visit.mount;
    if io.offset < SIZE_MIN
        || !mount.reader.lacks_tail(&mount.slots, visit.open.lease, io)
        || !process::is_home()
    {
        return false;
    }
    let seat = seat(visit);
    if seat.is_asking(visit) || !seat.is_time(visit) || has_size_limit() || !visit.is_still(fd) {
        return false;
    }
    let name = name_of(visit);
    if seat.asking.swap(name, SeqCst) == name {
        return false;
    }
    // What the mount has yet to write would take the tail away. From now on others wait.
    seat.wait_until(LOOKS, || seat.with_mount.load(SeqCst) == 0);
    let is_given = ask_daemon(visit, io);
    // Another file's thread may have taken the seat.
    let _ = seat.asking.compare_exchange(name, 0, SeqCst, Relaxed);
    seat.wake();
    is_given
}

fn ask_daemon(visit: &Visit, io: Io) -> bool {
    let mount = visit.mount;
    let bytes = TailRequest { client: mount.slots.client(), offset: io.offset, len: io.len };
    let mut bytes = bytes.encode();
    // SAFETY: the request's number says how many bytes go and come back.
    let result =
        unsafe { syscall!(libc::SYS_ioctl, visit.open.guard, TAIL_IOCTL, bytes.as_mut_ptr()) };
    result == 0 && TailRequest::is_given(&bytes)
}

/// Makes a write behind the end of a file through the mount, where it was asked for a tail of that.
#[cold]
pub fn mounted(visit: &Visit, write: impl FnOnce() -> isize) -> Option<isize> {
    let seat = seat(visit);
    if seat.asked.load(Relaxed) != name_of(visit) {
        return None;
    }
    seat.with_mount.fetch_add(1, SeqCst);
    let done = write();
    seat.with_mount.fetch_sub(1, SeqCst);
    seat.wake();
    Some(done)
}

/// What a write that waits finds.
enum Found {
    /// What lies before it is there.
    Turn,
    /// That is being filled, a tail asked for, or the file changed.
    Filling,
    /// Nothing to wait for.
    Nothing,
}

fn look(visit: &Visit, io: Io, seat: &Seat) -> Found {
    let (mount, open) = (visit.mount, &visit.open);
    match mount.reader.own_end(&mount.slots, open.lease) {
        Some(filled) if io.offset <= filled => Found::Turn,
        // That far behind the end others fill nothing.
        Some(filled) if io.offset - filled > TAIL_GAP_BYTES_MAX => Found::Nothing,
        Some(_) => Found::Filling,
        None if seat.is_asking(visit) => Found::Filling,
        None if mount.reader.find(open.inode).is_none() => Found::Filling,
        None => Found::Nothing,
    }
}

/// Waits, of a write that was not permitted, for the writes that come before it in the file, where this
/// process makes that grow; returns whether they are there.
#[cold]
fn follow(visit: &Visit, io: Io) -> bool {
    let seat = seat(visit);
    let may_come = io.offset >= SIZE_MIN
        && seat.has_threads()
        && seat.asked.load(Relaxed) == name_of(visit)
        && !(seat.writes.load(Relaxed) == 0 && matches!(look(visit, io, seat), Found::Nothing))
        && process::is_home();
    let hurry = seat.hurry.load(Relaxed);
    if !may_come || hurry > 0 {
        seat.hurry.store(hurry.saturating_sub(1), Relaxed);
        return false;
    }
    report::waited();
    let mut found = Found::Filling;
    seat.wait_until(LOOKS, || {
        found = look(visit, io, seat);
        !matches!(found, Found::Filling)
    });
    match found {
        Found::Turn => make_due(&seat.hurry, &seat.hurry_step),
        Found::Filling => {
            is_due(&seat.hurry, &seat.hurry_step);
        }
        Found::Nothing => {}
    }
    matches!(found, Found::Turn)
}

/// How far a write is that is on the device.
pub enum Told {
    /// The daemon knows of it.
    There,
    /// It is there once what lies before it is.
    Waits(TailName, Noted),
    /// Too many wait.
    Untold,
}

impl Told {
    /// Tells whether the daemon knows of the write, after a wait for those before it; the slot is clear.
    #[inline]
    pub fn wait(self, visit: &Visit) -> bool {
        match self {
            Self::There => true,
            Self::Waits(tail, noted) => wait_for_turn(visit, tail, noted),
            Self::Untold => false,
        }
    }
}

/// Tells the daemon of a write at `offset` that is on the device; of one into the tail those that wait
/// for it, too.
#[inline]
pub fn wrote(visit: &Visit, permit: &Permit, offset: u64) -> Told {
    if permit.fills_to == 0 {
        visit.mount.slots.wrote(visit.open.lease.entry, 0);
        return Told::There;
    }
    filled(visit, permit, offset)
}

fn filled(visit: &Visit, permit: &Permit, offset: u64) -> Told {
    let (seat, order) = (seat(visit), early(visit));
    let (slots, entry) = (&visit.mount.slots, visit.open.lease.entry);
    seat.note_thread(visit);
    let noted = if permit.is_ahead {
        slots.touch(entry);
        let Some(noted) = order.note(permit.tail, &(offset..permit.fills_to)) else {
            return Told::Untold;
        };
        Some(noted)
    } else {
        slots.wrote(entry, permit.fills_to);
        None
    };
    order.advance(permit.tail, || slots.filled(entry), |to| slots.wrote(entry, to));
    let writes = seat.writes.load(Relaxed).wrapping_add(1);
    seat.writes.store(writes, Relaxed);
    if writes == WRITES_ENOUGH {
        make_due(&seat.skip, &seat.step);
    }
    seat.wake();
    match noted {
        Some(noted) if order.is_filled(&noted) => {
            order.end(noted);
            Told::There
        }
        Some(noted) => Told::Waits(permit.tail, noted),
        None => Told::There,
    }
}

/// Waits until a write is taken along by those before it; returns whether it was.
#[cold]
fn wait_for_turn(visit: &Visit, tail: TailName, noted: Noted) -> bool {
    report::waited();
    let (seat, order, mount) = (seat(visit), early(visit), visit.mount);
    let is_over = || mount.reader.is_tail_over(&mount.slots, visit.open.lease, tail);
    seat.wait_until(LOOKS, || order.is_filled(&noted) || is_over());
    let is_there = order.end(noted);
    if is_there {
        make_due(&seat.hurry, &seat.hurry_step);
    } else if !is_over() {
        is_due(&seat.hurry, &seat.hurry_step);
    }
    is_there
}

/// Returns where a file ends that this process alone makes grow.
pub fn own_end(fd: Fd) -> Option<u64> {
    let visit = enter(fd)?;
    let of_tail = || visit.mount.reader.own_end(&visit.mount.slots, visit.open.lease);
    let end = appends::own_end(&visit).or_else(of_tail)?;
    visit.is_still(fd).then_some(end)
}
