//! What a command asks of a file system, and what it is answered.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use bedplate_fs::{ChangedRange, InodeNo, TuneOptions};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::group::GroupRequest;

/// A request. Names are bytes, as file names are.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// Tells what is served, and by which process: [`Serving`].
    Serving,
    /// Tells everything of the file system.
    Info,
    /// Tells how leases stand: [`bedplate_fs::LeaseReport`]; nothing where none are handed out.
    Leases,
    /// Tells how busy the threads are that serve the mount: [`ThreadReport`](super::ThreadReport).
    Threads,
    /// Tells what background defragmentation does and did.
    Defragmenter,
    /// Tells the counters and latencies of all files that did anything, with their paths.
    Activities,
    /// Sets all counters and latencies to zero.
    ResetStatistics,
    /// Takes over the size that the device has grown to; tells it.
    Grow,
    /// Makes the file system smaller.
    Shrink {
        /// What is to be done.
        ask: ShrinkRequest,
    },
    /// Moves the intent log, or gives it another size.
    Log {
        /// What is to be done.
        ask: LogRequest,
    },
    /// Discards the next free runs: [`bedplate_fs::TrimStep`].
    Trim {
        /// The byte of the volume to begin at.
        from: u64,
        /// The shortest run in bytes.
        run_bytes_min: u64,
    },
    /// What is asked of the group of devices below.
    Group {
        /// The question.
        ask: GroupRequest,
    },
    /// Makes a checkpoint, of everything where no paths are given.
    Create {
        /// Its name.
        name: Vec<u8>,
        /// Paths from the root of the volume.
        paths: Vec<Vec<u8>>,
        /// Nothing but a person removes it.
        keep: bool,
        /// A program makes it.
        automatic: bool,
    },
    /// Lists the checkpoints, oldest first.
    List,
    /// Tells what deleting some together would free; of none: what all hold, and whether they fill
    /// the volume.
    Held {
        /// Their epochs.
        epochs: Vec<u32>,
    },
    /// Sets what happens when the volume is full.
    SetPolicy {
        /// As in `delete-oldest`.
        policy: String,
    },
    /// Adds or replaces a schedule.
    SetSchedule {
        /// Its name.
        name: String,
        /// Its period in seconds.
        every_s: u64,
        /// How many of its checkpoints are kept.
        keep: u32,
        /// Paths from the root of the volume; none: everything.
        paths: Vec<PathBuf>,
    },
    /// Lists the schedules.
    Schedules,
    /// Removes a schedule.
    RemoveSchedule {
        /// Its name.
        name: String,
    },
    /// Makes what is due by schedules, and deletes what they keep no longer.
    RunSchedules,
    /// Mounts one on a directory of its own, beside the volume's mount.
    Mount {
        /// Its name.
        name: Vec<u8>,
        /// The directory.
        dir: PathBuf,
    },
    /// Mounts a directory of the volume on another directory: [`MountedPart`](crate::fuse::MountedPart).
    MountPart {
        /// Its path from the root of the volume.
        path: PathBuf,
        /// Where.
        dir: PathBuf,
        /// The options, as mount(8) writes them.
        options: String,
    },
    /// Deletes one.
    Delete {
        /// Its name.
        name: Vec<u8>,
    },
    /// Protects one from retention, or no longer.
    Keep {
        /// Its name.
        name: Vec<u8>,
        /// Whether to.
        keep: bool,
    },
    /// Tells how the tunables stand.
    Tunables,
    /// Changes tunables; tells how they stand then.
    Tune(TuneOptions),
    /// Rolls back.
    Rollback {
        /// The name of the checkpoint.
        name: Vec<u8>,
        /// A path from the root of the volume; `None`: everything.
        path: Option<Vec<u8>>,
        /// Also what is open.
        force: bool,
    },
    /// Tells how scattered a file is.
    Fragmentation {
        /// Its path from the root of the volume.
        path: Vec<u8>,
    },
    /// Moves the next scattered part of a file together.
    Defragment {
        /// Its path from the root of the volume.
        path: Vec<u8>,
        /// The file offset in bytes to begin at.
        from: u64,
        /// Also what checkpoints need.
        unshare: bool,
    },
    /// Says on which members of the group a file or directory is to lie, or moves it there.
    Place {
        /// Its path from the root of the volume.
        path: Vec<u8>,
        /// What is to be done.
        ask: PlaceRequest,
    },
    /// Clones a file or directory.
    Clone {
        /// The name of the checkpoint; `None`: of the present.
        checkpoint: Option<Vec<u8>>,
        /// Its path from the root of the volume, or of the checkpoint.
        path: Vec<u8>,
        /// The path of the clone, from the root of the volume.
        target: Vec<u8>,
    },
    /// Tells what differs between two moments: [`bedplate_fs::CheckpointDifference`]s in the order
    /// of their paths.
    Diff {
        /// The first checkpoint.
        from: Vec<u8>,
        /// The second; `None`: the present.
        to: Option<Vec<u8>>,
    },
    /// Tells what changed in a file between two moments: [`Changes`].
    Changes {
        /// Its path at the second moment, from the root.
        path: Vec<u8>,
        /// The first checkpoint.
        from: Vec<u8>,
        /// The second; `None`: the present.
        to: Option<Vec<u8>>,
    },
}

/// What is to be done about a file system that becomes smaller.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShrinkRequest {
    /// Tells what a shrink would have to do: [`bedplate_fs::ShrinkPlan`].
    Plan {
        /// The size that it would have.
        size_bytes: u64,
    },
    /// Carries it on by a step: [`bedplate_fs::ShrinkStep`].
    Step {
        /// The size that it is to have.
        size_bytes: u64,
    },
    /// Gives it up.
    Stop,
    /// Lets an image file end where the file system does; tells whether it did.
    CutOffImage,
}

/// What is to be done about where a file lies.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlaceRequest {
    /// Tells where it is to lie, and where it lies: [`bedplate_fs::FilePlacement`].
    Tell,
    /// Places it.
    Set {
        /// The members by their names; `None`: it may lie anywhere.
        members: Option<Vec<String>>,
    },
    /// Moves the next part of it to where it is to lie: [`bedplate_fs::PlaceStep`].
    Move {
        /// The file offset in bytes to begin at.
        from: u64,
        /// Also what checkpoints and other files need.
        unshare: bool,
    },
}

/// What is to be done about an intent log; answered with [`bedplate_fs::LogMove`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogRequest {
    /// It goes elsewhere.
    Move {
        /// The device, by its whole path; `None`: home, to the volume.
        device: Option<PathBuf>,
        /// Its size there in bytes; `None`: what suits.
        size_bytes: Option<u64>,
        /// Whatever the device holds.
        force: bool,
        /// Only tell.
        dry_run: bool,
    },
    /// It gets another size where it is.
    Resize {
        /// The size in bytes.
        size_bytes: u64,
        /// Only tell.
        dry_run: bool,
    },
}

/// What a mount serves, and by which process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Serving {
    /// The process.
    pub pid: u32,
    /// The identity of the group of devices that the volume lies on, where it lies on one.
    pub group: Option<String>,
}

/// What changed in a file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Changes {
    /// Its size at the first moment, if it was there.
    pub size_before: Option<u64>,
    /// Its size at the second.
    pub size: u64,
    /// In order.
    pub ranges: Vec<ChangedRange>,
}

/// What a request changed, for a front end that keeps something of it.
#[derive(Debug, Default)]
pub struct Changed {
    /// Inodes.
    pub inodes: BTreeSet<InodeNo>,
    /// Names: directory, and name in it.
    pub names: Vec<(InodeNo, Vec<u8>)>,
}

/// An answer as it travels.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The operation's result.
    Done(Value),
    /// Its failure: the kind, as in `not_found`, and one sentence.
    Failed(String, String),
}

impl Answer {
    /// Wraps what an operation returned.
    #[must_use]
    pub fn of(result: bedplate_fs::Result<Value>) -> Self {
        match result {
            Ok(value) => Self::Done(value),
            Err(error) => Self::failed(error.kind, error.message),
        }
    }

    /// Answers with a failure; its kind becomes the word that commands tell: `NotFound` is
    /// `not_found`.
    pub(crate) fn failed(kind: impl std::fmt::Debug, message: impl Into<String>) -> Self {
        let mut word = String::new();
        for letter in format!("{kind:?}").chars() {
            if letter.is_ascii_uppercase() && !word.is_empty() {
                word.push('_');
            }
            word.push(letter.to_ascii_lowercase());
        }
        Self::Failed(word, message.into())
    }
}

/// Returns a path as a request carries it.
#[must_use]
pub fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use bedplate_fs::{Error, ErrorKind};

    use super::*;

    #[test]
    fn requests_and_answers_survive_the_way() {
        let request = Request::Rollback {
            name: b"odd \xff".to_vec(),
            path: Some(b"/a \xff".to_vec()),
            force: true,
        };
        let text = serde_json::to_vec(&request).unwrap();
        assert!(
            matches!(serde_json::from_slice(&text).unwrap(), Request::Rollback { name, force: true, .. } if name == b"odd \xff")
        );
        let group =
            serde_json::to_string(&Request::Group { ask: GroupRequest::Scrub { repair: true } })
                .unwrap();
        assert_eq!(group, r#"{"request":"group","ask":{"Scrub":{"repair":true}}}"#);
        assert!(matches!(
            serde_json::from_str(&group).unwrap(),
            Request::Group { ask: GroupRequest::Scrub { repair: true } }
        ));
        assert!(serde_json::from_str::<Request>("{\"request\":\"explode\"}").is_err());
        for (kind, word) in [(ErrorKind::Busy, "busy"), (ErrorKind::NotFound, "not_found")] {
            let failed = Answer::of(Err(Error::new(kind, "no")));
            assert!(
                matches!(failed, Answer::Failed(kind, message) if kind == word && message == "no")
            );
        }
    }
}
