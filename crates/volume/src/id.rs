//! Identities of groups and members.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// The identity of a group or of a member: 16 random bytes, written as a UUID.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Id(pub [u8; 16]);

impl Id {
    /// Makes an identity that nothing else has.
    #[must_use]
    pub fn random() -> Self {
        Self(*uuid::Uuid::new_v4().as_bytes())
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        uuid::Uuid::from_bytes(self.0).fmt(f)
    }
}

impl FromStr for Id {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        uuid::Uuid::parse_str(text).map(|id| Self(*id.as_bytes())).map_err(|_| {
            Error::invalid(format!("{text:?} is no identity: it is written as a UUID"))
        })
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
