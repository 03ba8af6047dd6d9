//! `bedplate volume export|add|spare|replace|unrelocate|remove`

use std::path::{Path, PathBuf};

use bedplate::{Id, MemberState};
use bedplate_serve::control::GroupRequest;
use clap::Args;

use super::many;
use crate::daemon::control::{self, Reply};
use crate::daemon::status::Status;
use crate::device::Access;
use crate::device::group::{self, Located};
use crate::device::homes;
use crate::device::newcomer;
use crate::device::place;
use crate::failure::{Failure, Result};
use crate::render::output::Output;
use crate::render::progress;

/// Bring all copies of a group into agreement and close it in order, so that its members can be
/// moved
#[derive(Debug, Args)]
pub struct ExportArguments {
    /// Any member, group:NAME, or where it is mounted
    group: PathBuf,
}

/// Add a member that brings room for 'volume relayout' and 'volume grow', mounted or not
#[derive(Debug, Args)]
pub struct AddArguments {
    /// Any member, group:NAME, or where it is mounted
    group: PathBuf,
    /// The new device
    device: PathBuf,
    /// Take a device that holds something, or belongs to another group
    #[arg(long)]
    force: bool,
}

/// Add a device that takes the place of a member that fails, mounted or not
#[derive(Debug, Args)]
pub struct SpareArguments {
    /// Any member, group:NAME, or where it is mounted
    group: PathBuf,
    /// The new device
    device: PathBuf,
    /// Take a device that holds something, or belongs to another group
    #[arg(long)]
    force: bool,
}

/// Put a device in the place of a member, mounted or not; what it holds is copied from the others
///
/// The label of the one that leaves is erased where it answers, so that it cannot be taken for the
/// group later.
#[derive(Debug, Args)]
pub struct ReplaceArguments {
    /// Any member, group:NAME, or where it is mounted
    group: PathBuf,
    /// The member that leaves: its path, or its number as 'volume show --json' tells it
    member: String,
    /// The device that comes
    device: PathBuf,
    /// Take a device that holds something, or belongs to another group
    #[arg(long)]
    force: bool,
}

/// Move what lies in free space of other members, because its device failed, back to a device of
/// its own
///
/// It is copied from the other copies in the background, like a replaced member; the room that it
/// had is free again.
#[derive(Debug, Args)]
pub struct UnrelocateArguments {
    /// Any member, group:NAME, or where it is mounted
    group: PathBuf,
    /// The member: its path or its number; unless named, all that lie in free space of others
    member: Option<String>,
    /// The device; unless named, the one that it was on before it failed
    #[arg(long, value_name = "DEVICE", requires = "member")]
    to: Option<PathBuf>,
    /// Take a device that holds something, or belongs to another group
    #[arg(long, requires = "to")]
    force: bool,
}

/// Let go of a member without data: a spare, one that was added and is not used, one whose place
/// another took; or of a device that was replaced while it was away: its label is erased
#[derive(Debug, Args)]
pub struct RemoveArguments {
    /// Any member, group:NAME, or where it is mounted
    group: PathBuf,
    /// Its path, or its number as 'volume show --json' tells it
    member: String,
}

/// What is done to members of a group with many volumes is done for all of these.
const MEMBERS_OF_GROUP: &str = "name the group, and every volume of it has the device";

pub fn export(arguments: &ExportArguments, output: &Output) -> Result<()> {
    if let Some(found) = group::divided(&arguments.group)? {
        return many::export(&found, output);
    }
    let located = group::named(&arguments.group)?;
    let group = group::open(&located, Access::ReadWrite, false)?;
    control::lend_unmounted(&group);
    progress::during(output, "bringing members up to date", || group.sync())?;
    drop(group);
    let closed = group::named(&located.members[0].0)?;
    if !closed.config.clean {
        return Err(Failure::new(
            "unclean",
            format!(
                "group {} could not be closed in order: one of its members fails",
                closed.config.name
            ),
        ));
    }
    output.show(&Status::from_config(&closed.config))
}

pub fn add(arguments: &AddArguments, output: &Output) -> Result<()> {
    if let Some(found) = group::divided(&arguments.group)? {
        return many::add(&found, &arguments.device, arguments.force, output);
    }
    let located = group::named(&arguments.group)?;
    many::refuse_part(&located, "a member of its own", MEMBERS_OF_GROUP)?;
    let request = GroupRequest::Add(newcomer::named(&arguments.device, arguments.force)?);
    let reply = control::request(&located, &request)?;
    warn_of_home(&arguments.device, &located, None);
    tell(reply, output)
}

pub fn spare(arguments: &SpareArguments, output: &Output) -> Result<()> {
    let located = group::named(&arguments.group)?;
    many::refuse_part(
        &located,
        "a spare",
        "put a device in the place of one that failed with 'volume replace'",
    )?;
    let request = GroupRequest::Spare(newcomer::named(&arguments.device, arguments.force)?);
    let reply = control::request(&located, &request)?;
    warn_of_home(&arguments.device, &located, None);
    tell(reply, output)
}

pub fn replace(arguments: &ReplaceArguments, output: &Output) -> Result<()> {
    if let Some(found) = group::divided(&arguments.group)? {
        let (member, device) = (&arguments.member, &arguments.device);
        return many::replace(&found, member, device, arguments.force, output);
    }
    let located = group::named(&arguments.group)?;
    many::refuse_part(&located, "a member of its own", MEMBERS_OF_GROUP)?;
    let member = index_of(&located, &arguments.member)?;
    let reply = control::request(
        &located,
        &GroupRequest::Replace(
            id_of(&located, member),
            newcomer::named(&arguments.device, arguments.force)?,
        ),
    )?;
    forget(&located, member, &reply);
    warn_of_home(&arguments.device, &located, Some(member));
    tell(reply, output)
}

/// Warns of a device that came onto a disk which other members lie on; `gone` is the one that left
/// for it.
fn warn_of_home(device: &Path, located: &Located, gone: Option<usize>) {
    let config = &located.config;
    let stays = |(_, label): &&(PathBuf, bedplate::Label)| {
        let index = config.index_of(label.member);
        index != gone && index.is_some_and(|at| config.members[at].state != MemberState::Failed)
    };
    let others: Vec<&Path> =
        located.members.iter().filter(stays).map(|(path, _)| path.as_path()).collect();
    homes::warn_of(device, &others);
}

pub fn unrelocate(arguments: &UnrelocateArguments, output: &Output) -> Result<()> {
    let located = group::named(&arguments.group)?;
    let config = &located.config;
    let guests = |at: &usize| config.members[*at].relocated.is_some();
    let members = match &arguments.member {
        Some(name) => vec![index_of(&located, name)?],
        None => (0..config.members.len()).filter(guests).collect(),
    };
    let mut last = None;
    for member in members {
        let path = match &arguments.to {
            Some(path) => path.clone(),
            None => home_of(&located, member)?,
        };
        last = Some(control::request(
            &located,
            &GroupRequest::Unrelocate(
                id_of(&located, member),
                newcomer::named(&path, arguments.force)?,
            ),
        )?);
    }
    let nothing = || {
        Failure::new(
            "invalid",
            format!("group {}: no member lies in free space of others", config.name),
        )
    };
    tell(last.ok_or_else(nothing)?, output)
}

/// Returns the device that a member was on before it moved into free space of others.
fn home_of(located: &Located, member: usize) -> Result<PathBuf> {
    let config = &located.config;
    let path = &config.members[member].path;
    let was = config.members[member].relocated.as_ref().map(|guest| guest.was);
    let was =
        was.ok_or_else(|| Failure::new("invalid", format!("{path} has a device of its own")))?;
    let found =
        located.members.iter().find(|(_, label)| label.member == was).map(|(path, _)| path.clone());
    let known = || {
        config
            .index_of(was)
            .map(|index| PathBuf::from(&config.members[index].path))
            .filter(|path| place::exists(path))
    };
    found.or_else(known).ok_or_else(|| {
        Failure::new("not_found", format!("the device of {path} was not found: name one with --to"))
    })
}

pub fn remove(arguments: &RemoveArguments, output: &Output) -> Result<()> {
    if let Some(found) = group::divided(&arguments.group)? {
        return many::remove(&found, &arguments.member, output);
    }
    let located = group::named(&arguments.group)?;
    if let Some((path, member)) = outdated(&located, &arguments.member) {
        group::take_label_off(&path, member)?;
        return tell(control::request(&located, &GroupRequest::Status { reset: false })?, output);
    }
    let member = index_of(&located, &arguments.member)?;
    let reply = control::request(&located, &GroupRequest::Remove(id_of(&located, member)))?;
    forget(&located, member, &reply);
    tell(reply, output)
}

/// Finds the device at a path that carries a label of the group and has no place in it, and which
/// member it was.
fn outdated(located: &Located, name: &str) -> Option<(PathBuf, Id)> {
    let path = place::whole(Path::new(name)).ok()?;
    let label = group::label_of(&path).ok()??;
    let own =
        label.config.id == located.config.id && located.config.index_of(label.member).is_none();
    own.then_some((path, label.member))
}

/// Takes the label off the device of a member that was let go of, unless that was refused.
fn forget(located: &Located, member: usize, reply: &Reply) {
    if matches!(reply, Reply::Status(_)) {
        group::forget(located, located.config.members[member].id);
    }
}

pub fn tell(reply: Reply, output: &Output) -> Result<()> {
    match reply {
        Reply::Status(status) => output.show(&*status),
        Reply::Scrubbed(scrubbed) => output.show(&*scrubbed),
    }
}

/// Returns how a request names a member.
pub fn id_of(located: &Located, member: usize) -> String {
    located.config.members[member].id.to_string()
}

/// Finds a member by its number, by where it is, or by where it was.
pub fn index_of(located: &Located, name: &str) -> Result<usize> {
    let members = &located.config.members;
    if let Some(index) = name
        .parse::<usize>()
        .ok()
        .filter(|index| members.get(*index).is_some_and(|member| !member.is_vacant()))
    {
        return Ok(index);
    }
    let path = place::whole(Path::new(name))
        .or_else(|_| std::path::absolute(name))
        .unwrap_or(PathBuf::from(name));
    let here = located
        .members
        .iter()
        .find(|(found, _)| *found == path)
        .and_then(|(_, label)| located.config.index_of(label.member));
    here.or_else(|| members.iter().position(|member| Path::new(&member.path) == path)).ok_or_else(
        || {
            let known: Vec<&str> = members
                .iter()
                .filter(|member| !member.is_vacant())
                .map(|member| member.path.as_str())
                .collect();
            Failure::new(
                "not_found",
                format!(
                    "group {} has no member {name}: its members are {}",
                    located.config.name,
                    known.join(", ")
                ),
            )
        },
    )
}
