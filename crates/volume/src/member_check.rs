//! Members that something else wrote over while the group is open: found by their labels, not read any more from then on, and taken out (S-130).
//!
//! ```text
//!   label looked at:  before every label is written · every three seconds while regions are dirty, else every minute · when status is asked for
//!                     before one copy is written over from another, and before a copy that was made counts
//! ```
//! What a member holds that was overwritten is nothing that anybody wrote to the volume. So whatever was copied while one was found to be is copied again:
//! [`overwritten_count`](crate::shared::Shared::overwritten_count) before and after tells.

use std::sync::atomic::Ordering;

use block::{ErrorKind, Operation, Result};

use crate::core::Core;
use crate::group::Inner;
use crate::regions::{BEHIND, DIRTY};
use crate::space::Space;
use crate::{Group, MemberState};

impl Group {
    /// Compares the label of every member with what was written there last. A member that something else wrote over is not read any more and leaves
    /// the group as one that fails does, and if it comes back all of it is copied. The background thread calls it now and then.
    ///
    /// # Errors
    /// `Broken` or `Device` where the group is not whole without such a member: nothing is read from it, and nothing written to its volume any more.
    pub fn check_members(&self) -> crate::Result<()> {
        self.open.inner.check_members()
    }
}

impl Inner {
    pub fn check_members(&self) -> crate::Result<()> {
        let checked: Vec<Result<()>> = self.cores.iter().map(|core| core.check_members(&core.spaces.peek())).collect();
        let without_data = |index: usize| !self.cores.iter().any(|core| core.spaces.peek().members.contains(&index));
        for (live, error) in self.shared.find_overwritten(&without_data) {
            self.shared.fail(&live, &error)?;
        }
        Ok(checked.into_iter().collect::<Result<()>>()?)
    }

    /// Has everything copied again to members that are being brought up to date, if a member was found overwritten that it may have been copied from.
    /// Returns whether it has. The caller keeps members from coming meanwhile.
    pub fn copy_again(&self) -> bool {
        let found = self.shared.overwritten_count();
        if self.copied_under.swap(found, Ordering::AcqRel) == found {
            return false;
        }
        let config = self.shared.config();
        for space in self.cores.iter().map(|core| core.spaces.peek()) {
            let Some(redundancy) = &space.redundancy else { continue };
            if space.members.iter().any(|member| config.members[*member].state == MemberState::Stale) {
                // What a member misses is in the log until it is up to date.
                let regions = &redundancy.regions;
                (0..regions.count()).filter(|region| regions.has(*region, DIRTY)).for_each(|region| regions.set(region, BEHIND));
            }
        }
        true
    }
}

impl Core {
    /// As [`Group::check_members`], of the members of a space.
    pub fn check_members(&self, space: &Space) -> Result<()> {
        let found = self.shared.find_overwritten(&|index| space.members.contains(&index));
        if found.is_empty() {
            return Ok(());
        }
        if self.shared.read_only {
            let left = found.iter().try_for_each(|(live, error)| self.shared.fail(live, error));
            return left.map_err(|broken| self.error(ErrorKind::Io, Operation::Read, None, broken.message));
        }
        let settled = self.settle(found);
        if let Err(error) = &settled {
            self.latch(error);
        }
        settled
    }

    /// Returns whether a member was found overwritten since so many were: then what was read meanwhile may be from it.
    pub fn is_overwritten_since(&self, space: &Space, count: u64) -> Result<bool> {
        self.check_members(space)?;
        Ok(self.shared.overwritten_count() != count)
    }
}
