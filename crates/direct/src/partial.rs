//! The file that a copy fills before it takes the target's name: what an interrupted copy leaves is
//! never taken for the whole, and a copy goes on from it where that is asked for.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, XattrFlags};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result, system};
use crate::file::DirectFile;

/// The extended attribute of a partial file that says what it is a copy of and how far it is whole.
pub(crate) const MARK: &str = "user.copied-up-to";

/// The file that is being filled. Removed when it is dropped before it has its name, unless a later
/// copy is to go on from it.
#[derive(Debug)]
pub(crate) struct Partial {
    pub(crate) file: DirectFile,
    path: PathBuf,
    target: PathBuf,
    is_kept: bool,
    /// What a mark begins with: which state of which source this is a copy of.
    source: String,
}

impl Partial {
    /// Makes the partial file beside `target`, or opens the one of an earlier copy of the same
    /// state of the same source where `resume` asks for it. Returns up to where it is whole.
    pub(crate) fn begin(target: &Path, source: &Metadata, resume: bool) -> Result<(Self, u64)> {
        let mut partial = Self::open(target)?;
        let (size, at) = (source.len(), (source.mtime(), source.mtime_nsec()));
        partial.source = format!("{}:{} {size} {}.{:09} ", source.dev(), source.ino(), at.0, at.1);
        partial.is_kept = resume;
        let whole = if resume { partial.marked(size)? } else { 0 };
        if whole == 0 {
            // First, so that no later copy believes it of what this one writes.
            partial.unmark()?;
            partial.file.set_size(0)?;
        }
        Ok((partial, whole))
    }

    /// Makes the partial file beside `target`, of which nothing is kept.
    pub(crate) fn begin_anew(target: &Path) -> Result<Self> {
        let partial = Self::open(target)?;
        partial.unmark()?;
        partial.file.set_size(0)?;
        Ok(partial)
    }

    fn open(target: &Path) -> Result<Self> {
        let name = target.file_name().ok_or_else(|| {
            Error::new(ErrorKind::Usage, format!("{} names no file", target.display()))
        })?;
        let mut partial = std::ffi::OsString::from(".");
        partial.push(name);
        partial.push(".partial");
        let path = target.with_file_name(partial);
        let file = DirectFile::create(&path, false, 0o600)?;
        match rustix::fs::flock(file.system(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let path = path.display();
                return Err(Error::new(
                    ErrorKind::Exists,
                    format!("another copy is writing {path}: wait for it, or stop it"),
                ));
            }
            Err(error) => return Err(Error::system("lock", &path, &error.into())),
        }
        let (target, source) = (target.to_owned(), String::new());
        Ok(Self { file, path, target, is_kept: false, source })
    }

    /// Reads up to where an earlier copy of the same source got; 0 where there was none.
    fn marked(&self, size: u64) -> Result<u64> {
        let mut mark = [0; 128];
        match rustix::fs::fgetxattr(self.file.system(), MARK, &mut mark) {
            Ok(len) => {
                let told = std::str::from_utf8(&mark[..len]).ok();
                let whole = told.and_then(|mark| mark.strip_prefix(&self.source)?.parse().ok());
                Ok(whole.filter(|whole| *whole <= size).unwrap_or(0))
            }
            Err(Errno::NODATA) => self.mark(0).map(|()| 0),
            Err(error) => Err(self.unmarkable(error)),
        }
    }

    /// Notes that everything up to a byte is written; makes it durable first.
    pub(crate) fn mark(&self, whole: u64) -> Result<()> {
        self.file.sync()?;
        let mark = format!("{}{whole}", self.source);
        rustix::fs::fsetxattr(self.file.system(), MARK, mark.as_bytes(), XattrFlags::empty())
            .map_err(|error| self.unmarkable(error))
    }

    fn unmarkable(&self, error: Errno) -> Error {
        let error = io::Error::from(error);
        Error::new(
            ErrorKind::Unsupported,
            format!(
                "cannot note in {} how far the copy is ({error}): copy without going on from \
                 earlier copies",
                self.path.display()
            ),
        )
    }

    /// Leaves the file as a copy that is killed does.
    #[cfg(test)]
    pub(crate) fn keep(&mut self) {
        self.is_kept = true;
    }

    fn unmark(&self) -> Result<()> {
        match rustix::fs::fremovexattr(self.file.system(), MARK) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            Err(error) => Err(Error::system("take the mark from", &self.path, &error.into())),
        }
    }

    /// Gives the file the target's name.
    pub(crate) fn finish(mut self, sync: bool) -> Result<()> {
        self.unmark()?;
        if sync {
            self.file.sync()?;
        }
        std::fs::rename(&self.path, &self.target).map_err(system("name the copy", &self.target))?;
        self.is_kept = true;
        if sync { sync_directory(&self.target) } else { Ok(()) }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.is_kept {
            // Removed on the way out of an error, which says what happened.
            let _removed = std::fs::remove_file(&self.path);
        }
    }
}

/// Makes the name of a file durable.
pub(crate) fn sync_directory(path: &Path) -> Result<()> {
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    std::fs::File::open(parent)
        .and_then(|directory| directory.sync_all())
        .map_err(system("sync", parent))
}
