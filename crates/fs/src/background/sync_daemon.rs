//! The sync daemon: what is dirty becomes durable within the sync interval, without a call of a
//! program.
//!
//! It wakes once an interval, or when a writer wakes it because the metadata outgrows its bounds.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bedplate_block::Waker;

use super::Daemon;
use crate::Result;
use crate::engine::Engine;

/// Starts the daemon of a writable mount.
pub(crate) fn start(fs: &Arc<Engine>) -> std::io::Result<Daemon> {
    let (waker, weak) = (fs.sync_waker.clone(), Arc::downgrade(fs));
    Daemon::spawn("bedplate-sync", fs.sync_waker.clone(), move || run(&waker, &weak))
}

fn run(waker: &Waker, fs: &Weak<Engine>) {
    let mut reported = None;
    let interval = || {
        let fs = fs.upgrade()?;
        let interval = fs.tuning.sync_interval();
        Some(fs.trials.first_ends_in().map_or(interval, |ends| ends.min(interval)))
    };
    while interval().is_some_and(|interval| waker.wait(interval)) {
        let Some(fs) = fs.upgrade() else { return };
        fs.end_overdue_trials();
        let Err(e) = turn(&fs, fs.tuning.sync_interval()) else { continue };
        let latched = fs.meta.failed().is_some();
        match reported.replace(latched) {
            Some(before) if before == latched => {}
            // The failure says what to do.
            _ if latched => tracing::error!("the file system is read-only from now on: {e}"),
            _ => tracing::error!(
                "the sync daemon could not write what is dirty; it stays in memory and is tried again: {e}"
            ),
        }
    }
}

/// One turn: aged pages, lazy times, the log, blocks that wait to be free, the tree.
fn turn(fs: &Engine, interval: Duration) -> Result<()> {
    let aged =
        Instant::now().checked_sub(interval).map_or(Ok(()), |then| fs.cache.flush_aged(then));
    fs.commit_all_times(&fs.change());
    if fs.meta.has_unwritten_records() {
        fs.meta.sync(fs.meta.last_lsn())?;
    }
    fs.free_deferred();
    if let Some(lsn) = fs.allocator.waiting_for() {
        if lsn > fs.meta.sealed_lsn() {
            fs.meta.seal(lsn)?;
        }
        fs.allocator.release_sealed(fs.meta.sealed_lsn());
    }
    fs.relieve_metadata();
    if fs.meta.commit_due() || fs.meta.log_half_full() {
        fs.meta.metadata_commit()?;
    }
    aged
}
