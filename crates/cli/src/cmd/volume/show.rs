//! `bedplate volume list|show|stat`

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate::{format_size, parse_duration};
use bedplate_serve::control::GroupRequest;
use clap::Args;
use serde::Serialize;

use super::many;
use crate::daemon::control::{self, Reply};
use crate::daemon::status::{SPLIT, Status};
use crate::device::group::{self, Located};
use crate::failure::{Exit, Failure, Result};
use crate::render::output::Output;
use crate::render::text;

/// List the groups on block devices, in BEDPLATE_DEVICES and in directories
///
/// Ends with exit code 0 where all are whole or split, 1 where one is degraded or being rebuilt, 4 where one
/// is broken or refused.
#[derive(Debug, Args)]
pub struct ListArguments {
    /// Directories with image files; the present one when none is named
    directories: Vec<PathBuf>,
}

/// Show a group: its layout, its members and their states
///
/// Ends with exit code 0 where the group is whole or split, 1 where it is degraded or being rebuilt, 4 where
/// it is broken or refused.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Any member, group:NAME, or where it is mounted
    group: PathBuf,
}

/// Tell what the volumes, plexes and members of a group did since it was opened: operations, times,
/// errors; how busy each member was, and how deep its queue
#[derive(Debug, Args)]
pub struct StatArguments {
    /// Any member, group:NAME, or where it is mounted
    group: PathBuf,
    /// Set the statistics to zero afterwards
    #[arg(long)]
    reset: bool,
    /// Tell again in such intervals what was done in each, until interrupted or --count is reached
    #[arg(long, value_name = "TIME", value_parser = interval)]
    interval: Option<Duration>,
    /// How often to tell
    #[arg(long, value_name = "N", requires = "interval")]
    count: Option<u64>,
}

/// Reads a duration that is longer than nothing; a bare number is seconds.
fn interval(text: &str) -> std::result::Result<Duration, String> {
    parse_duration(text).and_then(|read| {
        if read.is_zero() { Err("an interval is longer than nothing".to_owned()) } else { Ok(read) }
    })
}

#[derive(Serialize)]
struct Groups {
    groups: Vec<Status>,
}

pub fn list(arguments: &ListArguments, output: &Output) -> Result<Exit> {
    let here = [PathBuf::from(".")];
    let directories =
        if arguments.directories.is_empty() { &here[..] } else { &arguments.directories };
    if let Some(wrong) = directories.iter().find(|directory| !directory.is_dir()) {
        let message = format!(
            "{} is no directory: 'bedplate volume show' takes a member of a group",
            wrong.display()
        );
        return Err(Failure::new("not_found", message));
    }
    let closed = |located: &Located| Status {
        refused: group::why_not(located).filter(|_| !group::holder::is_open(located)),
        ..of_labels(located)
    };
    let groups: Vec<Status> = group::all(directories)?.iter().map(closed).collect();
    let worst = Exit::worst(groups.iter().map(Status::exit));
    output.show(&Groups { groups })?;
    Ok(worst)
}

/// Tells of a group by its labels, with the paths at which the members are now.
fn of_labels(located: &Located) -> Status {
    let mut status = Status::from_config(&located.config);
    for member in &mut status.members {
        match located.members.iter().find(|(_, label)| label.member.to_string() == member.id) {
            Some((path, _)) => member.path = path.display().to_string(),
            None => member.found = !member.lies_on.is_empty() || member.state == SPLIT,
        }
    }
    status
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    shown(&arguments.group, output)
}

/// Shows a group; returns how it is.
pub fn shown(path: &Path, output: &Output) -> Result<Exit> {
    if let Some(found) = group::divided(path)? {
        return many::show(&found, output);
    }
    let status = status_of(group::named(path)?);
    output.show(&status)?;
    Ok(status.exit())
}

/// Tells of a group as it is now, whether a process has it open or not.
pub fn status_of(mut located: Located) -> Status {
    let live = control::ask_if_open(&located);
    if live.is_some() {
        // A member may have left because it was asked.
        let again = located.members.first().map(|(path, _)| group::named(path));
        located = again.and_then(Result::ok).unwrap_or(located);
    }
    let mut status = of_labels(&located);
    if let Some(live) = live {
        (status.pending_bytes, status.pending_seconds) = (live.pending_bytes, live.pending_seconds);
        (status.pending_bytes_per_second, status.foreground_found_percent) =
            (live.pending_bytes_per_second, live.foreground_found_percent);
        status.notes = live.notes;
        for member in &mut status.members {
            live.members
                .iter()
                .find(|other| other.id == member.id)
                .into_iter()
                .for_each(|live| member.state.clone_from(&live.state));
        }
        for (volume, live) in status.volumes.iter_mut().zip(live.volumes) {
            volume.relayout = live.relayout;
        }
    } else if !group::holder::is_open(&located) {
        status.refused = group::why_not(&located);
    }
    status
}

pub fn stat(arguments: &StatArguments, output: &Output) -> Result<()> {
    if let Some(found) = group::divided(&arguments.group)? {
        if arguments.interval.is_some() {
            return Err(found.name_a_volume());
        }
        return many::stat(&found, arguments.reset, output);
    }
    let located = group::named(&arguments.group)?;
    let mut before: Option<Status> = None;
    for round in 1.. {
        if let Reply::Status(status) =
            control::request(&located, &GroupRequest::Status { reset: arguments.reset })?
        {
            // The first tells everything since the import or the last reset.
            output.show(&Stat(
                before
                    .as_ref()
                    .map_or_else(|| (*status).clone(), |before| status.clone().since(before)),
            ))?;
            before = Some(*status).filter(|_| !arguments.reset);
        }
        let Some(interval) =
            arguments.interval.filter(|_| arguments.count.is_none_or(|count| round < count))
        else {
            break;
        };
        std::thread::sleep(interval);
    }
    Ok(())
}

#[derive(Serialize)]
#[serde(transparent)]
struct Stat(Status);

impl fmt::Display for Stat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "group {}, {}", self.0.name, self.0.health())?;
        f.write_str(&self.0.statistics())?;
        self.0.scrub.as_ref().map_or(Ok(()), |scrub| writeln!(f, "{scrub}"))
    }
}

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.groups.is_empty() {
            return write!(f, "no groups found");
        }
        let row = |status: &Status| {
            let data = status.volumes.iter().find(|volume| volume.role == "data");
            let first = status.members.first().map_or(String::new(), |member| member.path.clone());
            let (layout, size) = data
                .map_or((String::new(), 0), |volume| (volume.layout.clone(), volume.size_bytes));
            vec![
                status.name.clone(),
                layout,
                format_size(size),
                status.members.len().to_string(),
                status.health().to_owned(),
                first,
            ]
        };
        let head = ["group", "layout", "size", "members", "state", "first member"]
            .map(String::from)
            .to_vec();
        let rows: Vec<Vec<String>> =
            std::iter::once(head).chain(self.groups.iter().map(row)).collect();
        f.write_str(&text::table(&rows, &[2, 3]))
    }
}
