//! The process that has a group open: the socket on which it answers, and which process that is.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use bedplate::Id;
use rustix::net::UCred;

use super::find::Located;
use crate::failure::{Failure, Result};

/// What the names of sockets begin with; the group's identity follows.
pub const NAME: &str = "bedplate-group-";

/// Returns the address of the socket of a group.
pub fn address(id: impl std::fmt::Display) -> Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{NAME}{id}"))
        .map_err(|error| Failure::new("io", format!("cannot name a socket: {error}")))
}

/// Returns the process that has a group open and answers for it; `None` where there is none.
pub fn daemon_of(id: Id) -> Option<i32> {
    let stream = UnixStream::connect_addr(&address(id).ok()?).ok()?;
    Some(peer_of(&stream).ok()?.pid.as_raw_nonzero().get())
}

/// Returns whether a process has the group open and can be asked.
pub fn is_open(located: &Located) -> bool {
    address(located.config.id).is_ok_and(|address| UnixStream::connect_addr(&address).is_ok())
}

/// Returns which process and user are at the other end of a socket.
pub fn peer_of(stream: &UnixStream) -> io::Result<UCred> {
    Ok(rustix::net::sockopt::socket_peercred(stream)?)
}
