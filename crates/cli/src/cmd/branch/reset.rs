//! A branch that is made again, and what is left of one when that was cut short.
//!
//! ```text
//!   parts, then the branch  ─► .NAME.before-reset ─► created ─► what was put aside is removed
//!
//!   cut      what is there                              settle()
//!   before   the branch; parts put aside or not         puts the parts back
//!   between  .NAME.before-reset, no branch              puts it back
//!   within   both, the new one incomplete               removes the new one, puts the other back
//!   after    both, the new one complete                 removes what was put aside
//! ```
//!
//! Two directories that a reset cannot have left like that are not removed: both are named.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};

use super::super::checkpoint::clone::unfinished;
use super::record::Record;
use super::{Branch, absolute, create, is_space, parts, postgres, remove, stop};
use crate::failure::{Failure, Result};
use crate::mount;
use crate::render::output::Output;

const SUFFIX: &str = ".before-reset";

/// Returns where a part of a branch, or itself, is put while it is made again.
pub fn aside(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(SUFFIX);
    path.with_file_name(name)
}

/// Returns the branch that was put aside here, by the name of the place.
pub fn put_aside(path: &Path) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let name = path.file_name()?.as_bytes().strip_prefix(b".")?.strip_suffix(SUFFIX.as_bytes())?;
    Some(path.with_file_name(OsStr::from_bytes(name)))
}

/// Says what a reset of a branch that was cut short left, and what ends it.
pub fn was_cut(branch: &Path) -> Failure {
    let shown = branch.display();
    Failure::new(
        "reset_was_cut",
        format!(
            "a reset of {shown} was cut short: 'bedplate branch reset {shown}' makes the branch \
             again, 'bedplate branch drop {shown}' removes it"
        ),
    )
}

/// Returns the path of a branch, which may be put aside.
pub fn named(path: &Path) -> Result<PathBuf> {
    if path.symlink_metadata().is_err() {
        let there = absolute(path)?;
        if aside(&there).exists() {
            return Ok(there);
        }
    }
    mount::canonical(path)
}

/// Waits until no other command resets or removes a branch in the same directory; holds for as long
/// as what is returned.
pub fn alone(branch: &Path) -> Result<File> {
    let dir = branch.parent().unwrap_or(branch);
    let failed = |e| Failure::system("lock", dir, &e);
    let opened = File::open(dir).map_err(failed)?;
    opened.lock().map_err(failed)?;
    Ok(opened)
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    std::fs::rename(from, to).map_err(|e| Failure::system("rename", from, &e))
}

fn remove_dir(path: &Path) -> Result<()> {
    std::fs::remove_dir_all(path).map_err(|e| Failure::system("remove", path, &e))
}

/// Returns what is put aside of a branch: its table spaces, then itself.
fn all_aside<'a>(branch: &'a Path, record: &'a Record) -> impl Iterator<Item = &'a Path> {
    let spaces = record.parts.iter().filter(move |part| is_space(branch, part));
    spaces.map(PathBuf::as_path).chain([branch]).filter(|part| aside(part).is_dir())
}

/// Tells whether table spaces of a branch are still put aside.
pub fn has_parts_aside(branch: &Path, record: &Record) -> bool {
    all_aside(branch, record).next().is_some()
}

/// Brings a branch whose reset was cut short to where that began, or to its end.
///
/// # Errors
/// Where something stands in the branch's place that the reset did not put there.
pub fn settle(branch: &Path) -> Result<()> {
    let old = if aside(branch).is_dir() {
        // Its removal may have been cut short, too.
        Record::of(&aside(branch)).or_else(|e| Record::of(branch).map_err(|_| e))?
    } else if let Ok(record) = Record::of(branch) {
        record
    } else {
        return Ok(());
    };
    if aside(branch).is_dir() && branch.symlink_metadata().is_ok() {
        let new = Record::of(branch).ok().filter(|new| new.source == old.source);
        let Some(new) = new else {
            let (shown, other) = (branch.display(), aside(branch));
            return Err(Failure::new(
                "reset_was_cut",
                format!(
                    "a reset of {shown} was cut short, and {shown} is nothing that it made: move \
                     it, or {}, which is the branch as it was, out of the way",
                    other.display()
                ),
            ));
        };
        if !new.incomplete {
            return all_aside(branch, &old).try_for_each(|part| remove_dir(&aside(part)));
        }
        stop(branch)?;
        remove(branch, &new)?;
    }
    let hidden = unfinished(branch);
    if hidden.is_dir() {
        remove_dir(&hidden)?;
    }
    for part in all_aside(branch, &old) {
        // A table space that was cloned already, of a branch that was not.
        if part.is_dir() {
            remove_dir(part)?;
        }
        rename(&aside(part), part)?;
    }
    Ok(())
}

/// Makes a branch again what its source is now; where that fails it is what it was.
pub fn reset(branch: &Path, output: &Output) -> Result<Branch> {
    let record = Record::of(branch)?;
    let was_running = postgres::is_running(branch);
    stop(branch)?;
    let parts = parts(branch, &record);
    for part in &parts {
        rename(part, &aside(part))?;
    }
    match create(&record.source, branch, record.port, was_running, output) {
        Ok(branch) => {
            parts.iter().try_for_each(|part| remove_dir(&aside(part)))?;
            Ok(branch)
        }
        Err(failure) => {
            for part in parts.iter().rev() {
                rename(&aside(part), part)?;
            }
            Err(failure)
        }
    }
}
