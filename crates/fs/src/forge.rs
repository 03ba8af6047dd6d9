//! Volumes that lie: writes what no mount would write, with every checksum right, and lends the
//! decoders to fuzzers.
//!
//! Only built for tests and fuzzers (`forge`): damage that a checksum finds is harmless, so what
//! has to be tried is damage that none finds.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bedplate_block::{AlignedBuf, BlockDevice};

use crate::mount::{build_allocator, load};
use crate::namespace::decode_acl;
use crate::schedule::{SCHEDULE_PREFIX, Schedule};
use crate::{Lsn, Result};
use bedplate_store::{
    AllocRequest, COPY_B, CheckpointRow, DentryRow, ExtentRow, InodeRow, LogDeviceHead,
    LogPosition, MetaStore, POSITION, Reader, Record, Region, SpaceClass, SumGroup, Superblock,
    Table, TableBytes, decode_image, decode_space_row, encode_image, open_tree, space_bytes,
    split_before_key, split_extent_key, split_key, spoil_pack as spoil, stored_position,
    table_bytes, table_name, unpack_rows, write_rows,
};

mod large;

pub use large::{Large, make_large};

/// Bytes of the tree's cache while a volume is forged.
const CACHE_BYTES: u64 = 1 << 20;

/// One row as it stands in the metadata: table (1 inode, 2 name, 3 extent, 4 extended attribute, 5
/// orphan, 6 setting), key, value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowImage {
    /// Number of the table.
    pub table: u8,
    /// The key.
    pub key: Vec<u8>,
    /// The value; `None` removes the row.
    pub value: Option<Vec<u8>>,
}

/// A region of a volume that holds no file data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionPlace {
    /// What it is: `superblock`, `log` or `metadata`.
    pub name: &'static str,
    /// First byte.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Returns the regions of a volume, in the order superblock A, superblock B, log (when it is on the
/// volume), metadata chunks.
///
/// # Errors
/// As a mount, where no superblock decodes.
pub fn regions(device: &Arc<dyn BlockDevice>) -> Result<Vec<RegionPlace>> {
    let superblock = Superblock::read(device)?.superblock;
    let copies = 2;
    let log = usize::from(!superblock.log_separate);
    let name = |index| match index {
        index if index < copies => "superblock",
        index if index < copies + log => "log",
        _ => "metadata",
    };
    let regions = superblock.regions().into_iter().enumerate();
    Ok(regions
        .map(|(index, run)| RegionPlace { name: name(index), start: run.start, len: run.len })
        .collect())
}

/// Returns every row of the tree, without what the log holds beyond it.
///
/// # Errors
/// As a mount.
pub fn rows(device: &Arc<dyn BlockDevice>) -> Result<Vec<RowImage>> {
    let region =
        Arc::new(Region::new(Arc::clone(device), Superblock::read(device)?.superblock, true));
    let meta = MetaStore::new(open_tree(&region, CACHE_BYTES)?, region, Arc::clone(device))?;
    let mut rows = Vec::new();
    for table in Table::ALL {
        meta.scan_all(table, |key, value| {
            rows.push(RowImage {
                table: table as u8,
                key: key.to_vec(),
                value: Some(value.to_vec()),
            });
            Ok(ControlFlow::Continue(()))
        })?;
    }
    Ok(rows)
}

/// Returns what the table of extents takes in the metadata: bytes of keys and values, bytes of
/// pages, rows.
///
/// # Errors
/// As a mount.
pub fn extent_table(device: &Arc<dyn BlockDevice>) -> Result<(u64, u64, u64)> {
    table(device, Table::Extent)
}

/// As [`extent_table`], of the checksums of data.
///
/// # Errors
/// As a mount.
pub fn sum_table(device: &Arc<dyn BlockDevice>) -> Result<(u64, u64, u64)> {
    table(device, Table::Sum)
}

fn table(device: &Arc<dyn BlockDevice>, table: Table) -> Result<(u64, u64, u64)> {
    let region =
        Arc::new(Region::new(Arc::clone(device), Superblock::read(device)?.superblock, true));
    let bytes = table_bytes(&open_tree(&region, CACHE_BYTES)?, table)?;
    Ok((bytes.stored, bytes.pages, bytes.rows))
}

/// Returns what each table of the metadata takes: its name, bytes of keys and values, bytes of pages,
/// rows.
///
/// # Errors
/// As a mount.
pub fn tables(device: &Arc<dyn BlockDevice>) -> Result<Vec<(&'static str, u64, u64, u64)>> {
    let region =
        Arc::new(Region::new(Arc::clone(device), Superblock::read(device)?.superblock, true));
    let db = open_tree(&region, CACHE_BYTES)?;
    let named = |name, bytes: TableBytes| (name, bytes.stored, bytes.pages, bytes.rows);
    let mut all = vec![named("space", space_bytes(&db)?)];
    for table in Table::ALL {
        all.push(named(table_name(table), table_bytes(&db, table)?));
    }
    Ok(all)
}

/// Units that a thread of [`allocate_for`] holds: what it allocates beyond frees the oldest.
const UNITS_HELD: usize = 64;
/// So many records later than a block was freed, the record counts as sealed.
const RECORDS_UNSEALED: u64 = 32;

/// Allocates units of so many blocks as redirected writes do, on so many threads for a while, in the
/// free space of a volume, which is only read: each takes the place of one that is freed by a record,
/// and is free again once that is sealed. Returns how many allocations there were, and how often the
/// allocator's mutex was taken meanwhile.
///
/// # Errors
/// As a mount; `NoSpace`.
pub fn allocate_for(
    device: &Arc<dyn BlockDevice>,
    threads: usize,
    time: Duration,
    blocks: u64,
) -> Result<(u64, u64)> {
    // Regions are read of it as long as it is there.
    let loaded = load(Arc::clone(device), None, true, 64 << 20)?;
    let (allocator, _) = build_allocator(&loaded)?;
    let want = AllocRequest {
        goal: None,
        blocks,
        ahead: None,
        class: SpaceClass::Data,
        reserved: 0,
        part: None,
    };
    let before = allocator.turns();
    let (over, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let allocate = |thread: u64| {
        let (mut held, mut lsn, mut done) = (VecDeque::new(), 0_u64, 0);
        while !over.load(Ordering::Relaxed) {
            let sealed = Lsn(lsn.saturating_sub(RECORDS_UNSEALED));
            let part = Some((thread << 32) ^ done);
            held.push_back(allocator.allocate_after(AllocRequest { part, ..want }, sealed)?);
            if held.len() > UNITS_HELD {
                lsn += 1;
                let oldest = held.pop_front().into_iter().flatten();
                oldest.for_each(|run| allocator.release_after(Lsn(lsn), run));
            }
            done += 1;
        }
        count.fetch_add(done, Ordering::Relaxed);
        Ok::<_, crate::Error>(())
    };
    std::thread::scope(|scope| {
        let all: Vec<_> =
            (0..threads as u64).map(|thread| scope.spawn(move || allocate(thread))).collect();
        std::thread::sleep(time);
        over.store(true, Ordering::Relaxed);
        all.into_iter().try_for_each(|one| one.join().expect("an allocation does not panic"))
    })?;
    Ok((count.into_inner(), allocator.turns() - before))
}

/// Turns a bit of the first pack of extents of a file, as a device does; returns the file block that
/// it begins with, and how many extents it has. `None` where it has no pack.
///
/// # Errors
/// As a mount.
pub fn spoil_pack(device: &Arc<dyn BlockDevice>, ino: u64) -> Result<Option<(u64, usize)>> {
    let region =
        Arc::new(Region::new(Arc::clone(device), Superblock::read(device)?.superblock, false));
    let spoilt = spoil(&open_tree(&region, CACHE_BYTES)?, crate::InodeNo(ino))?;
    Ok(spoilt.map(|(first, extents)| (first.0, extents)))
}

/// Decodes a pack of extents, its checksum made right first. What decodes encodes to the same.
pub fn decode_pack(ino: u64, first: u64, body: &[u8]) {
    bedplate_store::decode_pack(crate::InodeNo(ino), crate::FileBlock(first), body);
}

/// Puts rows into the tree as they are. What the log holds is replayed over them at the next mount.
///
/// # Errors
/// `NoSpace` when they do not fit the metadata region as it is; otherwise as a mount.
pub fn put_rows(device: &Arc<dyn BlockDevice>, rows: &[RowImage]) -> Result<()> {
    let region =
        Arc::new(Region::new(Arc::clone(device), Superblock::read(device)?.superblock, false));
    let db = open_tree(&region, CACHE_BYTES)?;
    let mut position = stored_position(&db)?;
    let mut changes = Vec::with_capacity(rows.len());
    for row in rows {
        let table = Table::from_code(row.table)?;
        match &row.value {
            Some(value) if table == Table::Setting && row.key == POSITION && value.len() == 32 => {
                position = any_position(value)?;
            }
            value => changes.push((table, row.key.as_slice(), value.as_deref())),
        }
    }
    write_rows(&db, &position, changes.into_iter(), region.superblock().packs)
}

/// Makes the volume, which has no checksums of data, one of an older format: of version 4; of version
/// 3, which has no packs of extents; or of one that does not keep the free space either; what the tree has of it stays, and does not count any
/// more.
///
/// # Errors
/// As a mount.
pub fn make_old(device: &Arc<dyn BlockDevice>, version: u32) -> Result<()> {
    let superblock = Superblock::read(device)?.superblock;
    let region = Arc::new(Region::new(Arc::clone(device), superblock, false));
    if version < 4 {
        unpack_rows(&open_tree(&region, CACHE_BYTES)?)?;
    }
    let superblock = region.superblock();
    Superblock {
        keeps_space: version >= 3,
        packs: version >= 4,
        sums: false,
        carries: false,
        generation: superblock.generation + 1,
        ..superblock
    }
    .write(device)
}

/// Takes [`make_old`] back, of a volume that nothing was written to since.
///
/// # Errors
/// As a mount.
pub fn make_new(device: &Arc<dyn BlockDevice>) -> Result<()> {
    let superblock = Superblock::read(device)?.superblock;
    let generation = superblock.generation + 1;
    Superblock { keeps_space: true, packs: true, sums: true, generation, ..superblock }
        .write(device)
}

/// Reads a position without asking whether it is possible.
fn any_position(bytes: &[u8]) -> Result<LogPosition> {
    let mut r = Reader::new(bytes, "a position");
    Ok(LogPosition {
        incarnation: r.u64()?,
        sequence: r.u64()?,
        offset: r.u64()?,
        applied: Lsn(r.u64()?),
    })
}

/// Gives whatever stands at the places of the superblock's copies and of log writes the checksum
/// that its bytes ask for.
///
/// # Errors
/// Those of the device.
pub fn reseal(device: &Arc<dyn BlockDevice>, log: Option<RegionPlace>) -> Result<()> {
    let mut copy = AlignedBuf::zeroed(
        bedplate_store::CONTENT_BYTES.max(device.geometry().logical_block_size as usize),
    );
    for at in [0, COPY_B] {
        device.read_at(&mut copy, at)?;
        if copy.iter().any(|byte| *byte != 0) {
            bedplate_store::seal(&mut copy[..bedplate_store::CONTENT_BYTES]);
            device.write_at(&copy, at)?;
        }
    }
    let Some(log) = log else { return Ok(()) };
    let mut ring = AlignedBuf::zeroed(usize::try_from(log.len).expect("a forged log is small"));
    device.read_at(&mut ring, log.start)?;
    if bedplate_store::seal_batches(&mut ring) > 0 {
        device.write_at(&ring, log.start)?;
    }
    Ok(())
}

/// Decodes a copy of the superblock, its checksum made right first. What decodes encodes to the
/// same.
pub fn decode_superblock(bytes: &[u8]) {
    let mut copy = bytes.to_vec();
    copy.resize(bedplate_store::CONTENT_BYTES, 0);
    bedplate_store::seal(&mut copy);
    if let Ok(superblock) = Superblock::decode(&copy, 0) {
        let again =
            Superblock::decode(&superblock.encode(), 0).expect("what was decoded can be encoded");
        assert_eq!(superblock, again);
    }
}

/// Decodes the payload of a log write, record by record. What decodes encodes to the same.
pub fn decode_log_records(bytes: &[u8]) {
    let mut payload = Reader::new(bytes, "the payload of a log write");
    while !payload.is_empty() {
        let Ok(record) = Record::decode(&mut payload) else { return };
        let encoded = bedplate_store::encode_record(&record);
        let again = Record::decode(&mut Reader::new(&encoded, "a record"))
            .expect("what was decoded can be encoded");
        // A record behind a barrier needs no checksum of what it exposes, so none is written.
        assert_eq!(
            (record.kind, &record.rows, record.barrier),
            (again.kind, &again.rows, again.barrier)
        );
    }
}

/// Replays a ring that is the whole of `device`, every checksum in it made right first. Returns how
/// many records came out of it.
///
/// # Errors
/// As a mount.
pub fn replay_ring(device: &Arc<dyn BlockDevice>, volume: [u8; 16]) -> Result<u64> {
    let mut ring =
        AlignedBuf::zeroed(usize::try_from(device.size_bytes()).expect("a forged log is small"));
    device.read_at(&mut ring, 0)?;
    bedplate_store::seal_batches(&mut ring);
    device.write_at(&ring, 0)?;
    let place =
        bedplate_store::LogPlace { separate: false, start_byte: 0, len_bytes: device.size_bytes() };
    let parts = bedplate_store::LogParts {
        data: Arc::clone(device),
        log: None,
        volume: uuid::Uuid::from_bytes(volume),
        place,
    };
    Ok(bedplate_store::replay(&parts, LogPosition::START, |_, _| Ok(()))?.records)
}

/// Decodes the head of a log device.
pub fn decode_log_head(device: &Arc<dyn BlockDevice>) {
    if let Ok(Some(head)) = LogDeviceHead::read(device) {
        assert!(
            head.place.start_byte + head.place.len_bytes <= device.size_bytes(),
            "a head that decodes lies within its device"
        );
    }
}

/// Decodes a row of a table; what decodes encodes to the same.
pub fn decode_row(table: u8, key: &[u8], value: &[u8]) {
    let Ok(table) = Table::from_code(table) else {
        // The table of free space has no code: the log does not know it.
        return decode_space_row(key, value);
    };
    let _split = split_key(key);
    let encoded = match table {
        Table::Inode => InodeRow::decode(value).map(|row| row.encode()),
        Table::Dentry => DentryRow::decode(value).map(DentryRow::encode),
        Table::Extent => split_extent_key(key)
            .and_then(|_| ExtentRow::decode(value).map(|row| row.encode().to_vec())),
        Table::Setting if key.starts_with(SCHEDULE_PREFIX) => {
            Schedule::decode(key, value).map(|schedule| schedule.encode())
        }
        Table::Setting => LogPosition::decode(value).map(|position| position.encode()),
        Table::Xattr => Ok(decode_acl(value).unwrap_or_else(|| value.to_vec())),
        Table::Orphan | Table::Scope => Ok(value.to_vec()),
        Table::Checkpoint => CheckpointRow::decode(value).map(|row| row.encode()),
        Table::Before => split_before_key(key)
            .and_then(|_| decode_image(value).map(|row| encode_image(row).to_vec())),
        Table::Sum => SumGroup::decode(key, value).map(|group| group.encode(key)),
    };
    assert!(
        encoded.is_err() || encoded.is_ok_and(|encoded| encoded == value),
        "what was decoded encodes to the same"
    );
}
