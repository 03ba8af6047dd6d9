//! What a procedure answers where it has no result.

use std::io;

pub use bedplate_nfs::wire::status::Status;
use rustix::io::Errno;

use super::xdr::Garbage;

/// What a procedure answers.
pub type Answer<T> = Result<T, Failure>;

/// Why a procedure has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The arguments cannot be read.
    Garbage,
    /// The answer is a status.
    Status(Status),
}

impl From<Garbage> for Failure {
    fn from(Garbage: Garbage) -> Self {
        Self::Garbage
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Status(errno.into())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Status(error.into())
    }
}
