//! What came from a peer and is not used yet.

use std::io;

use super::transport::Transport;

/// As many requests of 4 KiB as a client mostly has under way, at once.
const BYTES: usize = 160 << 10;

/// Bytes that were received.
#[derive(Debug)]
pub struct Inbox {
    buf: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Inbox {
    /// How much fits.
    pub const CAPACITY: usize = BYTES;

    pub fn new() -> Self {
        Self { buf: vec![0; BYTES].into(), start: 0, end: 0 }
    }

    /// Returns what is there.
    pub fn bytes(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }

    /// Takes the first `count` of them out.
    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.end - self.start, "only what is there is taken out");
        self.start += count;
    }

    /// Moves what is there to `to`, as far as it reaches; returns how much that was.
    pub fn move_to(&mut self, to: &mut [u8]) -> usize {
        let count = to.len().min(self.end - self.start);
        to[..count].copy_from_slice(&self.bytes()[..count]);
        self.consume(count);
        count
    }

    /// Receives what the peer has sent, as much as there is room for, and at least room for a byte
    /// must be; 0 at the end of the stream.
    pub fn fill(&mut self, transport: &mut Transport) -> io::Result<usize> {
        if self.start > 0 {
            self.buf.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        assert!(self.end < self.buf.len(), "what is received has room");
        let count = transport.read(&mut self.buf[self.end..])?;
        debug_assert!(
            count <= self.buf.len() - self.end,
            "the transport says how much of the room it filled: {count}"
        );
        self.end += count;
        Ok(count)
    }
}
