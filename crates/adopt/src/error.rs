//! Why a conversion failed.

use std::io;
use std::path::Path;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// There is no such file, or no conversion.
    NotFound,
    /// The system refuses it to this user.
    NotPermitted,
    /// A conversion is there already.
    Exists,
    /// The old file system has too little free space.
    NoSpace,
    /// Something else uses the device.
    Busy,
    /// The old file system has something that a volume cannot take over.
    Unsupported,
    /// The old file system, or the volume, is damaged, or has to be recovered first.
    Damaged,
    /// The old file system was written to since it was converted.
    Changed,
    /// The conversion is committed.
    Committed,
    /// A read or a write failed.
    Io,
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
            io::ErrorKind::StorageFull => ErrorKind::NoSpace,
            _ => ErrorKind::Io,
        };
        Self::new(kind, format!("cannot {doing} {}: {error}", path.display()))
    }
}

/// Makes an [`Error::system`] of what `map_err` hands over.
pub(crate) fn system<E: Into<io::Error>>(doing: &str, path: &Path) -> impl FnOnce(E) -> Error {
    move |error| Error::system(doing, path, &error.into())
}

impl From<bedplate_block::Error> for Error {
    fn from(error: bedplate_block::Error) -> Self {
        use bedplate_block::ErrorKind as Kind;
        let kind = match error.kind {
            Kind::NotFound => ErrorKind::NotFound,
            Kind::Permission | Kind::ReadOnly => ErrorKind::NotPermitted,
            Kind::Busy => ErrorKind::Busy,
            Kind::NoSpace => ErrorKind::NoSpace,
            Kind::Unsupported => ErrorKind::Unsupported,
            _ => ErrorKind::Io,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<bedplate_fs::Error> for Error {
    fn from(error: bedplate_fs::Error) -> Self {
        use bedplate_fs::ErrorKind as Kind;
        let kind = match error.kind {
            Kind::NoSpace => ErrorKind::NoSpace,
            Kind::Corrupt | Kind::NotAVolume => ErrorKind::Damaged,
            Kind::TooLarge | Kind::Invalid | Kind::Unsupported => ErrorKind::Unsupported,
            Kind::Busy => ErrorKind::Busy,
            _ => ErrorKind::Io,
        };
        Self::new(kind, error.message)
    }
}
