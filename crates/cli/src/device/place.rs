//! What names a device: a path of the system, or the URI of an export on another machine.

use std::path::{Path, PathBuf};

use bedplate_block::{DeviceOptions, Part, device_path, in_place_device, is_nbd_uri};

use crate::failure::{Failure, Result};

/// Returns what names a device whatever the working directory is: a whole path without links, or a
/// URI in its one spelling.
pub fn whole(path: &Path) -> Result<PathBuf> {
    whole_to("find", path)
}

/// As [`whole`], with the words for what failed.
pub fn whole_to(what: &str, path: &Path) -> Result<PathBuf> {
    device_path(path).map_err(|error| {
        if is_nbd_uri(path) {
            return Failure::new("unsupported", format!("{}: {error}", path.display()));
        }
        Failure::system(what, path, &error)
    })
}

/// Returns whether something is there, as far as that is known without asking a server.
pub fn exists(path: &Path) -> bool {
    is_remote(path) || path.exists() || file_of(path).exists()
}

/// Returns the file or block device that a path leads to: of a part of one, or of the volume of one
/// that is being converted in place, that.
pub fn file_of(path: &Path) -> PathBuf {
    in_place_device(path).unwrap_or_else(|| Part::device_of(path))
}

/// Returns whether a path is a URI.
pub fn is_remote(path: &Path) -> bool {
    is_nbd_uri(path)
}

/// How an export is opened that something else may have open.
pub fn to_look() -> DeviceOptions {
    DeviceOptions { read_only: true, exclusive: false, ..DeviceOptions::default() }
}
