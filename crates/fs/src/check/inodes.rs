//! Inodes: rows that decode, values that can be, and counts that agree with what was found.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::notes::Notes;
use super::past::shows_some_names;
use super::{Examined, lost};
use crate::checkpoint::UNFINISHED;
use crate::namespace::{MODE_BITS, target_is_possible};
use crate::{Error, FileKind, FindingKind, InodeNo, Result};
use bedplate_store::{
    Checkpoint, CheckpointRow, Grid, InodeRow, RowChange, Table, inode_key, split_key,
};

/// What the check knows of an inode.
#[derive(Debug)]
pub(super) struct PriorRows {
    /// Its row as it stands.
    pub(super) row: InodeRow,
    /// Its row as it should be.
    pub(super) fixed: InodeRow,
    /// Names found.
    pub(super) names: u32,
    /// Subdirectories found in it.
    pub(super) subdirectories: u32,
    /// Names found in it.
    pub(super) entries: u64,
    /// Directory that named it last.
    pub(super) named_in: InodeNo,
    /// Blocks of its extents.
    pub(super) blocks: u64,
    /// The file block after its last extent.
    pub(super) blocks_end: u64,
    pub(super) orphan: bool,
    /// An orphan that goes with all that is in it: a clone that was not finished.
    pub(super) unfinished: bool,
}

impl PriorRows {
    fn new(row: InodeRow) -> Self {
        let fixed = row.clone();
        Self {
            row,
            fixed,
            names: 0,
            subdirectories: 0,
            entries: 0,
            named_in: InodeNo(0),
            blocks: 0,
            blocks_end: 0,
            orphan: false,
            unfinished: false,
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        self.row.kind == FileKind::Directory
    }
}

/// All inodes, by number, so that findings come in an order.
pub(super) type Inodes = BTreeMap<InodeNo, PriorRows>;

/// Reads the inode table.
pub(super) fn read(examined: &mut Examined<'_>) -> Result<()> {
    examined.each_row(Table::Inode, |examined, key, value| match decode(key, value) {
        Ok((ino, row)) => drop(examined.inodes.insert(ino, PriorRows::new(row))),
        Err(e) => {
            let message = format!("the inode row with key {} cannot be read: {e}", hex(key));
            examined.notes.broken(
                FindingKind::Row,
                message,
                "its data cannot be found without it: copy out the rest with 'bedplate salvage'",
            );
        }
    })?;
    examined.notes.report.inodes = examined.inodes.len() as u64;
    for (ino, known) in &mut examined.inodes {
        check_values(*ino, known, &mut examined.notes);
    }
    if examined.inodes.get(&InodeNo::ROOT).is_none_or(|root| !root.is_directory()) {
        let remedy = "no name leads anywhere: 'bedplate salvage' saves files by their numbers";
        examined.notes.broken(
            FindingKind::Metadata,
            "the root directory (inode 1) is missing",
            remedy,
        );
    }
    Ok(())
}

fn decode(key: &[u8], value: &[u8]) -> Result<(InodeNo, InodeRow)> {
    match split_key(key)? {
        (ino, []) if ino.is_possible() => Ok((ino, InodeRow::decode(value)?)),
        (ino, []) => Err(Error::corrupt(format!("{} is no number of an inode", ino.0))),
        _ => Err(Error::corrupt("the key has bytes too many")),
    }
}

/// Writes a key for people.
pub(super) fn hex(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn check_values(ino: InodeNo, known: &mut PriorRows, notes: &mut Notes) {
    let (row, ino) = (&known.row, ino.0);
    if row.mode & !MODE_BITS != 0 {
        known.fixed.mode = row.mode & MODE_BITS;
        let message =
            format!("inode {ino} has permission bits {:#o}, which do not exist", row.mode);
        notes.mendable(
            FindingKind::Mode,
            message,
            format!("a repair keeps {:#o} of them", known.fixed.mode),
        );
    }
    if row.kind == FileKind::Symlink {
        if !target_is_possible(&row.target) {
            let message = format!(
                "symbolic link {ino} has a target of {} bytes that cannot be one",
                row.target.len()
            );
            notes.broken(
                FindingKind::Row,
                message,
                "only you know where it led: copy out the volume, make the link again",
            );
        } else if row.size != row.target.len() as u64 {
            known.fixed.size = row.target.len() as u64;
            let message = format!(
                "symbolic link {ino} says {} bytes, its target has {}",
                row.size,
                row.target.len()
            );
            notes.mendable(FindingKind::Size, message, "a repair sets the length of the target");
        }
    } else if !row.target.is_empty() {
        known.fixed.target.clear();
        let message = format!(
            "inode {ino} is no symbolic link, but its row ends in the {} bytes of a target",
            row.target.len()
        );
        notes.mendable(FindingKind::Row, message, "a repair cuts them off: nothing reads them");
    }
}

/// Reads which inodes wait for their end.
pub(super) fn read_orphans(examined: &mut Examined<'_>) -> Result<()> {
    examined.each_row(Table::Orphan, |examined, key, value| {
        match split_key(key)
            .ok()
            .filter(|(_, rest)| rest.is_empty())
            .and_then(|(ino, _)| examined.inodes.get_mut(&ino))
        {
            Some(known) => (known.orphan, known.unfinished) = (true, value == UNFINISHED),
            None => examined.notes.mend_by(
                RowChange::delete(Table::Orphan, key.to_vec()),
                FindingKind::Leftover,
                format!("the orphan entry {} belongs to no inode", hex(key)),
                "a repair removes it",
            ),
        }
    })
}

/// Compares what inodes say of themselves with what was found, and finds a place for those without
/// a name.
pub(super) fn check_counts(examined: &mut Examined<'_>) -> Result<()> {
    let first = first_unused(examined)?;
    let Examined { inodes, notes, superblock, taken, moment, .. } = examined;
    let block = u64::from(superblock.block_size);
    let home = lost::free_name(taken);
    let mut lost = Vec::new();
    for (ino, known) in inodes.iter_mut() {
        if known.row.kind == FileKind::File {
            check_size(*ino, known, block, notes);
        }
        if is_lost(*ino, known, &home, notes) {
            lost.push(*ino);
        } else {
            check_links(*ino, known, moment.as_deref(), notes);
        }
        if known.row.blocks != known.blocks {
            let message = format!(
                "inode {} counts {} allocated blocks, its extents have {}",
                ino.0, known.row.blocks, known.blocks
            );
            notes.mendable(
                FindingKind::AllocatedSize,
                message,
                "a repair sets what its extents have",
            );
            known.fixed.blocks = known.blocks;
        }
    }
    // The past gets no names that it did not have.
    if moment.is_none() {
        examined.lost_and_found = lost::reattach(&lost, &home, first, inodes, notes);
    }
    Ok(())
}

fn check_size(ino: InodeNo, known: &mut PriorRows, block: u64, notes: &mut Notes) {
    if known.row.size <= Grid::FILE_BYTES_MAX {
        return;
    }
    // No data lies behind the last extent.
    known.fixed.size = known.blocks_end.saturating_mul(block).min(Grid::FILE_BYTES_MAX);
    let message = format!(
        "inode {} says it has {} bytes, more than any file can have ({})",
        ino.0,
        known.row.size,
        Grid::FILE_BYTES_MAX
    );
    notes.mendable(
        FindingKind::Size,
        message,
        format!("a repair sets it to {}, where its last extent ends", known.fixed.size),
    );
}

/// Whether an inode has to be given a name.
fn is_lost(ino: InodeNo, known: &mut PriorRows, home: &str, notes: &mut Notes) -> bool {
    if ino == InodeNo::ROOT || known.names > 0 {
        return false;
    }
    let holds_names = known.is_directory() && known.entries > 0;
    if known.orphan && holds_names && !known.unfinished {
        let message =
            format!("directory {} is to be removed, but it holds {} names", ino.0, known.entries);
        notes.mend_by(
            RowChange::delete(Table::Orphan, inode_key(ino)),
            FindingKind::Unreachable,
            message,
            format!("a repair names it /{home}/inode-{}", ino.0),
        );
        return true;
    }
    if known.orphan {
        return false;
    }
    if known.row.nlink == 0 && !holds_names {
        let message = format!(
            "inode {} has no name and counts none, and yet is not listed to be removed",
            ino.0
        );
        notes.mend_by(
            RowChange::put(Table::Orphan, inode_key(ino), Vec::new()),
            FindingKind::Unreachable,
            message,
            "a repair lists it",
        );
        return false;
    }
    let message = format!("inode {} ({} bytes) has no name", ino.0, known.row.size);
    notes.mendable(
        FindingKind::Unreachable,
        message,
        format!("a repair names it /{home}/inode-{}", ino.0),
    );
    true
}

/// The first number that no inode has, nor had in any checkpoint.
pub(super) fn first_unused(examined: &mut Examined<'_>) -> Result<InodeNo> {
    let mut first = examined.inodes.last_key_value().map_or(InodeNo::ROOT, |(ino, _)| *ino).0 + 1;
    examined.meta.scan_all(Table::Checkpoint, |_, value| {
        if let Some(row) = CheckpointRow::decode(value).ok().filter(|row| row.ino_end.is_possible())
        {
            first = first.max(row.ino_end.0);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(InodeNo(first))
}

fn check_links(
    ino: InodeNo,
    known: &mut PriorRows,
    moment: Option<&Checkpoint>,
    notes: &mut Notes,
) {
    known.fixed.nlink = match known.row.kind {
        FileKind::Directory if known.orphan && known.names == 0 => 0,
        FileKind::Directory => known.subdirectories.saturating_add(2),
        _ => known.names,
    };
    if moment.is_some_and(|checkpoint| shows_some_names(checkpoint, ino, known.row.kind)) {
        known.fixed.nlink = known.fixed.nlink.max(known.row.nlink);
    }
    if known.row.nlink != known.fixed.nlink {
        let message = format!(
            "inode {} counts {} links, {} were found",
            ino.0, known.row.nlink, known.fixed.nlink
        );
        notes.mendable(FindingKind::LinkCount, message, "a repair sets what was found");
    }
}

/// Notes the rows of inodes that have to change.
pub(super) fn note_repairs(inodes: &Inodes, notes: &mut Notes) {
    for (ino, known) in inodes.iter().filter(|(_, known)| known.row != known.fixed) {
        notes.repairs.push(RowChange::put(Table::Inode, inode_key(*ino), known.fixed.encode()));
    }
}
