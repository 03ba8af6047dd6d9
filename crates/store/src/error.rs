//! The error of this crate.

use std::fmt;

/// The result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, to match on. Front ends translate it to an errno in their one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// No such name or inode.
    NotFound,
    /// The name exists.
    Exists,
    /// A path component is not a directory.
    NotDirectory,
    /// The operation does not work on a directory.
    IsDirectory,
    /// The directory has entries.
    NotEmpty,
    /// An argument is out of its range.
    Invalid,
    /// A name is longer than 255 bytes.
    NameTooLong,
    /// A file would pass the largest size.
    TooLarge,
    /// More than 2^31 names of one inode, or too many symbolic links in a path.
    TooManyLinks,
    /// No free blocks.
    NoSpace,
    /// No such extended attribute.
    NoAttribute,
    /// The caller's buffer or a limit is too small for the value.
    Range,
    /// The mount is read-only, or turned so after a failed write or flush.
    ReadOnly,
    /// The device failed.
    Io,
    /// What was read from the medium is not what this software writes.
    Corrupt,
    /// Not a Bedplate volume.
    NotAVolume,
    /// A Bedplate volume in a format newer than this software.
    NewerFormat,
    /// In use elsewhere, or still in use by an open file.
    Busy,
    /// The operation is not offered here.
    Unsupported,
    /// Not permitted on this object.
    NotPermitted,
}

/// An error: a kind to match on, one sentence for people, and the device's error where there was
/// one.
#[derive(Debug, Clone)]
pub struct Error {
    /// What went wrong.
    pub kind: ErrorKind,
    /// One sentence: what was wrong, where, and what to do.
    pub message: String,
    /// The failed device operation.
    pub source: Option<bedplate_block::Error>,
    /// Of [`ErrorKind::NoSpace`]: how many blocks were asked for at once.
    #[doc(hidden)]
    pub blocks_wanted: u64,
}

/// What every latched error says.
const LATCHED: &str = "nothing later can be made durable";

impl Error {
    /// Makes an error.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None, blocks_wanted: 0 }
    }

    /// Makes a `Corrupt` error.
    #[must_use]
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    /// Makes a `NoSpace` error.
    #[must_use]
    pub fn no_space(blocks_wanted: u64, message: impl Into<String>) -> Self {
        Self { blocks_wanted, ..Self::new(ErrorKind::NoSpace, message) }
    }

    /// Makes the error that latches out of a failed write or flush: `what` failed, and what to do
    /// about it. One that latched below stays as it is.
    #[must_use]
    pub(crate) fn latching(self, what: &str) -> Self {
        if self.message.contains(LATCHED) {
            return self;
        }
        let mend = match self.kind {
            ErrorKind::NoSpace => "make room there",
            _ => "mend the device",
        };
        let message = format!(
            "{what} failed and {LATCHED} ({self}): {mend}, unmount and mount again; recovery \
             brings back what was acknowledged"
        );
        Self { message, ..self }
    }
}

impl From<bedplate_block::Error> for Error {
    #[cold]
    fn from(source: bedplate_block::Error) -> Self {
        let kind = match source.kind {
            bedplate_block::ErrorKind::Io | bedplate_block::ErrorKind::OutOfRange => ErrorKind::Io,
            bedplate_block::ErrorKind::Unaligned => ErrorKind::Invalid,
            bedplate_block::ErrorKind::ReadOnly => ErrorKind::ReadOnly,
            bedplate_block::ErrorKind::NoSpace => ErrorKind::NoSpace,
            bedplate_block::ErrorKind::Busy => ErrorKind::Busy,
            bedplate_block::ErrorKind::NotFound => ErrorKind::NotFound,
            bedplate_block::ErrorKind::Permission => ErrorKind::NotPermitted,
            bedplate_block::ErrorKind::Unsupported => ErrorKind::Unsupported,
        };
        Self { kind, message: source.to_string(), source: Some(source), blocks_wanted: 0 }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}
