//! Which backups a rule of retention keeps: a pure function of what they are of.

use std::collections::BTreeSet;

use crate::manifest::Header;

/// How many backups are kept of each kind. A day, a week (from Monday) or a month counts where it
/// has a backup, and the newest of it is kept; by UTC.
#[derive(Debug, Clone, Copy, Default)]
pub struct Retention {
    /// The newest.
    pub last: usize,
    /// One for each of the newest days.
    pub daily: usize,
    /// One for each of the newest weeks.
    pub weekly: usize,
    /// One for each of the newest months.
    pub monthly: usize,
}

/// Tells which period a time in nanoseconds lies in.
type Period = fn(i64) -> i64;

/// Returns the days since 1970 of a time in nanoseconds.
fn day(created: i64) -> i64 {
    created.div_euclid(86_400_000_000_000)
}

/// Returns the number of the week, which begins on Monday: 1970 began on a Thursday.
fn week(created: i64) -> i64 {
    (day(created) + 3).div_euclid(7)
}

/// Returns the number of the month in the Gregorian calendar.
fn month(created: i64) -> i64 {
    // Years begin in March here, so that the day that comes every fourth year is the last.
    let days = day(created) + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    (era * 400 + year) * 12 + (5 * of_year + 2) / 153
}

impl Retention {
    /// Returns the names of the backups that are not kept, oldest first. Each volume counts by
    /// itself. With any count the newest of a volume is kept.
    pub fn expired(&self, backups: &[Header]) -> Vec<String> {
        let mut newest_first: Vec<&Header> = backups.iter().collect();
        newest_first.sort_by_key(|backup| std::cmp::Reverse((backup.created, backup.epoch)));
        let volumes: BTreeSet<&str> = backups.iter().map(|backup| &*backup.volume).collect();
        let mut kept = BTreeSet::new();
        for volume in volumes {
            let of: Vec<&Header> =
                newest_first.iter().copied().filter(|backup| backup.volume == volume).collect();
            kept.extend(of.iter().take(self.last).map(|backup| &*backup.name));
            let periods: [(usize, Period); 3] =
                [(self.daily, day), (self.weekly, week), (self.monthly, month)];
            for (count, period) in periods {
                let mut seen = BTreeSet::new();
                let is_newest = |backup: &&&Header| seen.insert(period(backup.created));
                kept.extend(of.iter().filter(is_newest).take(count).map(|backup| &*backup.name));
            }
        }
        let expired = newest_first.iter().rev().filter(|backup| !kept.contains(&*backup.name));
        expired.map(|backup| backup.name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000_000_000;
    /// Monday, 2026-11-23, 12:00 UTC.
    const NOON: i64 = 1_795_435_200_000_000_000;

    fn header(name: &str, volume: &str, created: i64) -> Header {
        Header {
            format: 2,
            name: name.into(),
            volume: volume.into(),
            checkpoint: b"c".to_vec().into(),
            epoch: 1,
            created,
            base: None,
        }
    }

    fn kept(rule: Retention, backups: &[Header]) -> Vec<String> {
        let expired = rule.expired(backups);
        let kept = backups.iter().map(|backup| backup.name.clone());
        kept.filter(|name| !expired.contains(name)).collect()
    }

    #[test]
    fn days_weeks_and_months_begin_when_the_calendar_says() {
        let monday = NOON - 12 * HOUR;
        assert_eq!((day(monday) - day(monday - 1), week(monday) - week(monday - 1)), (1, 1));
        assert_eq!(
            (week(NOON + 156 * HOUR), week(NOON + 155 * HOUR)),
            (week(NOON) + 1, week(NOON))
        );
        // 1 December 2026 is a week and a day later; February 2028 has 29 days.
        let december = monday + 8 * 24 * HOUR;
        assert_eq!((month(december), month(december - 1)), (month(NOON) + 1, month(NOON)));
        let leap_day = monday + 463 * 24 * HOUR;
        assert_eq!(month(leap_day), month(NOON) + 15, "2028-02-29");
        assert_eq!(month(leap_day + 24 * HOUR), month(NOON) + 16, "2028-03-01");
        assert_eq!((day(-1), month(-1) + 1), (-1, month(0)));
    }

    /// S-232: four backups a day for a hundred days: each rule keeps the newest of each of its
    /// newest periods, and together they keep what any of them does.
    #[test]
    fn s_232_each_rule_keeps_the_newest_of_its_periods() {
        let backups: Vec<Header> =
            (0..400).map(|n| header(&format!("b{n}"), "v", NOON - (399 - n) * 6 * HOUR)).collect();
        let rule = Retention::default();
        assert_eq!(
            kept(Retention { last: 3, ..rule }, &backups),
            ["b397", "b398", "b399"],
            "S-232"
        );
        let daily = kept(Retention { daily: 3, ..rule }, &backups);
        // 12:00 today; 18:00 yesterday, and the day before.
        assert_eq!(daily, ["b392", "b396", "b399"], "S-232");
        let weekly = kept(Retention { weekly: 2, ..rule }, &backups);
        assert_eq!(weekly, ["b396", "b399"], "S-232: Sunday evening is of the week before");
        let monthly = kept(Retention { monthly: 9, ..rule }, &backups);
        assert_eq!(monthly.len(), 4, "S-232: August to November: {monthly:?}");
        let all = kept(Retention { last: 3, daily: 3, weekly: 2, monthly: 9 }, &backups);
        let mut expected: BTreeSet<String> =
            daily.into_iter().chain(weekly).chain(monthly).collect();
        expected.extend(["b397", "b398"].map(String::from));
        assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), expected, "S-232");
    }

    /// S-232: what is kept of one volume takes no place of another.
    #[test]
    fn s_232_each_volume_counts_by_itself() {
        let backups =
            [header("a", "v", NOON), header("b", "w", NOON - HOUR), header("c", "v", NOON - HOUR)];
        let rule = Retention { last: 1, ..Retention::default() };
        assert_eq!(rule.expired(&backups), ["c"], "S-232");
    }
}
