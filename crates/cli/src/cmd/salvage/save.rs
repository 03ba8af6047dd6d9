//! Writes what a salvage found into a directory of the system.
//!
//! The volume may be of unknown origin. Its names are single components, checked; symbolic links
//! are made last, so that nothing is ever written through one; directories get their attributes
//! after that, when nothing is made in them any more.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bedplate::{Attr, FileKind, InodeNo, LostRange, Salvage, SalvagedEntry};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, lsetxattr,
    mknodat, utimensat,
};
use serde::Serialize;

use crate::failure::{Failure, Result, plain};
use crate::render::progress::Bytes;

/// What was saved, and what was not.
#[derive(Debug, Default, Serialize)]
pub struct Saved {
    pub files: u64,
    pub directories: u64,
    /// Symbolic links, pipes, sockets, device nodes and further names of files.
    pub others: u64,
    pub copied_bytes: u64,
    pub lost_bytes: u64,
    /// Ranges of files that could not be read; they are holes in what was saved.
    pub damaged: Vec<Damaged>,
    /// What was saved and may not be what it was.
    pub doubtful: Vec<Noted>,
    /// What was not saved.
    pub skipped: Vec<Noted>,
}

#[derive(Debug, Serialize)]
pub struct Damaged {
    pub path: PathBuf,
    #[serde(flatten)]
    pub range: LostRange,
}

#[derive(Debug, Serialize)]
pub struct Noted {
    pub path: PathBuf,
    pub reason: String,
}

impl Saved {
    pub fn is_complete(&self) -> bool {
        self.damaged.is_empty() && self.doubtful.is_empty() && self.skipped.is_empty()
    }

    fn skip(&mut self, path: &Path, reason: impl Into<String>) {
        self.skipped.push(Noted { path: path.to_owned(), reason: reason.into() });
    }
}

/// Saves every entry below `to`; fails only where nothing more can be saved.
pub fn save(
    salvage: &Salvage,
    entries: &[SalvagedEntry],
    to: &Path,
    progress: &mut Bytes,
) -> Result<Saved> {
    let mut saved = Saved::default();
    let mut first_names: HashMap<InodeNo, usize> = HashMap::new();
    let paths = paths(entries);
    let (links, others): (Vec<usize>, Vec<usize>) =
        (0..entries.len()).partition(|at| entries[*at].attr.kind == FileKind::Symlink);
    for at in others.iter().chain(&links) {
        let (entry, path) = (&entries[*at], &paths[*at]);
        let place = to.join(path);
        if let Some(reason) = &entry.doubt {
            saved.doubtful.push(Noted { path: path.clone(), reason: reason.clone() });
        }
        if entry.attr.kind != FileKind::Directory
            && let Some(first) = first_names.get(&entry.attr.ino)
            && fs::hard_link(to.join(&paths[*first]), &place).is_ok()
        {
            saved.others += 1;
            continue;
        }
        match make(salvage, entry, path, &place, &mut saved, progress) {
            Ok(()) => drop(first_names.insert(entry.attr.ino, *at)),
            // A full target will take nothing more.
            Err(failure) if failure.kind == "no_space" => return Err(failure),
            Err(failure) => saved.skip(path, failure.message),
        }
    }
    // Bottom up: to set the times of what is in a directory moves nothing of the directory's own.
    for at in (0..entries.len()).rev().filter(|at| entries[*at].attr.kind == FileKind::Directory) {
        dress(salvage, &entries[at], &paths[at], &to.join(&paths[at]), &mut saved);
    }
    Ok(saved)
}

/// The path of every entry below the target: a parent stands before its children.
fn paths(entries: &[SalvagedEntry]) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = Vec::with_capacity(entries.len());
    for entry in entries {
        let name = OsStr::from_bytes(&entry.name);
        paths.push(
            entry.parent.map_or_else(|| PathBuf::from(name), |parent| paths[parent].join(name)),
        );
    }
    paths
}

fn make(
    salvage: &Salvage,
    entry: &SalvagedEntry,
    path: &Path,
    place: &Path,
    saved: &mut Saved,
    progress: &mut Bytes,
) -> Result<()> {
    let attr = &entry.attr;
    let failed = |error: std::io::Error| Failure::system("save", place, &error);
    match attr.kind {
        FileKind::Directory => {
            fs::create_dir(place).map_err(failed)?;
            saved.directories += 1;
            return Ok(());
        }
        FileKind::File => {
            copy(salvage, attr, path, place, saved, progress)?;
            saved.files += 1;
        }
        FileKind::Symlink => {
            std::os::unix::fs::symlink(OsStr::from_bytes(&entry.target), place).map_err(failed)?;
            saved.others += 1;
        }
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
            mknodat(
                CWD,
                place,
                node_type(attr.kind),
                Mode::from_raw_mode(attr.mode & 0o7777),
                attr.rdev.into(),
            )
            .map_err(|error| failed(error.into()))?;
            saved.others += 1;
        }
    }
    dress(salvage, entry, path, place, saved);
    Ok(())
}

fn node_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
        FileKind::BlockDevice => FileType::BlockDevice,
        _ => FileType::CharacterDevice,
    }
}

/// Copies the data; holes stay holes, and so does what is lost.
fn copy(
    salvage: &Salvage,
    attr: &Attr,
    path: &Path,
    place: &Path,
    saved: &mut Saved,
    progress: &mut Bytes,
) -> Result<()> {
    let failed = |error: std::io::Error| Failure::system("save", place, &error);
    let file = File::create_new(place).map_err(failed)?;
    let mut copied = 0;
    let lost = salvage.read(attr.ino, |offset, bytes| {
        file.write_all_at(bytes, offset).map_err(failed)?;
        copied += bytes.len() as u64;
        progress.advance(bytes.len() as u64);
        Ok::<(), Failure>(())
    })?;
    if let Err(error) = file.set_len(attr.size) {
        let reason =
            format!("its size of {} bytes cannot be set here: {}", attr.size, plain(&error));
        saved.doubtful.push(Noted { path: path.to_owned(), reason });
    }
    file.sync_all().map_err(failed)?;
    saved.copied_bytes += copied;
    saved.lost_bytes =
        lost.iter().fold(saved.lost_bytes, |sum, range| sum.saturating_add(range.len));
    saved.damaged.extend(lost.into_iter().map(|range| Damaged { path: path.to_owned(), range }));
    Ok(())
}

/// Gives owner, attributes, permissions and times, as far as this user may. An owner that cannot be
/// given is no loss: only root may give any.
fn dress(salvage: &Salvage, entry: &SalvagedEntry, path: &Path, place: &Path, saved: &mut Saved) {
    let attr = &entry.attr;
    let owned = chownat(
        CWD,
        place,
        Some(Uid::from_raw(attr.uid)),
        Some(Gid::from_raw(attr.gid)),
        AtFlags::SYMLINK_NOFOLLOW,
    );
    for (name, value) in salvage.attributes(attr.ino) {
        if let Err(error) = lsetxattr(place, OsStr::from_bytes(&name), &value, XattrFlags::empty())
        {
            let reason = format!(
                "its attribute '{}' is not saved: {}",
                name.escape_ascii(),
                plain(&error.into())
            );
            saved.skip(path, reason);
        }
    }
    if attr.kind != FileKind::Symlink {
        // A user that may not give a file away must not make it run with the rights of another.
        let bits = if owned.is_ok() { attr.mode & 0o7777 } else { attr.mode & 0o1777 };
        if let Err(error) =
            fs::set_permissions(place, std::os::unix::fs::PermissionsExt::from_mode(bits))
        {
            saved.skip(path, format!("its permissions are not saved: {}", plain(&error)));
        }
    }
    let times = Timestamps {
        last_access: timespec(attr.atime.into()),
        last_modification: timespec(attr.mtime.into()),
    };
    if let Err(error) = utimensat(CWD, place, &times, AtFlags::SYMLINK_NOFOLLOW) {
        saved.skip(path, format!("its times are not saved: {}", plain(&error.into())));
    }
}

fn timespec(time: SystemTime) -> Timespec {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => Timespec {
            tv_sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: since.subsec_nanos().into(),
        },
        Err(before) => {
            let (secs, nanos) = (before.duration().as_secs(), before.duration().subsec_nanos());
            let borrow = i64::from(nanos > 0);
            let tv_sec = -i64::try_from(secs).unwrap_or(i64::MAX) - borrow;
            Timespec { tv_sec, tv_nsec: (1_000_000_000 * borrow) - i64::from(nanos) }
        }
    }
}
