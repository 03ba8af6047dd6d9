//! Checking an unmounted volume, and mending what can be mended without guessing.
//!
//! A check changes nothing: the log is replayed in memory and the tree's own writes go to an overlay. Only `repair` writes, and only
//! what has one right answer: superblock copies, link counts, allocated sizes, rows that belong to no inode, names that lead nowhere.
//! What would need a guess (two extents over one block, an inode nobody names, a damaged tree) is reported and left alone.

mod extents;
mod names;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use block::BlockDevice;

use crate::log::{Record, RecordKind};
use crate::meta::{MetaStore, Region, guarded, open_tree};
use crate::mount::{Loaded, LogDamage, load, mount};
use crate::row::{InodeRow, RowChange, Table, inode_key, split_key};
use crate::superblock::Superblock;
use crate::{CheckReport, Error, ErrorKind, FileKind, Finding, FindingKind, InodeNo, Result};

/// Cap of the tree's cache during a check.
const CACHE_BYTES: u64 = 64 << 20;

/// What the check knows of an inode.
#[derive(Debug)]
struct Known {
    row: InodeRow,
    /// Names found.
    names: u32,
    /// Subdirectories found in it.
    subdirectories: u32,
    /// Directory that named it last.
    named_in: InodeNo,
    /// Blocks of its extents.
    blocks: u64,
    orphan: bool,
}

type Inodes = HashMap<InodeNo, Known>;

/// Findings, and the row changes that would mend them.
#[derive(Debug, Default)]
struct Notes {
    report: CheckReport,
    repairs: Vec<RowChange>,
    /// For each finding, whether `repairs` mend it.
    mendable: Vec<bool>,
}

impl Notes {
    fn broken(&mut self, kind: FindingKind, message: impl Into<String>) {
        self.report.findings.push(Finding { kind, message: message.into(), mended: false });
        self.mendable.push(false);
    }

    fn mendable(&mut self, kind: FindingKind, message: impl Into<String>, repairs: Vec<RowChange>) {
        self.report.findings.push(Finding { kind, message: message.into(), mended: false });
        self.mendable.push(true);
        self.repairs.extend(repairs);
    }
}

/// Checks; see [`FileSystem::check`](crate::FileSystem::check).
pub(crate) fn check(device: &Arc<dyn BlockDevice>, log: Option<&Arc<dyn BlockDevice>>, repair: bool) -> Result<CheckReport> {
    let mut notes = Notes::default();
    if let Err(e) = check_tree(device) {
        match e.kind {
            ErrorKind::Corrupt => notes.broken(FindingKind::Metadata, e.message),
            _ => return Err(e),
        }
        return Ok(notes.report);
    }
    let loaded = match load(Arc::clone(device), log.cloned(), true, CACHE_BYTES) {
        Ok(loaded) => loaded,
        Err(e) if e.kind == ErrorKind::Corrupt => {
            notes.broken(FindingKind::Metadata, e.message);
            return Ok(notes.report);
        }
        Err(e) => return Err(e),
    };
    check_head(&loaded, &mut notes);
    check_rows(&loaded.meta, &loaded.found.superblock, &mut notes)?;
    drop(loaded);
    if repair && notes.mendable.contains(&true) {
        mend(device, log, &mut notes)?;
    }
    Ok(notes.report)
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
        Ok(false) => Err(Error::corrupt("the metadata tree is damaged: its checksums do not match")),
        Err(e) => Err(Error::corrupt(format!("the metadata tree is damaged: {e}"))),
    })
}

fn check_head(loaded: &Loaded, notes: &mut Notes) {
    notes.report.clean_unmount = loaded.found.superblock.clean;
    notes.report.log_records = loaded.replayed.records;
    for damage in &loaded.found.damage {
        notes.mendable(FindingKind::Superblock, damage, Vec::new());
    }
    if let Some(damage) = &loaded.replayed.damaged {
        // There is nothing to guess: what is lost is lost, and a new incarnation of the log starts behind what was saved.
        notes.mendable(FindingKind::Log, damage, Vec::new());
    }
}

fn check_rows(meta: &MetaStore, superblock: &Superblock, notes: &mut Notes) -> Result<()> {
    let mut inodes = read_inodes(meta, notes)?;
    read_orphans(meta, &mut inodes, notes)?;
    extents::check(meta, superblock, &mut inodes, notes)?;
    names::check(meta, &mut inodes, notes)?;
    check_attributes(meta, &inodes, notes)?;
    check_counts(&inodes, notes);
    names::check_tree(&inodes, notes);
    Ok(())
}

fn read_inodes(meta: &MetaStore, notes: &mut Notes) -> Result<Inodes> {
    let mut inodes = HashMap::new();
    meta.scan_all(Table::Inode, |key, value| {
        let decoded = split_key(key).and_then(|(ino, rest)| match rest {
            [] => Ok((ino, InodeRow::decode(value)?)),
            _ => Err(Error::corrupt("an inode key has bytes too many")),
        });
        match decoded {
            Ok((ino, row)) => {
                let known = Known { row, names: 0, subdirectories: 0, named_in: InodeNo(0), blocks: 0, orphan: false };
                inodes.insert(ino, known);
            }
            Err(e) => notes.broken(FindingKind::Row, format!("inode row {}: {e}", key.escape_ascii())),
        }
        Ok(ControlFlow::Continue(()))
    })?;
    notes.report.inodes = inodes.len() as u64;
    Ok(inodes)
}

fn read_orphans(meta: &MetaStore, inodes: &mut Inodes, notes: &mut Notes) -> Result<()> {
    meta.scan_all(Table::Orphan, |key, _| {
        match split_key(key).ok().and_then(|(ino, _)| inodes.get_mut(&ino)) {
            Some(known) => known.orphan = true,
            None => notes.mendable(
                FindingKind::Leftover,
                format!("an orphan entry {} belongs to no inode", key.escape_ascii()),
                vec![RowChange::delete(Table::Orphan, key.to_vec())],
            ),
        }
        Ok(ControlFlow::Continue(()))
    })
}

fn check_attributes(meta: &MetaStore, inodes: &Inodes, notes: &mut Notes) -> Result<()> {
    meta.scan_all(Table::Xattr, |key, _| {
        match split_key(key) {
            Ok((ino, _)) if inodes.contains_key(&ino) => {}
            Ok((ino, name)) => notes.mendable(
                FindingKind::Leftover,
                format!("attribute '{}' belongs to inode {}, which does not exist", name.escape_ascii(), ino.0),
                vec![RowChange::delete(Table::Xattr, key.to_vec())],
            ),
            Err(e) => notes.broken(FindingKind::Row, e.message),
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// Compares what inodes say of themselves with what was found.
fn check_counts(inodes: &Inodes, notes: &mut Notes) {
    for (ino, known) in inodes {
        let expected = match known.row.kind {
            FileKind::Directory if known.orphan => 0,
            FileKind::Directory => 2 + known.subdirectories,
            _ => known.names,
        };
        let mut mended = known.row.clone();
        (mended.nlink, mended.blocks) = (expected, known.blocks);
        let repair = vec![RowChange::put(Table::Inode, inode_key(*ino), mended.encode())];
        let reachable = known.names > 0 || known.orphan || *ino == InodeNo::ROOT;
        if !reachable {
            notes.broken(FindingKind::Unreachable, format!("inode {} ({} bytes) has no name", ino.0, known.row.size));
            continue;
        }
        if known.row.nlink != expected {
            let message = format!("inode {} counts {} links, {expected} were found", ino.0, known.row.nlink);
            notes.mendable(FindingKind::LinkCount, message, repair.clone());
        }
        if known.row.blocks != known.blocks {
            let message = format!("inode {} counts {} allocated blocks, its extents have {}", ino.0, known.row.blocks, known.blocks);
            notes.mendable(FindingKind::AllocatedSize, message, repair);
        }
    }
}

/// Recovers the volume for good and commits the repairs.
fn mend(device: &Arc<dyn BlockDevice>, log: Option<&Arc<dyn BlockDevice>>, notes: &mut Notes) -> Result<()> {
    let options = crate::MountOptions::default();
    if notes.repairs.is_empty() && notes.report.findings.iter().all(|finding| finding.kind != FindingKind::Log) {
        // Only superblock copies differ: any rewrite of both mends them.
        let superblock = Superblock::read(device)?.superblock;
        Region::new(Arc::clone(device), superblock, false).update_superblock(|_| {})?;
    } else {
        let fs = mount(Arc::clone(device), log.cloned(), options, LogDamage::Accept)?;
        fs.meta.commit(Record { kind: RecordKind::Setting, rows: std::mem::take(&mut notes.repairs), exposes: None, barrier: false });
        crate::mount::unmount(&fs)?;
    }
    for (finding, mendable) in notes.report.findings.iter_mut().zip(&notes.mendable) {
        finding.mended = *mendable;
    }
    Ok(())
}
