//! The other end of a connection before requests begin: it is heard and told in turn, and has a
//! time for all of it.

use std::fmt;
use std::io::{self, IoSlice};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::inbox::Inbox;
use super::tls::Tls;
use super::transport::Transport;

/// Why a connection ends.
#[derive(Debug)]
pub enum End {
    /// The peer says so, or is gone.
    Closed,
    /// The server ends.
    Stopped,
    /// The peer took longer than it may.
    TimedOut,
    /// The peer does not speak the protocol, or something that is not served.
    Protocol(&'static str),
    /// The system's word on the socket, or on what waits for it.
    Io(io::Error),
    /// The disk's queue.
    Disk(crate::Error),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the client closed it"),
            Self::Stopped => f.write_str("the server ends"),
            Self::TimedOut => f.write_str("the client kept silent in the middle of a message"),
            Self::Protocol(text) => f.write_str(text),
            Self::Io(error) => write!(f, "{error}"),
            Self::Disk(error) => write!(f, "{error}"),
        }
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

/// A peer that is spoken with.
#[derive(Debug)]
pub struct Peer {
    pub transport: Transport,
    pub inbox: Inbox,
    /// Readable when the server ends.
    pub woken: Arc<UnixStream>,
    deadline: Instant,
}

impl Peer {
    pub fn new(transport: Transport, woken: Arc<UnixStream>, time: Duration) -> Self {
        Self { transport, inbox: Inbox::new(), woken, deadline: Instant::now() + time }
    }

    /// Waits until the socket is ready for something.
    pub fn wait(&self, what: PollFlags) -> Result<(), End> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(End::TimedOut);
        }
        let timeout = Timespec::try_from(left).map_err(|_| End::TimedOut)?;
        let mut events =
            [PollFd::new(&self.transport, what), PollFd::new(&*self.woken, PollFlags::IN)];
        match poll(&mut events, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(End::Io(error.into())),
        }
        if events[1].revents().is_empty() { Ok(()) } else { Err(End::Stopped) }
    }

    /// Receives as much as `to` has room for.
    pub fn hear(&mut self, to: &mut [u8]) -> Result<(), End> {
        let mut got = 0;
        loop {
            got += self.inbox.move_to(&mut to[got..]);
            if got == to.len() {
                return Ok(());
            }
            match self.inbox.fill(&mut self.transport) {
                Ok(0) => return Err(End::Closed),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::IN)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives `N` bytes.
    pub fn hear_array<const N: usize>(&mut self) -> Result<[u8; N], End> {
        let mut bytes = [0; N];
        self.hear(&mut bytes)?;
        Ok(bytes)
    }

    /// Receives bytes that are not looked at.
    pub fn skip(&mut self, mut len: usize) -> Result<(), End> {
        let mut bytes = [0; 4096];
        while len > 0 {
            let part = len.min(bytes.len());
            self.hear(&mut bytes[..part])?;
            len -= part;
        }
        Ok(())
    }

    /// Agrees on keys, and encrypts everything from now on.
    pub fn begin_tls(&mut self, tls: &Tls) -> Result<(), End> {
        // What came before the answer was not encrypted, and must not count as if it were.
        if !self.inbox.bytes().is_empty() {
            return Err(End::Protocol("the client went on before it was told to begin TLS"));
        }
        self.transport.begin_tls(tls)?;
        while self.transport.is_handshaking() {
            match self.inbox.fill(&mut self.transport) {
                Ok(0) => return Err(End::Closed),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let unsent = self.transport.has_unsent();
                    self.wait(if unsent { PollFlags::OUT } else { PollFlags::IN })?;
                    self.transport.send_waiting()?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.finish_sending()
    }

    /// Waits until nothing that was told waits to be sent.
    fn finish_sending(&mut self) -> Result<(), End> {
        while self.transport.has_unsent() {
            self.transport.send_waiting()?;
            if self.transport.has_unsent() {
                self.wait(PollFlags::OUT)?;
            }
        }
        Ok(())
    }

    /// Sends all of `bytes`.
    pub fn tell(&mut self, mut bytes: &[u8]) -> Result<(), End> {
        while !bytes.is_empty() {
            match self.transport.write(&[IoSlice::new(bytes)]) {
                Ok(0) => return Err(End::Closed),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::OUT)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.finish_sending()
    }
}
