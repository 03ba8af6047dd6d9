//! Power cuts at every write of a commit.

use std::path::Path;
use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, BlockDevice, CrashChoice, DeviceOptions, Geometry, InPlaceHeader, RecordingDevice,
};
use bedplate_fs::FileSystem;

use super::image::{Image, alone, check_old};
use super::tree::{assert_same, fill_plainly, through_the_kernel, through_the_volume};
use crate::commit::abandon_device;
use crate::{Error, commit_device, make};

const SECOND: u64 = 8 << 20;

fn pages(device: &dyn BlockDevice, header_at: u64) -> Vec<(u64, AlignedBuf)> {
    let places = [0, SECOND, header_at, header_at + 4096];
    places.into_iter().map(|at| (at, crate::old::read(device, at, 4096).unwrap())).collect()
}

/// Writes what a device has at the places that a commit changes into an image, and has it checked.
fn check_image(kind: &str, image: &Path, device: &dyn BlockDevice, header_at: u64) {
    let real = crate::device::when_free(image, || crate::device::open(image)).unwrap();
    for (at, bytes) in pages(device, header_at) {
        real.write_at(&bytes, at).unwrap();
    }
    real.flush().unwrap();
    drop(real);
    check_old(kind, image);
}

fn scratch() -> std::fs::File {
    tempfile::tempfile_in("/var/tmp").unwrap()
}

/// S-601, I-ADO-3: whatever a power cut leaves is the old file system, whole, or the volume, whole;
/// another commit ends it, and before the one sector an abandonment takes everything back.
fn every_cut_leaves_one_of_both(kind: &'static str, options: &[&str]) {
    let Some(_alone) = alone(kind) else { return };
    let image = Image::new(kind, 320, options);
    image.mounted(false, |dir| fill_plainly(dir, 40, |number| 3000 * number as usize));
    let tree = image.mounted(true, through_the_kernel);
    make(&image.path, &|_, _| {}).unwrap();
    let copy = image.path.with_extension("copy");
    std::fs::copy(&image.path, &copy).unwrap();
    let reading = DeviceOptions { read_only: true, ..DeviceOptions::default() };
    let base = bedplate_block::open(&image.path, &reading).unwrap();
    let header = InPlaceHeader::find(&*base).unwrap().unwrap();
    let geometry = Geometry {
        logical_block_size: 512,
        physical_block_size: 512,
        untorn_unit: 512,
        volatile_cache: true,
        read_only: false,
        ..base.geometry()
    };
    let recorder = RecordingDevice::over(Arc::clone(&base), geometry, scratch());
    recorder.make_all_durable();
    let device: Arc<dyn BlockDevice> = Arc::clone(&recorder) as _;
    commit_device(&device).unwrap();
    let recording = recorder.recording();
    let count = recording.operations().len();
    assert!(count >= 12, "S-601: a commit writes and flushes");
    let before = pages(&*base, header.at);
    let (mut old, mut new, mut states) = (0, 0, 0);
    for after in 0..=count {
        let seeded = (0..6).map(CrashChoice::Seeded);
        for choice in [CrashChoice::LoseAll, CrashChoice::KeepAll].into_iter().chain(seeded) {
            states += 1;
            let steps = recording.crash_steps(after, &choice);
            let cut =
                || -> Arc<dyn BlockDevice> { recording.crash_device(after, &steps, scratch()) };
            let left = cut();
            let is_volume = FileSystem::probe(&left).is_ok();
            let is_old = crate::old::kind_of(&crate::old::read(&*left, 0, 4096).unwrap()).is_some();
            assert!(is_old != is_volume, "I-ADO-3: one of both, cut after {after}, {choice:?}");
            if is_volume {
                new += 1;
                assert_same(&tree, &through_the_volume(&left));
            } else {
                old += 1;
                // The place of the second copy belongs to the old file system too.
                let second = crate::old::read(&*left, SECOND, 4096).unwrap();
                assert_eq!(second[..], before[1].1[..], "I-ADO-3: cut after {after}, {choice:?}");
                if matches!(choice, CrashChoice::Seeded(0 | 1)) {
                    check_image(kind, &copy, &*left, header.at);
                }
            }
            let again = cut();
            match commit_device(&again) {
                Ok(_) => {}
                Err(Error { kind: crate::ErrorKind::Committed, .. }) => {
                    assert!(is_volume, "S-601: nothing is committed after {after}, {choice:?}");
                }
                Err(error) => panic!("S-601: commit again after {after}, {choice:?}: {error}"),
            }
            assert_same(&tree, &through_the_volume(&again));
            assert_eq!(InPlaceHeader::find(&*again).unwrap(), None, "S-601");
            let given_up = cut();
            let abandoned = abandon_device(&given_up);
            assert_eq!(abandoned.is_ok_and(|header| header.is_some()), !is_volume, "S-602");
            if !is_volume {
                for (at, bytes) in &before[..2] {
                    let now = crate::old::read(&*given_up, *at, 4096).unwrap();
                    assert_eq!(
                        now[..],
                        bytes[..],
                        "S-602: byte {at}, cut after {after}, {choice:?}"
                    );
                }
            }
        }
    }
    println!(
        "{kind} {options:?}: {states} states, {old} of the old file system, {new} of the volume"
    );
    assert!(old > 20 && new > 20);
}

#[test]
fn s_601_a_power_cut_in_a_commit_of_ext4_leaves_one_of_both() {
    every_cut_leaves_one_of_both("ext4", &[]);
}

#[test]
fn s_601_a_power_cut_in_a_commit_of_xfs_leaves_one_of_both() {
    every_cut_leaves_one_of_both("xfs", &[]);
    every_cut_leaves_one_of_both("xfs", &["-s", "size=4096"]);
}
