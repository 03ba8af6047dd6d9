//! What a server offers.

use std::sync::Arc;

use super::wire::STRING_BYTES_MAX;
use crate::{Disk, Error, Result};

/// A disk under a name.
#[derive(Debug)]
pub struct Export {
    /// The name that clients ask for.
    pub name: String,
    /// What it is, in words, for clients that list exports.
    pub description: String,
    /// Where its bytes are.
    pub disk: Arc<dyn Disk>,
}

/// All that a server offers, in the order in which clients see it.
#[derive(Debug)]
pub struct Exports(Vec<Arc<Export>>);

impl Exports {
    /// Takes at least one export.
    ///
    /// # Errors
    /// `Usage` where two have one name, or a name is longer than the protocol has room for.
    pub fn new(exports: Vec<Export>) -> Result<Self> {
        if exports.is_empty() {
            return Err(Error::Usage("there is nothing to export: name a file".into()));
        }
        for (at, export) in exports.iter().enumerate() {
            let name = &export.name;
            if exports[..at].iter().any(|earlier| earlier.name == *name) {
                return Err(Error::Usage(format!(
                    "two exports are called '{name}': give one of them another name, as NAME=FILE"
                )));
            }
            if name.len() > STRING_BYTES_MAX || export.description.len() > STRING_BYTES_MAX {
                return Err(Error::Usage(format!(
                    "the name of an export has at most {STRING_BYTES_MAX} bytes: give a shorter \
                     one, as NAME=FILE"
                )));
            }
        }
        Ok(Self(exports.into_iter().map(Arc::new).collect()))
    }

    /// Returns the export of a name; the empty one is the first's.
    pub(super) fn find(&self, name: &[u8]) -> Option<&Arc<Export>> {
        if name.is_empty() {
            return self.0.first();
        }
        self.0.iter().find(|export| export.name.as_bytes() == name)
    }

    /// Returns all of them.
    pub(super) fn all(&self) -> &[Arc<Export>] {
        &self.0
    }
}
