//! `bedplate checkpoint schedule add|list|remove`, `run-schedule`

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use bedplate::{Schedule, Timestamp, format_time};
use bedplate_serve::control::Request;
use clap::Subcommand;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::show::Checkpoint;
use crate::device::Access;
use crate::failure::{Failure, Result};
use crate::reach::{Reach, Target};
use crate::render::output::Output;
use crate::render::text;

const HOUR_S: u64 = 3600;

/// Schedules that need no period: name, period in seconds, how many are kept.
const KNOWN: [(&str, u64, u32); 4] = [
    ("hourly", HOUR_S, 24),
    ("daily", 24 * HOUR_S, 7),
    ("weekly", 7 * 24 * HOUR_S, 4),
    ("monthly", 30 * 24 * HOUR_S, 12),
];

#[derive(Debug, Subcommand)]
pub enum Action {
    /// Add a schedule, or change the one of that name
    Add {
        #[command(flatten)]
        target: Target,
        /// Its name, or rules as in 'hourly 24, daily 7, weekly 4'; hourly, daily, weekly and
        /// monthly need no period
        name: String,
        /// How often, as in 15m, 1h or 7d: at the multiples of it in UTC, weeks from Mondays
        #[arg(long, value_name = "DURATION", value_parser = bedplate::parse_duration)]
        every: Option<Duration>,
        /// How many of its checkpoints are kept; those marked with 'keep' do not count
        #[arg(long, value_name = "NUMBER")]
        keep: Option<u32>,
        /// A file or directory that its checkpoints are of; may be repeated; none: everything
        #[arg(long = "path", value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
    /// List the schedules
    List {
        #[command(flatten)]
        target: Target,
    },
    /// Remove a schedule; its checkpoints stay
    Remove {
        #[command(flatten)]
        target: Target,
        /// Its name
        name: String,
    },
}

/// A schedule as it stands. Times are in nanoseconds since 1970.
#[derive(Serialize)]
struct Listed {
    #[serde(flatten)]
    schedule: Schedule,
    /// Its next turn, where the volume is mounted then.
    next: Timestamp,
    /// It has its next turn as soon as the volume is mounted.
    due: bool,
}

#[derive(Serialize)]
struct Listing {
    schedules: Vec<Listed>,
}

#[derive(Serialize)]
struct Removed {
    removed: String,
}

#[derive(Serialize, Deserialize)]
struct Ran {
    made: Vec<Checkpoint>,
    deleted: Vec<String>,
    failures: Vec<String>,
}

pub fn run(action: &Action, output: &Output) -> Result<()> {
    match action {
        Action::Add { target, name, every, keep, paths } => {
            let reach = target.reach()?;
            for (name, every_s, keep) in rules(name, *every, *keep)? {
                let paths = paths.iter().map(|path| reach.inside(path)).collect();
                let request = Request::SetSchedule { name, every_s, keep, paths };
                reach
                    .ask::<Value>(&request, Access::ReadWrite, output)
                    .map_err(|failure| reach.with_places(failure))?;
            }
            list(&reach, output)
        }
        Action::List { target } => list(&target.reach()?, output),
        Action::Remove { target, name } => {
            target.reach()?.ask::<Value>(
                &Request::RemoveSchedule { name: name.clone() },
                Access::ReadWrite,
                output,
            )?;
            output.show(&Removed { removed: name.clone() })
        }
    }
}

/// Carries the schedules out once.
pub fn run_due(target: &Target, output: &Output) -> Result<()> {
    let ran: Ran = target.reach()?.ask(&Request::RunSchedules, Access::ReadWrite, output)?;
    output.show(&ran)?;
    match ran.failures.first() {
        None => Ok(()),
        Some(failure) => Err(Failure::new("schedule", failure.clone())),
    }
}

fn list(reach: &Reach, output: &Output) -> Result<()> {
    let (schedules, now): (Vec<Schedule>, _) =
        (reach.ask(&Request::Schedules, Access::ReadOnly, output)?, Timestamp::now());
    let listed = |schedule: Schedule| Listed {
        next: schedule.next(now),
        due: schedule.next(now) == now,
        schedule,
    };
    output.show(&Listing { schedules: schedules.into_iter().map(listed).collect() })
}

/// Returns name, period and number of each schedule that the arguments ask for.
fn rules(
    name: &str,
    every: Option<Duration>,
    keep: Option<u32>,
) -> Result<Vec<(String, u64, u32)>> {
    let known = |name: &str| KNOWN.iter().find(|(known, ..)| *known == name);
    if every.is_none() && keep.is_none() && name.contains([' ', ',']) {
        let rule = |rule: &str| match rule.split_whitespace().collect::<Vec<_>>()[..] {
            [name, keep] => match (known(name), keep.parse().ok()) {
                (Some((name, every_s, _)), Some(keep)) => Ok(((*name).to_owned(), *every_s, keep)),
                _ => Err(wrong_rule(rule)),
            },
            _ => Err(wrong_rule(rule)),
        };
        let rules = name.split(',').map(rule).collect::<Result<Vec<_>>>()?;
        if let Some(twice) = rules
            .iter()
            .enumerate()
            .find(|(at, (name, ..))| rules[..*at].iter().any(|(other, ..)| other == name))
        {
            return Err(Failure::usage(format!("'{}' is given twice", twice.1.0)));
        }
        return Ok(rules);
    }
    let (every_s, keep) = match (every, keep, known(name)) {
        (Some(every), Some(keep), _) => (every.as_secs(), keep),
        (every, keep, Some((_, every_s, number))) => {
            (every.map_or(*every_s, |every| every.as_secs()), keep.unwrap_or(*number))
        }
        _ => {
            return Err(Failure::usage(format!(
                "schedule '{name}' needs --every and --keep: only hourly, daily, weekly and \
                 monthly go without"
            )));
        }
    };
    Ok(vec![(name.to_owned(), every_s, keep)])
}

fn wrong_rule(rule: &str) -> Failure {
    Failure::usage(format!(
        "'{}' is no rule: a rule is hourly, daily, weekly or monthly and a number, as in 'hourly \
         24, daily 7'",
        rule.trim()
    ))
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Schedule { name, every_s, keep, paths, last, failure } = &self.schedule;
        let shown: Vec<_> = paths.iter().map(text::name).collect();
        let of = if shown.is_empty() { "everything".to_owned() } else { shown.join(", ") };
        let at = |time: Timestamp| format!("{} UTC", format_time(time));
        let last = last.map_or_else(|| "not yet".to_owned(), at);
        let next = if self.due { "due".to_owned() } else { format!("next {}", at(self.next)) };
        write!(
            f,
            "{}: every {}, keeps {keep}, of {of}, last {last}, {next}",
            name.escape_debug(),
            period(*every_s)
        )?;
        failure.as_ref().map_or(Ok(()), |why| {
            write!(f, "\n  the last made no checkpoint: {}", text::one_line(why))
        })
    }
}

/// Writes a period in the largest unit that it is a multiple of.
fn period(seconds: u64) -> String {
    let units = [(24 * HOUR_S, "d"), (HOUR_S, "h"), (60, "min")];
    let unit = units.iter().find(|(unit, _)| seconds.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{seconds} s"), |(unit, name)| format!("{} {name}", seconds / unit))
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.schedules.is_empty() {
            return f.write_str("no schedules");
        }
        self.schedules.iter().try_for_each(|schedule| writeln!(f, "{schedule}"))
    }
}

impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "removed schedule {}; its checkpoints stay", self.removed)
    }
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.made.is_empty() && self.deleted.is_empty() {
            return f.write_str("nothing was due");
        }
        self.made.iter().try_for_each(|made| writeln!(f, "made {made}"))?;
        self.deleted.iter().try_for_each(|name| writeln!(f, "deleted {}", name.escape_debug()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_written_as_people_say_them() {
        for (seconds, text) in [
            (3600, "1 h"),
            (900, "15 min"),
            (7 * 24 * HOUR_S, "7 d"),
            (90, "90 s"),
            (5400, "90 min"),
        ] {
            assert_eq!(period(seconds), text);
        }
    }

    #[test]
    fn rules_are_read_as_people_write_them() {
        let read = |name: &str| rules(name, None, None).map_err(|failure| failure.kind);
        let hourly = ("hourly".to_owned(), 3600, 24);
        assert_eq!(read("hourly").unwrap(), std::slice::from_ref(&hourly));
        assert_eq!(read("hourly 24, daily 9").unwrap(), [hourly, ("daily".to_owned(), 86_400, 9)]);
        let minutes = Duration::from_secs(900);
        assert_eq!(rules("often", Some(minutes), Some(3)).unwrap(), [("often".to_owned(), 900, 3)]);
        assert_eq!(rules("hourly", None, Some(3)).unwrap(), [("hourly".to_owned(), 3600, 3)]);
        for wrong in [
            "often",
            "often 3",
            "hourly x",
            "hourly 3 4",
            "hourly 3,,daily 2",
            "hourly 3, hourly 4",
        ] {
            assert_eq!(read(wrong), Err("usage".to_owned()), "{wrong}");
        }
    }
}
