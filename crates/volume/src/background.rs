//! The thread of an open group: brings members up to date while the volumes are in use, and tidies the dirty region log.
//!
//! It sleeps until something is written or somebody leaves, and copies no faster than leaves the foreground room: after each region it rests
//! as long as the copy took, and not at all while nobody else uses the members.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::group::Inner;
use crate::relayout::Stepped;
use crate::{Error, ErrorKind, Result};

/// How often the dirty region log is tidied while there is something in it.
const TIDY: Duration = Duration::from_secs(3);
/// How long a failed step rests.
const REST_AFTER_FAILURE: Duration = Duration::from_secs(1);
/// How long a step of a relayout waits for whom it did not want to wait for.
const REST_WHEN_BUSY: Duration = Duration::from_millis(20);

pub(crate) fn start(inner: &Arc<Inner>) -> Result<JoinHandle<()>> {
    let inner = Arc::clone(inner);
    let thread = std::thread::Builder::new().name("bedplate-group".into()).spawn(move || Worker { inner, from: Vec::new() }.run());
    thread.map_err(|error| Error::new(ErrorKind::Device, format!("cannot start the group's background thread: {error}")))
}

struct Worker {
    inner: Arc<Inner>,
    /// Where each volume's next pending region is looked for.
    from: Vec<u64>,
}

impl Worker {
    fn run(mut self) {
        self.from = vec![0; self.inner.cores.len()];
        let mut tidied = Instant::now();
        loop {
            let rest = match self.step() {
                Ok(Some(rest)) => rest,
                Ok(None) if tidied.elapsed() >= TIDY => {
                    tidied = Instant::now();
                    self.tidy();
                    Duration::ZERO
                }
                Ok(None) => TIDY,
                Err(error) => {
                    tracing::warn!(group = self.inner.shared.name, %error, "the members cannot be brought up to date, or what they hold moved; trying again");
                    REST_AFTER_FAILURE
                }
            };
            if self.sleep(rest) {
                return;
            }
        }
    }

    /// Copies one region of each volume that has one pending. Returns how long to rest; `None` when there was nothing to do.
    fn step(&mut self) -> Result<Option<Duration>> {
        self.inner.relocate()?;
        let mut rest = None;
        for (core, from) in self.inner.cores.iter().zip(&mut self.from) {
            let (start, busy) = (Instant::now(), core.is_busy());
            if let Some(region) = core.next_pending(*from) {
                // One that cannot be read now does not keep the others waiting.
                *from = region + 1;
                core.sync_region(&core.spaces.get(), region)?;
                self.inner.estimate.lock().note(core.region_bytes());
                rest = Some(rest.unwrap_or(Duration::ZERO) + if busy { start.elapsed() } else { Duration::ZERO });
            }
        }
        if rest.is_none() {
            self.inner.estimate.lock().end();
            self.inner.finish()?;
            rest = self.move_on()?;
        }
        Ok(rest)
    }

    /// Takes a step of a relayout. Returns as [`step`](Self::step).
    fn move_on(&self) -> Result<Option<Duration>> {
        let mut rest = None;
        for core in self.inner.cores.iter().filter(|core| core.spaces.peek().relayout.is_some()) {
            let (start, busy) = (Instant::now(), core.is_busy());
            rest = match self.inner.step(core)? {
                Stepped::Idle => rest,
                Stepped::Busy => Some(REST_WHEN_BUSY),
                Stepped::Moved(_) if busy => Some(start.elapsed()),
                Stepped::Moved(_) | Stepped::Over => Some(Duration::ZERO),
            };
        }
        Ok(rest)
    }

    fn tidy(&self) {
        for core in &self.inner.cores {
            if let Err(error) = core.clean_up() {
                tracing::warn!(volume = core.name, %error, "the dirty region log cannot be tidied");
            }
        }
    }

    /// Rests, for good when there is nothing in the logs and nobody calls. Returns whether the group closes.
    fn sleep(&self, rest: Duration) -> bool {
        let bell = &self.inner.shared.bell;
        let mut calls = bell.state.lock();
        if calls.stop || rest.is_zero() {
            return calls.stop;
        }
        let nothing_dirty = || self.inner.cores.iter().all(|core| core.count_with(crate::regions::DIRTY) == 0);
        if rest < TIDY {
            bell.wake.wait_for(&mut calls, rest);
        } else if calls.work || !nothing_dirty() {
            calls.work = false;
            bell.wake.wait_for(&mut calls, rest);
        } else {
            bell.wake.wait(&mut calls);
        }
        calls.stop
    }
}
