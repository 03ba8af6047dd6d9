//! What is asked of the group of devices that a mounted volume lies on. The front ends know no
//! devices: the process that has the group open gives them what answers.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate_fs::FileSystem;
use serde::{Deserialize, Serialize};

use super::request::Answer;

/// What is asked of the process that has the group open.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum GroupRequest {
    /// Tell everything.
    Status {
        /// Set the statistics to zero afterwards.
        reset: bool,
    },
    /// Add a device that waits for a member to fail.
    Spare(Newcomer),
    /// Put a device in the place of a member, which its identity names.
    Replace(String, Newcomer),
    /// Move a member that lies on others to a device of its own.
    Unrelocate(String, Newcomer),
    /// Add a member that brings room.
    Add(Newcomer),
    /// Let a volume become something else, or change how that goes.
    Relayout(RelayoutRequest),
    /// Remove a member without data.
    Remove(String),
    /// Let members go that are a whole copy, as a group of their own.
    Split {
        /// Their identities.
        members: Vec<String>,
        /// The name of that group.
        name: String,
    },
    /// State the largest p99 latency of the foreground during work in the background, in hundredths
    /// of the p99 without it.
    Foreground(u16),
    /// Compare all copies at regular times.
    ScrubEvery {
        /// How often, in seconds; `None`: no more.
        every_s: Option<u64>,
        /// Make copies good that are known to be wrong.
        repair: bool,
    },
    /// Compare all copies.
    Scrub {
        /// Make copies good that are known to be wrong.
        repair: bool,
    },
}

/// What is asked of a relayout.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum RelayoutRequest {
    /// Begin.
    Begin(RelayoutTarget),
    /// Wait, or go on.
    Pause(bool),
    /// Go back.
    Reverse,
}

/// What a volume is to become; what is not said stays as it is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RelayoutTarget {
    /// The volume for the intent log is meant.
    pub log: bool,
    /// The arrangement, by its name.
    pub layout: Option<String>,
    /// How many columns a stripe or RAID-5 has.
    pub columns: Option<usize>,
    /// The unit of a stripe or RAID-5, in bytes.
    pub unit_bytes: Option<u64>,
    /// How many plexes.
    pub plexes: Option<usize>,
    /// The size of the volume in bytes.
    pub size_bytes: Option<u64>,
    /// The most bytes that one step moves.
    pub step_bytes_max: Option<u64>,
    /// The identity of a member that gives its data to others.
    #[serde(default)]
    pub without: Option<String>,
    /// Only the size changes, and not downward.
    pub grow: bool,
}

/// A device that is named to become a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Newcomer {
    /// It must hold nothing.
    Empty(PathBuf),
    /// What it holds may be destroyed.
    Forced {
        /// Where it is.
        force: PathBuf,
    },
}

impl Newcomer {
    /// Returns where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        let (Self::Empty(path) | Self::Forced { force: path }) = self;
        path
    }
}

type Respond = dyn Fn(&GroupRequest, &FileSystem) -> Answer + Send + Sync;

/// The group of devices below a mounted volume, as the mount's socket reaches it.
#[derive(Clone)]
pub struct GroupHandle {
    /// Its identity.
    pub id: String,
    respond: Arc<Respond>,
}

impl GroupHandle {
    /// Makes one of the function that answers; it is called from any number of threads at once.
    pub fn new(
        id: String,
        respond: impl Fn(&GroupRequest, &FileSystem) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self { id, respond: Arc::new(respond) }
    }

    /// Answers a request.
    pub(crate) fn answer(&self, request: &GroupRequest, fs: &FileSystem) -> Answer {
        (self.respond)(request, fs)
    }
}

impl fmt::Debug for GroupHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupHandle").field("id", &self.id).finish_non_exhaustive()
    }
}
