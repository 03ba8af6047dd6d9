//! A directory: a key is the path of a file.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

use super::{Access, MARK, Store, Values};
use crate::error::{Error, ErrorKind, Result};

/// How the names of files end that are being written.
const PARTIAL: &str = ".partial";

/// Files below a directory.
pub struct Directory {
    dir: PathBuf,
    /// The mark, locked: shared to add and to read, exclusive to remove.
    mark: Option<File>,
    /// Directories in which names came that may not be durable yet.
    touched: Mutex<BTreeSet<PathBuf>>,
}

fn failed<'a>(doing: &'a str, path: &'a Path) -> impl Fn(io::Error) -> Error + 'a {
    move |error| Error::system(doing, path, &error)
}

impl Directory {
    /// Names a directory.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), mark: None, touched: Mutex::default() }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.dir.join(key)
    }

    /// Returns the key of a file; `None` where its name is no text.
    fn key<'a>(&self, path: &'a Path) -> Option<&'a str> {
        path.strip_prefix(&self.dir).unwrap_or(path).to_str()
    }

    fn touched(&self) -> std::sync::MutexGuard<'_, BTreeSet<PathBuf>> {
        self.touched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a directory that only its owner enters: what may be read of a file is in its
    /// permissions, which nothing here has.
    fn make(&self, dir: &Path) -> Result<()> {
        let missing: Vec<&Path> = dir
            .ancestors()
            .take_while(|dir| !dir.as_os_str().is_empty() && !dir.is_dir())
            .collect();
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed("make", dir))?;
        self.touched().extend(missing.into_iter().map(parent));
        Ok(())
    }

    fn value(&self, key: &str, len_max: u64) -> Result<Option<Vec<u8>>> {
        let path = self.path(key);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("read", &path)(error)),
        };
        let len = file.metadata().map_err(failed("read", &path))?.len();
        let mut value = Vec::new();
        if len <= len_max {
            file.read_to_end(&mut value).map_err(failed("read", &path))?;
        }
        Ok(Some(value))
    }

    /// Writes a file under another name, and gives it its own by `rename`.
    fn write_by(
        &self,
        key: &str,
        value: &[u8],
        rename: impl FnOnce(&Path, &Path) -> io::Result<()>,
    ) -> Result<()> {
        let path = self.path(key);
        debug_assert!(!is_partial(&path), "{} would be taken for a partial file", path.display());
        let parent = parent(&path);
        self.make(&parent)?;
        let mut partial = path.as_os_str().to_owned();
        partial.push(format!(".{}{PARTIAL}", std::process::id()));
        let partial = PathBuf::from(partial);
        let written = (|| {
            let mut out = File::options()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&partial)?;
            out.write_all(value)?;
            // Its bytes before its name: a file that has its name is whole.
            out.sync_data()?;
            rename(&partial, &path)
        })();
        written.map_err(|error| {
            // The first failure is told; what is left is removed by the next prune.
            let _removed = fs::remove_file(&partial);
            Error::system("write", &path, &error)
        })?;
        self.touched().insert(parent);
        Ok(())
    }

    /// Returns everything below a directory that begins with `dir`.
    fn files(&self, dir: &str) -> Result<Vec<PathBuf>> {
        let (mut files, mut todo) = (Vec::new(), vec![self.path(dir)]);
        while let Some(dir) = todo.pop() {
            for entry in entries(&dir)? {
                let kind = entry.file_type().map_err(failed("look at", &entry.path()))?;
                if kind.is_dir() { todo.push(entry.path()) } else { files.push(entry.path()) }
            }
        }
        Ok(files)
    }
}

fn entries(dir: &Path) -> Result<Vec<fs::DirEntry>> {
    match fs::read_dir(dir).and_then(Iterator::collect) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries.map_err(failed("read", dir)),
    }
}

fn parent(path: &Path) -> PathBuf {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
        .to_owned()
}

/// Gives a file a name, unless that is taken: then the file goes.
fn rename_first(partial: &Path, path: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let renamed = match renameat_with(CWD, partial, CWD, path, RenameFlags::NOREPLACE) {
        // File systems of other machines know links instead.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            fs::hard_link(partial, path).and_then(|()| fs::remove_file(partial))
        }
        renamed => renamed.map_err(io::Error::from),
    };
    match renamed {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => fs::remove_file(partial),
        renamed => renamed,
    }
}

fn is_partial(path: &Path) -> bool {
    path.to_string_lossy().ends_with(PARTIAL)
}

impl Store for Directory {
    fn shown(&self, key: &str) -> String {
        self.path(key).display().to_string().trim_end_matches('/').to_owned()
    }

    fn prepare(&self, known: &[&str]) -> Result<()> {
        self.make(&self.dir)?;
        let ours = |entry: &fs::DirEntry| {
            is_partial(&entry.path()) || known.iter().any(|known| entry.file_name() == **known)
        };
        if entries(&self.dir)?.iter().all(ours) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Exists,
            format!(
                "{} holds something else than backups: name an empty directory",
                self.dir.display()
            ),
        ))
    }

    fn claim(&mut self, access: Access) -> Result<()> {
        let path = self.path(MARK);
        let mark = File::open(&path).map_err(failed("open", &path))?;
        let locked =
            if access == Access::Remove { mark.try_lock() } else { mark.try_lock_shared() };
        let busy = || {
            Error::new(
                ErrorKind::Busy,
                format!(
                    "{} is in use by another backup command: wait for its end",
                    self.dir.display()
                ),
            )
        };
        locked.map_err(|_| busy())?;
        // Another passphrase was set since it was opened: the lock is on a file that is gone.
        let same = |now: &fs::Metadata, locked: &fs::Metadata| {
            (now.dev(), now.ino()) == (locked.dev(), locked.ino())
        };
        let now = path.metadata().map_err(failed("look at", &path))?;
        if !same(&now, &mark.metadata().map_err(failed("look at", &path))?) {
            return Err(busy());
        }
        self.mark = Some(mark);
        Ok(())
    }

    fn still_claimed(&self) -> Result<()> {
        debug_assert!(self.mark.is_some(), "a repository is claimed before it is changed");
        Ok(())
    }

    fn size(&self, key: &str) -> Result<Option<u64>> {
        let path = self.path(key);
        match path.metadata() {
            Ok(meta) => Ok(meta.is_file().then_some(meta.len())),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(failed("look at", &path)(error)),
        }
    }

    fn values<'a>(
        &'a self,
        keys: Box<dyn Iterator<Item = String> + 'a>,
        len_max: u64,
    ) -> Values<'a> {
        Box::new(keys.map(move |key| self.value(&key, len_max)))
    }

    fn write(&self, key: &str, value: Vec<u8>) -> Result<()> {
        self.write_by(key, &value, |partial, path| fs::rename(partial, path))
    }

    fn write_first(&self, key: &str, value: Vec<u8>) -> Result<()> {
        self.write_by(key, &value, rename_first)?;
        self.sync()
    }

    fn sync(&self) -> Result<()> {
        // Each by itself: a file system in user space does not learn of a syncfs.
        for dir in std::mem::take(&mut *self.touched()) {
            match File::open(&dir).and_then(|open| open.sync_all()) {
                // A directory above that may be written and not read cannot be synced.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                synced => synced.map_err(failed("sync", &dir))?,
            }
        }
        Ok(())
    }

    fn list(&self, dir: &str) -> Result<Vec<(String, u64)>> {
        let mut listed = Vec::new();
        for path in self.files(dir)?.iter().filter(|path| !is_partial(path)) {
            let Some(key) = self.key(path) else { continue };
            listed.push((key.to_owned(), path.metadata().map_or(0, |meta| meta.len())));
        }
        Ok(listed)
    }

    fn nameless(&self, dir: &str) -> Result<Vec<String>> {
        let files = self.files(dir)?.into_iter().filter(|path| self.key(path).is_none());
        Ok(files.map(|path| format!("'{}'", path.as_os_str().as_bytes().escape_ascii())).collect())
    }

    fn remove(&self, keys: &[String]) -> Result<()> {
        for key in keys {
            let path = self.path(key);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed("remove", &path)(error));
                }
                _ => {}
            }
            self.touched().insert(parent(&path));
        }
        Ok(())
    }

    fn remove_partial(&self) -> Result<()> {
        for path in self.files("")?.iter().filter(|path| is_partial(path)) {
            fs::remove_file(path).map_err(failed("remove", path))?;
        }
        Ok(())
    }
}
