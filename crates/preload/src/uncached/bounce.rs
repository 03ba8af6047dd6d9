//! Aligned memory for what the program's is not: some pieces for the whole process.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64};

use crate::sys;

/// Bytes of a piece.
pub const BYTES: usize = 1 << 18;
const PIECES: usize = 64;

static TAKEN: AtomicU64 = AtomicU64::new(0);
static MEMORY: [AtomicPtr<u8>; PIECES] = [const { AtomicPtr::new(std::ptr::null_mut()) }; PIECES];

/// A piece of this call's.
pub struct Bounce {
    index: usize,
    at: *mut u8,
}

impl Bounce {
    /// Takes a piece; nothing where all are taken, or the kernel has no memory.
    pub fn take() -> Option<Self> {
        let before = TAKEN
            .fetch_update(Acquire, Relaxed, |taken| {
                (taken != u64::MAX).then(|| taken | (taken + 1))
            })
            .ok()?;
        let index = before.trailing_ones() as usize;
        let known = MEMORY[index].load(Relaxed);
        let at = if known.is_null() {
            sys::map(BYTES, libc::PROT_READ | libc::PROT_WRITE, None).unwrap_or(known)
        } else {
            known
        };
        MEMORY[index].store(at, Relaxed);
        let piece = Self { index, at };
        (!at.is_null()).then_some(piece)
    }

    /// Returns its memory, of [`BYTES`].
    pub fn memory(&self) -> *mut u8 {
        self.at
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        TAKEN.fetch_and(!(1 << self.index), Release);
    }
}
