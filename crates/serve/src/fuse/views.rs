//! Checkpoints mounted on directories of their own, beside the volume's mount and served by the
//! same process.
//!
//! Such a mount has a session of its own, whose root is the checkpoint's. It is read-only, keeps
//! the checkpoint from being deleted as long as it lasts, and ends with the volume's.

use std::path::{Path, PathBuf};

use bedplate_fs::{CheckpointHold, InodeNo};
use parking_lot::Mutex;

use super::mount::Mount;
use super::settings::MountSettings;
use super::shared::Shared;
use crate::{Error, ErrorKind, Result};

/// What a session shows.
#[derive(Debug)]
pub(super) enum Shown {
    /// The volume.
    Volume,
    /// A checkpoint of it.
    Checkpoint(CheckpointHold),
}

impl Shown {
    /// Returns the directory that the kernel calls the root.
    pub(super) fn root(&self) -> InodeNo {
        match self {
            Self::Volume => InodeNo::ROOT,
            Self::Checkpoint(hold) => hold.root(),
        }
    }
}

/// The mounts of checkpoints beside a volume's; `None` once that ends.
#[derive(Debug)]
pub(super) struct Views(Mutex<Option<Vec<Mount>>>);

impl Default for Views {
    fn default() -> Self {
        Self(Mutex::new(Some(Vec::new())))
    }
}

impl Views {
    /// Unmounts all of them, also those in use; none comes after that.
    pub(super) fn end(&self) {
        for view in self.0.lock().take().into_iter().flatten() {
            if let Err(error) = view.force_unmount() {
                tracing::warn!(
                    "unmounting the checkpoint on {}: {error}",
                    view.mountpoint().display()
                );
            }
        }
    }
}

impl Shared {
    /// Mounts a checkpoint on a directory; returns the directory's real path.
    pub(super) fn mount_checkpoint(&self, name: &[u8], dir: &Path) -> Result<PathBuf> {
        let hold = self.fs.hold_checkpoint(name)?;
        let shown = name.escape_ascii();
        let source = format!("{}#{shown}", self.source);
        let mut settings =
            MountSettings { source: Some(source), nonempty: false, ..self.settings.clone() };
        settings.file_system.read_only = true;
        let mut views = self.views.0.lock();
        let Some(views) = views.as_mut() else {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("the volume is being unmounted: checkpoint '{shown}' cannot be mounted"),
            ));
        };
        views.retain(Mount::is_live);
        let view = Mount::start_showing(self.fs.clone(), dir, &settings, Shown::Checkpoint(hold))?;
        let mountpoint = view.mountpoint().to_owned();
        views.push(view);
        Ok(mountpoint)
    }
}
