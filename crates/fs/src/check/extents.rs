//! Extents: inside the volume, apart from each other, and owned.

use std::ops::ControlFlow;

use super::{Inodes, Notes};
use crate::meta::MetaStore;
use crate::mount::collect_claims;
use crate::row::{ExtentRow, RowChange, Table, split_extent_key};
use crate::superblock::Superblock;
use crate::{FileKind, FindingKind, InodeNo, Result};

pub(super) fn check(meta: &MetaStore, superblock: &Superblock, inodes: &mut Inodes, notes: &mut Notes) -> Result<()> {
    check_claims(meta, superblock, notes)?;
    check_owners(meta, inodes, notes)
}

/// Range and overlap on the volume.
fn check_claims(meta: &MetaStore, superblock: &Superblock, notes: &mut Notes) -> Result<()> {
    let (mut claims, extents) = collect_claims(meta, superblock, |e| {
        notes.broken(FindingKind::ExtentRange, e.message);
        Ok(())
    })?;
    notes.report.extents = extents;
    claims.overlaps(|a, b, run| {
        notes.broken(
            FindingKind::ExtentOverlap,
            format!("{} and {} both claim {} blocks from block {}", a.owner(), b.owner(), run.blocks, run.start.0),
        );
    });
    Ok(())
}

/// Order within the file, and an owner that is a regular file.
fn check_owners(meta: &MetaStore, inodes: &mut Inodes, notes: &mut Notes) -> Result<()> {
    let mut before = (InodeNo(0), 0);
    meta.scan_all(Table::Extent, |key, value| {
        let (Ok((ino, at)), Ok(row)) = (split_extent_key(key), ExtentRow::decode(value)) else {
            return Ok(ControlFlow::Continue(())); // named by `check_claims`
        };
        if before.0 == ino && before.1 > at.0 {
            notes.broken(FindingKind::ExtentOverlap, format!("inode {} has two extents over its block {}", ino.0, at.0));
        }
        before = (ino, at.0.saturating_add(row.len.into()));
        match inodes.get_mut(&ino) {
            Some(known) if known.row.kind == FileKind::File => known.blocks += u64::from(row.len),
            Some(_) => notes.broken(FindingKind::Leftover, format!("inode {} is no regular file but has an extent at its block {}", ino.0, at.0)),
            None => notes.mendable(
                FindingKind::Leftover,
                format!("an extent of {} blocks belongs to inode {}, which does not exist", row.len, ino.0),
                vec![RowChange::delete(Table::Extent, key.to_vec())],
            ),
        }
        Ok(ControlFlow::Continue(()))
    })
}
