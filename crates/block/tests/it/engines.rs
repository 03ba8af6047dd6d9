//! Every engine through the one suite of promises.

use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, BlockDevice, DeviceCall, DeviceOptions, Engine, Hook, HookedDevice, MemoryDevice, RecordingDevice, Result, SimulatedDevice,
    SimulatedOptions, open,
};

use crate::conformance::keeps_all_promises;
use crate::machine::{Image, Loop, Mount};

const SIZE: u64 = 8 << 20;

fn file_keeps_all_promises(options: &DeviceOptions) {
    let image = Image::new(SIZE);
    keeps_all_promises(&|| open(&image.path, options).unwrap());
}

#[test]
fn memory_keeps_all_promises() {
    keeps_all_promises(&|| MemoryDevice::new(SIZE));
}

#[test]
fn memory_over_a_snapshot_keeps_all_promises() {
    let base = MemoryDevice::new(SIZE);
    base.write_at(&AlignedBuf::from_slice(&[0xA5; 8192]), 0).unwrap();
    keeps_all_promises(&|| MemoryDevice::from_snapshot(&base.snapshot(), MemoryDevice::GEOMETRY));
}

#[test]
fn simulated_keeps_all_promises() {
    for shuffle in [false, true] {
        let options = SimulatedOptions { seed: 5, shuffle, ..SimulatedOptions::default() };
        keeps_all_promises(&|| SimulatedDevice::over(&MemoryDevice::new(SIZE).snapshot(), &options));
    }
}

#[test]
fn recording_keeps_all_promises() {
    let base = MemoryDevice::new(SIZE);
    base.write_at(&AlignedBuf::from_slice(&[0xA5; 8192]), 0).unwrap();
    keeps_all_promises(&|| RecordingDevice::over(base.clone(), MemoryDevice::GEOMETRY, tempfile::tempfile().unwrap()));
}

/// A hook that lets everything through.
#[derive(Debug)]
struct Open;

impl Hook for Open {
    fn call(&self, _: DeviceCall<'_>, pass: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        pass()
    }
}

#[test]
fn a_hook_that_lets_everything_through_keeps_all_promises() {
    keeps_all_promises(&|| HookedDevice::new(MemoryDevice::new(SIZE), Open));
}

#[test]
fn uring_over_a_file_keeps_all_promises() {
    // Where io_uring is forbidden this is the thread engine, and the report says so.
    file_keeps_all_promises(&DeviceOptions::default());
}

#[test]
fn threads_over_a_file_keep_all_promises() {
    file_keeps_all_promises(&DeviceOptions { engine: Engine::Threads, server_threads: 3, ..DeviceOptions::default() });
    file_keeps_all_promises(&DeviceOptions { engine: Engine::Threads, server_threads: 1, ..DeviceOptions::default() });
}

#[test]
fn buffered_files_keep_all_promises() {
    file_keeps_all_promises(&DeviceOptions { direct: false, ..DeviceOptions::default() });
}

#[test]
fn loop_devices_keep_all_promises() {
    let image = Image::new(SIZE);
    let Some(disk) = Loop::attach(&image.path) else { return };
    for engine in [Engine::Auto, Engine::Threads] {
        let options = DeviceOptions { engine, ..DeviceOptions::default() };
        keeps_all_promises(&|| open(&disk.path, &options).unwrap());
    }
}

#[test]
fn a_file_system_without_direct_io_gives_a_buffered_device_that_says_so() {
    let Some(mount) = Mount::new("ramfs", "mode=0700", "none") else { return };
    let path = mount.path().join("image");
    bedplate_block::create_image(&path, SIZE, false).unwrap();
    let make = || -> Arc<dyn BlockDevice> { open(&path, &DeviceOptions::default()).unwrap() };
    let report = make().engine();
    assert!(report.fallback.as_deref().is_some_and(|reason| reason.contains("O_DIRECT")), "{report:?}");
    keeps_all_promises(&make);
}
