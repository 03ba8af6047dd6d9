//! The error of this crate.

use std::fmt;

/// The result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// An option or a target's description makes no sense.
    Usage,
    /// The target cannot serve the workload: too small, unaligned, unwritable, mounted, without a
    /// queue …
    Target,
    /// Overwriting was not confirmed.
    NotConfirmed,
    /// An I/O of the measurement itself failed.
    Io,
    /// The run was interrupted.
    Interrupted,
    /// A results file does not parse or does not fit.
    Results,
}

/// An error: a kind to match on and one sentence for people.
#[derive(Debug)]
pub struct Error {
    /// What went wrong.
    pub kind: ErrorKind,
    /// One sentence: what was wrong, where, and what to do.
    pub message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// Makes an error.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, message)
    }

    pub(crate) fn target(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Target, message)
    }

    pub(crate) fn interrupted() -> Self {
        Self::new(ErrorKind::Interrupted, "interrupted")
    }

    /// Wraps a failure of `what` (a path, a device) while doing `action`.
    pub(crate) fn io(
        what: impl fmt::Display,
        action: &str,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        Self {
            kind: ErrorKind::Io,
            message: format!(
                "{what}: {action}: {}",
                bedplate_block::without_errno(&source.to_string())
            ),
            source: Some(Box::new(source)),
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
        self.source.as_ref().map(|e| &**e as _)
    }
}

impl From<bedplate::DeviceError> for Error {
    fn from(source: bedplate::DeviceError) -> Self {
        Self { kind: ErrorKind::Io, message: source.to_string(), source: Some(Box::new(source)) }
    }
}

impl From<bedplate::Error> for Error {
    fn from(source: bedplate::Error) -> Self {
        Self { kind: ErrorKind::Io, message: source.to_string(), source: Some(Box::new(source)) }
    }
}
