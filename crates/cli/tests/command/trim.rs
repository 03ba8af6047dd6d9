//! Telling the device what is free: an image file gives the space back.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::harness::{Scratch, bedplate, can_mount, pattern, text};

/// Bytes that a file takes on its own file system.
fn allocated(image: &Path) -> u64 {
    std::fs::metadata(image).unwrap().blocks() * 512
}

#[test]
fn s_260_an_image_file_gives_back_what_was_removed_from_it() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    let source = scratch.file("source", &pattern(8 << 20));
    bedplate(["put", text(&image), text(&source), "/gone"]).succeeds();
    bedplate(["put", text(&image), text(&source), "/kept"]).succeeds();
    bedplate(["rm", text(&image), "/gone"]).succeeds();
    let before = allocated(&image);
    bedplate(["trim", text(&image)]).succeeds().says("discarded in");
    let after = allocated(&image);
    assert!(before - after >= 7 << 20, "{before} -> {after}");
    let back = scratch.path("back");
    bedplate(["get", text(&image), "/kept", text(&back)]).succeeds();
    assert!(std::fs::read(back).unwrap() == pattern(8 << 20));
    let told = bedplate(["--json", "trim", text(&image), "--min", "1g"]).succeeds().json();
    assert_eq!((&told["discarded_bytes"], &told["runs"]), (&0.into(), &0.into()), "{told}");
    assert!(told["passed_bytes"].as_u64().unwrap() > 0, "{told}");
    bedplate(["trim", text(&scratch.path("missing.img"))]).fails(1, "missing.img");
    bedplate(["check", text(&image)]).succeeds();
}

#[test]
fn s_260_a_live_mount_is_trimmed() {
    if !can_mount("trimming a live mount") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("mode=concurrent");
    std::fs::write(dir.join("gone"), pattern(8 << 20)).unwrap();
    std::fs::write(dir.join("kept"), pattern(1 << 20)).unwrap();
    std::fs::File::open(dir.join("gone")).unwrap().sync_all().unwrap();
    std::fs::remove_file(dir.join("gone")).unwrap();
    let before = allocated(&image);
    bedplate(["trim", text(&dir)]).succeeds().says("discarded in");
    assert!(before - allocated(&image) >= 7 << 20, "{before} -> {}", allocated(&image));
    assert!(std::fs::read(dir.join("kept")).unwrap() == pattern(1 << 20));
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["check", text(&image)]).succeeds();
}

/// S-378: with `discard=on` the holes come by themselves.
#[test]
fn s_378_an_image_file_gives_back_what_is_removed_by_itself() {
    if !can_mount("discarding by itself") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("mode=concurrent,sync=50ms");
    bedplate(["tune", text(&dir), "discard=on"]).succeeds().says("on");
    bedplate(["tune", text(&dir), "discard=perhaps"]).fails(1, "neither on nor off");
    std::fs::write(dir.join("gone"), pattern(8 << 20)).unwrap();
    std::fs::write(dir.join("kept"), pattern(1 << 20)).unwrap();
    std::fs::File::open(dir.join("gone")).unwrap().sync_all().unwrap();
    let before = allocated(&image);
    std::fs::remove_file(dir.join("gone")).unwrap();
    let began = std::time::Instant::now();
    while before.saturating_sub(allocated(&image)) < 7 << 20 {
        assert!(began.elapsed().as_secs() < 60, "{before} -> {}", allocated(&image));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(std::fs::read(dir.join("kept")).unwrap() == pattern(1 << 20));
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["check", text(&image)]).succeeds();
    bedplate(["mount", text(&image), text(&dir), "-o", "discard=off"]).succeeds();
    bedplate(["unmount", text(&dir)]).succeeds();
}
