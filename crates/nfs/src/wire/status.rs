//! The answers of NFS version 3 to what cannot be done, and the one table that makes them of error
//! numbers.

use std::io;

use rustix::io::Errno;

/// `nfsstat3`.
#[expect(missing_docs, reason = "the names are the protocol's, in words")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    NotOwner = 1,
    NotFound = 2,
    Io = 5,
    NoDevice = 6,
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
    ServerFault = 10_006,
    BadType = 10_007,
    /// The server is to be asked again later.
    Jukebox = 10_008,
}

impl Status {
    const ALL: [Self; 26] = [
        Self::NotOwner,
        Self::NotFound,
        Self::Io,
        Self::NoDevice,
        Self::Access,
        Self::Exists,
        Self::CrossDevice,
        Self::NotDirectory,
        Self::IsDirectory,
        Self::Invalid,
        Self::TooLarge,
        Self::NoSpace,
        Self::ReadOnly,
        Self::TooManyLinks,
        Self::NameTooLong,
        Self::NotEmpty,
        Self::Quota,
        Self::Stale,
        Self::BadHandle,
        Self::NotSynced,
        Self::BadCookie,
        Self::NotSupported,
        Self::TooSmall,
        Self::ServerFault,
        Self::BadType,
        Self::Jukebox,
    ];

    /// Returns what a server's number means; what is none of the protocol's is an error of its
    /// device.
    #[must_use]
    pub fn of_number(number: u32) -> Self {
        Self::ALL.into_iter().find(|status| *status as u32 == number).unwrap_or(Self::Io)
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
