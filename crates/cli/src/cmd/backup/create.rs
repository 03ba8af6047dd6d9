//! One backup: of a checkpoint of a mount, against the newest earlier one that there is.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bedplate::{DifferenceKind, FileKind};
use bedplate_backup::{Changed, Created, Header, Repository, Source};

use crate::cmd::checkpoint::diff::{changes, differences};
use crate::cmd::checkpoint::show;
use crate::failure::{Failure, Result};
use crate::mount::{Mount, live};
use crate::reach::Reach;
use crate::render::output::Output;
use crate::render::progress;

/// Returns the newest backup of an older moment that still exists on the volume. What one of named
/// files does not have, another may have had all the time.
fn base_of(
    headers: Vec<Header>,
    new: &Header,
    found: &show::Checkpoint,
    checkpoints: &[show::Checkpoint],
) -> Option<Header> {
    let whole = |known: &show::Checkpoint| known.is_whole() && found.is_whole();
    let exists = |old: &Header| {
        checkpoints
            .iter()
            .any(|known| whole(known) && known.is(old.checkpoint.get(), old.epoch, old.created))
    };
    let fits = |old: &Header| old.volume == new.volume && old.epoch <= new.epoch && exists(old);
    headers.into_iter().filter(fits).max_by_key(|old| old.epoch)
}

/// How a backup is made.
pub struct How<'a> {
    /// Its name; without it, that of the checkpoint.
    pub name: Option<&'a str>,
    /// Everything is read.
    pub full: bool,
    /// The level of compression; none stores data as it is.
    pub level: Option<i32>,
}

/// Backs a checkpoint of a mount up. The repository is opened once the checkpoint was found.
pub fn create(
    mount: Mount,
    checkpoint: &OsString,
    open: impl FnOnce() -> Result<Repository>,
    how: &How<'_>,
    output: &Output,
) -> Result<Created> {
    let uuid = live::info(&mount)?["uuid"].as_str().map(str::to_owned);
    let volume = uuid.ok_or_else(|| {
        Failure::new("io", format!("{} does not tell which volume it is", mount.dir.display()))
    })?;
    let shown = mount.dir.join(".checkpoints").join(checkpoint);
    let reach = Reach::Mounted(mount);
    let checkpoints = show::all(&reach, output)?;
    let found = show::find(&checkpoints, checkpoint)?;
    let repository = open()?;
    let name = how.name.map_or_else(|| checkpoint.to_string_lossy().into_owned(), str::to_owned);
    repository.need_free(&name)?;
    let bytes = checkpoint.as_bytes().to_vec();
    let mut header = Header {
        format: 0,
        name,
        volume,
        checkpoint: bytes.clone().into(),
        epoch: found.epoch,
        created: found.created,
        base: None,
    };
    let old = if how.full {
        None
    } else {
        base_of(repository.headers()?.0, &header, found, &checkpoints)
    };
    let base = match old {
        None => None,
        Some(old) => since(&reach, &old, bytes, output)?.map(|changed| (old, changed)),
    };
    header.base = base.as_ref().map(|(old, _)| old.name.clone());
    let base = base
        .map(|(old, changed)| repository.backup(&old.name).map(|old| (old, changed)))
        .transpose()?;
    let source = Source { dir: shown, header, base, level: how.level };
    let mut progress =
        progress::Bytes::new(output, format!("backing up {}", source.header.name), 0);
    let created =
        bedplate_backup::create(&repository, &source, |done, total| progress.reach(done, total))?;
    drop(progress);
    Ok(created)
}

/// Tells what changed since a backup's checkpoint; `None` where the two cannot be compared.
fn since<'a>(
    reach: &'a Reach,
    old: &Header,
    to: Vec<u8>,
    output: &'a Output,
) -> Result<Option<Changed<'a>>> {
    let from = old.checkpoint.get().to_vec();
    let found = match differences(reach, &from, Some(&to), output) {
        Ok(found) => found,
        Err(failure) if failure.kind == "invalid" => return Ok(None),
        Err(failure) => return Err(failure),
    };
    let content = found.iter().filter(|difference| {
        difference.file == FileKind::File && difference.kind != DifferenceKind::Removed
    });
    let inodes = content.map(|difference| difference.ino.0).collect();
    let ranges = move |path: &Path| {
        let path = Path::new("/").join(path).as_os_str().as_bytes().to_vec();
        let told =
            changes(reach, &path, &from, Some(&to), output).map_err(|failure| failure.message)?;
        Ok(told.ranges.iter().map(|range| (range.offset, range.len)).collect())
    };
    Ok(Some(Changed { inodes, ranges: Box::new(ranges) }))
}
