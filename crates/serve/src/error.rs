//! The error of this crate: a kind to match on, one sentence for people, and what was below it.

use std::fmt;
use std::sync::Arc;

/// The result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// A mount option is unknown, malformed or contradicts another.
    Option,
    /// The mount point is missing, no directory, not empty, or taken.
    MountPoint,
    /// The part of a volume that is to be mounted is missing, no directory, or out of reach.
    Part,
    /// A dead mount of another user lies on the mount point.
    Stale,
    /// The mount is in use, so that it cannot be taken away cleanly.
    Busy,
    /// The system or its configuration does not allow it.
    Permission,
    /// Something that mounting needs is not installed or not loaded.
    Unavailable,
    /// The system reported a failure.
    Io,
    /// The file system reported a failure.
    FileSystem,
    /// An invariant was found broken while serving; the volume was left as a crash leaves it.
    Broken,
}

/// An error: what, where and what to do, in one sentence. Cheap to clone, because the end of a
/// mount is reported to every waiter.
#[derive(Debug, Clone)]
pub struct Error {
    /// What went wrong.
    pub kind: ErrorKind,
    /// One sentence.
    pub message: String,
    /// What was below it.
    pub source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(crate) fn io(message: impl Into<String>, source: std::io::Error) -> Self {
        let kind = match source.kind() {
            std::io::ErrorKind::PermissionDenied => ErrorKind::Permission,
            _ => ErrorKind::Io,
        };
        Self {
            kind,
            message: format!("{}: {source}", message.into()),
            source: Some(Arc::new(source)),
        }
    }
}

impl From<bedplate_fs::Error> for Error {
    fn from(source: bedplate_fs::Error) -> Self {
        Self {
            kind: ErrorKind::FileSystem,
            message: source.message.clone(),
            source: Some(Arc::new(source)),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}
