//! Members of a group with many volumes that come and take each other's places.
//!
//! ```text
//!   replace: begin_replace ─► every volume takes the new part in the place of the old one ─► end_replace
//!             both named, same places      with its own labels and events                      the old one let go of
//! ```
//! A power cut between leaves both in the table, and the same command goes on.

use std::sync::Arc;

use bedplate_block::BlockDevice;

use super::change::member_of;
use super::{TableLock, TableMember, TableVolume, VolumePart};
use crate::{Error, ErrorKind, Id, Label, Result};

/// Adds a member, open for writing and claimed: all of it is free for volumes. What it held is gone;
/// what is refused keeps what it has, unless the write of the table fails.
///
/// # Errors
/// `Invalid`, `Foreign` when the device cannot be a member, `Missing` when a member of the group is
/// not there, `Device`.
pub fn add_member(lock: &mut TableLock, device: &Arc<dyn BlockDevice>, force: bool) -> Result<Id> {
    let member = member_of(device, force)?;
    let id = member.id;
    lock.refuse_incomplete()?;
    Label::erase(&**device)?;
    lock.change(&[(id, Arc::clone(device))], |table| {
        table.members.push(member);
        Ok(())
    })?;
    Ok(id)
}

/// Lets go of a member that no volume lies on, and erases its table.
///
/// # Errors
/// `NotFound`, `Invalid` where a volume lies on it or it is the last one, `Missing` when a member of the
/// group is not there, `Device`.
pub fn remove_member(lock: &mut TableLock, member: Id) -> Result<()> {
    let (table, group) = (lock.table(), &lock.table().name);
    let gone = table.member(member).ok_or_else(|| {
        Error::new(ErrorKind::NotFound, format!("group {group} has no member {member}"))
    })?;
    let on = table.volumes.iter().filter(|volume| volume.part_on(member).is_some());
    let on: Vec<&str> = on.map(|volume| volume.name.as_str()).collect();
    if !on.is_empty() || gone.replaces.is_some() || table.leaves(member) {
        let (path, on) = (&gone.path, on.join(", "));
        return Err(Error::invalid(format!(
            "group {group}: {on} lies on {path}: put another device in its place with 'bedplate \
             volume replace', or remove the volume"
        )));
    }
    let head = lock.head(member);
    lock.change(&[], |table| {
        table.members.retain(|other| other.id != member);
        Ok(())
    })?;
    erase(head);
    Ok(())
}

/// Names a device as the one that takes the place of a member, with the same parts for all volumes.
/// Returns its identity; where one is named already, that one's.
///
/// # Errors
/// As [`add_member`], `NotFound`; `Invalid` where the device is too small.
pub fn begin_replace(
    lock: &mut TableLock,
    old: Id,
    device: &Arc<dyn BlockDevice>,
    force: bool,
) -> Result<Id> {
    let known = |id: Id| lock.table().member(id).cloned();
    let gone = known(old)
        .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("the group has no member {old}")))?;
    if gone.replaces.is_some() || lock.table().leaves(old) {
        let (path, group) = (&gone.path, &lock.table().name);
        return Err(Error::invalid(format!(
            "group {group}: {path} is being replaced already: 'bedplate volume import' ends that"
        )));
    }
    let new = TableMember { replaces: Some(old), ..member_of(device, force)? };
    let (id, path) = (new.id, new.path.clone());
    let pieces = lock.table().volumes.iter().filter_map(|volume| volume.part_on(old));
    let needed = pieces.flat_map(|part| &part.pieces).map(|piece| piece.end).max().unwrap_or(0);
    if new.size_bytes < needed {
        let (has, needed) = (new.size_bytes >> 20, needed >> 20);
        return Err(Error::invalid(format!(
            "{path} has {has} MiB, and {needed} are needed to take the place of {}",
            gone.path
        )));
    }
    Label::erase(&**device)?;
    lock.change(&[(id, Arc::clone(device))], |table| {
        table.members.push(new);
        for volume in &mut table.volumes {
            let pieces = volume.part_on(old).map(|part| part.pieces.clone());
            volume.parts.extend(pieces.map(|pieces| VolumePart { member: id, pieces }));
        }
        Ok(())
    })?;
    Ok(id)
}

/// Lets go of a member whose place another took, in every volume by now.
///
/// # Errors
/// `NotFound` where nothing takes its place, `Invalid` where a volume lies on it alone, `Missing` when a member of the group is not there,
/// `Device`.
pub fn end_replace(lock: &mut TableLock, old: Id) -> Result<()> {
    let new = lock.table().members.iter().find(|member| member.replaces == Some(old));
    let new = new.map(|member| member.id).ok_or_else(|| {
        let message = format!("nothing takes the place of the member {old}");
        Error::new(ErrorKind::NotFound, message)
    })?;
    let only_old =
        |volume: &&TableVolume| volume.part_on(old).is_some() && volume.part_on(new).is_none();
    if let Some(volume) = lock.table().volumes.iter().find(only_old) {
        let message = format!("volume {} lies on the member that leaves alone", volume.name);
        return Err(Error::invalid(message));
    }
    let head = lock.head(old);
    lock.change(&[], |table| {
        table.members.retain(|member| member.id != old);
        for volume in &mut table.volumes {
            volume.parts.retain(|part| part.member != old);
        }
        let takes = table.members.iter_mut().filter(|member| member.replaces == Some(old));
        takes.for_each(|member| member.replaces = None);
        Ok(())
    })?;
    erase(head);
    Ok(())
}

/// Takes the table off a member that was let go of, where it answers: the tables of the others say
/// that it has no place.
fn erase(head: Option<Arc<dyn BlockDevice>>) {
    if let Some(head) = head
        && let Err(error) = Label::erase(&*head)
    {
        tracing::warn!(member = head.name(), %error,
            "the table of a member that was let go of stays: erase it before it is used elsewhere");
    }
}
