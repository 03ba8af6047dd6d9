//! Memory that all files of a mount take together for one purpose, below a bound.
//!
//! Large buffers that come free are kept for a while: to map a new one, to fill it with zeros and to
//! give it back costs as much as its bytes take to the device.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_block::AlignedBuf;
use bedplate_block::sync::{Mutex, rank};

/// From how many bytes on a buffer is kept, and how many of them at most.
const SPARE_BYTES_MIN: usize = 256 << 10;
const SPARE_MAX: usize = 8;

/// How much is taken.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedBytes(Arc<Taken>);

#[derive(Debug, Default)]
struct Taken {
    bytes: AtomicU64,
    /// A leaf.
    spare: Mutex<Vec<AlignedBuf>, { rank::SPARE_MEMORY }>,
}

/// A buffer, kept for others when it is dropped.
#[derive(Debug)]
pub(super) struct Memory {
    buf: AlignedBuf,
    all: SharedBytes,
}

/// What one holder has of it, until it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    all: SharedBytes,
    bytes: u64,
}

impl SharedBytes {
    /// Returns how much is taken now.
    pub(crate) fn total(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Returns a buffer of `len` bytes, which hold what they held.
    pub(super) fn memory(&self, len: usize) -> Memory {
        let mut spare = self.0.spare.lock();
        let found = spare.iter().position(|buf| buf.len() == len);
        let kept = found.map(|at| spare.swap_remove(at));
        drop(spare);
        Memory { buf: kept.unwrap_or_else(|| AlignedBuf::zeroed(len)), all: self.clone() }
    }

    /// Gives back what is kept for others.
    pub(crate) fn let_spare_go(&self) {
        let gone = std::mem::take(&mut *self.0.spare.lock());
        drop(gone);
    }

    /// Takes so many bytes unless all together would pass `max`.
    pub(super) fn take(&self, bytes: u64, max: u64) -> Option<Share> {
        let taken = self.0.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| {
            Some(all + bytes).filter(|all| *all <= max)
        });
        taken.ok().map(|_| Share { all: self.clone(), bytes })
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buf
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buf
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.buf.len() < SPARE_BYTES_MIN {
            return;
        }
        let mut spare = self.all.0.spare.lock();
        if spare.len() < SPARE_MAX {
            spare.push(std::mem::replace(&mut self.buf, AlignedBuf::zeroed(0)));
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let before = self.all.0.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        debug_assert!(before >= self.bytes, "a share is of what is taken: {before} bytes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_buffers_are_kept_for_the_next_ones_and_not_too_many() {
        let all = SharedBytes::default();
        let kept = || all.0.spare.lock().len();
        let mut first = all.memory(SPARE_BYTES_MIN);
        first[7] = 9;
        drop((first, all.memory(SPARE_BYTES_MIN / 2)));
        assert_eq!(kept(), 1, "small ones are not");
        let other = all.memory(2 * SPARE_BYTES_MIN);
        assert_eq!((other[7], kept()), (0, 1), "it has another length");
        let again = all.memory(SPARE_BYTES_MIN);
        assert_eq!((again[7], kept()), (9, 0));
        let many: Vec<_> = (0..SPARE_MAX).map(|_| all.memory(SPARE_BYTES_MIN)).collect();
        drop((many, again, other));
        assert_eq!(kept(), SPARE_MAX);
        all.let_spare_go();
        assert_eq!(kept(), 0);
    }
}
