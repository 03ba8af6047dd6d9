//! Memory through which bytes pass between the backing and the pages: taken for one request and given back, so that no request waits for fresh memory.

use std::ops::{Deref, DerefMut};

use block::AlignedBuf;

use super::sync::Mutex;

const SMALL_BYTES: usize = 64 << 10;
/// Buffers of each size that are kept for reuse.
const KEPT: usize = 8;

#[derive(Debug)]
pub(super) struct Staging {
    large_bytes: usize,
    small: Mutex<Vec<AlignedBuf>>,
    large: Mutex<Vec<AlignedBuf>>,
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
    /// For requests of up to `large_bytes`.
    pub(super) fn new(large_bytes: usize) -> Self {
        Self { large_bytes: large_bytes.max(SMALL_BYTES), small: Mutex::default(), large: Mutex::default() }
    }

    /// Hands out a buffer with whatever it held before.
    pub(super) fn take(&self, len: usize) -> StagingBuf {
        let (kept, size) = self.class(len);
        let buf = kept.lock().pop().unwrap_or_else(|| AlignedBuf::zeroed(size));
        StagingBuf { buf, len }
    }

    pub(super) fn give(&self, buf: StagingBuf) {
        let (kept, _) = self.class(buf.len);
        let mut kept = kept.lock();
        if kept.len() < KEPT {
            kept.push(buf.buf);
        }
    }

    fn class(&self, len: usize) -> (&Mutex<Vec<AlignedBuf>>, usize) {
        assert!(len <= self.large_bytes, "a request is cut to the largest size");
        if len <= SMALL_BYTES { (&self.small, SMALL_BYTES) } else { (&self.large, self.large_bytes) }
    }
}
