//! Every engine through the one suite of promises.

use bedplate_block::{
    AlignedBuf, BlockDevice, DeviceCall, DeviceOptions, Engine, Hook, HookedDevice, MemoryDevice,
    RecordingDevice, Result, SimulatedDevice, SimulatedOptions, open,
};

use crate::conformance::keeps_all_promises;
use crate::image::Image;

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
        keeps_all_promises(&|| {
            SimulatedDevice::over(&MemoryDevice::new(SIZE).snapshot(), &options)
        });
    }
}

#[test]
fn recording_keeps_all_promises() {
    let base = MemoryDevice::new(SIZE);
    base.write_at(&AlignedBuf::from_slice(&[0xA5; 8192]), 0).unwrap();
    keeps_all_promises(&|| {
        RecordingDevice::over(base.clone(), MemoryDevice::GEOMETRY, tempfile::tempfile().unwrap())
    });
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
    file_keeps_all_promises(&DeviceOptions {
        engine: Engine::Threads,
        server_threads: 3,
        ..DeviceOptions::default()
    });
    file_keeps_all_promises(&DeviceOptions {
        engine: Engine::Threads,
        server_threads: 1,
        ..DeviceOptions::default()
    });
}

#[test]
fn buffered_files_keep_all_promises() {
    file_keeps_all_promises(&DeviceOptions { direct: false, ..DeviceOptions::default() });
}
