//! Data with checksums, of the present and of every checkpoint: read, and compared.

use std::ops::ControlFlow;
use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice};

use super::Examined;
use crate::{ErrorKind, FileBlock, FindingKind, InodeNo, Result};
use bedplate_store::{
    ExtentRow, ExtentState, Table, crc32c, image_extent, split_before_key, split_extent_key,
    split_group_key,
};

/// How much is read at once, in bytes.
const STEP_BYTES: u64 = 1 << 20;
/// As many blocks are told by name.
const TOLD_MAX: u64 = 64;
/// What a person can do about a block that is not what was written.
const RESTORE: &str = "where the volume has another copy, a read on a mount takes it and mends this \
                       one; else restore the file from a backup, or write the block anew";

/// Blocks with checksums and the first file that was found to have them.
struct Summed {
    start: u64,
    blocks: u64,
    ino: InodeNo,
    at: FileBlock,
}

/// Reads every block that an extent says has a checksum, each once.
pub(super) fn check(examined: &mut Examined<'_>, device: &Arc<dyn BlockDevice>) -> Result<()> {
    check_groups(examined)?;
    let mut all = gather(examined)?;
    all.sort_by_key(|summed| summed.start);
    let mut done = 0;
    for summed in all {
        let skip = done.max(summed.start) - summed.start;
        if skip < summed.blocks {
            done = summed.start + summed.blocks;
            compare(examined, device, &summed, skip)?;
        }
    }
    let told = examined.notes.report.wrong_blocks;
    if told > TOLD_MAX {
        let message = format!("{} more blocks are not what was written", told - TOLD_MAX);
        examined.notes.broken(FindingKind::Data, message, RESTORE);
    }
    Ok(())
}

/// The rows of the checksums themselves.
fn check_groups(examined: &mut Examined<'_>) -> Result<()> {
    let meta = examined.meta;
    meta.scan_all(Table::Sum, |key, _| {
        if let Err(error) = split_group_key(key) {
            examined.notes.broken(FindingKind::Row, error.message, RESTORE);
        }
        Ok(ControlFlow::Continue(()))
    })
}

fn gather(examined: &Examined<'_>) -> Result<Vec<Summed>> {
    let mut all = Vec::new();
    let end = examined.superblock.size_bytes / u64::from(examined.superblock.block_size);
    let mut add = |key: &[u8], row: ExtentRow| {
        let fits = row.start.0.checked_add(row.len.into()).is_some_and(|last| last <= end);
        if let (ExtentState::Summed, true, Ok((ino, at))) = (row.state, fits, split_extent_key(key))
        {
            all.push(Summed { start: row.start.0, blocks: row.len.into(), ino, at });
        }
    };
    // What cannot be read was told by the steps before.
    examined.meta.scan_all(Table::Extent, |key, value| {
        ExtentRow::decode(value).into_iter().for_each(|row| add(key, row));
        Ok(ControlFlow::Continue(()))
    })?;
    examined.meta.scan_all(Table::Before, |key, value| {
        if let Ok((_, Table::Extent, row_key)) = split_before_key(key)
            && let Ok(Some(row)) = image_extent(Table::Extent, value)
        {
            add(row_key, row);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(all)
}

/// Compares blocks of a run but the first `skip`.
fn compare(
    examined: &mut Examined<'_>,
    device: &Arc<dyn BlockDevice>,
    summed: &Summed,
    skip: u64,
) -> Result<()> {
    let block = u64::from(examined.superblock.block_size);
    let step = (STEP_BYTES / block).max(1);
    let end = summed.start + summed.blocks;
    let mut buf = AlignedBuf::zeroed((step.min(summed.blocks) * block) as usize);
    let mut sums = vec![0; step.min(summed.blocks) as usize];
    for first in (summed.start + skip..end).step_by(step as usize) {
        let last = end.min(first + step);
        let part = &mut buf[..((last - first) * block) as usize];
        examined.notes.report.summed_blocks += last - first;
        let read = device.read_at(part, first * block);
        let sums = &mut sums[..(last - first) as usize];
        let at_once = read.is_ok()
            && examined.meta.sums(first, sums).is_ok()
            && part.chunks(block as usize).zip(sums).all(|(bytes, sum)| crc32c(bytes) == *sum);
        if !at_once {
            (first..last).try_for_each(|one| compare_one(examined, device, summed, one))?;
        }
    }
    Ok(())
}

fn compare_one(
    examined: &mut Examined<'_>,
    device: &Arc<dyn BlockDevice>,
    summed: &Summed,
    one: u64,
) -> Result<()> {
    let block = u64::from(examined.superblock.block_size);
    let mut buf = AlignedBuf::zeroed(block as usize);
    let mut sums = [0];
    let known = examined.meta.sums(one, &mut sums);
    let wrong = match (device.read_at(&mut buf, one * block), known) {
        (Err(error), _) => format!("cannot be read: {error}"),
        (_, Err(error)) if error.kind == ErrorKind::Corrupt => error.message,
        (_, Err(error)) => return Err(error),
        (_, Ok(_)) if crc32c(&buf) == sums[0] => return Ok(()),
        _ => "is not what was written".to_owned(),
    };
    let notes = &mut examined.notes;
    notes.report.wrong_blocks += 1;
    if notes.report.wrong_blocks <= TOLD_MAX {
        let byte = (summed.at.0 + (one - summed.start)) * block;
        let message = format!("inode {} at byte {byte}: block {one} {wrong}", summed.ino.0);
        notes.broken(FindingKind::Data, message, RESTORE);
    }
    Ok(())
}
