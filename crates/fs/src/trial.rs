//! Files that are served in another I/O mode for a while, to see what that is worth.
//!
//! ```text
//!   begin ─► on trial ─ renewed in time ─► on trial
//!               │ ended, or its time ran out, or the mount ended
//!               └─► served as what is set says
//! ```
//!
//! A trial is kept in memory only, and only for as long as its holder keeps renewing it: whoever is killed, its command or its mount, leaves every file
//! served as before (S-113).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::inode::Inode;
use crate::state::Fs;
use crate::{Error, ErrorKind, FileKind, FileSystem, InodeNo, IoMode, Result};

/// The files on trial. A leaf: nothing is taken under its lock.
#[derive(Debug, Default)]
pub(crate) struct Trials {
    /// Whether there may be any: most file systems never have one.
    any: AtomicBool,
    files: Mutex<HashMap<InodeNo, Trial>>,
}

#[derive(Debug)]
struct Trial {
    mode: IoMode,
    holder: u64,
    until: Instant,
}

impl Trials {
    /// Returns the mode that a file is on trial in.
    pub(crate) fn mode_of(&self, ino: InodeNo) -> Option<IoMode> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.files.lock().get(&ino).map(|trial| trial.mode)
    }

    /// Returns how long it takes until the first trial runs out.
    pub(crate) fn first_ends_in(&self) -> Option<Duration> {
        let now = Instant::now();
        self.files.lock().values().map(|trial| trial.until.saturating_duration_since(now)).min()
    }

    fn begin(&self, ino: InodeNo, trial: Trial) -> Result<()> {
        let mut files = self.files.lock();
        match files.entry(ino) {
            Entry::Occupied(_) => Err(Error::new(ErrorKind::Busy, format!("inode {} is on trial in another mode already", ino.0))),
            Entry::Vacant(place) => {
                place.insert(trial);
                self.any.store(true, Ordering::Release);
                Ok(())
            }
        }
    }

    fn end(&self, ino: InodeNo) -> bool {
        let mut files = self.files.lock();
        let was = files.remove(&ino).is_some();
        self.any.store(!files.is_empty(), Ordering::Release);
        was
    }

    /// Ends those whose time has run out; one that is renewed at that moment goes on.
    fn end_overdue(&self) -> Vec<InodeNo> {
        let now = Instant::now();
        let mut files = self.files.lock();
        let overdue = files.extract_if(|_, trial| trial.until <= now).map(|(ino, _)| ino).collect();
        self.any.store(!files.is_empty(), Ordering::Release);
        overdue
    }
}

impl FileSystem {
    /// Serves a file in another I/O mode for a time at most, whatever is set on it: a trial, which a crash ends too. `holder` is a number by which the
    /// caller renews it.
    ///
    /// # Errors
    /// `Busy` while the file is on another trial, `NotFound`, `Invalid` for other kinds, `ReadOnly`.
    pub fn begin_trial(&self, ino: InodeNo, mode: IoMode, holder: u64, time: Duration) -> Result<()> {
        self.state().begin_trial(ino, mode, holder, time)
    }
    /// Lets a trial go on for a time from now on.
    ///
    /// # Errors
    /// `NoAttribute` when it has ended.
    pub fn renew_trial(&self, ino: InodeNo, holder: u64, time: Duration) -> Result<()> {
        self.state().renew_trial(ino, holder, time)
    }
    /// Ends a file's trial, whoever holds it, and returns whether there was one.
    ///
    /// # Errors
    /// What was written to the cache did not reach the device.
    pub fn end_trial(&self, ino: InodeNo) -> Result<bool> {
        self.state().end_trial(ino)
    }
    /// Returns the mode that a file is on trial in.
    #[must_use]
    pub fn trial_mode(&self, ino: InodeNo) -> Option<IoMode> {
        self.state().trials.mode_of(ino)
    }
}

impl Fs {
    /// Returns the mode of a file whose opens name none: the one on trial, else the one that is set on it.
    pub(crate) fn file_mode(&self, inode: &Inode) -> Option<IoMode> {
        self.trials.mode_of(inode.ino).or_else(|| inode.attr_lock().row.io_mode)
    }

    /// Serves a file in a mode until the trial is ended or not renewed in time.
    pub(crate) fn begin_trial(&self, ino: InodeNo, mode: IoMode, holder: u64, time: Duration) -> Result<()> {
        self.begin_change()?;
        self.need_live(ino)?;
        let inode: Arc<Inode> = self.inode(ino)?;
        if inode.kind != FileKind::File {
            return Err(Error::new(ErrorKind::Invalid, format!("inode {} is no regular file: it cannot be served in another mode", ino.0)));
        }
        self.trials.begin(ino, Trial { mode, holder, until: Instant::now() + time })?;
        // The daemon may be about to sleep for longer than that.
        self.poke.wake();
        let served = crate::io::mode_changed(self, &inode);
        if served.is_err() {
            self.trials.end(ino);
        }
        served
    }

    /// Gives a trial more time, from now on.
    pub(crate) fn renew_trial(&self, ino: InodeNo, holder: u64, time: Duration) -> Result<()> {
        let mut files = self.trials.files.lock();
        let trial = files.get_mut(&ino).filter(|trial| trial.holder == holder);
        let trial = trial.ok_or_else(|| Error::new(ErrorKind::NoAttribute, format!("inode {} is not on this trial any more", ino.0)))?;
        trial.until = Instant::now() + time;
        Ok(())
    }

    /// Serves a file as what is set on it says; returns whether it was on trial.
    pub(crate) fn end_trial(&self, ino: InodeNo) -> Result<bool> {
        let was = self.trials.end(ino);
        if was {
            self.serve_as_set(ino)?;
        }
        Ok(was)
    }

    fn serve_as_set(&self, ino: InodeNo) -> Result<()> {
        self.inodes.if_loaded(ino).map_or(Ok(()), |inode| crate::io::mode_changed(self, &inode))
    }

    /// Ends the trials whose holders did not come back.
    pub(crate) fn end_overdue_trials(&self) {
        for ino in self.trials.end_overdue() {
            tracing::warn!("inode {}: who tried another I/O mode did not come back; it is served as before", ino.0);
            if let Err(error) = self.serve_as_set(ino) {
                tracing::warn!("inode {}: what was written to the cache did not reach the device: {error}", ino.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(mode: IoMode, ms: u64) -> Trial {
        Trial { mode, holder: 1, until: Instant::now() + Duration::from_millis(ms) }
    }

    #[test]
    fn one_file_is_on_one_trial_at_a_time() {
        let trials = Trials::default();
        assert_eq!((trials.mode_of(InodeNo(7)), trials.first_ends_in()), (None, None));
        trials.begin(InodeNo(7), trial(IoMode::Direct, 60_000)).unwrap();
        assert_eq!(trials.begin(InodeNo(7), trial(IoMode::Cached, 60_000)).unwrap_err().kind, ErrorKind::Busy);
        trials.begin(InodeNo(8), trial(IoMode::Cached, 0)).unwrap();
        assert_eq!((trials.mode_of(InodeNo(7)), trials.mode_of(InodeNo(8))), (Some(IoMode::Direct), Some(IoMode::Cached)));
        assert_eq!((trials.first_ends_in(), trials.end_overdue()), (Some(Duration::ZERO), vec![InodeNo(8)]));
        assert_eq!((trials.mode_of(InodeNo(8)), trials.mode_of(InodeNo(7))), (None, Some(IoMode::Direct)));
        assert!(!trials.end(InodeNo(8)) && trials.end(InodeNo(7)));
        assert_eq!((trials.mode_of(InodeNo(7)), trials.end_overdue()), (None, Vec::new()));
    }
}
