//! Schedules: checkpoints at regular times, and how many of them are kept. Plans only;
//! [`run`](crate::checkpoint::run) carries them out.
//!
//! ```text
//!   wall clock  ──┬───────────┬───────────┬───────────┬──▶   multiples of the period since 1970 in UTC, weeks from Mondays
//!                 │ slot 7    │ slot 8    │ slot 9    │
//!   last made in ─┘           └ now: one is due, however many slots lie between
//! ```
//!
//! The wall clock says only whether one is due and what it is called. What is older is said by
//! epochs alone, so a clock that is wrong never makes retention delete the wrong one. [`Period`]
//! says when one is due where the wall clock went back.

mod turns;

pub(crate) use turns::ScheduleState;

use std::cmp::Ordering;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use bedplate_block::Period;
use serde::{Deserialize, Serialize};

use crate::calendar::format_time;
use crate::{Error, ErrorKind, Result, Timestamp};
use bedplate_store::{Reader, RowChange, Table, check_name};

/// Begins the names of settings that are schedules.
pub(crate) const SCHEDULE_PREFIX: &[u8] = b"schedule.";
/// Begins the names of settings that say why a schedule made no checkpoint when it last had its
/// turn.
const FAILURE_PREFIX: &[u8] = b"schedule_failed.";
/// Longest reason that is kept.
const FAILURE_BYTES_MAX: usize = 1024;

/// Longest name in bytes: a checkpoint's name has room for the time behind it.
const NAME_BYTES_MAX: usize = 200;
const DAY_S: u64 = 86_400;
/// 1970-01-05 was a Monday.
const MONDAY_S: i64 = 4 * 86_400;
/// Most checkpoints that one schedule keeps.
const KEEP_MAX: u32 = 10_000;
/// Longest sum of all paths of a schedule: they are one row.
const PATHS_BYTES_MAX: usize = 32 << 10;

const _: () = assert!(
    PATHS_BYTES_MAX <= u16::MAX as usize && FAILURE_BYTES_MAX <= PATHS_BYTES_MAX,
    "the row of a schedule has lengths of 16 bits"
);

/// A rule by which checkpoints are made and deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// Its name, with which those of its checkpoints begin: 1 to 200 bytes of UTF-8.
    pub name: String,
    /// Its period in seconds: a minute to ten years.
    pub every_s: u64,
    /// How many of its checkpoints are kept: 1 to 10,000. Those that a person keeps do not count.
    pub keep: u32,
    /// What its checkpoints are of; none: everything.
    pub paths: Vec<PathBuf>,
    /// The wall clock when it last had its turn.
    pub last: Option<Timestamp>,
    /// Why it made no checkpoint then; `None`: it made one, or had no turn yet.
    #[serde(default)]
    pub failure: Option<String>,
}

/// One moment by two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReading {
    /// The time of day, which may be set forward and back.
    pub wall: Timestamp,
    /// Time since some fixed moment, which never goes back; counts while the machine sleeps.
    pub steady: Duration,
}

impl ClockReading {
    /// Returns the present.
    #[must_use]
    pub fn now() -> Self {
        let steady = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(steady.tv_sec).unwrap_or(0);
        Self { wall: Timestamp::now(), steady: Duration::from_secs(seconds) }
    }
}

impl Schedule {
    pub(crate) fn validate(&self) -> Result<()> {
        let wrong = |what: String| {
            Err(Error::new(
                ErrorKind::Invalid,
                format!("schedule '{}': {what}", bedplate_store::told_name(&self.name)),
            ))
        };
        check_name(self.name.as_bytes())?;
        if self.name.len() > NAME_BYTES_MAX {
            return wrong(format!(
                "a name of {} bytes leaves no room for the time: {NAME_BYTES_MAX} are the most",
                self.name.len()
            ));
        }
        if let Some(what) = Period(self.every_s).fault() {
            return wrong(what);
        }
        if !(1..=KEEP_MAX).contains(&self.keep) {
            return wrong(format!("it cannot keep {} checkpoints: 1 to {KEEP_MAX}", self.keep));
        }
        let paths_bytes: usize = self.paths.iter().map(|path| path.as_os_str().len() + 2).sum();
        if paths_bytes > PATHS_BYTES_MAX {
            return wrong(format!(
                "its paths have {paths_bytes} bytes: {PATHS_BYTES_MAX} are the most; name \
                 directories"
            ));
        }
        Ok(())
    }

    pub(crate) fn key(&self) -> Vec<u8> {
        key_of(&self.name)
    }

    /// The value of the setting.
    pub(crate) fn encode(&self) -> Vec<u8> {
        debug_assert!(
            self.validate().is_ok(),
            "a schedule is validated before it is stored: {self:?}"
        );
        let mut out = Vec::with_capacity(64);
        out.extend_from_slice(&self.every_s.to_le_bytes());
        out.extend_from_slice(&self.keep.to_le_bytes());
        out.extend_from_slice(&self.last.map_or(i64::MIN, |last| last.0).to_le_bytes());
        for path in &self.paths {
            let bytes = path.as_os_str().as_bytes();
            out.extend_from_slice(
                &u16::try_from(bytes.len()).expect("all paths together are shorter").to_le_bytes(),
            );
            out.extend_from_slice(bytes);
        }
        out
    }

    pub(crate) fn decode(key: &[u8], value: &[u8]) -> Result<Self> {
        let name =
            key.strip_prefix(SCHEDULE_PREFIX).and_then(|name| std::str::from_utf8(name).ok());
        let name =
            name.ok_or_else(|| Error::corrupt("the name of a schedule is not UTF-8"))?.to_owned();
        let mut r = Reader::new(value, "a schedule");
        let (every_s, keep, last) = (r.u64()?, r.u32()?, r.i64()?);
        let mut paths = Vec::new();
        while !r.is_empty() {
            let len = r.u16()?;
            paths.push(PathBuf::from(std::ffi::OsString::from_vec(r.take(len.into())?.to_vec())));
        }
        let schedule = Self {
            name,
            every_s,
            keep,
            paths,
            last: (last != i64::MIN).then_some(Timestamp(last)),
            failure: None,
        };
        schedule.validate().map_err(|e| Error::corrupt(e.message))?;
        Ok(schedule)
    }

    /// The number of the period in which a time lies.
    fn slot(&self, time: Timestamp) -> i64 {
        debug_assert!(self.every_s > 0, "a schedule has a period: {self:?}");
        (time.0.div_euclid(1_000_000_000) - self.offset_s()).div_euclid(self.every_s.cast_signed())
    }

    fn offset_s(&self) -> i64 {
        if self.every_s.is_multiple_of(7 * DAY_S) { MONDAY_S } else { 0 }
    }

    /// What the volume keeps of how its last turn went.
    pub(crate) fn outcome(&self) -> RowChange {
        let key = failure_key_of(&self.name);
        match &self.failure {
            Some(why) => {
                let end = (0..=why.len().min(FAILURE_BYTES_MAX))
                    .rev()
                    .find(|at| why.is_char_boundary(*at))
                    .unwrap_or(0);
                RowChange::put(Table::Setting, key, why.as_bytes()[..end].to_vec())
            }
            None => RowChange::delete(Table::Setting, key),
        }
    }

    /// Returns when it has its next turn where the volume is mounted for writing then: now, or when
    /// its next period begins.
    #[must_use]
    pub fn next(&self, now: Timestamp) -> Timestamp {
        if self.last.is_none_or(|last| self.slot(now) > self.slot(last)) {
            return now;
        }
        let wait = i64::try_from(self.until_next(now).as_nanos()).unwrap_or(i64::MAX);
        Timestamp(now.0.saturating_add(wait))
    }

    /// Returns whether one is due; `ran` is when this process last had it run, on the steady clock.
    pub(crate) fn is_due(&self, now: ClockReading, ran: Option<Duration>) -> bool {
        let Some(last) = self.last else { return true };
        match self.slot(now.wall).cmp(&self.slot(last)) {
            Ordering::Greater => true,
            Ordering::Equal => false,
            Ordering::Less => Period(self.every_s)
                .wait_after_clock_went_back(ran.map(|ran| now.steady.saturating_sub(ran)))
                .is_zero(),
        }
    }

    /// How long until the next slot begins.
    pub(crate) fn until_next(&self, now: Timestamp) -> Duration {
        let begins_s = (self.slot(now) + 1)
            .saturating_mul(self.every_s.cast_signed())
            .saturating_add(self.offset_s());
        let nanos = i128::from(begins_s) * 1_000_000_000 - i128::from(now.0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }

    /// The name of the checkpoint that it makes now: `hourly-2026-11-21T15:00Z`; with a number
    /// where the clock went back and the name is taken.
    pub(crate) fn checkpoint_name(
        &self,
        now: Timestamp,
        is_taken: impl Fn(&[u8]) -> bool,
    ) -> Vec<u8> {
        let time = format_time(now);
        let (day, time) = (&time[..10], &time[11..16]);
        let plain = format!("{}-{day}T{time}Z", self.name);
        let numbered = (2u32..).map(|number| format!("{plain}.{number}"));
        let mut names = std::iter::once(plain.clone()).chain(numbered);
        names
            .find(|name| !is_taken(name.as_bytes()))
            .expect("there are more numbers than checkpoints")
            .into_bytes()
    }

    /// Returns whether a name is one that this schedule gives.
    pub(crate) fn gave(&self, name: &[u8]) -> bool {
        let rest = name.strip_prefix(self.name.as_bytes()).and_then(|rest| rest.strip_prefix(b"-"));
        let Some((time, number)) = rest.and_then(|rest| rest.split_at_checked(17)) else {
            return false;
        };
        let fits = |(byte, like): (&u8, &u8)| {
            if *like == b'0' { byte.is_ascii_digit() } else { byte == like }
        };
        let is_number = |number: &[u8]| {
            number
                .strip_prefix(b".")
                .is_some_and(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
        };
        time.iter().zip(b"0000-00-00T00:00Z").all(fits) && (number.is_empty() || is_number(number))
    }
}

pub(crate) fn key_of(name: &str) -> Vec<u8> {
    [SCHEDULE_PREFIX, name.as_bytes()].concat()
}

pub(crate) fn failure_key_of(name: &str) -> Vec<u8> {
    [FAILURE_PREFIX, name.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_S: u64 = 3600;

    fn hourly(last: Option<Timestamp>) -> Schedule {
        Schedule {
            name: "hourly".into(),
            every_s: HOUR_S,
            keep: 24,
            paths: vec!["/db".into(), "/wal".into()],
            last,
            failure: None,
        }
    }

    /// 2026-11-21 15:00:00 UTC, a Saturday, and some seconds.
    fn at(seconds: i64) -> Timestamp {
        Timestamp((1_795_273_200 + seconds) * 1_000_000_000)
    }

    fn moment(wall_s: i64, steady_s: u64) -> ClockReading {
        ClockReading { wall: at(wall_s), steady: Duration::from_secs(steady_s) }
    }

    #[test]
    fn rows_survive_encoding_and_hostile_ones_are_refused() {
        for last in [None, Some(at(5)), Some(Timestamp(-5))] {
            let schedule = hourly(last);
            assert_eq!(Schedule::decode(&schedule.key(), &schedule.encode()).unwrap(), schedule);
        }
        let (key, value) = (hourly(None).key(), hourly(None).encode());
        for len in 0..20 {
            assert!(Schedule::decode(&key, &value[..len]).is_err(), "{len}");
        }
        assert!(
            Schedule::decode(b"schedule.", &value).is_err()
                && Schedule::decode(b"schedule.\xff", &value).is_err()
        );
        assert!(
            Schedule::decode(b"schedule.a/b", &value).is_err()
                && Schedule::decode(b"other", &value).is_err()
        );
        assert!(Schedule::decode(&key, &[0; 20]).is_err(), "every 0 seconds");
    }

    /// S-80, S-81: see the name.
    #[test]
    fn s_81_one_is_due_a_slot_and_a_wrong_clock_makes_few() {
        let due = |last: i64, now: ClockReading, ran: Option<u64>| {
            hourly(Some(at(last))).is_due(now, ran.map(Duration::from_secs))
        };
        assert!(hourly(None).is_due(moment(0, 0), None), "the first at once");
        assert!(
            !due(0, moment(3599, 0), None)
                && due(0, moment(3600, 0), None)
                && due(3599, moment(3600, 1), Some(0))
        );
        assert!(due(0, moment(500 * 3600, 0), Some(0)), "missed ones are one");
        // Back: after half a period, or at once after a mount; a step over the edge of a slot makes
        // none.
        assert!(!due(0, moment(-1, 1), Some(0)) && !due(0, moment(-90_000, 1799), Some(0)));
        assert!(due(0, moment(-90_000, 1800), Some(0)) && due(0, moment(-90_000, 0), None));
        // A clock that jumps to and fro every minute for a day makes at most two in half a period.
        let (mut schedule, mut ran, mut made) = (hourly(None), None, 0);
        for minute in 0..1440u64 {
            let wall = if minute % 2 == 0 { 0 } else { -86_400 * 400 };
            let now = moment(wall + minute.cast_signed() * 60, minute * 60);
            if schedule.is_due(now, ran) {
                (schedule.last, ran, made) = (Some(now.wall), Some(now.steady), made + 1);
            }
        }
        assert!((24..=96).contains(&made), "{made}");
    }

    #[test]
    fn slots_begin_at_round_times_and_weeks_on_mondays() {
        assert_eq!(hourly(None).until_next(at(0)), Duration::from_secs(3600));
        assert_eq!(hourly(None).until_next(at(3599)), Duration::from_secs(1));
        assert_eq!(hourly(None).next(at(5)), at(5), "the first at once");
        assert_eq!(
            (hourly(Some(at(0))).next(at(5)), hourly(Some(at(0))).next(at(3605))),
            (at(3600), at(3605))
        );
        let weekly = Schedule { every_s: 7 * DAY_S, ..hourly(None) };
        assert_eq!(
            weekly.until_next(at(0)),
            Duration::from_secs(33 * HOUR_S),
            "from Saturday, 15:00, to Monday, 0:00"
        );
        assert_eq!(weekly.until_next(at(33 * 3600)), Duration::from_secs(7 * DAY_S));
    }

    #[test]
    fn names_tell_the_time_and_whose_they_are() {
        let schedule = hourly(None);
        assert_eq!(schedule.checkpoint_name(at(0), |_| false), b"hourly-2026-11-21T15:00Z");
        let taken = [&b"hourly-2026-11-21T15:00Z"[..], b"hourly-2026-11-21T15:00Z.2"];
        assert_eq!(
            schedule.checkpoint_name(at(59), |name| taken.contains(&name)),
            b"hourly-2026-11-21T15:00Z.3"
        );
        for name in [taken[0], taken[1], b"hourly-0001-99-99T99:99Z.12"] {
            assert!(schedule.gave(name));
        }
        for other in [
            "hourly",
            "hourly-",
            "hourly-x",
            "hourly-2026-11-21T15:00",
            "hourly-2026-11-21T15:00Z.",
            "hourly-2026-11-21T15:00Z.2x",
            "daily-2026-11-21T15:00Z",
            "hourly-2-2026-11-21T15:00Z",
            "xhourly-2026-11-21T15:00Z",
        ] {
            assert!(!schedule.gave(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_in_a_sentence() {
        let wrong = [
            Schedule { every_s: 59, ..hourly(None) },
            Schedule { keep: 0, ..hourly(None) },
            Schedule { name: "a/b".into(), ..hourly(None) },
            Schedule { name: "x".repeat(201), ..hourly(None) },
            Schedule { paths: vec!["x".repeat(40_000).into()], ..hourly(None) },
        ];
        for schedule in wrong {
            assert!(matches!(
                schedule.validate().unwrap_err().kind,
                ErrorKind::Invalid | ErrorKind::NameTooLong
            ));
        }
    }
}
