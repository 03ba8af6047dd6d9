//! A server with a disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate_export::Disk;
use bedplate_export::vhost::{Server, Settings};
use bedplate_fs::FileSystem;
use tempfile::TempDir;

use crate::places::Place;

/// A server, and with it the directory of its socket.
pub struct Bed {
    pub server: Option<Server>,
    pub socket: PathBuf,
    pub disk: Arc<dyn Disk>,
    _fs: Option<FileSystem>,
    _dir: TempDir,
}

impl Bed {
    /// Serves a disk of `size` bytes that is one hole.
    pub fn new(place: Place, size: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (fs, disk) = place.disk(dir.path(), size);
        Self::serve(dir, fs, disk)
    }

    pub fn serve(dir: TempDir, fs: Option<FileSystem>, disk: Arc<dyn Disk>) -> Self {
        let socket = dir.path().join("socket");
        let server = Some(Server::start(Arc::clone(&disk), &settings(&socket)).unwrap());
        Self { server, socket, disk, _fs: fs, _dir: dir }
    }
}

pub fn settings(socket: &Path) -> Settings {
    Settings {
        socket: socket.to_owned(),
        queues_max: 4,
        queue_size_max: 256,
        serial: "of a test".into(),
    }
}

/// Bytes that are unlike everywhere.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}
