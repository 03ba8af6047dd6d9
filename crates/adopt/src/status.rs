//! How far a conversion is.

use std::path::Path;

use bedplate_block::{DeviceOptions, InPlaceHeader, InPlaceState};
use bedplate_fs::FileSystem;
use serde::Serialize;

use crate::device::uuid_text;
use crate::error::Result;
use crate::old::{HEAD_BYTES, kind_name, kind_of, read};

/// How far a conversion is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// There is none: the device holds a file system that can be looked at, or nothing known.
    None,
    /// The volume is whole, and so is the old file system.
    Made,
    /// The old file system was written to since: the conversion can be abandoned only.
    Changed,
    /// A commit was cut short.
    CommitCutShort,
    /// The device holds a volume.
    Volume,
}

/// What is known of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// How far it is.
    pub state: State,
    /// What the old file system is, where one is there.
    pub old: Option<&'static str>,
    /// Identity of the volume, where one is there.
    pub uuid: Option<String>,
}

/// Looks at a device; other programs may use it meanwhile.
///
/// # Errors
/// Those of the device.
pub fn status(path: &Path) -> Result<Status> {
    let options = DeviceOptions { read_only: true, exclusive: false, ..DeviceOptions::default() };
    let device = bedplate_block::open(path, &options)?;
    let volume = FileSystem::probe(&device).ok().map(|volume| volume.uuid);
    let head = read(&*device, 0, HEAD_BYTES)?;
    let old = kind_of(&head).map(kind_name);
    let Some(header) = InPlaceHeader::find(&*device)? else {
        let state = if volume.is_some() { State::Volume } else { State::None };
        return Ok(Status { state, old, uuid: volume });
    };
    let state = match header.state {
        InPlaceState::Committing => State::CommitCutShort,
        InPlaceState::Made if header.first_change(&*device)?.is_some() => State::Changed,
        InPlaceState::Made => State::Made,
    };
    Ok(Status { state, old: Some(kind_name(header.old)), uuid: Some(uuid_text(header.volume)) })
}
