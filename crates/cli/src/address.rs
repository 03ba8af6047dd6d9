//! How a command line names a file: as the system does, or as `VOLUME:/PATH` inside a volume that
//! is not mounted.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::device::place;

/// A file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathArg {
    /// A path of the system, on a live mount.
    Live(PathBuf),
    /// A path inside a volume.
    Inside {
        /// The image file or block device.
        volume: PathBuf,
        /// The path from the volume's root.
        path: PathBuf,
    },
}

impl PathArg {
    /// Reads an address. What exists under the whole name wins; then the first `:/` behind an image
    /// file or block device divides it.
    pub fn parse(name: impl AsRef<OsStr>) -> Self {
        let name = name.as_ref();
        if Path::new(name).symlink_metadata().is_err() {
            let bytes = name.as_bytes();
            let dividers =
                bytes.windows(2).enumerate().filter(|(_, two)| *two == b":/").map(|(at, _)| at);
            let mut divided = dividers.map(|at| {
                (Path::new(OsStr::from_bytes(&bytes[..at])), OsStr::from_bytes(&bytes[at + 1..]))
            });
            if let Some((volume, path)) = divided.find(|(volume, _)| may_be_volume(volume)) {
                return Self::Inside { volume: volume.into(), path: path.into() };
            }
        }
        Self::Live(name.into())
    }
}

/// Divides what names a directory of a volume to be mounted: an image file or a block device, a
/// group, or the directory that the volume is mounted on, then `:/PATH`. What exists under the whole
/// name is no such name.
pub fn volume_and_path(name: &Path) -> Option<(PathBuf, PathBuf)> {
    if name.symlink_metadata().is_ok() {
        return None;
    }
    let bytes = name.as_os_str().as_bytes();
    let at = |(at, two): (usize, &[u8])| (two == b":/").then_some(at);
    let mut divided = bytes.windows(2).enumerate().filter_map(at).map(|at| {
        (Path::new(OsStr::from_bytes(&bytes[..at])), Path::new(OsStr::from_bytes(&bytes[at + 1..])))
    });
    let names_volume = |volume: &Path| {
        may_be_volume(volume)
            || volume.is_dir()
            || volume.as_os_str().as_bytes().starts_with(b"group:")
    };
    let (volume, path) = divided.find(|(volume, _)| names_volume(volume))?;
    Some((volume.into(), path.into()))
}

fn may_be_volume(path: &Path) -> bool {
    place::is_remote(path)
        || place::file_of(path)
            .metadata()
            .is_ok_and(|meta| meta.is_file() || meta.file_type().is_block_device())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_divides_only_behind_an_existing_image() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a:b.img");
        std::fs::write(&image, b"").unwrap();
        let image = image.to_str().unwrap();
        assert_eq!(
            PathArg::parse(format!("{image}:/x:/y")),
            PathArg::Inside { volume: image.into(), path: "/x:/y".into() }
        );
        let odd = OsStr::from_bytes(b"a:b.img:/\xff");
        let mut whole = dir.path().as_os_str().to_owned();
        whole.push("/");
        whole.push(odd);
        assert_eq!(
            PathArg::parse(&whole),
            PathArg::Inside { volume: image.into(), path: OsStr::from_bytes(b"/\xff").into() }
        );
        assert_eq!(PathArg::parse(image), PathArg::Live(image.into()));
        assert_eq!(PathArg::parse("/mnt/none:/x"), PathArg::Live("/mnt/none:/x".into()));
    }

    #[test]
    fn s_510_a_directory_of_a_volume_is_named_by_image_group_or_mount() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("v.img");
        std::fs::write(&image, b"").unwrap();
        let uris = ["nbd://host/disk", "nbd+unix:///disk?socket=/run/s"];
        let local = [image.to_str().unwrap(), dir.path().to_str().unwrap(), "group:data"];
        for volume in local.into_iter().chain(uris) {
            let named = volume_and_path(Path::new(&format!("{volume}:/a/b:/c")));
            assert_eq!(named, Some((volume.into(), "/a/b:/c".into())), "S-510");
            assert_eq!(volume_and_path(Path::new(volume)), None, "S-510: all of it");
        }
        assert_eq!(volume_and_path(Path::new("/none.img:/a")), None);
    }

    #[test]
    fn a_file_that_exists_under_the_whole_name_wins() {
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("v:");
        std::fs::create_dir(&odd).unwrap();
        std::fs::write(odd.join("x"), b"").unwrap();
        std::fs::write(dir.path().join("v"), b"").unwrap();
        let text = odd.join("x").to_str().unwrap().to_owned();
        assert_eq!(PathArg::parse(&text), PathArg::Live(text.clone().into()));
    }
}
