//! What of the log is durable.

use std::sync::Arc;

use super::store::MetaStore;
use crate::Lsn;
use crate::log::LogWatch;

impl MetaStore {
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
