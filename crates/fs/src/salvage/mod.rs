//! Reading what can still be read from a volume that no longer mounts. Nothing is ever written to
//! it.
//!
//! A mount believes a volume as a whole or not at all. A salvage believes each page of the metadata
//! and each block of data for itself: rows are gathered (`gather.rs`) from the present commit, then
//! for what is lost there from the commit before, then from loose pages; names that lead to inodes
//! become paths; inodes that no name leads to become `inode-N`; data is read block by block where a
//! larger read fails.

mod gather;
mod pages;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice};
use serde::Serialize;

use crate::inode::attr_of;
use crate::mount::attach_log;
use crate::{Attr, Error, ErrorKind, FileBlock, FileKind, InodeNo, Result};
use bedplate_store::{
    DentryRow, ExtentRow, InodeRow, Region, Superblock, Table, check_name, extent_key, pair_key,
    split_extent_key, split_key,
};
use gather::Gathered;

/// Bytes read at once.
const READ_BYTES: u64 = 1 << 20;
/// What to believe of a block size when nothing tells: the default of `format`.
const BLOCK_SIZE: u32 = 4096;

/// A broken volume, opened to be read as far as it can be.
pub struct Salvage {
    device: Arc<dyn BlockDevice>,
    block_size: u64,
    gathered: Gathered,
}

/// A file, directory or node that a salvage found.
#[derive(Debug, Clone)]
pub struct SalvagedEntry {
    /// The directory that holds it, as an index of the list; `None` for what stands at the top.
    pub parent: Option<usize>,
    /// Its name: 1 to 255 bytes, neither `/` nor NUL, and not `.` or `..`.
    pub name: Vec<u8>,
    /// Its attributes.
    pub attr: Attr,
    /// The target of a symbolic link.
    pub target: Vec<u8>,
    /// Why it may not be what it was, if there is a reason.
    pub doubt: Option<String>,
}

/// Bytes of a file that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LostRange {
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Why.
    pub reason: String,
}

impl Salvage {
    /// Gathers what is left of a volume. `block_size` is believed where no superblock tells it.
    ///
    /// # Errors
    /// `NotAVolume` where nothing at all was found; `NotFound` where the log device is missing or
    /// another volume's.
    pub fn open(
        device: &Arc<dyn BlockDevice>,
        log: Option<&Arc<dyn BlockDevice>>,
        block_size: Option<u32>,
    ) -> Result<Self> {
        let (gathered, stated) = match Superblock::read(device) {
            Ok(found) => {
                let superblock = found.superblock;
                let mut gathered = gather_from(device, log, &superblock)?;
                gathered.losses.extend(found.damage);
                (gathered, Some(superblock.block_size))
            }
            Err(e) if e.kind == ErrorKind::NewerFormat => return Err(e),
            Err(e) => {
                let mut gathered = gather::from_device(device);
                gathered.losses.push(e.message);
                (gathered, None)
            }
        };
        let salvage = Self {
            device: Arc::clone(device),
            block_size: stated.or(block_size).unwrap_or(BLOCK_SIZE).into(),
            gathered,
        };
        if salvage.gathered.table(Table::Inode).next().is_none() {
            let why = salvage.gathered.losses.join("; ");
            return Err(Error::new(
                ErrorKind::NotAVolume,
                format!("{}: not one file was found: {why}", device.name()),
            ));
        }
        Ok(salvage)
    }

    /// Returns what is wrong with the volume as a whole, one sentence each; nothing where every row
    /// was found whole.
    #[must_use]
    pub fn losses(&self) -> &[String] {
        &self.gathered.losses
    }

    /// Returns everything found but the root; a directory stands before what is in it, and each
    /// directory once. What no name leads to stands in a directory `lost+found` of its own at the
    /// top, which comes with attributes of the root.
    #[must_use]
    pub fn entries(&self) -> Vec<SalvagedEntry> {
        let mut listing = Listing {
            salvage: self,
            entries: Vec::new(),
            seen: BTreeSet::from([InodeNo::ROOT]),
            files: BTreeSet::new(),
        };
        listing.directory(InodeNo::ROOT, None);
        listing.lost();
        listing.entries
    }

    /// Returns the names and values of an inode's extended attributes.
    #[must_use]
    pub fn attributes(&self, ino: InodeNo) -> Vec<(Vec<u8>, Vec<u8>)> {
        let of_inode = self
            .gathered
            .table(Table::Xattr)
            .filter_map(|(key, value)| Some((split_key(key).ok()?, value)));
        let of_inode = of_inode.filter(|((owner, name), _)| *owner == ino && !name.is_empty());
        of_inode.map(|((_, name), value)| (name.to_vec(), value.to_vec())).collect()
    }

    /// Returns the runs of a file that hold data: offset, length. What lies between them reads as
    /// zeros.
    #[must_use]
    pub fn data(&self, ino: InodeNo) -> Vec<(u64, u64)> {
        let size = self.inode(ino).map_or(0, |row| row.size);
        self.extents(ino)
            .into_iter()
            .filter_map(|(at, row)| self.run_of(at, &row, size))
            .map(|(offset, _, len)| (offset, len))
            .collect()
    }

    /// Reads a file: `take` gets every byte of data that can be read, with its offset, in order.
    /// Returns what cannot be read.
    ///
    /// # Errors
    /// Those of `take` only, in its own type.
    pub fn read<E>(
        &self,
        ino: InodeNo,
        mut take: impl FnMut(u64, &[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<Vec<LostRange>, E> {
        let mut lost = self.gaps(ino);
        let Some(inode) = self.inode(ino) else { return Ok(lost) };
        let mut buf = AlignedBuf::zeroed(READ_BYTES as usize);
        for (at, row) in self.extents(ino) {
            let Some((offset, place, len)) = self.run_of(at, &row, inode.size) else { continue };
            // What lies outside the device is told at once: a wild extent may be terabytes long.
            let inside = self.device.size_bytes().saturating_sub(place).min(len);
            for step in (0..inside).step_by(READ_BYTES as usize) {
                let wanted = READ_BYTES.min(inside - step);
                self.read_run(offset + step, place + step, wanted, &mut buf, &mut lost, &mut take)?;
            }
            if inside < len {
                let reason = format!(
                    "its extent ends at byte {}, outside the device",
                    place.saturating_add(len)
                );
                lost.push(LostRange { offset: offset + inside, len: len - inside, reason });
            }
        }
        lost.sort_by_key(|range| range.offset);
        Ok(lost)
    }

    /// Reads a run in one piece or, where that fails, block by block.
    fn read_run<E>(
        &self,
        offset: u64,
        place: u64,
        len: u64,
        buf: &mut [u8],
        lost: &mut Vec<LostRange>,
        take: &mut impl FnMut(u64, &[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let whole = self.read_at(place, len, buf);
        if whole.is_ok() {
            return take(offset, &buf[..len as usize]);
        }
        for at in (0..len).step_by(self.block_size as usize) {
            let part = self.block_size.min(len - at);
            match self.read_at(place + at, part, buf) {
                Ok(()) => take(offset + at, &buf[..part as usize])?,
                Err(e) => {
                    add_lost(lost, LostRange { offset: offset + at, len: part, reason: e.message });
                }
            }
        }
        Ok(())
    }

    fn read_at(&self, place: u64, len: u64, buf: &mut [u8]) -> Result<()> {
        let sector = u64::from(self.device.geometry().logical_block_size);
        let buf = &mut buf[..len.next_multiple_of(sector) as usize];
        self.device.read_at(buf, place)?;
        if let Some(logged) = self.gathered.homes.overlay(&(place..place + buf.len() as u64)) {
            logged.apply(buf, place);
        }
        Ok(())
    }

    /// Returns offset in the file, place on the device and length of a run of data; `None` for what
    /// holds none.
    fn run_of(&self, at: FileBlock, row: &ExtentRow, size: u64) -> Option<(u64, u64, u64)> {
        let offset = at.0.checked_mul(self.block_size)?;
        let len = u64::from(row.len).checked_mul(self.block_size)?.min(size.checked_sub(offset)?);
        let place = row.start.0.saturating_mul(self.block_size);
        (len > 0 && row.state.has_data()).then_some((offset, place, len))
    }

    fn inode(&self, ino: InodeNo) -> Option<InodeRow> {
        InodeRow::decode(self.gathered.get(Table::Inode, &bedplate_store::inode_key(ino))?).ok()
    }

    /// The extents of a file, in order.
    fn extents(&self, ino: InodeNo) -> Vec<(FileBlock, ExtentRow)> {
        let (from, to) = (extent_key(ino, FileBlock(0)), extent_key(ino, FileBlock(u64::MAX)));
        let rows = self
            .gathered
            .range(Table::Extent, (Bound::Included(from.to_vec()), Bound::Included(to.to_vec())));
        rows.filter_map(|(key, value)| {
            Some((split_extent_key(key).ok()?.1, ExtentRow::decode(value).ok()?))
        })
        .collect()
    }

    /// What is lost because its extents are: an inode counts its blocks, so that missing ones are
    /// noticed, though not where they were.
    fn gaps(&self, ino: InodeNo) -> Vec<LostRange> {
        let Some(row) = self.inode(ino) else { return Vec::new() };
        let found: u64 = self.extents(ino).iter().map(|(_, row)| u64::from(row.len)).sum();
        if found >= row.blocks {
            return Vec::new();
        }
        let missing = row.blocks - found;
        let reason = format!(
            "the places of {missing} of its {} blocks are lost: holes may be missing data",
            row.blocks
        );
        vec![LostRange {
            offset: 0,
            len: missing.saturating_mul(self.block_size).min(row.size),
            reason,
        }]
    }

    fn doubt(&self, ino: InodeNo) -> Option<String> {
        let doubtful = |table, key: Vec<u8>| self.gathered.doubtful.contains(&(table, key));
        if doubtful(Table::Inode, bedplate_store::inode_key(ino)) {
            return Some(
                "its inode comes from a page of the metadata that is damaged or old".to_owned(),
            );
        }
        let extents = self.extents(ino);
        let old = extents
            .iter()
            .filter(|(at, _)| doubtful(Table::Extent, extent_key(ino, *at).to_vec()))
            .count();
        (old > 0).then(|| {
            format!(
                "{old} of its {} extents come from pages of the metadata that are damaged or old: \
                 other data may stand there now",
                extents.len()
            )
        })
    }
}

fn gather_from(
    device: &Arc<dyn BlockDevice>,
    log: Option<&Arc<dyn BlockDevice>>,
    superblock: &Superblock,
) -> Result<Gathered> {
    let region = Region::new(Arc::clone(device), superblock.clone(), true);
    let mut trouble = None;
    let parts = match attach_log(device, log.cloned(), superblock) {
        Ok(parts) => Some(parts),
        // A log device that is named wrong or not at all is a mistake to mend; one that is broken
        // is a loss.
        Err(e) if e.kind != ErrorKind::Corrupt => return Err(e),
        Err(e) => {
            trouble = Some(e.message);
            None
        }
    };
    let mut gathered = gather::from_volume(&region, parts.as_ref());
    gathered.losses.extend(trouble);
    Ok(gathered)
}

/// Adds a range, joined with the one before where it continues that for the same reason.
fn add_lost(lost: &mut Vec<LostRange>, range: LostRange) {
    match lost.last_mut() {
        Some(last)
            if last.offset + last.len == range.offset
                && range.reason.split(" at byte ").next()
                    == last.reason.split(" at byte ").next() =>
        {
            last.len += range.len;
        }
        _ => lost.push(range),
    }
}

/// Builds the list of entries.
struct Listing<'a> {
    salvage: &'a Salvage,
    entries: Vec<SalvagedEntry>,
    /// Directories that stand in the list, and other inodes that a name led to.
    seen: BTreeSet<InodeNo>,
    files: BTreeSet<InodeNo>,
}

impl Listing<'_> {
    /// Lists a directory and what lies below it, without recursion: a hostile tree may be as deep
    /// as it likes.
    fn directory(&mut self, top: InodeNo, index: Option<usize>) {
        let mut waiting = vec![(top, index)];
        while let Some((dir, index)) = waiting.pop() {
            for (name, ino) in self.names(dir) {
                let Some(row) = self.salvage.inode(ino) else { continue };
                if row.kind == FileKind::Directory && !self.seen.insert(ino) {
                    continue;
                }
                self.files.insert(ino);
                let of_name =
                    self.salvage.gathered.doubtful.contains(&(Table::Dentry, pair_key(dir, &name)));
                let entry = self.push(index, name, ino, row);
                if of_name {
                    let reason = "its name comes from a page that is damaged or old".to_owned();
                    self.entries[entry].doubt.get_or_insert(reason);
                }
                if self.entries[entry].attr.kind == FileKind::Directory {
                    waiting.push((ino, Some(entry)));
                }
            }
        }
    }

    fn names(&self, dir: InodeNo) -> BTreeMap<Vec<u8>, InodeNo> {
        let end = pair_key(InodeNo(dir.0.saturating_add(1)), &[]);
        let rows = self
            .salvage
            .gathered
            .range(Table::Dentry, (Bound::Included(pair_key(dir, &[])), Bound::Excluded(end)));
        rows.filter_map(|(key, value)| {
            let name = split_key(key).ok()?.1;
            check_name(name).ok()?;
            Some((name.to_vec(), DentryRow::decode(value).ok()?.ino))
        })
        .collect()
    }

    fn push(&mut self, parent: Option<usize>, name: Vec<u8>, ino: InodeNo, row: InodeRow) -> usize {
        let doubt = self.salvage.doubt(ino);
        let attr = attr_of(ino, &row, u32::try_from(self.salvage.block_size).unwrap_or(u32::MAX));
        self.entries.push(SalvagedEntry { parent, name, attr, target: row.target, doubt });
        self.entries.len() - 1
    }

    /// Lists what no name led to, orphans aside: those were removed.
    fn lost(&mut self) {
        let orphan = |ino: &InodeNo| {
            self.salvage.gathered.get(Table::Orphan, &bedplate_store::inode_key(*ino)).is_some()
        };
        let inodes = self.salvage.gathered.table(Table::Inode).filter_map(|(key, value)| {
            Some((split_key(key).ok()?.0, InodeRow::decode(value).ok()?))
        });
        let lost: Vec<(InodeNo, InodeRow)> = inodes
            .filter(|(ino, row)| {
                *ino != InodeNo::ROOT
                    && !self.files.contains(ino)
                    && !(row.nlink == 0 && orphan(ino))
            })
            .collect();
        let Some((_, like)) = lost.first() else { return };
        let root = self.salvage.inode(InodeNo::ROOT).filter(|row| row.kind == FileKind::Directory);
        let mut home = root.unwrap_or_else(|| InodeRow {
            kind: FileKind::Directory,
            mode: 0o700,
            size: 0,
            ..like.clone()
        });
        home.target.clear();
        let taken: BTreeSet<Vec<u8>> = self
            .entries
            .iter()
            .filter(|entry| entry.parent.is_none())
            .map(|entry| entry.name.clone())
            .collect();
        let name = crate::check::free_name(&taken).into_bytes();
        let home = self.push(None, name, InodeNo::ROOT, home);
        // Directories first: much of what is lost lies below one of them.
        for directories in [true, false] {
            for (ino, row) in &lost {
                let is_directory = row.kind == FileKind::Directory;
                if is_directory != directories
                    || self.files.contains(ino)
                    || is_directory && !self.seen.insert(*ino)
                {
                    continue;
                }
                self.files.insert(*ino);
                let entry = self.push(
                    Some(home),
                    format!("inode-{}", ino.0).into_bytes(),
                    *ino,
                    row.clone(),
                );
                if is_directory {
                    self.directory(*ino, Some(entry));
                }
            }
        }
    }
}
