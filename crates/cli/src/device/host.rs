//! The hosts of image files: whether their file systems have room for what the images may still
//! take.
//!
//! A sparse image takes space as it is written. Where the host runs out of it, writes fail that the
//! volume itself had room for, and the mount turns read-only; so it is told before.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use bedplate::format_size;
use serde::Serialize;

use crate::render::text;

/// A host with less than this is short of room, if its images may take more.
const SHORT_BYTES: u64 = 1 << 30;
/// And so is one with less than this part of its size.
const SHORT_PART: u64 = 20;

/// A file system with images on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostRoom {
    images: Vec<PathBuf>,
    free_bytes: u64,
    size_bytes: u64,
    /// What the images may take beyond what they have.
    missing_bytes: u64,
}

/// How long a command waits for hosts to answer: one that stands still is not waited for.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// As [`rooms`], but of hosts that answer at once.
pub fn rooms_in_time<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Vec<HostRoom> {
    let paths: Vec<PathBuf> = paths.into_iter().map(Path::to_owned).collect();
    let (sender, receiver) = channel();
    // It may stay behind in the kernel, and ends with the process.
    std::thread::spawn(move || sender.send(rooms(paths.iter().map(PathBuf::as_path))));
    receiver.recv_timeout(ANSWER_MAX).unwrap_or_default()
}

/// Returns the file systems below the images among `paths`, or below the loop devices over images.
/// What cannot be looked at is left out: another command says why.
pub fn rooms<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Vec<HostRoom> {
    let mut rooms: BTreeMap<u64, HostRoom> = BTreeMap::new();
    let mut images: Vec<PathBuf> = paths.into_iter().filter_map(image).collect();
    images.sort();
    images.dedup();
    for image in images {
        let (Ok(meta), Ok(host)) = (image.metadata(), rustix::fs::statvfs(&image)) else {
            continue;
        };
        let room = rooms.entry(meta.dev()).or_insert_with(|| HostRoom {
            images: Vec::new(),
            free_bytes: host.f_bavail * host.f_frsize,
            size_bytes: host.f_blocks * host.f_frsize,
            missing_bytes: 0,
        });
        room.missing_bytes += meta.size().saturating_sub(meta.blocks() * 512);
        room.images.push(image);
    }
    rooms.into_values().collect()
}

/// Returns the image file that `path` is, or that the loop device `path` is over.
fn image(path: &Path) -> Option<PathBuf> {
    let meta = path.metadata().ok()?;
    if !meta.file_type().is_block_device() {
        return meta.is_file().then(|| path.to_owned());
    }
    let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    let told = format!("/sys/dev/block/{major}:{minor}/loop/backing_file");
    let backing = PathBuf::from(std::fs::read_to_string(told).ok()?.trim_end_matches('\n'));
    backing.is_file().then_some(backing)
}

impl HostRoom {
    /// Whether the images may fill the host, and little of it is left.
    pub fn is_short(&self) -> bool {
        self.free_bytes < self.missing_bytes
            && self.free_bytes < SHORT_BYTES.max(self.size_bytes / SHORT_PART)
    }

    fn named(&self) -> String {
        match &self.images[..] {
            [image] => text::name(image),
            images => text::count(images.len() as u64, "image"),
        }
    }

    /// Tells the figures.
    pub fn told(&self) -> String {
        let (named, free) = (self.named(), format_size(self.free_bytes));
        match self.missing_bytes {
            0 => format!("{named} allocated whole, {free} free beside it"),
            missing => format!("{free} free; {named} may take {} more", format_size(missing)),
        }
    }

    /// Says what is wrong, where [`is_short`](Self::is_short), and what to do.
    pub fn warning(&self) -> String {
        format!(
            "the file system that holds {} has {} free, and up to {} more will be written there: \
             make room on it, because when it is full writes fail and the mount turns read-only",
            self.named(),
            format_size(self.free_bytes),
            format_size(self.missing_bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(free_bytes: u64, size_bytes: u64, missing_bytes: u64) -> HostRoom {
        HostRoom { images: vec!["/srv/a.img".into()], free_bytes, size_bytes, missing_bytes }
    }

    /// S-244
    #[test]
    fn s_244_a_host_is_short_where_little_is_left_and_images_may_take_more() {
        const GIB: u64 = 1 << 30;
        assert!(room(GIB - 1, 10 * GIB, 2 * GIB).is_short());
        assert!(!room(GIB - 1, 10 * GIB, GIB / 2).is_short(), "there is room for all of it");
        assert!(!room(50 * GIB, 100 * GIB, 60 * GIB).is_short(), "half of it is left");
        assert!(room(40 * GIB, 1000 * GIB, 60 * GIB).is_short(), "a twenty-fifth is left");
        let warning = room(1 << 20, GIB, 3 << 20).warning();
        assert!(warning.contains("/srv/a.img has 1 MiB free"), "{warning}");
        assert!(warning.contains("3 MiB more"), "{warning}");
    }

    #[test]
    fn images_of_one_host_count_together_and_what_is_none_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let (sparse, full) = (folder.path().join("sparse"), folder.path().join("full"));
        std::fs::File::create(&sparse).unwrap().set_len(1 << 20).unwrap();
        std::fs::write(&full, vec![7; 8192]).unwrap();
        let none = folder.path().join("none");
        let rooms = rooms([&*sparse, &full, &sparse, &none, Path::new("/dev/null")]);
        assert_eq!(rooms.len(), 1, "{rooms:?}");
        assert_eq!(rooms[0].images, [full, sparse]);
        assert!(rooms[0].missing_bytes >= 1 << 20, "{rooms:?}");
        assert!(rooms[0].free_bytes > 0 && rooms[0].size_bytes > rooms[0].free_bytes);
    }
}
