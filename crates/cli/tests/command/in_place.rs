//! `convert --in-place` as people call it.

use std::path::Path;
use std::process::Command;

use crate::harness::{Scratch, bedplate, can_mount, pattern, text};

/// Makes an ext4 image with a few files, without a mount.
fn old_image(scratch: &Scratch) -> Option<std::path::PathBuf> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root mounts file systems");
        return None;
    }
    let files = scratch.directory("files");
    std::fs::write(files.join("large"), pattern(3 << 20)).unwrap();
    std::fs::write(files.join("small"), b"small").unwrap();
    let image = scratch.path("old.img");
    std::fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
    let mut mkfs = Command::new("mkfs.ext4");
    match mkfs.args(["-qF", "-b", "4096", "-d"]).arg(&files).arg(&image).output() {
        Ok(output) if output.status.success() => Some(image),
        _ => {
            println!("skipped: mkfs.ext4 with -d is not installed");
            None
        }
    }
}

fn convert(image: &Path, option: &str) -> crate::harness::Run {
    bedplate(["convert", text(image), option, "--json"])
}

fn refused(image: &Path, option: &str, words: &str) {
    bedplate(["convert", text(image), option]).fails(1, words);
}

/// S-598, S-600, S-601: one command after the other, in JSON and in words.
#[test]
fn s_598_an_image_is_converted_looked_at_and_committed() {
    let scratch = Scratch::new();
    let Some(image) = old_image(&scratch) else { return };
    let name = text(&image);
    bedplate(["convert", name, "--in-place", "--dry-run"]).succeeds().says("stay where they lie");
    let plan = bedplate(["convert", name, "--in-place", "--dry-run", "--json"]).succeeds().json();
    assert_eq!((&plan["old"], &plan["missing_bytes"]), (&"ext4".into(), &0.into()));
    assert_eq!(convert(&image, "--status").succeeds().json()["state"], "none");
    refused(&image, "--commit", "not being converted");
    let made = convert(&image, "--in-place").succeeds().json();
    assert_eq!((&made["needs"]["files"], &made["block_size"]), (&2.into(), &4096.into()));
    assert!(made["needs"]["adopted_bytes"].as_u64() >= Some(3 << 20), "{made}");
    assert_eq!(convert(&image, "--status").succeeds().json()["state"], "made");
    refused(&image, "--in-place", "converted already");
    let shown = format!("in-place:{name}");
    bedplate(["check", &shown]).succeeds();
    bedplate(["ls", &shown, "/"]).succeeds().says("large");
    bedplate(["rm", &shown, "/large"]).fails(1, "can only be read");
    if can_mount("a volume that is not committed") {
        let dir = scratch.directory("mnt");
        bedplate(["mount", &shown, text(&dir)]).fails(1, "-o ro");
        bedplate(["mount", &shown, text(&dir), "-o", "ro"]).succeeds();
        assert!(std::fs::read(dir.join("large")).unwrap() == pattern(3 << 20), "S-598");
        assert!(std::fs::write(dir.join("new"), b"x").is_err(), "S-600");
        refused(&image, "--commit", "mounted");
        bedplate(["unmount", text(&dir)]).succeeds();
    }
    let committed = convert(&image, "--commit").succeeds().json();
    assert_eq!((&committed["uuid"], &committed["gone_on"]), (&made["uuid"], &false.into()));
    assert_eq!(convert(&image, "--status").succeeds().json()["state"], "volume");
    for option in ["--commit", "--abandon"] {
        refused(&image, option, "is committed");
    }
    let back = scratch.path("back");
    bedplate(["get", name, "/large", text(&back)]).succeeds();
    assert!(std::fs::read(&back).unwrap() == pattern(3 << 20), "S-601");
    bedplate(["check", name]).succeeds();
}

/// S-602, S-605
#[test]
fn s_602_a_conversion_is_abandoned_and_what_is_none_is_refused() {
    let scratch = Scratch::new();
    let Some(image) = old_image(&scratch) else { return };
    let name = text(&image);
    bedplate(["convert", name, "--in-place"]).succeeds().says("--commit");
    bedplate(["convert", name, "--abandon"]).succeeds().says("is as it was");
    bedplate(["convert", name, "--abandon"]).fails(1, "not being converted");
    let checked = Command::new("e2fsck").arg("-fn").arg(&image).output().unwrap();
    assert!(checked.status.success(), "S-602: {}", String::from_utf8_lossy(&checked.stdout));
    let none = scratch.file("none", &[0; 4096]);
    bedplate(["convert", text(&none), "--in-place"]).fails(1, "32 MiB");
    let directory = scratch.directory("directory");
    bedplate(["convert", text(&directory), "--in-place"]).fails(1, "is a directory");
    bedplate(["convert", "nbd://localhost/x", "--in-place"]).fails(2, "of this machine");
    bedplate(["convert", name, "--in-place", "--wait"]).fails(2, "--wait");
    bedplate(["convert", name, "--in-place", "--commit"]).fails(2, "--commit");
    bedplate(["ls", &format!("in-place:{name}"), "/"]).fails(1, "no conversion in place");
}
