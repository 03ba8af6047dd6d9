//! Why a trace cannot be kept or read.

use std::path::Path;

/// A failure, in one sentence.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused a call on a file.
    #[error("cannot {action} {place}: {source}")]
    Io {
        /// What was to be done.
        action: &'static str,
        /// The file.
        place: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file that is no trace, or of another version.
    #[error("{place} {why}")]
    Foreign {
        /// The file.
        place: String,
        /// What is wrong with it.
        why: String,
    },
}

/// The result of the crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(action: &'static str, place: &Path, source: std::io::Error) -> Self {
        Self::Io { action, place: place.display().to_string(), source }
    }

    pub(crate) fn foreign(place: &Path, why: impl Into<String>) -> Self {
        Self::Foreign { place: place.display().to_string(), why: why.into() }
    }
}
