//! When copies are compared by themselves, how far that is and what came of it: a part of a group's
//! configuration. Plans only; `scrub_scheduler` carries them out.
//!
//! ```text
//!   ──begun──────────────┬──── period ────►│ due        begun again ──► …
//!     running: position, counts            last: when it ended, counts
//! ```
//! [`Period`] says when one is due where the wall clock went back.

use std::time::{Duration, Instant, SystemTime};

use bedplate_block::Period;

use crate::wire::{Fault, Reader};

/// What a scrub came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScrubTotals {
    /// Bytes whose copies were compared.
    pub compared_bytes: u64,
    /// Regions that were written to all the time and could not be compared.
    pub skipped_regions: u64,
    /// How many places differed.
    pub differences: u64,
    /// How many of them were left as they were.
    pub left: u64,
}

/// A scrub that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrubResult {
    /// When, in seconds since 1970.
    pub ended_s: u64,
    /// What it came to.
    pub totals: ScrubTotals,
}

/// A scrub that has begun and has not ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScrubRun {
    /// The ordinal of the volume that it is at.
    pub volume: u16,
    /// The region with which it goes on after a new opening of the group.
    pub region: u64,
    /// How often it began again because a volume got another layout.
    pub restarts: u32,
    /// What it came to so far.
    pub totals: ScrubTotals,
}

/// A rule by which copies are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrubSchedule {
    /// The time from one beginning to the next in seconds: a minute to ten years.
    pub every_s: u64,
    /// Whether copies that are known to be wrong are made good.
    pub repair: bool,
    /// When the last one began, in seconds since 1970; `None`: never.
    pub begun_s: Option<u64>,
    /// The one that is under way.
    pub run: Option<ScrubRun>,
    /// The last that ended.
    pub last: Option<ScrubResult>,
}

/// One moment by two clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimePoint {
    /// The time of day in seconds since 1970, which may be set forward and back.
    pub wall_s: u64,
    /// Never goes back.
    pub steady: Instant,
}

impl TimePoint {
    pub fn now() -> Self {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { wall_s: wall.as_secs(), steady: Instant::now() }
    }
}

impl ScrubSchedule {
    /// Makes one that is due at once.
    pub(crate) fn new(every_s: u64, repair: bool) -> Self {
        Self { every_s, repair, begun_s: None, run: None, last: None }
    }

    /// Returns what is wrong with it.
    pub(crate) fn fault(&self) -> Option<String> {
        Period(self.every_s).fault()
    }

    /// Returns when the next one begins, in seconds since 1970; `None` where it is under way or
    /// due.
    #[must_use]
    pub fn next_s(&self) -> Option<u64> {
        self.begun_s
            .filter(|_| self.run.is_none())
            .map(|begun_s| begun_s.saturating_add(self.every_s))
    }

    /// Returns how long to wait for the next one, as far as the wall clock is believed; `began` is
    /// when this process last began one.
    pub(crate) fn until_due(&self, now: TimePoint, began: Option<Instant>) -> Duration {
        let (Some(begun_s), None) = (self.begun_s, self.run) else { return Duration::ZERO };
        if now.wall_s >= begun_s {
            return Duration::from_secs(
                begun_s.saturating_add(self.every_s).saturating_sub(now.wall_s),
            );
        }
        let elapsed = began.map(|began| now.steady.saturating_duration_since(began));
        Period(self.every_s).wait_after_clock_went_back(elapsed)
    }

    /// Notes how far the one that is under way is, if that is still the same. Returns whether it
    /// is.
    pub(crate) fn advance(&mut self, run: ScrubRun) -> bool {
        let same = self.run.is_some_and(|now| now.restarts == run.restarts);
        if same {
            self.run = Some(run);
        }
        same
    }

    /// Lets the one that is under way begin again: what it compared lies elsewhere now.
    pub(crate) fn restart(&mut self) {
        self.run = self
            .run
            .map(|run| ScrubRun { restarts: run.restarts.wrapping_add(1), ..ScrubRun::default() });
    }
}

const SCHEDULED: u8 = 1;
const REPAIRS: u8 = 2;
const BEGUN: u8 = 4;
const RUNS: u8 = 8;
const ENDED: u8 = 16;
const _: () = assert!(
    SCHEDULED + REPAIRS + BEGUN + RUNS + ENDED == 0x1f,
    "each thing that is said of a scrub has a bit of its own"
);

pub(crate) fn encode(schedule: Option<&ScrubSchedule>, out: &mut Vec<u8>) {
    let Some(schedule) = schedule else { return out.push(0) };
    let flag = |set: bool, flag: u8| if set { flag } else { 0 };
    let begun = flag(schedule.repair, REPAIRS) | flag(schedule.begun_s.is_some(), BEGUN);
    out.push(
        SCHEDULED
            | begun
            | flag(schedule.run.is_some(), RUNS)
            | flag(schedule.last.is_some(), ENDED),
    );
    out.extend(schedule.every_s.to_le_bytes());
    out.extend(schedule.begun_s.unwrap_or(0).to_le_bytes());
    let run = schedule.run.unwrap_or_default();
    out.extend(run.volume.to_le_bytes());
    out.extend(run.region.to_le_bytes());
    out.extend(run.restarts.to_le_bytes());
    encode_totals(&run.totals, out);
    out.extend(schedule.last.map_or(0, |last| last.ended_s).to_le_bytes());
    encode_totals(&schedule.last.map(|last| last.totals).unwrap_or_default(), out);
}

fn encode_totals(totals: &ScrubTotals, out: &mut Vec<u8>) {
    let all = [totals.compared_bytes, totals.skipped_regions, totals.differences, totals.left];
    all.into_iter().for_each(|field| out.extend(field.to_le_bytes()));
}

pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Option<ScrubSchedule>, Fault> {
    let at = reader.at();
    let flags = reader.u8("the flags of the schedule for scrubs")?;
    if flags > 31 || (flags > 0 && flags & SCHEDULED == 0) {
        return Err(Fault::new(at, format!("{flags} are no flags of a schedule for scrubs")));
    }
    if flags == 0 {
        return Ok(None);
    }
    let (every_s, begun_s) =
        (reader.u64("the period of scrubs")?, reader.u64("the beginning of the last scrub")?);
    let (volume, region) =
        (reader.u16("the volume of a scrub")?, reader.u64("the region of a scrub")?);
    let run = ScrubRun {
        volume,
        region,
        restarts: reader.u32("the restarts of a scrub")?,
        totals: decode_totals(reader)?,
    };
    let last = ScrubResult {
        ended_s: reader.u64("the end of the last scrub")?,
        totals: decode_totals(reader)?,
    };
    let has = |flag: u8| flags & flag != 0;
    let schedule = ScrubSchedule {
        every_s,
        repair: has(REPAIRS),
        begun_s: Some(begun_s).filter(|_| has(BEGUN)),
        run: Some(run).filter(|_| has(RUNS)),
        last: Some(last).filter(|_| has(ENDED)),
    };
    schedule.fault().map_or(Ok(Some(schedule)), |what| Err(Fault::new(at, what)))
}

fn decode_totals(reader: &mut Reader<'_>) -> Result<ScrubTotals, Fault> {
    Ok(ScrubTotals {
        compared_bytes: reader.u64("the bytes that a scrub compared")?,
        skipped_regions: reader.u64("the regions that a scrub skipped")?,
        differences: reader.u64("the differences that a scrub found")?,
        left: reader.u64("the differences that a scrub left")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;
    /// A day in 2026.
    const NOON: u64 = 1_795_262_400;

    fn weekly(begun_s: Option<u64>) -> ScrubSchedule {
        ScrubSchedule { begun_s, ..ScrubSchedule::new(7 * DAY, true) }
    }

    fn seconds(wall_s: u64) -> u64 {
        weekly(Some(NOON)).until_due(TimePoint { wall_s, steady: Instant::now() }, None).as_secs()
    }

    #[test]
    fn it_survives_encoding_and_hostile_bytes_are_refused() {
        let totals = ScrubTotals { compared_bytes: 1, skipped_regions: 2, differences: 3, left: 4 };
        let run = Some(ScrubRun { volume: 1, region: 77, restarts: 3, totals });
        for schedule in [
            weekly(None),
            ScrubSchedule {
                run,
                last: Some(ScrubResult { ended_s: NOON, totals }),
                ..weekly(Some(NOON))
            },
        ] {
            let mut bytes = Vec::new();
            encode(Some(&schedule), &mut bytes);
            assert_eq!(decode(&mut Reader::new(&bytes)), Ok(Some(schedule)));
            (0..bytes.len())
                .for_each(|len| assert!(decode(&mut Reader::new(&bytes[..len])).is_err(), "{len}"));
        }
        assert_eq!(decode(&mut Reader::new(&[0])), Ok(None));
        assert!(
            decode(&mut Reader::new(&[2; 200])).is_err()
                && decode(&mut Reader::new(&[33; 200])).is_err()
        );
        let mut bytes = Vec::new();
        encode(Some(&ScrubSchedule::new(0, false)), &mut bytes);
        assert!(decode(&mut Reader::new(&bytes)).is_err(), "every 0 seconds");
    }

    /// S-106: the first at once, then one a period from beginning to beginning, and one for any
    /// number that were missed.
    #[test]
    fn s_106_one_is_due_when_a_period_has_passed() {
        let now = TimePoint { wall_s: NOON, steady: Instant::now() };
        assert_eq!(weekly(None).until_due(now, None), Duration::ZERO);
        assert_eq!(
            (seconds(NOON), seconds(NOON + DAY), seconds(NOON + 7 * DAY), seconds(NOON + 70 * DAY)),
            (7 * DAY, 6 * DAY, 0, 0)
        );
        let mut schedule = weekly(Some(NOON));
        assert_eq!(schedule.next_s(), Some(NOON + 7 * DAY));
        schedule.run = Some(ScrubRun::default());
        assert_eq!((schedule.next_s(), schedule.until_due(now, None)), (None, Duration::ZERO));
    }

    /// S-106: a clock that went back makes one after half a period, or at once after a new opening;
    /// one that jumps to and fro two in half a period.
    #[test]
    fn s_106_a_clock_that_goes_back_makes_one_and_one_that_jumps_makes_few() {
        assert_eq!(seconds(NOON - DAY), 0, "when this process would have had one is not known");
        let start = Instant::now();
        let at = |wall_s: u64, passed: u64| TimePoint {
            wall_s,
            steady: start + Duration::from_secs(passed),
        };
        let left = |passed: u64| {
            weekly(Some(NOON)).until_due(at(NOON - DAY, passed), Some(start)).as_secs()
        };
        assert_eq!((left(0), left(DAY), left(4 * DAY)), (7 * DAY / 2, 5 * DAY / 2, 0));
        // To and fro by ten days every minute, for three days.
        let (mut schedule, mut began, mut made) = (weekly(Some(NOON)), start, 0);
        for minute in 0..3 * 1440_u64 {
            let jumped = if minute % 2 == 0 { 10 * DAY } else { 0 };
            let now = at(NOON + 60 * minute + jumped, 60 * minute);
            if schedule.until_due(now, Some(began)).is_zero() {
                (schedule.begun_s, began, made) = (Some(now.wall_s), now.steady, made + 1);
            }
        }
        assert!((1..=2).contains(&made), "{made}");
    }
}
