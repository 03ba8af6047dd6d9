//! What a device lies on: a partition on its disk, a loop device on its file, down to the file or
//! disk that has the bytes.
//!
//! ```text
//! /dev/loop1p2 ── 1 MiB.. ──► /dev/loop1 ── offset.. ──► v.img
//! ```

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::loops::Loop;
use super::probe::DeviceNo;
use super::target::Target;
use crate::{Part, in_place_device};

/// All bytes of a file or device, however long it becomes.
pub(super) const WHOLE: Range<u64> = 0..u64::MAX;
/// More layers than the kernel lets loop devices stand on each other.
const LAYERS_MAX: usize = 16;

/// A device, or something that it lies on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layer {
    pub target: Target,
    pub path: PathBuf,
    /// The bytes of it that belong to the uppermost device.
    pub bytes: Range<u64>,
    /// The loop device above that presents it; `None` for the uppermost and for the disk of a
    /// partition.
    pub presented_by: Option<Loop>,
}

/// Returns the device and everything that these bytes of it lie on, from the top down.
pub(super) fn layers(path: &Path, target: Target, bytes: &Range<u64>) -> Vec<Layer> {
    let mut layers =
        vec![Layer { target, path: path.to_owned(), bytes: bytes.clone(), presented_by: None }];
    while layers.len() < LAYERS_MAX
        && let Some(next) = layers.last().and_then(below)
    {
        layers.push(next);
    }
    layers
}

fn below(layer: &Layer) -> Option<Layer> {
    let Target::Block(device) = layer.target else { return None };
    disk_of(device, &layer.bytes).or_else(|| file_of(device, &layer.bytes))
}

fn disk_of(partition: DeviceNo, bytes: &Range<u64>) -> Option<Layer> {
    let dir = partition.sysfs().canonicalize().ok().filter(|dir| dir.join("partition").exists())?;
    let in_bytes = |name: &str| {
        Some(fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok()? * 512)
    };
    let disk = DeviceNo::read(&dir.parent()?.join("dev"))?;
    let (start, size) = (in_bytes("start")?, in_bytes("size")?);
    Some(Layer {
        target: Target::Block(disk),
        path: disk.node()?,
        bytes: part_of(&(start..start + size), bytes),
        presented_by: None,
    })
}

fn file_of(device: DeviceNo, bytes: &Range<u64>) -> Option<Layer> {
    let presented_by = Loop::of(device)?;
    let (target, path) = (presented_by.backing, presented_by.backing_path.clone());
    Some(Layer {
        target,
        path,
        bytes: part_of(&presented_by.bytes, bytes),
        presented_by: Some(presented_by),
    })
}

/// Returns where `inner`, a part of what `outer` holds, lies.
fn part_of(outer: &Range<u64>, inner: &Range<u64>) -> Range<u64> {
    let place = |at: u64| outer.start.saturating_add(at).min(outer.end);
    place(inner.start)..place(inner.end)
}

/// Says whether two ranges share a byte.
pub(super) fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// The file or disk that has the bytes of a device, and which bytes of it they are.
///
/// Two paths whose backings overlap are one device, under whatever names: links, an image and the
/// loop device over it, a disk and a partition of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backing {
    target: Target,
    bytes: Range<u64>,
}

impl Backing {
    /// Follows a path down; `None` where there is nothing. That of a part has its first piece.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let converted = in_place_device(path);
        let path = converted.as_deref().unwrap_or(path);
        let part = Part::parse(path);
        let (path, bytes) =
            part.as_ref().map_or((path, &WHOLE), |part| (part.device.as_path(), &part.pieces[0]));
        let lowest = layers(path, Target::at(path).ok()?, bytes).pop()?;
        Some(Self { target: lowest.target, bytes: lowest.bytes })
    }

    /// Says whether a byte written to one device changes the other.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.target == other.target && overlap(&self.bytes, &other.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_part_lies_within_it() {
        assert_eq!(part_of(&(100..u64::MAX), &(0..u64::MAX)), 100..u64::MAX);
        assert_eq!(part_of(&(100..300), &(0..u64::MAX)), 100..300);
        assert_eq!(part_of(&(100..300), &(50..150)), 150..250);
        assert_eq!(part_of(&(100..300), &(150..900)), 250..300);
        assert!(
            overlap(&(0..2), &(1..3)) && !overlap(&(0..2), &(2..3)) && !overlap(&(2..3), &(0..2))
        );
    }

    #[test]
    fn one_file_under_two_names_is_one_backing() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b, hard, soft] = ["a", "b", "hard", "soft"].map(|name| dir.path().join(name));
        fs::write(&a, b"").unwrap();
        fs::write(&b, b"").unwrap();
        fs::hard_link(&a, &hard).unwrap();
        std::os::unix::fs::symlink("a", &soft).unwrap();
        let own = Backing::of(&a).unwrap();
        assert!([&a, &hard, &soft].iter().all(|path| Backing::of(path).unwrap().overlaps(&own)));
        assert!(
            !Backing::of(&b).unwrap().overlaps(&own)
                && Backing::of(&dir.path().join("none")).is_none()
        );
    }
}
