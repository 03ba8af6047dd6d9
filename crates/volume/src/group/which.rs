//! How a member is named in a call.

use crate::{Config, Error, ErrorKind, Id, Result};

/// Which member is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The one with an index now: another when one before it is removed.
    At(usize),
    /// The one with an identity, whatever its index is by then.
    Is(Id),
}

impl From<usize> for Which {
    fn from(index: usize) -> Self {
        Self::At(index)
    }
}

impl From<Id> for Which {
    fn from(id: Id) -> Self {
        Self::Is(id)
    }
}

impl Which {
    pub(crate) fn index_in(self, config: &Config) -> Result<usize> {
        let group = &config.name;
        let none = |message| Error::new(ErrorKind::NotFound, message);
        match self {
            Self::At(index)
                if config.members.get(index).is_some_and(|member| !member.is_vacant()) =>
            {
                Ok(index)
            }
            Self::At(index) => Err(none(format!("group {group} has no member {index}"))),
            Self::Is(id) => config.index_of(id).ok_or_else(|| {
                none(format!(
                    "group {group} has no member {id} any more: it was removed or replaced, or a \
                     spare took its place, just now"
                ))
            }),
        }
    }
}
