//! What the front end asks of the system's list of mounts.

use std::path::Path;

use bedplate_block::MountEntry;

/// Returns the uid that a FUSE file system was mounted by.
pub(crate) fn owner(entry: &MountEntry) -> Option<u32> {
    entry.options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok())
}

/// Tells whether a process, by its directory below `/proc`, has a mount of the device `major:minor`
/// in its mount namespace.
pub(crate) fn has_device(process: &Path, device: &str) -> bool {
    let entries = MountEntry::of_process(process).unwrap_or_default();
    entries.iter().any(|entry| entry.device == device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_a_mount_and_its_device_are_told() {
        let line = b"61 28 0:52 / /mnt rw shared:3 - fuse.bedplate disk.img rw,user_id=1000";
        assert_eq!(owner(&MountEntry::parse(line)[0]), Some(1000));
        let root = MountEntry::at(Path::new("/")).unwrap().unwrap();
        assert!(has_device(Path::new("/proc/self"), &root.device));
        assert!(!has_device(Path::new("/proc/self"), "4095:1"));
    }
}
