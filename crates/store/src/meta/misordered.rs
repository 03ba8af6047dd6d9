//! The planted mistake of a store that logs records in another order than it shows them: see
//! `PlantedBug::LoggedOutOfOrder`.

#[cfg(any(test, feature = "planted-bugs"))]
use std::cell::RefCell;

use crate::log::Record;
#[cfg(any(test, feature = "planted-bugs"))]
use crate::{
    log::RecordKind,
    planted::{PlantedBug, planted},
    row::{RowChange, Table},
};

#[cfg(any(test, feature = "planted-bugs"))]
thread_local! {
    /// What this thread changed and did not log yet.
    static UNLOGGED: RefCell<Vec<RowChange>> = const { RefCell::new(Vec::new()) };
}

/// Returns what is logged instead of a record where the order is wrong.
#[cfg(any(test, feature = "planted-bugs"))]
pub(super) fn logged_instead(record: &Record) -> Option<Record> {
    if !planted(PlantedBug::LoggedOutOfOrder) {
        return None;
    }
    UNLOGGED.with_borrow_mut(|unlogged| {
        if record.kind == RecordKind::Xattr {
            let (late, rows) =
                record.rows.iter().cloned().partition(|row| row.table == Table::Xattr);
            unlogged.extend::<Vec<_>>(late);
            return Some(Record { kind: record.kind, rows, exposes: None, barrier: false });
        }
        let rows = unlogged.drain(..).chain(record.rows.iter().cloned()).collect();
        Some(Record {
            kind: record.kind,
            rows,
            exposes: record.exposes.clone(),
            barrier: record.barrier,
        })
    })
}

/// Without planted mistakes every record is logged in order.
#[cfg(not(any(test, feature = "planted-bugs")))]
pub(super) const fn logged_instead(_: &Record) -> Option<Record> {
    None
}
