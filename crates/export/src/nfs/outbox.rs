//! What a connection's thread and those that carry its requests out share: replies that are not
//! sent yet, and what its requests hold.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::socket::{Socket, retry};

/// How many requests of one connection are under way at most, those whose replies wait included.
const REQUESTS_MAX: usize = 64;
/// What they may hold: requests, and replies as long as they may become.
pub const CONNECTION_BYTES_MAX: usize = 16 << 20;
/// What each connection may hold whatever others do: one request of any size.
const OWN_BYTES: usize = (2 << 20) + (64 << 10);
/// What all may hold together, above what is their own.
pub const ALL_BYTES_MAX: usize = 256 << 20;

/// Bytes that all connections share.
#[derive(Debug)]
pub struct Budget(AtomicUsize);

impl Budget {
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self(AtomicUsize::new(bytes)))
    }
}

#[derive(Debug, Default)]
struct State {
    replies: VecDeque<Reply>,
    /// Bytes of the first that are sent.
    sent: usize,
    requests: usize,
    bytes: usize,
    /// The peer has gone.
    is_broken: bool,
}

#[derive(Debug)]
struct Reply {
    bytes: Vec<u8>,
    /// What its request holds.
    charge: usize,
}

/// The replies of one connection.
#[derive(Debug)]
pub struct Outbox {
    socket: Socket,
    state: Mutex<State>,
    budget: Arc<Budget>,
    /// Readable when the connection's thread has something to look at.
    event: OwnedFd,
}

impl Outbox {
    pub fn new(socket: Socket, budget: Arc<Budget>) -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { socket, state: Mutex::default(), budget, event })
    }

    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Takes back that there is something to look at.
    pub fn looked(&self) {
        // Nothing to take back is as good.
        let _taken = rustix::io::read(&self.event, &mut [0; 8]);
    }

    /// Takes room for a request; `false` while there is none.
    pub fn begin(&self, charge: usize) -> bool {
        let mut state = self.state.lock();
        let bytes = state.bytes + charge;
        let shared = |bytes: usize| bytes.saturating_sub(OWN_BYTES);
        let more = shared(bytes) - shared(state.bytes);
        let fits = state.requests < REQUESTS_MAX
            && (bytes <= CONNECTION_BYTES_MAX || state.requests == 0)
            && self.budget.0.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(more)).is_ok();
        if fits {
            state.requests += 1;
            state.bytes = bytes;
        }
        fits
    }

    fn end(&self, state: &mut State, charge: usize) {
        let bytes = state.bytes - charge;
        let shared = |bytes: usize| bytes.saturating_sub(OWN_BYTES);
        self.budget.0.fetch_add(shared(state.bytes) - shared(bytes), SeqCst);
        state.requests -= 1;
        state.bytes = bytes;
    }

    /// Ends a request with its reply, which is sent at once as far as the peer takes it; without
    /// one the peer sent what is no request, and has gone.
    pub fn finish(&self, reply: Option<Vec<u8>>, charge: usize) {
        let mut state = self.state.lock();
        match reply {
            Some(message) if !state.is_broken => {
                state.replies.push_back(Reply { bytes: as_record(&message), charge });
                if state.replies.len() == 1 {
                    self.send_now(&mut state);
                }
            }
            Some(_) => self.end(&mut state, charge),
            None => {
                self.end(&mut state, charge);
                self.break_off(&mut state);
            }
        }
        // The thread may wait for room, or has to send the rest.
        let one = 1_u64.to_ne_bytes();
        let _told = rustix::io::write(&self.event, &one);
    }

    /// Sends what the peer takes now; returns whether it took something.
    pub fn send(&self) -> bool {
        self.send_now(&mut self.state.lock())
    }

    fn send_now(&self, state: &mut State) -> bool {
        /// How many are sent with one call.
        const AT_ONCE_MAX: usize = 64;
        let mut progress = false;
        while !state.replies.is_empty() {
            let skip = |at: usize| if at == 0 { state.sent } else { 0 };
            let parts = state.replies.iter().take(AT_ONCE_MAX).enumerate();
            let slices: Vec<_> =
                parts.map(|(at, reply)| IoSlice::new(&reply.bytes[skip(at)..])).collect();
            match retry(|| self.socket.write(&slices)) {
                Ok(count) if count > 0 => {
                    progress = true;
                    state.sent += count;
                    self.drop_sent(state);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Ok(_) | Err(_) => self.break_off(state),
            }
        }
        progress
    }

    fn drop_sent(&self, state: &mut State) {
        while state.replies.front().is_some_and(|reply| state.sent >= reply.bytes.len()) {
            if let Some(reply) = state.replies.pop_front() {
                state.sent -= reply.bytes.len();
                self.end(state, reply.charge);
            }
        }
    }

    fn break_off(&self, state: &mut State) {
        state.is_broken = true;
        for reply in std::mem::take(&mut state.replies) {
            self.end(state, reply.charge);
        }
    }

    /// Says that nothing more is to be sent.
    pub fn give_up(&self) {
        self.break_off(&mut self.state.lock());
    }

    pub fn is_broken(&self) -> bool {
        self.state.lock().is_broken
    }

    /// Returns whether replies wait for the socket.
    pub fn has_unsent(&self) -> bool {
        !self.state.lock().replies.is_empty()
    }

    /// Returns whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.state.lock().requests == 0
    }
}

/// Puts the mark of a record of one fragment before a message.
fn as_record(message: &[u8]) -> Vec<u8> {
    let len = u32::try_from(message.len()).expect("a reply is shorter than 2 GiB");
    let mut record = (len | super::record::LAST).to_be_bytes().to_vec();
    record.extend_from_slice(message);
    record
}
