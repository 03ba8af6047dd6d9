//! The users of a device, for the sentence of a refusal. Best effort, on the error path only.

use std::fs;
use std::path::Path;

use super::probe::DeviceNo;
use super::target::Target;
use crate::MountEntry;

/// Names the users of a block device that the caller has open `own_opens` times: a mount, a device
/// on top of it, or processes.
pub(super) fn of_block(device: DeviceNo, own_opens: usize) -> Option<String> {
    let mounts = MountEntry::all().unwrap_or_default();
    let with_partitions = || std::iter::once(device).chain(partitions(device));
    if let Some(dir) =
        with_partitions().find_map(|device| mount_point(&mounts, device, device.node().as_deref()))
    {
        return Some(format!("it is mounted on {dir}; unmount it first"));
    }
    if let Some(holder) = with_partitions().find_map(stacked_on) {
        return Some(format!("it is part of {holder}; take it out of there first"));
    }
    processes(Target::Block(device), own_opens).map(|who| format!("it is in use by {who}"))
}

/// Finds where a device is mounted. File systems that span devices show a number of their own, so
/// the source's name counts as well.
fn mount_point(mounts: &[MountEntry], device: DeviceNo, node: Option<&Path>) -> Option<String> {
    let found = mounts.iter().find(|mount| {
        DeviceNo::parse(&mount.device) == Some(device)
            || node.is_some_and(|node| node == mount.source)
    });
    found.map(|mount| mount.dir.display().to_string())
}

fn partitions(device: DeviceNo) -> Vec<DeviceNo> {
    let Ok(entries) = fs::read_dir(device.sysfs()) else { return Vec::new() };
    let is_partition = |dir: &Path| dir.join("partition").exists();
    entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|dir| is_partition(dir))
        .filter_map(|dir| DeviceNo::read(&dir.join("dev")))
        .collect()
}

/// Finds a device that is built on this one: device mapper, md, and the like.
fn stacked_on(device: DeviceNo) -> Option<String> {
    let holder = fs::read_dir(device.sysfs().join("holders")).ok()?.flatten().next()?;
    Some(format!("/dev/{}", holder.file_name().to_string_lossy()))
}

/// Names up to three processes that have a file or device open, not counting the caller's own
/// `own_opens` descriptors; `None` when none are found, or none may be looked at.
pub(super) fn processes(target: Target, own_opens: usize) -> Option<String> {
    let own = std::process::id();
    let pids = fs::read_dir("/proc")
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let names: Vec<String> = pids
        .filter(|pid| count_open(*pid, target) > if *pid == own { own_opens } else { 0 })
        .take(3)
        .map(|pid| describe(pid, own))
        .collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Says whether a process that may be looked at has a file or device open for writing.
pub(super) fn has_writer(target: Target) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    processes.into_iter().any(|process| {
        let opens = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        opens.filter(|entry| Target::at(&entry.path()).is_ok_and(|open| open == target)).any(
            |entry| {
                let info = fs::read_to_string(process.join("fdinfo").join(entry.file_name()))
                    .unwrap_or_default();
                is_open_for_writing(&info)
            },
        )
    })
}

/// Reads the flags of a descriptor, which are octal.
fn is_open_for_writing(info: &str) -> bool {
    let flags = info
        .lines()
        .find_map(|line| i32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
    flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
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

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
        40 27 0:42 / /data\\040here rw shared:1 - btrfs /dev/vdb rw,space_cache\n\
        broken line\n";

    #[test]
    fn a_mount_is_found_by_number_or_by_source() {
        let mounts = MountEntry::parse(MOUNTS.as_bytes());
        let find = |major, minor, node: Option<&str>| {
            mount_point(&mounts, DeviceNo { major, minor }, node.map(Path::new))
        };
        assert_eq!(find(254, 0, None).as_deref(), Some("/"));
        assert_eq!(find(254, 16, Some("/dev/vdb")).as_deref(), Some("/data here"));
        assert_eq!(find(254, 1, Some("/dev/vda1")), None);
    }

    #[test]
    fn this_process_is_named_when_it_has_a_file_open_twice() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let target = Target::of(&file.as_file().metadata().unwrap());
        assert_eq!(processes(target, 1), None);
        let _again = file.reopen().unwrap();
        let who = processes(target, 1).unwrap();
        assert!(
            who.contains(&std::process::id().to_string()) && who.contains("this very process"),
            "{who}"
        );
    }
}
