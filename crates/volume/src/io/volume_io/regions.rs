//! Writes and the dirty region log: which regions a write enters, and when their bits are durable.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bedplate_block::Result;

use super::super::epoch::{LayoutEpoch, POLL_INTERVAL};
use super::VolumeIo;
use crate::planted::{Mistake, is_planted};
use crate::redundancy::{Drl, Obstacle, Redundancy, UNSYNCED};

impl VolumeIo {
    /// Counts a write into its regions: bits durable, copies in agreement, no copy under way.
    pub fn enter(&self, epoch: &LayoutEpoch, offset: u64, len: u64) -> Result<()> {
        let Some(redundancy) = &epoch.redundancy else { return Ok(()) };
        if len == 0 {
            return Ok(());
        }
        let (first, last) = redundancy.regions.span(offset, len);
        for region in first..=last {
            if let Err(error) = self.enter_region(epoch, redundancy, region, last) {
                (first..region).for_each(|entered| redundancy.regions.leave(entered));
                return Err(error);
            }
        }
        Ok(())
    }

    #[inline]
    fn enter_region(
        &self,
        epoch: &LayoutEpoch,
        redundancy: &Redundancy,
        region: u64,
        last: u64,
    ) -> Result<()> {
        debug_assert!(
            region <= last && last < redundancy.regions.count(),
            "regions up to {last} are entered in order: {region} of {}",
            redundancy.regions.count()
        );
        while let Err(obstacle) = redundancy.regions.enter(region) {
            match obstacle {
                Obstacle::Clean => self.mark(epoch, redundancy, region, last)?,
                Obstacle::Unsynced => drop(self.sync_region(epoch, region)?),
                Obstacle::Locked => std::thread::sleep(POLL_INTERVAL),
            }
        }
        Ok(())
    }

    pub fn leave(&self, epoch: &LayoutEpoch, offset: u64, len: u64) {
        let Some(redundancy) = epoch.redundancy.as_ref().filter(|_| len > 0) else { return };
        let (first, last) = redundancy.regions.span(offset, len);
        (first..=last).for_each(|region| redundancy.regions.leave(region));
    }

    /// Makes the bits of regions durable on every member that takes writes.
    pub fn mark(
        &self,
        epoch: &LayoutEpoch,
        redundancy: &Redundancy,
        first: u64,
        last: u64,
    ) -> Result<()> {
        debug_assert!(
            first <= last && last < redundancy.regions.count(),
            "I-DRL-1: regions {first} to {last} are some of {}",
            redundancy.regions.count()
        );
        let mut log = redundancy.log.lock();
        let pages = log.change(first..=last, true);
        if !pages.is_empty()
            && !is_planted(Mistake::BitNotWritten)
            && let Err(error) =
                self.write_log(epoch, &log, &pages, !is_planted(Mistake::BitNotFlushed))
        {
            let undone: Vec<u64> =
                (first..=last).filter(|region| !redundancy.regions.is_dirty(*region)).collect();
            log.change(undone, false);
            return Err(error);
        }
        // The bits are durable; writes may enter from now on.
        (first..=last).for_each(|region| redundancy.regions.set_dirty(region));
        self.group_state.waker.wake();
        assert!(
            (first..=last).all(|region| log.is_dirty(region)),
            "I-DRL-1: a region that may be written is in the log"
        );
        Ok(())
    }

    /// Writes pages of the dirty region log to every member that takes writes.
    pub fn write_log(
        &self,
        epoch: &LayoutEpoch,
        log: &Drl,
        pages: &[usize],
        durable: bool,
    ) -> Result<()> {
        let handles = self.group_state.handles();
        let mut failures = Vec::new();
        for handle in epoch
            .members
            .iter()
            .filter_map(|member| handles[*member].as_ref())
            .filter(|handle| handle.takes_writes())
        {
            let written = log
                .write(&*handle.device, pages)
                .and_then(|()| if durable { handle.device.flush() } else { Ok(()) });
            failures.extend(written.err().map(|error| (Arc::clone(handle), error)));
        }
        self.fail_members(failures)
    }

    /// Lets copies stay unlike, or not any longer; returns whether any may be.
    pub fn hold_copies(&self, held: bool) -> bool {
        if held {
            self.held.fetch_add(1, Ordering::AcqRel);
        } else {
            let before = self.held.fetch_sub(1, Ordering::AcqRel);
            assert!(before > 0, "copies are let go that were held");
            self.group_state.waker.wake();
        }
        self.count_with(UNSYNCED) > 0
    }

    /// Returns the ranges of addresses of which copies may be unlike.
    pub fn ranges_in_doubt(&self) -> Vec<Range<u64>> {
        let epoch = self.epochs.peek();
        let Some(redundancy) = &epoch.redundancy else { return Vec::new() };
        let regions = &redundancy.regions;
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for region in (0..regions.count()).filter(|region| regions.is_unsynced(*region)) {
            let (start, len) = regions.range(region);
            match ranges.last_mut().filter(|last| last.end == start) {
                Some(last) => last.end += len,
                None => ranges.push(start..start + len),
            }
        }
        ranges
    }

    /// Says whether copies stay as a crash left them.
    #[inline]
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire) > 0 && !is_planted(Mistake::CopiesNotHeld)
    }

    /// Says whether reads may take any copy.
    #[inline]
    pub fn copies_agree(&self) -> bool {
        self.may_choose && !self.is_held()
    }

    /// Makes the regions of a range agree that a crash left in doubt, unless copies are held.
    #[inline]
    pub fn resync_range(&self, epoch: &LayoutEpoch, offset: u64, len: u64) -> Result<()> {
        let Some(redundancy) = &epoch.redundancy else { return Ok(()) };
        if self.is_held() {
            return Ok(());
        }
        let (first, last) = redundancy.regions.span(offset, len);
        for region in first..=last {
            while redundancy.regions.is_unsynced(region) {
                if !self.sync_region(epoch, region)? {
                    std::thread::sleep(POLL_INTERVAL);
                }
            }
        }
        Ok(())
    }
}
