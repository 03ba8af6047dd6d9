//! Replies that were given, for requests that come again: carried out a second time, one that
//! removes a name would fail, though it has done what it should.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use parking_lot::{Condvar, Mutex};

/// How many replies are kept: the oldest go first.
const REPLIES_MAX: usize = 4096;
/// How many bytes they may have together.
const BYTES_MAX: usize = 4 << 20;

/// What tells a request from others: whence, which number, and a hash of all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    peer: IpAddr,
    xid: u32,
    hash: [u8; 16],
}

impl Identity {
    pub fn of(peer: IpAddr, xid: u32, record: &[u8]) -> Self {
        let mut hash = [0; 16];
        hash.copy_from_slice(&blake3::hash(record).as_bytes()[..16]);
        Self { peer, xid, hash }
    }
}

#[derive(Debug, Default)]
struct Kept {
    /// None: it is being carried out.
    replies: HashMap<Identity, Option<Vec<u8>>>,
    /// Those that were carried out, the oldest first.
    order: VecDeque<Identity>,
    bytes: usize,
}

/// The replies.
#[derive(Debug, Default)]
pub struct Replies {
    kept: Mutex<Kept>,
    done: Condvar,
}

impl Replies {
    /// Returns the reply to a request; carries it out with `run` where it did not come before. One
    /// that is being carried out is waited for.
    pub fn get(&self, identity: Identity, run: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
        let mut kept = self.kept.lock();
        loop {
            match kept.replies.get(&identity) {
                Some(Some(reply)) => return reply.clone(),
                Some(None) => self.done.wait(&mut kept),
                None => break,
            }
        }
        kept.replies.insert(identity, None);
        drop(kept);
        let mut running = Running { replies: self, identity, reply: None };
        let reply = run();
        running.reply = Some(reply.clone());
        reply
    }
}

/// A request that is being carried out. Dropped, it is no more, with its reply or without.
struct Running<'a> {
    replies: &'a Replies,
    identity: Identity,
    reply: Option<Vec<u8>>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut kept = self.replies.kept.lock();
        match self.reply.take() {
            Some(reply) => {
                kept.bytes += reply.len();
                kept.replies.insert(self.identity, Some(reply));
                kept.order.push_back(self.identity);
            }
            None => {
                kept.replies.remove(&self.identity);
            }
        }
        while kept.order.len() > REPLIES_MAX || kept.bytes > BYTES_MAX {
            let Some(oldest) = kept.order.pop_front() else { break };
            let reply = kept.replies.remove(&oldest).flatten();
            kept.bytes -= reply.map_or(0, |reply| reply.len());
        }
        self.replies.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use super::*;

    fn identity(xid: u32) -> Identity {
        Identity::of(IpAddr::from([127, 0, 0, 1]), xid, b"request")
    }

    #[test]
    fn s_470_a_request_that_comes_again_is_carried_out_once() {
        let (replies, count) = (Replies::default(), AtomicU32::new(0));
        let run = || count.fetch_add(1, SeqCst).to_be_bytes().to_vec();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert_eq!(replies.get(identity(1), run), [0; 4]));
            }
        });
        assert_eq!(replies.get(identity(2), run), [0, 0, 0, 1]);
        let other = Identity::of(IpAddr::from([127, 0, 0, 2]), 1, b"request");
        assert_eq!(replies.get(other, run), [0, 0, 0, 2]);
        let changed = Identity::of(IpAddr::from([127, 0, 0, 1]), 1, b"another");
        assert_eq!(replies.get(changed, run), [0, 0, 0, 3]);
    }

    #[test]
    fn s_467_what_is_kept_of_replies_is_bounded() {
        let replies = Replies::default();
        for xid in 0..2 * REPLIES_MAX as u32 {
            replies.get(identity(xid), || vec![0; 100]);
        }
        let kept = replies.kept.lock();
        assert_eq!((kept.replies.len(), kept.bytes), (REPLIES_MAX, 100 * REPLIES_MAX));
    }
}
