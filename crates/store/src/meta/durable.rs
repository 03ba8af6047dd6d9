//! What of the log is durable.

use std::sync::Arc;

use super::store::MetaStore;
use crate::log::{LogWatch, SyncOutcome};
use crate::{Lsn, Result};

impl MetaStore {
    /// Makes sure that recovery accepts every record up to `lsn` without looking at the data it
    /// exposes.
    pub fn seal(&self, lsn: Lsn) -> Result<()> {
        self.check()?;
        match self.log.get().map(|log| log.seal(lsn)).transpose()? {
            None | Some(SyncOutcome::Durable) => Ok(()),
            Some(SyncOutcome::NeedsCommit) => self.metadata_commit(),
        }
    }

    /// Makes it safe to overwrite, in place, bytes that record `lsn` exposed.
    pub fn permit_overwrite(&self, lsn: Lsn) -> Result<()> {
        self.check()?;
        match self.log().permit_overwrite(lsn)? {
            SyncOutcome::Durable => Ok(()),
            SyncOutcome::NeedsCommit => self.metadata_commit(),
        }
    }

    /// Returns whether a record is durable already.
    pub fn is_durable(&self, lsn: Lsn) -> bool {
        self.log.get().is_none_or(|log| lsn <= log.durable_lsn())
    }

    /// Has the log tell `watch` how far it is, from now on. Only the first watch is told.
    pub fn watch(&self, watch: Arc<dyn LogWatch>) {
        if let Some(log) = self.log.get() {
            log.watch(watch);
        }
    }

    /// Returns whether records wait to be written.
    pub fn has_unwritten_records(&self) -> bool {
        self.log.get().is_some_and(|log| log.last_lsn() > log.durable_lsn())
    }
}
