//! Requests in flight on the connections to one export.
//!
//! ```text
//!            call                                       thread of the connection
//!   pending ◄── cookie, waiter                reply ──► takes the waiter out of pending
//!   socket  ◄── request (under `sending`)                fills it ──► call wakes
//!
//!   break_off: `broken` is set ─► sockets are shut ─► every waiter in pending is told
//! ```
//! A waiter is put into pending only where `broken` is seen unset under the lock of pending, and a
//! break sets it before it takes that lock: so each waiter is told. It is set before any waiter is told
//! of it: so a call that failed by it is followed by none that goes on.
//! The locks are leaves: `sending` is held while bytes are sent, and nothing is taken under either.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::claim::Claim;
use super::socket::Socket;
use super::wire::{self, command};
use super::words;

/// How long the end of a device waits for a server that takes no bytes.
const GOODBYE: Duration = Duration::from_millis(200);

/// A request without its data.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub kind: u16,
    pub flags: u16,
    pub offset: u64,
    pub len: u32,
}

/// Why a call has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failed {
    /// The server's error number.
    Refused(u32),
    /// The link broke; [`Link::why`] says what of.
    Broken,
}

type Outcome = Result<Vec<u8>, Failed>;

/// A call that waits for its reply.
#[derive(Debug)]
struct Waiter {
    /// Bytes of data that follow a reply without an error.
    data_len: usize,
    outcome: Mutex<Option<Outcome>>,
    wake: Condvar,
}

impl Waiter {
    fn tell(&self, outcome: Outcome) {
        self.outcome.lock().get_or_insert(outcome);
        self.wake.notify_one();
    }

    /// Waits for the outcome; `None` where it does not come in time.
    fn wait(&self, deadline: Instant) -> Option<Outcome> {
        let mut outcome = self.outcome.lock();
        while outcome.is_none() {
            if self.wake.wait_until(&mut outcome, deadline).timed_out() {
                break;
            }
        }
        outcome.take()
    }
}

#[derive(Debug)]
struct Connection {
    socket: Socket,
    /// Held while a request is sent, so that no other comes between its parts.
    sending: Mutex<()>,
    pending: Mutex<HashMap<u64, Arc<Waiter>>>,
}

/// The connections to one export, and whether they hold.
#[derive(Debug)]
pub(super) struct Link {
    name: String,
    timeout: Duration,
    connections: Vec<Connection>,
    next: AtomicUsize,
    cookies: AtomicU64,
    /// Why nothing goes on; never unset (I-NDV-1).
    broken: OnceLock<String>,
    /// Given back at the end: nothing is asked of the export from then on.
    claim: Mutex<Option<Claim>>,
}

impl Link {
    /// Makes a link of sockets whose handshake is done.
    pub fn new(
        name: String,
        timeout: Duration,
        sockets: Vec<Socket>,
        claim: Option<Claim>,
    ) -> std::io::Result<Self> {
        for socket in &sockets {
            socket.wait_for_reads(None)?;
            socket.wait_for_writes(timeout)?;
        }
        let connection = |socket| Connection {
            socket,
            sending: Mutex::new(()),
            pending: Mutex::new(HashMap::new()),
        };
        Ok(Self {
            name,
            timeout,
            connections: sockets.into_iter().map(connection).collect(),
            next: AtomicUsize::new(0),
            cookies: AtomicU64::new(1),
            broken: OnceLock::new(),
            claim: Mutex::new(claim),
        })
    }

    /// Returns how many connections there are.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Returns why nothing goes on.
    pub fn why(&self) -> Option<&str> {
        self.broken.get().map(String::as_str)
    }

    /// Sends a request, with the data of a write, and waits for its reply; returns the data of a
    /// read. Where none comes in time, the link breaks.
    pub fn call(&self, call: &Call, data: &[u8]) -> Result<Vec<u8>, Failed> {
        let deadline = Instant::now() + self.timeout;
        let data_len = if call.kind == command::READ { call.len as usize } else { 0 };
        let waiter = Arc::new(Waiter { data_len, outcome: Mutex::new(None), wake: Condvar::new() });
        let at = self.next.fetch_add(1, Relaxed) % self.connections.len();
        let connection = &self.connections[at];
        let cookie = self.cookies.fetch_add(1, Relaxed);
        {
            let mut pending = connection.pending.lock();
            if self.broken.get().is_some() {
                return Err(Failed::Broken);
            }
            pending.insert(cookie, Arc::clone(&waiter));
        }
        if let Err(why) = connection.send(call, cookie, data, deadline) {
            self.break_off(&why);
        }
        waiter.wait(deadline).unwrap_or_else(|| {
            self.break_off(&format!(
                "the server did not answer within {} s",
                self.timeout.as_secs()
            ));
            Err(Failed::Broken)
        })
    }

    /// Hears the replies of one connection until it ends.
    pub fn listen(&self, at: usize) {
        let connection = &self.connections[at];
        loop {
            if let Err(why) = connection.hear() {
                return self.break_off(&why);
            }
        }
    }

    /// Ends all connections, and fails what is in flight and what comes after it.
    fn break_off(&self, why: &str) {
        // What was first tells the others.
        if self.broken.set(why.to_owned()).is_ok() {
            tracing::warn!(device = self.name, reason = why, "the connection to the server broke");
            self.end();
        }
    }

    fn end(&self) {
        for connection in &self.connections {
            connection.socket.shut();
            let waiters = std::mem::take(&mut *connection.pending.lock());
            waiters.into_values().for_each(|waiter| waiter.tell(Err(Failed::Broken)));
        }
        drop(self.claim.lock().take());
    }

    /// Takes leave of the server; nothing is in flight.
    pub fn close(&self) {
        let call = Call { kind: command::DISC, flags: 0, offset: 0, len: 0 };
        if self.broken.set("the device is closed".to_owned()).is_ok() {
            for connection in &self.connections {
                // A server that does not hear it sees the end of the connection.
                let _heard = connection.send(&call, 0, &[], Instant::now() + GOODBYE);
            }
            self.end();
        }
    }
}

impl Connection {
    /// Sends a request and its data; otherwise says why that failed.
    fn send(&self, call: &Call, cookie: u64, data: &[u8], deadline: Instant) -> Result<(), String> {
        let mut head = [0; wire::REQUEST_BYTES];
        head[..4].copy_from_slice(&wire::REQUEST_MAGIC.to_be_bytes());
        head[4..6].copy_from_slice(&call.flags.to_be_bytes());
        head[6..8].copy_from_slice(&call.kind.to_be_bytes());
        head[8..16].copy_from_slice(&cookie.to_be_bytes());
        head[16..24].copy_from_slice(&call.offset.to_be_bytes());
        head[24..].copy_from_slice(&call.len.to_be_bytes());
        let late = || "the server takes no requests".to_owned();
        let _turn = self.sending.try_lock_until(deadline).ok_or_else(late)?;
        self.socket.tell(&head, data, deadline).map_err(|error| match error.kind() {
            std::io::ErrorKind::TimedOut => late(),
            _ => words(&error),
        })
    }

    /// Hears one reply and tells the call that waits for it; otherwise says why nothing more can be
    /// heard.
    fn hear(&self) -> Result<(), String> {
        let mut head = [0; wire::SIMPLE_REPLY_BYTES];
        self.socket.hear(&mut head, None).map_err(|error| words(&error))?;
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if word(0) != wire::SIMPLE_REPLY_MAGIC {
            return Err("the server sent something that is no reply".to_owned());
        }
        let (errno, cookie) = (word(4), u64::from(word(8)) << 32 | u64::from(word(12)));
        // It stays in pending until all is heard: what breaks off meanwhile tells it.
        let waiter = self.pending.lock().get(&cookie).map(Arc::clone);
        let waiter =
            waiter.ok_or_else(|| "the server answered a request that was not made".to_owned())?;
        let outcome = if errno == 0 {
            // No longer than what was asked for, whatever the server says.
            let mut data = vec![0; waiter.data_len];
            self.socket.hear(&mut data, None).map_err(|error| words(&error))?;
            Ok(data)
        } else {
            Err(Failed::Refused(errno))
        };
        self.pending.lock().remove(&cookie);
        waiter.tell(outcome);
        Ok(())
    }
}
