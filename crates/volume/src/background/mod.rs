//! The thread of an open group: brings members up to date while the volumes are in use, compares
//! them on schedule, and tidies the dirty region log.
//!
//! It sleeps until something is written or a member leaves, or it is time to look whether members
//! were overwritten (`member_check`), and copies no faster than the foreground latency limit allows
//! (`throttle`).

mod scrub_scheduler;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::group::TimePoint;
use crate::io::Synced;
use crate::redundancy::UNSYNCED;
use crate::relayout::Stepped;
use crate::runtime::GroupRuntime;
use crate::throttle::{Pace, Turn};
use crate::{Error, ErrorKind, Result};
use scrub_scheduler::ScrubScheduler;

/// How often the dirty region log is tidied while there is something in it.
const TIDY: Duration = Duration::from_secs(3);
/// How often it is looked whether members were overwritten, while the dirty region log is empty:
/// nothing was written for some seconds then.
const LOOK_WHEN_IDLE: Duration = Duration::from_secs(60);
/// How long a failed step rests.
const REST_AFTER_FAILURE: Duration = Duration::from_secs(1);
/// How long a step of a relayout rests when operations under way did not end in time.
const REST_WHEN_BUSY: Duration = Duration::from_millis(20);
/// How long copies that a crash left unlike stay so after the group was opened: whatever knows which
/// one is right looks at them first (S-408). Those that are read plainly or written to are made alike
/// at once.
const LOOK_FIRST: Duration = Duration::from_secs(2);

pub(crate) fn start(runtime: &Arc<GroupRuntime>) -> Result<JoinHandle<()>> {
    let runtime = Arc::clone(runtime);
    let thread = std::thread::Builder::new().name("bedplate-group".into()).spawn(move || {
        let scrub_scheduler = ScrubScheduler::default();
        Worker { runtime, cursors: Vec::new(), scrub_scheduler, started: Instant::now() }.run();
    });
    thread.map_err(|error| {
        Error::new(
            ErrorKind::Device,
            format!("cannot start the group's background thread: {error}"),
        )
    })
}

/// Where a volume's next pending region is looked for, and how far that one is.
#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    region: u64,
    byte: u64,
}

struct Worker {
    runtime: Arc<GroupRuntime>,
    /// By volume.
    cursors: Vec<Cursor>,
    scrub_scheduler: ScrubScheduler,
    started: Instant,
}

impl Worker {
    fn run(mut self) {
        self.cursors = vec![Cursor::default(); self.runtime.ios.len()];
        let (mut tidied, mut checked) = (Instant::now(), Instant::now());
        loop {
            if checked.elapsed() >= TIDY {
                self.check_members();
                checked = Instant::now();
            }
            let rest = match self.step() {
                Ok(Some(rest)) => rest,
                Ok(None) if tidied.elapsed() >= TIDY => {
                    tidied = Instant::now();
                    self.tidy();
                    Duration::ZERO
                }
                Ok(None) => TIDY,
                Err(error) => {
                    tracing::warn!(group = self.runtime.group_state.name, %error,
                        "background resync, scrub or relayout failed; retrying in 1 s");
                    REST_AFTER_FAILURE
                }
            };
            if self.sleep(rest) {
                if let Err(error) = self.scrub_scheduler.stop(&self.runtime) {
                    tracing::warn!(group = self.runtime.group_state.name, %error,
                        "the position of a scrub cannot be saved; it goes on from an earlier one");
                }
                return;
            }
        }
    }

    /// Takes a turn: copies a part of a region of each volume that has one pending. Returns how
    /// long to rest; `None` when there was nothing to do.
    fn step(&mut self) -> Result<Option<Duration>> {
        if self.must_wait() {
            return Ok(Some(REST_WHEN_BUSY));
        }
        if self.cursors.iter().all(|cursor| cursor.byte == 0) {
            self.runtime.relocate()?;
        }
        let ios = &self.runtime.ios;
        let behind = ios.iter().any(|io| io.next_pending(0).is_some());
        if !behind {
            self.runtime.estimate.lock().end();
            if !self.runtime.finish()? {
                return Ok(Some(Duration::ZERO));
            }
        }
        if !behind
            && !ios.iter().any(|io| {
                io.epochs.peek().relayout.as_ref().is_some_and(|relayout| !relayout.paused)
            })
        {
            let rest = self.scrub_scheduler.step(&self.runtime, TimePoint::now())?;
            if rest.is_none() {
                self.runtime.throttle.leave(ios);
            }
            return Ok(rest);
        }
        let pace = match self.runtime.throttle.turn(ios) {
            Turn::Look(rest) => return Ok(Some(rest)),
            Turn::Work(pace) => pace,
        };
        let start = Instant::now();
        if behind {
            self.copy(pace)?;
            return Ok(Some(pace.rest(start.elapsed())));
        }
        self.move_on(pace)
    }

    /// Says whether copies that a crash left unlike are being looked at, or may soon be.
    fn must_wait(&self) -> bool {
        let young = self.started.elapsed() < LOOK_FIRST;
        self.runtime.ios.iter().any(|io| (young || io.is_held()) && io.count_with(UNSYNCED) > 0)
    }

    fn copy(&mut self, pace: Pace) -> Result<()> {
        for (io, cursor) in self.runtime.ios.iter().zip(&mut self.cursors) {
            let Some(region) = io.next_pending(cursor.region) else { continue };
            let from = if region == cursor.region { cursor.byte } else { 0 };
            // One that cannot be read now does not keep the others waiting.
            *cursor = Cursor { region: region + 1, byte: 0 };
            if !self.runtime.compare_sources(io, region, from, pace.chunk_bytes)? {
                continue;
            }
            let end = match io.sync_part(&io.epochs.get(), region, from, pace.chunk_bytes)? {
                Synced::Busy => continue,
                Synced::Whole => io.region_bytes(),
                Synced::Part(byte) => {
                    *cursor = Cursor { region, byte };
                    byte
                }
            };
            self.runtime.estimate.lock().note(end.saturating_sub(from));
        }
        Ok(())
    }

    /// Takes a step of a relayout. Returns as [`step`](Self::step).
    fn move_on(&self, pace: Pace) -> Result<Option<Duration>> {
        let mut rest = None;
        for io in self.runtime.ios.iter().filter(|io| io.epochs.peek().relayout.is_some()) {
            let start = Instant::now();
            rest = match self.runtime.step(io, pace.chunk_bytes)? {
                Stepped::Idle => rest,
                Stepped::Busy => Some(REST_WHEN_BUSY),
                Stepped::Moved(_) => Some(pace.rest(start.elapsed())),
                Stepped::Over => Some(Duration::ZERO),
            };
        }
        Ok(rest)
    }

    fn tidy(&self) {
        if let Err(error) = self.runtime.clean_up() {
            tracing::warn!(group = self.runtime.group_state.name, %error,
                "the dirty region logs cannot be tidied");
        }
    }

    /// Where the group is not whole without a member that was overwritten, that is told once, when
    /// it is found.
    fn check_members(&self) {
        if let Err(error) = self.runtime.check_members() {
            tracing::debug!(group = self.runtime.group_state.name, %error,
                "a member was overwritten");
        }
    }

    /// Rests, long when there is nothing in the logs and no work was asked for. Returns whether the
    /// group closes.
    fn sleep(&self, rest: Duration) -> bool {
        let due = self.scrub_scheduler.rest(&self.runtime);
        let waker = &self.runtime.group_state.waker;
        if waker.is_stopped() || rest.is_zero() {
            return waker.is_stopped();
        }
        let nothing_dirty =
            || self.runtime.ios.iter().all(|io| io.count_with(crate::redundancy::DIRTY) == 0);
        let goes_on = if rest < TIDY {
            waker.rest(rest)
        } else if waker.take_wake() || !nothing_dirty() {
            waker.wait_and_keep(Some(rest))
        } else {
            waker.wait_and_keep(Some(due.map_or(LOOK_WHEN_IDLE, |due| due.min(LOOK_WHEN_IDLE))))
        };
        !goes_on
    }
}
