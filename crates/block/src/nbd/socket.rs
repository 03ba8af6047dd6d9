//! A connection's socket, with a limit on how long anything may take.

use std::io::{self, IoSlice, Read};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::uri::Place;

/// A socket of either kind.
#[derive(Debug)]
pub(super) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

fn late() -> io::Error {
    io::ErrorKind::TimedOut.into()
}

/// Returns what is left until a deadline.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(late()) } else { Ok(left) }
}

impl Socket {
    /// Connects to a server.
    pub fn connect(place: &Place, deadline: Instant) -> io::Result<Self> {
        match place {
            Place::Unix(path) => Ok(Self::Unix(UnixStream::connect(path)?)),
            Place::Tcp { host, port } => {
                let mut failed = io::Error::from(io::ErrorKind::NotFound);
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, left(deadline)?) {
                        Ok(socket) => {
                            socket.set_nodelay(true)?;
                            return Ok(Self::Tcp(socket));
                        }
                        Err(error) => failed = error,
                    }
                }
                Err(failed)
            }
        }
    }

    /// Fills `buf`; without a deadline it waits as long as it takes.
    pub fn hear(&self, buf: &mut [u8], deadline: Option<Instant>) -> io::Result<()> {
        let mut rest = buf;
        while !rest.is_empty() {
            if let Some(deadline) = deadline {
                self.wait_for_reads(Some(left(deadline)?))?;
            }
            match self.read(rest) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => rest = &mut rest[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(late()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Lets reads wait so long, or as long as it takes.
    pub fn wait_for_reads(&self, at_most: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(socket) => socket.set_read_timeout(at_most),
            Self::Tcp(socket) => socket.set_read_timeout(at_most),
        }
    }

    /// Lets one write wait so long.
    pub fn wait_for_writes(&self, at_most: Duration) -> io::Result<()> {
        match self {
            Self::Unix(socket) => socket.set_write_timeout(Some(at_most)),
            Self::Tcp(socket) => socket.set_write_timeout(Some(at_most)),
        }
    }

    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => (&mut &*socket).read(buf),
            Self::Tcp(socket) => (&mut &*socket).read(buf),
        }
    }

    /// Sends all of `head` and `data`, until the deadline. A peer that is gone is an error and no
    /// signal.
    pub fn tell(&self, head: &[u8], data: &[u8], deadline: Instant) -> io::Result<()> {
        let mut slices = [IoSlice::new(head), IoSlice::new(data)];
        let mut rest: &mut [IoSlice<'_>] = &mut slices;
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            left(deadline)?;
            let mut nothing = SendAncillaryBuffer::default();
            match sendmsg(self, rest, &mut nothing, SendFlags::NOSIGNAL) {
                Ok(count) => IoSlice::advance_slices(&mut rest, count),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Err(late()),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Ends the connection for every thread that uses it.
    pub fn shut(&self) {
        // One that the peer has ended already is as good.
        let _ended = match self {
            Self::Unix(socket) => socket.shutdown(Shutdown::Both),
            Self::Tcp(socket) => socket.shutdown(Shutdown::Both),
        };
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(socket) => socket.as_fd(),
            Self::Tcp(socket) => socket.as_fd(),
        }
    }
}
