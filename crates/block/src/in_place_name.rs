//! How the volume of a device is named that is being converted in place: `in-place:/dev/sdb`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What a path begins with that names the volume of a device that is being converted.
const PREFIX: &[u8] = b"in-place:";

/// Returns the device of `in-place:DEVICE`; `None` for every other path.
#[must_use]
pub fn in_place_device(path: &Path) -> Option<PathBuf> {
    let rest = path.as_os_str().as_bytes().strip_prefix(PREFIX)?;
    (!rest.is_empty()).then(|| OsStr::from_bytes(rest).into())
}

/// Returns the path by which the volume of a device is named before it is committed.
#[must_use]
pub fn in_place_path(device: &Path) -> PathBuf {
    let mut name = OsStr::from_bytes(PREFIX).to_owned();
    name.push(device);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_names_the_volume_of_a_device() {
        let named = in_place_path(Path::new("/dev/sdb"));
        assert_eq!(named, Path::new("in-place:/dev/sdb"));
        assert_eq!(in_place_device(&named), Some("/dev/sdb".into()));
        for other in ["in-place:", "/dev/sdb", "/x/in-place:/dev/sdb", "group:a"] {
            assert_eq!(in_place_device(Path::new(other)), None, "{other}");
        }
    }
}
