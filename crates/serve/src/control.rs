//! Requests about checkpoints, tunables and defragmentation: what a command asks of a file system, whether it has it open itself or reaches it through a mount.
//!
//! On a mount a request is the value of an extended attribute of the root, `user.bedplate.request.TOKEN`; reading the same attribute gives the answer.
//! The token is the caller's own, so that requests at the same time do not meet.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use fs::{
    ChangedRange, CheckpointDifference, CheckpointInfo, CheckpointOptions, CheckpointScope, CheckpointSpace, CloneSource, Error, ErrorKind, FileKind,
    FileSystem, InodeNo, RollbackOptions, TuneOptions,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How many checkpoints one answer lists: answers have 64 KiB at most.
const LISTED_MAX: usize = 64;
/// How many bytes of differences.
const DIFFERENCES_BYTES_MAX: usize = 48 << 10;
/// How many ranges of a file.
const RANGES_MAX: usize = 700;

/// A request. Names are bytes, as file names are.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// Makes a checkpoint, of everything where no paths are given.
    Create {
        /// Its name.
        name: Vec<u8>,
        /// Paths from the root of the volume.
        paths: Vec<PathBuf>,
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
    /// Tells what one holds.
    Space {
        /// Its name.
        name: Vec<u8>,
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
        path: Option<PathBuf>,
        /// Also what is open.
        force: bool,
    },
    /// Tells how scattered a file is.
    Fragmentation {
        /// Its path from the root of the volume.
        path: PathBuf,
    },
    /// Moves the next scattered part of a file together.
    Defragment {
        /// Its path from the root of the volume.
        path: PathBuf,
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
    /// Tells what differs between two moments, a part at a time.
    Diff {
        /// The first checkpoint.
        from: Vec<u8>,
        /// The second; `None`: the present.
        to: Option<Vec<u8>>,
        /// How many differences were told before.
        skip: usize,
    },
    /// Tells what changed in a file between two moments, a part at a time.
    Changes {
        /// Its path at the second moment, from the root.
        path: Vec<u8>,
        /// The first checkpoint.
        from: Vec<u8>,
        /// The second; `None`: the present.
        to: Option<Vec<u8>>,
        /// How many ranges were told before.
        skip: usize,
    },
}

/// Some of what differs.
#[derive(Debug, Serialize, Deserialize)]
pub struct Differences {
    /// In order of their paths.
    pub differences: Vec<CheckpointDifference>,
    /// Whether there are others after them.
    pub more: bool,
}

/// Some of what changed in a file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Changes {
    /// Its size at the first moment, if it was there.
    pub size_before: Option<u64>,
    /// Its size at the second.
    pub size: u64,
    /// In order.
    pub ranges: Vec<ChangedRange>,
    /// Whether there are others after them.
    pub more: bool,
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
pub fn answer(fs: &FileSystem, request: &Request) -> fs::Result<(Value, Changed)> {
    let plain = |value: Value| Ok((value, Changed::default()));
    match request {
        Request::Create { name, paths, keep, automatic } => {
            let scope = if paths.is_empty() { CheckpointScope::Everything } else { CheckpointScope::Paths(paths.clone()) };
            let made: CheckpointInfo = fs.create_checkpoint(name, &CheckpointOptions { scope, automatic: *automatic, kept: *keep })?;
            plain(json(&made)?)
        }
        Request::List { after } => {
            let later = fs.checkpoints().into_iter().filter(|checkpoint| checkpoint.epoch.0 > *after);
            plain(json(&later.take(LISTED_MAX).collect::<Vec<_>>())?)
        }
        Request::Space { name } => {
            let space: CheckpointSpace = fs.checkpoint_space(name)?;
            plain(json(&space)?)
        }
        Request::Delete { name } => {
            fs.delete_checkpoint(name)?;
            plain(Value::Null)
        }
        Request::Fragmentation { path } => plain(json(&fs.fragmentation(fs.resolve(path)?.ino)?)?),
        Request::Defragment { path, from, unshare } => plain(json(&fs.defragment(fs.resolve(path)?.ino, *from, *unshare)?)?),
        Request::Keep { name, keep } => plain(json(&fs.keep_checkpoint(name, *keep)?)?),
        Request::Tunables => plain(json(&fs.tunables())?),
        Request::Tune(change) => plain(json(&fs.tune(change)?)?),
        Request::Rollback { name, path, force } => {
            let report = fs.rollback(name, &RollbackOptions { path: path.clone(), force: *force })?;
            Ok((json(&report)?, Changed { inodes: report.inodes, names: report.names }))
        }
        Request::Clone { checkpoint, path, target } => {
            let source = match checkpoint {
                Some(name) => CloneSource::Checkpoint { name: name.clone(), path: path_of(path) },
                None => CloneSource::Present(path_of(path)),
            };
            let report = fs.clone_files(&source, path_of(target))?;
            Ok((json(&report)?, Changed { inodes: BTreeSet::from([report.name.0]), names: vec![report.name] }))
        }
        Request::Diff { from, to, skip } => plain(json(&differences(fs, from, to.as_deref(), *skip)?)?),
        Request::Changes { path, from, to, skip } => {
            let root = to.as_ref().map_or_else(|| PathBuf::from("/"), |to| Path::new("/.checkpoints").join(path_of(to)));
            let path = path_of(path);
            let file = fs.resolve(root.join(path.strip_prefix("/").unwrap_or(&path)))?;
            if file.kind != FileKind::File {
                return Err(Error::new(ErrorKind::Invalid, format!("{} is no regular file: only these have blocks that change", path.display())));
            }
            let changed = fs.changed_blocks(file.ino, from, to.as_deref())?;
            let (size_before, size, total) = (changed.size_before, changed.size, changed.size_hint().0);
            let ranges: Vec<_> = changed.skip(*skip).take(RANGES_MAX).collect();
            let more = skip + ranges.len() < total;
            plain(json(&Changes { size_before, size, ranges, more })?)
        }
    }
}

fn differences(fs: &FileSystem, from: &[u8], to: Option<&[u8]>, skip: usize) -> fs::Result<Differences> {
    let all = fs.checkpoint_diff(from, to)?;
    let mut room = DIFFERENCES_BYTES_MAX;
    // A byte of a path takes up to four in JSON.
    let bytes = |difference: &CheckpointDifference| 256 + 4 * (difference.path.len() + difference.from.as_ref().map_or(0, Vec::len));
    let fits = |difference: &&CheckpointDifference| {
        let needed = bytes(difference);
        let fits = needed <= room || room == DIFFERENCES_BYTES_MAX;
        room = room.saturating_sub(needed);
        fits
    };
    let some: Vec<_> = all.iter().skip(skip).take_while(fits).cloned().collect();
    let more = skip + some.len() < all.len();
    Ok(Differences { differences: some, more })
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
    pub fn of(result: fs::Result<Value>) -> Self {
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

fn json(value: &impl Serialize) -> fs::Result<Value> {
    serde_json::to_value(value).map_err(|e| Error::new(ErrorKind::Invalid, format!("the answer cannot be written as JSON: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_survive_the_way() {
        let request = Request::Rollback { name: b"odd \xff".to_vec(), path: Some("/a b".into()), force: true };
        let text = serde_json::to_vec(&request).unwrap();
        assert!(matches!(serde_json::from_slice(&text).unwrap(), Request::Rollback { name, force: true, .. } if name == b"odd \xff"));
        assert!(serde_json::from_str::<Request>("{\"request\":\"explode\"}").is_err());
        let failed = Answer::of(Err(Error::new(ErrorKind::Busy, "no")));
        assert!(matches!(failed, Answer::Failed(kind, message) if kind == "Busy" && message == "no"));
    }
}
