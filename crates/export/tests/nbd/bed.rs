//! Servers for tests: of a file of a volume in memory, and of a file of the system.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate_block::{BlockDevice, DeviceOptions, MemoryDevice};
use bedplate_export::nbd::{Address, Export, Exports, Server, Settings};
use bedplate_export::{DeviceDisk, Disk, FileDisk};
use bedplate_fs::{FileSystem, FormatOptions, IoMode, MountOptions, OpenOptions};
use tempfile::TempDir;

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

/// A server with a disk, and with it the directory of its socket.
pub struct Bed {
    server: Option<Server>,
    pub socket: PathBuf,
    pub fs: Option<FileSystem>,
    pub disk: Arc<dyn Disk>,
    _dir: TempDir,
}

impl Bed {
    /// Serves a disk of `size` bytes that is one hole, as `disk`.
    pub fn new(place: Place, size: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (fs, disk): (_, Arc<dyn Disk>) = match place {
            Place::Volume | Place::Image => {
                let fs = volume(match place {
                    Place::Image => image(dir.path()),
                    _ => MemoryDevice::new(VOLUME_BYTES),
                });
                let disk = Arc::new(file_disk(&fs, size));
                (Some(fs), disk)
            }
            Place::System => {
                let path = dir.path().join("disk");
                std::fs::File::create(&path).unwrap().set_len(size).unwrap();
                (None, Arc::new(DeviceDisk::open(&path, false).unwrap()))
            }
        };
        Self::serve(dir, fs, disk)
    }

    pub fn serve(dir: TempDir, fs: Option<FileSystem>, disk: Arc<dyn Disk>) -> Self {
        let socket = dir.path().join("socket");
        let server = Some(serve(&socket, Arc::clone(&disk)));
        Self { server, socket, fs, disk, _dir: dir }
    }

    /// Ends the server.
    pub fn end(&mut self) {
        self.server = None;
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

/// Serves a disk as `disk`.
pub fn serve(socket: &Path, disk: Arc<dyn Disk>) -> Server {
    let export = Export { name: "disk".into(), description: "of a test".into(), disk };
    let settings = Settings {
        addresses: vec![Address::Unix(socket.into())],
        connections_max: 2000,
        tls: None,
    };
    Server::start(Exports::new(vec![export]).unwrap(), &settings).unwrap()
}
