//! A mirror that is split into two groups, and the halves that become one mirror again.
//!
//! ```text
//!   join: both looked at ─► the kept half opened, its labels say that it takes the others in, closed ─► opened with the others' devices
//!          nothing written    └ decided with the first of them                                          └ as members that come back
//! ```
//! What comes back is not read before it is up to date, and the regions that either half wrote to
//! are copied from the kept one. A cut after the decision is ended by any import of the kept half
//! beside the devices of the other.

use std::sync::Arc;

use bedplate_block::BlockDevice;

use super::Group;
use crate::group::Assembly;
use crate::runtime::{self, check_name, written_regions};
use crate::{Arrival, Config, ImportOptions, MemberState, Result, VolumeConfig, Which};

/// What a join is about to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinPlan {
    /// The half that is kept.
    pub kept: JoinHalf,
    /// The half whose changes are lost.
    pub lost: JoinHalf,
    /// When they parted, in seconds since 1970.
    pub split_s: u64,
    /// How many bytes are copied to every copy of the other half: the regions that either wrote to,
    /// or everything.
    pub copied_bytes: u64,
    /// How many bytes all volumes have.
    pub total_bytes: u64,
}

/// What a half did since the split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinHalf {
    /// The name of the group.
    pub name: String,
    /// How many regions it wrote to.
    pub regions: u64,
    /// How many bytes they have.
    pub bytes: u64,
    /// When it was last opened or closed for writing, or its members changed, in seconds since 1970.
    pub changed_s: u64,
}

/// A half that was looked at.
struct Looked {
    config: Config,
    /// The devices of its members, by their index.
    devices: Vec<(usize, Arc<dyn BlockDevice>)>,
    written: Vec<Vec<u64>>,
}

impl Group {
    /// Lets members that are one whole copy go as a group of their own under a name, also while the
    /// volumes are in use: what was written before the call is on both, and each holds what a power
    /// cut at one moment would leave. Returns their devices, which this group does not use any more;
    /// threads that are idle may hold them for a while.
    ///
    /// # Errors
    /// `Invalid` with the reason when that cannot be, `NotFound`, `Busy` when operations under way do
    /// not end, `Broken`, `Device`; after the last the group may be split: its configuration says so.
    pub fn split(&self, members: &[Which], name: &str) -> Result<Vec<Arc<dyn BlockDevice>>> {
        self.open.runtime.split(members, name)
    }

    /// Says what a join would do and what would be lost. Nothing is written.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn plan_join(
        kept: &[Arc<dyn BlockDevice>],
        other: &[Arc<dyn BlockDevice>],
    ) -> Result<JoinPlan> {
        let (kept, other) = (look(kept)?, look(other)?);
        kept.config.refuse_join(&other.config)?;
        Ok(plan(&kept, &other))
    }

    /// Makes the halves of a split one mirror again, under a name: on devices that the caller has
    /// claimed. What the other half wrote since the split is lost; it is copied over from the kept
    /// one in the background, or by [`sync`](Self::sync). Where the power goes meanwhile, an import
    /// of all devices goes on.
    ///
    /// # Errors
    /// As [`import`](Self::import) of either half; `Foreign` where they are not the halves of one
    /// split, `Invalid` where they do not fit together any more.
    pub fn join(
        kept: &[Arc<dyn BlockDevice>],
        other: &[Arc<dyn BlockDevice>],
        name: &str,
        options: &ImportOptions,
    ) -> Result<Self> {
        check_name(name)?;
        let given = look(other)?;
        look(kept)?.config.refuse_join(&given.config)?;
        let quiet = ImportOptions { background: false, read_only: false, degraded: false };
        let group = Self::import(kept, &quiet)?;
        group.open.runtime.group_state.change(|config| {
            config.refuse_join(&given.config)?;
            config.begin_join(name);
            Ok(())
        })?;
        group.close()?;
        drop(group);
        let holds = |index: usize| given.config.volume_on(index).is_some();
        let (back, idle): (Vec<_>, Vec<_>) =
            given.devices.iter().cloned().partition(|(index, _)| holds(*index));
        let all: Vec<_> =
            kept.iter().cloned().chain(back.into_iter().map(|(_, device)| device)).collect();
        let group = Self::import(&all, options)?;
        for (index, device) in idle {
            group.take_idle(&device, given.config.members[index].state);
        }
        Ok(group)
    }

    /// Takes a member without data of the other half in. One that is refused is left as it is.
    fn take_idle(&self, device: &Arc<dyn BlockDevice>, state: MemberState) {
        let arrival = Arrival { device, force: true };
        let taken = match state {
            MemberState::Spare => self.add_spare(arrival),
            MemberState::Active | MemberState::Failed | MemberState::Stale => {
                self.add_member(arrival)
            }
        };
        if let Err(error) = taken {
            tracing::warn!(group = self.config().name, device = device.name(), %error,
                "a member without data of the half that was joined is not taken in");
        }
    }
}

/// Looks at the labels and logs of a half; nothing is written.
fn look(devices: &[Arc<dyn BlockDevice>]) -> Result<Looked> {
    let (assembly, devices) = runtime::assembled(devices, &ImportOptions::default())?;
    let Assembly { config, places, .. } = assembly;
    let placed = |(index, at): (usize, &Option<usize>)| Some((index, Arc::clone(&devices[(*at)?])));
    let devices: Vec<_> = places.iter().enumerate().filter_map(placed).collect();
    let written = written_regions(&config, &devices)?;
    Ok(Looked { config, devices, written })
}

fn plan(kept: &Looked, other: &Looked) -> JoinPlan {
    let total_bytes: u64 = kept.config.volumes.iter().map(VolumeConfig::size_bytes).sum();
    let bytes_of = |written: &[Vec<u64>]| -> u64 {
        let volumes = kept.config.volumes.iter().zip(written);
        volumes
            .map(|(volume, regions)| {
                let last = volume.size_bytes().div_ceil(volume.region_bytes).saturating_sub(1);
                let short = volume.region_bytes * (last + 1) - volume.size_bytes();
                volume.region_bytes * regions.len() as u64
                    - if regions.contains(&last) { short } else { 0 }
            })
            .sum()
    };
    let half = |looked: &Looked| JoinHalf {
        name: looked.config.name.clone(),
        regions: looked.written.iter().map(|regions| regions.len() as u64).sum(),
        bytes: bytes_of(&looked.written),
        changed_s: looked.config.split.as_ref().map_or(0, |split| split.changed_s),
    };
    let either: Vec<Vec<u64>> = kept
        .written
        .iter()
        .zip(&other.written)
        .map(|(own, theirs)| {
            let all: std::collections::BTreeSet<u64> = own.iter().chain(theirs).copied().collect();
            all.into_iter().collect()
        })
        .collect();
    JoinPlan {
        kept: half(kept),
        lost: half(other),
        split_s: kept.config.split.as_ref().map_or(0, |split| split.split_s),
        copied_bytes: if kept.config.knows_what_is_missing() {
            bytes_of(&either)
        } else {
            total_bytes
        },
        total_bytes,
    }
}
