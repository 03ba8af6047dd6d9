//! The past: what a checkpoint shows is a file system, and the steps that look at the present look
//! at it too.
//!
//! ```text
//!   present ─► newest checkpoint ─► … ─► oldest         a finding that a moment shares with the next newer ones is told once
//!      └───────────── repairs, each with its moment ──► one record: rows of the present, and an image for every checkpoint that shows the row
//! ```
//!
//! Of what is wrong there, counts and values that the rows beside them disprove have one right
//! answer, and so has what is wrong in the present in the same way. A row that is missing, or one
//! too many, may be that of another moment: which one is a guess.
//!
//! A repair changes what a moment shows only where something is wrong in it: every checkpoint that
//! could see a mended row gets an image of its own (I-CHK-3).

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use super::inodes::{self, Inodes};
use super::notes::Notes;
use super::{Examined, attributes, extents, names};
use crate::{Epoch, ErrorKind, FileKind, Finding, FindingKind, InodeNo, Result};
use bedplate_store::{
    Bytes, Checkpoint, CheckpointSet, MetaStore, RowChange, State, Table, has_before_images,
    load_checkpoints, put_image, scope_key, split_before_key, split_key, split_scope_key,
};

/// What to do about a checkpoint that contradicts itself.
pub(super) const DELETE: &str = "the present is not touched by it: save from the checkpoint what \
                                 still reads well, then delete it";

/// What has one right answer in the past too: inodes and names say it themselves, and what
/// disproves them stands beside them.
const DISPROVED: [FindingKind; 8] = [
    FindingKind::LinkCount,
    FindingKind::AllocatedSize,
    FindingKind::Size,
    FindingKind::Mode,
    FindingKind::NameKind,
    FindingKind::Parent,
    FindingKind::Row,
    FindingKind::Birth,
];

/// The steps that look at one moment. Where extents lie on the volume was looked at for all moments
/// at once.
const STEPS: [fn(&mut Examined<'_>) -> Result<()>; 7] = [
    inodes::read,
    inodes::read_orphans,
    extents::check_owners,
    names::check,
    attributes::check,
    names::check_tree,
    inodes::check_counts,
];

/// Looks at every checkpoint.
pub(super) fn check(examined: &mut Examined<'_>) -> Result<()> {
    let checkpoints = match load_checkpoints(examined.meta) {
        Ok(checkpoints) => checkpoints,
        Err(e) if e.kind == ErrorKind::Corrupt => return Ok(()), // named by `checkpoints::check`
        Err(e) => return Err(e),
    };
    check_belonging(examined, &checkpoints)?;
    examined.meta.set_checkpoints(CheckpointSet {
        checkpoints: checkpoints.clone(),
        ..CheckpointSet::default()
    });
    let mut told: BTreeMap<String, bool> = examined
        .notes
        .report
        .findings
        .iter()
        .map(|finding| (finding.message.clone(), finding.repairable))
        .collect();
    for checkpoint in checkpoints.iter().rev().filter(|one| !one.row.deleting) {
        check_moment(examined, checkpoint, &mut told)?;
    }
    Ok(())
}

/// Looks at what one checkpoint shows. `told` holds what newer moments were found to show, and
/// whether it can be mended there.
fn check_moment(
    examined: &mut Examined<'_>,
    checkpoint: &Arc<Checkpoint>,
    told: &mut BTreeMap<String, bool>,
) -> Result<()> {
    let mut moment = Examined {
        meta: examined.meta,
        superblock: examined.superblock,
        moment: Some(Arc::clone(checkpoint)),
        inodes: Inodes::new(),
        taken: BTreeSet::new(),
        lost_and_found: None,
        notes: Notes::default(),
    };
    let outcome = STEPS.iter().try_for_each(|step| step(&mut moment));
    let name = checkpoint.row.name.escape_ascii();
    match outcome {
        Err(e) if e.kind == ErrorKind::Corrupt => {
            examined.notes.broken(
                FindingKind::Checkpoint,
                format!("what checkpoint '{name}' shows cannot be read: {e}"),
                DELETE,
            );
        }
        other => other?,
    }
    check_members(&mut moment, checkpoint);
    let Examined { inodes, notes, .. } = &mut moment;
    inodes::note_repairs(inodes, notes);
    for finding in &notes.report.findings {
        let mendable = is_mendable(finding, told);
        if told.insert(finding.message.clone(), mendable) == Some(mendable) {
            continue;
        }
        let message = format!("in checkpoint '{name}' {}", finding.message);
        match mendable {
            true => {
                examined.notes.mendable(FindingKind::Checkpoint, message, finding.remedy.clone());
            }
            false => examined.notes.broken(FindingKind::Checkpoint, message, DELETE),
        }
    }
    examined.notes.past.extend(notes.repairs.drain(..).map(|change| (checkpoint.epoch, change)));
    Ok(())
}

/// Whether what is wrong in a checkpoint has one right answer.
fn is_mendable(finding: &Finding, told: &BTreeMap<String, bool>) -> bool {
    let as_in_the_present = told.get(&finding.message).is_some_and(|mendable| *mendable);
    // A name in `/lost+found` would be one that the moment did not have.
    finding.repairable
        && finding.kind != FindingKind::Unreachable
        && (DISPROVED.contains(&finding.kind) || as_in_the_present)
}

/// Images and scopes: of inodes that their checkpoint holds, or of directories that lead to those.
fn check_belonging(examined: &mut Examined<'_>, checkpoints: &[Arc<Checkpoint>]) -> Result<()> {
    let of = |epoch: Epoch| checkpoints.iter().find(|checkpoint| checkpoint.epoch == epoch);
    examined.each_row(Table::Before, |examined, key, _| {
        let Ok((epoch, table, row)) = split_before_key(key) else { return };
        let (Some(checkpoint), Ok((ino, _))) = (of(epoch), split_key(row)) else { return };
        let leads_on =
            checkpoint.members.is_some() && matches!(table, Table::Inode | Table::Dentry);
        if !checkpoint.holds(ino) && !leads_on {
            let message = format!(
                "checkpoint '{}' keeps a row of inode {}, which does not belong to it",
                checkpoint.row.name.escape_ascii(),
                ino.0
            );
            examined.notes.broken(FindingKind::Checkpoint, message, DELETE);
        }
    })?;
    examined.each_row(Table::Scope, |examined, key, _| {
        let Ok((epoch, ino)) = split_scope_key(key) else { return };
        if let Some(checkpoint) = of(epoch).filter(|checkpoint| checkpoint.members.is_none()) {
            let message = format!(
                "inode {} is listed for checkpoint '{}', which is of everything",
                ino.0,
                checkpoint.row.name.escape_ascii()
            );
            let remedy = "a repair removes the entry: nothing reads it";
            examined.notes.mend_by(
                RowChange::delete(Table::Scope, scope_key(epoch, ino)),
                FindingKind::Leftover,
                message,
                remedy,
            );
        }
    })
}

/// What belongs to a checkpoint of named files is in it.
fn check_members(moment: &mut Examined<'_>, checkpoint: &Checkpoint) {
    let members: BTreeSet<InodeNo> = checkpoint.members.iter().flatten().copied().collect();
    for ino in members
        .into_iter()
        .filter(|ino| !checkpoint.holds(*ino) || !moment.inodes.contains_key(ino))
    {
        moment.notes.broken(
            FindingKind::Checkpoint,
            format!("there is no inode {}, which belongs to it", ino.0),
            DELETE,
        );
    }
}

/// Whether more names may lead to an inode than the checkpoint shows: of named files it shows no
/// name elsewhere, and of the directories that lead to them no other name.
pub(super) fn shows_some_names(checkpoint: &Checkpoint, ino: InodeNo, kind: FileKind) -> bool {
    checkpoint.members.is_some() && (kind != FileKind::Directory || !checkpoint.holds(ino))
}

/// Completes the repairs of the present: adds, for every row that is mended in some moment, an
/// image to each checkpoint that shows it (I-CHK-3).
pub(super) fn with_images(
    meta: &MetaStore,
    mut rows: Vec<RowChange>,
    past: &[(Epoch, RowChange)],
) -> Result<Vec<RowChange>> {
    let changes = rows.iter().chain(past.iter().map(|(_, change)| change));
    let keys: BTreeSet<(Table, Bytes)> = changes
        .filter(|change| has_before_images(change.table))
        .map(|change| (change.table, change.key.clone()))
        .collect();
    let mended: BTreeMap<_, _> = past
        .iter()
        .map(|(epoch, change)| {
            ((*epoch, change.table, change.key.as_slice()), change.value.as_deref())
        })
        .collect();
    let images = meta.reading(|state| {
        let mut images = Vec::new();
        for (table, key) in &keys {
            // One that is being deleted is looked through by older ones, which get their own here.
            for checkpoint in state.checkpoint_set.listed() {
                let row = match mended.get(&(checkpoint.epoch, *table, key.as_slice())) {
                    Some(row) => row.map(<[u8]>::to_vec),
                    None => state.get_at(checkpoint.epoch, *table, key)?,
                };
                if row.is_some() || checkpoint.holds(split_key(key)?.0) {
                    images.push(put_image(checkpoint.epoch, *table, key, row.as_deref()));
                }
            }
        }
        Ok(images)
    })?;
    rows.extend(images);
    Ok(rows)
}

/// Visits the rows of a table as a moment shows them.
pub(super) fn scan(
    state: &State,
    checkpoint: &Checkpoint,
    table: Table,
    mut visit: impl FnMut(&[u8], &[u8]),
) -> Result<()> {
    state.scan_at(checkpoint.epoch, table, (Bound::Unbounded, Bound::Unbounded), |key, value| {
        visit(key, value);
        Ok(ControlFlow::Continue(()))
    })
}
