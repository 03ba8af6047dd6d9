//! Extents: inside the volume, apart from each other, in order within the file, and owned.

use std::ops::Range;

use super::Examined;
use super::inodes::hex;
use super::notes::Notes;
use super::past::DELETE;
use super::settings::epoch;
use crate::mount::{Claimed, collect_claims, family};
use crate::{Epoch, ErrorKind, FileKind, FindingKind, InodeNo, Result};
use bedplate_store::{Claims, ExtentRow, Grid, RowChange, Table, split_extent_key};

/// What a person can do about blocks that are not where they should be.
const LOOK_AT_BOTH: &str =
    "only their content tells whose they are: copy out both with 'bedplate salvage'";

/// So many extents and images are in memory at once, some 50 bytes each. Few in tests, whose volumes
/// are to have several slices too.
const CLAIMS_AT_ONCE: u64 = if cfg!(test) { 20 } else { 4 << 20 };

/// Range and overlap on the volume, a slice of it at a time.
pub(super) fn check_claims(examined: &mut Examined<'_>) -> Result<()> {
    let slices = match examined.meta.slices(CLAIMS_AT_ONCE) {
        // The comparison names what is wrong with it.
        Err(e) if e.kind == ErrorKind::Corrupt => std::iter::once(0..u64::MAX).collect(),
        other => other?,
    };
    slices.into_iter().try_for_each(|slice| check_slice(examined, slice))
}

fn check_slice(examined: &mut Examined<'_>, slice: Range<u64>) -> Result<()> {
    let (notes, is_first) = (&mut examined.notes, slice.start == 0);
    let Claimed { mut claims, extents } =
        collect_claims(examined.meta, examined.superblock, slice, |decoded, e| {
            if e.kind != ErrorKind::Corrupt {
                return Err(e);
            }
            let (kind, message) = if decoded {
                (FindingKind::ExtentRange, e.message)
            } else {
                (FindingKind::Row, format!("an extent row cannot be read: {e}"))
            };
            // Each slice meets it.
            if is_first {
                notes.broken(
                    kind,
                    message,
                    "nothing tells where the data is: copy out the rest with 'bedplate salvage'",
                );
            }
            Ok(())
        })?;
    notes.report.extents = extents;
    let meta = examined.meta;
    claims.overlaps(
        |ino| family(meta, ino),
        |a, b, run| {
            let message = format!(
                "{} and {} both claim {} blocks from block {}",
                a.owner(),
                b.owner(),
                run.blocks,
                run.start.0
            );
            notes.broken(FindingKind::ExtentOverlap, message, LOOK_AT_BOTH);
        },
    );
    check_space(examined, &mut claims)
}

/// As many differences are told.
const DIFFERENCES_MAX: usize = 8;

/// The free space that the metadata keep is what no extent covers, and the reference counts are
/// those of the extents.
fn check_space(examined: &mut Examined<'_>, claims: &mut Claims) -> Result<()> {
    let notes = &mut examined.notes;
    let differences = match examined.meta.compare_space(claims) {
        Err(e) if e.kind == ErrorKind::Corrupt => vec![e.message],
        other => other?.unwrap_or_default(),
    };
    let told = notes.report.findings.iter().filter(|one| one.kind == FindingKind::Space).count();
    for difference in differences.iter().take(DIFFERENCES_MAX.saturating_sub(told)) {
        let message = format!("the free space that the metadata keep is wrong: {difference}");
        notes.mendable(FindingKind::Space, message, "a repair counts it anew of all extents");
    }
    Ok(())
}

/// Order within the file, an owner that is a regular file, and a birth before the moment.
pub(super) fn check_owners(examined: &mut Examined<'_>) -> Result<()> {
    let mut before = (InodeNo(0), 0);
    let blocks_max = Grid::FILE_BYTES_MAX / u64::from(examined.superblock.block_size);
    let now = epoch(examined)?;
    let moment = examined.moment.as_ref().map(|checkpoint| checkpoint.epoch);
    examined.each_row(Table::Extent, |examined, key, value| {
        let (Ok((ino, at)), Ok(row)) = (split_extent_key(key), ExtentRow::decode(value)) else {
            return; // named by `check_claims`
        };
        let notes = &mut examined.notes;
        let end = at.0.saturating_add(row.len.into());
        if before.0 == ino && before.1 > at.0 {
            notes.broken(
                FindingKind::ExtentOverlap,
                format!("inode {} has two extents over its block {}", ino.0, at.0),
                LOOK_AT_BOTH,
            );
        }
        before = (ino, end);
        if end > blocks_max {
            let message = format!(
                "inode {} has an extent at its block {}, behind the end of the largest file",
                ino.0, at.0
            );
            notes.broken(
                FindingKind::ExtentRange,
                message,
                "nothing tells where in the file the data belongs: copy it out with 'bedplate \
                 salvage'",
            );
        }
        match examined.inodes.get_mut(&ino) {
            Some(known) if known.row.kind == FileKind::File => {
                known.blocks = known.blocks.saturating_add(row.len.into());
                known.blocks_end = end;
                check_birth(key, row, (now, moment), notes);
            }
            Some(_) => notes.broken(
                FindingKind::Leftover,
                format!(
                    "inode {} is no regular file but has an extent at its block {}",
                    ino.0, at.0
                ),
                "it may have been a file: copy out the volume with 'bedplate salvage'",
            ),
            None => notes.mend_by(
                RowChange::delete(Table::Extent, key.to_vec()),
                FindingKind::Leftover,
                format!(
                    "an extent of {} blocks belongs to inode {}, which does not exist (row {})",
                    row.len,
                    ino.0,
                    hex(key)
                ),
                "a repair frees its blocks",
            ),
        }
    })
}

/// An extent that says it was born after a checkpoint is written in place, whether the checkpoint
/// needs it or not.
fn check_birth(
    key: &[u8],
    row: ExtentRow,
    (now, moment): (Option<Epoch>, Option<Epoch>),
    notes: &mut Notes,
) {
    let Ok((ino, at)) = split_extent_key(key) else { return };
    let what = format!(
        "the extent of inode {} at its block {} says it was born in epoch {}",
        ino.0, at.0, row.birth.0
    );
    if let Some(now) = now.filter(|now| row.birth > *now) {
        let change = RowChange::put(
            Table::Extent,
            key.to_vec(),
            ExtentRow { birth: Epoch(1), ..row }.encode(),
        );
        let remedy = "a repair takes it for as old as the volume: what a checkpoint needs of it is \
                      not written over then";
        notes.mend_by(
            change,
            FindingKind::Birth,
            format!("{what}, and now is epoch {}", now.0),
            remedy,
        );
    } else if let Some(moment) = moment.filter(|moment| row.birth > *moment) {
        notes.broken(
            FindingKind::Birth,
            format!("{what}, after epoch {} had ended", moment.0),
            DELETE,
        );
    }
}
