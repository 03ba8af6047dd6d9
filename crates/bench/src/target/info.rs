//! What is recorded about a target: enough to know, years later, what the numbers were measured on.

use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::Path;

use bedplate_block::MountEntry;
use serde::{Deserialize, Serialize};

use crate::measure::DeviceStat;

/// The part a target plays in the papers' comparisons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// A raw device, or a preallocated file used as one.
    Raw,
    /// Through a cache: the kernel's or the library's.
    Buffered,
    /// Past the cache, with the kernel's or byte-range locking.
    Direct,
    /// Past the cache, one writer at a time in a file: what the papers call direct I/O.
    DirectWhole,
    /// Bedplate's `concurrent` mode.
    Concurrent,
    /// Bedplate's `concurrent+cache` mode.
    ConcurrentCache,
}

/// Describes a target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TargetInfo {
    /// The short name in tables; unique in a run.
    pub label: String,
    /// The description it was opened from, as it can be typed again.
    pub spec: String,
    /// `raw`, `path`, `volume` or `nfs`.
    pub kind: String,
    /// The part it plays.
    pub role: Role,
    /// The engine that serves it and why not the preferred one, in words.
    pub engine: String,
    /// The file system and its mount options; for a volume its block size and log.
    pub file_system: Option<String>,
    /// What counts the operations that reach the device.
    pub counted_by: String,
    /// The devices below.
    pub places: Vec<PlaceInfo>,
}

impl TargetInfo {
    /// Returns whether it is a directory on a mounted file system.
    #[must_use]
    pub fn is_path(&self) -> bool {
        self.kind == "path"
    }

    /// Returns whether its files have advisory locks of ranges: the kernel's, or those of an NFS
    /// client among its own opens.
    #[must_use]
    pub fn has_record_locks(&self) -> bool {
        self.is_path() || self.kind == "nfs"
    }
}

/// Describes one device below a target.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PlaceInfo {
    /// The path or `memory`.
    pub path: String,
    /// Size in bytes of the device or file; 0 where it has none of its own.
    pub size_bytes: u64,
    /// The kernel's name of the block device; empty where there is none.
    pub device: String,
    /// Model, or the file behind a loop device.
    pub model: String,
    /// Logical block size in bytes; 0 where unknown.
    pub logical_block_size: u32,
    /// Physical block size in bytes; 0 where unknown.
    pub physical_block_size: u32,
    /// Whether a volatile write cache is there.
    pub volatile_cache: Option<bool>,
    /// The kernel's I/O scheduler in use.
    pub scheduler: String,
    /// Delay in microseconds added on purpose to every operation; 0: none.
    pub added_latency_us: u64,
}

impl PlaceInfo {
    /// Reads what the system tells about the device at or below `path`.
    pub(crate) fn of_path(path: &Path) -> Self {
        let mut info = Self { path: path.display().to_string(), ..Self::default() };
        info.size_bytes = fs::metadata(path).map_or(0, |m| if m.is_file() { m.len() } else { 0 });
        let Some(stat) = DeviceStat::of(path) else { return info };
        let number =
            |name: &str| stat.queue_attribute(name).and_then(|v| v.parse().ok()).unwrap_or(0);
        info.device = stat.name().to_owned();
        info.logical_block_size = number("logical_block_size");
        info.physical_block_size = number("physical_block_size");
        info.volatile_cache = stat.queue_attribute("write_cache").map(|v| v == "write back");
        info.scheduler =
            stat.queue_attribute("scheduler").map(|v| chosen_scheduler(&v)).unwrap_or_default();
        let sys = format!("/sys/class/block/{}", info.device);
        let read = |name: &str| {
            fs::read_to_string(format!("{sys}/{name}")).ok().map(|t| t.trim().to_owned())
        };
        info.model = read("device/model")
            .or_else(|| read("loop/backing_file").map(|f| format!("loop over {f}")))
            .unwrap_or_default();
        if info.size_bytes == 0 && fs::metadata(path).is_ok_and(|m| !m.is_dir()) {
            info.size_bytes = read("size").and_then(|s| s.parse::<u64>().ok()).unwrap_or(0) * 512;
        }
        info
    }
}

/// The scheduler in brackets: `none [mq-deadline] bfq`.
fn chosen_scheduler(text: &str) -> String {
    text.split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or(text, |(name, _)| name)
        .to_owned()
}

/// A line of the mount table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    pub kind: String,
    pub options: String,
    pub source: String,
}

/// Finds the mount that holds `path`.
pub(crate) fn mount_of(path: &Path) -> Option<Mount> {
    let device = fs::metadata(path).ok()?.st_dev();
    let wanted = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    mount_in(MountEntry::all().ok()?, &wanted)
}

/// Finds the last mount of a device.
fn mount_in(entries: Vec<MountEntry>, device: &str) -> Option<Mount> {
    let entry = entries.into_iter().rfind(|entry| entry.device == device)?;
    Some(Mount {
        kind: entry.kind,
        options: format!("{};{}", entry.flags, entry.options),
        source: entry.source.to_string_lossy().into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_table_is_understood() {
        let table = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root \
                     rw,errors=continue\n40 35 7:0 / /x rw - xfs /dev/loop0 rw,attr2\n";
        let xfs = Mount {
            kind: "xfs".into(),
            options: "rw;rw,attr2".into(),
            source: "/dev/loop0".into(),
        };
        let mount_in = |device: &str| super::mount_in(MountEntry::parse(table), device);
        assert_eq!(mount_in("7:0"), Some(xfs));
        assert_eq!(mount_in("98:0").unwrap().options, "rw,noatime;rw,errors=continue");
        assert_eq!(mount_in("1:1"), None);
    }

    #[test]
    fn scheduler_in_brackets() {
        assert_eq!(chosen_scheduler("none [mq-deadline] bfq"), "mq-deadline");
        assert_eq!(chosen_scheduler("none"), "none");
    }

    #[test]
    fn a_plain_file_has_its_own_size() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(12345).unwrap();
        assert_eq!(PlaceInfo::of_path(file.path()).size_bytes, 12345);
        assert!(mount_of(Path::new("/proc")).is_some_and(|m| m.kind == "proc"));
    }
}
