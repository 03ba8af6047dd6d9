//! The memory of requests: bounded for a connection, and for all of them together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bedplate_block::AlignedBuf;

/// What the requests of one connection may hold: twice the largest request.
pub const CONNECTION_BYTES_MAX: usize = 64 << 20;
/// What each connection may hold whatever the others do: no client that stops halfway keeps the
/// small requests of others waiting.
const OWN_BYTES: usize = 1 << 20;
/// What a connection keeps for the next requests.
const KEPT_BYTES_MAX: usize = 8 << 20;

/// Bytes that all connections may hold together, above what is their own.
#[derive(Debug)]
pub struct Budget(AtomicUsize);

impl Budget {
    /// Makes one of so many bytes.
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self(AtomicUsize::new(bytes)))
    }

    fn take(&self, bytes: usize) -> bool {
        self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    fn give(&self, bytes: usize) {
        self.0.fetch_add(bytes, Relaxed);
    }
}

/// The buffers of one connection. Those that are kept count as held.
#[derive(Debug)]
pub struct Buffers {
    budget: Arc<Budget>,
    held_bytes: usize,
    kept: Vec<AlignedBuf>,
    kept_bytes: usize,
}

impl Buffers {
    pub fn new(budget: Arc<Budget>) -> Self {
        Self { budget, held_bytes: 0, kept: Vec::new(), kept_bytes: 0 }
    }

    /// Returns a buffer of `len` bytes with any content; `None` while there is no memory for it.
    pub fn take(&mut self, len: usize) -> Option<AlignedBuf> {
        if let Some(at) = self.kept.iter().rposition(|buf| buf.len() == len) {
            self.kept_bytes -= len;
            return Some(self.kept.swap_remove(at));
        }
        if !self.reserve(len) {
            self.shrink();
            if !self.reserve(len) {
                return None;
            }
        }
        Some(AlignedBuf::zeroed(len))
    }

    fn reserve(&mut self, len: usize) -> bool {
        let held_bytes = self.held_bytes + len;
        let more = shared(held_bytes) - shared(self.held_bytes);
        let fits = held_bytes <= CONNECTION_BYTES_MAX && self.budget.take(more);
        self.held_bytes = if fits { held_bytes } else { self.held_bytes };
        fits
    }

    /// Takes a buffer back.
    pub fn give(&mut self, buf: AlignedBuf) {
        debug_assert!(
            self.kept_bytes + buf.len() <= self.held_bytes,
            "a buffer that comes back is one of those held"
        );
        if self.kept_bytes + buf.len() <= KEPT_BYTES_MAX {
            self.kept_bytes += buf.len();
            self.kept.push(buf);
        } else {
            self.release(buf.len());
        }
    }

    /// Counts a buffer that does not come back.
    pub fn release(&mut self, len: usize) {
        assert!(
            len <= self.held_bytes,
            "what is released was taken: {len} of {} bytes",
            self.held_bytes
        );
        let held_bytes = self.held_bytes - len;
        self.budget.give(shared(self.held_bytes) - shared(held_bytes));
        self.held_bytes = held_bytes;
    }

    /// Returns whether there is something to give back to the system.
    pub fn is_keeping(&self) -> bool {
        self.kept_bytes > 0
    }

    /// Gives back what is kept.
    pub fn shrink(&mut self) {
        self.kept = Vec::new();
        let bytes = std::mem::take(&mut self.kept_bytes);
        self.release(bytes);
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        self.budget.give(shared(self.held_bytes));
    }
}

/// Returns how much of what a connection holds comes out of the budget.
fn shared(held_bytes: usize) -> usize {
    held_bytes.saturating_sub(OWN_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_connections_hold_is_bounded_and_comes_back() {
        let budget = Budget::new(100 << 20);
        let mut first = Buffers::new(Arc::clone(&budget));
        let mut second = Buffers::new(Arc::clone(&budget));
        let (a, b) = (first.take(32 << 20).unwrap(), first.take(32 << 20).unwrap());
        assert!(first.take(1).is_none(), "a connection holds no more than its share");
        let c = second.take(32 << 20).unwrap();
        assert!(second.take(8 << 20).is_none(), "nor all together more than theirs");
        let mut third = Buffers::new(Arc::clone(&budget));
        let third_buf = third.take(1 << 20).unwrap();
        assert!(third.take(7 << 20).is_none(), "some of it is its own, the rest is shared");
        drop((third_buf, third));
        first.give(a);
        let small = second.take(4 << 20).unwrap();
        second.give(small);
        assert!(second.is_keeping());
        let again = second.take(36 << 20);
        assert!(again.is_none() && !second.is_keeping(), "what is kept makes room");
        first.release(b.len());
        drop((b, c));
        drop((first, second));
        assert_eq!(budget.0.load(Relaxed), 100 << 20);
    }
}
