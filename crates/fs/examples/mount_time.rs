//! How long a mount takes by the number of extents, with the free space that the metadata keep and
//! without: `cargo run --release -p bedplate-fs --example mount_time --features forge`.
//!
//! The volume is in memory, so that only work counts: each line is the least of five mounts.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement for people")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_block::{BlockDevice, MemoryDevice};
use bedplate_fs::{
    AllocateMode, FileSystem, FormatOptions, IoMode, MountOptions, OpenOptions, forge,
};

const BLOCK: u64 = 4096;
/// Extents of one file.
const EXTENTS_OF_FILE: u64 = 10_000;

fn mount(device: &Arc<dyn BlockDevice>) -> FileSystem {
    let options = MountOptions { mode: IoMode::Concurrent, ..MountOptions::default() };
    FileSystem::mount(Arc::clone(device), None, options).unwrap()
}

/// The least time of some mounts.
fn time(device: &Arc<dyn BlockDevice>) -> Duration {
    let once = || {
        let begun = Instant::now();
        let fs = mount(device);
        let took = begun.elapsed();
        fs.unmount().unwrap();
        took
    };
    (0..5).map(|_| once()).min().unwrap()
}

/// Preallocates every second block of files: each is an extent, and each hole a free run.
fn fill(device: &Arc<dyn BlockDevice>, extents: u64) {
    let fs = mount(device);
    for first in (0..extents).step_by(usize::try_from(EXTENTS_OF_FILE).unwrap()) {
        let count = EXTENTS_OF_FILE.min(extents - first);
        let file = fs.open(format!("/f{first}"), &OpenOptions::create()).unwrap();
        let whole = AllocateMode::Preallocate { keep_size: false };
        file.allocate(whole, 0, 2 * count * BLOCK).unwrap();
        for hole in 0..count {
            file.allocate(AllocateMode::PunchHole, 2 * hole * BLOCK, BLOCK).unwrap();
        }
    }
    fs.unmount().unwrap();
}

fn main() {
    println!("{:>9} {:>12} {:>12} {:>12}", "extents", "kept", "counted", "killed");
    for extents in [1_000, 10_000, 100_000, 1_000_000] {
        let device: Arc<dyn BlockDevice> = MemoryDevice::new(16 << 30);
        FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
        fill(&device, extents);
        let kept = time(&device);
        drop(mount(&device));
        let begun = Instant::now();
        let fs = mount(&device);
        let killed = begun.elapsed();
        fs.unmount().unwrap();
        forge::make_old(&device, 1).unwrap();
        let counted = time(&device);
        println!("{extents:>9} {kept:>12.2?} {counted:>12.2?} {killed:>12.2?}");
    }
}
