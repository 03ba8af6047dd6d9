//! Volumes for tests.

use std::sync::Arc;

use bedplate_block::{BlockDevice, MemoryDevice};
use bedplate_fs::{FileSystem, FormatOptions, MountOptions, NewFile};

pub const SIZE: u64 = 64 << 20;

pub fn device() -> Arc<dyn BlockDevice> {
    MemoryDevice::new(SIZE)
}

pub fn formatted() -> Arc<dyn BlockDevice> {
    let device = device();
    FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
    device
}

pub fn mount(device: &Arc<dyn BlockDevice>) -> FileSystem {
    FileSystem::mount(Arc::clone(device), None, MountOptions::default()).unwrap()
}

/// Requires that a check finds nothing.
pub fn assert_sound(device: &Arc<dyn BlockDevice>) {
    let report = FileSystem::check(device, None, false).unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

/// Runs `work` on a fresh volume, unmounts, checks, mounts again and runs `verify`.
pub fn around_remount(work: impl FnOnce(&FileSystem), verify: impl FnOnce(&FileSystem)) {
    let device = formatted();
    let fs = mount(&device);
    work(&fs);
    fs.unmount().unwrap();
    assert_sound(&device);
    let fs = mount(&device);
    verify(&fs);
    fs.unmount().unwrap();
}

/// As `around_remount`, with a process that dies after `sync` instead of an unmount.
pub fn around_kill(work: impl FnOnce(&FileSystem), verify: impl FnOnce(&FileSystem)) {
    let device = formatted();
    let fs = mount(&device);
    work(&fs);
    fs.sync().unwrap();
    drop(fs);
    assert_sound(&device);
    let fs = mount(&device);
    assert!(fs.info().recovery.needed);
    verify(&fs);
    fs.unmount().unwrap();
    assert_sound(&device);
}

pub fn new_file() -> NewFile {
    NewFile { mode: 0o640, uid: 7, gid: 8, umask: 0 }
}
