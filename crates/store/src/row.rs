//! The rows of the metadata tables: keys, images and changes.
//!
//! Keys are big-endian, so that byte order is the order scans want. Values are little-endian.
//! `docs/format.md` has every byte.
//!
//! | table   | key                  | value                                  |
//! | ------- | -------------------- | -------------------------------------- |
//! | inode   | inode                | [`InodeRow`]                           |
//! | dentry  | directory, name      | child inode, kind                      |
//! | extent  | inode, file block    | [`ExtentRow`]                          |
//! | xattr   | inode, name          | value                                  |
//! | orphan  | inode                | empty                                  |
//! | setting | name                 | depends on the name                    |
//! | sum     | see `sums.rs`        | checksums of blocks                    |
//!
//! The rows of checkpoints are in `images/checkpoint_row.rs`.

use crate::bytes::Bytes;
use crate::decode::Reader;
use crate::extent::ExtentState;
use crate::{BlockNo, Epoch, Error, FileBlock, FileKind, InodeNo, IoMode, Result, Timestamp};

/// A metadata table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Table {
    /// Inodes, by number.
    Inode = 1,
    /// Names, by directory and name.
    Dentry = 2,
    /// Extents, by inode and first file block.
    Extent = 3,
    /// Extended attributes, by inode and name.
    Xattr = 4,
    /// Inodes to remove or truncate at the next mount.
    Orphan = 5,
    /// Settings, by name.
    Setting = 6,
    /// Checkpoints, by epoch.
    Checkpoint = 7,
    /// Before-images, by epoch, table and key.
    Before = 8,
    /// Inodes of checkpoints of named files.
    Scope = 9,
    /// Checksums of file data, by volume block.
    Sum = 10,
}

impl Table {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Inode,
        Self::Dentry,
        Self::Extent,
        Self::Xattr,
        Self::Orphan,
        Self::Setting,
        Self::Checkpoint,
        Self::Before,
        Self::Scope,
        Self::Sum,
    ];

    /// Returns the table of a code; `Corrupt` for what is none.
    pub fn from_code(code: u8) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|t| *t as u8 == code)
            .ok_or_else(|| Error::corrupt(format!("unknown metadata table {code}")))
    }

    /// Index into arrays of one element a table.
    pub fn index(self) -> usize {
        self as usize - 1
    }
}

/// The new image of one row: `None` removes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowChange {
    /// The table.
    pub table: Table,
    /// The key.
    pub key: Bytes,
    /// The value; `None` removes the row.
    pub value: Option<Bytes>,
}

impl RowChange {
    /// The change that puts a row.
    pub fn put(table: Table, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self { table, key: key.into(), value: Some(value.into()) }
    }

    /// The change that removes a row.
    pub fn delete(table: Table, key: impl Into<Bytes>) -> Self {
        Self { table, key: key.into(), value: None }
    }
}

/// The key of an inode's row.
pub fn inode_key(ino: InodeNo) -> Vec<u8> {
    ino.0.to_be_bytes().to_vec()
}

/// The key of a row that belongs to an inode.
pub fn pair_key(ino: InodeNo, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(8 + rest.len());
    key.extend_from_slice(&ino.0.to_be_bytes());
    debug_assert!(
        u16::try_from(8 + rest.len()).is_ok(),
        "a key of {} bytes fits a record of the log",
        8 + rest.len()
    );
    key.extend_from_slice(rest);
    key
}

/// The key of an extent's row.
pub fn extent_key(ino: InodeNo, block: FileBlock) -> Bytes {
    Bytes::join(&[&ino.0.to_be_bytes(), &block.0.to_be_bytes()])
}

/// Splits a key of the inode, dentry, xattr, extent or orphan table after its inode.
pub fn split_key(key: &[u8]) -> Result<(InodeNo, &[u8])> {
    let Some((ino, rest)) = key.split_first_chunk::<8>() else {
        return Err(Error::corrupt(format!(
            "a metadata key of {} bytes is too short to hold an inode",
            key.len()
        )));
    };
    Ok((InodeNo(u64::from_be_bytes(*ino)), rest))
}

/// Takes such a key apart.
pub fn split_extent_key(key: &[u8]) -> Result<(InodeNo, FileBlock)> {
    let (ino, rest) = split_key(key)?;
    Ok((ino, file_block(ino, rest)?))
}

/// Reads the part of an extent's key behind the inode.
///
/// # Errors
/// `Corrupt` for what is none, a pack that could not be taken apart among it.
pub fn file_block(ino: InodeNo, rest: &[u8]) -> Result<FileBlock> {
    if let Some((first, [_])) = rest.split_first_chunk::<8>() {
        return Err(Error::corrupt(format!(
            "the pack of extents of inode {} from its file block {} cannot be read; run a check",
            ino.0,
            u64::from_be_bytes(*first)
        )));
    }
    let block: [u8; 8] = rest.try_into().map_err(|_| {
        Error::corrupt(format!(
            "an extent key of inode {} has {} bytes instead of 16",
            ino.0,
            rest.len() + 8
        ))
    })?;
    Ok(FileBlock(u64::from_be_bytes(block)))
}

/// What a name in a directory points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DentryRow {
    /// The inode.
    pub ino: InodeNo,
    /// What it is.
    pub kind: FileKind,
}

impl DentryRow {
    /// Encodes the row.
    pub fn encode(self) -> Vec<u8> {
        let mut out = self.ino.0.to_le_bytes().to_vec();
        out.push(self.kind as u8);
        out
    }

    /// Decodes a row; `Corrupt` for what is none.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes, "a directory entry");
        let row = Self { ino: InodeNo(r.u64()?), kind: kind_from_code(r.u8()?)? };
        r.end()?;
        Ok(row)
    }
}

pub(crate) fn kind_from_code(code: u8) -> Result<FileKind> {
    Ok(match code {
        1 => FileKind::File,
        2 => FileKind::Directory,
        3 => FileKind::Symlink,
        4 => FileKind::Fifo,
        5 => FileKind::Socket,
        6 => FileKind::CharDevice,
        7 => FileKind::BlockDevice,
        _ => return Err(Error::corrupt(format!("unknown kind of file {code}"))),
    })
}

/// One extent: `len` volume blocks from `start` hold `len` file blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentRow {
    /// The first block on the volume.
    pub start: BlockNo,
    /// Length in blocks, at least 1.
    pub len: u32,
    /// Whether data has reached it, and whether its blocks have checksums.
    pub state: ExtentState,
    /// The epoch it was born in.
    pub birth: Epoch,
}

impl ExtentRow {
    /// Encodes the row.
    pub fn encode(self) -> Bytes {
        debug_assert!(self.len > 0, "I-EXT-1: the row of an extent covers a block: {self:?}");
        Bytes::join(&[
            &self.start.0.to_le_bytes(),
            &self.len.to_le_bytes(),
            &self.birth.0.to_le_bytes(),
            &[self.state.flags()],
        ])
    }

    /// Decodes a row; `Corrupt` for what is none.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes, "an extent");
        let (start, len, birth, flags) = (BlockNo(r.u64()?), r.u32()?, Epoch(r.u32()?), r.u8()?);
        r.end()?;
        match ExtentState::from_flags(flags) {
            Some(state) if len > 0 => Ok(Self { start, len, state, birth }),
            _ => Err(Error::corrupt(format!(
                "an extent at volume block {} has length {len} and flags {flags:#x}",
                start.0
            ))),
        }
    }
}

/// Everything durable about an inode but its names, extents and attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InodeRow {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated blocks, unwritten ones included.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth.
    pub btime: Timestamp,
    /// The I/O mode that is set on it.
    pub io_mode: Option<IoMode>,
    /// Of a directory: the one that holds it. Of a file that came into being as a clone: the file
    /// that it is, first of all, a clone of; it may be gone. 0 for everything else.
    pub parent: InodeNo,
    /// The target of a symbolic link; empty for everything else.
    pub target: Vec<u8>,
}

impl InodeRow {
    /// Encodes the row.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(96 + self.target.len());
        out.push(self.kind as u8);
        out.push(self.io_mode.map_or(0, |mode| mode as u8));
        for word in [self.mode, self.nlink, self.uid, self.gid, self.rdev] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for word in [self.size, self.blocks, self.parent.0] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for time in [self.atime, self.mtime, self.ctime, self.btime] {
            out.extend_from_slice(&time.0.to_le_bytes());
        }
        out.extend_from_slice(&self.target);
        out
    }

    /// Returns what a file has in common with those that it may share blocks with: the first of
    /// them.
    pub fn family(&self, ino: InodeNo) -> InodeNo {
        if self.kind == FileKind::File && self.parent != InodeNo(0) { self.parent } else { ino }
    }

    /// Decodes a row; `Corrupt` for what is none.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes, "an inode");
        let kind = kind_from_code(r.u8()?)?;
        let io_mode = mode_from_code(r.u8()?)?;
        let (mode, nlink, uid, gid, rdev) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?, r.u32()?);
        let (size, blocks, parent) = (r.u64()?, r.u64()?, InodeNo(r.u64()?));
        let mut time = || r.i64().map(Timestamp);
        let (atime, mtime, ctime, btime) = (time()?, time()?, time()?, time()?);
        Ok(Self {
            kind,
            mode,
            nlink,
            uid,
            gid,
            rdev,
            size,
            blocks,
            atime,
            mtime,
            ctime,
            btime,
            io_mode,
            parent,
            target: r.rest().to_vec(),
        })
    }
}

fn mode_from_code(code: u8) -> Result<Option<IoMode>> {
    if code == 0 {
        return Ok(None);
    }
    match IoMode::ALL.into_iter().find(|mode| *mode as u8 == code) {
        Some(mode) => Ok(Some(mode)),
        None => Err(Error::corrupt(format!("unknown I/O mode {code}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_told_apart_by_what_they_do() {
        // S-20 to S-23, in the order of the codes on the device: cache, writes behind, writes
        // through, byte ranges, what O_DIRECT makes of it.
        let rows = [
            (true, true, false, false, IoMode::Direct),
            (false, false, false, true, IoMode::Direct),
            (false, false, false, false, IoMode::Concurrent),
            (true, false, true, false, IoMode::ConcurrentCache),
        ];
        let told = IoMode::ALL.map(|mode| {
            (
                mode.uses_library_cache(),
                mode.writes_behind(),
                mode.writes_through(),
                mode.locks_ranges(),
                mode.with_direct_flag(),
            )
        });
        assert_eq!(told, rows);
        assert!((1..=4).eq(IoMode::ALL.map(|mode| mode as u8)) && mode_from_code(5).is_err());
        let mut strictest_last = IoMode::ALL;
        strictest_last.sort_by_key(|mode| mode.strictness());
        assert_eq!(
            strictest_last,
            [IoMode::ConcurrentCache, IoMode::Concurrent, IoMode::Direct, IoMode::Cached]
        );
    }

    #[test]
    fn rows_survive_encoding() {
        let extent =
            ExtentRow { start: BlockNo(7), len: 3, state: ExtentState::Unwritten, birth: Epoch(9) };
        assert_eq!(ExtentRow::decode(&extent.encode()).unwrap(), extent);
        let summed = ExtentRow { state: ExtentState::Summed, ..extent };
        assert_eq!(ExtentRow::decode(&summed.encode()).unwrap(), summed);
        let dentry = DentryRow { ino: InodeNo(5), kind: FileKind::Fifo };
        assert_eq!(DentryRow::decode(&dentry.encode()).unwrap(), dentry);
        let inode = InodeRow {
            kind: FileKind::Symlink,
            mode: 0o777,
            nlink: 1,
            uid: 2,
            gid: 3,
            rdev: 4,
            size: 5,
            blocks: 6,
            atime: Timestamp(-1),
            mtime: Timestamp(2),
            ctime: Timestamp(3),
            btime: Timestamp(4),
            io_mode: Some(IoMode::Concurrent),
            parent: InodeNo(1),
            target: b"over/there".to_vec(),
        };
        assert_eq!(InodeRow::decode(&inode.encode()).unwrap(), inode);
    }

    #[test]
    fn hostile_rows_are_refused() {
        for bytes in [&[][..], &[9; 9], &[1; 40], &[0; 17]] {
            assert!(ExtentRow::decode(bytes).is_err());
        }
        assert!(InodeRow::decode(&[1; 20]).is_err());
        assert!(DentryRow::decode(&[0; 9]).is_err());
        assert!(split_extent_key(&[0; 15]).is_err());
    }

    #[test]
    fn extent_keys_sort_by_file_block() {
        assert!(extent_key(InodeNo(1), FileBlock(255)) < extent_key(InodeNo(1), FileBlock(256)));
        assert!(extent_key(InodeNo(1), FileBlock(u64::MAX)) < extent_key(InodeNo(2), FileBlock(0)));
    }
}
