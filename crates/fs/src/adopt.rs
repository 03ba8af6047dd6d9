//! Making a file system of files that lie on the device already.
//!
//! ```text
//! inodes, names, attributes, where data lies ─► rows ─► tree, free space ─► flush ─► superblock, handed to the caller
//! ```
//!
//! Nothing is written but the metadata tree, in the ranges that the caller gives for it: data stays
//! where it is, and the superblock's copies are the caller's to write. Whatever no extent covers is
//! free.

use std::ops::Range;
use std::sync::Arc;

use bedplate_block::BlockDevice;
use bedplate_store::{
    ByteRun, CHUNKS_INLINE, CONTENT_BYTES, DentryRow, ExtentRow, ExtentState, Grid, Growth,
    InodeRow, LOG_BYTES_MIN, Lists, LogPosition, Region, RowChange, Superblock, Table, check_name,
    extent_key, format_tree, inode_key, pair_key, seal,
};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::engine::{ACLS, EPOCH, NEXT_INO};
use crate::format::GRAIN;
use crate::namespace::AclKind;
use crate::{BlockNo, Epoch, Error, ErrorKind, FileBlock, FileKind, InodeNo, Result, Timestamp};

/// A run of a file that lies on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdoptedExtent {
    /// First block in the file.
    pub file_block: u64,
    /// First block on the device.
    pub start: u64,
    /// Length in blocks, not 0.
    pub blocks: u64,
    /// Whether it is only reserved and reads as zeros.
    pub unwritten: bool,
}

/// A file, a directory, or what else has a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdoptedInode {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number as the kernel encodes it in 32 bits; 0 of what is no device.
    pub rdev: u32,
    /// Size of a file in bytes; means nothing of anything else.
    pub size: u64,
    /// Access, modification, change and birth time.
    pub times: [Timestamp; 4],
    /// The target of a symbolic link.
    pub target: Vec<u8>,
    /// Extended attributes: names as the system has them, values.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where its data lies, in the order of the file, apart.
    pub extents: Vec<AdoptedExtent>,
    /// Its names: the directory that holds it, by its index, and the name there. The root has none.
    pub names: Vec<(usize, Vec<u8>)>,
}

/// What a volume is made of.
#[derive(Debug, Clone)]
pub struct Adoption {
    /// Allocation unit in bytes: a power of two, 512 to 65,536.
    pub block_size: u32,
    /// Size of the volume in bytes, a multiple of the block size.
    pub size_bytes: u64,
    /// Where the intent log lies, in bytes.
    pub log: Range<u64>,
    /// Where the metadata may lie, in bytes, in the order in which it is taken; at most
    /// [`METADATA_RUNS_MAX`].
    pub metadata: Vec<Range<u64>>,
    /// All inodes; the first is the root directory.
    pub inodes: Vec<AdoptedInode>,
}

/// How many runs the metadata of an adoption may lie in: the superblock names them all in its first
/// 512 bytes.
pub const METADATA_RUNS_MAX: usize = 26;
const _: () = assert!(
    84 + 16 * METADATA_RUNS_MAX <= 512 && METADATA_RUNS_MAX <= CHUNKS_INLINE,
    "the chunks stand in the first sector"
);

/// A volume that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdoptedVolume {
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// What belongs at byte 0 and at 8 MiB: 4 KiB.
    pub superblock: Vec<u8>,
    /// Bytes that the metadata takes.
    pub metadata_bytes: u64,
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// Writes the metadata of a volume whose data is there, and flushes. The superblock is not written.
///
/// # Errors
/// `Invalid` for what makes no volume, `TooLarge` for a file beyond 64 PiB, `NoSpace` where the
/// metadata needs more than it was given, device errors.
pub fn adopt(device: &Arc<dyn BlockDevice>, adoption: &Adoption) -> Result<AdoptedVolume> {
    validate(device, adoption)?;
    let rows = rows(adoption)?;
    let log = ByteRun { start: adoption.log.start, len: adoption.log.end - adoption.log.start };
    let superblock = Superblock {
        uuid: *Uuid::new_v4().as_bytes(),
        generation: 0,
        block_size: adoption.block_size,
        size_bytes: adoption.size_bytes,
        clean: true,
        log_separate: false,
        log,
        metadata_len: 0,
        chunks: Vec::new(),
        lists: Lists::default(),
        keeps_space: true,
        packs: true,
        sums: true,
        carries: false,
    };
    let region = Arc::new(Region::unpublished(Arc::clone(device), superblock));
    let left = Mutex::new(adoption.metadata.clone());
    region.set_grow(Box::new(move |bytes, _, _| {
        Ok(Growth { chunks: take(&mut left.lock(), bytes)?, lists: Vec::new() })
    }));
    format_tree(&region, &LogPosition::START, &rows)?;
    device.flush()?;
    let made = region.superblock();
    let superblock = made.encode();
    // Whatever the caller gave: what is handed out can be mounted.
    Superblock::decode(&superblock, 0)?;
    Ok(AdoptedVolume { uuid: made.uuid, superblock, metadata_bytes: made.metadata_len })
}

/// Takes bytes from the front of runs.
fn take(left: &mut Vec<Range<u64>>, bytes: u64) -> Result<Vec<ByteRun>> {
    let mut missing = bytes.next_multiple_of(GRAIN);
    let mut taken = Vec::new();
    while missing > 0 {
        let Some(run) = left.first_mut() else {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!("the metadata needs {missing} bytes more than there is room for"),
            ));
        };
        let len = missing.min(run.end - run.start);
        taken.push(ByteRun { start: run.start, len });
        run.start += len;
        missing -= len;
        if run.is_empty() {
            left.remove(0);
        }
    }
    Ok(taken)
}

fn validate(device: &Arc<dyn BlockDevice>, adoption: &Adoption) -> Result<()> {
    let block = u64::from(adoption.block_size);
    if !block.is_power_of_two() || !(512..=65536).contains(&block) {
        return Err(invalid(format!("block size {block} is not a power of two from 512 to 65536")));
    }
    if adoption.size_bytes > device.size_bytes() {
        return Err(invalid(format!(
            "a volume of {} bytes is larger than {}",
            adoption.size_bytes,
            device.name()
        )));
    }
    if adoption.log.end.saturating_sub(adoption.log.start) < LOG_BYTES_MIN {
        return Err(invalid("the intent log has less than 1 MiB"));
    }
    if adoption.metadata.len() > METADATA_RUNS_MAX {
        return Err(invalid(format!("the metadata lies in more than {METADATA_RUNS_MAX} runs")));
    }
    let unaligned =
        |run: &Range<u64>| run.is_empty() || !(run.start | run.end).is_multiple_of(block);
    if adoption.metadata.iter().any(unaligned) {
        return Err(invalid("a run for the metadata is not in whole blocks"));
    }
    let is_root = |root: &AdoptedInode| root.kind == FileKind::Directory && root.names.is_empty();
    if !adoption.inodes.first().is_some_and(is_root) {
        return Err(invalid("the first inode is not the root directory"));
    }
    Ok(())
}

fn number(index: usize) -> InodeNo {
    InodeNo(InodeNo::ROOT.0 + index as u64)
}

/// Returns all rows.
fn rows(adoption: &Adoption) -> Result<Vec<RowChange>> {
    let inodes = &adoption.inodes;
    let mut subdirectories = vec![0_u32; inodes.len()];
    for inode in inodes.iter().filter(|inode| inode.kind == FileKind::Directory) {
        for (dir, _) in &inode.names {
            let count = subdirectories.get_mut(*dir);
            *count.ok_or_else(|| invalid("a name stands in no directory"))? += 1;
        }
    }
    let mut rows = Vec::new();
    let mut has_lists = false;
    for (index, inode) in inodes.iter().enumerate() {
        let ino = number(index);
        put_names(&mut rows, adoption, index)?;
        for (name, value) in &inode.attributes {
            has_lists |= AclKind::of_name(name).is_some();
            rows.push(RowChange::put(Table::Xattr, pair_key(ino, name), value.clone()));
        }
        let blocks = put_extents(&mut rows, adoption, index)?;
        let row = inode_row(inode, index, subdirectories[index], blocks)?;
        rows.push(RowChange::put(Table::Inode, inode_key(ino), row.encode()));
    }
    let mut set = |name: &[u8], value: Vec<u8>| {
        rows.push(RowChange::put(Table::Setting, name.to_vec(), value));
    };
    set(NEXT_INO, number(inodes.len()).0.to_le_bytes().to_vec());
    set(EPOCH, Epoch(1).0.to_le_bytes().to_vec());
    if has_lists {
        set(ACLS, vec![1]);
    }
    Ok(rows)
}

fn inode_row(
    inode: &AdoptedInode,
    index: usize,
    subdirectories: u32,
    blocks: u64,
) -> Result<InodeRow> {
    if inode.size > Grid::FILE_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!("a file of {} bytes is longer than a volume takes, 64 PiB", inode.size),
        ));
    }
    let is_directory = inode.kind == FileKind::Directory;
    let parent = match inode.names.first() {
        Some((dir, _)) if is_directory => number(*dir),
        _ if index == 0 => InodeNo::ROOT,
        _ => InodeNo(0),
    };
    let names = u32::try_from(inode.names.len()).unwrap_or(u32::MAX);
    let [atime, mtime, ctime, btime] = inode.times;
    Ok(InodeRow {
        kind: inode.kind,
        mode: inode.mode & 0o7777,
        nlink: if is_directory { subdirectories.saturating_add(2) } else { names },
        uid: inode.uid,
        gid: inode.gid,
        rdev: inode.rdev,
        size: match inode.kind {
            FileKind::Symlink => inode.target.len() as u64,
            FileKind::File => inode.size,
            _ => 0,
        },
        blocks,
        atime,
        mtime,
        ctime,
        btime,
        io_mode: None,
        parent,
        target: inode.target.clone(),
    })
}

fn put_names(rows: &mut Vec<RowChange>, adoption: &Adoption, index: usize) -> Result<()> {
    let inode = &adoption.inodes[index];
    let several = inode.kind == FileKind::Directory && inode.names.len() > 1;
    if several || (inode.names.is_empty() && index != 0) {
        return Err(invalid(format!("inode {index} has {} names", inode.names.len())));
    }
    for (dir, name) in &inode.names {
        check_name(name)?;
        let holder = adoption.inodes.get(*dir);
        if holder.is_none_or(|holder| holder.kind != FileKind::Directory) {
            return Err(invalid(format!("a name of inode {index} stands in no directory")));
        }
        let row = DentryRow { ino: number(index), kind: inode.kind };
        rows.push(RowChange::put(Table::Dentry, pair_key(number(*dir), name), row.encode()));
    }
    Ok(())
}

/// Puts the extents of an inode; returns how many blocks they have.
fn put_extents(rows: &mut Vec<RowChange>, adoption: &Adoption, index: usize) -> Result<u64> {
    let blocks_of_volume = adoption.size_bytes / u64::from(adoption.block_size);
    let (mut total, mut after) = (0, 0);
    for extent in &adoption.inodes[index].extents {
        let end = extent.start.checked_add(extent.blocks);
        if extent.file_block < after || end.is_none_or(|end| end > blocks_of_volume) {
            return Err(invalid(format!("an extent of inode {index} is impossible: {extent:?}")));
        }
        after = extent.file_block.saturating_add(extent.blocks);
        total += extent.blocks;
        let mut done = 0;
        while done < extent.blocks {
            let len = u32::try_from(extent.blocks - done).unwrap_or(u32::MAX);
            let row = ExtentRow {
                start: BlockNo(extent.start + done),
                len,
                state: match extent.unwritten {
                    true => ExtentState::Unwritten,
                    false => ExtentState::Written,
                },
                birth: Epoch(1),
            };
            let key = extent_key(number(index), FileBlock(extent.file_block + done));
            rows.push(RowChange::put(Table::Extent, key, row.encode()));
            done += u64::from(len);
        }
    }
    Ok(total)
}

/// Returns a superblock that counts although some bytes of its place are still those that were there
/// before: what a superblock says stands before them, and they count in its checksum.
///
/// # Errors
/// `Invalid` where it says something there.
pub fn superblock_over(superblock: &[u8], old: &[u8], kept: Range<usize>) -> Result<Vec<u8>> {
    let mut mixed = superblock.to_vec();
    if mixed.len() != CONTENT_BYTES || old.len() != CONTENT_BYTES || kept.end > CONTENT_BYTES {
        return Err(invalid("a superblock has 4,096 bytes"));
    }
    mixed[kept.clone()].copy_from_slice(&old[kept]);
    seal(&mut mixed);
    if Superblock::decode(&mixed, 0)? != Superblock::decode(superblock, 0)? {
        return Err(invalid("the superblock has no room for what is to be kept"));
    }
    Ok(mixed)
}

#[cfg(test)]
mod tests;
