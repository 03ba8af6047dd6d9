//! The checkpoint scheduler: carries the schedules of checkpoints out, and warns when checkpoints
//! fill the volume.
//!
//! A thread of its own, because a checkpoint waits for writers, and the sync daemon must not. It
//! sleeps until the next schedule is due, at most a minute where there are schedules, because the
//! wall clock may be set; where there are none it sleeps until one is added.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bedplate_block::Waker;

use super::Daemon;
use crate::checkpoint::Pressure;
use crate::engine::Engine;
use crate::schedule::ClockReading;

/// Longest sleep where there are schedules; also how often a full volume is looked at.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// Shortest sleep: a clock that runs wild wakes it no more often.
const SLEEP_MIN: Duration = Duration::from_secs(1);
/// Sleep where there is nothing to do.
const IDLE: Duration = Duration::from_secs(24 * 3600);
const _: () = assert!(
    SLEEP_MIN.as_secs() < SLEEP_MAX.as_secs() && SLEEP_MAX.as_secs() < IDLE.as_secs(),
    "the scheduler sleeps at least for a while, and longest without schedules"
);

/// Starts the checkpoint scheduler of a writable mount.
pub(crate) fn start(fs: &Arc<Engine>) -> std::io::Result<Daemon> {
    let (waker, weak) = (fs.scheduler_waker().clone(), Arc::downgrade(fs));
    Daemon::spawn("bedplate-sched", fs.scheduler_waker().clone(), move || run(&waker, &weak))
}

/// When the volume was looked at, and what was said of it.
struct Watch {
    looked: Instant,
    warned: Option<Pressure>,
}

fn run(waker: &Waker, fs: &Weak<Engine>) {
    let mut watch = Watch { looked: Instant::now(), warned: None };
    loop {
        let Some(sleep) = fs.upgrade().map(|fs| turn(&fs, &mut watch)) else { return };
        if !waker.wait(sleep) {
            return;
        }
    }
}

/// One turn; returns how long to sleep.
fn turn(fs: &Engine, watch: &mut Watch) -> Duration {
    let now = ClockReading::now();
    if fs.is_any_due(now) {
        carry_out(fs, now);
    }
    // It reads what checkpoints keep: never more often than this.
    if watch.looked.elapsed() >= SLEEP_MAX {
        watch.looked = Instant::now();
        warn(fs, &mut watch.warned);
    }
    let next = fs.until_next_due(now);
    let idle = if fs.checkpoint_counts().count > 0 { SLEEP_MAX } else { IDLE };
    next.map_or(idle, |next| next.clamp(SLEEP_MIN, SLEEP_MAX))
}

fn carry_out(fs: &Engine, now: ClockReading) {
    // What a kernel above still holds of writes belongs in the checkpoint.
    fs.flush_frontend();
    match fs.run_schedules(now) {
        Ok(run) => {
            for made in &run.made {
                tracing::info!("made checkpoint '{}'", bedplate_store::told_name(&made.name));
            }
            run.deleted.iter().for_each(|name| {
                tracing::info!(
                    "deleted checkpoint '{}': its schedule keeps no more",
                    bedplate_store::told_name(name)
                );
            });
            run.failures
                .iter()
                .for_each(|failure| tracing::warn!(event = "schedule_failed", "{failure}"));
        }
        Err(error) => {
            tracing::warn!("the schedules of checkpoints could not be carried out: {error}");
        }
    }
}

/// Says once what fills the volume, and again when it was better in between.
fn warn(fs: &Engine, warned: &mut Option<Pressure>) {
    match fs.pressure() {
        Ok(Some(pressure)) => {
            if warned.replace(pressure).is_none() {
                tracing::warn!(event = "checkpoints_fill_volume", "{pressure}");
            }
        }
        Ok(None) => *warned = None,
        Err(error) => tracing::warn!("what checkpoints hold cannot be counted: {error}"),
    }
}
