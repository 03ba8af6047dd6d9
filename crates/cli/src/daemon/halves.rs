//! Splits a mirror in the process that has it open, and gives the half what makes it a volume of its
//! own.

use std::sync::Arc;

use bedplate::{
    BlockDevice, FileSystem, Group, GroupConfig, ImportOptions, Role, Timestamp, Which, format_time,
};
use serde::{Deserialize, Serialize};

use crate::device::renewed;
use crate::failure::{Failure, Result};

/// Two halves of a mirror, as one of them tells of the other.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SplitStatus {
    /// The name that the other half got, or had.
    pub other: String,
    /// When they parted, and when this one was last opened or closed for writing, in seconds since
    /// 1970.
    pub split_s: u64,
    pub changed_s: u64,
    /// This one is kept and takes the members of the other in.
    pub joins: bool,
}

impl SplitStatus {
    /// Tells of the other half that a group knows.
    pub fn of(config: &GroupConfig) -> Option<Self> {
        config.split.as_ref().map(|split| Self {
            other: split.name.clone(),
            split_s: split.split_s,
            changed_s: split.changed_s,
            joins: split.joins,
        })
    }

    /// Says in a sentence what an administrator should know.
    pub fn note(&self) -> String {
        let other = &self.other;
        if self.joins {
            return format!(
                "a join that keeps this half has begun: its members that come back from {other} are \
                 brought up to date, as each is found"
            );
        }
        format!(
            "split from {other} at {} UTC: 'bedplate volume join' makes one mirror of the halves",
            time(self.split_s)
        )
    }
}

/// Writes a time as people read it, of seconds since 1970.
pub fn time(seconds: u64) -> String {
    format_time(Timestamp(seconds.saturating_mul(1_000_000_000) as i64))
}

/// Splits members off. What a mounted file system was given before is on both halves.
pub fn split(group: &Group, fs: Option<&FileSystem>, members: &[Which], name: &str) -> Result<()> {
    refuse_foreign_log(group)?;
    if let Some(fs) = fs {
        fs.sync()?;
    }
    let devices = group.split(members, name)?;
    finish(&devices, name).map_err(|failure| {
        let message = format!(
            "{} is split, and the half has not an identity of its own yet: {}: give the same command \
             again",
            group.config().name,
            failure.message
        );
        Failure::new(&failure.kind, message)
    })
}

/// Gives the file system of a half an identity of its own.
pub fn finish(devices: &[Arc<dyn BlockDevice>], name: &str) -> Result<()> {
    let options = ImportOptions { background: false, ..ImportOptions::default() };
    let half = Group::import(devices, &options)?;
    debug_assert_eq!(half.config().name, name, "a half is of the name that it got");
    renewed::inside(&half, None)?;
    Ok(half.close()?)
}

/// Refuses a file system whose intent log would not be in the half.
fn refuse_foreign_log(group: &Group) -> Result<()> {
    let separate = group
        .volume(Role::Data)
        .and_then(|data| FileSystem::probe(&data).ok())
        .is_some_and(|volume| volume.log_separate);
    if separate && group.volume(Role::Log).is_none() {
        return Err(Failure::new(
            "invalid",
            format!(
                "group {}: the intent log lies on a device outside of the group, and would not be in \
                 the half: bring it home with 'bedplate log' first",
                group.config().name
            ),
        ));
    }
    Ok(())
}
