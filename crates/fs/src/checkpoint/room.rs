//! A full volume: what becomes of checkpoints when the files of the present need their blocks.
//!
//! ```text
//!   a change finds no blocks ─► it lets go of every lock ─► blocks deferred, or a deletion under way? ─ yes ─► try again
//!                                                            └ no ─► refuse? ─ yes ─► "no space"
//!                                                                     └ delete-oldest: would all that may go make room for the whole change?
//!                                                                          no ─► "no space", and nothing is deleted
//!                                                                          yes ─► the oldest goes, until there is room ─► try again
//! ```
//!
//! A change may ask for its blocks in parts (the edges of a write are copied, a large cached write
//! comes in pieces), so what counts is its *demand*: what all of it would take, once with the
//! checkpoints that there are and once without those that may go, because what only they share is
//! then written in place.
//!
//! Only automatic checkpoints that are not marked as kept may go. This is called with no lock held,
//! because a deletion holds all changes back.

use super::deletion::would_free;
use crate::engine::{CheckpointCounts, Engine, SPACE_POLICY, SpacePolicy};
use crate::{Epoch, Error, ErrorKind, Result};
use bedplate_store::{Checkpoint, PlantedBug, RecordKind, RowChange, Table, planted};

/// How many blocks a change needs in all, were the checkpoints of some epochs gone.
pub(crate) type Demand<'a> = dyn Fn(&[Epoch]) -> Result<u64> + 'a;

impl Engine {
    /// Sets what happens to checkpoints when the volume is full; durable when it returns.
    pub(crate) fn set_space_policy(&self, policy: SpacePolicy) -> Result<()> {
        self.begin_change()?;
        let _names = self.lock_names();
        let value = vec![u8::from(policy == SpacePolicy::DeleteOldest)];
        let lsn = self.commit(
            RecordKind::Setting,
            vec![RowChange::put(Table::Setting, SPACE_POLICY.to_vec(), value)],
        );
        self.space_policy().set_policy(policy);
        self.sync_to(lsn)
    }

    /// Counts the checkpoints.
    pub(crate) fn checkpoint_counts(&self) -> CheckpointCounts {
        let counts = self.reading(|rows| {
            let all = || rows.checkpoint_set.listed().filter(|one| !one.row.is_passing());
            Ok((
                all().count() as u64,
                all().filter(|checkpoint| checkpoint.is_removable()).count() as u64,
            ))
        });
        let (count, removable) = counts.expect("nothing is read from the device");
        CheckpointCounts {
            count,
            removable,
            deleting: self.deletion_count(),
            policy: self.space_policy().policy(),
            deleted_for_space: self.space_policy().deleted(),
        }
    }

    /// Runs a change that asks once for all the blocks it needs, and again each time that room
    /// could be made for it. The caller holds no lock.
    pub(crate) fn with_room<T>(&self, mut change: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            match change() {
                Err(error) if error.kind == ErrorKind::NoSpace => {
                    let wanted = error.blocks_wanted;
                    self.make_room(error, &|_| Ok(wanted))?;
                }
                other => return other,
            }
        }
    }

    /// Makes room for a change that was refused; fails as it did where there is none to be made.
    /// `demand` says how many blocks all of the change needs once the checkpoints of some epochs
    /// are gone.
    #[cold]
    pub(crate) fn make_room(&self, refused: Error, demand: &Demand<'_>) -> Result<()> {
        // A device that is full below a volume, as a sparse image may be, gets no fuller or emptier
        // by what is done here.
        if refused.blocks_wanted == 0 {
            return Err(refused);
        }
        // Blocks that left files may be waiting for a thread that holds no lock.
        // Processes with leases have blocks that they may never fill.
        if self.free_deferred() || self.end_tails(None)? {
            return Ok(());
        }
        if self.begin_removal().is_err() {
            return Err(refused);
        }
        // What is deleted already frees its blocks behind the mount: this change may need them now.
        if self.free_by_deletions(refused.blocks_wanted) {
            return Ok(());
        }
        if self.space_policy().policy() == SpacePolicy::Refuse
            && !planted(PlantedBug::PolicyIgnored)
        {
            return Err(self.with_advice(refused));
        }
        let _one = self.lock_room();
        // Another thread may have made room meanwhile.
        if self.would_fit(demand(&[])?.max(refused.blocks_wanted)) || self.delete_oldest(demand)? {
            Ok(())
        } else {
            Err(refused)
        }
    }

    /// Deletes as many of the oldest checkpoints that may go as it takes to meet a demand, and
    /// returns whether any; none where all of them would not do.
    fn delete_oldest(&self, demand: &Demand<'_>) -> Result<bool> {
        if self.free_by_deletions(demand(&[])?) && self.would_fit(demand(&[])?) {
            return Ok(true);
        }
        // What the others hold alone shows once they are gone.
        self.end_deletions()?;
        let mut may_go = self.all_checkpoints();
        may_go.retain(|checkpoint| {
            checkpoint.is_removable() && !self.is_looked_into(checkpoint.epoch)
        });
        // One that was deleted meanwhile frees nothing here, and nothing below.
        let freed_bytes =
            self.reading(|rows| would_free(rows, &may_go, self.block_size()))?.alone_bytes;
        let epochs: Vec<Epoch> = may_go.iter().map(|checkpoint| checkpoint.epoch).collect();
        if freed_bytes / u64::from(self.block_size()) < self.blocks_lacking(demand(&epochs)?) {
            return Ok(false);
        }
        let mut any = false;
        for checkpoint in may_go {
            let name = &checkpoint.row.name;
            let as_it_was =
                |found: &Checkpoint| found.epoch == checkpoint.epoch && found.is_removable();
            match self.remove_checkpoint(name, as_it_was) {
                // It is read, or kept from now on, or was deleted: the next one, then.
                Err(error) if matches!(error.kind, ErrorKind::Busy | ErrorKind::NotFound) => {
                    continue;
                }
                other => other?,
            }
            self.space_policy().count_deleted();
            tracing::warn!(
                event = "checkpoint_deleted_for_space",
                "the volume is full: checkpoint '{}' was deleted, as the policy 'delete-oldest' \
                 says",
                bedplate_store::told_name(name)
            );
            self.free_deferred();
            any = true;
            if self.would_fit(demand(&[])?) {
                break;
            }
        }
        Ok(any)
    }

    /// Deletes the oldest checkpoints, where that is the policy, once metadata has eaten into what
    /// is kept for it, or asked for more than is free. Called with no lock held.
    pub(crate) fn relieve_metadata(&self) {
        let beyond = self.metadata_blocks_wanted().saturating_sub(self.space_totals().reserve);
        if self.would_fit(beyond) || self.space_policy().policy() == SpacePolicy::Refuse {
            return;
        }
        let _one = self.lock_room();
        if let Err(error) = self.delete_oldest(&|_| Ok(beyond)) {
            tracing::warn!(
                "metadata takes the last blocks, and no checkpoint could be deleted for it: {error}"
            );
        }
    }

    /// Says what a person can do about a full volume that has checkpoints.
    fn with_advice(&self, refused: Error) -> Error {
        let counts = self.checkpoint_counts();
        if counts.count == 0 || counts.policy == SpacePolicy::DeleteOldest {
            return refused;
        }
        let advice = "checkpoints may hold space: delete some, or let a full volume do so \
                      ('bedplate checkpoint policy VOLUME delete-oldest')";
        Error { message: format!("{}; {advice}", refused.message), ..refused }
    }
}
