//! The table of a queue's own buffers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::buffer::Slot;
use crate::{AlignedBuf, QueueOptions};

/// Buffers a queue hands out and takes back. Engines that are able to register them with the kernel
/// do so once, when the queue is made.
///
/// A buffer carries the id of its pool, because a slot number alone would let a buffer of one queue
/// name the pinned pages of another.
#[derive(Debug)]
pub(crate) struct BufferPool {
    id: u64,
    free: Vec<AlignedBuf>,
}

impl BufferPool {
    pub fn new(options: &QueueOptions) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let id = NEXT_ID.fetch_add(1, Relaxed);
        let count = u16::try_from(options.buffers).unwrap_or(u16::MAX);
        let make = |index| {
            let mut buf = AlignedBuf::zeroed(options.buffer_bytes);
            buf.slot = Some(Slot::new(id, index));
            buf
        };
        // Popped from the end, so the first buffer taken is number 0.
        Self { id, free: (0..count).rev().map(make).collect() }
    }

    pub fn take(&mut self) -> Option<AlignedBuf> {
        self.free.pop()
    }

    /// Takes a buffer back; one of another queue is simply freed.
    pub fn give(&mut self, buf: AlignedBuf) {
        if let Some(index) = self.index_of(&buf) {
            debug_assert!(
                self.free.iter().all(|free| self.index_of(free) != Some(index)),
                "buffer {index} was lent once, so it comes back once"
            );
            self.free.push(buf);
        }
    }

    /// Returns a buffer's slot if it belongs to this pool.
    #[inline]
    pub fn index_of(&self, buf: &AlignedBuf) -> Option<u16> {
        buf.slot.filter(|slot| slot.pool() == self.id).map(Slot::index)
    }

    /// Returns the buffers in slot order; whole only before the first `take`.
    pub fn in_slot_order(&mut self) -> impl Iterator<Item = &mut AlignedBuf> {
        self.free.iter_mut().rev()
    }
}
