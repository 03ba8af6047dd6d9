//! What the log tells of itself.

use serde::Serialize;

/// State of the intent log.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LogInfo {
    /// First byte of the ring on its device.
    pub start_byte: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes between tail and head.
    pub used_bytes: u64,
    /// Whether it lives on a device of its own.
    pub separate: bool,
    /// Name of that device.
    pub device: Option<String>,
    /// Log writes since mount.
    pub writes: u64,
    /// Bytes of these, with what pads them.
    pub bytes: u64,
    /// Records written since mount.
    pub records: u64,
    /// Flushes of the data device asked of the device since mount.
    pub flushes: u64,
    /// Syncs served; more than `flushes` when callers shared.
    pub syncs: u64,
    /// Microseconds that writes and flushes of the log took since mount.
    pub busy_us: u64,
    /// Microseconds since mount.
    pub open_us: u64,
    /// Durable commits of the metadata tree since mount.
    pub metadata_commits: u64,
}
