//! What a crash in the deletion of a checkpoint costs the next mount, and what its end in the
//! background costs others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bedplate_fs::{CheckpointOptions, FileSystem, Limits, MountOptions, OpenOptions};

use super::Asked;
use super::steps::{Files, Random, beside_commits, device, ms, options, tell};

/// Units that are written after the checkpoint, each of which leaves an image in it.
const IMAGES_MAX: u64 = 1_000_000;
/// The process ends after so many steps of the deletion, which are durable by then.
const STEPS_DONE: u32 = 17;

/// A cut in a deletion, and the mount after it.
pub fn deletion(_: &Asked) {
    assert!(super::again("cut") && super::again("resume"), "a crash or a mount failed");
}

/// Ends in the middle of the deletion of a checkpoint.
pub fn cut(asked: &Asked) {
    let fs = FileSystem::mount(device(asked), None, options()).unwrap();
    fs.create_checkpoint("cut", &CheckpointOptions::default()).unwrap();
    let mut files = Files::new(&fs, asked);
    files.write(IMAGES_MAX.min(asked.units), &mut Random(31), asked.units);
    drop(files);
    // The log has nothing but the deletion then.
    fs.unmount().unwrap();
    let steps = AtomicU32::new(0);
    let between = move |what: &'static str| {
        if what == "deletion" && steps.fetch_add(1, Ordering::Relaxed) + 1 == STEPS_DONE {
            std::process::exit(0);
        }
    };
    let limits = Limits { between_records: Some(Arc::new(between)), ..Limits::default() };
    let options = MountOptions { limits, ..options() };
    let fs = FileSystem::mount(device(asked), None, options).unwrap();
    fs.delete_checkpoint("cut").unwrap();
    panic!("the deletion takes more than {STEPS_DONE} steps");
}

/// Mounts after that, and waits for the end of the deletion.
pub fn resume(asked: &Asked) {
    let device = device(asked);
    let begun = Instant::now();
    let fs = FileSystem::mount(Arc::clone(&device), None, options()).unwrap();
    let (took, now) = (ms(begun), device.counters());
    let told = format!(
        "{took:.1} ms, {} reads, {} writes, {} flushes, {} records",
        now.reads,
        now.writes,
        now.flushes,
        fs.info().recovery.records
    );
    tell("mount, after a crash in a deletion", told);
    let appends = fs.open("/appends", &OpenOptions::create()).unwrap();
    let wait = || {
        while fs.checkpoint_counts().deleting > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let (took, longest) = beside_commits(&appends, wait);
    let told = format!("{took:.1} ms; a commit waited {longest:.1} ms at most");
    tell("the rest of it, behind the mount", told);
    let (_, quiet) = beside_commits(&appends, || std::thread::sleep(Duration::from_secs(2)));
    tell("longest wait of a commit, nothing else", format!("{quiet:.1} ms"));
    drop(appends);
    fs.unmount().unwrap();
}
