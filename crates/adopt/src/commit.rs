//! The end of a conversion: the volume takes the place of the old file system, or goes.
//!
//! ```text
//!            ┌──────────────── commit ────────────────────────────────────────────────────────────┐
//!   made ─► committing ─► unused bytes ─► one sector ─► copy at 8 MiB ─► first 4 KiB ─► header goes
//!            └─ the old file system is whole ─┘ └─ the volume is whole ───────────────────────────┘
//! ```
//!
//! A commit that was cut short is gone on with by another one; before the one sector it can be
//! abandoned too (I-ADO-3).

use std::path::Path;
use std::sync::Arc;

use bedplate_block::{BlockDevice, IN_PLACE_SECOND_COPY, InPlaceHeader, InPlaceState};
use bedplate_fs::FileSystem;
use serde::Serialize;

use crate::device::{open, uuid_text, verify, when_free};
use crate::error::{Error, ErrorKind, Result};
use crate::head::{Found, Head, write};
use crate::mounted::remove_file_of;
use crate::old::{HEAD_BYTES, kind_name, kind_of, read};

/// What a commit did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Committed {
    /// Identity of the volume.
    pub uuid: String,
    /// What the device held before.
    pub old: &'static str,
    /// Whether an earlier commit had been cut short.
    pub gone_on: bool,
}

/// What an abandonment did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Abandoned {
    /// What the device holds.
    pub old: &'static str,
    /// Whether a volume was there already; otherwise the conversion had not come so far.
    pub had_volume: bool,
}

fn head_of(device: &Arc<dyn BlockDevice>, header: &InPlaceHeader) -> Result<Head> {
    let old = read(&**device, header.old_head_at, HEAD_BYTES)?;
    let new = read(&**device, header.superblock_at, HEAD_BYTES)?;
    Head::new(header.old, &old, &new, device.geometry().logical_block_size as usize)
}

/// Makes the volume of the old file system.
///
/// # Errors
/// `NotFound` without a conversion, `Committed` where it is done, `Changed` where the old file system
/// was written to since, `Damaged` where the volume is, `Busy`, those of the device.
pub fn commit(path: &Path) -> Result<Committed> {
    commit_device(&open(path)?)
}

/// As [`commit`], on a device that is open for writing and has no other user.
///
/// # Errors
/// As [`commit`].
pub fn commit_device(device: &Arc<dyn BlockDevice>) -> Result<Committed> {
    let Some(header) = InPlaceHeader::find(&**device)? else { return Err(no_header(device)) };
    let head = head_of(device, &header)?;
    let found = head.found(&**device)?;
    let gone_on = header.state == InPlaceState::Committing;
    match found {
        Found::Old => {
            if header.state == InPlaceState::Made {
                verify(device, &header)?;
            }
            refuse_changed(device, &header)?;
            let committing = InPlaceHeader {
                state: InPlaceState::Committing,
                sequence: header.sequence + 1,
                ..header.clone()
            };
            committing.write(&**device)?;
            head.prepare(&**device)?;
            head.flip(&**device)?;
        }
        Found::Mixed | Found::New => {}
        Found::Other => return end_of_old_commit(device, &header),
    }
    assert!(
        head.found(&**device)? != Found::Old,
        "I-ADO-3: a copy of the volume's superblock verifies before the second is written"
    );
    if found != Found::New {
        write(&**device, &head.new, IN_PLACE_SECOND_COPY)?;
        write(&**device, &head.new, 0)?;
    }
    header.erase(&**device)?;
    Ok(Committed { uuid: uuid_text(header.volume), old: kind_name(header.old), gone_on })
}

/// Ends a commit whose volume was mounted before it ended: its superblock is newer than ours.
fn end_of_old_commit(device: &Arc<dyn BlockDevice>, header: &InPlaceHeader) -> Result<Committed> {
    if !is_volume(device, header) {
        return Err(changed(device.name(), header));
    }
    header.erase(&**device)?;
    Ok(Committed { uuid: uuid_text(header.volume), old: kind_name(header.old), gone_on: true })
}

/// Returns whether the volume of a header opens by the device's own name.
fn is_volume(device: &Arc<dyn BlockDevice>, header: &InPlaceHeader) -> bool {
    FileSystem::probe(device).is_ok_and(|volume| volume.uuid == uuid_text(header.volume))
}

fn changed(name: &str, header: &InPlaceHeader) -> Error {
    Error::new(
        ErrorKind::Changed,
        format!(
            "{name}: its {} file system was written to since it was converted: run 'bedplate convert \
             --abandon {name}', then convert it again",
            kind_name(header.old)
        ),
    )
}

/// Refuses a device whose old file system is not what it was. What a commit wrote before it was cut
/// short does not count.
fn refuse_changed(device: &Arc<dyn BlockDevice>, header: &InPlaceHeader) -> Result<()> {
    let mut watched = header.clone();
    if header.state == InPlaceState::Committing {
        watched.watched.retain(|range| range.start != 0);
    }
    match watched.first_change(&**device)? {
        None => Ok(()),
        Some(_) => Err(changed(device.name(), header)),
    }
}

fn no_header(device: &Arc<dyn BlockDevice>) -> Error {
    let name = device.name();
    if FileSystem::probe(device).is_ok() {
        return committed(name);
    }
    Error::new(
        ErrorKind::NotFound,
        format!(
            "{name} is not being converted in place: 'bedplate convert --in-place {name}' does it"
        ),
    )
}

fn committed(name: &str) -> Error {
    Error::new(
        ErrorKind::Committed,
        format!("{name} is a volume: its conversion is committed, and the old file system is gone"),
    )
}

/// Gives a conversion up: the old file system is as it was.
///
/// # Errors
/// `Committed` where it is too late, `NotFound` without a conversion, `Busy`, those of the device and
/// of the mount.
pub fn abandon(path: &Path) -> Result<Abandoned> {
    let device = open(path)?;
    let header = abandon_device(&device)?;
    let kind = match &header {
        Some(header) => header.old,
        None if FileSystem::probe(&device).is_ok() => return Err(committed(device.name())),
        None => {
            let head = read(&*device, 0, HEAD_BYTES)?;
            kind_of(&head).ok_or_else(|| no_header(&device))?
        }
    };
    let none = no_header(&device);
    drop(device);
    let mount_type = match kind {
        bedplate_block::OldKind::Ext4 => "ext4",
        bedplate_block::OldKind::Xfs => "xfs",
    };
    let removed = when_free(path, || remove_file_of(path, mount_type))?;
    if header.is_none() && !removed {
        return Err(none);
    }
    Ok(Abandoned { old: kind_name(kind), had_volume: header.is_some() })
}

/// Takes back what a conversion wrote to the device, and its header, which it returns.
pub(crate) fn abandon_device(device: &Arc<dyn BlockDevice>) -> Result<Option<InPlaceHeader>> {
    let Some(header) = InPlaceHeader::find(&**device)? else { return Ok(None) };
    if is_volume(device, &header) {
        return Err(committed(device.name()));
    }
    if header.state == InPlaceState::Committing {
        head_of(device, &header)?.take_back(&**device)?;
    }
    header.erase(&**device)?;
    Ok(Some(header))
}
