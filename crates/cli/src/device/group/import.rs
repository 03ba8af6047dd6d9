//! Opens a group that was found, and takes labels off devices that a group let go of.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate::{BlockDevice, DeviceOptions, Group, GroupErrorKind, Id, ImportOptions, Label};

use super::find::{Located, first_path, of_member, to_look};
use crate::device::{Access, explain_busy};
use crate::failure::{Failure, Result};

/// Opens a group that was found. Nothing goes on in its background before the caller starts that,
/// because something may have to say first which copies are right.
pub fn open(located: &Located, access: Access, degraded: bool) -> Result<Group> {
    let devices = claim(located, access)?;
    let options =
        ImportOptions { read_only: access == Access::ReadOnly, degraded, background: false };
    Group::import(&devices, &options).map_err(|error| refusal(located, error))
}

fn refusal(located: &Located, error: bedplate::GroupError) -> Failure {
    let hint = matches!(error.kind, GroupErrorKind::Missing);
    let mut failure = Failure::from(error);
    if hint {
        let path = first_path(located);
        failure.message += &format!(
            " ('bedplate volume import --degraded {}', or without writing 'mount -o ro,degraded')",
            path.display()
        );
    }
    failure
}

/// Says why a group could not be opened with the members that were found. No process has it open.
pub fn why_not(located: &Located) -> Option<String> {
    let belongs = |(path, label): &&(PathBuf, Label)| {
        label.outdated_in(&located.config, &path.display().to_string()).is_none()
    };
    let opened = located
        .members
        .iter()
        .filter(belongs)
        .map(|(path, _)| Ok(bedplate_block::open(path, &to_look())?))
        .collect::<Result<Vec<_>>>();
    let checked =
        opened.and_then(|devices| Group::check(&devices).map_err(|error| refusal(located, error)));
    checked.err().map(|failure| failure.message)
}

/// Claims the members that belong to a group, without opening it.
pub fn claimed(located: &Located, access: Access) -> Result<Vec<Arc<dyn BlockDevice>>> {
    claim(located, access)
}

/// Claims the members that belong to the group as it is now; those that lost their place meanwhile
/// are left alone, with a warning.
fn claim(located: &Located, access: Access) -> Result<Vec<Arc<dyn BlockDevice>>> {
    let options =
        DeviceOptions { read_only: access == Access::ReadOnly, ..DeviceOptions::default() };
    let mut devices = Vec::new();
    for (path, label) in &located.members {
        if let Some(why) = label.outdated_in(&located.config, &path.display().to_string()) {
            tracing::warn!(
                "{why}; it is left alone ('bedplate volume remove' takes its label off)"
            );
            continue;
        }
        devices.push(
            bedplate_block::open(path, &options)
                .map_err(|error| explain_busy(path, error.into()))?,
        );
    }
    Ok(devices)
}

/// Takes the label off the device of a member that a group let go of, where it is found: alone it
/// would pass for the group, with old data. What cannot be done is told, because the group is done
/// with the member all the same.
pub fn forget(located: &Located, member: Id) {
    let mut others = located.members.iter().filter(|(_, label)| label.member != member);
    let Some(now) = others.find_map(|(path, _)| of_member(path).ok().flatten()) else { return };
    let mut left = now
        .members
        .iter()
        .filter(|(_, label)| label.member == member && !label.has_place_in(&now.config));
    // Of two with one identity one is a copy.
    let (Some((path, _)), None) = (left.next(), left.next()) else { return };
    if let Err(failure) = take_label_off(path, member) {
        tracing::warn!(
            "{} keeps its label: {failure}: erase it before it is found without the others",
            path.display()
        );
    }
}

/// Takes the label of a member off a device that is not in use.
pub fn take_label_off(path: &Path, member: Id) -> Result<()> {
    let device = bedplate_block::open(path, &DeviceOptions::default())
        .map_err(|error| explain_busy(path, error.into()))?;
    if Label::read(&*device).is_ok_and(|label| label.member == member) {
        Label::erase(&*device)?;
    }
    Ok(())
}
