//! Requests about checkpoints, tunables and defragmentation: what a command asks of a file system, whether it has it open itself or reaches it through a mount.
//!
//! On a mount a request is the value of an extended attribute of the root, `user.bedplate.request.TOKEN`; `…TOKEN@OFFSET` gives the answer, piece by piece.
//! The token is the caller's own, so that requests at the same time do not meet. A read-only mount takes requests in the names of attributes that are
//! read (`fuse/requests.rs`). What is often looked at is an attribute of its own: `user.bedplate.checkpoints.EPOCH`, `user.bedplate.held.EPOCHS`,
//! `user.bedplate.schedules`.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bedplate_fs::{
    ChangedRange, CheckpointInfo, CheckpointOptions, CheckpointScope, CheckpointSpace, CloneSource,
    Error, ErrorKind, FileKind, FileSystem, InodeNo, Moment, Pressure, RollbackOptions, Schedule,
    TuneOptions,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How many bytes of JSON one answer lists: attributes have 64 KiB at most.
const LISTED_BYTES_MAX: usize = 48 << 10;
/// How many bytes of paths are listed of one checkpoint.
const PATHS_BYTES_MAX: usize = 16 << 10;

/// A request. Names are bytes, as file names are.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
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
    /// Lists the checkpoints of epochs after one, oldest first; a part at a time.
    List {
        /// The last epoch of the part before; 0 at first.
        after: u32,
    },
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

/// Carries a request out; returns its answer, and what it changed.
///
/// # Errors
/// Those of the operation.
pub fn answer(fs: &FileSystem, request: &Request) -> bedplate_fs::Result<(Value, Changed)> {
    let plain = |value: Value| Ok((value, Changed::default()));
    match request {
        Request::Create { name, paths, keep, automatic } => {
            let scope = if paths.is_empty() {
                CheckpointScope::Everything
            } else {
                CheckpointScope::Paths(paths.iter().map(|path| path_of(path)).collect())
            };
            let made: CheckpointInfo = fs.create_checkpoint(
                name,
                &CheckpointOptions { scope, automatic: *automatic, kept: *keep },
            )?;
            plain(json(&listed(made))?)
        }
        Request::List { after } => plain(json(&list(fs, *after))?),
        Request::Held { epochs } => plain(json(&held(fs, epochs)?)?),
        Request::SetPolicy { policy } => {
            fs.set_space_policy(
                policy.parse().map_err(|why: String| Error::new(ErrorKind::Invalid, why))?,
            )?;
            plain(Value::Null)
        }
        Request::SetSchedule { name, every_s, keep, paths } => {
            fs.set_schedule(&Schedule {
                name: name.clone(),
                every_s: *every_s,
                keep: *keep,
                paths: paths.clone(),
                last: None,
                failure: None,
            })?;
            plain(Value::Null)
        }
        Request::Schedules => plain(json(&fs.schedules())?),
        Request::RemoveSchedule { name } => {
            fs.remove_schedule(name)?;
            plain(Value::Null)
        }
        Request::RunSchedules => plain(json(&fs.run_schedules(Moment::now())?)?),
        Request::Mount { .. } => Err(Error::new(
            ErrorKind::Unsupported,
            "only the daemon of a mount mounts a checkpoint beside it",
        )),
        Request::Delete { name } => {
            fs.delete_checkpoint(name)?;
            plain(Value::Null)
        }
        Request::Fragmentation { path } => {
            plain(json(&fs.fragmentation(fs.resolve(path_of(path))?.ino)?)?)
        }
        Request::Defragment { path, from, unshare } => {
            plain(json(&fs.defragment(fs.resolve(path_of(path))?.ino, *from, *unshare)?)?)
        }
        Request::Keep { name, keep } => plain(json(&listed(fs.keep_checkpoint(name, *keep)?))?),
        Request::Tunables => plain(json(&fs.tunables())?),
        Request::Tune(change) => plain(json(&fs.tune(change)?)?),
        Request::Rollback { name, path, force } => {
            let report = fs.rollback(
                name,
                &RollbackOptions { path: path.as_deref().map(path_of), force: *force },
            )?;
            Ok((json(&report)?, Changed { inodes: report.inodes, names: report.names }))
        }
        Request::Clone { checkpoint, path, target } => {
            let source = match checkpoint {
                Some(name) => CloneSource::Checkpoint { name: name.clone(), path: path_of(path) },
                None => CloneSource::Present(path_of(path)),
            };
            let report = fs.clone_files(&source, path_of(target))?;
            Ok((
                json(&report)?,
                Changed { inodes: BTreeSet::from([report.name.0]), names: vec![report.name] },
            ))
        }
        Request::Diff { from, to } => plain(json(&fs.checkpoint_diff(from, to.as_deref())?)?),
        Request::Changes { path, from, to } => {
            let root = to.as_ref().map_or_else(
                || PathBuf::from("/"),
                |to| Path::new("/.checkpoints").join(path_of(to)),
            );
            let path = path_of(path);
            let file = fs.resolve(root.join(path.strip_prefix("/").unwrap_or(&path)))?;
            if file.kind != FileKind::File {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!(
                        "{} is no regular file: only these have blocks that change",
                        path.display()
                    ),
                ));
            }
            let changed = fs.changed_blocks(file.ino, from, to.as_deref())?;
            plain(json(&Changes {
                size_before: changed.size_before,
                size: changed.size,
                ranges: changed.collect(),
            })?)
        }
    }
}

/// A checkpoint as it travels.
#[derive(Debug, Serialize)]
pub struct Listed {
    #[serde(flatten)]
    info: CheckpointInfo,
    /// Its name where that is no UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    name_bytes: Option<Vec<u8>>,
}

/// Lists the checkpoints of epochs after one, oldest first, as many as fit an answer.
#[must_use]
pub fn list(fs: &FileSystem, after: u32) -> Vec<Listed> {
    let mut left = LISTED_BYTES_MAX;
    let mut found = Vec::new();
    for info in fs.checkpoints().into_iter().filter(|checkpoint| checkpoint.epoch.0 > after) {
        let checkpoint = listed(info);
        let len = serde_json::to_vec(&checkpoint).map_or(0, |text| text.len() + 1);
        if len > left && !found.is_empty() {
            break;
        }
        left = left.saturating_sub(len);
        found.push(checkpoint);
    }
    found
}

fn listed(info: CheckpointInfo) -> Listed {
    let name_bytes = std::str::from_utf8(&info.name).is_err().then(|| info.name.clone());
    Listed { info: with_some_paths(info), name_bytes }
}

/// Cuts a list of paths that is too long, and says so.
fn with_some_paths(mut info: CheckpointInfo) -> CheckpointInfo {
    let mut bytes = 0;
    let mut fits = |path: &String| {
        bytes += path.len();
        bytes <= PATHS_BYTES_MAX
    };
    let shown = info.paths.iter().take_while(|path| fits(path)).count();
    if shown < info.paths.len() {
        let more = info.paths.len() - shown;
        info.paths.truncate(shown);
        info.paths.push(format!("and {more} more"));
    }
    info
}

/// What checkpoints hold.
#[derive(Debug, Serialize)]
pub struct Held {
    #[serde(flatten)]
    space: CheckpointSpace,
    /// What there is to warn of; told only of all checkpoints.
    pressure: Option<Pressure>,
    /// The same as a sentence.
    warning: Option<String>,
}

/// Tells what deleting the checkpoints of some epochs would free; of none: of all.
///
/// # Errors
/// `NotFound`; those of reading the metadata.
pub fn held(fs: &FileSystem, epochs: &[u32]) -> bedplate_fs::Result<Held> {
    if epochs.is_empty() {
        let pressure = fs.checkpoint_pressure()?;
        return Ok(Held {
            space: fs.all_checkpoints_space()?,
            pressure,
            warning: pressure.map(|pressure| pressure.to_string()),
        });
    }
    let all = fs.checkpoints();
    let name_of = |epoch: &u32| {
        let found = all.iter().find(|checkpoint| checkpoint.epoch.0 == *epoch);
        found.map(|checkpoint| checkpoint.name.as_slice()).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("checkpoint {epoch} was deleted"))
        })
    };
    let names = epochs.iter().map(name_of).collect::<bedplate_fs::Result<Vec<_>>>()?;
    Ok(Held { space: fs.checkpoints_space(&names)?, pressure: None, warning: None })
}

/// Writes epochs short: `3,7-9`.
#[must_use]
pub fn write_epochs(epochs: &[u32]) -> String {
    let mut sorted = epochs.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let runs = sorted.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// Reads what [`write_epochs`] wrote; no more than a million.
#[must_use]
pub fn parse_epochs(text: &str) -> Option<Vec<u32>> {
    const EPOCHS_MAX: usize = 1_000_000;
    let mut epochs = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || (last - first) as usize >= EPOCHS_MAX - epochs.len().min(EPOCHS_MAX) {
            return None;
        }
        epochs.extend(first..=last);
    }
    Some(epochs)
}

/// An answer as it travels.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The operation's result.
    Done(Value),
    /// Its failure: the kind, as in `NotFound`, and one sentence.
    Failed(String, String),
}

impl Answer {
    /// Wraps what an operation returned.
    #[must_use]
    pub fn of(result: bedplate_fs::Result<Value>) -> Self {
        match result {
            Ok(value) => Self::Done(value),
            Err(error) => Self::Failed(format!("{:?}", error.kind), error.message),
        }
    }
}

/// Returns a path as a request carries it.
#[must_use]
pub fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}

fn json(value: &impl Serialize) -> bedplate_fs::Result<Value> {
    serde_json::to_value(value).map_err(|e| {
        Error::new(ErrorKind::Invalid, format!("the answer cannot be written as JSON: {e}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_are_written_short_and_hostile_ones_refused() {
        for (epochs, text) in
            [(&[][..], ""), (&[3], "3"), (&[9, 7, 8, 3, 3], "3,7-9"), (&[1, 3, 5], "1,3,5")]
        {
            assert_eq!(write_epochs(epochs), text);
            let mut sorted = epochs.to_vec();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(parse_epochs(text), Some(sorted));
        }
        for wrong in ["x", "3-", "9-7", "-1", "0-4294967295", "1-999999,1-999999"] {
            assert_eq!(parse_epochs(wrong), None, "{wrong}");
        }
    }

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
        assert!(serde_json::from_str::<Request>("{\"request\":\"explode\"}").is_err());
        let failed = Answer::of(Err(Error::new(ErrorKind::Busy, "no")));
        assert!(
            matches!(failed, Answer::Failed(kind, message) if kind == "Busy" && message == "no")
        );
    }
}
