//! What a directory holds, and which of it changed since it was looked at.

use std::collections::HashMap;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::error::{Error, Result, system};

/// A change that comes within this time after another one may leave the same times behind.
const TICK: Duration = Duration::from_secs(2);

/// A file, directory or link, by its path from the directory.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) path: PathBuf,
    pub(super) is: Metadata,
}

/// What shows that a file changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    id: (u64, u64),
    size: u64,
    blocks: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl State {
    pub(super) fn of(is: &Metadata) -> Self {
        Self {
            id: (is.dev(), is.ino()),
            size: is.size(),
            blocks: is.blocks(),
            modified: (is.mtime(), is.mtime_nsec()),
            changed: (is.ctime(), is.ctime_nsec()),
        }
    }

    /// Returns whether size and time of modification are the same.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        (self.size, self.modified) == (other.size, other.modified)
    }

    /// Returns whether a later change surely shows: the file has been left alone for a while.
    pub(super) fn is_settled(&self) -> bool {
        let (seconds, _) = self.modified.max(self.changed);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(seconds).is_ok_and(|changed| changed + TICK.as_secs() < now.as_secs())
    }
}

/// Lists all that lies below a directory, a directory before what is in it. What goes while it is
/// looked at is left out.
///
/// # Errors
/// When a directory cannot be read.
pub(super) fn scan(root: &Path) -> Result<Vec<Entry>> {
    let mut found = Vec::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(directory) = waiting.pop() {
        let path = root.join(&directory);
        let entries = match std::fs::read_dir(&path) {
            Err(error) if is_gone(&error) && directory != Path::new("") => continue,
            entries => entries.map_err(system("read", &path))?,
        };
        for entry in entries {
            let name = entry.map_err(system("read", &path))?.file_name();
            let whole = path.join(&name);
            let is = match std::fs::symlink_metadata(&whole) {
                Err(error) if is_gone(&error) => continue,
                is => is.map_err(system("look at", &whole))?,
            };
            let inside = directory.join(&name);
            if is.is_dir() {
                waiting.push(inside.clone());
            }
            found.push(Entry { path: inside, is });
        }
    }
    // A directory comes before what is in it, and further names are the same on both sides.
    found.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}

/// Returns whether a name is not there any more.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The names of files that have several: the one that is copied, by the identity of the file.
#[derive(Debug, Default)]
pub(super) struct Names<'a>(HashMap<(u64, u64), &'a Path>);

impl<'a> Names<'a> {
    /// Returns the name that an entry is a further name of, where it is one.
    pub(super) fn first(&mut self, entry: &'a Entry) -> Option<&'a Path> {
        if entry.is.nlink() < 2 {
            return None;
        }
        let id = (entry.is.dev(), entry.is.ino());
        let first = *self.0.entry(id).or_insert(&entry.path);
        (first != entry.path).then_some(first)
    }
}

/// How much a directory holds.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Amount {
    /// Regular files, further names left out.
    pub files: u64,
    /// Directories, the one itself left out.
    pub directories: u64,
    /// Bytes of the files, holes too.
    pub size: u64,
    /// Bytes that they take, holes left out.
    pub data: u64,
}

/// Counts what a directory holds.
///
/// # Errors
/// When a directory cannot be read.
pub fn amount(root: &Path) -> Result<Amount> {
    let entries = scan(root)?;
    let mut names = Names::default();
    let mut amount = Amount::default();
    for entry in &entries {
        amount.directories += u64::from(entry.is.is_dir());
        if entry.is.is_file() && names.first(entry).is_none() {
            amount.files += 1;
            amount.size += entry.is.len();
            amount.data += entry.is.len().min(entry.is.blocks() * 512);
        }
    }
    Ok(amount)
}

/// Refuses a directory that is not there or is none.
pub(super) fn require_directory(path: &Path) -> Result<PathBuf> {
    let whole = path.canonicalize().map_err(system("look at", path))?;
    if !whole.is_dir() {
        let message = format!("{} is not a directory", path.display());
        return Err(Error::new(crate::ErrorKind::Usage, message));
    }
    Ok(whole)
}
