//! Calls in flight on the connections to one server.
//!
//! ```text
//!   submit ── takes a slot ─► connection: pending ◄── number, what to do with the reply
//!                                socket  ◄── the message
//!   thread of the connection:  reply ─► taken out of pending ─► its end is told
//!                              silence, or a break ─► another socket ─► all of pending is sent again
//! ```
//! What is done with a reply is done by the connection's thread, so it neither waits nor calls. Every
//! call that was submitted is told an end: an answer, or why there is none.

mod answer;
mod connection;
mod frame;
mod slots;
mod socket;

use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

pub use answer::{Answer, promise};
use connection::Connection;
pub use frame::{Bytes, Frame};
use slots::{Slot, Slots};

use crate::session::{Guard, Session};
use crate::url::Patience;
use crate::wire::rpc::Denial;
use crate::wire::xdr::Reader;
use crate::{Error, ErrorKind};

/// How a link is held.
#[derive(Debug, Clone)]
pub struct Rules {
    pub connections: usize,
    pub calls: usize,
    pub timeout: Duration,
    pub patience: Patience,
    /// The longest reply that is received.
    pub reply_bytes_max: usize,
    /// What sockets are made ready by before calls are sent.
    pub session: Option<Arc<Session>>,
}

/// Why a call has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failed {
    /// It was made so often, and not answered; what the last attempt met with.
    TimedOut(String),
    /// The server does not carry it out.
    Denied(Denial),
    /// The server has taken a lock of the file from this client.
    LockLost,
    /// The client has ended.
    Closed,
}

impl Failed {
    /// Makes an error of it; `doing` completes "cannot …".
    pub fn error(&self, doing: &str) -> Error {
        let kind = match self {
            Self::TimedOut(_) => ErrorKind::TimedOut,
            Self::Denied(_) => ErrorKind::Unreached,
            Self::LockLost => ErrorKind::Io,
            Self::Closed => ErrorKind::Closed,
        };
        Error::new(kind, format!("cannot {doing}: {self}"))
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TimedOut(why) => return write!(f, "the server does not answer: {why}"),
            Self::Denied(Denial::User) => "the server does not serve this user (AUTH_SYS)",
            Self::Denied(Denial::NoProgram) => "the server has no NFS at this port",
            Self::Denied(Denial::OtherVersion) => "the server does not speak version 3 of NFS",
            Self::Denied(Denial::NoProcedure) => "the server has no such procedure",
            Self::Denied(Denial::Garbage) => "the server cannot read what it is asked",
            Self::Denied(Denial::Other) => "the server refuses the call",
            Self::LockLost => {
                "the server has taken a lock of the file from this client: unlock it first"
            }
            Self::Closed => "the client has ended",
        })
    }
}

/// The reply to a call that was carried out.
#[derive(Debug)]
pub struct Reply {
    message: Vec<u8>,
    body_at: usize,
}

impl Reply {
    /// Returns what the result is read with.
    pub fn body(&self) -> Reader<'_> {
        Reader::new(&self.message[self.body_at..])
    }
}

/// What is done with the end of a call.
pub type Finish = Box<dyn FnOnce(Result<Reply, Failed>) + Send>;

/// A call that is to be made.
pub struct Submission {
    pub frame: Frame,
    pub finish: Finish,
    /// It is not made while this says that a lock was lost.
    pub guard: Option<Arc<Guard>>,
}

/// The connections to one server.
#[derive(Debug)]
pub struct Link {
    connections: Vec<Arc<Connection>>,
    threads: Vec<JoinHandle<()>>,
    slots: Arc<Slots>,
    next: AtomicUsize,
    xids: AtomicU32,
}

impl Link {
    /// Connects to a server.
    ///
    /// # Errors
    /// Those of the first connection: the others are made in the background, and again when they
    /// break.
    pub fn open(address: SocketAddr, rules: &Rules) -> std::io::Result<Self> {
        let first = socket::connect(address, rules.timeout)?;
        let mut start = [0; 4];
        getrandom::fill(&mut start).map_err(std::io::Error::other)?;
        let mut link = Self {
            connections: Vec::new(),
            threads: Vec::new(),
            slots: Slots::new(rules.calls),
            next: AtomicUsize::new(0),
            // Numbers of an earlier client of this machine may be remembered by the server.
            xids: AtomicU32::new(u32::from_be_bytes(start)),
        };
        let mut first = Some(first);
        for place in 0..rules.connections {
            let connection = Arc::new(Connection::new(address, place as u32, rules.clone()));
            link.connections.push(Arc::clone(&connection));
            let socket = first.take();
            let thread = std::thread::Builder::new().name("bedplate-nfs-c".into());
            link.threads.push(thread.spawn(move || connection.serve(socket))?);
        }
        Ok(link)
    }

    /// Makes a call; waits while as many are in flight as may be.
    pub fn submit(&self, call: Submission) {
        let slot = self.slots.take();
        let entered = self.enter(call, slot);
        self.send(&entered, std::slice::from_ref(&entered.frame));
    }

    /// Makes calls that are sent together where they go over one connection.
    pub fn submit_all(&self, calls: impl IntoIterator<Item = Submission>) {
        let mut waiting = Vec::new();
        for call in calls {
            let slot = self.slots.try_take().unwrap_or_else(|| {
                // What fills the slots may be among those that were not sent.
                self.send_all(&mut waiting);
                self.slots.take()
            });
            waiting.push(self.enter(call, slot));
        }
        self.send_all(&mut waiting);
    }

    fn enter(&self, call: Submission, slot: Slot) -> Entered {
        let at = self.next.fetch_add(1, Relaxed) % self.connections.len();
        let Submission { mut frame, finish, guard } = call;
        frame.number(self.xids.fetch_add(1, Relaxed));
        let frame = Arc::new(frame);
        let socket = self.connections[at].enter(&frame, (finish, guard), slot);
        Entered { at, socket, frame }
    }

    fn send(&self, entered: &Entered, frames: &[Arc<Frame>]) {
        if let Some(socket) = &entered.socket {
            self.connections[entered.at].send(socket, frames);
        }
    }

    fn send_all(&self, waiting: &mut Vec<Entered>) {
        waiting.sort_by_key(|entered| entered.at);
        for together in waiting.chunk_by(Entered::is_beside) {
            let frames: Vec<_> =
                together.iter().map(|entered| Arc::clone(&entered.frame)).collect();
            self.send(&together[0], &frames);
        }
        waiting.clear();
    }
}

/// A call that is taken over and not sent.
struct Entered {
    at: usize,
    /// What its message is to be sent on.
    socket: Option<Arc<TcpStream>>,
    frame: Arc<Frame>,
}

impl Entered {
    fn is_beside(&self, other: &Self) -> bool {
        self.at == other.at
            && match (&self.socket, &other.socket) {
                (Some(socket), Some(other)) => Arc::ptr_eq(socket, other),
                _ => false,
            }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.connections.iter().for_each(|connection| connection.close());
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            let _ended = thread.join();
        }
    }
}
