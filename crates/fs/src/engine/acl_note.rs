//! Whether anything on the volume has an access control list. It is noted with the first one and
//! stays: where there is none, nothing that is made, and no `chmod`, looks for one.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bedplate_store::{MetaStore, PlantedBug, RowChange, Table, planted};

use crate::Result;

/// The setting, whose presence counts.
pub(crate) const ACLS: &[u8] = b"acls";

/// What is known of the volume's lists. A change of a list holds the names of its inode, and so
/// does what looks for it.
#[derive(Debug, Default)]
pub(crate) struct AclNote {
    /// There may be lists.
    may_be: AtomicBool,
    /// The setting is logged, before or in the record of every list.
    is_logged: AtomicBool,
}

impl AclNote {
    /// Takes over what the volume holds.
    pub(crate) fn load(&self, meta: &MetaStore) -> Result<()> {
        if meta.get(Table::Setting, ACLS)?.is_some() {
            self.may_be.store(true, Relaxed);
            self.is_logged.store(true, Relaxed);
        }
        Ok(())
    }

    /// Returns whether there may be lists.
    pub(crate) fn may_be(&self) -> bool {
        self.may_be.load(Relaxed)
    }

    /// Notes that a list is about to be logged; returns the row that belongs into its record.
    pub(crate) fn will_be_set(&self) -> Option<RowChange> {
        self.may_be.store(true, Relaxed);
        let is_known = self.is_logged.load(Relaxed) || planted(PlantedBug::AclNotNoted);
        (!is_known).then(|| RowChange::put(Table::Setting, ACLS.to_vec(), vec![1]))
    }

    /// Notes that a record with a list and the row is in the log.
    pub(crate) fn is_set(&self) {
        self.is_logged.store(true, Relaxed);
    }
}
