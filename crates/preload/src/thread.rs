//! What belongs to a thread: its slot at each mount, and memory for what is not aligned.
//!
//! Thread-local storage without a destructor: a slot whose thread is gone is found by the next
//! thread that looks for one, and memory belongs to a slot.

use std::cell::Cell;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use bedplate_lease::SLOTS_PER_CLIENT;

use crate::mount::{MOUNTS, Mount};
use crate::process;
use crate::sys;

thread_local! {
    /// The epoch, and the slot in it plus 1.
    static SLOTS: Cell<[(u64, usize); MOUNTS]> = const { Cell::new([(0, 0); MOUNTS]) };
}

/// Returns the thread's slot at a mount.
#[inline]
pub fn slot(index: usize, mount: &Mount) -> Option<usize> {
    let epoch = process::epoch();
    let (of, slot) = SLOTS.get()[index];
    if of == epoch && slot != 0 { Some(slot - 1) } else { claim(index, mount, epoch) }
}

/// A child of `vfork` claims none: its number ends before those that use its memory.
#[cold]
fn claim(index: usize, mount: &Mount, epoch: u64) -> Option<usize> {
    if !process::is_home() {
        return None;
    }
    let (pid, tid) = (sys::pid(), sys::tid());
    // What says that it is this thread's is of a thread that had its number before.
    let slot = mount.slots.claim(tid, |thread| thread == tid || sys::is_gone(pid, thread))?;
    let mut all = SLOTS.get();
    all[index] = (epoch, slot + 1);
    SLOTS.set(all);
    Some(slot)
}

/// The longest I/O that memory of the thread's own is used for.
pub const BOUNCE_BYTES: usize = 1 << 18;
const _: () = assert!(
    BOUNCE_BYTES.is_multiple_of(4096),
    "memory of a thread is whole blocks of every device"
);

static BOUNCE: [[AtomicPtr<u8>; SLOTS_PER_CLIENT]; MOUNTS] =
    [const { [const { AtomicPtr::new(std::ptr::null_mut()) }; SLOTS_PER_CLIENT] }; MOUNTS];

/// Returns aligned memory of [`BOUNCE_BYTES`] that belongs to a slot, to be used by the thread that
/// has set it.
pub fn bounce(index: usize, slot: usize) -> Option<*mut u8> {
    let place = BOUNCE.get(index)?.get(slot)?;
    let memory = place.load(Acquire);
    if !memory.is_null() {
        return Some(memory);
    }
    let new = sys::map(BOUNCE_BYTES, libc::PROT_READ | libc::PROT_WRITE, None)?;
    match place.compare_exchange(std::ptr::null_mut(), new, Release, Relaxed) {
        Ok(_) => Some(new),
        Err(_) => None,
    }
}
