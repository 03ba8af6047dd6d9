//! Why a backup, a restore or a verification failed.

use std::io;
use std::path::Path;

use rustix::io::Errno;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The repository, the backup or a file does not exist.
    NotFound,
    /// The system or the store refuses access.
    NotPermitted,
    /// The name is taken, or the place holds other things.
    Exists,
    /// The target directory holds something.
    NotEmpty,
    /// No room is left.
    NoSpace,
    /// The target cannot be written.
    ReadOnly,
    /// A read, a write or a request failed.
    Io,
    /// A chunk or a manifest does not hold what its name says.
    Corrupt,
    /// The repository was written by a newer version.
    NewerFormat,
    /// Another command uses the repository.
    Busy,
    /// A file is of a kind that a backup cannot hold.
    Unsupported,
    /// The store refuses the request as it stands.
    Invalid,
    /// A name or a place is written wrongly.
    Usage,
    /// The daemon of the mount died.
    StaleMount,
}

/// A kind to match on, and one sentence for people.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What went wrong, for programs.
    pub kind: ErrorKind,
    /// One sentence: what was wrong, where, what to do.
    pub message: String,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Makes the error of a system call on `path`; `doing` completes "cannot …".
    pub(crate) fn system(doing: &str, path: &Path, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::PermissionDenied => ErrorKind::NotPermitted,
            io::ErrorKind::AlreadyExists => ErrorKind::Exists,
            io::ErrorKind::StorageFull => ErrorKind::NoSpace,
            io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
            _ if is_stale(error) => ErrorKind::StaleMount,
            _ => ErrorKind::Io,
        };
        Self::new(kind, format!("cannot {doing} {}: {error}", path.display()))
    }
}

/// Returns whether the system says that the daemon behind a mount is gone, or went during the call.
fn is_stale(error: &io::Error) -> bool {
    [Errno::NOTCONN, Errno::CONNABORTED]
        .iter()
        .any(|gone| error.raw_os_error() == Some(gone.raw_os_error()))
}
