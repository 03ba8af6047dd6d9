//! The settings of a file on a Bedplate mount: extended attributes that the mount answers itself.

use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::error::{Error, Result};

/// Attributes whose names begin so are the mount's own, and not part of a file's content.
pub const PREFIX: &[u8] = b"user.bedplate.";
/// The I/O mode set on a file or directory.
pub const MODE: &str = "user.bedplate.mode";
/// How many bytes are written untorn, and which file or directory says so.
pub const UNTORN: &str = "user.bedplate.untorn";
/// `on` where what is written gets checksums.
pub const INTEGRITY: &str = "user.bedplate.integrity";
/// How many bytes are wanted in one extent.
pub const EXTENT_SIZE: &str = "user.bedplate.extsize";

const VALUE_BYTES_MAX: usize = 4096;

/// Returns a setting's value; `None` where it is not set or the file lies on no Bedplate mount.
pub fn get(path: &Path, name: &str) -> Result<Option<String>> {
    let mut value = vec![0; VALUE_BYTES_MAX];
    match rustix::fs::getxattr(path, name, &mut value[..]) {
        Ok(len) => Ok(Some(String::from_utf8_lossy(&value[..len]).into_owned())),
        Err(Errno::NODATA) => Ok(None),
        Err(error) => Err(Error::system(&format!("read {name} of"), path, &error.into())),
    }
}

/// Sets a setting.
pub fn set(path: &Path, name: &str, value: &str) -> Result<()> {
    let set = rustix::fs::setxattr(path, name, value.as_bytes(), XattrFlags::empty());
    set.map_err(|error| Error::system(&format!("set {name} = {value} of"), path, &error.into()))
}
