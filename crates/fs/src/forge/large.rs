//! Volumes with very many extents, made in minutes: their metadata are written as they would be,
//! without the writes that lead to them. The data is whatever the device has.
//!
//! ```text
//!   superblocks, log │ room for the metadata │ slot │ slot │ … of equal length, up to the end of the volume
//!   unit n ─► shuffled to slot s ─► somewhere in it                    slot s ─► unit n, if it has one
//! ```
//!
//! The shuffle can be taken back, so units come in the order of files, in which packs are made of
//! them, and in that of the volume, in which the free space is counted; neither is kept in memory.

use std::sync::Arc;

use bedplate_block::BlockDevice;
use bedplate_store::{
    Bulk, DentryRow, ExtentRow, ExtentState, Growth, InodeRow, Region, RowChange, Run, Superblock,
    Table, crc32c, inode_key, open_tree, pair_key, write_bulk,
};
use parking_lot::Mutex;

use crate::data::{INTEGRITY, UNTORN};
use crate::engine::NEXT_INO;
use crate::format::take_front;
use crate::{BlockNo, Epoch, Error, ErrorKind, FileBlock, FileKind, InodeNo, Result, Timestamp};

/// Bytes of the tree's cache meanwhile.
const CACHE_BYTES: u64 = 1 << 30;
const FILES_OF_DIRECTORY: u64 = 1000;
/// Room in front for metadata, for each unit and each file.
const METADATA_BYTES: (u64, u64) = (96, 2048);
const METADATA_BYTES_MIN: u64 = 64 << 20;

/// What a large volume has.
#[derive(Debug, Clone, Copy)]
pub struct Large {
    /// Files: `/d0/f0` to `/d0/f999`, `/d1/f1000` and on.
    pub files: u64,
    /// Units of each, each an extent of its own at a random place; one behind the other in the file.
    pub units_of_file: u64,
    /// Blocks of a unit; what is written later is untorn in this length.
    pub unit_blocks: u32,
    /// Places for units, in percent of the units; 0: as many as the volume has room for.
    pub slots_percent: u64,
    /// Whether blocks have checksums: those of zeros.
    pub summed: bool,
}

impl Large {
    /// Returns the path of a file.
    pub fn path(file: u64) -> String {
        format!("/d{}/f{file}", file / FILES_OF_DIRECTORY)
    }

    fn units(&self) -> u64 {
        self.files * self.units_of_file
    }

    fn directories(&self) -> u64 {
        self.files.div_ceil(FILES_OF_DIRECTORY)
    }

    fn directory(number: u64) -> InodeNo {
        InodeNo(InodeNo::ROOT.0 + 1 + number)
    }

    fn file(&self, number: u64) -> InodeNo {
        InodeNo(Self::directory(self.directories()).0 + number)
    }
}

/// A random order of the numbers below a length, and back: four rounds of halves over the next even
/// power of two; what falls beyond the length goes on.
#[derive(Debug, Clone, Copy)]
struct Shuffle {
    len: u64,
    half_bits: u32,
}

const ROUNDS: u64 = 4;

/// Mixes a number.
fn mixed(number: u64) -> u64 {
    let a = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let b = (a ^ a >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let c = (b ^ b >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    c ^ c >> 31
}

impl Shuffle {
    fn new(len: u64) -> Self {
        let bits = u64::BITS - len.max(2).saturating_sub(1).leading_zeros();
        Self { len, half_bits: bits.div_ceil(2) }
    }

    fn turn(self, half: u64, round: u64) -> u64 {
        mixed(half << 3 | round) & ((1 << self.half_bits) - 1)
    }

    fn walk(self, number: u64, step: impl Fn(u64, u64) -> (u64, u64)) -> u64 {
        let mut at = number;
        loop {
            let (left, right) = step(at >> self.half_bits, at & ((1 << self.half_bits) - 1));
            at = left << self.half_bits | right;
            if at < self.len {
                return at;
            }
        }
    }

    fn there(self, number: u64) -> u64 {
        self.walk(number, |left, right| {
            (0..ROUNDS).fold((left, right), |(l, r), round| (r, l ^ self.turn(r, round)))
        })
    }

    fn back(self, number: u64) -> u64 {
        self.walk(number, |left, right| {
            (0..ROUNDS).rev().fold((left, right), |(l, r), round| (r ^ self.turn(l, round), l))
        })
    }
}

/// Where units lie.
#[derive(Debug, Clone, Copy)]
struct Places {
    shuffle: Shuffle,
    first_block: u64,
    slot_blocks: u64,
    unit_blocks: u32,
    units: u64,
}

impl Places {
    fn new(large: &Large, first_block: u64, end_block: u64) -> Result<Self> {
        let (room, unit) = (end_block.saturating_sub(first_block), u64::from(large.unit_blocks));
        let slots = match large.slots_percent {
            0 => room / unit,
            percent => large.units() * percent / 100,
        };
        let slot_blocks = room / slots.max(1);
        if slots < large.units() || slot_blocks < unit {
            let message = format!("{room} blocks have no room for {} units", large.units());
            return Err(Error::new(ErrorKind::NoSpace, message));
        }
        let (shuffle, unit_blocks) = (Shuffle::new(slots), large.unit_blocks);
        Ok(Self { shuffle, first_block, slot_blocks, unit_blocks, units: large.units() })
    }

    fn in_slot(&self, slot: u64) -> BlockNo {
        let spare = self.slot_blocks - u64::from(self.unit_blocks);
        BlockNo(self.first_block + slot * self.slot_blocks + mixed(slot) % (spare + 1))
    }

    fn of_unit(&self, unit: u64) -> BlockNo {
        self.in_slot(self.shuffle.there(unit))
    }

    fn in_order(self) -> impl Iterator<Item = Run> {
        let used = (0..self.shuffle.len).filter(move |slot| self.shuffle.back(*slot) < self.units);
        used.map(move |slot| Run { start: self.in_slot(slot), blocks: self.unit_blocks.into() })
    }
}

/// Makes a large volume of one that was just formatted.
///
/// # Errors
/// `NoSpace` where the volume has no room for it; otherwise as a mount.
pub fn make_large(device: &Arc<dyn BlockDevice>, large: &Large) -> Result<()> {
    let superblock = Superblock::read(device)?.superblock;
    let (block, size_bytes) = (u64::from(superblock.block_size), superblock.size_bytes);
    let front = superblock.regions().iter().map(|run| run.end()).max().unwrap_or(0);
    let room = large.units() * METADATA_BYTES.0 + large.files * METADATA_BYTES.1;
    let room = room.max(METADATA_BYTES_MIN).next_multiple_of(1 << 20);
    let places = Places::new(large, (front + room).div_ceil(block), size_bytes / block)?;
    let region = Arc::new(Region::new(Arc::clone(device), superblock, false));
    let cursor = Mutex::new(front);
    region.set_grow(Box::new(move |bytes, _, _| {
        let chunks = take_front(&mut cursor.lock(), bytes, front + room)?;
        Ok(Growth { chunks, lists: Vec::new() })
    }));
    let db = open_tree(&region, CACHE_BYTES)?;
    let extents = (0..large.files).flat_map(|file| {
        let units = file * large.units_of_file..(file + 1) * large.units_of_file;
        units.enumerate().map(move |(index, unit)| extent(large, &places, file, index, unit))
    });
    let mut bulk = Bulk {
        rows: &mut rows(large, block),
        extents: &mut { extents },
        covered: &mut places.in_order(),
        sum: large.summed.then(|| crc32c(&vec![0; block as usize])),
    };
    write_bulk(&db, size_bytes / block, &mut bulk)
}

fn extent(
    large: &Large,
    places: &Places,
    file: u64,
    index: usize,
    unit: u64,
) -> (InodeNo, FileBlock, ExtentRow) {
    let row = ExtentRow {
        start: places.of_unit(unit),
        len: large.unit_blocks,
        state: if large.summed { ExtentState::Summed } else { ExtentState::Written },
        birth: Epoch(1),
    };
    (large.file(file), FileBlock(index as u64 * u64::from(large.unit_blocks)), row)
}

/// All rows but those of extents, table by table in the order of their keys.
fn rows(large: &Large, block: u64) -> impl Iterator<Item = RowChange> {
    let (large, now) = (*large, Timestamp::now());
    let blocks = large.units_of_file * u64::from(large.unit_blocks);
    let inode = move |ino, kind, nlink, parent, blocks| {
        let (uid, gid, rdev, io_mode, target) = (0, 0, 0, None, Vec::new());
        let (mode, size) = (0o755, blocks * block);
        let [atime, mtime, ctime, btime] = [now; 4];
        #[rustfmt::skip]
        let row = InodeRow { kind, mode, nlink, uid, gid, rdev, size, blocks, atime, mtime, ctime, btime, io_mode, parent, target };
        RowChange::put(Table::Inode, inode_key(ino), row.encode())
    };
    let (root, directories) = (InodeNo::ROOT, large.directories());
    let links = 2 + u32::try_from(directories).expect("directories are few");
    let inodes = std::iter::once(inode(root, FileKind::Directory, links, root, 0));
    let inodes = inodes.chain(
        (0..directories)
            .map(move |number| inode(Large::directory(number), FileKind::Directory, 2, root, 0)),
    );
    let inodes = inodes.chain(
        (0..large.files)
            .map(move |file| inode(large.file(file), FileKind::File, 1, InodeNo(0), blocks)),
    );
    let next = large.file(large.files).0.to_le_bytes().to_vec();
    inodes.chain(names(large)).chain(attributes(large, block)).chain([RowChange::put(
        Table::Setting,
        NEXT_INO.to_vec(),
        next,
    )])
}

fn name(dir: InodeNo, name: &str, ino: InodeNo, kind: FileKind) -> RowChange {
    RowChange::put(Table::Dentry, pair_key(dir, name.as_bytes()), DentryRow { ino, kind }.encode())
}

fn names(large: Large) -> impl Iterator<Item = RowChange> {
    let directories = (0..large.directories()).map(|number| {
        let ino = Large::directory(number);
        name(InodeNo::ROOT, &format!("d{number}"), ino, FileKind::Directory)
    });
    directories.chain((0..large.files).map(move |file| {
        let dir = Large::directory(file / FILES_OF_DIRECTORY);
        name(dir, &format!("f{file}"), large.file(file), FileKind::File)
    }))
}

fn attributes(large: Large, block: u64) -> impl Iterator<Item = RowChange> {
    let unit = u64::from(large.unit_blocks) * block;
    let unit = u32::try_from(unit).expect("a unit is small").to_le_bytes();
    (0..large.files).flat_map(move |file| {
        let put = |name: &[u8], value: Vec<u8>| {
            RowChange::put(Table::Xattr, pair_key(large.file(file), name), value)
        };
        let integrity = large.summed.then(|| put(INTEGRITY, vec![1]));
        [put(UNTORN, unit.to_vec())].into_iter().chain(integrity)
    })
}

#[cfg(test)]
mod tests {
    use bedplate_block::{AlignedBuf, MemoryDevice};

    use super::*;
    use crate::{FileSystem, FormatOptions, MountOptions, OpenOptions};

    /// What is made is what the same writes would have led to: a check finds nothing, files can be
    /// read and written, and after that a check finds nothing either.
    #[test]
    fn a_large_volume_is_a_volume() {
        let shapes =
            [(1, 3000, 0, false), (1, 3000, 200, true), (1100, 3, 700, false), (3, 1, 0, true)];
        for (files, units_of_file, slots_percent, summed) in shapes {
            let device: Arc<dyn BlockDevice> = MemoryDevice::new(256 << 20);
            FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
            let large = Large { files, units_of_file, unit_blocks: 2, slots_percent, summed };
            make_large(&device, &large).unwrap();
            let sound = |what: &str| {
                let report = FileSystem::check_data(&device, None).unwrap();
                assert!(report.findings.is_empty(), "{large:?} {what}: {:?}", report.findings);
                report.extents
            };
            assert_eq!(sound("as made"), large.units());
            let fs = FileSystem::mount(Arc::clone(&device), None, MountOptions::default()).unwrap();
            assert_eq!(fs.info().recovery.extents, 0, "the free space is stored");
            let file = fs.open(Large::path(files - 1), &OpenOptions::create()).unwrap();
            assert_eq!(file.size(), units_of_file * 8192);
            let mut unit = AlignedBuf::zeroed(8192);
            file.read_at(&mut unit, (units_of_file - 1) * 8192).unwrap();
            unit.fill(7);
            file.write_at(&unit, 0).unwrap();
            drop(file);
            fs.unmount().unwrap();
            sound("after a write");
        }
    }

    #[test]
    fn what_has_no_room_is_refused() {
        let device: Arc<dyn BlockDevice> = MemoryDevice::new(256 << 20);
        FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
        let (files, units_of_file, unit_blocks) = (1, 30_000, 2);
        let large = Large { files, units_of_file, unit_blocks, slots_percent: 0, summed: false };
        assert_eq!(make_large(&device, &large).unwrap_err().kind, ErrorKind::NoSpace);
    }

    #[test]
    fn a_shuffle_meets_every_number_once_and_goes_back() {
        for len in [1, 2, 3, 100, 1024, 4097] {
            let shuffle = Shuffle::new(len);
            let mut met: Vec<u64> = (0..len).map(|number| shuffle.there(number)).collect();
            assert!(met.iter().zip(0..).all(|(there, number)| shuffle.back(*there) == number));
            met.sort_unstable();
            assert!(met.into_iter().eq(0..len), "{len} numbers");
        }
    }
}
