//! Memory through which bytes pass between the backing and the pages: taken for one request and
//! given back, so that no request waits for fresh memory.

use std::ops::{Deref, DerefMut};

use bedplate_block::AlignedBuf;

use super::layout::REQUEST_BYTES_MAX;
use super::sync::{Mutex, rank};

/// Memory that waits for its next use. A leaf.
type Kept = Mutex<Vec<AlignedBuf>, { rank::CACHE_LEAF }>;

const SMALL_BYTES: usize = 64 << 10;
const LARGE_BYTES: usize = REQUEST_BYTES_MAX as usize;
/// Buffers of each size that are kept for reuse.
const KEPT: usize = 8;
const _: () = assert!(SMALL_BYTES < LARGE_BYTES, "the two lengths of staging buffers differ");

#[derive(Debug, Default)]
pub(super) struct Staging {
    small: Kept,
    large: Kept,
}

/// A buffer of at least the length asked for; seen as exactly that long.
#[derive(Debug)]
pub(super) struct StagingBuf {
    buf: AlignedBuf,
    len: usize,
}

impl Deref for StagingBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buf[..self.len]
    }
}

impl DerefMut for StagingBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buf[..self.len]
    }
}

impl Staging {
    /// Hands out a buffer with whatever it held before.
    pub(super) fn take(&self, len: usize) -> StagingBuf {
        let (kept, size) = self.class(len);
        let buf = kept.lock().pop().unwrap_or_else(|| AlignedBuf::zeroed(size));
        debug_assert!(len <= buf.len(), "a buffer of its class holds {len} bytes: {}", buf.len());
        StagingBuf { buf, len }
    }

    pub(super) fn give(&self, buf: StagingBuf) {
        let (kept, _) = self.class(buf.len);
        let mut kept = kept.lock();
        if kept.len() < KEPT {
            kept.push(buf.buf);
        }
    }

    fn class(&self, len: usize) -> (&Kept, usize) {
        assert!(len <= LARGE_BYTES, "a request is cut to the largest size");
        if len <= SMALL_BYTES { (&self.small, SMALL_BYTES) } else { (&self.large, LARGE_BYTES) }
    }
}
