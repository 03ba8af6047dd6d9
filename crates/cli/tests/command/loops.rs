//! S-40 and groups on loop devices: an image and the loop device over it are one device.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::harness::{Scratch, bedplate, can_mount, command, run, text};

/// A loop device, which only root may make.
pub struct Loop {
    pub name: String,
    pub scratch: Scratch,
}

impl Loop {
    pub fn new(options: &[&str]) -> Option<Self> {
        let scratch = Scratch::new();
        let image = scratch.path("loop.img");
        File::create(&image).unwrap().set_len(64 << 20).unwrap();
        Some(Self { name: Self::attach(&image, options)?, scratch })
    }

    /// Makes a loop device over a copy of an image.
    pub fn over(image: &Path, options: &[&str]) -> Option<Self> {
        let scratch = Scratch::new();
        let copy = scratch.path("loop.img");
        std::fs::copy(image, &copy).unwrap();
        Some(Self { name: Self::attach(&copy, options)?, scratch })
    }

    /// Makes a loop device over an image.
    pub fn at(image: &Path) -> Option<Self> {
        Some(Self { name: Self::attach(image, &[])?, scratch: Scratch::new() })
    }

    fn attach(image: &Path, options: &[&str]) -> Option<String> {
        let made = Command::new("losetup")
            .args(["--find", "--show"])
            .args(options)
            .arg(image)
            .stderr(Stdio::null())
            .output();
        let name = made
            .ok()
            .filter(|made| made.status.success())
            .map(|made| String::from_utf8_lossy(&made.stdout).trim().to_owned());
        if name.is_none() {
            eprintln!("skipped: a test on a loop device: losetup may not make one here");
        }
        name
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let status = Command::new("losetup").args(["--detach", &self.name]).status();
        assert!(
            status.is_ok_and(|status| status.success()) || std::thread::panicking(),
            "{} is left behind",
            self.name
        );
    }
}

/// The members of a group on loop devices were found twice when a command ran in the directory of
/// their images, and were called copies of each other.
#[test]
fn a_group_on_loop_devices_is_found_beside_its_images() {
    let scratch = Scratch::new();
    let images: Vec<PathBuf> = ["d1.raw", "d2.raw"].iter().map(|name| scratch.path(name)).collect();
    images.iter().for_each(|image| File::create(image).unwrap().set_len(64 << 20).unwrap());
    let Some(disks) = images.iter().map(|image| Loop::at(image)).collect::<Option<Vec<_>>>() else {
        return;
    };
    // Block devices are searched by everything on this machine.
    let name = format!("loops{}", std::process::id());
    bedplate(["volume", "create", &name, &disks[0].name, &disks[1].name]).succeeds();
    let beside = |arguments: &[&str]| {
        let mut command = command(arguments);
        command.current_dir(scratch.path("")).env("BEDPLATE_DEVICES", scratch.path(""));
        run(command)
    };
    let group = format!("group:{name}");
    for named in [group.as_str(), text(&images[1]), &disks[0].name] {
        let shown = beside(&["volume", "show", named]).succeeds().stdout();
        assert!(
            disks.iter().all(|disk| shown.contains(&disk.name)) && shown.contains("whole"),
            "{shown}"
        );
    }
    beside(&["format", &group]).succeeds();
    beside(&["check", text(&images[0])]).succeeds();
    // A copy is still one.
    std::fs::copy(&images[0], scratch.path("d3.raw")).unwrap();
    beside(&["volume", "export", &group]).fails(1, "one is a copy of the other");
}

/// One volume was mounted from its image and once more from a loop device over it, and what was
/// synced on either was lost.
#[test]
fn s_40_a_mounted_image_is_not_mounted_once_more_by_a_loop_device_over_it() {
    if !can_mount("an image and the loop device over it") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("");
    let Some(disk) = Loop::at(&image) else { return };
    let other = scratch.directory("other");
    bedplate(["mount", &disk.name, text(&other)])
        .fails(1, &format!("it lies on {}: it is in use by process", text(&image)));
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["mount", &disk.name, text(&other)]).succeeds();
    bedplate(["mount", text(&image), text(&dir)]).fails(1, &disk.name);
    bedplate(["unmount", text(&other)]).succeeds();
}
