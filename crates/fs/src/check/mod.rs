//! Checking an unmounted volume, and mending what can be mended without guessing.
//!
//! A check changes nothing: the log is replayed in memory and the tree's own writes go to an
//! overlay. Then [`STEPS`] look at the rows, each at what it knows about; a table that comes new
//! gets a step of its own.
//!
//! Only a repair writes, and only where *everything* that is wrong has one right answer: what needs
//! a guess in one place makes every other answer doubtful, so then nothing is written at all and
//! what reads well is to be copied out. The repairs of all steps are one log record: a power cut
//! leaves the volume as it was or mended.
//!
//! Invariants:
//! - I-CHK-1: a check, and a repair that refuses, write nothing.
//! - I-CHK-2: a repair that is cut short leaves a volume that a repair can mend.
//! - I-CHK-3: a repair changes what a checkpoint shows only where something is wrong in it.

mod attributes;
mod checkpoints;
mod data;
mod extents;
mod inodes;
mod lost;
mod names;
mod notes;
mod past;
mod repair;
mod report;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use bedplate_block::BlockDevice;

use crate::mount::{Loaded, load};
use crate::{Error, ErrorKind, InodeNo, Result};
use bedplate_store::{Checkpoint, MetaStore, Region, Superblock, Table, guarded, open_tree};
use inodes::Inodes;
pub(crate) use lost::free_name;
use notes::Notes;
pub use report::{CheckReport, Finding, FindingKind};

/// Cap of the tree's cache during a check.
const CACHE_BYTES: u64 = 64 << 20;

/// What to do where the tree itself is damaged.
const COPY_OUT: &str = "copy out what can still be read with 'bedplate salvage'";

/// What the steps look at and leave for each other.
struct Examined<'a> {
    meta: &'a MetaStore,
    superblock: &'a Superblock,
    /// The checkpoint that is looked at; `None`: the present.
    moment: Option<Arc<Checkpoint>>,
    inodes: Inodes,
    /// Names of the root that a `lost+found` must not take.
    taken: BTreeSet<Vec<u8>>,
    /// The `lost+found` that a repair makes.
    lost_and_found: Option<InodeNo>,
    notes: Notes,
}

impl Examined<'_> {
    /// Visits every row of a table, as the moment shows it, with what the steps know.
    fn each_row(
        &mut self,
        table: Table,
        mut visit: impl FnMut(&mut Self, &[u8], &[u8]),
    ) -> Result<()> {
        let meta = self.meta;
        if let Some(checkpoint) = self.moment.clone() {
            return meta.reading(|state| {
                past::scan(state, &checkpoint, table, |key, value| visit(self, key, value))
            });
        }
        meta.scan_all(table, |key, value| {
            visit(self, key, value);
            Ok(ControlFlow::Continue(()))
        })
    }
}

/// The steps, in order: a later one relies on what earlier ones noted.
const STEPS: [fn(&mut Examined<'_>) -> Result<()>; 11] = [
    inodes::read,
    inodes::read_orphans,
    extents::check_claims,
    extents::check_owners,
    names::check,
    attributes::check,
    names::check_tree,
    inodes::check_counts,
    settings::check,
    checkpoints::check,
    past::check,
];

/// Checks; see [`FileSystem::check`](crate::FileSystem::check).
pub(crate) fn check(
    device: &Arc<dyn BlockDevice>,
    log: Option<&Arc<dyn BlockDevice>>,
    repair: bool,
) -> Result<CheckReport> {
    let mut notes = examine(device, log, false)?;
    if repair && !notes.report.findings.is_empty() && notes.report.is_repairable() {
        repair::mend(device, log, &mut notes)?;
    }
    Ok(notes.report)
}

/// Checks, and reads what has checksums; see
/// [`FileSystem::check_data`](crate::FileSystem::check_data).
pub(crate) fn check_data(
    device: &Arc<dyn BlockDevice>,
    log: Option<&Arc<dyn BlockDevice>>,
) -> Result<CheckReport> {
    Ok(examine(device, log, true)?.report)
}

/// Looks at everything, at `data` only where it is asked for; writes nothing (I-CHK-1).
fn examine(
    device: &Arc<dyn BlockDevice>,
    log: Option<&Arc<dyn BlockDevice>>,
    data: bool,
) -> Result<Notes> {
    let mut notes = Notes::default();
    let loaded =
        check_tree(device).and_then(|()| load(Arc::clone(device), log.cloned(), true, CACHE_BYTES));
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(e) if e.kind == ErrorKind::Corrupt => {
            notes.broken(FindingKind::Metadata, e.message, COPY_OUT);
            return Ok(notes);
        }
        Err(e) => return Err(e),
    };
    check_head(&loaded, &mut notes);
    let mut examined = Examined {
        meta: &loaded.meta,
        superblock: &loaded.found.superblock,
        moment: None,
        inodes: Inodes::new(),
        taken: BTreeSet::new(),
        lost_and_found: None,
        notes,
    };
    for step in STEPS {
        match step(&mut examined) {
            // A page of the tree that cannot be read: what comes after it would be told wrong.
            Err(e) if e.kind == ErrorKind::Corrupt => {
                examined.notes.broken(FindingKind::Metadata, e.message, COPY_OUT);
                return Ok(examined.notes);
            }
            other => other?,
        }
    }
    if data {
        data::check(&mut examined, device)?;
    }
    let Examined { inodes, mut notes, .. } = examined;
    inodes::note_repairs(&inodes, &mut notes);
    Ok(notes)
}

/// Asks the tree to check itself, on an overlay.
fn check_tree(device: &Arc<dyn BlockDevice>) -> Result<()> {
    let superblock = Superblock::read(device)?.superblock;
    if device.size_bytes() < superblock.size_bytes {
        return Ok(()); // `load` refuses it with the sizes
    }
    let region = Arc::new(Region::new(Arc::clone(device), superblock, true));
    let mut db = open_tree(&region, CACHE_BYTES)?;
    guarded(|| match db.check_integrity() {
        Ok(true) => Ok(()),
        Ok(false) => {
            Err(Error::corrupt("the metadata tree is damaged: its checksums do not match"))
        }
        Err(e) => Err(Error::corrupt(format!("the metadata tree is damaged: {e}"))),
    })
}

fn check_head(loaded: &Loaded, notes: &mut Notes) {
    notes.report.clean_unmount = loaded.found.superblock.clean;
    notes.report.log_records = loaded.replayed.records;
    for damage in &loaded.found.damage {
        notes.mendable(
            FindingKind::Superblock,
            damage,
            "a repair writes it again from the other copy",
        );
    }
    if let Some(damage) = &loaded.replayed.damaged {
        // There is nothing to guess: what is lost is lost, and a new incarnation of the log starts
        // behind what was saved.
        notes.mendable(
            FindingKind::Log,
            damage,
            "a repair keeps the records before them and takes the loss",
        );
    }
}
