//! The NBD server, spoken with over sockets.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod bed;
mod client;
mod data;
mod durable;
mod handshake;
mod holes;
mod hostile;
#[path = "../shared/places.rs"]
mod places;
mod tls;
