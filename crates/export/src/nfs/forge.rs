//! The server without a listener, for fuzzers.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::link::Link;
use super::record::Incoming;
use super::service::{self, CALL_BYTES_MAX};
use super::tree::Tree;

/// A server that bytes are given to.
#[derive(Debug)]
pub struct Service(service::Service, Arc<Link>);

impl Service {
    /// Serves a directory.
    #[must_use]
    pub fn new(tree: Tree) -> Self {
        Self(service::Service::new(tree), Link::new(IpAddr::V4(Ipv4Addr::LOCALHOST)))
    }

    /// Answers a call; `None` to what is none.
    #[must_use]
    pub fn answer(&self, call: &[u8]) -> Option<Vec<u8>> {
        let answer = self.0.answer(&self.1, call).ok()?;
        assert!(
            answer.len() <= service::reply_bytes_max(call),
            "a reply has the room that was taken for it"
        );
        Some(answer)
    }
}

/// Returns the messages in a stream that arrives in parts of `step` bytes, as far as it holds any.
#[must_use]
pub fn messages(stream: &[u8], step: usize) -> Vec<Vec<u8>> {
    let (mut incoming, mut messages) = (Incoming::new(CALL_BYTES_MAX), Vec::new());
    for mut part in stream.chunks(step.max(1)) {
        while !part.is_empty() {
            let Ok((taken, message)) = incoming.take(part) else { return messages };
            part = &part[taken..];
            messages.extend(message);
        }
    }
    messages
}
