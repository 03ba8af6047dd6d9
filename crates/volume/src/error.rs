//! The error of this crate: a kind to match on, and one sentence that names the member.

use std::fmt;

/// The result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong with a group, to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// What was asked for cannot be: too few members, a unit that does not fit, a name that is
    /// taken.
    Invalid,
    /// The group has no such member, or not any more.
    NotFound,
    /// The device carries no label.
    NotAMember,
    /// The device belongs to another group.
    Foreign,
    /// The device was a member and is not any more: it was removed or replaced while it was away.
    Outdated,
    /// Two members each went on without the other, so neither's data may be taken for the group's.
    Diverged,
    /// Members that the group needs were not found.
    Missing,
    /// Two devices claim the same place in the group.
    Duplicated,
    /// The device is a member of a group with many volumes: it has a table in place of a label.
    Divided,
    /// A label was written by a newer version of this software.
    NewerFormat,
    /// A label does not parse.
    Corrupt,
    /// A member is in use elsewhere.
    Busy,
    /// Too many members are gone for the data to be whole.
    Broken,
    /// A member's device failed.
    Device,
}

/// A failed operation on a group.
#[derive(Debug, Clone)]
pub struct Error {
    /// What went wrong.
    pub kind: ErrorKind,
    /// One sentence: what was wrong, which member, what to do.
    pub message: String,
    /// The failed device operation, where there was one.
    pub source: Option<bedplate_block::Error>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }
}

impl From<bedplate_block::Error> for Error {
    fn from(source: bedplate_block::Error) -> Self {
        let kind = if source.kind == bedplate_block::ErrorKind::Busy {
            ErrorKind::Busy
        } else {
            ErrorKind::Device
        };
        Self { kind, message: source.to_string(), source: Some(source) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}
