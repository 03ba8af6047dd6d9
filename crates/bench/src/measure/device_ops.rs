//! Operations that reached a device: the kernel's own count for block devices, the library's for
//! everything else.

use std::fs;
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate::DeviceCounters;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::DeviceTime;
use super::trace::RequestTrace;

/// Counts of operations that reached a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceOps {
    /// Completed reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Completed writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Completed flushes.
    pub flushes: u64,
}

impl DeviceOps {
    /// Returns what happened since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            reads: self.reads.saturating_sub(earlier.reads),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            writes: self.writes.saturating_sub(earlier.writes),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
            flushes: self.flushes.saturating_sub(earlier.flushes),
        }
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            reads: self.reads + other.reads,
            read_bytes: self.read_bytes + other.read_bytes,
            writes: self.writes + other.writes,
            written_bytes: self.written_bytes + other.written_bytes,
            flushes: self.flushes + other.flushes,
        }
    }
}

impl From<DeviceCounters> for DeviceOps {
    fn from(c: DeviceCounters) -> Self {
        Self {
            reads: c.reads,
            read_bytes: c.read_bytes,
            writes: c.writes,
            written_bytes: c.written_bytes,
            flushes: c.flushes,
        }
    }
}

/// The kernel's counters of one block device.
#[derive(Debug)]
pub(crate) struct DeviceStat {
    /// The directory in sysfs.
    sys: PathBuf,
    name: String,
    number: (u32, u32),
    /// While it runs, it is what is read.
    trace: Mutex<Option<RequestTrace>>,
}

impl DeviceStat {
    /// Finds the counters of a block device node, or of the device that holds the file system of
    /// any other path. `None` where there is no such device (tmpfs, FUSE, btrfs with its anonymous
    /// device numbers).
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok()?;
        let number =
            if meta.file_type().is_block_device() { meta.st_rdev() } else { meta.st_dev() };
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let sys = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        let name = sys.file_name()?.to_string_lossy().into_owned();
        sys.join("stat").exists().then(|| Self {
            sys,
            name,
            number: (major, minor),
            trace: Mutex::new(None),
        })
    }

    /// As [`of`](Self::of), for block device nodes alone: a file's neighbours on the same device
    /// would be counted with it.
    pub(crate) fn of_device(path: &Path) -> Option<Self> {
        if fs::metadata(path).ok()?.file_type().is_block_device() { Self::of(path) } else { None }
    }

    /// Returns the kernel's name of the device.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Starts or ends a count request by request; returns whether it runs.
    pub(crate) fn count_requests(&self, on: bool) -> bool {
        let mut trace = self.trace.lock();
        // The old one ends before the new one starts.
        *trace = None;
        if on {
            *trace = RequestTrace::start(self.number.0, self.number.1);
        }
        trace.is_some()
    }

    /// Reads the counters; zeros when the device is gone, or when a count request by request ran
    /// over.
    pub(crate) fn read(&self) -> DeviceOps {
        if let Some(trace) = &*self.trace.lock() {
            return trace.read().unwrap_or_default();
        }
        parse_stat(&fs::read_to_string(self.sys.join("stat")).unwrap_or_default())
    }

    /// Reads how busy the device was; `None` when it is gone.
    pub(crate) fn time(&self) -> Option<DeviceTime> {
        let text = fs::read_to_string(self.sys.join("stat")).ok()?;
        let (busy, queued) = parse_times(&text)?;
        Some(DeviceTime { name: self.name.clone(), busy, queued })
    }

    /// Reads an attribute of the device's queue; a partition has its parent's.
    pub(crate) fn queue_attribute(&self, name: &str) -> Option<String> {
        let own = self.sys.join("queue").join(name);
        let parent = self.sys.join("../queue").join(name);
        fs::read_to_string(own)
            .or_else(|_| fs::read_to_string(parent))
            .ok()
            .map(|text| text.trim().to_owned())
    }
}

/// Returns what each block device of the machine did so far: its name, its number as `stat` tells
/// it of the files on it, and its counters.
#[must_use]
pub fn all_devices() -> Vec<(String, u64, DeviceOps)> {
    let Ok(listed) = fs::read_dir("/sys/class/block") else { return Vec::new() };
    let device = |entry: fs::DirEntry| {
        let number = fs::read_to_string(entry.path().join("dev")).ok()?;
        let (major, minor) = number.trim().split_once(':')?;
        let number = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        Some((entry.file_name().to_string_lossy().into_owned(), number, parse_stat(&stat)))
    };
    listed.flatten().filter_map(device).collect()
}

/// The kernel counts sectors of 512 bytes here whatever the device's own block size is.
const SECTOR: u64 = 512;

fn parse_stat(text: &str) -> DeviceOps {
    let fields: Vec<u64> = text.split_whitespace().map(|f| f.parse().unwrap_or(0)).collect();
    let at = |i: usize| fields.get(i).copied().unwrap_or(0);
    DeviceOps {
        reads: at(0),
        read_bytes: at(2) * SECTOR,
        writes: at(4),
        written_bytes: at(6) * SECTOR,
        flushes: at(15),
    }
}

/// Returns for how long at least one request was in flight, and for how long all were together:
/// the kernel counts both in milliseconds.
fn parse_times(text: &str) -> Option<(Duration, Duration)> {
    let mut fields = text.split_whitespace().skip(9).map(str::parse);
    let mut next = || Some(Duration::from_millis(fields.next()?.ok()?));
    Some((next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_line_is_understood() {
        let line = "  62349 10803 7125802 20139 19250 78503 24374104 75771 0 12432 96441 5553 22 \
                    252088 476 1464 54";
        let ops = parse_stat(line);
        assert_eq!(
            ops,
            DeviceOps {
                reads: 62349,
                read_bytes: 7_125_802 * 512,
                writes: 19250,
                written_bytes: 24_374_104 * 512,
                flushes: 1464
            }
        );
        assert_eq!(parse_stat(""), DeviceOps::default());
        let ms = Duration::from_millis;
        assert_eq!(parse_times(line), Some((ms(12432), ms(96441))), "S-504");
        assert_eq!(parse_times("1 2 3"), None);
    }

    #[test]
    fn differences_never_wrap() {
        let big = DeviceOps { reads: 5, ..DeviceOps::default() };
        assert_eq!(DeviceOps::default().since(&big), DeviceOps::default());
        assert_eq!(big.plus(&big).reads, 10);
    }

    #[test]
    fn a_pseudo_file_system_has_no_device() {
        assert!(DeviceStat::of(Path::new("/proc/self")).is_none());
        assert!(DeviceStat::of(Path::new("/nonexistent")).is_none());
    }
}
