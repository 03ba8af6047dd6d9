//! A mirror that is split while its volumes are in use or not.
//!
//! ```text
//!   copies agree ─► all volumes shut, no operation under way ─► flush ─► labels of those that stay: decided ─► volumes open
//!    ─► each device of the half: an empty dirty region log, its label       cut before: the next opening of the group writes them
//! ```
//! From the labels on, the logs of both halves gather what is written to them, because each lacks
//! members that it has a place for.

use std::sync::Arc;
use std::time::Duration;

use bedplate_block::BlockDevice;

use super::GroupRuntime;
use super::create::check_name;
use crate::group::{MemberHandle, TimePoint};
use crate::io::VolumeIo;
use crate::redundancy::Drl;
use crate::{Config, Error, ErrorKind, Label, Result, Split, Which};

/// How long operations under way may take to end, before they are let go on and asked again.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(20);
const TRIES: usize = 250;

impl GroupRuntime {
    /// Lets members go that are a whole copy, as a group of their own, and returns their devices.
    pub fn split(&self, members: &[Which], name: &str) -> Result<Vec<Arc<dyn BlockDevice>>> {
        check_name(name)?;
        let _members_stay = self.maintenance.lock();
        let config = self.group_state.config();
        if self.group_state.read_only {
            let group = &config.name;
            return Err(Error::invalid(format!("group {group} is open for reading only")));
        }
        let mut indices =
            members.iter().map(|which| which.index_in(&config)).collect::<Result<Vec<_>>>()?;
        indices.sort_unstable();
        indices.dedup();
        config.split_off(&indices, name, 0)?;
        self.check_members()?;
        for io in &self.ios {
            io.sync_all()?;
            // The first look finds regions touched, the second takes them.
            io.clean_up()?;
            io.clean_up()?;
        }
        let gone = self.at_rest(&mut || self.part(&indices, name))?;
        let split = self.group_state.config().split;
        for handle in &gone {
            self.ios.iter().for_each(|io| io.lanes.forget(handle));
            let split = split.as_ref().expect("it was just noted");
            label_half(&*handle.device, split)?;
        }
        Ok(gone.iter().map(|handle| Arc::clone(&handle.device)).collect())
    }

    /// Acts while no operation is under way in any volume, and none begins.
    fn at_rest<T>(&self, act: &mut dyn FnMut() -> Result<T>) -> Result<T> {
        for _ in 0..TRIES {
            if let Some(done) = shut(&self.ios, act)? {
                return Ok(done);
            }
            std::thread::sleep(DRAIN_TIMEOUT);
        }
        Err(Error::new(
            ErrorKind::Busy,
            format!("group {}: operations under way do not end: try again", self.group_state.name),
        ))
    }

    /// Decides the split; returns the members that left.
    fn part(&self, indices: &[usize], name: &str) -> Result<Vec<Arc<MemberHandle>>> {
        for io in &self.ios {
            io.flush_in(&io.epochs.peek())?;
            if io.pending() > 0 {
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!("volume {}: its copies do not agree yet: try again", io.name),
                ));
            }
        }
        let mut gone = Vec::new();
        self.group_state.change_members(|config, handles| {
            *config = config.split_off(indices, name, TimePoint::now().wall_s)?;
            gone = indices.iter().filter_map(|index| handles[*index].take()).collect();
            Ok(())
        })?;
        Ok(gone)
    }
}

/// Shuts volumes one within the other. Returns nothing where operations under way did not end.
fn shut<T>(ios: &[Arc<VolumeIo>], act: &mut dyn FnMut() -> Result<T>) -> Result<Option<T>> {
    let Some((io, others)) = ios.split_first() else { return act().map(Some) };
    let mut done = None;
    io.epochs.replace(DRAIN_TIMEOUT, |epoch| {
        done = shut(others, act)?;
        Ok::<_, Error>(epoch.clone())
    })?;
    Ok(done)
}

/// Gives the device of a member that was split off the label of the half, and a log that names no
/// region: it holds what the others held when they parted. Does nothing where it has one.
pub(crate) fn label_half(device: &dyn BlockDevice, split: &Split) -> Result<()> {
    let label = Label::read(device)?;
    if split.members.contains(&label.member) {
        let half = label.half(split);
        for (ordinal, volume) in half.config.volumes.iter().enumerate() {
            let regions = volume.size_bytes().div_ceil(volume.region_bytes);
            let log = Drl::new(half.config.id, ordinal, regions);
            log.write(device, &log.pages())?;
        }
        half.write(device)?;
    }
    Ok(())
}

/// Reads the regions that a half wrote to since the split, by volume, from its members' logs.
pub(crate) fn written_regions(
    config: &Config,
    devices: &[(usize, Arc<dyn BlockDevice>)],
) -> Result<Vec<Vec<u64>>> {
    let of_volume = |(ordinal, volume): (usize, &crate::VolumeConfig)| {
        let regions = volume.size_bytes().div_ceil(volume.region_bytes);
        let mut log = Drl::new(config.id, ordinal, regions);
        let members = volume.members();
        for (_, device) in devices.iter().filter(|(index, _)| members.contains(index)) {
            log.absorb(&**device)?;
        }
        Ok(log.dirty().collect())
    };
    config.volumes.iter().enumerate().map(of_volume).collect()
}
