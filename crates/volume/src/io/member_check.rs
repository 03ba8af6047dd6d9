//! Members that something else wrote over while the group is open: found by their labels, not read
//! any more from then on, and taken out (S-130).
//!
//! ```text
//!   label looked at:  before every label is written · every three seconds while regions are dirty, else every minute · when status is asked for
//!                     before one copy is written over from another, and before a copy that was made counts
//! ```
//! What a member holds that was overwritten was never written to the volume. So whatever was copied
//! while one was found to be is copied again:
//! [`overwritten_count`](crate::group::GroupState::overwritten_count) before and after tells.

use bedplate_block::{ErrorKind, Operation, Result};

use super::epoch::LayoutEpoch;
use super::volume_io::VolumeIo;

impl VolumeIo {
    /// Compares the labels of the members of an epoch with what was written there last; one that
    /// something else wrote over leaves.
    pub fn check_members(&self, epoch: &LayoutEpoch) -> Result<()> {
        let found = self.group_state.find_overwritten(&|index| epoch.members.contains(&index));
        if found.is_empty() {
            return Ok(());
        }
        if self.group_state.read_only {
            let left =
                found.iter().try_for_each(|(handle, error)| self.group_state.fail(handle, error));
            return left.map_err(|broken| {
                self.error(ErrorKind::Io, Operation::Read, None, broken.message)
            });
        }
        let left = self.fail_members(found);
        if let Err(error) = &left {
            self.latch(error);
        }
        left
    }

    /// Returns whether a member was found overwritten since so many were: then what was read
    /// meanwhile may be from it.
    pub fn is_overwritten_since(&self, epoch: &LayoutEpoch, count: u64) -> Result<bool> {
        self.check_members(epoch)?;
        Ok(self.group_state.overwritten_count() != count)
    }
}
