//! The machine that is looked at: files below a root, and measurements.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_block::MountEntry;

/// What was seen, or in half a sentence why it could not be.
pub type Seen<T> = Result<T, String>;

/// How long small writes take in a directory until they are durable, in microseconds; medians.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlushTimes {
    /// A direct write of 4 KiB over one that is there, without a flush.
    pub write_us: f64,
    /// The same with `O_DSYNC`.
    pub dsync_us: f64,
    /// A write of 4 KiB through the page cache, and `fdatasync`.
    pub fdatasync_us: f64,
    /// How many flushes the disks below were sent for each write with `O_DSYNC`; `None` where they
    /// do not count them.
    pub dsync_flushes: Option<f64>,
    /// As many for each `fdatasync`.
    pub fdatasync_flushes: Option<f64>,
}

/// What reads of a file that no cache holds cost, and writes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReadTimes {
    /// Bytes a second of direct writes of 1 MiB.
    pub write_bps: f64,
    /// A random read of 8 KiB through the page cache, in microseconds; the mean.
    pub random_cached_us: f64,
    /// One with `O_DIRECT`.
    pub random_direct_us: f64,
    /// How many bytes the system read from the device for each of the former.
    pub random_device_bytes: f64,
    /// The same for each random page that a program touches in a mapping of the file.
    pub mapped_device_bytes: f64,
    /// Bytes a second that one reader gets front to back through the page cache.
    pub sequential_cached_bps: f64,
    /// The same in direct reads of 1 MiB.
    pub sequential_direct_bps: f64,
}

/// A machine. Paths that its functions take are those of the machine itself; where its files lie
/// here is below [`root`](Self::root).
pub trait System {
    /// Returns the directory that holds the machine's `/sys`, `/proc` and `/dev`.
    fn root(&self) -> &Path;

    /// Measures small durable writes in a directory; `disks` are the directories of the disks below
    /// it in sysfs.
    fn flush_times(&self, dir: &Path, disks: &[PathBuf]) -> Seen<FlushTimes>;

    /// Measures how long a thread that sleeps takes to run after it was woken: what nine of ten take
    /// at least.
    fn wake_time(&self) -> Seen<Duration>;

    /// Measures reads in a directory.
    fn read_times(&self, dir: &Path) -> Seen<ReadTimes>;

    /// Returns the size of a block of the file system that a directory lies on, in bytes.
    fn block_bytes(&self, dir: &Path) -> Seen<u64>;

    /// Returns of each page of a file whether it is in the page cache.
    fn cached_pages(&self, file: &Path) -> Seen<Vec<bool>>;

    /// Returns how many bytes of a file are in the page cache.
    fn cached_bytes(&self, file: &Path) -> Seen<u64>;

    /// Returns where a file of the machine lies here.
    fn at(&self, path: &Path) -> PathBuf {
        self.root().join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Reads a small file as text, without blanks at its ends.
    fn read(&self, path: &Path) -> Seen<String> {
        let bytes = std::fs::read(self.at(path)).map_err(|error| unseen("read", path, &error))?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Reads a number.
    fn number(&self, path: &Path) -> Seen<i64> {
        let text = self.read(path)?;
        text.parse().map_err(|_| format!("{} holds no number", path.display()))
    }

    /// Reads some bytes of a file or device.
    fn bytes(&self, path: &Path, offset: u64, len: usize) -> Seen<Vec<u8>> {
        let mut bytes = vec![0; len];
        File::open(self.at(path))
            .and_then(|file| file.read_exact_at(&mut bytes, offset))
            .map_err(|error| unseen("read", path, &error))?;
        Ok(bytes)
    }

    /// Returns the names in a directory, in order.
    fn names(&self, path: &Path) -> Seen<Vec<OsString>> {
        let entries =
            std::fs::read_dir(self.at(path)).map_err(|error| unseen("list", path, &error))?;
        let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
        names.sort();
        Ok(names)
    }

    /// Returns a path of the machine without links.
    fn without_links(&self, path: &Path) -> Seen<PathBuf> {
        let refused = |error: io::Error| unseen("find", path, &error);
        let root = self.root().canonicalize().map_err(refused)?;
        let found = self.at(path).canonicalize().map_err(refused)?;
        let below = found
            .strip_prefix(&root)
            .map_err(|_| format!("{} leads out of {}", path.display(), self.root().display()))?;
        Ok(Path::new("/").join(below))
    }

    /// Returns the mounts, in the order in which they were made.
    fn mounts(&self) -> Seen<Vec<MountEntry>> {
        let process = Path::new("/proc/self");
        MountEntry::of_process(&self.at(process))
            .map_err(|error| unseen("read", &process.join("mountinfo"), &error))
    }
}

/// Says why something was not seen.
pub fn unseen(doing: &str, path: &Path, error: &io::Error) -> String {
    let path = path.display();
    match error.kind() {
        io::ErrorKind::NotFound => format!("there is no {path}"),
        io::ErrorKind::PermissionDenied => format!("no permission to {doing} {path}"),
        _ => format!("cannot {doing} {path}: {}", plain(error)),
    }
}

/// Returns the system's words without the number that Rust appends.
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split_once(" (os error ").map_or(text.clone(), |(words, _)| words.to_owned())
}

/// A copy of a machine's `/proc` and `/sys`, as support tools collect them: everything is read and
/// nothing can be measured.
#[derive(Debug)]
pub struct Copy {
    root: PathBuf,
}

impl Copy {
    /// Looks at the copy below `root`.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    fn unmeasured<T>(&self) -> Seen<T> {
        Err(format!("{} is a copy of a machine, in which nothing runs", self.root.display()))
    }
}

impl System for Copy {
    fn root(&self) -> &Path {
        &self.root
    }

    fn flush_times(&self, _dir: &Path, _disks: &[PathBuf]) -> Seen<FlushTimes> {
        self.unmeasured()
    }

    fn wake_time(&self) -> Seen<Duration> {
        self.unmeasured()
    }

    fn read_times(&self, _dir: &Path) -> Seen<ReadTimes> {
        self.unmeasured()
    }

    fn block_bytes(&self, _dir: &Path) -> Seen<u64> {
        self.unmeasured()
    }

    fn cached_pages(&self, _file: &Path) -> Seen<Vec<bool>> {
        self.unmeasured()
    }

    fn cached_bytes(&self, _file: &Path) -> Seen<u64> {
        self.unmeasured()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_seen_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let copy = Copy::new(dir.path());
        assert_eq!(copy.read(Path::new("/sys/x")), Err("there is no /sys/x".to_owned()));
        std::fs::write(dir.path().join("x"), "many\n").unwrap();
        assert_eq!(copy.number(Path::new("/x")), Err("/x holds no number".to_owned()));
        assert!(copy.wake_time().unwrap_err().contains("nothing runs"));
        std::os::unix::fs::symlink("/", dir.path().join("out")).unwrap();
        assert!(copy.without_links(Path::new("/out")).unwrap_err().contains("leads out of"));
    }
}
