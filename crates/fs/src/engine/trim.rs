//! Telling the device what is free: `fstrim` of other file systems.
//!
//! ```text
//!   trim ─► all is made durable ─► a free run is withheld ─► discarded ─► given back ─► the next run
//!                                       nothing allocates it meanwhile
//! ```
//!
//! With the tunable `discard` what becomes free is discarded so by the sync daemon, by itself.
//!
//! - I-TRM-1: what is discarded is in no map that a crash can bring back. A run that the allocator
//!   has as free is so: the record that freed it is sealed (I-SPC-2).

use super::Engine;
use crate::types::TrimStep;
use crate::{Error, ErrorKind, Result};
use bedplate_store::{BlockNo, PlantedBug, Run, planted};

/// How much of the volume is looked at with the allocator locked, in bytes.
const WINDOW_BYTES: u64 = 1 << 30;
/// How many bytes of free space one step discards at most, and how many runs.
const STEP_BYTES_MAX: u64 = 4 << 30;
const STEP_RUNS_MAX: u64 = 1024;
/// Shorter runs that became free are left to a trim.
const FREED_BYTES_MIN: u64 = 64 << 10;

impl Engine {
    /// Discards free runs of at least `run_bytes_min` bytes from byte `from` of the volume on, as
    /// many as make one step.
    pub(crate) fn trim(&self, from: u64, run_bytes_min: u64) -> Result<TrimStep> {
        if self.is_read_only() {
            let message = "the volume is mounted read-only: nothing of it is discarded";
            return Err(Error::new(ErrorKind::ReadOnly, message));
        }
        if from == 0 {
            self.make_freed_reusable()?;
        }
        let _alone = self.lock_trim();
        let block_bytes = u64::from(self.block_size());
        let mut step = TrimStep { is_supported: true, ..TrimStep::default() };
        let (mut at, end) = (from.div_ceil(block_bytes), self.space_totals().total);
        while at < end && step.discarded_bytes < STEP_BYTES_MAX && step.runs < STEP_RUNS_MAX {
            let window = Run { start: BlockNo(at), blocks: WINDOW_BYTES / block_bytes };
            let blocks_min = run_bytes_min.div_ceil(block_bytes).max(1);
            let found = self.allocator.withhold_first(window, blocks_min, window.blocks);
            debug_assert!(found.next.0 > at, "a trim goes on: {found:?} from block {at}");
            at = found.next.0;
            step.passed_bytes += found.passed_blocks * block_bytes;
            let Some(run) = found.run else { continue };
            let taken = self.device.discard(run.start.0 * block_bytes, run.blocks * block_bytes);
            self.allocator.give_back(run);
            if !taken? {
                return Ok(TrimStep { is_supported: false, next: None, ..step });
            }
            debug_assert!(
                run.end() <= at && run.blocks >= 1,
                "what was discarded is passed: {run:?}"
            );
            step.discarded_bytes += run.blocks * block_bytes;
            step.runs += 1;
        }
        debug_assert!(
            step.discarded_bytes + step.passed_bytes
                <= (at - from.div_ceil(block_bytes)) * block_bytes,
            "a step counts what it has passed once: {step:?}"
        );
        step.next = (at < end).then_some(at * block_bytes);
        Ok(step)
    }

    /// Has what becomes free from now on discarded, or not any more.
    pub(crate) fn set_discarding(&self, is_on: bool) {
        self.allocator.set_noting_freed(is_on && !self.is_read_only());
    }

    /// Discards what became free since the last call, in runs that are worth it. A device that takes
    /// no discards is not asked again.
    pub(crate) fn discard_freed(&self) {
        let freed = self.allocator.take_freed();
        if freed.is_empty() {
            return;
        }
        let _alone = self.lock_trim();
        let why = match freed
            .into_iter()
            .try_fold(true, |taken, run| if taken { self.discard_free_of(run) } else { Ok(false) })
        {
            Ok(true) => return,
            Ok(false) => "it takes no discards, or has copies that would differ afterwards".into(),
            Err(error) => error.to_string(),
        };
        self.set_discarding(false);
        let name = self.device_name();
        tracing::warn!("what becomes free on {name} is not discarded from now on: {why}");
    }

    /// Discards what of a run is free; `false`: the device takes no discards.
    fn discard_free_of(&self, run: Run) -> Result<bool> {
        let block_bytes = u64::from(self.block_size());
        let (blocks_min, blocks_max) =
            ((FREED_BYTES_MIN / block_bytes).max(1), STEP_BYTES_MAX / block_bytes);
        let mut at = run.start;
        while at.0 < run.end() {
            let range = Run { start: at, blocks: run.end() - at.0 };
            let found = self.allocator.withhold_first(range, blocks_min, blocks_max);
            at = found.next;
            let Some(free) = found.run else { continue };
            let taken = self.device.discard(free.start.0 * block_bytes, free.blocks * block_bytes);
            self.allocator.give_back(free);
            if !taken? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes all free that was removed until now.
    pub(crate) fn make_freed_reusable(&self) -> Result<()> {
        if planted(PlantedBug::DiscardBeforeSealed) {
            self.allocator.release_sealed(self.meta.last_lsn());
            return Ok(());
        }
        self.free_deferred();
        self.sync_everything()?;
        if let Some(lsn) = self.release_waits_for() {
            self.seal_to(lsn)?;
        }
        self.release_sealed();
        Ok(())
    }
}
