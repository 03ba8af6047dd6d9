//! Scheduled scrub: the background thread compares one chunk at a time, throttled to the foreground
//! latency limit.
//!
//! ```text
//!   due ──begin()──► label: under way ──step()…──► save() now and then: position and counts ──end()──► label: what it came to
//!                      └─ the group is closed, or a power cut: it goes on from what was saved last
//! ```
//! Differences are first only collected. Before a position is saved, the provider is asked for a
//! page arbiter, while nothing is locked; so differences that were not arbitrated are found again
//! after a crash.

use std::time::{Duration, Instant};

use super::REST_WHEN_BUSY;
use crate::group::TimePoint;
use crate::runtime::GroupRuntime;
use crate::scrub::{Compared, How, finding};
use crate::throttle::Turn;
use crate::{
    Config, Id, Result, ScrubFinding, ScrubReport, ScrubResult, ScrubRun, ScrubSchedule,
    ScrubTotals, Undecided,
};

/// How often a position is saved, at most.
const SAVE: Duration = Duration::from_secs(60);
/// How many differences are gathered at most before that.
const GATHERED_MAX: usize = 1000;
/// How many of them are told one by one.
const TOLD_MAX: usize = 100;
const _: () = assert!(TOLD_MAX <= GATHERED_MAX, "what is told of a scrub was gathered");
/// The longest sleep between two looks at a clock that may be set.
const LOOK: Duration = Duration::from_secs(600);

/// A scrub under way.
struct Walk {
    run: ScrubRun,
    /// How far it is in the region.
    byte: u64,
    /// What was found since it was saved.
    found: ScrubReport,
    saved: Instant,
}

/// What the background thread keeps of scrubs on a schedule.
#[derive(Default)]
pub(crate) struct ScrubScheduler {
    /// When this process last began one.
    began: Option<Instant>,
    walk: Option<Walk>,
}

impl ScrubScheduler {
    /// Takes a turn. Returns how long to rest; `None` when there is nothing to do now.
    pub fn step(&mut self, runtime: &GroupRuntime, now: TimePoint) -> Result<Option<Duration>> {
        let Some(schedule) = runtime.group_state.scrub_schedule() else {
            self.walk = None;
            return Ok(None);
        };
        let Some(run) = schedule.run else {
            self.walk = None;
            if schedule.until_due(now, self.began).is_zero() {
                self.begin(runtime, now)?;
                return Ok(Some(Duration::ZERO));
            }
            return Ok(None);
        };
        let walk = match &mut self.walk {
            Some(walk) if walk.run.restarts == run.restarts => walk,
            walk => {
                walk.insert(Walk { run, byte: 0, found: ScrubReport::default(), saved: now.steady })
            }
        };
        let Some(io) = runtime.ios.get(usize::from(walk.run.volume)) else {
            self.end(runtime, schedule, now)?;
            return Ok(Some(Duration::ZERO));
        };
        let pace = match runtime.throttle.turn(&runtime.ios) {
            Turn::Look(rest) => return Ok(Some(rest)),
            Turn::Work(pace) => pace,
        };
        let start = Instant::now();
        let how = How { repair: schedule.repair, judge: &Undecided };
        let compared =
            io.scrub_part(walk.run.region, walk.byte, pace.chunk_bytes, how, &mut walk.found)?;
        walk.byte = if let Compared::Part(byte) = compared { byte } else { 0 };
        match compared {
            Compared::Part(_) => {}
            Compared::Whole => walk.run.region += 1,
            Compared::Busy => {
                walk.found.skipped_regions += 1;
                walk.run.region += 1;
            }
            Compared::Absent => (walk.run.volume, walk.run.region) = (walk.run.volume + 1, 0),
        }
        let full = walk.found.differences.len() >= GATHERED_MAX;
        if walk.byte == 0 && (full || now.steady.saturating_duration_since(walk.saved) >= SAVE) {
            self.save(runtime, schedule)?;
        }
        Ok(Some(if compared == Compared::Busy {
            REST_WHEN_BUSY
        } else {
            pace.rest(start.elapsed())
        }))
    }

    /// Returns how long the background thread may sleep.
    pub fn rest(&self, runtime: &GroupRuntime) -> Option<Duration> {
        Some(
            runtime
                .group_state
                .scrub_schedule()?
                .until_due(TimePoint::now(), self.began)
                .clamp(Duration::from_millis(1), LOOK),
        )
    }

    fn begin(&mut self, runtime: &GroupRuntime, now: TimePoint) -> Result<()> {
        tracing::info!(group = runtime.group_state.name, "a scrub on schedule begins");
        self.began = Some(now.steady);
        runtime.group_state.change_scrub(|schedule, config| {
            schedule.begun_s = Some(now.wall_s);
            schedule.run = Some(ScrubRun::default());
            config.drop_findings();
        })
    }

    /// Asks the provider for an arbiter of what was found, tells of it and counts it.
    fn judge_found(
        &mut self,
        runtime: &GroupRuntime,
        repair: bool,
    ) -> Result<Option<(ScrubRun, Vec<ScrubFinding>)>> {
        let Some(walk) = &mut self.walk else { return Ok(None) };
        let mut findings = Vec::new();
        if !walk.found.differences.is_empty() {
            let provider = runtime.arbiters.0.lock().clone();
            let judge = provider.and_then(|provider| provider());
            if let Some(judge) = &judge {
                runtime.scrub_again(How { repair, judge: &**judge }, &mut walk.found)?;
            }
            let config = runtime.group_state.config();
            let all = walk.found.differences.iter();
            findings =
                all.take(TOLD_MAX).map(|one| finding(&config, one, judge.as_deref())).collect();
            tell(&config, &findings);
        }
        walk.run.totals = sum(walk.run.totals, &std::mem::take(&mut walk.found));
        Ok(Some((walk.run, findings)))
    }

    fn save(&mut self, runtime: &GroupRuntime, schedule: ScrubSchedule) -> Result<()> {
        let Some((run, findings)) = self.judge_found(runtime, schedule.repair)? else {
            return Ok(());
        };
        self.walk.iter_mut().for_each(|walk| walk.saved = Instant::now());
        runtime.group_state.change_scrub(|schedule, config| {
            if schedule.advance(run) {
                config.keep_findings(findings);
            }
        })
    }

    fn end(
        &mut self,
        runtime: &GroupRuntime,
        schedule: ScrubSchedule,
        now: TimePoint,
    ) -> Result<()> {
        let Some((run, findings)) = self.judge_found(runtime, schedule.repair)? else {
            return Ok(());
        };
        self.walk = None;
        runtime.throttle.leave(&runtime.ios);
        let totals = run.totals;
        tracing::info!(
            event = "scrub_ended",
            group = runtime.group_state.name,
            compared_bytes = totals.compared_bytes,
            differences = totals.differences,
            left = totals.left,
            "the scrub on schedule is over"
        );
        runtime.group_state.change_scrub(|schedule, config| {
            if schedule.run.is_some_and(|now| now.restarts == run.restarts) {
                (schedule.run, schedule.last) =
                    (None, Some(ScrubResult { ended_s: now.wall_s, totals }));
                config.keep_findings(findings);
                config.end_findings();
            }
        })
    }

    /// Saves the position of a scrub under way because the group closes; not past what was not
    /// arbitrated, which is found again then.
    pub fn stop(&mut self, runtime: &GroupRuntime) -> Result<()> {
        let judged = self.walk.as_ref().is_some_and(|walk| {
            walk.found.differences.iter().all(|difference| difference.repaired)
        });
        match runtime.group_state.scrub_schedule().filter(|_| judged) {
            Some(schedule) => self.save(runtime, schedule),
            None => Ok(()),
        }
    }
}

fn sum(before: ScrubTotals, found: &ScrubReport) -> ScrubTotals {
    let left = found.differences.iter().filter(|difference| !difference.repaired).count() as u64;
    ScrubTotals {
        compared_bytes: before.compared_bytes + found.compared_bytes,
        skipped_regions: before.skipped_regions + found.skipped_regions,
        differences: before.differences + found.differences.len() as u64,
        left: before.left + left,
    }
}

fn tell(config: &Config, findings: &[ScrubFinding]) {
    let path =
        |id: Id| config.index_of(id).map_or("", |member| config.members[member].path.as_str());
    for one in findings {
        let copies: Vec<String> = one
            .copies
            .iter()
            .map(|(member, offset)| format!("{} at byte {offset}", path(*member)))
            .collect();
        tracing::warn!(
            group = config.name,
            volume = one.role.name(),
            address = one.range.start,
            len = one.range.end - one.range.start,
            lies = one.lies,
            copies = copies.join(", "),
            right = one.right.map(path),
            wrong = one.wrong.map(path),
            repaired = one.repaired,
            "a scrub on schedule found copies that differ"
        );
    }
}

#[cfg(test)]
#[path = "scrub_scheduler_tests.rs"]
mod tests;
