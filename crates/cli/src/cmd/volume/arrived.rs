//! `bedplate volume identify` and `bedplate volume arrived`: what udev and systemd ask when a
//! device appears.
//!
//! ```text
//!   udev: a block device ─► identify ─► bedplate-member@DEVICE.service ─► arrived --start
//!                               no label: nothing          members missing: told, nothing else
//!                                                          else: bedplate@NAME.service of each
//!                                                          volume of the group that is enabled
//! ```

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use serde::Serialize;

use crate::device::group::Located;
use crate::device::{group, place};
use crate::failure::{Failure, Result, plain};
use crate::render::output::Output;
use crate::render::text;

/// Tell which group a device is a member of, as udev reads it
///
/// Prints BEDPLATE_GROUP and BEDPLATE_MEMBER. Ends with exit code 1 where the device is a member of
/// none. Nothing is claimed, and no other device is looked at.
#[derive(Debug, Args)]
pub struct IdentifyArguments {
    /// The device
    device: PathBuf,
}

/// Say whether all members of a device's group are there, and start its volumes
///
/// Volumes are those whose file in the configuration says VOLUME=group:NAME, or names a member; the
/// unit bedplate@FILE.service mounts them (docs/guide/groups.md).
#[derive(Debug, Args)]
pub struct Arguments {
    /// A member that appeared
    device: PathBuf,
    /// Start the units of the group's volumes, where they are enabled
    #[arg(long)]
    start: bool,
    /// Where the files of volumes are
    #[arg(long, value_name = "DIR", default_value = "/etc/bedplate")]
    config: PathBuf,
}

#[derive(Debug, Serialize)]
struct Identity {
    group: String,
    member: String,
}

#[derive(Debug, Serialize)]
struct Arrival {
    group: String,
    /// Members that are here, and that the group has.
    found: usize,
    members: usize,
    /// Why the group cannot be opened yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits: Option<String>,
    units: Vec<Unit>,
}

/// What came of the volumes of a group with many.
#[derive(Debug, Serialize)]
struct Arrivals {
    volumes: Vec<Arrival>,
}

/// A unit that mounts a volume of the group.
#[derive(Debug, Serialize)]
struct Unit {
    name: String,
    enabled: bool,
    started: bool,
}

pub fn identify(arguments: &IdentifyArguments, output: &Output) -> Result<()> {
    let device = &arguments.device;
    if let Some(found) = group::divided(device)? {
        let path = place::whole(device)?;
        let member = found.members.iter().find(|(_, other)| *other == path);
        let member = member.map(|(id, _)| id.to_string()).ok_or_else(|| no_member(device))?;
        return output.show(&Identity { group: found.table.name, member });
    }
    let label = group::label_of(device)?.ok_or_else(|| no_member(device))?;
    let (group, member) = (label.config.name.clone(), label.member.to_string());
    output.show(&Identity { group, member })
}

fn no_member(device: &Path) -> Failure {
    Failure::new("not_a_member", format!("{} carries no label of a group", device.display()))
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let device = &arguments.device;
    if let Some(found) = group::divided(device)? {
        let volumes = found.table.volumes.iter().filter_map(|volume| found.volume(volume).ok());
        let volumes = volumes.map(|located| arrival_of(&located, arguments));
        return output.show(&Arrivals { volumes: volumes.collect::<Result<_>>()? });
    }
    let located = group::of_member(device)?.ok_or_else(|| no_member(device))?;
    output.show(&arrival_of(&located, arguments)?)
}

/// Starts the units of a group, where all that it needs is there.
fn arrival_of(located: &Located, arguments: &Arguments) -> Result<Arrival> {
    let mut arrival = Arrival {
        group: located.config.name.clone(),
        found: located.members.len(),
        members: located.config.members.iter().filter(|member| !member.is_vacant()).count(),
        waits: if group::holder::is_open(located) { None } else { group::why_not(located) },
        units: Vec::new(),
    };
    if arrival.waits.is_none() {
        let paths: Vec<&Path> = located.members.iter().map(|(path, _)| path.as_path()).collect();
        for name in units(&arguments.config, &arrival.group, &paths)? {
            let enabled = arguments.start && systemctl(&["is-enabled", "--quiet", &name])?;
            // It may have been tried in vain too often while members were missing.
            let _ = enabled && systemctl(&["reset-failed", &name])?;
            let started = enabled && systemctl(&["start", "--no-block", &name])?;
            arrival.units.push(Unit { name, enabled, started });
        }
    }
    Ok(arrival)
}

/// Returns the units of all volumes of a group.
fn units(config: &Path, group: &str, members: &[&Path]) -> Result<Vec<String>> {
    let failed = |e: std::io::Error| Failure::system("list", config, &e);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(config).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        if path.extension().is_some_and(|end| end == "conf")
            && let Ok(text) = std::fs::read_to_string(&path)
            && volume_of(&text).is_some_and(|volume| is_of(&volume, group, members))
        {
            found.push(format!("bedplate@{name}.service"));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Returns the volume that a file of settings names, as systemd reads it: the last line counts, and
/// quotes around the value are none of it.
fn volume_of(text: &str) -> Option<String> {
    let value = text.lines().rev().find_map(|line| line.trim().strip_prefix("VOLUME="))?.trim();
    let quoted = |quote| value.strip_prefix(quote)?.strip_suffix(quote);
    Some(quoted('"').or_else(|| quoted('\'')).unwrap_or(value).to_owned())
}

fn is_of(volume: &str, group: &str, members: &[&Path]) -> bool {
    if let Some(name) = volume.strip_prefix("group:") {
        return name == group;
    }
    place::whole(Path::new(volume)).is_ok_and(|path| members.contains(&path.as_path()))
}

/// Asks systemd; returns whether it says yes.
fn systemctl(words: &[&str]) -> Result<bool> {
    let done =
        Command::new("systemctl").args(words).stdin(Stdio::null()).output().map_err(|e| {
            Failure::new("unavailable", format!("systemctl cannot be started: {}", plain(&e)))
        })?;
    Ok(done.status.success())
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A value of udev is a line of its own.
        let group: String =
            self.group.chars().map(|c| if c.is_control() { '_' } else { c }).collect();
        write!(f, "BEDPLATE_GROUP={group}\nBEDPLATE_MEMBER={}", self.member)
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<String> = self.volumes.iter().map(ToString::to_string).collect();
        f.write_str(&shown.join("\n"))
    }
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, found, members, waits, units } = self;
        write!(f, "group {group}: {found} of {}", text::count(*members as u64, "member"))?;
        if let Some(why) = waits {
            return write!(f, "; it waits: {why}");
        }
        if units.is_empty() {
            return write!(f, "; no volume of it is configured");
        }
        units.iter().try_for_each(|Unit { name, enabled, started }| match (enabled, started) {
            (_, true) => write!(f, "; {name} starts"),
            (true, false) => write!(f, "; {name} did not start"),
            (false, false) => write!(f, "; {name} mounts it"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_volume_of_a_file_of_settings_is_what_systemd_reads() {
        assert_eq!(
            volume_of("# VOLUME=/no\nVOLUME=/a\nVOLUME=\"group:db\"\n").unwrap(),
            "group:db"
        );
        assert_eq!(volume_of(" VOLUME='/a b' \nDIRECTORY=/m\n").unwrap(), "/a b");
        assert_eq!(volume_of("DIRECTORY=/m\n"), None);
    }

    #[test]
    fn the_name_of_a_group_is_one_line_of_udev() {
        let (group, member) = ("a\nSYSTEMD_WANTS=x".to_owned(), "m".to_owned());
        let shown = Identity { group, member }.to_string();
        assert_eq!(shown, "BEDPLATE_GROUP=a_SYSTEMD_WANTS=x\nBEDPLATE_MEMBER=m");
    }
}
