//! S-40: an image and the loop devices over it are one device, by whatever names, and have one
//! user.
//!
//! A volume mounted from an image and once more from a loop device over it lost what was synced on
//! both.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};

use bedplate_block::{Backing, BlockDevice, DeviceOptions, ErrorKind, Result, create_image, open};

use crate::alone;
use crate::conformance::keeps_all_promises;
use crate::image::Image;
use crate::machine::{Loop, Mount, run};

const SIZE: u64 = 8 << 20;

fn writing(path: &Path) -> Result<Arc<dyn BlockDevice>> {
    open(path, &DeviceOptions::default())
}

fn reading(path: &Path) -> Result<Arc<dyn BlockDevice>> {
    open(path, &DeviceOptions { read_only: true, ..DeviceOptions::default() })
}

/// With `used` open for writing `other` is refused to readers and writers, and the other way round;
/// free, each opens.
fn are_one(used: &Path, other: &Path) {
    for (used, other) in [(used, other), (other, used)] {
        let holder = writing(used).unwrap();
        for refused in [writing(other), reading(other)] {
            let error = refused
                .map(|_| panic!("{} was opened beside {}", other.display(), used.display()))
                .unwrap_err();
            assert!(
                error.kind == ErrorKind::Busy
                    && error.detail.contains(&format!("process {}", std::process::id())),
                "{error}"
            );
        }
        drop(holder);
        let readers = [reading(used).unwrap(), reading(other).unwrap()];
        assert_eq!(
            [writing(used), writing(other)].map(|opened| opened.unwrap_err().kind),
            [ErrorKind::Busy; 2]
        );
        drop(readers);
    }
    assert!(Backing::of(used).unwrap().overlaps(&Backing::of(other).unwrap()));
}

/// Each opens for writing while the other is open for writing.
fn are_two(one: &Path, other: &Path) {
    let opened = [writing(one).unwrap(), writing(other).unwrap()];
    drop(opened);
    assert!(!Backing::of(one).unwrap().overlaps(&Backing::of(other).unwrap()));
}

fn two_loops(image: &Path, first: &[&str], second: &[&str]) -> Option<[Loop; 2]> {
    Some([Loop::attach_with(first, image)?, Loop::attach_with(second, image)?])
}

#[test]
fn s_40_an_image_and_a_loop_device_over_it_are_one() {
    let _alone = alone();
    let image = Image::new(SIZE);
    let Some(disk) = Loop::attach(&image.path) else { return };
    are_one(&image.path, &disk.path);
}

#[test]
fn s_40_two_loop_devices_over_one_image_are_one() {
    let _alone = alone();
    let image = Image::new(SIZE);
    let Some([one, other]) = two_loops(&image.path, &[], &[]) else { return };
    are_one(&one.path, &other.path);
}

/// An image with a hard link, in the same directory or another, and a loop device made by a name
/// that is gone.
fn without_its_name(link: &str) -> Option<(Image, Loop, PathBuf)> {
    let image = Image::new(SIZE);
    let disk = Loop::attach(&image.path)?;
    let link = image.path.with_file_name(link);
    fs::create_dir_all(link.parent()?).unwrap();
    fs::hard_link(&image.path, &link).unwrap();
    fs::remove_file(&image.path).unwrap();
    Some((image, disk, link))
}

#[test]
fn s_40_a_hard_link_is_the_image_after_the_name_of_the_loop_device_went() {
    let _alone = alone();
    let Some((_image, disk, link)) = without_its_name("link") else { return };
    are_one(&link, &disk.path);
    // A file that takes the name is another.
    let (taken, _) = (
        link.with_file_name("image"),
        create_image(link.with_file_name("image"), SIZE, false).unwrap(),
    );
    are_two(&taken, &disk.path);
}

#[test]
fn s_40_a_hard_link_far_away_is_the_image_too() {
    let _alone = alone();
    let Some((_image, disk, link)) = without_its_name("elsewhere/link") else { return };
    are_one(&link, &disk.path);
}

#[test]
fn s_40_two_loop_devices_over_a_file_without_names_are_one() {
    let _alone = alone();
    let image = Image::new(SIZE);
    let Some([one, other]) = two_loops(&image.path, &[], &[]) else { return };
    fs::remove_file(&image.path).unwrap();
    are_one(&one.path, &other.path);
}

#[test]
fn s_40_loop_devices_over_other_parts_of_a_file_are_others() {
    let _alone = alone();
    let image = Image::new(SIZE);
    let Some([low, high]) = two_loops(&image.path, &["--sizelimit", "4M"], &["--offset", "4M"])
    else {
        return;
    };
    are_two(&low.path, &high.path);
    are_one(&high.path, &image.path);
    let Some(across) = Loop::attach_with(&["--offset", "2M", "--sizelimit", "4M"], &image.path)
    else {
        return;
    };
    are_one(&across.path, &low.path);
    are_one(&across.path, &high.path);
}

#[test]
fn s_40_a_loop_device_over_a_loop_device_is_the_image_as_well() {
    let _alone = alone();
    let image = Image::new(SIZE);
    let Some(lower) = Loop::attach(&image.path) else { return };
    let Some(upper) = Loop::attach(&lower.path) else { return };
    are_one(&upper.path, &lower.path);
    are_one(&upper.path, &image.path);
    let Some(beside) = Loop::attach(&image.path) else { return };
    are_one(&upper.path, &beside.path);
}

#[test]
fn s_40_partitions_of_a_loop_device_are_parts_of_the_image() {
    let _alone = alone();
    let image = Image::new(64 << 20);
    let table = "label: dos\nstart=2048, size=32768\nstart=34816, size=32768\n";
    let script = format!("printf '{table}' | sfdisk -q '{}'", image.path.display());
    if run("sh", &["-c", &script]).is_none() {
        return println!("skipped: sfdisk cannot make partitions here");
    }
    let Some([one, other]) = two_loops(&image.path, &["--partscan"], &["--partscan"]) else {
        return;
    };
    let partition =
        |disk: &Loop, number| PathBuf::from(format!("{}p{number}", disk.path.display()));
    if !partition(&one, 1).exists() || !partition(&other, 2).exists() {
        return println!("skipped: loop devices have no partitions here");
    }
    are_two(&partition(&one, 1), &partition(&one, 2));
    are_one(&partition(&one, 1), &image.path);
    are_one(&partition(&one, 1), &partition(&other, 1));
    are_one(&partition(&one, 1), &other.path);
}

/// A kernel file system takes no lock: the loop device that it is on is found by the driver's word.
#[test]
fn s_40_a_file_system_of_the_kernel_keeps_the_image_by_any_name() {
    let _alone = alone();
    let image = Image::new(64 << 20);
    let Some([disk, beside]) = two_loops(&image.path, &[], &[]) else { return };
    let Some(above) = Loop::attach(&disk.path) else { return };
    if run("mkfs.ext4", &["-q", above.path.to_str().unwrap()]).is_none() {
        return println!("skipped: mkfs.ext4 is missing");
    }
    let link = image.path.with_file_name("link");
    fs::hard_link(&image.path, &link).unwrap();
    fs::remove_file(&image.path).unwrap();
    for mounted in [&disk, &above] {
        let Some(mount) = Mount::new("ext4", "rw", mounted.path.to_str().unwrap()) else { return };
        for path in [&link, &beside.path] {
            let error = writing(path).unwrap_err();
            assert!(
                error.kind == ErrorKind::Busy
                    && error.detail.contains(mount.path().to_str().unwrap()),
                "{error}"
            );
            assert!(error.detail.contains(mounted.path.to_str().unwrap()), "{error}");
        }
    }
    drop(writing(&link).unwrap());
}

#[test]
fn s_40_of_two_that_race_for_an_image_and_its_loop_device_one_wins() {
    let _alone = alone();
    let image = Image::new(SIZE);
    let Some([one, other]) = two_loops(&image.path, &[], &[]) else { return };
    for pair in [[&image.path, &one.path], [&one.path, &other.path]] {
        for _ in 0..20 {
            let start = Barrier::new(2);
            let race = |path: &Path| {
                start.wait();
                writing(path)
            };
            let opened = std::thread::scope(|scope| {
                pair.map(|path| scope.spawn(|| race(path))).map(|thread| thread.join().unwrap())
            });
            assert_eq!(opened.iter().filter(|opened| opened.is_ok()).count(), 1, "{opened:?}");
        }
    }
}

#[test]
fn loop_devices_keep_all_promises() {
    let _alone = alone();
    let image = Image::new(SIZE);
    let Some(disk) = Loop::attach(&image.path) else { return };
    for engine in [bedplate_block::Engine::Auto, bedplate_block::Engine::Threads] {
        let options = DeviceOptions { engine, ..DeviceOptions::default() };
        keeps_all_promises(&|| open(&disk.path, &options).unwrap());
    }
}

#[test]
fn a_file_system_without_direct_io_gives_a_buffered_device_that_says_so() {
    let _alone = alone();
    let Some(mount) = Mount::new("ramfs", "mode=0700", "none") else { return };
    let path = mount.path().join("image");
    create_image(&path, SIZE, false).unwrap();
    let make = || -> Arc<dyn BlockDevice> { writing(&path).unwrap() };
    let report = make().engine();
    assert!(
        report.fallback.as_deref().is_some_and(|reason| reason.contains("O_DIRECT")),
        "{report:?}"
    );
    keeps_all_promises(&make);
}
