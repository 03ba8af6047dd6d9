//! What a conversion has done, kept beside the directory so that one that is killed can be ended.
//!
//! ```text
//! PARENT/NAME                  the directory
//! PARENT/NAME.before-convert   what it was, once it is converted
//! PARENT/.NAME.convert/        locked while a conversion runs
//!     journal                  replaced at each step, synced before the step is taken
//! ```

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result, system};

/// The form of the journal.
const VERSION: u32 = 1;

/// The largest journal that is read.
const BYTES_MAX: u64 = 1 << 20;

/// What a directory becomes once it is converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Switch {
    /// A symbolic link to the copy.
    Link,
    /// A directory that the copy is mounted on.
    Bind,
    /// What it was: only a copy is made.
    No,
}

/// Which files are compared with their copies while nothing writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verify {
    /// All.
    All,
    /// Those that changed since they were compared while the database ran.
    Changed,
}

/// How what writes to the directory is stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stopping {
    /// Nothing writes to it.
    None,
    /// A person stops and starts it.
    Wait,
    /// Commands of a shell do.
    Commands {
        /// Stops it, and ends when it is stopped.
        stop: String,
        /// Starts it.
        start: String,
    },
}

/// How far a conversion is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Passes, while the database runs.
    Copying,
    /// The database is being stopped, or is stopped; the directory is what it was.
    Stopped,
    /// The copy is whole; the names change.
    Switching,
    /// The name leads to the copy; nothing was started on it.
    Switched,
    /// The database is being started, or is started, on the copy.
    Started,
    /// All is done.
    Done,
}

/// A conversion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    pub(super) version: u32,
    /// The name that is converted, absolute.
    pub name: PathBuf,
    /// The directory that is copied.
    pub source: PathBuf,
    /// The copy.
    pub target: PathBuf,
    /// The conversion made the copy's directory itself.
    pub made_target: bool,
    /// The conversion that this one undoes: what the name was before becomes what it is again.
    pub undoes: Option<Box<Journal>>,
    /// What the name becomes.
    pub switch: Switch,
    /// What is compared.
    pub verify: Verify,
    /// How the database is stopped.
    pub stopping: Stopping,
    /// The inode that had the name before the first conversion.
    pub before_ino: u64,
    /// Tells what was made for this conversion from what was made for others.
    pub id: String,
    /// How far it is.
    pub phase: Phase,
}

impl Journal {
    /// Describes a conversion that begins.
    #[must_use]
    pub fn new(name: &Path, source: PathBuf, target: PathBuf, before_ino: u64) -> Self {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            version: VERSION,
            name: name.to_owned(),
            source,
            target,
            made_target: false,
            undoes: None,
            switch: Switch::Link,
            verify: Verify::All,
            stopping: Stopping::None,
            before_ino,
            id: format!("{:x}-{:x}", now.as_secs(), std::process::id()),
            phase: Phase::Copying,
        }
    }

    /// Returns where what the name was is kept.
    #[must_use]
    pub fn before(&self) -> PathBuf {
        before(&self.name)
    }

    /// Returns whether it undoes an earlier one.
    #[must_use]
    pub fn is_back(&self) -> bool {
        self.undoes.is_some()
    }

    /// Returns where the copy lies once the names are changed: a directory that was copied back has
    /// its name again.
    #[must_use]
    pub(super) fn copy_after_switch(&self) -> &Path {
        if self.target == self.before() { &self.name } else { &self.target }
    }

    /// Returns the conversion that undoes this one.
    pub(super) fn undone(&self) -> Self {
        // The directory itself was renamed; where the name was a link, what it led to was not.
        let renamed = self.source == self.name;
        let target = if renamed { self.before() } else { self.source.clone() };
        let new = Self::new(&self.name, self.target.clone(), target, self.before_ino);
        Self { switch: self.switch, undoes: Some(Box::new(self.clone())), ..new }
    }
}

/// Returns where what a name was is kept.
pub(super) fn before(name: &Path) -> PathBuf {
    let mut file = name.file_name().unwrap_or_default().to_owned();
    file.push(".before-convert");
    name.with_file_name(file)
}

/// The place of the journal, locked.
#[derive(Debug)]
pub struct Place {
    directory: PathBuf,
    _lock: File,
}

impl Place {
    /// Takes the place of the journal of a name; makes it where `make` is set.
    ///
    /// # Errors
    /// When another conversion of the name runs, or there is none and none is to be made.
    pub fn take(name: &Path, make: bool) -> Result<Self> {
        let directory = place_of(name);
        if make {
            match std::fs::DirBuilder::new().mode(0o700).create(&directory) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => made.map_err(system("make", &directory))?,
            }
        }
        let lock = match open_itself(&directory) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let message = format!(
                    "{} is not being converted: 'bedplate convert {0} --to DIR' begins",
                    name.display()
                );
                return Err(Error::new(ErrorKind::NotFound, message));
            }
            lock => lock.map_err(system("open", &directory))?,
        };
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(running(name)),
            Err(error) => return Err(Error::system("lock", &directory, &error.into())),
        }
        refuse_of_others(&directory, &lock)?;
        // The one that had the lock before may have ended and removed it.
        let id = |is: std::io::Result<std::fs::Metadata>| is.map(|is| (is.dev(), is.ino())).ok();
        if id(lock.metadata()) != id(std::fs::metadata(&directory)) {
            return Err(running(name));
        }
        Ok(Self { directory, _lock: lock })
    }

    /// Reads the journal; `None` where no conversion got so far.
    ///
    /// # Errors
    /// When it cannot be read or makes no sense.
    pub fn read(&self) -> Result<Option<Journal>> {
        let path = self.directory.join("journal");
        let size = match std::fs::metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            is => is.map_err(system("look at", &path))?.len(),
        };
        let odd = |why: String| {
            let message = format!(
                "{} makes no sense ({why}): the source lies where it was, or beside it as \
                 *.before-convert",
                path.display()
            );
            Error::new(ErrorKind::Unsupported, message)
        };
        if size > BYTES_MAX {
            return Err(odd(format!("it has {size} bytes")));
        }
        let text = std::fs::read(&path).map_err(system("read", &path))?;
        let journal: Journal = serde_json::from_slice(&text).map_err(|e| odd(e.to_string()))?;
        if journal.version != VERSION {
            return Err(odd(format!("its form {} is not known here", journal.version)));
        }
        Ok(Some(journal))
    }

    /// Replaces the journal; it is durable when this returns.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, journal: &Journal) -> Result<()> {
        let (path, new) = (self.directory.join("journal"), self.directory.join("journal.new"));
        let text = serde_json::to_vec_pretty(journal).map_err(|error| {
            let message = format!("cannot note the conversion: {error}");
            Error::new(ErrorKind::Unsupported, message)
        })?;
        let explain = system::<std::io::Error>("write", &path);
        let mut file = File::create(&new).map_err(&explain)?;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(&explain)?;
        std::fs::rename(&new, &path).map_err(&explain)?;
        crate::partial::sync_directory(&path)
    }

    /// Removes the journal and its place: the conversion is over.
    ///
    /// # Errors
    /// When they cannot be removed.
    pub fn remove(self) -> Result<()> {
        for file in ["journal", "journal.new"] {
            crate::tree::replace(&self.directory.join(file))?;
        }
        std::fs::remove_dir(&self.directory).map_err(system("remove", &self.directory))?;
        crate::partial::sync_directory(&self.directory)
    }

    /// A name in the place that is free.
    pub(super) fn scratch(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// Opens a directory that is no link.
fn open_itself(directory: &Path) -> std::io::Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(directory, flags, Mode::empty())?.into())
}

/// The journal names commands that are run and a directory that is removed: one of another user is
/// not believed.
fn refuse_of_others(directory: &Path, lock: &File) -> Result<()> {
    let is = lock.metadata().map_err(system("look at", directory))?;
    if is.uid() == rustix::process::geteuid().as_raw() && is.mode() & 0o022 == 0 {
        return Ok(());
    }
    let message = format!(
        "{} belongs to another user or may be written by others: be the user that began the \
         conversion, or remove it",
        directory.display()
    );
    Err(Error::new(ErrorKind::NotPermitted, message))
}

fn place_of(name: &Path) -> PathBuf {
    let mut file = std::ffi::OsString::from(".");
    file.push(name.file_name().unwrap_or_default());
    file.push(".convert");
    name.with_file_name(file)
}

fn running(name: &Path) -> Error {
    let message = format!("{} is being converted by another process", name.display());
    Error::new(ErrorKind::Busy, message)
}
