//! The heads of replies.

use super::wire::{SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk};

/// The longest: a chunk of data.
const HEAD_BYTES_MAX: usize = 28;

/// What stands before the data of a reply.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    bytes: [u8; HEAD_BYTES_MAX],
    len: usize,
}

impl Head {
    /// Makes a simple reply: an error number, or 0.
    pub fn simple(cookie: u64, errno: u32) -> Self {
        let mut head = Self { bytes: [0; HEAD_BYTES_MAX], len: 0 };
        head.put(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        head.put(&errno.to_be_bytes());
        head.put(&cookie.to_be_bytes());
        head
    }

    /// Makes the only chunk of a structured reply, with `len` bytes behind its head.
    pub fn chunk(cookie: u64, kind: u16, len: u32) -> Self {
        let mut head = Self { bytes: [0; HEAD_BYTES_MAX], len: 0 };
        head.put(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
        head.put(&chunk::DONE.to_be_bytes());
        head.put(&kind.to_be_bytes());
        head.put(&cookie.to_be_bytes());
        head.put(&len.to_be_bytes());
        head
    }

    /// Makes a chunk of `len` bytes of data from `offset`.
    pub fn data(cookie: u64, offset: u64, len: u32) -> Self {
        let mut head = Self::chunk(cookie, chunk::OFFSET_DATA, len + 8);
        head.put(&offset.to_be_bytes());
        head
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn put(&mut self, bytes: &[u8]) {
        debug_assert!(
            self.len + bytes.len() <= HEAD_BYTES_MAX,
            "the longest head is that of a chunk of data"
        );
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// Makes what follows the head of an error chunk.
pub fn error_payload(errno: u32, text: &str) -> Vec<u8> {
    /// What a client shows of it is a line.
    const TEXT_BYTES_MAX: usize = 512;
    let end = (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(|at| text.is_char_boundary(*at));
    let text = &text.as_bytes()[..end.unwrap_or(0)];
    let mut payload = errno.to_be_bytes().to_vec();
    payload.extend((text.len() as u16).to_be_bytes());
    payload.extend(text);
    payload
}
