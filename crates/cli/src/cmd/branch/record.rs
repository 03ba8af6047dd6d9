//! What a branch says of itself: one file in it.

use std::path::{Path, PathBuf};

use bedplate::Timestamp;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};

/// The file's name.
const NAME: &str = "bedplate.branch";

/// What a branch is a branch of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub source: PathBuf,
    pub kind: Kind,
    /// The port of its server.
    pub port: Option<u16>,
    pub made: Timestamp,
    /// Its table spaces, beside it. The server of the branch may have dropped some since.
    #[serde(default)]
    pub parts: Vec<PathBuf>,
    /// Whether it is a copy that was not made a branch of its own yet: its server would have the
    /// port, the archive and the table spaces of the source.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
}

/// What is branched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A cluster of PostgreSQL.
    Postgresql,
    /// A directory of files, as of SQLite.
    Files,
}

impl Record {
    pub fn new(source: &Path, kind: Kind, port: Option<u16>) -> Self {
        let (source, made) = (source.to_owned(), Timestamp::now());
        Self { source, kind, port, made, parts: Vec::new(), incomplete: false }
    }

    /// Returns where a branch keeps it.
    pub fn path(branch: &Path) -> PathBuf {
        branch.join(NAME)
    }

    /// Reads that of a branch.
    pub fn of(branch: &Path) -> Result<Self> {
        let Some(text) = super::get(branch, NAME)? else {
            let shown = branch.display();
            return Err(Failure::new(
                "not_a_branch",
                format!(
                    "{shown} is no branch: 'bedplate branch list DIR' names those that there are"
                ),
            ));
        };
        serde_json::from_str(&text).map_err(|e| {
            Failure::new(
                "corrupt",
                format!(
                    "{} does not say what this is a branch of ({e}): remove {} by hand",
                    Self::path(branch).display(),
                    branch.display()
                ),
            )
        })
    }

    /// Keeps it in a branch.
    pub fn write(&self, branch: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).expect("names and numbers have a form in JSON");
        super::put(branch, NAME, &text)
    }
}
