//! Front ends: thin translators onto the file system. Parse, call, reply.
#![forbid(unsafe_code)]

mod error;
pub mod fuse;

pub use error::{Error, ErrorKind, Result};
