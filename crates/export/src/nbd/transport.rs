//! A connection's socket, which never blocks.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{Shutdown, shutdown};

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
                rustix::net::sockopt::set_socket_keepalive(socket, true)?;
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

/// What a connection sends and receives through.
#[derive(Debug)]
pub struct Transport {
    socket: Socket,
}

impl Transport {
    pub fn new(socket: Socket) -> Self {
        Self { socket }
    }

    /// Receives what is there; 0 at the end of the stream.
    pub fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        retry(|| self.socket.read(buf))
    }

    /// Sends what the system takes now.
    pub fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        retry(|| self.socket.write(slices))
    }

    /// Says that nothing more comes.
    pub fn close(&mut self) {
        // A peer that is gone is told nothing.
        let _told = shutdown(&self.socket, Shutdown::Both);
    }
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn retry(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
