//! A connection's socket, and the encryption on it.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::net::{Shutdown, shutdown};
use rustls::ServerConnection;

use super::tls::Tls;
use crate::socket::{Socket, retry};

/// What a connection sends and receives through: the socket, or TLS on it.
#[derive(Debug)]
pub struct Transport {
    socket: Socket,
    tls: Option<Box<ServerConnection>>,
    /// TLS may have decrypted more than the last read took, which no wait for the socket shows.
    more: bool,
}

impl Transport {
    pub fn new(socket: Socket) -> Self {
        Self { socket, tls: None, more: false }
    }

    /// Encrypts everything from now on.
    pub fn begin_tls(&mut self, tls: &Tls) -> io::Result<()> {
        let begun = ServerConnection::new(Arc::clone(&tls.0)).map_err(io::Error::other)?;
        self.tls = Some(Box::new(begun));
        Ok(())
    }

    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns whether the two sides still agree on keys.
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Returns whether a read may have more although the socket is not readable.
    pub fn may_hold_more(&self) -> bool {
        self.more
    }

    /// Returns whether encrypted bytes wait for the socket.
    pub fn has_unsent(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Receives what is there; 0 at the end of the stream.
    pub fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return retry(|| self.socket.read(buf)) };
        loop {
            match tls.reader().read(buf) {
                Ok(count) => {
                    self.more = count == buf.len();
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.more = false,
                Err(error) => return Err(error),
            }
            if retry(|| tls.read_tls(&mut Plain(&self.socket)))? == 0 {
                return Ok(0);
            }
            let heard = tls.process_new_packets();
            // What the two sides agree on, or why they do not.
            send(tls, &self.socket)?;
            heard.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }

    /// Sends what the system takes now.
    pub fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return retry(|| self.socket.write(slices)) };
        send(tls, &self.socket)?;
        let count = tls.writer().write_vectored(slices)?;
        send(tls, &self.socket)?;
        if count == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
    }

    /// Sends encrypted bytes that wait, as far as the system takes them now.
    pub fn send_waiting(&mut self) -> io::Result<()> {
        self.tls.as_mut().map_or(Ok(()), |tls| send(tls, &self.socket))
    }

    /// Says that nothing more comes.
    pub fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            // A peer that is gone is told nothing.
            let _told = send(tls, &self.socket);
        }
        let _told = shutdown(&self.socket, Shutdown::Both);
    }
}

/// Sends encrypted bytes until the socket takes no more.
fn send(tls: &mut ServerConnection, socket: &Socket) -> io::Result<()> {
    while tls.wants_write() {
        match retry(|| tls.write_tls(&mut Plain(socket))) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The bare socket, as TLS sees it.
struct Plain<'a>(&'a Socket);

impl Read for Plain<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for Plain<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.write(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
