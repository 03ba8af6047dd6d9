//! What a path leads to, whatever names it has.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::probe::DeviceNo;

/// The identity of a block device or a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// A block device, whatever path it was opened by.
    Block(DeviceNo),
    /// A file: device number of its file system, and inode.
    File { dev: u64, ino: u64 },
}

impl Target {
    pub fn of(metadata: &fs::Metadata) -> Self {
        if metadata.file_type().is_block_device() {
            Self::Block(DeviceNo::from_raw(metadata.rdev()))
        } else {
            Self::File { dev: metadata.dev(), ino: metadata.ino() }
        }
    }

    /// Returns what a path leads to, without opening it.
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self::of(&fs::metadata(path)?))
    }
}
