//! Messages in a stream (RFC 5531, section 11): fragments, each behind its length.

use super::xdr::Garbage;

/// The bit of a length that says: no fragment of the message follows.
pub const LAST: u32 = 1 << 31;

/// Fragments that one message may have: a peer may send as many empty ones as it likes.
const FRAGMENTS_MAX: usize = 64;

/// A message that arrives.
#[derive(Debug)]
pub struct Incoming {
    max: usize,
    message: Vec<u8>,
    fragments: usize,
    mark: [u8; 4],
    marked: usize,
    /// Bytes of the fragment that are not here.
    left: usize,
    is_last: bool,
}

impl Incoming {
    /// Makes one of messages of at most `max` bytes.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self {
            max,
            message: Vec::new(),
            fragments: 0,
            mark: [0; 4],
            marked: 0,
            left: 0,
            is_last: false,
        }
    }

    /// Returns whether a message has begun.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.marked > 0 || self.fragments > 0
    }

    /// Takes bytes, and returns how many of them it took, and the message that they complete.
    ///
    /// # Errors
    /// A message that is longer than it may be, or comes in too many fragments.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(usize, Option<Vec<u8>>), Garbage> {
        let mut taken = 0;
        loop {
            if self.marked < self.mark.len() {
                let part = (self.mark.len() - self.marked).min(bytes.len() - taken);
                self.mark[self.marked..][..part].copy_from_slice(&bytes[taken..][..part]);
                self.marked += part;
                taken += part;
                if self.marked < self.mark.len() {
                    return Ok((taken, None));
                }
                self.begin_fragment()?;
            }
            // Memory comes with the bytes, not with what their number is said to be.
            let part = self.left.min(bytes.len() - taken);
            self.message.extend_from_slice(&bytes[taken..][..part]);
            self.left -= part;
            taken += part;
            if self.left > 0 {
                return Ok((taken, None));
            }
            self.marked = 0;
            if self.is_last {
                self.fragments = 0;
                return Ok((taken, Some(std::mem::take(&mut self.message))));
            }
        }
    }

    fn begin_fragment(&mut self) -> Result<(), Garbage> {
        let mark = u32::from_be_bytes(self.mark);
        self.left = (mark & !LAST) as usize;
        self.is_last = mark & LAST != 0;
        self.fragments += 1;
        let fits = self.message.len().checked_add(self.left).is_some_and(|len| len <= self.max);
        if fits && self.fragments <= FRAGMENTS_MAX { Ok(()) } else { Err(Garbage) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(max: usize, bytes: &[u8], step: usize) -> Result<Vec<Vec<u8>>, Garbage> {
        let (mut incoming, mut messages) = (Incoming::new(max), Vec::new());
        for mut part in bytes.chunks(step) {
            while !part.is_empty() {
                let (taken, message) = incoming.take(part)?;
                part = &part[taken..];
                messages.extend(message);
            }
        }
        Ok(messages)
    }

    #[test]
    fn s_467_messages_are_put_together_and_lengths_are_refused_before_memory_is_taken() {
        let mut bytes = vec![0, 0, 0, 2, b'a', b'b', 0x80, 0, 0, 1, b'c'];
        bytes.extend([0x80, 0, 0, 0, 0x80, 0, 0, 2, b'd', b'e']);
        for step in 1..=bytes.len() {
            let expected = vec![b"abc".to_vec(), vec![], b"de".to_vec()];
            assert_eq!(all(3, &bytes, step), Ok(expected), "{step}");
            assert_eq!(all(2, &bytes, step), Err(Garbage));
        }
        assert_eq!(all(1 << 20, &[0xff; 4], 4), Err(Garbage));
        assert_eq!(all(1 << 20, &[0; 4 * 65], 4), Err(Garbage), "empty fragments without end");
    }
}
