//! Sockets to a server.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect as connect_to, socket_with,
};

/// How long a connection may take to come about.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long bytes may take to leave, at least.
const SEND_MIN: Duration = Duration::from_millis(500);
/// How often a thread that hears looks whether an answer is overdue.
const LOOK_MAX: Duration = Duration::from_millis(500);
const LOOK_MIN: Duration = Duration::from_millis(5);
/// Ports that only the superuser takes, by which many servers know a system they trust.
const OWN_PORTS: std::ops::Range<u16> = 600..1024;
/// How many of them are tried.
const OWN_PORTS_TRIED: u16 = 32;

/// Returns how often a thread that hears looks up.
pub fn look_interval(timeout: Duration) -> Duration {
    (timeout / 8).clamp(LOOK_MIN, LOOK_MAX)
}

/// Connects to a server, from a port of the superuser where this process may.
pub fn connect(address: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let mut start = [0; 2];
    getrandom::fill(&mut start).map_err(io::Error::other)?;
    let start = u16::from_be_bytes(start);
    for attempt in 0..OWN_PORTS_TRIED {
        let port = OWN_PORTS.start + start.wrapping_add(attempt * 13) % OWN_PORTS.len() as u16;
        match connect_from(address, Some(port), timeout) {
            Err(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) => {}
            Err(Errno::ACCESS | Errno::PERM) => break,
            done => return Ok(done?),
        }
    }
    Ok(connect_from(address, None, timeout)?)
}

fn connect_from(
    address: SocketAddr,
    port: Option<u16>,
    timeout: Duration,
) -> Result<TcpStream, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if let Some(port) = port {
        let own: SocketAddr = match address {
            SocketAddr::V4(_) => ([0, 0, 0, 0], port).into(),
            SocketAddr::V6(_) => ([0u16; 8], port).into(),
        };
        // Connections that ended lately do not count.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &own)?;
    }
    // The system bounds what a connection takes to come about by what a send may take.
    let send = Some(timeout.clamp(SEND_MIN, CONNECT_MAX));
    sockopt::set_socket_timeout(&socket, Timeout::Send, send)?;
    sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(look_interval(timeout)))?;
    match connect_to(&socket, &address) {
        Err(Errno::INPROGRESS | Errno::AGAIN) => return Err(Errno::TIMEDOUT),
        done => done?,
    }
    // A server that takes no bytes for so long does not answer in time either.
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(timeout.max(SEND_MIN)))?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    Ok(TcpStream::from(socket))
}
