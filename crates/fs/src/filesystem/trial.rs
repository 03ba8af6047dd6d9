//! Trials of another I/O mode: the interface.

use std::time::Duration;

use super::FileSystem;
use crate::{InodeNo, IoMode, Result};

impl FileSystem {
    /// Serves a file in another I/O mode for a time at most, whatever is set on it: a trial, which
    /// a crash ends too. `holder` is a number by which the caller renews it.
    ///
    /// # Errors
    /// `Busy` while the file is on another trial, `NotFound`, `Invalid` for other kinds,
    /// `ReadOnly`.
    pub fn begin_trial(
        &self,
        ino: InodeNo,
        mode: IoMode,
        holder: u64,
        time: Duration,
    ) -> Result<()> {
        self.state().begin_trial(ino, mode, holder, time)
    }
    /// Lets a trial go on for a time from now on.
    ///
    /// # Errors
    /// `NoAttribute` when it has ended.
    pub fn renew_trial(&self, ino: InodeNo, holder: u64, time: Duration) -> Result<()> {
        self.state().renew_trial(ino, holder, time)
    }
    /// Ends a file's trial, also one of another holder, and returns whether there was one.
    ///
    /// # Errors
    /// What was written to the cache did not reach the device.
    pub fn end_trial(&self, ino: InodeNo) -> Result<bool> {
        self.state().end_trial(ino)
    }
    /// Returns the mode that a file is on trial in.
    #[must_use]
    pub fn trial_mode(&self, ino: InodeNo) -> Option<IoMode> {
        self.state().trials().mode_of(ino)
    }
}
