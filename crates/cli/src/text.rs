//! Small pieces of text that several commands print.

use bedplate::{FileKind, Timestamp};

/// Returns `1 record`, `2 records`.
pub fn count(n: u64, noun: &str) -> String {
    count_in(n, noun, &format!("{noun}s"))
}

/// As [`count`], of a noun with a plural of its own.
pub fn count_in(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Returns the type and permission bits as ls(1) writes them: `-rw-r--r--`.
pub fn permissions(kind: FileKind, mode: u32) -> String {
    let mut text = String::with_capacity(10);
    text.push(match kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
    });
    for (shift, special, set, unset) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => set,
            (true, false) => unset,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Returns a time in UTC to the second: `2026-11-20 16:30:00`.
pub fn time(timestamp: Timestamp) -> String {
    let seconds = timestamp.0.div_euclid(1_000_000_000);
    let (day, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(day);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// Returns year, month and day of a day counted from 1970-01-01 in the Gregorian calendar. Years begin in March, so that the leap day is last.
fn civil(day: i64) -> (i64, i64, i64) {
    const DAYS_OF_400_YEARS: i64 = 146_097;
    let shifted = day + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(DAYS_OF_400_YEARS), shifted.rem_euclid(DAYS_OF_400_YEARS));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day_of_year - (153 * month_from_march + 2) / 5 + 1)
}

/// Lays rows out in columns; the columns named in `right` are flushed right.
pub fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().enumerate().map(|(at, cell)| {
            let width = widths[at];
            if right.contains(&at) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
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
            assert_eq!(time(Timestamp(seconds * 1_000_000_000)), text);
        }
    }

    #[test]
    fn permissions_are_written_as_ls_does() {
        assert_eq!(permissions(FileKind::File, 0o644), "-rw-r--r--");
        assert_eq!(permissions(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(permissions(FileKind::File, 0o4601), "-rwS-----x");
    }

    #[test]
    fn a_table_has_no_blanks_at_the_ends_of_its_lines() {
        let rows = [vec!["a".into(), "10".into()], vec!["long".into(), "9".into()]];
        assert_eq!(table(&rows, &[1]), "a     10\nlong   9\n");
    }
}
