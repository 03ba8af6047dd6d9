//! An image for a test, removed when the test ends, however it ends.

use std::path::PathBuf;

use bedplate_block::create_image;
use tempfile::TempDir;

/// A directory with an image in it.
pub struct Image {
    _dir: TempDir,
    pub path: PathBuf,
}

impl Image {
    pub fn new(size_bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        create_image(&path, size_bytes, false).unwrap();
        Self { _dir: dir, path }
    }
}
