//! Where the bytes of members lie in the end: those on one physical device fail together, and it
//! serves them one after the other.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::device::place;
use crate::render::text;

/// Returns where the system tells of a block device, by its number.
fn sysfs_of(number: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}")).canonicalize().ok()
}

/// Returns the number of the disk below a path: of the file system of an image, of a loop device's
/// file, of the disk of a partition.
pub fn home_of(path: &Path) -> Option<u64> {
    let meta = fs::metadata(place::file_of(path)).ok()?;
    if meta.file_type().is_block_device() { disk_of(meta.rdev()) } else { disk_of(meta.dev()) }
}

/// Returns the disk that a device is, or is a partition of, or lies on as a loop device does. A file
/// system without a device is a home of its own.
fn disk_of(number: u64) -> Option<u64> {
    let Some(sysfs) = sysfs_of(number) else { return Some(number) };
    if let Ok(backing) = fs::read_to_string(sysfs.join("loop/backing_file")) {
        return home_of(Path::new(backing.trim_end_matches('\n')));
    }
    let disk = if sysfs.join("partition").exists() { sysfs.parent()?.to_owned() } else { sysfs };
    let number = fs::read_to_string(disk.join("dev")).ok()?;
    let (major, minor) = number.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Returns the paths that share a home with another, home by home, in the order of the paths.
pub fn shared<'a>(paths: &[&'a Path], home: impl Fn(&Path) -> Option<u64>) -> Vec<Vec<&'a Path>> {
    let mut homes: BTreeMap<u64, Vec<(usize, &Path)>> = BTreeMap::new();
    for (at, path) in paths.iter().enumerate() {
        if let Some(number) = home(path) {
            homes.entry(number).or_default().push((at, *path));
        }
    }
    let mut shared: Vec<_> = homes.into_values().filter(|paths| paths.len() > 1).collect();
    shared.sort_by_key(|paths| paths[0].0);
    shared.into_iter().map(|paths| paths.into_iter().map(|(_, path)| path).collect()).collect()
}

/// Warns of members that share a home; `redundant` says whether the group is to survive the loss of
/// one.
pub fn warn(paths: &[&Path], redundant: bool) {
    for together in shared(paths, home_of) {
        tracing::warn!("{}", sentence(&together, together.len() == paths.len(), redundant));
    }
}

/// Warns of a device that came to a home where others of its group are.
pub fn warn_of(device: &Path, others: &[&Path]) {
    let paths: Vec<&Path> = std::iter::once(device).chain(others.iter().copied()).collect();
    let shared = shared(&paths, home_of);
    if let Some(together) = shared.first().filter(|together| together[0] == device) {
        tracing::warn!("{}", sentence(together, false, true));
    }
}

fn sentence(together: &[&Path], are_all: bool, redundant: bool) -> String {
    if are_all {
        return "all members are on one physical device: it is the only one that has to fail, and \
                it serves them one after the other"
            .to_owned();
    }
    let names: Vec<String> = together.iter().copied().map(text::name).collect();
    let (last, first) = names.split_last().expect("two share a home");
    let lost = if redundant {
        "they fail together, and then what has its copies or rows on them is lost"
    } else {
        "they fail together"
    };
    format!(
        "{} and {last} are on one physical device, which serves them one after the other: {lost}",
        first.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members in any pairing, not only all of them.
    #[test]
    fn members_on_one_device_are_found_in_any_pairing() {
        let paths = ["/a1", "/b1", "/c1", "/b2", "/a2", "/a3", "/x"].map(Path::new);
        let home = |path: &Path| {
            let letter = path.to_str()?.as_bytes()[1];
            (letter != b'x').then_some(letter.into())
        };
        let found = shared(&paths, home);
        let named: Vec<Vec<&str>> = found
            .iter()
            .map(|paths| paths.iter().map(|path| path.to_str().unwrap()).collect())
            .collect();
        assert_eq!(named, [vec!["/a1", "/a2", "/a3"], vec!["/b1", "/b2"]]);
        assert!(shared(&[Path::new("/a1"), Path::new("/b1")], home).is_empty());
        let told = sentence(&found[0], false, true);
        assert!(told.starts_with("/a1, /a2 and /a3 are on one physical device"), "{told}");
        assert!(sentence(&found[1], true, true).starts_with("all members"));
    }

    #[test]
    fn images_beside_each_other_have_one_home() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
        std::fs::write(&a, b"").unwrap();
        std::fs::write(&b, b"").unwrap();
        assert!(home_of(&a).is_some() && home_of(&a) == home_of(&b));
        assert_eq!(home_of(&dir.path().join("none")), None);
    }
}
