//! Where clients come from.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use super::connection;
use super::exports::Exports;
use super::handshake::Offer;
use super::peer::End;
use super::tls::Tls;
use crate::accepting::{Guests, accept_until, join};
use crate::bound::{self, Bound};
use crate::buffers::{Budget, CONNECTION_BYTES_MAX};
use crate::socket::Socket;
use crate::{Error, Result};

/// What the requests of all connections may hold together.
const ALL_BYTES_MAX: usize = 16 * CONNECTION_BYTES_MAX;

/// Where to listen.
#[derive(Debug, Clone)]
pub enum Address {
    /// A socket in the file system, for its owner alone.
    Unix(PathBuf),
    /// A port.
    Tcp(SocketAddr),
}

/// How a server serves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where to listen; at least one.
    pub addresses: Vec<Address>,
    /// How many connections there may be at once; more are closed at once.
    pub connections_max: usize,
    /// Every connection to a port has to be encrypted with it, and one to a socket in the file
    /// system may.
    pub tls: Option<Tls>,
}

enum Listener {
    Unix { listener: UnixListener, _bound: Bound },
    Tcp(TcpListener),
}

/// A server that runs. Dropped, it has answered what was under way, and no connection is left.
#[derive(Debug)]
pub struct Server {
    /// Closed to end all threads.
    waker: Option<UnixStream>,
    threads: Vec<JoinHandle<()>>,
    addresses: Vec<Address>,
    hall: Arc<Hall>,
}

/// What all connections share.
#[derive(Debug)]
struct Hall {
    exports: Exports,
    budget: Arc<Budget>,
    woken: Arc<UnixStream>,
    tls: Option<Tls>,
    guests: Arc<Guests>,
}

impl Server {
    /// Begins to serve.
    ///
    /// # Errors
    /// `System` where an address cannot be listened on.
    pub fn start(exports: Exports, settings: &Settings) -> Result<Self> {
        let pair = |error| Error::system("prepare to listen on", Path::new("a socket"), error);
        let (waker, woken) = UnixStream::pair().map_err(pair)?;
        let hall = Arc::new(Hall {
            exports,
            budget: Budget::new(ALL_BYTES_MAX),
            woken: Arc::new(woken),
            tls: settings.tls.clone(),
            guests: Guests::new(settings.connections_max),
        });
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        for address in &settings.addresses {
            let (listener, bound) = listen(address)?;
            listeners.push(listener);
            addresses.push(bound);
        }
        let mut server = Self { waker: Some(waker), threads: Vec::new(), addresses, hall };
        for listener in listeners {
            let hall = Arc::clone(&server.hall);
            let thread = Builder::new()
                .name("bedplate-nbd-a".into())
                .spawn(move || accept(&listener, &hall))
                .map_err(pair)?;
            server.threads.push(thread);
        }
        Ok(server)
    }

    /// Returns where the server listens: with the port that the system chose where 0 was given.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.waker = None;
        join(std::mem::take(&mut self.threads));
        // No new one comes: those that accept have ended.
        self.hall.guests.join();
    }
}

fn listen(address: &Address) -> Result<(Listener, Address)> {
    match address {
        Address::Unix(path) => {
            let (listener, _bound) =
                bound::listen(path).map_err(|error| Error::system("listen on", path, error))?;
            Ok((Listener::Unix { listener, _bound }, address.clone()))
        }
        Address::Tcp(asked) => {
            let failed = |error| Error::system("listen on", Path::new(&asked.to_string()), error);
            let listener = TcpListener::bind(asked).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            let bound = listener.local_addr().map_err(failed)?;
            Ok((Listener::Tcp(listener), Address::Tcp(bound)))
        }
    }
}

impl Listener {
    fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Unix { listener, .. } => {
                listener.accept().map(|(socket, _)| Socket::Unix(socket))
            }
            Self::Tcp(listener) => listener.accept().map(|(socket, _)| Socket::Tcp(socket)),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix { listener, .. } => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// Serves each client that comes.
fn accept(listener: &Listener, hall: &Arc<Hall>) {
    accept_until(listener, &hall.woken, || {
        let socket = listener.accept()?;
        let own = Arc::clone(hall);
        hall.guests.admit("bedplate-nbd", move || {
            let tls = own.tls.as_ref();
            let needs_tls = tls.is_some() && matches!(socket, Socket::Tcp(_));
            let offer = Offer { exports: &own.exports, tls, needs_tls };
            match connection::serve(socket, &own.woken, &offer, &own.budget) {
                Ok(()) | Err(End::Closed | End::Stopped) => tracing::debug!("a client has gone"),
                Err(end) => tracing::warn!("a connection is closed: {end}"),
            }
        });
        Ok(())
    });
}
