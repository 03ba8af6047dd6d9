//! The memory that traced programs record in: a file in a directory that cannot be listed, so that
//! processes of other users find it by its name alone.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bedplate::format_size;
use bedplate_trace::{Arena, CHUNK_SLOTS, Collected, HEADER_BYTES, SLOT_BYTES, collected};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::failure::{Failure, Result};

/// Where it lies unless it is told: memory, which no disk is busy with.
const MEMORY: &str = "/dev/shm";

/// An arena; removed when dropped.
pub struct Made {
    directory: PathBuf,
    path: PathBuf,
}

impl Made {
    /// Makes one of so many bytes below `place`. All of its space is there before a program runs:
    /// a program that found none while it recorded would be ended by the system.
    pub fn new(place: Option<&Path>, bytes: u64, only_the_first: bool) -> Result<Self> {
        let place = place.unwrap_or(Path::new(MEMORY));
        let directory = place.join(format!("bedplate-trace-{:016x}", random()?));
        DirBuilder::new()
            .mode(0o711)
            .create(&directory)
            .map_err(|error| Failure::system("make", &directory, &error))?;
        let made = Self { path: directory.join(format!("{:016x}", random()?)), directory };
        let failed = |error| Failure::system("write", &made.path, &error);
        let mut options = OpenOptions::new();
        let file =
            options.write(true).create_new(true).mode(0o600).open(&made.path).map_err(failed)?;
        let chunk = (CHUNK_SLOTS * SLOT_BYTES) as u64;
        let bytes = HEADER_BYTES as u64 + bytes.max(chunk) / chunk * chunk;
        fallocate(&file, FallocateFlags::empty(), 0, bytes).map_err(|error| match error {
            Errno::NOSPC => Failure::new(
                "no_space",
                format!(
                    "there is no room for {} in {}: give a smaller --limit, or another place with \
                     --scratch",
                    format_size(bytes),
                    place.display()
                ),
            ),
            error => failed(error.into()),
        })?;
        file.write_all_at(&Arena::header(only_the_first), 0).map_err(failed)?;
        // The directory keeps others out; children of another user know the name.
        file.set_permissions(Permissions::from_mode(0o666)).map_err(failed)?;
        Ok(made)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads what was recorded.
    pub fn collected(&self) -> Result<Collected> {
        let bytes = std::fs::read(&self.path)
            .map_err(|error| Failure::system("read", &self.path, &error))?;
        collected(&bytes).ok_or_else(|| {
            let place = self.path.display();
            Failure::new("io", format!("the recording in {place} was overwritten by the program"))
        })
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.directory) {
            tracing::warn!("{} stays: {error}", self.directory.display());
        }
    }
}

fn random() -> Result<u64> {
    let source = Path::new("/dev/urandom");
    let mut bytes = [0; 8];
    File::open(source)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| Failure::system("read", source, &error))?;
    Ok(u64::from_le_bytes(bytes))
}
