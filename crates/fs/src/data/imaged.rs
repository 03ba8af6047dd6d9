//! Which extent rows of a file have an image in the newest checkpoint that holds it, so that a
//! redirected write need not ask the tables for each.

use super::DataPath;
use crate::inode::Imaged;
use bedplate_store::{Extent, ExtentChange, PriorRow, PriorRows};

impl DataPath<'_> {
    /// Begins to remember: the map was just read. What was known before may be wrong: the rows may
    /// have changed below it.
    pub(super) fn begin_imaged(self) {
        let mut imaged = Imaged::default();
        imaged.follow(self.cow_epochs().0);
        *self.state().imaged.lock() = imaged;
    }

    /// What is known of rows that are about to change from `old`, and that they have an image from
    /// then on. The map's write lock is held.
    pub(super) fn known(self, changes: &[ExtentChange], old: &[Option<Extent>]) -> PriorRows {
        debug_assert_eq!(changes.len(), old.len(), "I-CKP-3: what every change replaces is known");
        let mut imaged = self.state().imaged.lock();
        imaged.follow(self.cow_epochs().0);
        let rows = changes.iter().zip(old).map(|(change, old)| PriorRow {
            old: old.map(crate::data::mapping::encode),
            imaged: imaged.has_image(change.at().0),
        });
        let known = PriorRows { epoch: imaged.held(), rows: rows.collect() };
        imaged.note(changes.iter().map(|change| change.at().0));
        known
    }
}
