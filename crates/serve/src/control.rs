//! Requests about checkpoints, tunables and defragmentation: what a command asks of a file system, whether it has it open itself or reaches it through a mount.
//!
//! On a mount a request is the value of an extended attribute of the root, `user.bedplate.request.TOKEN`; reading the same attribute gives the answer.
//! The token is the caller's own, so that requests at the same time do not meet.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use fs::{
    CheckpointInfo, CheckpointOptions, CheckpointScope, CheckpointSpace, Error, ErrorKind, FileSystem, RollbackOptions, RollbackReport, TuneOptions,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How many checkpoints one answer lists: answers have 64 KiB at most.
const LISTED_MAX: usize = 64;

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
}

/// Carries a request out; returns its answer, and what a rollback changed for a front end that keeps something of it.
///
/// # Errors
/// Those of the operation.
pub fn answer(fs: &FileSystem, request: &Request) -> fs::Result<(Value, Option<RollbackReport>)> {
    let plain = |value: Value| Ok((value, None));
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
            Ok((json(&report)?, Some(report)))
        }
    }
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
