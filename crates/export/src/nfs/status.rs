//! The answers of NFS version 3 to what cannot be done, and the one table that makes them of error
//! numbers.

use std::io;

use rustix::io::Errno;

use super::xdr::Garbage;

/// `nfsstat3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    NotOwner = 1,
    NotFound = 2,
    Io = 5,
    Access = 13,
    Exists = 17,
    CrossDevice = 18,
    NotDirectory = 20,
    IsDirectory = 21,
    Invalid = 22,
    TooLarge = 27,
    NoSpace = 28,
    ReadOnly = 30,
    TooManyLinks = 31,
    NameTooLong = 63,
    NotEmpty = 66,
    Quota = 69,
    Stale = 70,
    BadHandle = 10_001,
    NotSynced = 10_002,
    BadCookie = 10_003,
    NotSupported = 10_004,
    TooSmall = 10_005,
    /// The server is to be asked again later.
    Jukebox = 10_008,
    BadType = 10_007,
}

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

impl From<Errno> for Status {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PERM => Self::NotOwner,
            Errno::NOENT => Self::NotFound,
            Errno::ACCESS => Self::Access,
            Errno::EXIST => Self::Exists,
            Errno::XDEV => Self::CrossDevice,
            Errno::NOTDIR => Self::NotDirectory,
            Errno::ISDIR => Self::IsDirectory,
            Errno::INVAL | Errno::LOOP => Self::Invalid,
            Errno::FBIG | Errno::OVERFLOW => Self::TooLarge,
            Errno::NOSPC => Self::NoSpace,
            Errno::ROFS => Self::ReadOnly,
            Errno::MLINK => Self::TooManyLinks,
            Errno::NAMETOOLONG => Self::NameTooLong,
            Errno::NOTEMPTY => Self::NotEmpty,
            Errno::DQUOT => Self::Quota,
            Errno::STALE => Self::Stale,
            Errno::OPNOTSUPP => Self::NotSupported,
            // Of a mount that died, another one may take the place; of what another program holds,
            // it may let go.
            Errno::NOTCONN
            | Errno::CONNABORTED
            | Errno::AGAIN
            | Errno::BUSY
            | Errno::TXTBSY
            | Errno::INTR
            | Errno::MFILE
            | Errno::NFILE
            | Errno::NOMEM => Self::Jukebox,
            _ => Self::Io,
        }
    }
}

impl From<io::Error> for Status {
    fn from(error: io::Error) -> Self {
        error.raw_os_error().map_or(Self::Io, |code| Errno::from_raw_os_error(code).into())
    }
}
