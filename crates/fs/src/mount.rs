//! Mounting: superblock, tree, log, free space, orphans; and the way back.
//!
//! ```text
//! read superblock ─► open tree ─► replay log into the memtable ─► claims of all extents ─► free space
//!                                                                                             │
//!     running ◄─ mark mounted ◄─ remove orphans ◄─ open the log's next incarnation ◄─ metadata commit
//! ```
//!
//! A read-only mount stops after the free space: rows from the log stay in memory, and what the tree would write stays in an overlay.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use block::BlockDevice;
use uuid::Uuid;

use crate::log::{LogDeviceHead, LogParts, LogPlace, ReplayReport, replay};
use crate::meta::{MetaStore, Region, open_tree, stored_position};
use crate::row::{ExtentRow, Table, split_extent_key, split_key};
use crate::space::{Claim, Claims, Owner, Space, SpaceClass, Want};
use crate::state::{EPOCH, Fs, NEXT_INO, Parts};
use crate::superblock::{ByteRun, Found, Superblock};
use crate::{BlockNo, Epoch, Error, ErrorKind, InodeNo, MountOptions, RecoveryReport, Result};

/// A volume read up to the end of its log, nothing changed on it.
pub(crate) struct Loaded {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) log_parts: LogParts,
    pub(crate) found: Found,
    pub(crate) meta: MetaStore,
    pub(crate) replayed: ReplayReport,
}

/// What to do about a log that lost acknowledged records to damage: a mount that writes would take the loss for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogDamage {
    Refuse,
    Accept,
}

/// Mounts; see [`FileSystem::mount`](crate::FileSystem::mount).
pub(crate) fn mount(
    device: Arc<dyn BlockDevice>,
    log: Option<Arc<dyn BlockDevice>>,
    options: MountOptions,
    log_damage: LogDamage,
) -> Result<Arc<Fs>> {
    let started = Instant::now();
    if device.geometry().read_only && !options.read_only {
        return Err(Error::new(ErrorKind::ReadOnly, format!("{} is read-only: mount it read-only (-o ro)", device.name())));
    }
    let loaded = load(device, log, options.read_only, options.metadata_cache_bytes)?;
    if let Some(damage) = &loaded.replayed.damaged
        && !options.read_only
        && log_damage == LogDamage::Refuse
    {
        let name = loaded.device.name();
        return Err(Error::corrupt(format!(
            "{name}: {damage}: mount read-only (-o ro) to save what is there, or let a check mend it and take the loss"
        )));
    }
    let superblock = &loaded.found.superblock;
    let (space, extents) = build_space(&loaded.meta, superblock)?;
    let space = Arc::new(space);
    if !options.read_only {
        space.keep_for_metadata(superblock.metadata_len / u64::from(superblock.block_size));
        loaded.meta.region().set_grow(grow_from(&space, superblock.block_size));
        loaded.meta.start(loaded.log_parts.clone(), loaded.replayed.next)?;
        loaded.meta.region().update_superblock(|superblock| superblock.clean = false)?;
    }
    let recovery = RecoveryReport {
        needed: !superblock.clean,
        records: loaded.replayed.records,
        log_end: loaded.replayed.end.clone(),
        orphans: count_rows(&loaded.meta, Table::Orphan)?,
        second_superblock: loaded.found.second,
        extents,
        duration_us: u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX),
    };
    let fs = Fs::new(Parts {
        log_device: loaded.log_parts.log.clone(),
        block_size: superblock.block_size,
        epoch: Epoch(setting_u32(&loaded.meta, EPOCH)?),
        inode_count: loaded.meta.row_count(Table::Inode)?,
        next_ino: setting_u64(&loaded.meta, NEXT_INO)?,
        device: loaded.device,
        options,
        meta: loaded.meta,
        space,
        recovery,
    });
    if !fs.options.read_only {
        remove_orphans(&fs)?;
    }
    Ok(fs)
}

/// Reads a volume and replays its log in memory.
pub(crate) fn load(device: Arc<dyn BlockDevice>, log: Option<Arc<dyn BlockDevice>>, in_memory: bool, cache_bytes: u64) -> Result<Loaded> {
    let found = Superblock::read(&device)?;
    let superblock = &found.superblock;
    check_device(&device, superblock)?;
    let log_parts = attach_log(&device, log, superblock)?;
    let region = Arc::new(Region::new(Arc::clone(&device), superblock.clone(), in_memory));
    let db = open_tree(&region, cache_bytes)?;
    let position = stored_position(&db)?;
    let meta = MetaStore::new(db, region, Arc::clone(&device))?;
    let replayed = replay(&log_parts, position, |_, record| {
        meta.replay(record.rows);
        Ok(())
    })?;
    Ok(Loaded { device, log_parts, found, meta, replayed })
}

/// Refuses a device that cannot hold the volume its superblock describes.
fn check_device(device: &Arc<dyn BlockDevice>, superblock: &Superblock) -> Result<()> {
    if device.size_bytes() < superblock.size_bytes {
        return Err(Error::corrupt(format!(
            "{} is truncated: it has {} bytes, the volume on it {}; restore the missing end before mounting",
            device.name(),
            device.size_bytes(),
            superblock.size_bytes
        )));
    }
    let sector = device.geometry().logical_block_size;
    if superblock.block_size < sector {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("{}: the volume's block size {} is below the device's sector of {sector} bytes", device.name(), superblock.block_size),
        ));
    }
    Ok(())
}

/// Finds the log the superblock asks for.
fn attach_log(device: &Arc<dyn BlockDevice>, log: Option<Arc<dyn BlockDevice>>, superblock: &Superblock) -> Result<LogParts> {
    let volume = Uuid::from_bytes(superblock.uuid);
    let place = LogPlace { separate: superblock.log_separate, start_byte: superblock.log.start, len_bytes: superblock.log.len };
    let log = match (superblock.log_separate, log) {
        (false, None) => None,
        (false, Some(log)) => {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("{} has its intent log on itself: mount it without the log device {}", device.name(), log.name()),
            ));
        }
        (true, None) => {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("{} has its intent log on a device of its own: name that device (-o log=PATH)", device.name()),
            ));
        }
        (true, Some(log)) => {
            match LogDeviceHead::read(&log)? {
                Some(head) if head.volume == volume => {}
                Some(head) => {
                    let (found, wanted) = (head.volume, volume);
                    let name = log.name();
                    return Err(Error::new(
                        ErrorKind::NotFound,
                        format!("{name} is the log of volume {found}, not of {wanted}: name the right device"),
                    ));
                }
                None => return Err(Error::new(ErrorKind::NotFound, format!("{} holds no intent log: name the right device", log.name()))),
            }
            Some(log)
        }
    };
    Ok(LogParts { data: Arc::clone(device), log, volume, place })
}

/// Rebuilds the free space from what is in use; returns it and the number of extents.
fn build_space(meta: &MetaStore, superblock: &Superblock) -> Result<(Space, u64)> {
    let (claims, extents) = collect_claims(meta, superblock, Err)?;
    Ok((claims.into_space()?, extents))
}

/// Collects every claim; what does not decode or lies outside goes to `bad`, which decides whether to go on.
pub(crate) fn collect_claims(meta: &MetaStore, superblock: &Superblock, mut bad: impl FnMut(Error) -> Result<()>) -> Result<(Claims, u64)> {
    let block = u64::from(superblock.block_size);
    let mut claims = Claims::new(superblock.block_size, superblock.size_bytes / block);
    for region in meta.region().superblock().regions() {
        let (start, end) = (region.start / block, region.end().div_ceil(block));
        claims.mark_used(Claim::new(BlockNo(start), end - start, Owner::Region("a region of the volume itself")))?;
    }
    let mut extents = 0;
    meta.scan_all(Table::Extent, |key, value| {
        extents += 1;
        let claim = split_extent_key(key).and_then(|(ino, at)| {
            let row = ExtentRow::decode(value)?;
            claims.mark_used(Claim::new(row.start, row.len.into(), Owner::Extent(ino, at)))
        });
        claim.or_else(&mut bad)?;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((claims, extents))
}

/// Lets the metadata region take free blocks.
fn grow_from(space: &Arc<Space>, block_size: u32) -> crate::meta::GrowRegion {
    let space = Arc::clone(space);
    let block = u64::from(block_size);
    Box::new(move |bytes| {
        let want = Want { goal: None, blocks: bytes.div_ceil(block), ahead: None, class: SpaceClass::Metadata, promised: 0 };
        let runs = space.allocate_all(want)?;
        space.keep_for_metadata(2 * want.blocks);
        Ok(runs.into_iter().map(|run| ByteRun { start: run.start.0 * block, len: run.blocks * block }).collect())
    })
}

fn setting<const N: usize>(meta: &MetaStore, name: &[u8]) -> Result<[u8; N]> {
    let bytes = meta.get(Table::Setting, name)?;
    bytes
        .as_deref()
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| Error::corrupt(format!("the setting '{}' is missing or damaged", name.escape_ascii())))
}

fn setting_u32(meta: &MetaStore, name: &[u8]) -> Result<u32> {
    setting(meta, name).map(u32::from_le_bytes)
}

fn setting_u64(meta: &MetaStore, name: &[u8]) -> Result<u64> {
    setting(meta, name).map(u64::from_le_bytes)
}

fn count_rows(meta: &MetaStore, table: Table) -> Result<u64> {
    let mut count = 0;
    meta.scan_all(table, |_, _| {
        count += 1;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(count)
}

/// Removes what lost its last name while open, and ends truncations that a crash interrupted.
fn remove_orphans(fs: &Arc<Fs>) -> Result<()> {
    let mut orphans: Vec<InodeNo> = Vec::new();
    fs.meta.scan_all(Table::Orphan, |key, _| {
        orphans.push(split_key(key)?.0);
        Ok(ControlFlow::Continue(()))
    })?;
    for ino in orphans {
        let inode = fs.inode(ino)?;
        if inode.lost_name() {
            fs.reclaim(&inode)?;
        } else {
            crate::io::resume_truncate(fs, &inode)?;
        }
    }
    Ok(())
}

/// Makes everything durable, closes the tree and marks the volume clean.
pub(crate) fn unmount(fs: &Fs) -> Result<()> {
    fs.sync_everything()?;
    fs.retire();
    if fs.options.read_only {
        return Ok(());
    }
    fs.meta.metadata_commit()?;
    fs.meta.close();
    fs.meta.region().update_superblock(|superblock| superblock.clean = true)
}

/// Takes over a larger device.
pub(crate) fn grow(fs: &Fs) -> Result<u64> {
    fs.begin_change()?;
    let block = u64::from(fs.block_size);
    let size = fs.device.refresh_size()? / block * block;
    let old = fs.meta.region().superblock().size_bytes;
    if size < old {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("{} shrank from {old} to {size} bytes below a mounted volume: restore its size", fs.device.name()),
        ));
    }
    if size > old {
        fs.meta.region().update_superblock(|superblock| superblock.size_bytes = size)?;
        fs.space.grow(size / block);
    }
    Ok(size)
}
