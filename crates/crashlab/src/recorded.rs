//! A recording: what was run and on what, every device write, and every line that was acknowledged.

use std::fmt;
use std::fs::File;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bedplate::{BlockDevice, Geometry, MemoryDevice, format_size};
use bedplate_block::{Recording, Spooled};
use serde::{Deserialize, Serialize};

use crate::acknowledged::Acknowledgement;
use crate::error::{Error, Result};
use crate::lab::Lab;

/// A volume that a recording starts with, and how it was then: a recording on top of another volume
/// means nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Where it lies.
    pub path: PathBuf,
    size_bytes: u64,
    modified_ns: i128,
}

impl Image {
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let failed = |error| Error::system("look at", path, &error);
        let path = path.canonicalize().map_err(failed)?;
        let meta = path.metadata().map_err(failed)?;
        let modified_ns = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
        Ok(Self { size_bytes: meta.len(), modified_ns, path })
    }
}

/// What was run, and on what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Circumstances {
    /// The program.
    pub command: Vec<String>,
    /// What ran before it.
    pub setup: Option<String>,
    /// The volume that it started with; none: a fresh one.
    pub image: Option<Image>,
    /// Size of the volume in bytes.
    pub size_bytes: u64,
    /// What a power cut does not tear, in bytes.
    pub sector_bytes: u32,
    /// Options of the mount.
    pub options: String,
    /// How long the program ran, in milliseconds.
    pub duration_ms: u64,
}

impl Circumstances {
    /// Returns how long the program ran, in words.
    #[must_use]
    pub fn duration(&self) -> String {
        bedplate::format_duration(Duration::from_millis(self.duration_ms))
    }
}

impl fmt::Display for Circumstances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on ", self.command.join(" "))?;
        match &self.image {
            Some(image) => write!(f, "{}", image.path.display())?,
            None => write!(f, "a fresh volume of {}", format_size(self.size_bytes))?,
        }
        if self.options.is_empty() { Ok(()) } else { write!(f, ", mounted with {}", self.options) }
    }
}

/// A program's run, ready to be cut short.
#[derive(Debug)]
pub struct Recorded {
    /// What was run, and on what.
    pub circumstances: Circumstances,
    pub(crate) recording: Recording,
    /// After how many operations the power may go: while the program ran.
    pub(crate) cuts: RangeInclusive<usize>,
    pub(crate) acknowledgements: Vec<Acknowledgement>,
    /// All lines.
    pub(crate) lines: File,
}

impl Recorded {
    /// Returns how many writes the program made, their bytes, and its flushes.
    pub(crate) fn volume_of_work(&self) -> (u64, u64, u64) {
        let of_program = &self.recording.operations()[*self.cuts.start()..*self.cuts.end()];
        of_program.iter().fold((0, 0, 0), |(writes, bytes, flushes), operation| match operation {
            Spooled::Write { len, .. } => (writes + 1, bytes + len, flushes),
            Spooled::Flush { .. } => (writes, bytes, flushes + 1),
        })
    }
}

/// Opens what a recording starts with: nothing but zeros, or an image that stays as it is.
pub fn base(lab: &Lab<'_>, image: Option<&Path>, size_bytes: u64) -> Result<Arc<dyn BlockDevice>> {
    match image {
        Some(path) => Ok((lab.open_image)(path)?),
        None => Ok(MemoryDevice::new(size_bytes)),
    }
}

/// What the recorded device states about itself: a disk with a volatile cache.
pub fn geometry(sector_bytes: u32) -> Geometry {
    Geometry {
        logical_block_size: sector_bytes,
        physical_block_size: sector_bytes.max(4096),
        buffer_align: MemoryDevice::GEOMETRY.buffer_align,
        untorn_unit: sector_bytes,
        row_bytes: 0,
        volatile_cache: true,
        read_only: false,
    }
}
