//! Image files that a command makes, and takes away again when it fails.

use std::fs;
use std::path::{Path, PathBuf};

/// Files that were made. Dropped before [`keep`](Self::keep), they are removed.
#[derive(Debug, Default)]
pub struct Made(Vec<PathBuf>);

impl Made {
    /// Notes a file that was made.
    pub fn note(&mut self, path: &Path) {
        self.0.push(path.to_owned());
    }

    /// Keeps them: the command succeeded.
    pub fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in self.0.drain(..) {
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!("{} could not be removed again: {error}", path.display());
            }
        }
    }
}
