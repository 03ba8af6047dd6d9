//! Volumes that come, go and grow.

use std::sync::Arc;

use bedplate::{BlockDevice, Id, NewDivided, NewVolume, Role, create_divided};

use super::{AddVolumeArguments, Divided, RemoveVolumeArguments, opener, parts_of, required};
use crate::cmd::volume::create::Arguments as CreateArguments;
use crate::device::group::{Located, holder};
use crate::failure::{Failure, Result};
use crate::render::output::Output;

/// Makes a group with many volumes on devices that are open for it.
pub fn create(
    arguments: &CreateArguments,
    members: Vec<Arc<dyn BlockDevice>>,
) -> Result<bedplate::VolumeTable> {
    let volume = |spec: &super::VolumeSpec| -> NewVolume {
        spec.volume(arguments.unit, arguments.copies, Vec::new())
    };
    let new = NewDivided {
        name: arguments.name.clone(),
        members,
        volumes: arguments.volume.iter().map(volume).collect(),
        force: arguments.force,
    };
    Ok(create_divided(&new)?)
}

pub fn add_volume(arguments: &AddVolumeArguments, output: &Output) -> Result<()> {
    let found = required(&arguments.group)?;
    let members: Vec<Id> =
        arguments.on.iter().map(|path| found.member_at(path)).collect::<Result<_>>()?;
    let volume = arguments.volume.volume(arguments.unit, arguments.copies, members);
    let mut lock = found.lock()?;
    bedplate::add_volume(&mut lock, &volume, &opener(&found))?;
    drop(lock);
    super::show::all(&required(&arguments.group)?, output).map(drop)
}

pub fn remove_volume(arguments: &RemoveVolumeArguments, output: &Output) -> Result<()> {
    let found = required(&arguments.group)?;
    let name = &arguments.volume;
    let volume = known(&found, name)?;
    refuse_open(&found.volume(volume).ok(), name)?;
    if !arguments.yes {
        let whole = found.table.whole_name(name);
        return Err(Failure::new(
            "not_confirmed",
            format!("all that {whole} holds would be gone: add --yes where that is meant"),
        ));
    }
    let mut lock = found.lock()?;
    bedplate::remove_volume(&mut lock, name, &opener(&found))?;
    drop(lock);
    super::show::all(&required(&arguments.group)?, output).map(drop)
}

fn known<'a>(found: &'a Divided, name: &str) -> Result<&'a bedplate::TableVolume> {
    found.table.volume(name).ok_or_else(|| {
        let group = &found.table.name;
        let all: Vec<&str> =
            found.table.volumes.iter().map(|volume| volume.name.as_str()).collect();
        let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
        Failure::new("not_found", format!("group {group} has no volume {name}: there are {all}"))
    })
}

fn refuse_open(located: &Option<Located>, name: &str) -> Result<()> {
    let Some(mount) = located.as_ref().and_then(holder::mount_of) else { return Ok(()) };
    let dir = mount.dir.display();
    Err(Failure::new(
        "busy",
        format!("volume {name} is mounted at {dir}: run 'bedplate unmount {dir}' first"),
    ))
}

/// Makes the parts of a volume larger, so that it can grow to a size, or to all that is free; returns
/// the volume as it is found then. Another volume than one of a group with many is returned as it is.
///
/// # Errors
/// `busy` while it is mounted, `invalid` where there is not the room.
pub fn grow(located: Located, size: Option<u64>) -> Result<Located> {
    let Some((group, name)) = parts_of(&located) else { return Ok(located) };
    let present = located.config.volume(Role::Data).map_or(0, bedplate::VolumeConfig::size_bytes);
    if size.is_some_and(|size| size <= present) {
        return Ok(located);
    }
    let path = located.members.first().map(|(path, _)| crate::device::place::file_of(path));
    let path = path.unwrap_or_else(|| format!("group:{group}").into());
    let found = required(&path)?;
    let volume = known(&found, name)?;
    refuse_open(&Some(located.clone()), name)?;
    let more = room(&found, volume, &located, size)?;
    let mut lock = found.lock()?;
    bedplate::grow_volume(&mut lock, name, &more, &opener(&found))?;
    drop(lock);
    let found = required(&path)?;
    let volume = known(&found, name)?;
    found.volume(volume)
}

/// Says how many bytes more the part of each member gets.
fn room(
    found: &Divided,
    volume: &bedplate::TableVolume,
    located: &Located,
    size: Option<u64>,
) -> Result<Vec<(Id, u64)>> {
    let config = located.config.volume(Role::Data).ok_or_else(|| found.name_a_volume())?;
    let (present, layout) = (config.size_bytes(), &config.layout);
    let is_joined = layout.unit_bytes().is_none() && !layout.is_redundant();
    let extents = layout.extents();
    // Of members one behind the other the last one grows.
    let growing = if is_joined { &extents[extents.len() - 1..] } else { &extents[..] };
    let members: Vec<Id> = growing
        .iter()
        .map(|extent| {
            let id = located.config.members[usize::from(extent.member)].id;
            let path = located.members.iter().find(|(_, label)| label.member == id);
            let part = volume
                .parts
                .iter()
                .find(|part| found.part_path(part).as_ref() == path.map(|(path, _)| path));
            part.map(|part| part.member).ok_or_else(|| {
                let name = &located.config.name;
                let message = format!("{name} grows when all of its members are there");
                Failure::new("missing_member", message)
            })
        })
        .collect::<Result<_>>()?;
    let Some(size) = size else {
        let free = members.iter().map(|id| found.table.free_bytes(*id)).min().unwrap_or(0);
        return Ok(members.into_iter().map(|id| (id, free)).collect());
    };
    let more = |len: u64| {
        let share = if is_joined {
            u128::from(size - present)
        } else {
            let all = u128::from(len) * u128::from(size - present);
            all.div_ceil(u128::from(present.max(1)))
        };
        let unit = u128::from(layout.unit_bytes().unwrap_or(1));
        u64::try_from(share.next_multiple_of(unit)).unwrap_or(u64::MAX)
    };
    Ok(members.into_iter().zip(growing).map(|(id, extent)| (id, more(extent.len))).collect())
}

/// Says that nothing was found of a volume.
pub fn lost(found: &Divided, volume: &bedplate::TableVolume) -> Failure {
    let name = found.table.whole_name(&volume.name);
    Failure::new("missing_member", format!("{name}: none of its parts was found"))
}

/// Finds all volumes of a group.
///
/// # Errors
/// Where one of them was not found.
pub fn volumes(found: &Divided) -> Result<Vec<(String, Located)>> {
    let find = |volume: &bedplate::TableVolume| {
        let located = found.volume(volume).map_err(|_| lost(found, volume))?;
        Ok((volume.name.clone(), located))
    };
    found.table.volumes.iter().map(find).collect()
}
