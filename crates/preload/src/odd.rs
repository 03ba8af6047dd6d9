//! Writes of parts of sectors, by the process that the daemon gave the right to them.
//!
//! ```text
//!   odd write ─► no right ─► ask (ioctl) ─► given: as below; else the mount
//!      └───────► the right is this process's ─► its turn ─► read what is missing of the window,
//!                                                           change it, write the whole sectors
//! ```
//!
//! No other process writes to the file meanwhile, and the daemon only after it has waited for the
//! slot. Threads of this process take turns, with aligned writes too. What was written is on the
//! device when the call returns: a process that is killed takes nothing with it.
//!
//! - I-LSE-7: while a thread has its turn at a file that this process may write odd, no other
//!   thread of it writes there.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use bedplate_lease::wire::{ODD_IOCTL, OddRequest};
use bedplate_lease::{Direction, Io, Permit, WINDOW_BYTES, Window, WindowKey};

use crate::process::{self, OF_INSTRUCTIONS, Signals};
use crate::sys::{self, Fd, syscall};
use crate::thread;
use crate::visit::{Memory, Visit, transfer, whole};

/// Files that have odd writes at the same time share a seat where they are more.
const SEATS: usize = 16;

/// Asking anew is put off longer each time that the right was lost soon, up to so many writes.
const SKIP_MAX: u32 = 1023;

/// So many writes with the right, and losing it is no longer soon.
const WRITES_ENOUGH: u32 = 64;

struct Seat {
    /// The epoch's low bits, then 0: free, 1: taken, 2: taken, and others may wait.
    turn: AtomicU32,
    /// Odd writes that do not ask for the right.
    skip: AtomicU32,
    /// How many it will be after the next time.
    step: AtomicU32,
    /// The lease under which the right was last asked for: with another one it was not lost, but
    /// ended with the file's last open.
    asked: AtomicU64,
    inner: UnsafeCell<Inner>,
}

struct Inner {
    window: Window,
    /// [`WINDOW_BYTES`] of the window; null until they are needed.
    memory: *mut u8,
    writes: u32,
}

// SAFETY: `inner` is used by the thread that has the turn.
unsafe impl Sync for Seat {}

static ALL: [Seat; SEATS] = [const {
    Seat {
        turn: AtomicU32::new(0),
        skip: AtomicU32::new(0),
        step: AtomicU32::new(0),
        asked: AtomicU64::new(0),
        inner: UnsafeCell::new(Inner {
            window: Window::new(),
            memory: std::ptr::null_mut(),
            writes: 0,
        }),
    }
}; SEATS];

fn seat(visit: &Visit) -> &'static Seat {
    &ALL[(visit.open.lease.entry as usize + visit.open.mount) % SEATS]
}

impl Seat {
    /// Tells whether it is time to ask for the right.
    fn is_time(&self, visit: &Visit) -> bool {
        let lease = visit.open.lease;
        let asked = lease.generation << 32 | u64::from(lease.entry) << 2 | visit.open.mount as u64;
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
        true
    }
}

const STATE_BITS: u32 = 2;
const STATE_MASK: u32 = (1 << STATE_BITS) - 1;

/// A thread's turn at a seat. Signals are held back, so that no handler of this thread waits for
/// the turn, and none leaves the call.
struct Turn {
    seat: &'static Seat,
}

impl Turn {
    fn take(seat: &'static Seat, _signals: &Signals) -> Self {
        // A turn of another epoch is one that a thread of the parent had during the fork.
        let epoch = (process::epoch() as u32) << STATE_BITS;
        let mut taken = 1;
        loop {
            let now = seat.turn.load(Relaxed);
            if now & STATE_MASK == 0 || now & !STATE_MASK != epoch {
                if seat.turn.compare_exchange(now, epoch | taken, Acquire, Relaxed).is_ok() {
                    return Self { seat };
                }
                continue;
            }
            let waited = epoch | 2;
            if now == waited || seat.turn.compare_exchange(now, waited, Relaxed, Relaxed).is_ok() {
                // SAFETY: waits until the word is another, or wakes for nothing.
                unsafe {
                    syscall!(libc::SYS_futex, &raw const seat.turn, libc::FUTEX_WAIT, waited, 0);
                }
                // There may be others that wait too.
                taken = 2;
            }
        }
    }

    fn inner(&mut self) -> &mut Inner {
        // SAFETY: it is this thread's turn.
        unsafe { &mut *self.seat.inner.get() }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let was = self.seat.turn.fetch_and(!STATE_MASK, Release);
        debug_assert!(was & STATE_MASK != 0, "I-LSE-7: a turn that ends was taken: {was:#x}");
        if was & STATE_MASK == 2 {
            // SAFETY: wakes one that waits for the word.
            unsafe { syscall!(libc::SYS_futex, &raw const self.seat.turn, libc::FUTEX_WAKE, 1) };
        }
    }
}

/// Asks the daemon for the right to odd writes of the file; returns whether this process has it
/// now. Not each time: where two processes write odd, they would take it from each other.
#[cold]
pub fn ask(fd: Fd, visit: &Visit, io: Io, memory: Memory) -> bool {
    let alignment = visit.mount.reader.geometry().alignment_bytes;
    let is_short = io.sectors(alignment).is_some_and(|it| it.len <= WINDOW_BYTES as u64);
    if !is_short || !matches!(memory, Memory::Buffer(..)) || !process::is_home() {
        return false;
    }
    let seat = seat(visit);
    if !seat.is_time(visit) || !visit.is_still(fd) {
        return false;
    }
    let mut bytes = OddRequest { client: visit.mount.slots.client() }.encode();
    // SAFETY: the request's number says how many bytes go and come back.
    let result =
        unsafe { syscall!(libc::SYS_ioctl, visit.open.guard, ODD_IOCTL, bytes.as_mut_ptr()) };
    result == 0 && OddRequest::is_given(&bytes)
}

/// Carries out a write that was permitted, of whatever length, to a file of which this process has
/// the right to odd writes. Nothing where its memory does not do.
pub fn write(visit: &Visit, memory: Memory, io: Io, permit: &Permit) -> Option<isize> {
    // A child of `vfork` that is killed would keep the turn for good.
    if !process::is_home() {
        return None;
    }
    let is_odd = io.is_odd(visit.mount.reader.geometry().alignment_bytes);
    let signals = Signals::hold_back(OF_INSTRUCTIONS);
    // The program's memory is touched before the turn is taken: it may not be there.
    let memory = staged(visit, memory, is_odd)?;
    let mut turn = Turn::take(seat(visit), &signals);
    let seat = turn.seat;
    let inner = turn.inner();
    inner.writes = inner.writes.saturating_add(1);
    if inner.writes == WRITES_ENOUGH {
        (inner.writes, _) = (0, seat.step.swap(0, Relaxed));
    }
    match memory {
        Memory::Buffer(buf, len) if is_odd => inner.change(visit, buf, len, io, permit),
        _ => {
            inner.window.forget();
            transfer(visit, Direction::Write, memory, permit.device_offset)
        }
    }
}

/// Returns the memory to write from while it is this thread's turn: its own where the bytes are
/// copied.
fn staged(visit: &Visit, memory: Memory, is_odd: bool) -> Option<Memory> {
    let Memory::Buffer(buf, len) = memory else { return (!is_odd).then_some(memory) };
    if !is_odd && (buf as u64).is_multiple_of(visit.mount.memory_alignment) {
        return Some(memory);
    }
    let most = if is_odd { WINDOW_BYTES } else { thread::BOUNCE_BYTES };
    if len > most {
        return None;
    }
    let own = thread::bounce(visit.open.mount, visit.slot)?.cast::<c_void>();
    // SAFETY: the caller's buffer of `len` bytes; the slot's memory is at least as long and of this
    // thread while the slot is set.
    unsafe { std::ptr::copy_nonoverlapping(buf.cast_const(), own, len) };
    Some(Memory::Buffer(own, len))
}

impl Inner {
    /// Writes the sectors around an odd write.
    fn change(
        &mut self,
        visit: &Visit,
        buf: *mut c_void,
        len: usize,
        io: Io,
        permit: &Permit,
    ) -> Option<isize> {
        if self.memory.is_null() {
            self.memory = sys::map(WINDOW_BYTES, libc::PROT_READ | libc::PROT_WRITE, None)?;
        }
        let (mount, device) = (visit.mount, visit.mount.device());
        let alignment = mount.reader.geometry().alignment_bytes;
        let lease = visit.open.lease;
        let key =
            WindowKey { epoch: process::epoch(), mount: visit.open.mount, lease, seq: permit.seq };
        let plan = self.window.plan(key, io, permit, alignment)?;
        let memory = self.memory.cast::<c_void>();
        let move_whole = |direction, at: usize, len: usize| {
            // SAFETY: within the window's memory, as it was planned.
            let part = unsafe { memory.byte_add(at) };
            whole(device, direction, part, len, permit.device_offset) == len as isize
        };
        debug_assert!(
            plan.read <= WINDOW_BYTES
                && plan.bytes_at + len <= WINDOW_BYTES
                && plan.sectors_at <= plan.bytes_at
                && plan.bytes_at + len <= plan.sectors_at + plan.sectors_len,
            "the sectors of an odd write hold its bytes, and the window both"
        );
        if plan.read > 0 {
            if !move_whole(Direction::Read, 0, plan.read) {
                self.window.forget();
                return Some(-1);
            }
            self.window.filled();
        }
        // SAFETY: `buf` is the thread's own memory, of `len` bytes; the plan lies in the window's.
        unsafe {
            std::ptr::copy_nonoverlapping(buf.cast_const(), memory.byte_add(plan.bytes_at), len);
        }
        if !move_whole(Direction::Write, plan.sectors_at, plan.sectors_len) {
            self.window.forget();
            return Some(-1);
        }
        Some(len as isize)
    }
}
