//! Why a tool failed.

use std::io;
use std::path::Path;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// A file does not exist.
    NotFound,
    /// The system refuses access.
    NotPermitted,
    /// The target stands in the way.
    Exists,
    /// No room is left.
    NoSpace,
    /// The target cannot be written.
    ReadOnly,
    /// The reader of a stream is gone.
    Closed,
    /// A read or a write failed.
    Io,
    /// The source changed meanwhile.
    Changed,
    /// What was read back is not what was written.
    Differs,
    /// Something else uses it.
    Busy,
    /// A command that was run failed.
    Failed,
    /// A file is of a kind that is not served.
    Unsupported,
    /// What is asked for contradicts itself.
    Usage,
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
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
            io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
            io::ErrorKind::BrokenPipe => ErrorKind::Closed,
            _ => ErrorKind::Io,
        };
        Self::new(kind, format!("cannot {doing} {}: {error}", path.display()))
    }
}

/// Makes a function that explains a failed system call.
pub(crate) fn system<'a, E: Into<io::Error>>(
    doing: &'a str,
    path: &'a Path,
) -> impl Fn(E) -> Error + 'a {
    move |error| Error::system(doing, path, &error.into())
}
