//! Replies that are not sent yet.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bedplate_block::AlignedBuf;

use super::reply::Head;
use super::transport::Transport;
use crate::buffers::Buffers;

/// Replies that wait before a connection takes no more requests.
const REPLIES_MAX: usize = 256;
/// How many are sent with one call.
const AT_ONCE_MAX: usize = 64;

/// What follows the head of a reply.
#[derive(Debug)]
pub enum Body {
    None,
    /// Data that was read.
    Data(AlignedBuf),
    /// Anything else.
    Bytes(Vec<u8>),
}

impl Body {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Data(buf) => buf,
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// Replies in the order in which they go.
#[derive(Debug, Default)]
pub struct Outbox {
    replies: VecDeque<(Head, Body)>,
    /// Bytes of the first that are sent.
    sent: usize,
}

impl Outbox {
    pub fn push(&mut self, head: Head, body: Body) {
        debug_assert!(
            !head.bytes().is_empty(),
            "a reply begins with a head: nothing else tells the client whose it is"
        );
        self.replies.push_back((head, body));
    }

    pub fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.replies.len() >= REPLIES_MAX
    }

    /// Sends what the peer takes now; returns whether it took anything.
    pub fn send(&mut self, transport: &mut Transport, buffers: &mut Buffers) -> io::Result<bool> {
        let mut progress = false;
        while !self.replies.is_empty() {
            let mut slices = Vec::with_capacity(2 * self.replies.len().min(AT_ONCE_MAX));
            let mut skip = self.sent;
            for (head, body) in self.replies.iter().take(AT_ONCE_MAX) {
                for part in [head.bytes(), body.bytes()] {
                    let skipped = skip.min(part.len());
                    skip -= skipped;
                    if skipped < part.len() {
                        slices.push(IoSlice::new(&part[skipped..]));
                    }
                }
            }
            let count = match transport.write(&slices) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(progress),
                Err(error) => return Err(error),
            };
            progress = true;
            debug_assert!(
                count <= slices.iter().map(|slice| slice.len()).sum(),
                "no more is sent than was given: {count} bytes"
            );
            self.sent += count;
            self.drop_sent(buffers);
        }
        Ok(progress)
    }

    fn drop_sent(&mut self, buffers: &mut Buffers) {
        while let Some((head, body)) = self.replies.front() {
            let len = head.bytes().len() + body.bytes().len();
            if self.sent < len {
                return;
            }
            self.sent -= len;
            if let Some((_, Body::Data(buf))) = self.replies.pop_front() {
                buffers.give(buf);
            }
        }
    }
}
