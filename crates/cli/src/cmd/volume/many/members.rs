//! Members that come, and that take each other's places in every volume.

use std::path::Path;

use bedplate::{Id, Role, TableVolume};
use bedplate_serve::control::{GroupRequest, Newcomer};

use super::change::volumes;
use super::{Divided, required, show};
use crate::daemon::control;
use crate::device::group::{self, Located, holder};
use crate::device::newcomer;
use crate::device::{Access, open_plain, place};
use crate::failure::{Failure, Result};
use crate::render::output::Output;
use crate::render::progress;

/// Opens a device that comes, as a whole.
fn arriving(path: &Path, force: bool) -> Result<std::sync::Arc<dyn bedplate::BlockDevice>> {
    let path = place::whole(path)?;
    refuse_remote(&path)?;
    crate::device::signature::refuse_kind(&path)?;
    let device = open_plain(&path, Access::ReadWrite)?;
    if !force {
        newcomer::refuse_content(&path)?;
        newcomer::refuse_volume(&device)?;
    }
    Ok(device)
}

/// Refuses exports of other machines: a claim on pieces of one is not offered.
pub fn refuse_remote(path: &Path) -> Result<()> {
    if !place::is_remote(path) {
        return Ok(());
    }
    Err(Failure::new(
        "unsupported",
        format!("{}: a member of a group with many volumes lies on this machine", path.display()),
    ))
}

/// Adds a device to a group.
pub fn add(found: &Divided, device: &Path, force: bool, output: &Output) -> Result<()> {
    let opened = arriving(device, force)?;
    let mut lock = found.lock()?;
    bedplate::add_member(&mut lock, &opened, force)?;
    drop((lock, opened));
    show::all(&required(&place::whole(device)?)?, output).map(drop)
}

/// Lets go of a member that no volume lies on, or takes the table off a device that was replaced.
pub fn remove(found: &Divided, member: &str, output: &Output) -> Result<()> {
    let path = place::whole(Path::new(member)).unwrap_or_else(|_| member.into());
    if found.outdated.contains(&path) {
        bedplate::Label::erase(&*open_plain(&path, Access::ReadWrite)?)?;
    } else {
        let id = found.member_at(Path::new(member))?;
        bedplate::remove_member(&mut found.lock()?, id)?;
    }
    let left = found.members.iter().map(|(_, other)| other).find(|other| **other != path);
    show::all(&required(left.unwrap_or(&path))?, output).map(drop)
}

/// Puts a device in the place of a member, in every volume.
pub fn replace(
    found: &Divided,
    member: &str,
    device: &Path,
    force: bool,
    output: &Output,
) -> Result<()> {
    let old = found.member_at(Path::new(member))?;
    let whole = place::whole(device)?;
    let under_way = found.table.members.iter().find(|member| member.replaces == Some(old));
    let is_same = |new: Id| found.path_of(new) == Some(whole.as_path());
    if !under_way.is_some_and(|new| is_same(new.id)) {
        refuse_unready(found, old)?;
        let opened = arriving(device, force)?;
        let mut lock = found.lock()?;
        bedplate::begin_replace(&mut lock, old, &opened, force)?;
    }
    let found = required(&whole)?;
    finish(&found, old)?;
    show::all(&required(&whole)?, output).map(drop)
}

/// Refuses where a volume could not go on with another member: before anything is written.
fn refuse_unready(found: &Divided, old: Id) -> Result<()> {
    for volume in found.table.volumes.iter().filter(|volume| volume.part_on(old).is_some()) {
        let located = found.volume(volume)?;
        let name = &located.config.name;
        let is_redundant = located.config.volume(Role::Data);
        if !is_redundant.is_some_and(|volume| volume.layout.is_redundant()) {
            return Err(Failure::new(
                "invalid",
                format!(
                    "{name} has one copy of everything, so no member of it can be replaced: lay it \
                     out with copies, or remove it first"
                ),
            ));
        }
        if !holder::is_open(&located)
            && let Some(why) = group::why_not(&located)
        {
            let group = &found.table.name;
            return Err(Failure::new(
                "missing_member",
                format!("{why}: run 'bedplate volume import --degraded group:{group}' first"),
            ));
        }
    }
    Ok(())
}

/// Lets every volume take the new part, and lets go of the member.
fn finish(found: &Divided, old: Id) -> Result<()> {
    let new = found.table.members.iter().find(|member| member.replaces == Some(old));
    let new = new.map(|member| member.id).ok_or_else(|| found.name_a_volume())?;
    for volume in &found.table.volumes {
        let Some(part) = volume.part_on(new).and_then(|part| found.part_path(part)) else {
            continue;
        };
        let located = found.volume(volume)?;
        let has_come = located
            .members
            .iter()
            .any(|(path, label)| *path == part && label.has_place_in(&located.config));
        if has_come {
            continue;
        }
        let Some(leaving) = leaving(found, volume, &located, old)? else { continue };
        let request = GroupRequest::Replace(leaving.to_string(), Newcomer::Forced { force: part });
        control::request(&located, &request)?;
    }
    let mut lock = found.lock()?;
    Ok(bedplate::end_replace(&mut lock, old)?)
}

/// Returns the member of a volume that lies on a member of the group which leaves; nothing where it
/// has left.
fn leaving(
    found: &Divided,
    volume: &TableVolume,
    located: &Located,
    old: Id,
) -> Result<Option<Id>> {
    let on = |part: &bedplate::VolumePart| found.part_path(part);
    let there = volume.part_on(old).and_then(on);
    let label = located.members.iter().find(|(path, _)| Some(path) == there.as_ref());
    if let Some((_, label)) = label {
        return Ok(located.config.index_of(label.member).map(|_| label.member));
    }
    // It is not there: it is the one that no other part has.
    let config = &located.config;
    let has = |id: Id| located.members.iter().any(|(_, label)| label.member == id);
    let mut gone: Vec<&bedplate::Member> = config
        .members
        .iter()
        .enumerate()
        .filter(|(index, member)| {
            !member.is_vacant() && config.volume_on(*index).is_some() && !has(member.id)
        })
        .map(|(_, member)| member)
        .collect();
    if gone.len() > 1 {
        let path = found.table.member(old).map(|member| place::file_of(Path::new(&member.path)));
        gone.retain(|member| Some(place::file_of(Path::new(&member.path))) == path);
    }
    match gone.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(one.id)),
        _ => Err(Failure::new(
            "ambiguous",
            format!("{}: it is not known which of its members is to be replaced", config.name),
        )),
    }
}

/// Brings what is under way to its end and opens every volume once, so that members that came back
/// catch up.
pub fn import(found: &Divided, degraded: bool, output: &Output) -> Result<()> {
    let missing: Vec<&str> = found
        .table
        .members
        .iter()
        .filter(|member| found.path_of(member.id).is_none() && !found.table.leaves(member.id))
        .map(|member| member.path.as_str())
        .collect();
    if !missing.is_empty() && !degraded {
        let (group, missing) = (&found.table.name, missing.join(", "));
        return Err(Failure::new(
            "missing_member",
            format!(
                "group {group}: {missing} was not found: connect it, or add --degraded to go on \
                 without it where every volume can"
            ),
        ));
    }
    drop(found.lock()?);
    let replaced: Vec<Id> =
        found.table.members.iter().filter_map(|member| member.replaces).collect();
    for old in replaced {
        finish(found, old)?;
    }
    for (_, located) in volumes(found)? {
        if holder::is_open(&located) {
            continue;
        }
        let group = group::open(&located, Access::ReadWrite, degraded)?;
        control::lend_unmounted(&group);
        progress::during(output, "bringing members up to date", || group.sync())?;
    }
    let path = found.members.first().map(|(_, path)| path.clone()).unwrap_or_default();
    show::all(&required(&path)?, output).map(drop)
}
