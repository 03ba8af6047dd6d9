//! What the parts above ask of the metadata and the intent log, which the engine alone reaches.

use std::ops::{Bound, ControlFlow, Range};
use std::sync::Arc;

use super::{AclNote, EPOCH, Engine};
use crate::inode::Unsealed;
use crate::{Epoch, Error, InodeNo, Lsn, Result};
use bedplate_store::{
    Committed, ExtentRow, Locked, LogInfo, LogParts, LogWatch, Others, PlantedBug, Record,
    RowChange, State, Superblock, Table, planted,
};

/// From this epoch on copies of ranges end none: there are so many for checkpoints.
const EPOCHS_TO_END: u32 = 1 << 31;

impl Engine {
    /// Returns the last record of the log.
    #[inline]
    pub(crate) fn last_lsn(&self) -> Lsn {
        self.meta.last_lsn()
    }

    /// Returns the record up to which the log is sealed: a crash keeps all of these or none after.
    #[inline]
    pub(crate) fn sealed_lsn(&self) -> Lsn {
        self.meta.sealed_lsn()
    }

    /// Returns whether a record is durable.
    pub(crate) fn is_durable(&self, lsn: Lsn) -> bool {
        self.meta.is_durable(lsn)
    }

    /// Returns whether records wait for being written to the log.
    pub(crate) fn has_unwritten_records(&self) -> bool {
        self.meta.has_unwritten_records()
    }

    /// Makes the log durable up to a record. No lock is held but, of a file, the inode lock shared.
    #[inline]
    pub(crate) fn sync_to(&self, lsn: Lsn) -> Result<()> {
        self.meta.sync(lsn)?;
        debug_assert!(self.meta.is_durable(lsn), "a sync ends when {lsn:?} is durable");
        Ok(())
    }

    /// Has the log sealed up to a record.
    pub(crate) fn seal_to(&self, lsn: Lsn) -> Result<()> {
        if lsn > self.meta.sealed_lsn() {
            self.meta.seal(lsn)?;
        }
        debug_assert!(lsn <= self.meta.sealed_lsn(), "{lsn:?} was to be sealed");
        Ok(())
    }

    /// Makes sure that no checksum in the log vouches for bytes of the device that are about to be
    /// overwritten (I-IO-3).
    #[inline]
    pub(crate) fn permit_overwrite(&self, unsealed: &Unsealed, bytes: &Range<u64>) -> Result<()> {
        unsealed.permit(bytes, &self.meta)
    }

    /// Returns whether a write or flush has failed, so that nothing changes any more.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.meta.has_failed()
    }

    /// Returns the first write or flush that failed.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.meta.failed()
    }

    /// Has nothing change any more, for a failure that was seen outside of the metadata.
    pub(crate) fn fail(&self, error: Error) {
        self.meta.latch(error);
    }

    /// Returns whether the rows in memory, or the log, are full enough for a metadata commit.
    pub(crate) fn metadata_commit_due(&self) -> bool {
        self.meta.commit_due() || self.meta.log_half_full()
    }

    /// Returns whether a metadata commit should begin now: the rows in memory, or the log, are nearly
    /// as many as there may be.
    pub(crate) fn metadata_commit_wanted(&self) -> bool {
        self.meta.commit_due()
    }

    /// Moves the rows of the log into the metadata tree.
    pub(crate) fn metadata_commit(&self) -> Result<()> {
        self.meta.metadata_commit()
    }

    /// Returns how many blocks the last metadata commit lacked.
    pub(crate) fn metadata_blocks_wanted(&self) -> u64 {
        self.meta.blocks_wanted()
    }

    /// Closes the metadata tree: nothing is read or changed any more.
    pub(crate) fn close_metadata(&self) {
        self.meta.close();
    }

    /// Reads a row of the present.
    pub(crate) fn row(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.meta.get(table, key)
    }

    /// Visits rows of the present in the order of their keys.
    pub(crate) fn scan_rows(
        &self,
        table: Table,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        self.meta.scan(table, from, to, visit)
    }

    /// Visits all rows of a table of the present.
    pub(crate) fn scan_table(
        &self,
        table: Table,
        visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        self.meta.scan_all(table, visit)
    }

    /// Counts the rows of a table in the metadata tree.
    pub(crate) fn row_count(&self, table: Table) -> Result<u64> {
        self.meta.row_count(table)
    }

    /// Reads rows and the set of checkpoints as they are at one moment.
    pub(crate) fn reading<T>(&self, work: impl FnOnce(&State) -> Result<T>) -> Result<T> {
        self.meta.reading(work)
    }

    /// Reads rows and logs records while nothing else does.
    pub(crate) fn exclusively<T>(
        &self,
        work: impl FnOnce(&mut Locked<'_>) -> Result<T>,
    ) -> Result<T> {
        self.meta.exclusively(work)
    }

    /// Logs a record whose extents cover blocks that another file has: of the files, the first one
    /// gave them to the second. Extents that were born in this epoch have it end, so that what either
    /// file is written next is its own at a glance. Where the rows cannot be read the store latches.
    pub(crate) fn commit_shared(&self, mut record: Record, files: [InodeNo; 2]) -> Committed {
        let shared = self.exclusively(|locked| {
            let births = record.rows.iter().filter(|row| row.table == Table::Extent);
            let births = births.filter_map(|row| row.value.as_deref()).map(ExtentRow::decode);
            let newest = births
                .map(|row| row.map(|row| row.birth))
                .try_fold(Epoch(0), |newest, birth| birth.map(|birth| newest.max(birth)))?;
            let ends = newest == self.epoch() && newest.0 < EPOCHS_TO_END;
            if ends {
                let next = (newest.0 + 1).to_le_bytes().to_vec();
                record.rows.push(RowChange::put(Table::Setting, EPOCH.to_vec(), next));
            }
            let others =
                if planted(PlantedBug::RangeUncounted) { Others::Free } else { Others::Covered };
            let committed = locked.commit(record, others)?;
            let set = locked.checkpoint_set();
            set.cloned.extend(files);
            set.cloned_upto = set.cloned_upto.max(newest);
            if ends {
                self.begin_epoch(Epoch(newest.0 + 1));
            }
            Ok(committed)
        });
        if self.metadata_commit_wanted() {
            self.sync_waker.wake();
        }
        shared.unwrap_or_else(|error| {
            self.fail(error);
            Committed { lsn: self.last_lsn(), freed: Some(Vec::new()) }
        })
    }

    /// Refuses a record that the log has no room for while the metadata cannot grow.
    pub(crate) fn need_log_room(&self, record: &Record) -> Result<()> {
        self.meta.need_log_room(record)
    }

    /// Returns how the log is filled and what it did.
    pub(crate) fn log_info(&self) -> LogInfo {
        self.meta.log_info()
    }

    /// Lets the log go on in another place, which is prepared, and the volume under the identity
    /// that the log has there.
    pub(crate) fn move_log_to(&self, parts: &LogParts) -> Result<()> {
        let place = |bytes: u64| self.place_metadata(bytes);
        let left = self.meta.move_log(parts, &place)?;
        self.give_back_metadata(&left);
        Ok(())
    }

    /// Has the log tell how far it is, from now on. The first watch stays.
    pub(crate) fn watch_log(&self, watch: Arc<dyn LogWatch>) {
        self.meta.watch(watch);
    }

    /// Returns the superblock.
    pub(crate) fn superblock(&self) -> Superblock {
        self.meta.region().superblock()
    }

    /// Returns whether the format of the volume has checksums of file data.
    pub(crate) fn may_have_sums(&self) -> bool {
        self.may_have_sums
    }

    /// Writes a changed superblock; durable when it returns.
    pub(crate) fn update_superblock(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        self.meta.region().update_superblock(change)
    }

    /// Returns what is known of the volume's access control lists.
    pub(crate) fn acl_note(&self) -> &AclNote {
        &self.acl_note
    }

    /// Takes over what the volume holds of the space policy, access control lists and schedules.
    pub(crate) fn load_policies(&self) -> Result<()> {
        self.space_policy.load(&self.meta)?;
        self.acl_note.load(&self.meta)?;
        self.lock_schedules().load(&self.meta)
    }

    /// Returns the metadata themselves, for tests that go below the engine.
    #[cfg(test)]
    pub(crate) fn metadata(&self) -> &bedplate_store::MetaStore {
        &self.meta
    }
}
