//! Keeping a checkpoint from being deleted while it is read.

use std::sync::{Arc, Weak};

use crate::engine::{Engine, Views};
use crate::{Epoch, InodeNo, Result};
use bedplate_store::Checkpoint;

/// Keeps a checkpoint from being deleted until it is dropped: it is mounted somewhere.
pub struct CheckpointHold {
    fs: Weak<Engine>,
    epoch: Epoch,
    /// The root of what it shows.
    root: InodeNo,
}

impl CheckpointHold {
    /// Returns the root directory of what the checkpoint shows.
    #[must_use]
    pub fn root(&self) -> InodeNo {
        self.root
    }
}

impl std::fmt::Debug for CheckpointHold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckpointHold").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Drop for CheckpointHold {
    fn drop(&mut self) {
        if let Some(fs) = self.fs.upgrade() {
            fs.views().let_go(self.epoch);
        }
    }
}

/// Keeps a checkpoint from being deleted while it is read: as [`CheckpointHold`], within one call.
#[derive(Debug)]
pub(super) struct Looking<'a> {
    views: &'a Views,
    epoch: Epoch,
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.views.let_go(self.epoch);
    }
}

impl Engine {
    /// Keeps a checkpoint from being deleted.
    pub(crate) fn hold_checkpoint(self: &Arc<Self>, name: &[u8]) -> Result<CheckpointHold> {
        // It is not deleted meanwhile.
        let _changing = self.change();
        let epoch = self.checkpoint(name)?.epoch;
        let root = self.inode_at(epoch, InodeNo::ROOT)?;
        self.views().hold(epoch);
        Ok(CheckpointHold { fs: Arc::downgrade(self), epoch, root })
    }

    /// Finds a checkpoint that is read for a change, and keeps it until then: neither retention nor
    /// a full volume may delete it, for this change least of all.
    pub(super) fn looking_into(&self, name: &[u8]) -> Result<(Arc<Checkpoint>, Looking<'_>)> {
        // It is not deleted meanwhile.
        let _changing = self.change();
        let checkpoint = self.checkpoint(name)?;
        let epoch = checkpoint.epoch;
        self.views().hold(epoch);
        Ok((checkpoint, Looking { views: self.views(), epoch }))
    }

    /// Returns whether files of a checkpoint are open, or it is mounted.
    pub(super) fn is_looked_into(&self, epoch: Epoch) -> bool {
        if self.views().is_held(epoch) {
            return true;
        }
        !self.loaded_inodes(|inode| self.is_of(inode.ino, epoch) && inode.data.is_open()).is_empty()
    }
}
