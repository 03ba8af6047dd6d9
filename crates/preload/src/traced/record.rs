//! A record finds its slot: the thread's own chunk, or a new one.

use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use bedplate_trace::{Arena, Identity, Slot, Who};

use super::arena;
use crate::process;
use crate::sys;

thread_local! {
    /// The first slot that is free: taken with one addition, so that a signal handler that comes in
    /// between takes others.
    static NEXT: AtomicU64 = const { AtomicU64::new(0) };
    static END: Cell<u64> = const { Cell::new(0) };
    /// The process's epoch when the chunk was taken.
    static EPOCH: Cell<u64> = const { Cell::new(0) };
    /// A chunk is being taken: a handler that comes in between has none.
    static IS_TAKING: Cell<bool> = const { Cell::new(false) };
}

/// The process's number in the trace, below the epoch that it was given out in.
static PROCESS: AtomicU64 = AtomicU64::new(0);
const EPOCH_AT: u32 = 32;

/// Returns the monotonic clock.
#[inline]
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure, without a system call where the clock allows it.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Records a call.
#[inline]
pub fn push(slot: &Slot) {
    if let Some((arena, at)) = slots(1) {
        arena.record(at, slot);
    }
}

/// Records what a file is.
pub fn push_file(file: &Identity, path: &[u8]) {
    if let Some((arena, at)) = slots(Arena::slots_of(path)) {
        arena.record_file(at, file, path);
    }
}

/// Takes slots that follow each other; counts them as lost where there is no room.
#[inline]
fn slots(count: u64) -> Option<(Arena<'static>, u64)> {
    let arena = arena::get()?;
    let epoch = process::epoch();
    if EPOCH.get() == epoch && epoch != 0 {
        let first = NEXT.with(|next| next.fetch_add(count, Relaxed));
        if first + count <= END.get() {
            return Some((arena, first));
        }
    }
    take(arena, count)
}

#[cold]
fn take(arena: Arena<'static>, count: u64) -> Option<(Arena<'static>, u64)> {
    if IS_TAKING.replace(true) {
        arena.lose(count);
        return None;
    }
    let taken = take_chunk(arena, count);
    IS_TAKING.set(false);
    if taken.is_none() {
        arena.lose(count);
    }
    Some((arena, taken?))
}

fn take_chunk(arena: Arena<'static>, count: u64) -> Option<u64> {
    let who = whose(arena)?;
    let chunk = arena.take(&who)?;
    // Nothing is taken of the old chunk from here on, nor of the new one before it is whole.
    END.set(0);
    NEXT.with(|next| next.store(chunk.first + count, Relaxed));
    EPOCH.set(process::epoch());
    END.set(chunk.end);
    Some(chunk.first)
}

/// Returns what the chunks of this thread belong to; the first thread of a process makes that
/// known.
fn whose(arena: Arena<'static>) -> Option<Who> {
    let (pid, thread) = (sys::pid(), sys::tid());
    let known = |epoch: u64| {
        let process = PROCESS.load(Relaxed);
        (epoch != 0 && process >> EPOCH_AT == epoch).then_some(Who {
            process: process as u32,
            pid,
            thread,
        })
    };
    if let Some(who) = known(process::epoch()) {
        return Some(who);
    }
    let _held = process::lock(crate::mount::forget_parents)?;
    // Another thread was first, and has the lock no more.
    if let Some(who) = known(process::epoch()) {
        return Some(who);
    }
    if !arena::admit_child(pid) {
        return None;
    }
    let who = Who { process: arena.next_process(), pid, thread };
    record_process(arena, &who);
    PROCESS.store(process::epoch() << EPOCH_AT | u64::from(who.process), Relaxed);
    Some(who)
}

/// Records the process, in a chunk that holds nothing else.
fn record_process(arena: Arena<'static>, who: &Who) {
    let mut path = [0; crate::uncached::PATH_BYTES];
    let program = sys::read_link(c"/proc/self/exe", &mut path).unwrap_or(&[]);
    match arena.take(who) {
        Some(chunk) => arena.record_process(chunk.first, who, sys::parent(), program),
        None => arena.lose(1),
    }
}
