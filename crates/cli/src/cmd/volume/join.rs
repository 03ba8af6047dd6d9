//! `bedplate volume join`

use std::fmt;
use std::path::{Path, PathBuf};

use bedplate::{Group, ImportOptions, JoinHalf, JoinPlan, format_size};
use clap::Args;
use serde::Serialize;

use crate::daemon::control;
use crate::daemon::halves::time;
use crate::daemon::status::Status;
use crate::device::group::{self, Located, holder};
use crate::device::{Access, place};
use crate::failure::{Failure, Result};
use crate::render::output::Output;
use crate::render::{progress, text};

/// Make the halves of a mirror that was split one mirror again
///
/// The half that is not kept is written over: what it wrote since the split is lost. Only regions that
/// one of the two wrote to are copied, in the background of the next mount if this is interrupted.
/// The group has the name of GROUP then, and the content of the half that is kept. Both must be
/// unmounted.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The group that was split: any member, its name, or group:NAME
    group: PathBuf,
    /// The half that was split off: its name, group:NAME, or its devices
    #[arg(required = true, value_name = "NAME|DEVICE")]
    half: Vec<PathBuf>,
    /// The half whose content is kept, as it is named here
    #[arg(long, value_name = "GROUP|NAME")]
    keep: String,
    /// Tell what would be lost and copied, and write nothing
    #[arg(long)]
    dry_run: bool,
}

/// What a join does, or would do.
#[derive(Debug, Serialize)]
struct Joined {
    kept: Side,
    lost: Side,
    split_s: u64,
    copied_bytes: u64,
    total_bytes: u64,
    /// The group that came of it; none of a dry run.
    group: Option<Status>,
}

#[derive(Debug, Serialize)]
struct Side {
    name: String,
    changed_regions: u64,
    changed_bytes: u64,
    changed_s: u64,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let one = named(&arguments.group)?;
    super::many::refuse_part(&one, "a join", "it has no half")?;
    if let Some(split) = one.config.split.as_ref().filter(|split| split.joins) {
        // What is kept is decided; the other name is that of the half which was not.
        if arguments.keep == split.name {
            let kept = &one.config.name;
            return Err(Failure::new(
                "invalid",
                format!(
                    "a join into {kept} that keeps the other half has begun: it can only be ended"
                ),
            ));
        }
        return go_on(&one, arguments.dry_run, output);
    }
    let half = of_devices(&arguments.half)?;
    if one.config.id == half.config.id {
        let (half, group) = (arguments.half[0].display(), &one.config.name);
        return Err(Failure::new(
            "invalid",
            format!("{half} is the group {group} itself, or a member of it, and no half of it"),
        ));
    }
    refuse_mounted(&one)?;
    refuse_mounted(&half)?;
    let (kept, lost) = match keeps_first(arguments, &one, &half)? {
        true => (&one, &half),
        false => (&half, &one),
    };
    let access = if arguments.dry_run { Access::ReadOnly } else { Access::ReadWrite };
    let (keeps, gives) = (group::claimed(kept, access)?, group::claimed(lost, access)?);
    let plan = Group::plan_join(&keeps, &gives)?;
    if arguments.dry_run {
        return output.show(&Joined::new(plan, None));
    }
    let options = ImportOptions { background: false, ..ImportOptions::default() };
    let group = Group::join(&keeps, &gives, &one.config.name, &options)?;
    drop((keeps, gives));
    control::lend_unmounted(&group);
    progress::during(output, "copying what the halves differ in", || group.sync())?;
    output.show(&Joined::new(plan, Some(Status::of(&group))))
}

/// Ends a join that was interrupted.
fn go_on(located: &Located, dry_run: bool, output: &Output) -> Result<()> {
    if dry_run {
        return output.show(&Status::from_config(&located.config));
    }
    let group = group::open(located, Access::ReadWrite, false)?;
    control::lend_unmounted(&group);
    progress::during(output, "copying what the halves differ in", || group.sync())?;
    output.show(&Status::of(&group))
}

/// Finds a group by a path, as `group:NAME`, or by its name alone.
fn named(name: &Path) -> Result<Located> {
    match name.to_str() {
        Some(plain) if !plain.contains([':', '/']) && !name.exists() => group::by_name(plain),
        _ => group::named(name),
    }
}

/// Finds the half that is named by its name or by its devices, which may be anywhere.
fn of_devices(names: &[PathBuf]) -> Result<Located> {
    let mut half = named(&names[0])?;
    for name in &names[1..] {
        let path = place::whole(name)?;
        let label = group::label_of(&path)?.filter(|label| label.config.id == half.config.id);
        let label = label.ok_or_else(|| {
            let (path, group) = (path.display(), &half.config.name);
            Failure::new("foreign_member", format!("{path} is no member of the group {group}"))
        })?;
        if !half.members.iter().any(|(known, _)| *known == path) {
            half.members.push((path, label));
        }
    }
    Ok(half)
}

fn refuse_mounted(located: &Located) -> Result<()> {
    let Some(mount) = holder::mount_of(located) else { return Ok(()) };
    let (group, dir) = (&located.config.name, mount.dir.display());
    Err(Failure::new(
        "busy",
        format!("group {group} is mounted at {dir}: run 'bedplate unmount {dir}' first"),
    ))
}

/// Says whether the first of the two is kept.
fn keeps_first(arguments: &Arguments, one: &Located, half: &Located) -> Result<bool> {
    let keep = &arguments.keep;
    let plain = keep.strip_prefix("group:").unwrap_or(keep);
    let path = place::whole(Path::new(keep)).ok();
    let is = |located: &Located, words: &[PathBuf]| {
        located.config.name == plain
            || words.iter().any(|word| word == Path::new(keep))
            || located.members.iter().any(|(member, _)| Some(member) == path.as_ref())
    };
    match (is(one, std::slice::from_ref(&arguments.group)), is(half, &arguments.half)) {
        (true, false) => Ok(true),
        (false, true) => Ok(false),
        _ => Err(Failure::usage(format!(
            "--keep {keep} names neither half, or both: it is {} or {}",
            one.config.name, half.config.name
        ))),
    }
}

impl Joined {
    fn new(plan: JoinPlan, group: Option<Status>) -> Self {
        let side = |half: JoinHalf| Side {
            name: half.name,
            changed_regions: half.regions,
            changed_bytes: half.bytes,
            changed_s: half.changed_s,
        };
        Self {
            kept: side(plan.kept),
            lost: side(plan.lost),
            split_s: plan.split_s,
            copied_bytes: plan.copied_bytes,
            total_bytes: plan.total_bytes,
            group,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, regions) =
            (format_size(self.changed_bytes), text::count(self.changed_regions, "region"));
        write!(f, "{bytes} in {regions}, last in use {} UTC", time(self.changed_s))
    }
}

impl fmt::Display for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kept, lost, group, .. } = self;
        let (is_kept, is_lost, copies) = match group {
            Some(_) => ("kept", "was lost", "copied"),
            None => ("would be kept", "would be lost", "would be copied"),
        };
        writeln!(f, "split at {} UTC", time(self.split_s))?;
        writeln!(f, "what {} wrote since {is_kept}: {kept}", kept.name)?;
        writeln!(f, "what {} wrote since {is_lost}: {lost}", lost.name)?;
        let (copied, total) = (format_size(self.copied_bytes), format_size(self.total_bytes));
        if self.copied_bytes == self.total_bytes {
            write!(f, "everything {copies}: {total}")?;
        } else {
            write!(f, "{copies}: {copied} of {total}, where either wrote")?;
        }
        group.as_ref().map_or(Ok(()), |group| write!(f, "\n\n{group}"))
    }
}
