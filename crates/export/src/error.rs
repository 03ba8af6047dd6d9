//! The errors of this crate.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What is asked for cannot be.
    #[error("{0}")]
    Usage(String),
    /// The volume, or a file in it.
    #[error(transparent)]
    Volume(#[from] bedplate_fs::Error),
    /// A file or device of the system.
    #[error(transparent)]
    Device(#[from] bedplate_block::Error),
    /// A flush that several waited for.
    #[error("{0}")]
    Sync(Arc<String>),
    /// A call of the system.
    #[error("cannot {what} {}: {source}", path.display())]
    System {
        /// The verb.
        what: &'static str,
        /// The object.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    /// Makes the error of a call of the system.
    pub(crate) fn system(what: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::System { what, path: path.to_owned(), source: source.into() }
    }
}
