//! Who uses a device: for the one sentence a refused user needs. Everything here is a best effort on the error path.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::probe::DeviceNo;

/// What somebody may have open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// A block device, whatever path it was opened by.
    Block(DeviceNo),
    /// A file: device number of its file system, and inode.
    File { dev: u64, ino: u64 },
}

impl Target {
    pub fn of(metadata: &fs::Metadata) -> Self {
        if metadata.file_type().is_block_device() {
            Self::Block(DeviceNo::from_raw(metadata.rdev()))
        } else {
            Self::File { dev: metadata.dev(), ino: metadata.ino() }
        }
    }
}

/// Says who uses a block device, which the caller has open `own_opens` times: a mount, a device on top of it, or processes.
pub(super) fn of_block(device: DeviceNo, own_opens: usize) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let with_partitions = || std::iter::once(device).chain(partitions(device));
    if let Some(dir) = with_partitions().find_map(|device| mount_point(&mounts, device, &node_names(device))) {
        return Some(format!("it is mounted on {dir}; unmount it first"));
    }
    if let Some(holder) = with_partitions().find_map(stacked_on) {
        return Some(format!("it is part of {holder}; take it out of there first"));
    }
    processes(Target::Block(device), own_opens).map(|who| format!("it is in use by {who}"))
}

/// Finds where a device is mounted. File systems that span devices show a number of their own, so the source's name counts as well.
fn mount_point(mounts: &str, device: DeviceNo, names: &[String]) -> Option<String> {
    let number = device.to_string();
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut fields = left.split(' ').skip(2);
        let (found, _root, dir) = (fields.next()?, fields.next()?, fields.next()?);
        let source = right.split(' ').nth(1)?;
        (found == number || names.iter().any(|name| name == source)).then(|| unescape(dir))
    })
}

/// Turns the octal escapes of mountinfo back into characters.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")].iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Returns the paths by which a device is usually named.
fn node_names(device: DeviceNo) -> Vec<String> {
    let name = fs::canonicalize(device.sysfs()).ok().and_then(|dir| dir.file_name().map(|name| name.to_string_lossy().into_owned()));
    name.map(|name| format!("/dev/{name}")).into_iter().collect()
}

fn partitions(device: DeviceNo) -> Vec<DeviceNo> {
    let Ok(entries) = fs::read_dir(device.sysfs()) else { return Vec::new() };
    let is_partition = |dir: &Path| dir.join("partition").exists();
    entries.flatten().map(|entry| entry.path()).filter(|dir| is_partition(dir)).filter_map(|dir| read_device_no(&dir.join("dev"))).collect()
}

fn read_device_no(path: &Path) -> Option<DeviceNo> {
    let text = fs::read_to_string(path).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(DeviceNo { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

/// Finds a device that is built on this one: device mapper, md, and the like.
fn stacked_on(device: DeviceNo) -> Option<String> {
    let holder = fs::read_dir(device.sysfs().join("holders")).ok()?.flatten().next()?;
    Some(format!("/dev/{}", holder.file_name().to_string_lossy()))
}

/// Names up to three processes that have a file or device open, not counting the caller's own `own_opens` descriptors; `None` when none
/// are found, or none may be looked at.
pub(super) fn processes(target: Target, own_opens: usize) -> Option<String> {
    let own = std::process::id();
    let pids = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let names: Vec<String> =
        pids.filter(|pid| count_open(*pid, target) > if *pid == own { own_opens } else { 0 }).take(3).map(|pid| describe(pid, own)).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

fn count_open(pid: u32, target: Target) -> usize {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    let opens = entries.flatten().filter_map(|entry| fs::metadata(entry.path()).ok());
    opens.filter(|metadata| Target::of(metadata) == target).count()
}

fn describe(pid: u32, own: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let this = if pid == own { ", this very process" } else { "" };
    format!("process {pid} ({}{this})", name.trim())
}

/// A loop device that presents an image file.
#[derive(Debug)]
pub(super) struct Loop {
    pub path: String,
    pub device: DeviceNo,
}

/// Finds the loop devices attached to an image.
pub(super) fn loops_over(image: Target) -> Vec<Loop> {
    let Ok(entries) = fs::read_dir("/sys/block") else { return Vec::new() };
    let attached = entries.flatten().filter(|entry| {
        let backing = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        fs::metadata(backing.trim_end_matches('\n')).is_ok_and(|metadata| Target::of(&metadata) == image)
    });
    let describe = |entry: fs::DirEntry| {
        let device = read_device_no(&entry.path().join("dev"))?;
        Some(Loop { path: format!("/dev/{}", entry.file_name().to_string_lossy()), device })
    };
    attached.filter_map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
        40 27 0:42 / /data\\040here rw shared:1 - btrfs /dev/vdb rw,space_cache\n\
        broken line\n";

    #[test]
    fn a_mount_is_found_by_number_or_by_source() {
        let find = |major, minor, names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            mount_point(MOUNTS, DeviceNo { major, minor }, &names)
        };
        assert_eq!(find(254, 0, &[]).as_deref(), Some("/"));
        assert_eq!(find(254, 16, &["/dev/vdb"]).as_deref(), Some("/data here"));
        assert_eq!(find(254, 1, &["/dev/vda1"]), None);
    }

    #[test]
    fn this_process_is_named_when_it_has_a_file_open_twice() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let target = Target::of(&file.as_file().metadata().unwrap());
        assert_eq!(processes(target, 1), None);
        let _again = file.reopen().unwrap();
        let who = processes(target, 1).unwrap();
        assert!(who.contains(&std::process::id().to_string()) && who.contains("this very process"), "{who}");
    }
}
