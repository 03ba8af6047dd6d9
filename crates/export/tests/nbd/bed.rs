//! Servers for tests: of a file of a volume in memory, and of a file of the system.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate_export::Disk;
use bedplate_export::nbd::{Address, Export, Exports, Server, Settings};
use bedplate_fs::FileSystem;
use tempfile::TempDir;

pub use crate::places::{PLACES, Place, file_disk, volume};

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
        let (fs, disk) = place.disk(dir.path(), size);
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
