//! Times as the calendar has them, in UTC.

use crate::Timestamp;

/// Returns a time in UTC to the second: `2026-11-20 16:30:00`.
#[must_use]
pub fn format_time(timestamp: Timestamp) -> String {
    let seconds = timestamp.0.div_euclid(1_000_000_000);
    let (day, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(day);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// Returns year, month and day of a day counted from 1970-01-01 in the Gregorian calendar. Years
/// begin in March, so that the leap day is last.
fn civil(day: i64) -> (i64, i64, i64) {
    const DAYS_OF_400_YEARS: i64 = 146_097;
    let shifted = day + 719_468;
    let (era, day_of_era) =
        (shifted.div_euclid(DAYS_OF_400_YEARS), shifted.rem_euclid(DAYS_OF_400_YEARS));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (
        era * 400 + year_of_era + i64::from(month <= 2),
        month,
        day_of_year - (153 * month_from_march + 2) / 5 + 1,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_the_calendar_has_them() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_795_192_200, "2026-11-20 16:30:00"),
            (-1, "1969-12-31 23:59:59"),
            (4_107_542_399, "2100-02-28 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(format_time(Timestamp(seconds * 1_000_000_000)), text);
        }
    }
}
