//! The machine that this runs on.

mod flush;
mod reads;
mod wake;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_block::{cached_bytes, cached_pages};
use rustix::fs::OFlags;

use crate::system::{FlushTimes, ReadTimes, Seen, System, plain, unseen};

/// The machine that this runs on.
#[derive(Debug, Default, Clone, Copy)]
pub struct Machine;

impl System for Machine {
    fn root(&self) -> &Path {
        Path::new("/")
    }

    fn flush_times(&self, dir: &Path, disks: &[PathBuf]) -> Seen<FlushTimes> {
        flush::measure(dir, disks)
    }

    fn wake_time(&self) -> Seen<Duration> {
        wake::measure()
    }

    fn read_times(&self, dir: &Path) -> Seen<ReadTimes> {
        reads::measure(dir)
    }

    fn block_bytes(&self, dir: &Path) -> Seen<u64> {
        rustix::fs::statvfs(dir)
            .map(|stat| stat.f_bsize)
            .map_err(|error| unseen("look at", dir, &error.into()))
    }

    fn cached_pages(&self, path: &Path) -> Seen<Vec<bool>> {
        let file = own(path)?;
        cached_pages(&file, 0..u64::MAX).map_err(|error| unseen("look at", path, &error))
    }

    fn cached_bytes(&self, path: &Path) -> Seen<u64> {
        cached_bytes(&own(path)?).map_err(|error| unseen("look at", path, &error))
    }
}

/// Opens a file of which the kernel says truly what is cached: of others that all of it is.
fn own(path: &Path) -> Seen<File> {
    let file = File::open(path).map_err(|error| unseen("read", path, &error))?;
    let user = rustix::process::geteuid();
    let is_own = file.metadata().is_ok_and(|meta| meta.uid() == user.as_raw());
    if is_own || user.is_root() {
        return Ok(file);
    }
    Err(format!("no permission to see what is cached of {}", path.display()))
}

/// A file in a directory, open in several ways, which is about to lose its name.
struct Named {
    path: PathBuf,
    file: File,
}

impl Named {
    fn new(dir: &Path) -> Seen<Self> {
        let path = dir.join(format!(".bedplate-doctor-{}", std::process::id()));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(|error| unseen("write a file in", dir, &error))?;
        Ok(Self { path, file })
    }

    /// Opens it once more.
    fn with(&self, flags: OFlags) -> Seen<File> {
        let flags = flags.bits().cast_signed();
        let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&self.path);
        opened.map_err(|error| {
            let dir = self.path.parent().unwrap_or(&self.path).display();
            format!("files in {dir} cannot be opened with O_DIRECT: {}", plain(&error))
        })
    }

    /// Takes its name away, so that a process that is killed leaves nothing.
    fn without_name(self) -> Seen<File> {
        self.file.try_clone().map_err(|error| failed(&error))
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        // Where it cannot be removed there is nothing left to do about it.
        let _removed = std::fs::remove_file(&self.path);
    }
}

/// Makes the reason of a measurement that failed.
fn failed(error: &std::io::Error) -> String {
    format!("the measurement failed: {}", plain(error))
}

/// Returns the middle of some times, in microseconds.
fn median_us(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e6)
}
