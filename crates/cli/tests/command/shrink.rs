//! Volumes that become smaller, with and without a mount.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::harness::{Scratch, bedplate, can_mount, pattern, text};

/// S-377: the image ends where the file system does, and what was in it is.
#[test]
fn s_377_a_volume_shrinks_with_its_image() {
    let scratch = Scratch::new();
    let image = scratch.path("v.img");
    bedplate(["format", text(&image), "--size", "256M"]).succeeds();
    let source = scratch.file("large", &pattern(30 << 20));
    for name in ["/one", "/two", "/three"] {
        bedplate(["put", text(&image), text(&source), name]).succeeds();
    }
    bedplate(["rm", text(&image), "/one", "/two"]).succeeds();
    let shrink = |more: &[&str]| bedplate(["shrink", text(&image)].iter().chain(more));
    shrink(&["64M", "--dry-run"]).succeeds().says("there is room").says("of files");
    shrink(&["34M"]).fails(1, "lack for a file system");
    shrink(&["256M"]).fails(1, "nothing is to be made smaller");
    shrink(&["2M"]).fails(1, "its own parts");
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 256 << 20);
    let shrunk = shrink(&["64M", "--json"]).succeeds().json();
    assert_eq!(
        (&shrunk["size_bytes"], &shrunk["below"]),
        (&(64 << 20).into(), &"image_cut_off".into())
    );
    assert!(shrunk["moved_bytes"].as_u64() > Some(20 << 20), "{shrunk}");
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 64 << 20);
    bedplate(["check", text(&image)]).succeeds();
    let back = scratch.path("back");
    bedplate(["get", text(&image), "/three", text(&back)]).succeeds();
    assert!(std::fs::read(&back).unwrap() == pattern(30 << 20));
}

/// S-377: also while it is mounted; a member of a group is never cut off.
#[test]
fn s_377_a_mounted_volume_shrinks_under_its_files() {
    if !can_mount("shrinking a mounted volume") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("");
    bedplate(["grow", text(&dir), "256M"]).succeeds();
    for name in ["first", "second", "third"] {
        std::fs::write(dir.join(name), pattern(30 << 20)).unwrap();
    }
    bedplate(["checkpoint", "create", text(&dir), "then"]).succeeds();
    let open = File::open(dir.join(".checkpoints/then/third")).unwrap();
    std::fs::write(dir.join("third"), pattern(20 << 20)).unwrap();
    bedplate(["shrink", text(&dir), "200M"]).succeeds().says("the image file ends there");
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 200 << 20);
    let mut old = vec![0; 30 << 20];
    open.read_exact_at(&mut old, 0).unwrap();
    assert!(old == pattern(30 << 20), "S-374");
    drop(open);
    bedplate(["shrink", text(&dir), "64M"]).fails(1, "1 checkpoints");
    assert!(std::fs::read(dir.join("second")).unwrap() == pattern(30 << 20));
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["check", text(&image)]).succeeds();
}
