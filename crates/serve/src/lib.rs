//! Front ends: thin translators onto the file system. Parse, call, reply.
#![forbid(unsafe_code)]

pub mod control;
mod error;
pub mod fuse;
mod mountinfo;
pub mod remote;

pub use error::{Error, ErrorKind, Result};
