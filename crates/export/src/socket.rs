//! A connection's socket, which never blocks.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::sockopt;

/// How long a peer may be silent before it is asked whether it is there, and then how often.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// A socket of either kind.
#[derive(Debug)]
pub enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    /// Prepares a socket for use by a connection.
    pub fn prepare(&self) -> io::Result<()> {
        match self {
            Self::Unix(socket) => socket.set_nonblocking(true),
            Self::Tcp(socket) => {
                socket.set_nonblocking(true)?;
                socket.set_nodelay(true)?;
                // A peer that is gone without a word ends so, in minutes.
                sockopt::set_socket_keepalive(socket, true)?;
                sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
                sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
                Ok(())
            }
        }
    }

    pub fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => (&mut &*socket).read(buf),
            Self::Tcp(socket) => (&mut &*socket).read(buf),
        }
    }

    pub fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => (&mut &*socket).write_vectored(slices),
            Self::Tcp(socket) => (&mut &*socket).write_vectored(slices),
        }
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

/// Makes a call again that a signal ended.
pub fn retry(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
