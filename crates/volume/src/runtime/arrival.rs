//! Devices that are to become members: what they are to another group, and whether they are able to
//! do the work.

use std::sync::Arc;

use bedplate_block::BlockDevice;

use super::GroupRuntime;
use crate::{Config, Error, ErrorKind, Label, Member, Result};

/// A device that is to become a member.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// The device, open for writing and claimed.
    pub device: &'a Arc<dyn BlockDevice>,
    /// Takes it from another group. Its label is written over when it is taken in: a device that is
    /// refused keeps what it has.
    pub force: bool,
}

impl<'a> From<&'a Arc<dyn BlockDevice>> for Arrival<'a> {
    fn from(device: &'a Arc<dyn BlockDevice>) -> Self {
        Self { device, force: false }
    }
}

impl Arrival<'_> {
    /// Refuses a device that is another group's, unless it is forced.
    pub(crate) fn refuse_foreign(self, config: &Config) -> Result<()> {
        if self.force { Ok(()) } else { refuse_foreign(self.device, Some(config)) }
    }
}

/// Refuses a device that carries a label already, but for one that was on its way into the group
/// `of` when a crash came.
pub(crate) fn refuse_foreign(device: &Arc<dyn BlockDevice>, of: Option<&Config>) -> Result<()> {
    let arrives = |label: &Label| of.is_some_and(|config| label.never_arrived_in(config));
    match Label::read(&**device) {
        Ok(label) if arrives(&label) => Ok(()),
        Ok(label) => {
            let (name, group) = (device.name(), &label.config.name);
            Err(Error::new(
                ErrorKind::Foreign,
                format!(
                    "{name} is a member of the group {group} ({}): it is taken from there by force \
                     only",
                    label.config.id
                ),
            ))
        }
        Err(error) if error.kind == ErrorKind::Divided => {
            let name = device.name();
            let message = format!(
                "{name} is a member of a group with many volumes: it is taken by force only"
            );
            Err(Error::new(ErrorKind::Foreign, message))
        }
        Err(error) if error.kind == ErrorKind::NewerFormat => Err(error),
        Err(_) => Ok(()),
    }
}

impl GroupRuntime {
    /// Refuses a device that cannot take the place of a member: it is too small, or has larger
    /// blocks than its volume.
    pub(crate) fn refuse_unfit(
        &self,
        config: &Config,
        index: usize,
        member: &Member,
        device: &dyn BlockDevice,
    ) -> Result<()> {
        let needed = config.needed_bytes(index);
        let (new, old) = (&member.path, &config.members[index].path);
        if member.size_bytes < needed {
            return Err(Error::invalid(format!(
                "{new} has {} bytes, and {needed} are needed to take the place of {old}",
                member.size_bytes
            )));
        }
        let (has, takes) =
            (device.geometry().logical_block_size, self.block_size_on(config, index));
        if has > takes {
            return Err(Error::invalid(format!(
                "{new} has blocks of {has} bytes, and those of {takes} are needed to take the \
                 place of {old}"
            )));
        }
        Ok(())
    }

    /// Refuses a spare that could take the place of no member.
    pub(crate) fn refuse_coarse_spare(
        &self,
        config: &Config,
        device: &dyn BlockDevice,
    ) -> Result<()> {
        let largest =
            self.ios.iter().map(|io| io.geometry.logical_block_size).max().unwrap_or(u32::MAX);
        let (name, has, group) =
            (device.name(), device.geometry().logical_block_size, &config.name);
        if has <= largest {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{name} has blocks of {has} bytes, and as a spare of the group {group} it needs those \
             of {largest}"
        )))
    }

    /// Returns the block size of the volume that a member belongs to: larger ones cannot serve it.
    pub(crate) fn block_size_on(&self, config: &Config, index: usize) -> u32 {
        let role = config.volume_on(index).map(|volume| volume.role);
        self.ios
            .iter()
            .find(|io| Some(io.role) == role)
            .map_or(u32::MAX, |io| io.geometry.logical_block_size)
    }
}

/// Refuses a spare that could take the place of no member.
pub(crate) fn refuse_idle_spare(config: &Config, spare: &Member) -> Result<()> {
    let needed = (0..config.members.len())
        .map(|index| config.needed_bytes(index))
        .filter(|needed| *needed > 0)
        .min()
        .unwrap_or(0);
    if spare.size_bytes >= needed {
        return Ok(());
    }
    let (path, size) = (&spare.path, spare.size_bytes);
    Err(Error::invalid(format!(
        "{path} has {size} bytes, and as a spare it needs {needed} to take the place of any member \
         of the group {}",
        config.name
    )))
}
