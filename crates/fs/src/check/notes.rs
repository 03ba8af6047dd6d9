//! What a check found, and the rows that would mend it.

use crate::{CheckReport, Epoch, Finding, FindingKind};
use bedplate_store::RowChange;

/// Findings, and the row changes that would mend them.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) report: CheckReport,
    /// Each row at most once, inodes excepted: those are noted at the end.
    pub(super) repairs: Vec<RowChange>,
    /// The rows that would mend what checkpoints show, each with the epoch of its checkpoint.
    pub(super) past: Vec<(Epoch, RowChange)>,
}

impl Notes {
    /// Notes what only a person can decide; `remedy` says what to do.
    pub(super) fn broken(
        &mut self,
        kind: FindingKind,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.note(kind, message.into(), remedy.into(), false);
    }

    /// Notes what has one right answer; `remedy` says what a repair does.
    pub(super) fn mendable(
        &mut self,
        kind: FindingKind,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.note(kind, message.into(), remedy.into(), true);
    }

    /// Notes what a change of one row mends.
    pub(super) fn mend_by(
        &mut self,
        change: RowChange,
        kind: FindingKind,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.repairs.push(change);
        self.mendable(kind, message, remedy);
    }

    fn note(&mut self, kind: FindingKind, message: String, remedy: String, repairable: bool) {
        self.report.findings.push(Finding { kind, message, remedy, repairable, mended: false });
    }
}
