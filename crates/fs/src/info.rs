//! What a mounted file system tells of itself.

use std::sync::atomic::Ordering;

use crate::row::Table;
use crate::state::Fs;
use crate::{FsInfo, LogInfo, Statfs};

pub(crate) fn statfs(fs: &Fs) -> Statfs {
    let totals = fs.space.totals();
    let block = u64::from(fs.block_size);
    let available = totals.free.saturating_sub(totals.reserve);
    Statfs {
        block_size: fs.block_size,
        total_bytes: totals.total * block,
        free_bytes: totals.free * block,
        available_bytes: available * block,
        inodes: fs.inode_count.load(Ordering::Relaxed),
    }
}

pub(crate) fn info(fs: &Fs) -> FsInfo {
    let totals = fs.space.totals();
    let block = u64::from(fs.block_size);
    let superblock = fs.meta.region().superblock();
    let engine = fs.device.engine();
    let mut log: LogInfo = fs.meta.log_info();
    log.size_bytes = superblock.log.len;
    log.separate = superblock.log_separate;
    log.device = fs.log_device.as_ref().map(|device| device.name().to_owned());
    FsInfo {
        uuid: superblock.uuid_text(),
        version: superblock.version(),
        block_size: fs.block_size,
        io_align: fs.io_align,
        buffer_align: fs.geometry.buffer_align,
        size_bytes: superblock.size_bytes,
        free_bytes: totals.free * block,
        free_runs: totals.runs,
        free_run_bytes_max: totals.run_max * block,
        metadata_bytes: superblock.metadata_len,
        inodes: fs.inode_count.load(Ordering::Relaxed),
        extents: fs.meta.row_count(Table::Extent).unwrap_or(0),
        mode: fs.tuning.mode(),
        device: fs.device.name().to_owned(),
        engine: engine.fallback.map_or_else(|| engine.name.to_owned(), |reason| format!("{} ({reason})", engine.name)),
        failed: fs.meta.failed().map(|e| e.message),
        log,
        checkpoints: fs.checkpoint_counts(),
        mover: fs.mover.report(),
        cache: fs.cache.counters(),
        recovery: fs.recovery.clone(),
        lock_waits: fs.lock_waits.load(Ordering::Relaxed),
        counters: fs.inodes.counters(),
        latencies: fs.sampler.snapshot(),
    }
}
