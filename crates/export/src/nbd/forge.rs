//! One connection without a listener, for fuzzers.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::connection;
use super::exports::Exports;
use super::handshake::Offer;
use crate::buffers::{Budget, CONNECTION_BYTES_MAX};
use crate::socket::Socket;

/// Serves a client to its end; returns why it ended, where the client did not ask for that.
///
/// # Errors
/// What a server would log.
pub fn serve(exports: &Exports, socket: UnixStream) -> Result<(), String> {
    let never = || UnixStream::pair().map_err(|error| error.to_string());
    let (_waker, woken) = never()?;
    let budget = Budget::new(CONNECTION_BYTES_MAX);
    let offer = Offer { exports, tls: None, needs_tls: false };
    connection::serve(Socket::Unix(socket), &Arc::new(woken), &offer, &budget)
        .map_err(|end| end.to_string())
}
