//! One connection, with the sockets that it has one after the other.

use std::collections::HashMap;
use std::io::{self, IoSlice, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::frame::Frame;
use super::slots::Slot;
use super::socket::{connect, look_interval};
use super::{Failed, Finish, Reply, Rules};
use crate::session::Guard;
use crate::url::Patience;
use crate::wire::record::Incoming;
use crate::wire::rpc::ReplyHead;
use crate::wire::xdr::Reader;

/// How many bytes are received at once.
const CHUNK_BYTES: usize = 256 << 10;
/// How long a call waits at most, however often it was made.
const WAIT_MAX: Duration = Duration::from_secs(600);
/// How long a server that ends connections is left alone before the next one.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How many slices one call of the system takes.
const SLICES_MAX: usize = 1000;

/// A call that is not answered.
struct Waiting {
    frame: Arc<Frame>,
    finish: Finish,
    guard: Option<Arc<Guard>>,
    /// When its time began to run, and how often it ran out.
    since: Instant,
    times: u32,
    _slot: Slot,
}

impl Waiting {
    fn is_lost(&self) -> bool {
        self.guard.as_ref().is_some_and(|guard| guard.is_lost())
    }
}

#[derive(Default)]
struct State {
    socket: Option<Arc<TcpStream>>,
    /// One that is made ready.
    unready: Option<Arc<TcpStream>>,
    pending: HashMap<u32, Waiting>,
    is_closed: bool,
    /// It was said that the server is silent.
    is_silent: bool,
}

/// A connection to a server.
pub struct Connection {
    address: SocketAddr,
    /// Which of the client's connections it is.
    place: u32,
    rules: Rules,
    state: Mutex<State>,
    changed: Condvar,
    /// Held while messages are sent, so that no other comes between their parts.
    sending: Mutex<()>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Why a socket is of no use any more.
enum Break {
    /// The client ends.
    Closed,
    /// An answer is overdue.
    Overdue,
    /// The peer ended it, or sent what is no reply.
    Peer(String),
}

impl Connection {
    pub fn new(address: SocketAddr, place: u32, rules: Rules) -> Self {
        Self {
            address,
            place,
            rules,
            state: Mutex::default(),
            changed: Condvar::new(),
            sending: Mutex::new(()),
        }
    }

    /// Takes a call over: from now on it is told an end. Returns the socket that its message is to be
    /// sent on; where there is none, the connection's thread sends it with its next one. So each
    /// socket carries a message once.
    pub fn enter(
        &self,
        frame: &Arc<Frame>,
        (finish, guard): (Finish, Option<Arc<Guard>>),
        slot: Slot,
    ) -> Option<Arc<TcpStream>> {
        let waiting = Waiting {
            frame: Arc::clone(frame),
            finish,
            guard,
            since: Instant::now(),
            times: 0,
            _slot: slot,
        };
        let mut state = self.state.lock();
        if state.is_closed {
            drop(state);
            (waiting.finish)(Err(Failed::Closed));
            return None;
        }
        // Sockets are ready only once what was lost is known (I-NLM-3).
        if waiting.is_lost() {
            drop(state);
            (waiting.finish)(Err(Failed::LockLost));
            return None;
        }
        let before = state.pending.insert(frame.xid(), waiting);
        assert!(before.is_none(), "a number is used again after four thousand million calls");
        let socket = state.socket.clone();
        drop(state);
        if socket.is_none() {
            self.changed.notify_one();
        }
        socket
    }

    /// Sends messages of calls on the socket that [`enter`](Self::enter) told.
    pub fn send(&self, socket: &TcpStream, frames: &[Arc<Frame>]) {
        let _turn = self.sending.lock();
        let mut slices = Vec::with_capacity(3 * frames.len());
        frames.iter().for_each(|frame| frame.add_to(&mut slices));
        if write_all(socket, &mut slices).is_err() {
            // A part of a message may have left; the thread that hears sees the end.
            let _shut = socket.shutdown(Shutdown::Both);
        }
    }

    /// Ends the connection: what is in flight and what comes is told so.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        for socket in [state.socket.take(), state.unready.take()].into_iter().flatten() {
            let _shut = socket.shutdown(Shutdown::Both);
        }
        let pending = std::mem::take(&mut state.pending);
        drop(state);
        self.changed.notify_one();
        pending.into_values().for_each(|waiting| (waiting.finish)(Err(Failed::Closed)));
    }

    /// Holds the connection until it is closed: hears replies, and makes another socket where one
    /// breaks.
    pub fn serve(&self, first: Option<TcpStream>) {
        let mut first = first;
        let mut pause = PAUSE_MIN;
        loop {
            let socket = match first.take() {
                Some(socket) => Ok(socket),
                None if !self.wait_for_calls() => return,
                None => connect(self.address, self.rules.timeout),
            };
            let why = match socket {
                Ok(socket) => match self.hear_of(&Arc::new(socket), &mut pause) {
                    Break::Closed => return,
                    Break::Overdue => continue,
                    Break::Peer(why) => why,
                },
                Err(error) => format!("it is not reached ({error})"),
            };
            self.say_silent(&why);
            self.look(&why);
            if !self.rest(pause) {
                return;
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Waits until there is something to send, or locks to keep; `false` when the client ends.
    fn wait_for_calls(&self) -> bool {
        let has_locks = self.rules.session.as_ref().is_some_and(|session| session.has_locks());
        let mut state = self.state.lock();
        while state.pending.is_empty() && !state.is_closed && !has_locks {
            self.changed.wait(&mut state);
        }
        !state.is_closed
    }

    /// Waits a while; `false` when the client ends.
    fn rest(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        let mut state = self.state.lock();
        while !state.is_closed && !self.changed.wait_until(&mut state, until).timed_out() {}
        !state.is_closed
    }

    /// Says once that a server is not there for calls that wait.
    fn say_silent(&self, why: &str) {
        let mut state = self.state.lock();
        if !state.pending.is_empty() && !state.is_silent {
            state.is_silent = true;
            tracing::warn!("the NFS server {} does not answer: {why}; trying again", self.address);
        }
    }

    /// Takes a socket into use, sends all again that is not answered, and hears replies until the
    /// socket breaks.
    fn hear_of(&self, socket: &Arc<TcpStream>, pause: &mut Duration) -> Break {
        if let Err(broken) = self.make_ready(socket) {
            return broken;
        }
        let Some(again) = self.take_into_use(socket) else { return Break::Closed };
        let broken = std::thread::scope(|scope| {
            if !again.is_empty() {
                // A server that waits for its replies to be heard takes no more calls.
                scope.spawn(|| {
                    again.iter().for_each(|frame| {
                        self.send(socket, std::slice::from_ref(frame));
                    });
                });
            }
            let broken = self.hear(socket, pause);
            self.state.lock().socket = None;
            let _shut = socket.shutdown(Shutdown::Both);
            broken
        });
        if self.state.lock().is_closed { Break::Closed } else { broken }
    }

    /// Has the server know whose connection it is, where locks depend on it.
    fn make_ready(&self, socket: &Arc<TcpStream>) -> Result<(), Break> {
        let Some(session) = &self.rules.session else { return Ok(()) };
        {
            let mut state = self.state.lock();
            if state.is_closed {
                return Err(Break::Closed);
            }
            state.unready = Some(Arc::clone(socket));
        }
        let ready = session.greet(socket, self.place, self.rules.timeout);
        let mut state = self.state.lock();
        state.unready = None;
        if state.is_closed { Err(Break::Closed) } else { ready.map_err(Break::Peer) }
    }

    /// Has calls be sent on a socket from now on. Returns what is to be sent again; fails what stands
    /// under locks that were lost. `None` where the client ends.
    fn take_into_use(&self, socket: &Arc<TcpStream>) -> Option<Vec<Arc<Frame>>> {
        let mut state = self.state.lock();
        if state.is_closed {
            return None;
        }
        state.socket = Some(Arc::clone(socket));
        let lost: Vec<Waiting> = state
            .pending
            .extract_if(|_, waiting| waiting.is_lost())
            .map(|(_, lost)| lost)
            .collect();
        let mut frames: Vec<_> =
            state.pending.values().map(|waiting| Arc::clone(&waiting.frame)).collect();
        drop(state);
        lost.into_iter().for_each(|waiting| (waiting.finish)(Err(Failed::LockLost)));
        frames.sort_by_key(|frame| frame.xid());
        Some(frames)
    }

    fn hear(&self, socket: &TcpStream, pause: &mut Duration) -> Break {
        let mut incoming = Incoming::new(self.rules.reply_bytes_max);
        let mut bytes = vec![0; CHUNK_BYTES];
        let interval = look_interval(self.rules.timeout);
        let mut looked = Instant::now();
        loop {
            let count = match (&mut &*socket).read(&mut bytes) {
                Ok(0) => return Break::Peer("it ended the connection".to_owned()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) =>
                {
                    0
                }
                Err(error) => return Break::Peer(format!("the connection broke ({error})")),
            };
            let mut part = &bytes[..count];
            while !part.is_empty() {
                let Ok((taken, message)) = incoming.take(part) else {
                    return Break::Peer("it sent a message that is too long".to_owned());
                };
                part = &part[taken..];
                if let Some(message) = message
                    && !self.take_reply(message, pause)
                {
                    return Break::Peer("it sent something that is no reply".to_owned());
                }
            }
            if looked.elapsed() >= interval {
                looked = Instant::now();
                if self.look("no answer came in time") {
                    self.say_silent("no answer came in time");
                    return Break::Overdue;
                }
            }
        }
    }

    /// Tells a call its reply; `false` for what is none. One to a call that is not in flight is
    /// dropped: of a call that was made twice, both may be answered.
    fn take_reply(&self, message: Vec<u8>, pause: &mut Duration) -> bool {
        let mut from = Reader::new(&message);
        let Ok(head) = ReplyHead::read(&mut from) else { return false };
        let body_at = message.len() - from.rest().len();
        let waiting = {
            let mut state = self.state.lock();
            let waiting = state.pending.remove(&head.xid);
            if waiting.is_some() && std::mem::take(&mut state.is_silent) {
                tracing::info!("the NFS server {} answers again", self.address);
            }
            waiting
        };
        if let Some(waiting) = waiting {
            *pause = PAUSE_MIN;
            let outcome = head.outcome.map(|()| Reply { message, body_at });
            (waiting.finish)(outcome.map_err(Failed::Denied));
        }
        true
    }

    /// Fails calls of a soft client whose time is over. Returns whether others are overdue, and have
    /// to be made again.
    fn look(&self, why: &str) -> bool {
        let now = Instant::now();
        let mut failed = Vec::new();
        let mut again = false;
        {
            let mut state = self.state.lock();
            let mut over = Vec::new();
            for (xid, waiting) in &mut state.pending {
                let allowed = (self.rules.timeout * (waiting.times + 1)).min(WAIT_MAX);
                if now.duration_since(waiting.since) < allowed {
                    continue;
                }
                match self.rules.patience {
                    Patience::Soft(retrans) if waiting.times >= retrans => over.push(*xid),
                    _ => {
                        waiting.times = waiting.times.saturating_add(1).min(1 << 16);
                        waiting.since = now;
                        again = true;
                    }
                }
            }
            failed.extend(over.iter().filter_map(|xid| state.pending.remove(xid)));
        }
        for waiting in failed {
            (waiting.finish)(Err(Failed::TimedOut(why.to_owned())));
        }
        again
    }
}

/// Sends all slices. A peer that is gone is an error and no signal.
fn write_all(socket: &TcpStream, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    let mut rest: &mut [IoSlice<'_>] = slices;
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        let part = &rest[..rest.len().min(SLICES_MAX)];
        let mut nothing = SendAncillaryBuffer::default();
        match sendmsg(socket, part, &mut nothing, SendFlags::NOSIGNAL) {
            Ok(count) => IoSlice::advance_slices(&mut rest, count),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
