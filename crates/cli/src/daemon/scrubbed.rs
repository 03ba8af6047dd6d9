//! What is told of scrubs: what one found, and those on schedule.

use std::fmt;
use std::ops::Range;
use std::time::SystemTime;

use bedplate::{
    GroupConfig, Id, Role, ScrubFinding, ScrubReport, ScrubResult, ScrubSchedule, Timestamp,
    format_size, format_time,
};
use serde::{Deserialize, Serialize};

use crate::daemon::names::Names;
use crate::render::text::{self, one_line};

/// What a scrub found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Scrubbed {
    pub group: String,
    pub compared_bytes: u64,
    pub skipped_regions: u64,
    pub differences: Vec<Differing>,
}

/// Copies that differ.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Differing {
    pub volume: String,
    pub address: u64,
    pub len: u64,
    /// The file that lies there, with the page of the database where it is known; where parity does
    /// not say which of several it is, all of them.
    pub file: Option<String>,
    /// Member and offset of each copy.
    pub copies: Vec<(String, u64)>,
    pub unreadable: Vec<String>,
    /// The member whose copy is right, where that is known.
    pub right: Option<String>,
    /// Of a RAID-5 the member whose part of the row is wrong and where, as far as that is known,
    /// and whether that is the parity.
    #[serde(default)]
    pub wrong: Option<(String, u64)>,
    #[serde(default)]
    pub parity: bool,
    pub repaired: bool,
}

impl Scrubbed {
    pub fn new(config: &GroupConfig, report: ScrubReport, names: Option<&Names>) -> Self {
        let path = |index: usize| {
            config.members.get(index).map(|member| member.path.clone()).unwrap_or_default()
        };
        let differences = report.differences.into_iter().map(|difference| Differing {
            volume: difference.role.name().into(),
            address: difference.range.start,
            len: difference.range.end - difference.range.start,
            file: names.and_then(|names| files(names, difference.role, &difference.places)),
            copies: difference
                .copies
                .iter()
                .map(|(member, offset)| (path(*member), *offset))
                .collect(),
            unreadable: difference.unreadable.iter().map(|member| path(*member)).collect(),
            right: difference.right.map(path),
            wrong: difference
                .copies
                .iter()
                .find(|(member, _)| Some(*member) == difference.wrong)
                .map(|(member, offset)| (path(*member), *offset)),
            parity: difference.places.is_empty(),
            repaired: difference.repaired,
        });
        let differences = differences.collect();
        Self {
            group: config.name.clone(),
            compared_bytes: report.compared_bytes,
            skipped_regions: report.skipped_regions,
            differences,
        }
    }

    /// Returns how many differences are left as they were.
    pub fn left(&self) -> u64 {
        self.differences.iter().filter(|difference| !difference.repaired).count() as u64
    }
}

/// Returns what lies at places, each file once.
fn files(names: &Names, role: Role, places: &[Range<u64>]) -> Option<String> {
    let mut found: Vec<String> =
        places.iter().filter_map(|place| names.told_at(role, place.start)).collect();
    found.dedup();
    (!found.is_empty()).then(|| found.join(" or "))
}

impl fmt::Display for Differing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.file.as_deref().unwrap_or(if self.parity { "parity" } else { "no file" });
        write!(
            f,
            "{} address {}, {} bytes ({}): ",
            self.volume,
            self.address,
            self.len,
            one_line(place)
        )?;
        match (&self.right, &self.wrong, self.repaired) {
            (Some(right), _, true) => {
                write!(f, "{} is right, the others are mended from it", one_line(right))
            }
            (Some(right), _, false) => write!(f, "{} is right", one_line(right)),
            (None, Some((path, offset)), true) => write!(
                f,
                "{} at byte {offset} was wrong, made again from the others",
                one_line(path)
            ),
            (None, Some((path, offset)), false) => {
                write!(f, "{} at byte {offset} is wrong", one_line(path))
            }
            (None, None, _) => {
                let copies: Vec<String> = self
                    .copies
                    .iter()
                    .map(|(path, offset)| format!("{} at byte {offset}", one_line(path)))
                    .collect();
                write!(
                    f,
                    "it is not known which is right of {}; left as they are",
                    copies.join(" and ")
                )
            }
        }
    }
}

impl Differing {
    /// Returns whether another place begins where this one ends, and the same is to be said of
    /// both.
    fn is_followed_by(&self, next: &Self) -> bool {
        let shift = next.address.wrapping_sub(self.address);
        let follows = |own: &(String, u64), other: &(String, u64)| {
            own.0 == other.0 && own.1.wrapping_add(shift) == other.1
        };
        self.volume == next.volume
            && self.address + self.len == next.address
            && self.file == next.file
            && self.parity == next.parity
            && (&self.right, self.repaired) == (&next.right, next.repaired)
            && self.unreadable == next.unreadable
            && self.copies.len() == next.copies.len()
            && self.copies.iter().zip(&next.copies).all(|(own, other)| follows(own, other))
            && match (&self.wrong, &next.wrong) {
                (None, None) => true,
                (Some(own), Some(other)) => follows(own, other),
                _ => false,
            }
    }
}

/// Joins places that follow each other into one, so that a member that was overwritten is a line
/// and not thousands. Returns each with how many places it was.
fn runs(places: &[Differing]) -> Vec<(Differing, u64)> {
    let mut runs: Vec<(Differing, u64)> = Vec::new();
    for place in places {
        let joined = runs.last_mut().filter(|(run, _)| run.is_followed_by(place));
        match joined {
            Some((run, count)) => {
                run.len += place.len;
                *count += 1;
            }
            None => runs.push((place.clone(), 1)),
        }
    }
    runs
}

/// How many lines are told; a document has all.
const LINES_MAX: usize = 50;

impl fmt::Display for Scrubbed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = runs(&self.differences);
        for (run, count) in runs.iter().take(LINES_MAX) {
            let places = if *count > 1 { format!(" [{count} places]") } else { String::new() };
            writeln!(f, "{run}{places}")?;
        }
        if let Some(more) = runs.len().checked_sub(LINES_MAX).filter(|more| *more > 0) {
            writeln!(f, "and {} more: --json has all", text::count(more as u64, "run"))?;
        }
        if self.skipped_regions > 0 {
            writeln!(
                f,
                "{} were busy and not compared",
                text::count(self.skipped_regions, "region")
            )?;
        }
        let found = text::count(self.differences.len() as u64, "difference");
        write!(
            f,
            "group {}: {} compared, {found}, {} left",
            self.group,
            format_size(self.compared_bytes),
            self.left()
        )
    }
}

/// Scrubs on schedule. Times are in seconds since 1970.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ScrubStatus {
    pub every_s: u64,
    pub repair: bool,
    /// `waiting`, `running`, or `due`: it begins when the group is open and nothing else is copied.
    pub state: String,
    pub next_s: Option<u64>,
    pub begun_s: Option<u64>,
    /// How much the one that is under way has compared.
    pub compared_bytes: Option<u64>,
    pub last: Option<LastScrub>,
    /// Some places at which the one that is under way found differences.
    #[serde(default)]
    pub found: Vec<Differing>,
}

/// A scrub that ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LastScrub {
    pub ended_s: u64,
    pub compared_bytes: u64,
    pub skipped_regions: u64,
    pub differences: u64,
    pub left: u64,
    /// Some of the places, the first that were found.
    #[serde(default)]
    pub found: Vec<Differing>,
}

impl Differing {
    /// Tells of a place that was found earlier; of members that left since by their identity.
    fn of_finding(config: &GroupConfig, of: &ScrubFinding) -> Self {
        let path = |id: Id| {
            config
                .index_of(id)
                .map_or_else(|| id.to_string(), |index| config.members[index].path.clone())
        };
        let copies: Vec<(String, u64)> =
            of.copies.iter().map(|(member, offset)| (path(*member), *offset)).collect();
        let wrong = of.wrong.map(|wrong| {
            (
                path(wrong),
                of.copies
                    .iter()
                    .find(|(member, _)| *member == wrong)
                    .map_or(0, |(_, offset)| *offset),
            )
        });
        Self {
            volume: of.role.name().into(),
            address: of.range.start,
            len: of.range.end - of.range.start,
            file: of.lies.clone(),
            copies,
            unreadable: Vec::new(),
            right: of.right.map(path),
            wrong,
            parity: of.parity,
            repaired: of.repaired,
        }
    }
}

impl ScrubStatus {
    /// Tells of a group's schedule.
    pub fn of(config: &GroupConfig) -> Option<Self> {
        let found = |under_way: bool| {
            config
                .findings
                .iter()
                .filter(move |one| one.under_way == under_way)
                .map(|one| Differing::of_finding(config, one))
        };
        let mut status: Self = config.scrub?.into();
        status.found = found(true).collect();
        status.last.iter_mut().for_each(|last| last.found = found(false).collect());
        Some(status)
    }
}

impl From<ScrubSchedule> for ScrubStatus {
    fn from(of: ScrubSchedule) -> Self {
        let now_s =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let state = match (of.run, of.next_s()) {
            (Some(_), _) => "running",
            (None, Some(next_s)) if next_s > now_s => "waiting",
            (None, _) => "due",
        };
        let last = |last: ScrubResult| LastScrub {
            ended_s: last.ended_s,
            compared_bytes: last.totals.compared_bytes,
            skipped_regions: last.totals.skipped_regions,
            differences: last.totals.differences,
            left: last.totals.left,
            found: Vec::new(),
        };
        Self {
            every_s: of.every_s,
            repair: of.repair,
            state: state.to_owned(),
            next_s: of.next_s(),
            begun_s: of.begun_s,
            compared_bytes: of.run.map(|run| run.totals.compared_bytes),
            last: of.last.map(last),
            found: Vec::new(),
        }
    }
}

/// Writes seconds since 1970 as a time.
pub fn at(seconds: u64) -> String {
    format_time(Timestamp(i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000_000_000)))
}

/// Writes a period as it is given: in the largest unit of which it is a multiple.
fn period(seconds: u64) -> String {
    let units = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let unit = units.into_iter().find(|(unit, _)| seconds.is_multiple_of(*unit));
    unit.map_or_else(String::new, |(unit, name)| format!("{}{name}", seconds / unit))
}

impl fmt::Display for ScrubStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "scrub every {}{}, ",
            period(self.every_s),
            if self.repair { " with repair" } else { "" }
        )?;
        match (self.state.as_str(), self.next_s, self.compared_bytes) {
            ("running", _, bytes) => {
                write!(f, "running, {} compared", format_size(bytes.unwrap_or(0)))?;
            }
            ("waiting", Some(next_s), _) => write!(f, "next {}", at(next_s))?,
            _ => write!(f, "due")?,
        }
        for (found, _) in &runs(&self.found) {
            write!(f, "\n  found so far: {found}")?;
        }
        let Some(last) = &self.last else { return Ok(()) };
        let found = text::count(last.differences, "difference");
        let (lead, skipped) =
            (if self.found.is_empty() { "; " } else { "\n" }, last.skipped_regions);
        write!(
            f,
            "{lead}last ended {}: {} compared, {found}, {} left",
            at(last.ended_s),
            format_size(last.compared_bytes),
            last.left
        )?;
        if skipped > 0 {
            write!(f, ", {} too busy to compare", text::count(skipped, "region"))?;
        }
        for (found, _) in &runs(&last.found) {
            write!(f, "\n  found: {found}")?;
        }
        match last.differences.saturating_sub(last.found.len() as u64) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more: 'bedplate volume scrub' names what is left"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(address: u64, file: &str) -> Differing {
        Differing {
            volume: "data".into(),
            address,
            len: 256 << 10,
            file: Some(file.into()),
            copies: vec![("a".into(), address + 100), ("b".into(), address + 500)],
            unreadable: Vec::new(),
            right: None,
            wrong: None,
            parity: false,
            repaired: false,
        }
    }

    /// A member of 201 places that were overwritten took 201 lines.
    #[test]
    fn places_that_follow_each_other_are_one_line() {
        let unit = 256 << 10;
        let mut differences: Vec<Differing> = (0..200).map(|n| place(n * unit, "/db")).collect();
        differences.push(place(200 * unit, "/other"));
        differences.push(place(202 * unit, "/other"));
        let scrubbed = Scrubbed {
            group: "tank".into(),
            compared_bytes: 1 << 30,
            skipped_regions: 0,
            differences,
        };
        let told = scrubbed.to_string();
        assert_eq!(told.lines().count(), 4, "{told}");
        assert!(told.contains("address 0, 52428800 bytes (/db)") && told.contains("[200 places]"));
        assert!(told.contains("202 differences, 202 left"), "{told}");
        let mut elsewhere = place(unit, "/db");
        elsewhere.copies[1].1 += 1;
        assert_eq!(runs(&[place(0, "/db"), elsewhere]).len(), 2, "copies lie elsewhere");
    }
}
