//! The error of this crate: a kind to match on, and where it happened.

use std::fmt;

/// The result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The device or the system reported a failure.
    Io,
    /// Offset, length or buffer is not a multiple of what the device needs.
    Unaligned,
    /// The access lies beyond the end of the device.
    OutOfRange,
    /// The device refuses writes.
    ReadOnly,
    /// The file system below a sparse image is full.
    NoSpace,
    /// Another process has the device open exclusively, or it is mounted.
    Busy,
    /// There is no such file or device.
    NotFound,
    /// The caller lacks the permission.
    Permission,
    /// What was asked for cannot be done on this kind of device.
    Unsupported,
}

/// The operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Opening or probing.
    Open,
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
    /// A discard or write of zeros.
    Discard,
    /// A queue's submission or completion.
    Queue,
    /// A change of size.
    Resize,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::Queue => "queue",
            Self::Resize => "resize",
        })
    }
}

/// A failed device operation: what, where, why. Cheap to clone, because a latched error is reported
/// many times.
#[derive(Debug, Clone)]
pub struct Error {
    /// What went wrong.
    pub kind: ErrorKind,
    /// What was being done.
    pub operation: Operation,
    /// The device's name.
    pub device: String,
    /// Device offset in bytes, where one applies.
    pub offset: Option<u64>,
    /// One sentence of detail, without the device's name.
    pub detail: String,
    /// The system's error number, where there was one.
    pub errno: Option<i32>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.device, self.operation)?;
        if let Some(offset) = self.offset {
            write!(f, " at byte {offset}")?;
        }
        write!(f, ": {}", self.detail)
    }
}

impl std::error::Error for Error {}
