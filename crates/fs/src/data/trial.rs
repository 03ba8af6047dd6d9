//! Files that are served in another I/O mode for a while, to see what that is worth.
//!
//! ```text
//!   begin ─► on trial ─ renewed in time ─► on trial
//!               │ ended, or its time ran out, or the mount ended
//!               └─► served as what is set says
//! ```
//!
//! A trial is kept in memory only, and only for as long as its holder keeps renewing it: a command
//! or mount that is killed leaves every file served as before (S-113).

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::{Engine, Trial};
use crate::inode::Inode;
use crate::{Error, ErrorKind, FileKind, InodeNo, IoMode, Result};

impl Engine {
    /// Serves a file in a mode until the trial is ended or not renewed in time.
    pub(crate) fn begin_trial(
        &self,
        ino: InodeNo,
        mode: IoMode,
        holder: u64,
        time: Duration,
    ) -> Result<()> {
        self.begin_change()?;
        self.need_live(ino)?;
        let inode: Arc<Inode> = self.inode(ino)?;
        if inode.kind != FileKind::File {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("inode {} is no regular file: it cannot be served in another mode", ino.0),
            ));
        }
        self.trials().begin(ino, Trial { mode, holder, until: Instant::now() + time })?;
        // The daemon may be about to sleep for longer than that.
        self.sync_waker().wake();
        let served = super::mode_changed(self, &inode);
        if served.is_err() {
            self.trials().end(ino);
        }
        served
    }

    /// Gives a trial more time, from now on.
    pub(crate) fn renew_trial(&self, ino: InodeNo, holder: u64, time: Duration) -> Result<()> {
        if self.trials().renew(ino, holder, time) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::NoAttribute,
            format!("inode {} is not on this trial any more", ino.0),
        ))
    }

    /// Serves a file as what is set on it says; returns whether it was on trial.
    pub(crate) fn end_trial(&self, ino: InodeNo) -> Result<bool> {
        let was = self.trials().end(ino);
        if was {
            self.serve_as_set(ino)?;
        }
        Ok(was)
    }

    fn serve_as_set(&self, ino: InodeNo) -> Result<()> {
        self.loaded_inode(ino).map_or(Ok(()), |inode| super::mode_changed(self, &inode))
    }

    /// Ends the trials whose holders did not come back.
    pub(crate) fn end_overdue_trials(&self) {
        for ino in self.trials().end_overdue() {
            tracing::warn!(
                "inode {}: its trial of another I/O mode was not renewed in time; it is served as \
                 before",
                ino.0
            );
            if let Err(error) = self.serve_as_set(ino) {
                tracing::warn!(
                    "inode {}: what was written to the cache did not reach the device: {error}",
                    ino.0
                );
            }
        }
    }
}
