//! Carries requests out on a file system that this process has open.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use bedplate_block::DeviceOptions;
use bedplate_fs::{
    CheckpointInfo, CheckpointOptions, CheckpointScope, CheckpointSpace, ClockReading, CloneSource,
    Error, ErrorKind, FileKind, FileSystem, LogMove, LogMoveOptions, Pressure, RollbackOptions,
    Schedule,
};
use serde::Serialize;
use serde_json::Value;

use super::request::{Changed, Changes, LogRequest, PlaceRequest, Request, ShrinkRequest, path_of};

fn list(fs: &FileSystem) -> bedplate_fs::Result<Value> {
    json(&fs.checkpoints().into_iter().map(listed).collect::<Vec<_>>())
}

/// Carries a request out; returns its answer, and what it changed.
///
/// # Errors
/// Those of the operation.
pub fn answer(fs: &FileSystem, request: &Request) -> bedplate_fs::Result<(Value, Changed)> {
    let plain = |value: Value| Ok((value, Changed::default()));
    match request {
        Request::Create { name, paths, keep, automatic } => {
            plain(json(&listed(create(fs, name, paths, *keep, *automatic)?))?)
        }
        Request::List => plain(list(fs)?),
        Request::Held { epochs } => plain(json(&held(fs, epochs)?)?),
        Request::SetPolicy { policy } => plain(json(&set_policy(fs, policy)?)?),
        Request::SetSchedule { name, every_s, keep, paths } => {
            set_schedule(fs, name, *every_s, *keep, paths)?;
            plain(Value::Null)
        }
        Request::Schedules => plain(json(&fs.schedules())?),
        Request::RemoveSchedule { name } => plain(json(&fs.remove_schedule(name)?)?),
        Request::RunSchedules => plain(json(&fs.run_schedules(ClockReading::now())?)?),
        Request::Info => plain(json(&fs.info())?),
        Request::Leases => plain(json(&fs.lease_report())?),
        Request::ResetStatistics => plain(json(&fs.reset_statistics(None)?)?),
        Request::Grow => plain(json(&fs.grow()?)?),
        Request::Shrink { ask } => plain(shrink(fs, ask)?),
        Request::Log { ask } => plain(json(&move_log(fs, ask)?)?),
        Request::Trim { from, run_bytes_min } => plain(json(&fs.trim(*from, *run_bytes_min)?)?),
        Request::Mount { .. }
        | Request::MountPart { .. }
        | Request::Serving
        | Request::Threads
        | Request::Defragmenter
        | Request::Activities
        | Request::Group { .. } => Err(Error::new(
            ErrorKind::Unsupported,
            "only the daemon of a mount answers this: the volume is not mounted",
        )),
        Request::Delete { name } => plain(json(&fs.delete_checkpoint(name)?)?),
        Request::Fragmentation { path } => {
            plain(json(&fs.fragmentation(fs.resolve(path_of(path))?.ino)?)?)
        }
        Request::Defragment { path, from, unshare } => {
            plain(json(&fs.defragment(fs.resolve(path_of(path))?.ino, *from, *unshare)?)?)
        }
        Request::Place { path, ask } => plain(place(fs, path, ask)?),
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
            clone_files(fs, checkpoint.as_deref(), path, target)
        }
        Request::Diff { from, to } => plain(json(&fs.checkpoint_diff(from, to.as_deref())?)?),
        Request::Changes { path, from, to } => {
            plain(json(&changes(fs, path, from, to.as_deref())?)?)
        }
    }
}

/// Adds or replaces a schedule.
fn set_schedule(
    fs: &FileSystem,
    name: &str,
    every_s: u64,
    keep: u32,
    paths: &[PathBuf],
) -> bedplate_fs::Result<()> {
    let (name, paths) = (name.to_owned(), paths.to_vec());
    fs.set_schedule(&Schedule { name, every_s, keep, paths, last: None, failure: None })
}

/// Carries a shrink on, or tells of it.
fn shrink(fs: &FileSystem, ask: &ShrinkRequest) -> bedplate_fs::Result<Value> {
    match ask {
        ShrinkRequest::Plan { size_bytes } => json(&fs.plan_shrink(*size_bytes)?),
        ShrinkRequest::Step { size_bytes } => json(&fs.shrink(*size_bytes)?),
        ShrinkRequest::CutOffImage => json(&fs.cut_off_image()?),
        ShrinkRequest::Stop => {
            fs.stop_shrink();
            Ok(Value::Null)
        }
    }
}

/// Places a file, moves it, or tells where it lies.
fn place(fs: &FileSystem, path: &[u8], ask: &PlaceRequest) -> bedplate_fs::Result<Value> {
    let ino = fs.resolve(path_of(path))?.ino;
    match ask {
        PlaceRequest::Tell => json(&fs.placement(ino)?),
        PlaceRequest::Move { from, unshare } => json(&fs.move_placed(ino, *from, *unshare)?),
        PlaceRequest::Set { members } => {
            fs.set_placement(ino, members.as_deref())?;
            Ok(Value::Null)
        }
    }
}

/// Moves the intent log, onto a device that is opened for it.
fn move_log(fs: &FileSystem, ask: &LogRequest) -> bedplate_fs::Result<LogMove> {
    match ask {
        LogRequest::Move { device, size_bytes, force, dry_run } => {
            let open = |path: &PathBuf| bedplate_block::open(path, &DeviceOptions::default());
            let device = device.as_ref().map(open).transpose()?;
            let (size_bytes, force, dry_run) = (*size_bytes, *force, *dry_run);
            fs.move_log(device, &LogMoveOptions { size_bytes, force, dry_run })
        }
        LogRequest::Resize { size_bytes, dry_run } => fs.resize_log(*size_bytes, *dry_run),
    }
}

/// Makes a checkpoint of named paths; without any, of everything.
fn create(
    fs: &FileSystem,
    name: &[u8],
    paths: &[Vec<u8>],
    kept: bool,
    automatic: bool,
) -> bedplate_fs::Result<CheckpointInfo> {
    let scope = if paths.is_empty() {
        CheckpointScope::Everything
    } else {
        CheckpointScope::Paths(paths.iter().map(|path| path_of(path)).collect())
    };
    fs.create_checkpoint(name, &CheckpointOptions { scope, automatic, kept })
}

/// Sets what a full volume does about its checkpoints.
fn set_policy(fs: &FileSystem, policy: &str) -> bedplate_fs::Result<()> {
    fs.set_space_policy(policy.parse().map_err(|why: String| Error::new(ErrorKind::Invalid, why))?)
}

/// Clones what lies at a path, as a checkpoint has it or as it is.
fn clone_files(
    fs: &FileSystem,
    checkpoint: Option<&[u8]>,
    path: &[u8],
    target: &[u8],
) -> bedplate_fs::Result<(Value, Changed)> {
    let source = match checkpoint {
        Some(name) => CloneSource::Checkpoint { name: name.to_vec(), path: path_of(path) },
        None => CloneSource::Present(path_of(path)),
    };
    let report = fs.clone_files(&source, path_of(target))?;
    Ok((
        json(&report)?,
        Changed { inodes: BTreeSet::from([report.name.0]), names: vec![report.name] },
    ))
}

/// Says which blocks of a file changed between two checkpoints, or since one.
fn changes(
    fs: &FileSystem,
    path: &[u8],
    from: &[u8],
    to: Option<&[u8]>,
) -> bedplate_fs::Result<Changes> {
    let root =
        to.map_or_else(|| PathBuf::from("/"), |to| Path::new("/.checkpoints").join(path_of(to)));
    let path = path_of(path);
    let file = fs.resolve(root.join(path.strip_prefix("/").unwrap_or(&path)))?;
    if file.kind != FileKind::File {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("{} is no regular file: only these have blocks that change", path.display()),
        ));
    }
    let changed = fs.changed_blocks(file.ino, from, to)?;
    Ok(Changes { size_before: changed.size_before, size: changed.size, ranges: changed.collect() })
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

fn listed(info: CheckpointInfo) -> Listed {
    let name_bytes = std::str::from_utf8(&info.name).is_err().then(|| info.name.clone());
    Listed { info, name_bytes }
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

pub(crate) fn json(value: &impl Serialize) -> bedplate_fs::Result<Value> {
    serde_json::to_value(value).map_err(|e| {
        Error::new(ErrorKind::Invalid, format!("the answer cannot be written as JSON: {e}"))
    })
}
