//! The data path of a volume: planning is pure, [`VolumeIo`] acts,
//! [`VolumeQueue`](queue::VolumeQueue) is the list interface, `raid5/` what rows of a RAID-5 need.

mod buffers;
mod device;
mod epoch;
mod fanout;
mod member_check;
pub(crate) mod plan;
mod queue;
pub(crate) mod raid5;
mod relayout_step_state;
mod request;
mod resync;
mod volume_io;

use std::any::Any;
use std::sync::Arc;

pub(crate) use buffers::Buffers;
pub(crate) use device::VolumeDevice;
pub(crate) use epoch::{EpochTable, LayoutEpoch};
pub(crate) use fanout::Lanes;
pub(crate) use relayout_step_state::RelayoutStepState;
pub(crate) use resync::{Synced, part_end};
pub(crate) use volume_io::{ChosenBlocks, VolumeIo};

/// Keeps a group open as long as it lives.
pub(crate) type KeepOpen = Arc<dyn Any + Send + Sync>;
