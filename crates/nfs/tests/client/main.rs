//! The client against a server that does what each test says.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod cached;
mod calls;
mod durable;
mod hostile;
mod locks;
mod server;
