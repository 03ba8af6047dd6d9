//! How many threads serve a mount, as a change of its tunables says.

use std::path::Path;

use bedplate_fs::{Error, ErrorKind, Result, Tunable, TunableState, TuneOptions};

use super::shared::Shared;
use super::transport::threads_each;

/// More requests than these are not made to have threads end that wait for one.
const NUDGES_MAX: usize = 4096;

impl Shared {
    /// Changes tunables: all, or none. What they say of threads is so when it returns; threads too
    /// many that are in a request end after it.
    pub(super) fn tune(&self, change: &TuneOptions) -> Result<Vec<TunableState>> {
        let Some(threads) = self.threads_wanted(change) else { return self.fs.tune(change) };
        self.refuse_fixed(threads)?;
        // First, because this may fail: where the change does, they go again below.
        if threads > self.threads_in_effect() {
            self.set_threads(threads)?;
        }
        let told = self.fs.tune(change);
        self.follow_threads()?;
        told
    }

    /// Returns how many threads there are to be by a change; `None` where it does not say.
    fn threads_wanted(&self, change: &TuneOptions) -> Option<usize> {
        let (_, value) = change.changes.iter().find(|(of, _)| *of == Tunable::Threads)?;
        let info = Tunable::Threads.info();
        let stored = || {
            let states = self.fs.tunables();
            let state = states.into_iter().find(|state| state.name == info.name)?;
            state.stored.filter(|_| change.live_only)
        };
        let value = value.or_else(stored).unwrap_or_else(|| Tunable::Threads.default_value());
        // What is out of range is refused by the file system, with a better sentence.
        Tunable::Threads.allows(value).then_some(value).and_then(|value| value.try_into().ok())
    }

    fn threads_in_effect(&self) -> usize {
        usize::try_from(self.fs.tunable(Tunable::Threads)).unwrap_or(1)
    }

    /// Refuses another number of threads where each processor has its own.
    fn refuse_fixed(&self, threads: usize) -> Result<()> {
        match self.threads.fixed_each() {
            Some(each) if threads_each(threads) != each as usize => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "threads: a mount over io_uring keeps the {each} threads that each processor \
                     had from the start, and threads={threads} would be {} each: mount with the \
                     option threads={threads}, or set it while the volume is not mounted",
                    threads_each(threads)
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Has as many threads serve as the tunable says, whatever several changes at once did.
    fn follow_threads(&self) -> Result<()> {
        loop {
            let threads = self.threads_in_effect();
            self.set_threads(threads)?;
            if self.threads_in_effect() == threads {
                break;
            }
        }
        self.end_idle_threads();
        Ok(())
    }

    fn set_threads(&self, threads: usize) -> Result<()> {
        if self.threads.fixed_each().is_some() {
            return Ok(());
        }
        self.threads.set_count(threads).map_err(|error| {
            Error::new(
                ErrorKind::Io,
                format!(
                    "threads: the system does not give as many as {threads} ({error}): as many \
                     serve as before; set fewer"
                ),
            )
        })?;
        self.bound_inline_syncs(threads);
        Ok(())
    }

    /// Has threads too many end that wait for a request: it makes some. It is not called by an
    /// event thread, so one that is free answers (I-LIN-1).
    fn end_idle_threads(&self) {
        let Some(mountpoint) = self.reached_at() else { return };
        for _ in 0..NUDGES_MAX {
            if self.threads.idle_surplus() == 0 || !nudge(&mountpoint) {
                return;
            }
        }
    }
}

/// Makes a request that the kernel always passes on; returns whether it was answered.
fn nudge(mountpoint: &Path) -> bool {
    rustix::fs::statvfs(mountpoint).is_ok()
}
