//! Mounting: superblock, tree, log, free space, orphans; and the way back.
//!
//! ```text
//! read superblock ─► flush the devices ─► make both superblocks equal ─► open tree ─► replay log into the memtable ─► stored free space
//!                                                                                                                             │
//!     running ◄─ remove orphans ◄─ mark mounted ◄─ open the log's next incarnation ◄─ metadata commit ◄─ free space ──────────┘
//! ```
//!
//! Where the tree does not keep the free space (format versions 1 and 2), or what it keeps does not
//! count, the claims of all extents tell it instead.
//!
//! A read-only mount neither flushes nor goes beyond the free space: rows from the log stay in
//! memory, and what the tree would write stays in an overlay.
//!
//! - I-REC-1: a mount that writes relies only on what is durable. What it reads may be in volatile
//!   caches of the device and of the log's device: the process that wrote it was killed, the
//!   machine was not. So it flushes both before it writes anything, and before blocks that the log
//!   freed are handed out.
//! - I-REC-2: until the tree holds what was replayed, nothing is written to blocks whose content a
//!   further replay of the same log would check.

use std::ops::{Bound, ControlFlow, Range};
use std::sync::Arc;
use std::time::Instant;

use bedplate_block::{BlockDevice, HeldCopies, OneFlush};

use crate::checkpoint::{self, UNFINISHED};
use crate::engine::{EPOCH, Engine, NEXT_INO, Parts, check_options, initial_tuning};
use crate::{
    BlockNo, Epoch, Error, ErrorKind, FileKind, InodeNo, MountOptions, RecoveryReport, Result,
};
use bedplate_store::{
    AllocRequest, Allocator, ByteRun, Checkpoint, CheckpointSet, Claim, Claims, ExtentRow, Found,
    Growth, InodeRow, LogParts, MetaStore, Owner, PlantedBug, Region, ReplayReport, Run, Shared,
    SpaceClass, StoredSpace, Superblock, Table, image_extent, inode_key, load_checkpoints,
    open_tree, planted, replay, split_before_key, split_extent_key, split_key, stored_position,
};

mod attach;
#[cfg(test)]
mod cramped_tests;
mod doubt;
mod grow;
#[cfg(test)]
mod meta_tests;
#[cfg(test)]
mod pack_tests;
#[cfg(test)]
mod space_tests;
#[cfg(test)]
mod tests;

pub(crate) use attach::attach_log;
pub(crate) use grow::{grow, keeping_size};

/// A volume read up to the end of its log, nothing changed on it.
pub(crate) struct Loaded {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) log_parts: LogParts,
    pub(crate) found: Found,
    pub(crate) meta: MetaStore,
    pub(crate) replayed: ReplayReport,
}

/// Mounts; see [`FileSystem::mount`](crate::FileSystem::mount). What is refused is refused before
/// anything is written, except for what the tree notes in its own file when it is opened and
/// closed, and the length of that file in the superblock.
pub(crate) fn mount(
    device: Arc<dyn BlockDevice>,
    log: Option<Arc<dyn BlockDevice>>,
    options: MountOptions,
) -> Result<Arc<Engine>> {
    let started = Instant::now();
    let options =
        MountOptions { read_only: options.read_only || options.checkpoint.is_some(), ..options };
    refuse_read_only_device(&*device, &options)?;
    let loaded = load(device, log, options.read_only, options.metadata_cache_bytes)?;
    if !options.read_only {
        refuse_damage(&loaded)?;
    }
    check_options(&options, loaded.found.superblock.block_size)?;
    options.limits.check()?;
    loaded.meta.limit_packs(options.limits.extents_per_pack);
    let superblock = &loaded.found.superblock;
    let (next_ino, epoch) =
        if options.read_only { (0, 0) } else { (next_ino(&loaded.meta)?, epoch(&loaded.meta)?) };
    let orphans = count_rows(&loaded.meta, Table::Orphan)?;
    let (allocator, extents) =
        if options.read_only { build_allocator(&loaded)? } else { begin_writing(&loaded)? };
    allocator.limit_runs(options.limits.free_runs_open);
    allocator.limit_lots(options.limits.lots);
    if !options.read_only {
        mark_in_use(&loaded)?;
    }
    let (options, tuning) = initial_tuning(&loaded.meta, options)?;
    let recovery = RecoveryReport {
        needed: !superblock.clean,
        records: loaded.replayed.records,
        log_end: loaded.replayed.end.clone(),
        orphans,
        second_superblock: loaded.found.second,
        extents,
        duration_us: u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX),
    };
    let fs = Engine::new(Parts {
        log_device: loaded.log_parts.log.clone(),
        block_size: superblock.block_size,
        epoch: Epoch(epoch),
        inode_count: loaded.meta.row_count(Table::Inode)?,
        next_ino,
        device: loaded.device,
        options,
        tuning,
        meta: loaded.meta,
        allocator,
        recovery,
    });
    fs.load_policies()?;
    if let Some(name) = &fs.options().checkpoint {
        fs.show_checkpoint(fs.checkpoint(name)?.epoch);
    }
    if !fs.is_read_only() {
        end_removals(&fs)?;
    }
    Ok(fs)
}

/// Says in the superblock that the volume is not clean, and what its log may hold from now on.
fn mark_in_use(loaded: &Loaded) -> Result<()> {
    loaded.meta.region().update_superblock(|superblock| {
        superblock.clean = false;
        superblock.carries = superblock.sums;
    })
}

/// Ends what an interrupted run had begun to remove, but for deletions of checkpoints: the sync daemon
/// goes on with these (S-484).
fn end_removals(fs: &Arc<Engine>) -> Result<()> {
    if !planted(PlantedBug::OrphansLeft) {
        remove_orphans(fs)?;
    }
    if planted(PlantedBug::MountEndsDeletions) {
        fs.end_deletions()?;
    }
    checkpoint::remove_passing(fs)
}

fn refuse_read_only_device(device: &dyn BlockDevice, options: &MountOptions) -> Result<()> {
    if device.geometry().read_only && !options.read_only {
        return Err(Error::new(
            ErrorKind::ReadOnly,
            format!("{} is read-only: mount it read-only (-o ro)", device.name()),
        ));
    }
    Ok(())
}

/// Refuses what a mount that writes would make worse or take for good.
pub(crate) fn refuse_damage(loaded: &Loaded) -> Result<()> {
    let Some(damage) = &loaded.replayed.damaged else { return Ok(()) };
    let name = loaded.device.name();
    Err(Error::corrupt(format!(
        "{name}: {damage}: mount read-only (-o ro) to save what is there, or let a check mend it \
         and take the loss"
    )))
}

/// Ends recovery: rebuilds the free space, and makes what was replayed durable.
pub(crate) fn begin_writing(loaded: &Loaded) -> Result<(Arc<Allocator>, u64)> {
    let (allocator, extents) = build_allocator(loaded)?;
    let checked = allocator.withhold(checked_again(loaded));
    let_grow(loaded, &allocator);
    loaded.meta.start(loaded.log_parts.clone(), &loaded.replayed)?;
    allocator.free(&checked, 0);
    Ok((allocator, extents))
}

/// Lets the tree take free blocks.
pub(crate) fn let_grow(loaded: &Loaded, allocator: &Arc<Allocator>) {
    let superblock = &loaded.found.superblock;
    allocator.keep_for_metadata(superblock.metadata_len / u64::from(superblock.block_size));
    loaded.meta.region().set_grow(grow_from(allocator, superblock.block_size));
}

/// Returns the blocks whose content decides whether a further replay takes the same records
/// (I-REC-2). A later record may have freed them.
fn checked_again(loaded: &Loaded) -> impl Iterator<Item = Run> {
    let block = u64::from(loaded.found.superblock.block_size);
    loaded.replayed.checked.iter().map(move |(offset, len)| {
        let start = offset / block;
        Run { start: BlockNo(start), blocks: (offset + u64::from(*len)).div_ceil(block) - start }
    })
}

/// Reads a volume and replays its log in memory. Where it is to be written to, what was read is
/// durable when this returns (I-REC-1).
///
/// Where a crash left copies in doubt, everything is read once before they are made alike: of what
/// has a checksum the copy counts that is what was written, and not the first one (S-408, S-418).
pub(crate) fn load(
    device: Arc<dyn BlockDevice>,
    log: Option<Arc<dyn BlockDevice>>,
    in_memory: bool,
    cache_bytes: u64,
) -> Result<Loaded> {
    let held: Vec<HeldCopies> = std::iter::once(&device).chain(&log).map(HeldCopies::new).collect();
    if held.iter().any(HeldCopies::are_in_doubt) {
        // What is wrong with the volume is told below.
        if let Ok(look) = read_whole(Arc::clone(&device), log.clone(), true, cache_bytes) {
            doubt::compare(&look);
        }
    }
    drop(held);
    read_whole(device, log, in_memory, cache_bytes)
}

fn read_whole(
    device: Arc<dyn BlockDevice>,
    log: Option<Arc<dyn BlockDevice>>,
    in_memory: bool,
    cache_bytes: u64,
) -> Result<Loaded> {
    if !in_memory {
        Superblock::mend(&device)?;
    }
    let found = Superblock::read(&device)?;
    let log_parts = attach_log(&device, log, &found.superblock)?;
    load_with(device, found, log_parts, in_memory, cache_bytes)
}

/// As [`load`], with a log that was found.
pub(crate) fn load_with(
    device: Arc<dyn BlockDevice>,
    found: Found,
    log_parts: LogParts,
    in_memory: bool,
    cache_bytes: u64,
) -> Result<Loaded> {
    let superblock = &found.superblock;
    check_device(&device, superblock)?;
    // A flush of the log that fails may lose pages of the tree that were written before it, and the
    // other way round: none of either succeeds after that (S-33).
    let records = if planted(PlantedBug::FlushesApart) {
        Arc::clone(&device)
    } else {
        OneFlush::over(Arc::clone(&device))
    };
    let log_parts = LogParts { data: Arc::clone(&records), ..log_parts };
    if !in_memory {
        flush_devices(&log_parts)?;
        if !planted(PlantedBug::CopiesStayUnequal) {
            found.restore(&device)?;
        }
    }
    let region = Arc::new(Region::new(Arc::clone(&records), superblock.clone(), in_memory));
    let db = open_tree(&region, cache_bytes)?;
    let position = stored_position(&db)?;
    let meta = MetaStore::new(db, region, records)?;
    let replayed = replay(&log_parts, position, |_, record| {
        meta.replay(record.rows);
        Ok(())
    })?;
    meta.add_homes(&replayed);
    Ok(Loaded { device, log_parts, found, meta, replayed })
}

/// Makes durable what earlier processes left in caches of the devices.
fn flush_devices(parts: &LogParts) -> Result<()> {
    parts.data.flush()?;
    Ok(parts
        .log
        .as_ref()
        .filter(|_| !planted(PlantedBug::RecoveryWithoutFlush))
        .map_or(Ok(()), |log| log.flush())?)
}

/// Refuses a device that cannot hold the volume its superblock describes.
fn check_device(device: &Arc<dyn BlockDevice>, superblock: &Superblock) -> Result<()> {
    if device.size_bytes() < superblock.size_bytes {
        return Err(superblock.truncated(device));
    }
    let sector = device.geometry().logical_block_size;
    if superblock.block_size < sector {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{}: the volume's block size {} is below the device's sector of {sector} bytes",
                device.name(),
                superblock.block_size
            ),
        ));
    }
    Ok(())
}

/// Reads the free space where the tree keeps it, or else rebuilds it from what is in use, and reads
/// the checkpoints; returns the space and the number of extents.
pub(crate) fn build_allocator(loaded: &Loaded) -> Result<(Arc<Allocator>, u64)> {
    let meta = &loaded.meta;
    if let Some(StoredSpace { allocator, block_refs, cloned }) = meta.stored_space(&own(loaded))? {
        let cloned_upto =
            if cloned.is_empty() { Epoch(0) } else { Epoch(setting_u32(meta, EPOCH)?) };
        let known = CheckpointSet { block_refs, cloned, cloned_upto, ..CheckpointSet::default() };
        set_checkpoints(meta, known)?;
        return Ok((allocator, 0));
    }
    let Claimed { mut claims, extents } =
        collect_claims(meta, &loaded.found.superblock, 0..u64::MAX, |_, error| Err(error))?;
    let Shared { shares, files: cloned, upto: cloned_upto } = claims.shared();
    let allocator = Arc::new(claims.into_allocator(|ino| family(meta, ino))?);
    let known =
        CheckpointSet { block_refs: shares, cloned, cloned_upto, ..CheckpointSet::default() };
    set_checkpoints(meta, known)?;
    if loaded.found.superblock.keeps_space {
        meta.recount_space();
    }
    Ok((allocator, extents))
}

fn set_checkpoints(meta: &MetaStore, known: CheckpointSet) -> Result<()> {
    let checkpoints = load_checkpoints(meta)?;
    refuse_future(meta, &checkpoints)?;
    meta.set_checkpoints(CheckpointSet { checkpoints, ..known });
    Ok(())
}

/// Returns the volume's own blocks, in order; what touches is joined.
fn own(loaded: &Loaded) -> Vec<Run> {
    let block = u64::from(loaded.found.superblock.block_size);
    let mut regions = loaded.meta.region().superblock().regions();
    regions.sort_by_key(|region| region.start);
    let mut own: Vec<Run> = Vec::with_capacity(regions.len());
    for region in regions {
        let (start, end) = (region.start / block, region.end().div_ceil(block));
        match own.last_mut() {
            Some(last) if last.end() >= start => last.blocks = last.blocks.max(end - last.start.0),
            _ => own.push(Run { start: BlockNo(start), blocks: end - start }),
        }
    }
    own
}

/// Refuses checkpoints that are not older than the present: the next one to be made would stand
/// between them.
fn refuse_future(meta: &MetaStore, checkpoints: &[Arc<Checkpoint>]) -> Result<()> {
    let Some(newest) = checkpoints.last() else { return Ok(()) };
    let now = setting_u32(meta, EPOCH)?;
    if newest.epoch.0 < now {
        return Ok(());
    }
    Err(Error::corrupt(format!(
        "checkpoint '{}' is of epoch {}, the volume of epoch {now}: run a check",
        newest.row.name.escape_ascii(),
        newest.epoch.0
    )))
}

/// Returns the family of an inode, as far as its row can be read.
pub(crate) fn family(meta: &MetaStore, ino: InodeNo) -> InodeNo {
    let row = meta.get(Table::Inode, &inode_key(ino)).ok().flatten();
    row.and_then(|row| InodeRow::decode(&row).ok()).map_or(ino, |row| row.family(ino))
}

/// What is in use.
pub(crate) struct Claimed {
    pub(crate) claims: Claims,
    /// Extents read.
    pub(crate) extents: u64,
}

/// Collects every claim of a slice of the volume; what does not decode (`false`) or lies outside (`true`) goes to `bad`,
/// which decides whether to go on.
pub(crate) fn collect_claims(
    meta: &MetaStore,
    superblock: &Superblock,
    slice: Range<u64>,
    mut bad: impl FnMut(bool, Error) -> Result<()>,
) -> Result<Claimed> {
    let block = u64::from(superblock.block_size);
    let blocks = superblock.size_bytes / block;
    let slice = slice.start..slice.end.min(blocks);
    let mut claims = Claims::of_slice(superblock.block_size, blocks, slice);
    for region in meta.region().superblock().regions() {
        let (start, end) = (region.start / block, region.end().div_ceil(block));
        claims.mark_used(Claim::new(
            BlockNo(start),
            end - start,
            Owner::Region("a region of the volume itself"),
        ))?;
    }
    let mut extents = 0;
    meta.scan_all(Table::Extent, |key, value| {
        extents += 1;
        match split_extent_key(key).and_then(|place| Ok((place, ExtentRow::decode(value)?))) {
            Ok(((ino, at), row)) => {
                claims
                    .mark_used(Claim::new(
                        row.start,
                        row.len.into(),
                        Owner::Extent(ino, at, row.birth),
                    ))
                    .or_else(|error| bad(true, error))?;
            }
            Err(error) => bad(false, error)?,
        }
        Ok(ControlFlow::Continue(()))
    })?;
    meta.scan_all(Table::Before, |key, image| {
        if planted(PlantedBug::ImagesFreeAfterMount) {
            return Ok(ControlFlow::Break(()));
        }
        match image_claim(key, image) {
            Ok(None) => {}
            Ok(Some(claim)) => {
                extents += 1;
                claims.mark_used(claim).or_else(|error| bad(true, error))?;
            }
            Err(error) => bad(false, error)?,
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(Claimed { claims, extents })
}

/// The claim of a before-image, if it is one of an extent that was there.
fn image_claim(key: &[u8], image: &[u8]) -> Result<Option<Claim>> {
    let (epoch, table, row) = split_before_key(key)?;
    let Some(extent) = image_extent(table, image)? else { return Ok(None) };
    let (ino, at) = split_extent_key(row)?;
    Ok(Some(Claim::new(
        extent.start,
        extent.len.into(),
        Owner::Image(epoch, ino, at, extent.state.unsummed()),
    )))
}

/// Lets the metadata region take free blocks, however scattered they are.
fn grow_from(allocator: &Arc<Allocator>, block_size: u32) -> bedplate_store::GrowRegion {
    let allocator = Arc::clone(allocator);
    let block = u64::from(block_size);
    let in_bytes = move |runs: &[Run]| {
        runs.iter()
            .map(|run| ByteRun { start: run.start.0 * block, len: run.blocks * block })
            .collect()
    };
    Box::new(move |bytes, sealed, lists| {
        allocator.release_sealed_in_memory(sealed);
        let want = AllocRequest {
            goal: None,
            blocks: bytes.div_ceil(block),
            ahead: None,
            class: SpaceClass::Metadata,
            reserved: 0,
            part: None,
        };
        let runs = allocator.allocate_all(want)?;
        let chunks: Vec<ByteRun> = in_bytes(&runs);
        let listed = allocator
            .allocate_all(AllocRequest { blocks: lists(&chunks), ..want })
            .inspect_err(|_| allocator.free(&runs, 0))?;
        allocator.keep_for_metadata(2 * want.blocks);
        Ok(Growth { chunks, lists: in_bytes(&listed) })
    })
}

fn setting<const N: usize>(meta: &MetaStore, name: &[u8]) -> Result<[u8; N]> {
    let bytes = meta.get(Table::Setting, name)?;
    bytes.as_deref().and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| {
        Error::corrupt(format!("the setting '{}' is missing or damaged", name.escape_ascii()))
    })
}

fn setting_u32(meta: &MetaStore, name: &[u8]) -> Result<u32> {
    setting(meta, name).map(u32::from_le_bytes)
}

/// Returns the epoch that new extents are born in.
fn epoch(meta: &MetaStore) -> Result<u32> {
    match setting_u32(meta, EPOCH)? {
        0 => Err(Error::corrupt("the setting 'epoch' is 0, and epochs count from 1: run a check")),
        epoch => Ok(epoch),
    }
}

/// Returns the number from which inode numbers are free. One that is in use would be given twice.
fn next_ino(meta: &MetaStore) -> Result<u64> {
    let next = u64::from_le_bytes(setting(meta, NEXT_INO)?);
    let mut used = None;
    meta.scan(
        Table::Inode,
        Bound::Included(&inode_key(InodeNo(next))),
        Bound::Unbounded,
        |key, _| {
            used = Some(split_key(key)?.0);
            Ok(ControlFlow::Break(()))
        },
    )?;
    match used {
        None if InodeNo(next).is_possible() => Ok(next),
        None => Err(Error::corrupt(format!(
            "the setting 'next_ino' is {next}, which is no number of an inode: run a check"
        ))),
        Some(used) => Err(Error::corrupt(format!(
            "the next inode is to be number {next}, but number {} exists: run a check",
            used.0
        ))),
    }
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
fn remove_orphans(fs: &Arc<Engine>) -> Result<()> {
    let mut orphans: Vec<(InodeNo, bool)> = Vec::new();
    fs.scan_table(Table::Orphan, |key, value| {
        orphans.push((split_key(key)?.0, value == UNFINISHED));
        Ok(ControlFlow::Continue(()))
    })?;
    for (ino, unfinished) in orphans {
        match remove_orphan(fs, ino, unfinished) {
            // Nothing depends on it but the space it holds: a check finds it, or the next mount has
            // the room in its metadata.
            Err(e)
                if matches!(
                    e.kind,
                    ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::NoSpace
                ) =>
            {
                tracing::warn!("inode {} is not removed now: {e}", ino.0);
            }
            other => other?,
        }
    }
    Ok(())
}

fn remove_orphan(fs: &Arc<Engine>, ino: InodeNo, unfinished: bool) -> Result<()> {
    let inode = fs.inode(ino)?;
    let changing = fs.change();
    match inode.kind {
        FileKind::Directory if unfinished => fs.remove_unfinished(&inode),
        _ if inode.lost_name() => fs.reclaim(&changing, &inode),
        FileKind::File => crate::data::resume_truncate(&changing, fs, &inode),
        _ => Err(Error::corrupt("only a file can wait for the end of a truncation")),
    }
}

/// Makes everything durable, closes the tree and marks the volume clean. Where the metadata has no
/// room to grow, the log holds the rest for the next mount.
pub(crate) fn unmount(fs: &Engine) -> Result<()> {
    fs.sync_everything()?;
    fs.retire();
    if fs.is_read_only() {
        return Ok(());
    }
    match fs.metadata_commit() {
        Err(e) if e.kind == ErrorKind::NoSpace && !fs.has_unwritten_records() => {
            tracing::warn!(
                "{} is not clean, and the next mount goes on from its log: {e}",
                fs.device_name()
            );
            fs.close_metadata();
            return Ok(());
        }
        other => other?,
    }
    fs.close_metadata();
    fs.update_superblock(|superblock| {
        superblock.clean = true;
        superblock.carries = false;
    })
}
