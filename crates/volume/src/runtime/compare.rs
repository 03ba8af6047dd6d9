//! Comparing copies before one of them is copied from: of copies that are unlike, the right one has to
//! be what goes on, because the others are given up, or written over.
//!
//! ```text
//!   the next step of a relayout          ─► all its copies, or rows ─ alike ──────────────────────► copied
//!   a part of a region that a member lacks                             └ unlike ─► the arbiter, while nothing is locked
//!                                                                                    └► compared again with it: what is wrong is written over
//! ```
//! What the arbiter does not know either is told, and copied as any copy has it.

use std::ops::Range;
use std::time::Duration;

use super::GroupRuntime;
use crate::io::VolumeIo;
use crate::planted::{Mistake, is_planted};
use crate::scrub::{How, finding};
use crate::{PageArbiter, Result, ScrubReport, Undecided};

/// How many differences of one range are told one by one.
const TOLD_MAX: usize = 20;
/// How long a region rests in which writes are under way all the time.
const REST_WHEN_BUSY: Duration = Duration::from_millis(1);

impl GroupRuntime {
    /// Says whether copies of a volume are compared before one is copied from: where something may
    /// know which one is right.
    pub fn compares(&self, io: &VolumeIo) -> bool {
        io.epochs.peek().redundancy.is_some()
            && self.arbiters.0.lock().is_some()
            && !is_planted(Mistake::SourceNotCompared)
    }

    /// Compares what the next step of a relayout copies. Returns false while that cannot be.
    pub fn compare_step(&self, io: &VolumeIo, chunk_bytes: u64) -> Result<bool> {
        let Some(range) = io.next_step() else { return Ok(true) };
        if io.relayout_step_state.lock().compared.as_ref() == Some(&range) {
            return Ok(true);
        }
        if !self.compare(io, &range, chunk_bytes)? {
            return Ok(false);
        }
        io.relayout_step_state.lock().compared = Some(range);
        Ok(true)
    }

    /// Compares the copies that a part of a region is brought up to date from, where there are
    /// several. Returns false while that cannot be.
    pub fn compare_sources(
        &self,
        io: &VolumeIo,
        region: u64,
        from: u64,
        chunk_bytes: u64,
    ) -> Result<bool> {
        if !self.compares(io) || is_planted(Mistake::SourceOfMemberNotCompared) {
            return Ok(true);
        }
        io.copied_by_choice(region, from, chunk_bytes)
            .map_or(Ok(true), |range| self.compare(io, &range, chunk_bytes))
    }

    /// As [`compare_sources`](Self::compare_sources), of all regions that some member lacks.
    pub fn compare_all_sources(&self, io: &VolumeIo) -> Result<()> {
        let mut next = io.next_pending(0).filter(|_| self.compares(io));
        while let Some(region) = next {
            while !self.compare_sources(io, region, 0, u64::MAX)? {
                std::thread::sleep(REST_WHEN_BUSY);
            }
            next = io.next_pending(region + 1).filter(|after| *after > region);
        }
        Ok(())
    }

    fn compare(&self, io: &VolumeIo, range: &Range<u64>, chunk_bytes: u64) -> Result<bool> {
        let Some(found) = compared_with(io, range, chunk_bytes, &Undecided)? else {
            return Ok(false);
        };
        if found.differences.iter().all(|one| one.repaired) {
            return Ok(true);
        }
        let provider = self.arbiters.0.lock().clone();
        let judge = provider.and_then(|provider| provider());
        let known = match judge.as_deref() {
            Some(judge) => compared_with(io, range, chunk_bytes, judge)?,
            None => Some(found),
        };
        let Some(known) = known else { return Ok(false) };
        self.tell(io, &known, judge.as_deref());
        Ok(true)
    }

    /// Tells what differed, and what came of it.
    fn tell(&self, io: &VolumeIo, report: &ScrubReport, judge: Option<&dyn PageArbiter>) {
        let config = self.group_state.config();
        for one in report.differences.iter().take(TOLD_MAX) {
            let told = finding(&config, one, judge);
            let path = |id| config.index_of(id).map_or("", |at| config.members[at].path.as_str());
            tracing::warn!(
                volume = io.name,
                address = told.range.start,
                len = told.range.end - told.range.start,
                lies = told.lies,
                right = told.right.map(path),
                wrong = told.wrong.map(path),
                "copies differ that are about to be copied: {}",
                if told.repaired {
                    "what was wrong was written over with what is right"
                } else {
                    "which one is right is not known, and one of them is copied"
                }
            );
        }
    }
}

/// Compares a range and writes over what is known to be wrong. `None`: writes are under way there all
/// the time.
fn compared_with(
    io: &VolumeIo,
    range: &Range<u64>,
    chunk_bytes: u64,
    judge: &dyn PageArbiter,
) -> Result<Option<ScrubReport>> {
    let mut report = ScrubReport::default();
    let whole = io.scrub_parts(range, chunk_bytes, How { repair: true, judge }, &mut report)?;
    Ok(whole.then_some(report))
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
