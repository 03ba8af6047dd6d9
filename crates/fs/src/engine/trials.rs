//! The files that are served in another I/O mode for a while, in memory only.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bedplate_block::sync::{Mutex, rank};

use super::Engine;
use crate::inode::Inode;
use crate::{Error, ErrorKind, InodeNo, IoMode, Result};

/// The files on trial. A leaf: nothing is taken under its lock.
#[derive(Debug, Default)]
pub(crate) struct Trials {
    /// Whether there may be any: most file systems never have one.
    any: AtomicBool,
    /// A leaf.
    files: Mutex<HashMap<InodeNo, Trial>, { rank::TRIALS }>,
}

#[derive(Debug)]
pub(crate) struct Trial {
    pub(crate) mode: IoMode,
    pub(crate) holder: u64,
    pub(crate) until: Instant,
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

    pub(crate) fn begin(&self, ino: InodeNo, trial: Trial) -> Result<()> {
        let mut files = self.files.lock();
        match files.entry(ino) {
            Entry::Occupied(_) => Err(Error::new(
                ErrorKind::Busy,
                format!("inode {} is on trial in another mode already", ino.0),
            )),
            Entry::Vacant(place) => {
                place.insert(trial);
                self.any.store(true, Ordering::Release);
                Ok(())
            }
        }
    }

    pub(crate) fn end(&self, ino: InodeNo) -> bool {
        let mut files = self.files.lock();
        let was = files.remove(&ino).is_some();
        self.any.store(!files.is_empty(), Ordering::Release);
        was
    }

    /// Ends those whose time has run out; one that is renewed at that moment goes on.
    pub(crate) fn end_overdue(&self) -> Vec<InodeNo> {
        let now = Instant::now();
        let mut files = self.files.lock();
        let overdue = files.extract_if(|_, trial| trial.until <= now).map(|(ino, _)| ino).collect();
        self.any.store(!files.is_empty(), Ordering::Release);
        overdue
    }

    /// Gives a trial more time, from now on; returns whether the file is on that holder's trial.
    pub(crate) fn renew(&self, ino: InodeNo, holder: u64, time: Duration) -> bool {
        let mut files = self.files.lock();
        let trial = files.get_mut(&ino).filter(|trial| trial.holder == holder);
        trial.is_some_and(|trial| {
            trial.until = Instant::now() + time;
            true
        })
    }
}

impl Engine {
    /// Returns the mode of a file whose opens name none: the one on trial, else the one that is set
    /// on it.
    pub(crate) fn file_mode(&self, inode: &Inode) -> Option<IoMode> {
        self.trials.mode_of(inode.ino).or_else(|| inode.attr_lock().row.io_mode)
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
        assert_eq!(
            trials.begin(InodeNo(7), trial(IoMode::Cached, 60_000)).unwrap_err().kind,
            ErrorKind::Busy
        );
        trials.begin(InodeNo(8), trial(IoMode::Cached, 0)).unwrap();
        assert_eq!(
            (trials.mode_of(InodeNo(7)), trials.mode_of(InodeNo(8))),
            (Some(IoMode::Direct), Some(IoMode::Cached))
        );
        assert_eq!(
            (trials.first_ends_in(), trials.end_overdue()),
            (Some(Duration::ZERO), vec![InodeNo(8)])
        );
        assert_eq!(
            (trials.mode_of(InodeNo(8)), trials.mode_of(InodeNo(7))),
            (None, Some(IoMode::Direct))
        );
        assert!(!trials.end(InodeNo(8)) && trials.end(InodeNo(7)));
        assert_eq!((trials.mode_of(InodeNo(7)), trials.end_overdue()), (None, Vec::new()));
    }
}
