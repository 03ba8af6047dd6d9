//! Where the lab works: a directory of its own, gone afterwards, and the mounts in it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate::{BlockDevice, FileSystem};
use bedplate_serve::fuse::{Mount, MountSettings};

use crate::error::{Error, Result};

/// A directory that every user may look into, because some programs refuse to run as root. Dropped,
/// it is gone with all that is in it.
#[derive(Debug)]
pub struct Workplace {
    base: PathBuf,
}

impl Workplace {
    /// Makes the directory in `parent`, or where the system keeps large temporary files.
    ///
    /// # Errors
    /// Those of the system.
    pub fn make(parent: Option<&Path>) -> Result<Self> {
        // Not the temporary directory: that may be in memory, and recordings are long.
        let usual = || {
            Some(PathBuf::from("/var/tmp"))
                .filter(|dir| dir.is_dir())
                .unwrap_or_else(std::env::temp_dir)
        };
        let parent = parent.map_or_else(usual, Path::to_path_buf);
        let parent =
            parent.canonicalize().map_err(|error| Error::system("work in", &parent, &error))?;
        let base = parent.join(format!("bedplate-crashlab-{}", std::process::id()));
        fs::create_dir(&base)
            .map_err(|error| Error::system("make the directory", &base, &error))?;
        let workplace = Self { base };
        // Whatever the caller's mask.
        fs::set_permissions(&workplace.base, fs::Permissions::from_mode(0o755))
            .map_err(|error| Error::system("open", &workplace.base, &error))?;
        Ok(workplace)
    }

    /// Returns the path of `name` in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.base.join(name)
    }

    /// Makes and returns a directory in it that every user may write to, for sockets and logs of
    /// programs that change their user.
    pub(crate) fn scratch(&self, name: &str) -> Result<PathBuf> {
        let dir = self.directory(name)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777))
            .map_err(|error| Error::system("open", &dir, &error))?;
        Ok(dir)
    }

    /// Makes and returns a directory in it; one that is there already will do.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf> {
        let dir = self.path(name);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&dir)
            .map_err(|error| Error::system("make the directory", &dir, &error))?;
        Ok(dir)
    }

    /// Makes a file that has no name any more: it goes with its last descriptor, also when the lab
    /// is killed.
    pub(crate) fn nameless(&self, name: &str) -> Result<File> {
        let path = self.path(name);
        let file = new_file(&path)?;
        fs::remove_file(&path).map_err(|error| Error::system("remove", &path, &error))?;
        Ok(file)
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.base) {
            tracing::warn!("{}", Error::system("clean up", &self.base, &error));
        }
    }
}

/// Makes a file for reading and writing that was not there.
pub fn new_file(path: &Path) -> Result<File> {
    let made = OpenOptions::new().read(true).write(true).create_new(true).open(path);
    made.map_err(|error| Error::system("make", path, &error))
}

/// A volume that is mounted by this process.
pub struct Mounted {
    mount: Mount,
}

impl Mounted {
    /// Mounts a volume with one device on a directory.
    pub fn start(
        device: Arc<dyn BlockDevice>,
        dir: &Path,
        settings: &MountSettings,
    ) -> Result<Self> {
        let fs = FileSystem::mount(device, None, settings.file_system.clone())?;
        match Mount::start(fs.clone(), dir, settings) {
            Ok(mount) => Ok(Self { mount }),
            Err(error) => {
                fs.unmount()?;
                Err(error.into())
            }
        }
    }

    /// Unmounts; everything is durable then.
    pub fn end(self) -> Result<()> {
        Ok(self.mount.unmount()?)
    }

    /// Takes the mount away also from programs that still use it. What becomes of the volume does
    /// not matter any more.
    pub fn abandon(self) -> Result<()> {
        if self.mount.unmount().is_ok() || !self.mount.is_live() {
            return Ok(());
        }
        match self.mount.force_unmount() {
            Err(error) if self.mount.is_live() => Err(error.into()),
            _ => Ok(()),
        }
    }
}
