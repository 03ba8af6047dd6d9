//! The error of this crate.

use std::io;

use rustix::io::Errno;

use crate::wire::status::Status;

/// The result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// A URL or an option makes no sense.
    Usage,
    /// The server is not reached, or does not serve what is asked for.
    Unreached,
    /// It did not answer in time.
    TimedOut,
    /// It answered what no server should.
    Protocol,
    /// A name or a file is not there.
    NotFound,
    /// The user may not.
    Permission,
    /// The name is there already.
    Exists,
    /// It is no directory.
    NotDirectory,
    /// It is a directory.
    IsDirectory,
    /// The directory is not empty.
    NotEmpty,
    /// No room is left.
    NoSpace,
    /// No more locks are to be had.
    NoLocks,
    /// Nothing can be changed there.
    ReadOnly,
    /// The handle leads to no file any more.
    Stale,
    /// What is asked for cannot be.
    Invalid,
    /// The server is unable to.
    Unsupported,
    /// The server's device failed.
    Io,
    /// The client has ended.
    Closed,
}

/// A kind to match on, and one sentence for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What went wrong.
    pub kind: ErrorKind,
    /// One sentence: what was wrong, where, what to do.
    pub message: String,
    /// What the server answered, where it was the server that refused.
    pub status: Option<Status>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), status: None }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, message)
    }

    /// Makes the error of an answer that no server should give.
    pub(crate) fn protocol(doing: &str, what: &str) -> Self {
        Self::new(ErrorKind::Protocol, format!("cannot {doing}: the server answered {what}"))
    }

    /// Makes the error of a status; `doing` completes "cannot …".
    pub(crate) fn status(doing: &str, status: Status) -> Self {
        let (kind, words) = words_of(status);
        Self { status: Some(status), ..Self::new(kind, format!("cannot {doing}: {words}")) }
    }
}

fn words_of(status: Status) -> (ErrorKind, &'static str) {
    use ErrorKind as K;
    match status {
        Status::NotOwner => (K::Permission, "only the owner may"),
        Status::Access => (K::Permission, "the server does not let this user"),
        Status::NotFound => (K::NotFound, "it is not there"),
        Status::Io => (K::Io, "the server's device failed"),
        Status::NoDevice => (K::Io, "the server has no such device"),
        Status::Exists => (K::Exists, "the name is there already"),
        Status::CrossDevice => (K::Invalid, "it lies on another file system"),
        Status::NotDirectory => (K::NotDirectory, "it is no directory"),
        Status::IsDirectory => (K::IsDirectory, "it is a directory"),
        Status::Invalid => (K::Invalid, "the server takes no such values"),
        Status::TooLarge => (K::Invalid, "the file would be too large for the server"),
        Status::NoSpace => (K::NoSpace, "no room is left on the server"),
        Status::Quota => (K::NoSpace, "the user's quota is used up"),
        Status::ReadOnly => (K::ReadOnly, "the export is read-only"),
        Status::TooManyLinks => (K::Invalid, "it has too many names"),
        Status::NameTooLong => (K::Invalid, "the name is too long"),
        Status::NotEmpty => (K::NotEmpty, "the directory is not empty"),
        Status::Stale => (K::Stale, "the file is gone from the server (stale handle)"),
        Status::BadHandle => (K::Stale, "the server does not know its own handle: mount again"),
        Status::NotSynced => (K::Invalid, "it was changed meanwhile"),
        Status::BadCookie => (K::Invalid, "the listing has to begin again"),
        Status::NotSupported => (K::Unsupported, "the server is unable to"),
        Status::TooSmall => (K::Protocol, "the server finds too little room for its answer"),
        Status::ServerFault => (K::Io, "the server failed"),
        Status::BadType => (K::Unsupported, "the server makes nothing of this kind"),
        Status::Jukebox => (K::TimedOut, "the server asks to come again later, for too long"),
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind {
            ErrorKind::NotFound => io::ErrorKind::NotFound,
            ErrorKind::Permission => io::ErrorKind::PermissionDenied,
            ErrorKind::Exists => io::ErrorKind::AlreadyExists,
            ErrorKind::NotDirectory => io::ErrorKind::NotADirectory,
            ErrorKind::IsDirectory => io::ErrorKind::IsADirectory,
            ErrorKind::NotEmpty => io::ErrorKind::DirectoryNotEmpty,
            ErrorKind::NoSpace => io::ErrorKind::StorageFull,
            ErrorKind::ReadOnly => io::ErrorKind::ReadOnlyFilesystem,
            ErrorKind::Stale => io::ErrorKind::StaleNetworkFileHandle,
            ErrorKind::Usage | ErrorKind::Invalid => io::ErrorKind::InvalidInput,
            ErrorKind::Unsupported => io::ErrorKind::Unsupported,
            ErrorKind::TimedOut => io::ErrorKind::TimedOut,
            ErrorKind::Unreached => io::ErrorKind::HostUnreachable,
            ErrorKind::NoLocks => return Self::from_raw_os_error(Errno::NOLCK.raw_os_error()),
            ErrorKind::Protocol | ErrorKind::Io | ErrorKind::Closed => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
