//! What a group with many volumes is, and what is done to all of its volumes.

use std::fmt;

use bedplate::format_size;
use bedplate_serve::control::GroupRequest;
use serde::Serialize;

use super::Divided;
use super::change::volumes;
use crate::cmd::volume::show::status_of;
use crate::daemon::control::{self, Reply};
use crate::daemon::scrubbed::Scrubbed;
use crate::daemon::status::Status;
use crate::device::Access;
use crate::device::group::{self, holder};
use crate::failure::{Exit, Failure, Result};
use crate::render::output::Output;
use crate::render::{progress, text};

/// A group with many volumes as it is shown.
#[derive(Debug, Serialize)]
struct Shown {
    name: String,
    id: String,
    event: u64,
    members: Vec<MemberShown>,
    /// The volumes, each as 'volume show' tells it alone.
    volumes: Vec<Status>,
    /// Volumes of which no part was found.
    lost: Vec<String>,
}

#[derive(Debug, Serialize)]
struct MemberShown {
    id: String,
    path: String,
    found: bool,
    size_bytes: u64,
    free_bytes: u64,
    /// The member whose place it takes.
    replaces: Option<String>,
}

/// Shows a group; returns how the worst of its volumes is.
pub fn show(found: &Divided, output: &Output) -> Result<Exit> {
    all(found, output)
}

pub fn all(found: &Divided, output: &Output) -> Result<Exit> {
    let table = &found.table;
    let member = |member: &bedplate::TableMember| {
        let path = found.path_of(member.id);
        MemberShown {
            id: member.id.to_string(),
            path: path.map_or_else(|| member.path.clone(), |path| path.display().to_string()),
            found: path.is_some(),
            size_bytes: member.size_bytes,
            free_bytes: table.free_bytes(member.id),
            replaces: member.replaces.map(|id| id.to_string()),
        }
    };
    let (mut statuses, mut lost) = (Vec::new(), Vec::new());
    for volume in &table.volumes {
        match found.volume(volume) {
            Ok(located) => statuses.push(status_of(located)),
            Err(_) => lost.push(table.whole_name(&volume.name)),
        }
    }
    let is_missing = table.members.iter().any(|member| found.path_of(member.id).is_none());
    let exits = statuses.iter().map(Status::exit);
    let others = [(!lost.is_empty(), Exit::Broken), (is_missing, Exit::Failed)];
    let exits = exits.chain(others.into_iter().filter(|(is, _)| *is).map(|(_, exit)| exit));
    let worst = Exit::worst(exits);
    output.show(&Shown {
        name: table.name.clone(),
        id: table.id.to_string(),
        event: table.event,
        members: table.members.iter().map(member).collect(),
        volumes: statuses,
        lost,
    })?;
    Ok(worst)
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |len: usize, word| text::count(len as u64, word);
        let volumes = count(self.volumes.len() + self.lost.len(), "volume");
        writeln!(f, "group {}, {volumes} on {}", self.name, count(self.members.len(), "member"))?;
        let head = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let mut rows: Vec<Vec<String>> = vec![head(&["volume", "layout", "size", "state"])];
        for status in &self.volumes {
            let data = status.volumes.first();
            rows.push(vec![
                status.name.clone(),
                data.map_or_else(String::new, |data| data.layout.clone()),
                data.map_or_else(String::new, |data| format_size(data.size_bytes)),
                status.health().to_owned(),
            ]);
        }
        let lost = |name: &String| vec![name.clone(), String::new(), String::new(), "lost".into()];
        rows.extend(self.lost.iter().map(lost));
        writeln!(f, "\n{}", text::table(&rows, &[2]))?;
        let mut rows: Vec<Vec<String>> = vec![head(&["member", "size", "free", ""])];
        for member in &self.members {
            let state = match (member.found, &member.replaces) {
                (false, _) => "not found",
                (true, Some(_)) => "takes the place of another",
                (true, None) => "",
            };
            rows.push(vec![
                member.path.clone(),
                format_size(member.size_bytes),
                format_size(member.free_bytes),
                state.to_owned(),
            ]);
        }
        f.write_str(&text::table(&rows, &[1, 2]))
    }
}

/// Brings the copies of every volume into agreement and closes them in order.
pub fn export(found: &Divided, output: &Output) -> Result<()> {
    drop(found.lock()?);
    let all = volumes(found)?;
    for (name, located) in &all {
        if let Some(mount) = holder::mount_of(located) {
            let dir = mount.dir.display();
            let message =
                format!("volume {name} is mounted at {dir}: run 'bedplate unmount {dir}' first");
            return Err(Failure::new("busy", message));
        }
    }
    for (name, located) in all {
        let group = group::open(&located, Access::ReadWrite, false)?;
        control::lend_unmounted(&group);
        progress::during(output, "bringing members up to date", || group.sync())?;
        crate::device::close(Some(group))?;
        let closed = group::named(&located.members[0].0)?;
        if !closed.config.clean {
            let message = format!(
                "volume {name} could not be closed in order: one of its members fails; the volumes \
                 before it are closed"
            );
            return Err(Failure::new("unclean", message));
        }
    }
    self::all(found, output).map(drop)
}

#[derive(Serialize)]
struct AllScrubbed {
    volumes: Vec<Scrubbed>,
}

impl fmt::Display for AllScrubbed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<String> = self.volumes.iter().map(ToString::to_string).collect();
        f.write_str(&shown.join("\n\n"))
    }
}

/// Compares all copies of every volume that has more than one.
pub fn scrub(found: &Divided, repair: bool, output: &Output) -> Result<Exit> {
    let mut all = AllScrubbed { volumes: Vec::new() };
    for (_, located) in volumes(found)? {
        if !located.config.volumes.iter().any(|volume| volume.layout.is_redundant()) {
            continue;
        }
        let reply = progress::during(output, "comparing copies", || {
            control::request(&located, &GroupRequest::Scrub { repair })
        })?;
        if let Reply::Scrubbed(scrubbed) = reply {
            all.volumes.push(*scrubbed);
        }
    }
    if all.volumes.is_empty() {
        let group = &found.table.name;
        let message = format!("group {group} has no volume with more than one copy of everything");
        return Err(Failure::new("invalid", message));
    }
    let left: u64 = all.volumes.iter().map(Scrubbed::left).sum();
    output.show(&all)?;
    Ok(if left == 0 { Exit::Done } else { Exit::Broken })
}

#[derive(Serialize)]
struct AllStatistics {
    volumes: Vec<Status>,
}

impl fmt::Display for AllStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for status in &self.volumes {
            writeln!(f, "group {}, {}", status.name, status.health())?;
            writeln!(f, "{}", status.statistics())?;
        }
        Ok(())
    }
}

/// Tells what every volume did since it was opened.
pub fn stat(found: &Divided, reset: bool, output: &Output) -> Result<()> {
    let mut all = AllStatistics { volumes: Vec::new() };
    for (_, located) in volumes(found)? {
        if let Reply::Status(status) = control::request(&located, &GroupRequest::Status { reset })?
        {
            all.volumes.push(*status);
        }
    }
    output.show(&all)
}
