//! Disks for tests: a file of a volume in memory or in an image, and a file of the system.

use std::path::Path;
use std::sync::Arc;

use bedplate_block::{BlockDevice, DeviceOptions, MemoryDevice};
use bedplate_export::{DeviceDisk, Disk, FileDisk};
use bedplate_fs::{FileSystem, FormatOptions, IoMode, MountOptions, OpenOptions};

/// Where a test's disk lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A file of a volume in memory, whose queue can only be waited for alone.
    Volume,
    /// A file of a volume in an image, by the engine that the system allows.
    Image,
    /// A file of the system.
    System,
}

pub const PLACES: [Place; 3] = [Place::Volume, Place::Image, Place::System];

impl Place {
    /// Makes a disk of `size` bytes that is one hole; what is needed of the file system lies in
    /// `dir`.
    pub fn disk(self, dir: &Path, size: u64) -> (Option<FileSystem>, Arc<dyn Disk>) {
        match self {
            Place::Volume | Place::Image => {
                let fs = volume(match self {
                    Place::Image => image(dir),
                    _ => MemoryDevice::new(VOLUME_BYTES),
                });
                let disk = Arc::new(file_disk(&fs, size));
                (Some(fs), disk)
            }
            Place::System => {
                let path = dir.join("disk");
                std::fs::File::create(&path).unwrap().set_len(size).unwrap();
                (None, Arc::new(DeviceDisk::open(&path, false).unwrap()))
            }
        }
    }
}

const VOLUME_BYTES: u64 = 256 << 20;

fn image(dir: &Path) -> Arc<dyn BlockDevice> {
    let path = dir.join("volume");
    bedplate_block::create_image(&path, VOLUME_BYTES, false).unwrap();
    bedplate_block::open(&path, &DeviceOptions::default()).unwrap()
}

pub fn volume(device: Arc<dyn BlockDevice>) -> FileSystem {
    FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
    FileSystem::mount(device, None, MountOptions::default()).unwrap()
}

/// Makes a file of one hole, and serves it as the program does.
pub fn file_disk(fs: &FileSystem, size: u64) -> FileDisk {
    let options = OpenOptions { mode: Some(IoMode::Concurrent), ..OpenOptions::create() };
    let file = fs.open("/disk", &options).unwrap();
    file.set_size(size).unwrap();
    FileDisk::new(fs, file, false).unwrap()
}
