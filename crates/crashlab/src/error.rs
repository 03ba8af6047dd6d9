//! Why a lab could not record, or could not try its states.

use std::io;
use std::path::Path;

use bedplate_block::without_errno;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// A file, a program or a state does not exist.
    NotFound,
    /// The system refuses access.
    NotPermitted,
    /// The name is taken.
    Exists,
    /// No room is left for the recording.
    NoSpace,
    /// The target cannot be written.
    ReadOnly,
    /// A read, a write or another call of the system failed.
    Io,
    /// A recording cannot be read.
    Corrupt,
    /// A recording does not fit the image it was made on.
    Invalid,
    /// What was asked for is not possible.
    Usage,
    /// The lab was asked to stop.
    Interrupted,
    /// The setup failed.
    Setup,
    /// The command failed.
    Command,
    /// The checker fails even where nothing was lost.
    Checker,
    /// The file system failed.
    FileSystem(bedplate::ErrorKind),
    /// The mount failed.
    Mount(bedplate_serve::ErrorKind),
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

    /// Makes the error of a system call; `doing` completes "cannot …".
    pub(crate) fn io(doing: &str, error: &io::Error) -> Self {
        Self::new(ErrorKind::Io, format!("cannot {doing}: {}", plain(error)))
    }

    /// Makes the error of a system call on `path`; `doing` completes "cannot …".
    pub(crate) fn system(doing: &str, path: &Path, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::PermissionDenied => ErrorKind::NotPermitted,
            io::ErrorKind::AlreadyExists => ErrorKind::Exists,
            io::ErrorKind::StorageFull => ErrorKind::NoSpace,
            io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
            _ => ErrorKind::Io,
        };
        Self::new(kind, format!("cannot {doing} {}: {}", path.display(), plain(error)))
    }

    /// Puts the step during which it happened before the sentence.
    pub(crate) fn during(self, step: &str) -> Self {
        Self { message: format!("{step}: {}", self.message), ..self }
    }
}

impl From<bedplate::Error> for Error {
    fn from(error: bedplate::Error) -> Self {
        Self::new(ErrorKind::FileSystem(error.kind), error.message)
    }
}

impl From<bedplate::DeviceError> for Error {
    fn from(error: bedplate::DeviceError) -> Self {
        bedplate::Error::from(error).into()
    }
}

impl From<bedplate_serve::Error> for Error {
    fn from(error: bedplate_serve::Error) -> Self {
        Self::new(ErrorKind::Mount(error.kind), error.message)
    }
}

/// Returns the system's words for an error.
pub(crate) fn plain(error: &io::Error) -> String {
    without_errno(&error.to_string()).to_owned()
}
