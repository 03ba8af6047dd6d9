//! What a mounted file system tells of itself.

use bedplate_block::EngineThreads;
use serde::{Deserialize, Serialize};

use crate::engine::{DefragmenterReport, Engine, IntegrityCounts, MapCounts, RecoveryReport};
use crate::statistics::{CounterSnapshot, Latencies, Waits};
use crate::{CacheCounters, CheckpointCounts, IoMode, LogInfo};
use bedplate_store::Table;

/// How busy the I/O threads of the device's engine are, where it has any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoThreads {
    /// Threads that there are.
    pub count: u64,
    /// Threads that there may be; they start when they are needed.
    pub count_max: u64,
    /// Threads that carry out a request.
    pub busy: u64,
    /// Requests that wait for a thread.
    pub waiting: u64,
    /// How often requests came while every thread was busy, since the device was opened.
    pub waited: u64,
}

impl From<EngineThreads> for IoThreads {
    fn from(told: EngineThreads) -> Self {
        let EngineThreads { count, count_max, busy, waiting, waited } = told;
        Self { count, count_max, busy, waiting, waited }
    }
}

/// What a mounted file system tells of itself.
#[derive(Debug, Clone, Serialize)]
pub struct FsInfo {
    /// Identity of the volume.
    pub uuid: String,
    /// Format version.
    pub version: u32,
    /// Allocation unit in bytes.
    pub block_size: u32,
    /// Alignment in bytes that direct I/O wants of offset and length.
    pub io_align: u32,
    /// Alignment in bytes that direct I/O wants of the buffer.
    pub buffer_align: u32,
    /// The length in bytes of a whole row of the volume below, or what its disk says is best; 0:
    /// nothing is.
    pub row_bytes: u32,
    /// The I/O size in bytes that programs are told to prefer for files past the caches.
    pub preferred_io_bytes: u32,
    /// The largest piece in bytes in which aligned I/O goes to the device, from each extent.
    pub direct_piece_bytes_max: u64,
    /// The largest piece in bytes in which the library cache reads and writes.
    pub cached_piece_bytes_max: u64,
    /// Size of the file system in bytes.
    pub size_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Number of free runs.
    pub free_runs: u64,
    /// Longest free run in bytes.
    pub free_run_bytes_max: u64,
    /// Bytes of the metadata region.
    pub metadata_bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Extents as of the last metadata commit.
    pub extents: u64,
    /// Mode of the mount.
    pub mode: IoMode,
    /// Name of the device.
    pub device: String,
    /// Engine of the device, with the reason for a fallback.
    pub engine: String,
    /// Its threads; `None` over io_uring, which needs none.
    pub io_threads: Option<IoThreads>,
    /// Whether it was mounted so that nothing of it can be changed.
    pub read_only: bool,
    /// Why the file system turned read-only, if it did.
    pub failed: Option<String>,
    /// The log.
    pub log: LogInfo,
    /// The checkpoints.
    pub checkpoints: CheckpointCounts,
    /// Background defragmentation.
    pub defragmenter: DefragmenterReport,
    /// The library cache.
    pub cache: CacheCounters,
    /// What the extent maps of files take in memory.
    pub maps: MapCounts,
    /// What the mount had to do.
    pub recovery: RecoveryReport,
    /// How often a read or write had to wait for an inode lock or a byte range, since mount.
    pub lock_waits: u64,
    /// What reads and writes of all files waited for, since mount.
    pub waits: Waits,
    /// Memory in bytes that delayed writes take.
    pub delayed_bytes: u64,
    /// Memory in bytes that is read ahead past the caches.
    pub window_bytes: u64,
    /// What was done about checksums of file data.
    pub integrity: IntegrityCounts,
    /// Sums over all files since mount.
    pub counters: CounterSnapshot,
    /// How long reads, writes and syncs of all files took.
    pub latencies: Latencies,
}

pub(crate) fn info(fs: &Engine) -> FsInfo {
    let totals = fs.space_totals();
    let block = u64::from(fs.block_size());
    let superblock = fs.superblock();
    let (engine, waits) = (fs.device_engine(), fs.waits());
    let mut log: LogInfo = fs.log_info();
    (log.start_byte, log.size_bytes) = (superblock.log.start, superblock.log.len);
    log.separate = superblock.log_separate;
    log.device = fs.log_device().map(|device| device.name().to_owned());
    FsInfo {
        read_only: fs.is_read_only(),
        uuid: superblock.uuid_text(),
        version: superblock.version(),
        block_size: fs.block_size(),
        io_align: fs.geometry().logical_block_size,
        buffer_align: fs.geometry().buffer_align,
        row_bytes: fs.row_bytes(),
        preferred_io_bytes: fs.preferred_io(Some(IoMode::Concurrent)),
        direct_piece_bytes_max: bedplate_block::CALL_BYTES_MAX,
        cached_piece_bytes_max: fs.cache().request_bytes(),
        size_bytes: superblock.size_bytes,
        free_bytes: totals.free * block,
        free_runs: totals.runs,
        free_run_bytes_max: totals.run_max * block,
        metadata_bytes: superblock.metadata_len,
        inodes: fs.inode_count(),
        extents: fs.row_count(Table::Extent).unwrap_or(0),
        mode: fs.tuning().mode(),
        device: fs.device_name().to_owned(),
        engine: engine
            .fallback
            .map_or_else(|| engine.name.to_owned(), |reason| format!("{} ({reason})", engine.name)),
        io_threads: engine.threads.map(IoThreads::from),
        failed: fs.failure().map(|e| e.message),
        log,
        checkpoints: fs.checkpoint_counts(),
        defragmenter: fs.defrag_status().report(),
        cache: fs.cache().counters(),
        maps: fs.maps().counts(),
        recovery: fs.recovery().clone(),
        lock_waits: waits.lock_count(),
        waits,
        delayed_bytes: fs.delayed_bytes().total(),
        window_bytes: fs.window_bytes().total(),
        integrity: fs.integrity_counts(),
        counters: fs.counters(),
        latencies: fs.sampler().snapshot(),
    }
}
