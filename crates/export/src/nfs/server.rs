//! The server: where clients come from, and which of them are served.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use bedplate_block::Workers;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::connection::{self, End};
use super::network::Network;
use super::outbox::{ALL_BYTES_MAX, Budget};
use super::service::Service;
use super::tree::Tree;
use crate::accepting::{Guests, accept_until, join};
use crate::socket::Socket;
use crate::{Error, Result};

/// Threads that carry requests out: each waits for the file system.
const WORKERS_MAX: usize = 64;
/// Ports below are the superuser's.
const PRIVILEGED_PORTS: u16 = 1024;
/// How often what is idle is closed, and the mount looked at.
const HOUSE_INTERVAL: Duration = Duration::from_secs(1);

/// How a server serves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where to listen.
    pub address: SocketAddr,
    /// Which clients are served.
    pub allowed: Vec<Network>,
    /// Clients are served that come from a port which every user of their machine may take, and so
    /// may say that they are any user.
    pub any_port: bool,
    /// How many connections there may be at once; more are closed at once.
    pub connections_max: usize,
}

/// A server that runs. Dropped, it has answered what was under way, and no connection is left.
///
/// Files are made with the process's umask on top of what clients ask for, so it is to be 0.
#[derive(Debug)]
pub struct Server {
    /// Closed to end all threads.
    waker: Option<UnixStream>,
    threads: Vec<JoinHandle<()>>,
    address: SocketAddr,
    guests: Arc<Guests>,
}

/// What the listener knows.
struct Hall {
    service: Arc<Service>,
    settings: Settings,
    workers: Arc<Workers>,
    budget: Arc<Budget>,
    woken: UnixStream,
    guests: Arc<Guests>,
}

impl Server {
    /// Begins to serve.
    ///
    /// # Errors
    /// `System` where the address cannot be listened on.
    pub fn start(tree: Tree, settings: &Settings) -> Result<Self> {
        let asked = settings.address.to_string();
        let failed = |error: io::Error| Error::system("listen on", Path::new(&asked), error);
        let (waker, woken) = UnixStream::pair().map_err(failed)?;
        let listener = TcpListener::bind(settings.address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let workers = Workers::new("bedplate-nfs-w", WORKERS_MAX, usize::MAX);
        workers.start().map_err(failed)?;
        let guests = Guests::new(settings.connections_max);
        let hall = Arc::new(Hall {
            service: Arc::new(Service::new(tree)),
            settings: settings.clone(),
            workers: Arc::new(workers),
            budget: Budget::new(ALL_BYTES_MAX),
            woken,
            guests: Arc::clone(&guests),
        });
        let mut server = Self { waker: Some(waker), threads: Vec::new(), address, guests };
        let house = Arc::clone(&hall);
        server.spawn("bedplate-nfs-h", move || keep_house(&house)).map_err(failed)?;
        server.spawn("bedplate-nfs-a", move || accept(&listener, &hall)).map_err(failed)?;
        Ok(server)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(Builder::new().name(name.into()).spawn(run)?);
        Ok(())
    }

    /// Returns where the server listens: with the port that the system chose where 0 was given.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.waker = None;
        join(std::mem::take(&mut self.threads));
        // No new one comes: the thread that accepts has ended.
        self.guests.join();
    }
}

fn keep_house(hall: &Hall) {
    let interval = Timespec::try_from(HOUSE_INTERVAL).ok();
    loop {
        let mut events = [PollFd::new(&hall.woken, PollFlags::IN)];
        let waited = poll(&mut events, interval.as_ref());
        if waited.is_ok() && !events[0].revents().is_empty() {
            return;
        }
        hall.service.tree.keep_house();
    }
}

fn accept(listener: &TcpListener, hall: &Arc<Hall>) {
    accept_until(listener, &hall.woken, || {
        let (socket, peer) = listener.accept()?;
        if !hall.settings.is_served(peer) {
            return Ok(());
        }
        let own = Arc::clone(hall);
        hall.guests.admit("bedplate-nfs", move || {
            let Hall { service, workers, budget, woken, .. } = &*own;
            let address = peer.ip().to_canonical();
            match connection::serve(Socket::Tcp(socket), address, woken, service, workers, budget) {
                End::Closed | End::Stopped => tracing::debug!("the client {peer} has gone"),
                end => tracing::warn!("the connection of {peer} is closed: {end}"),
            }
        });
        Ok(())
    });
}

impl Settings {
    fn is_served(&self, peer: SocketAddr) -> bool {
        let address: IpAddr = peer.ip().to_canonical();
        if !self.allowed.iter().any(|network| network.contains(address)) {
            tracing::warn!("{address} is not served: no --allow names it");
            return false;
        }
        if !self.any_port && peer.port() >= PRIVILEGED_PORTS {
            tracing::warn!(
                "{peer} is not served: any user of its machine may come from its port, and say to \
                 be another one. --insecure serves such clients"
            );
            return false;
        }
        true
    }
}
