//! `bedplate integrity` and `check --data`, on a mount and in a volume that is not mounted.

use std::os::unix::fs::FileExt;

use crate::harness::{Scratch, bedplate, can_mount, pattern, text};

/// S-280, S-281, S-285: set and shown from outside of a mount; what does not compare is told.
#[test]
fn s_280_integrity_is_set_shown_and_checked() {
    let scratch = Scratch::new();
    let image = scratch.image("image");
    let inside = |path: &str| format!("{}:{path}", text(&image));
    bedplate(["mkdir", text(&image), "/db"]).succeeds();
    bedplate(["integrity", &inside("/db")]).succeeds().says("gets no checksums");
    bedplate(["integrity", &inside("/db"), "on"]).succeeds().says("gets checksums");
    bedplate(["integrity", &inside("/db"), "yes"]).fails(2, "'yes' is neither on nor off");
    let source = scratch.path("source");
    std::fs::write(&source, pattern(1 << 20)).unwrap();
    bedplate(["put", text(&image), text(&source), "/db/f"]).succeeds();
    bedplate(["stat", &inside("/db/f")]).succeeds().says("what is written gets checksums; 1 MiB");
    bedplate(["check", "--data", text(&image)]).succeeds().says("256 blocks with checksums");
    let stat = bedplate(["--json", "stat", &inside("/db/f")]).succeeds().json();
    let place = stat["extents"][0]["volume_offset"].as_u64().unwrap();
    let device = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    device.write_all_at(&[1; 5], place + 4096 * 7 + 9).unwrap();
    drop(device);
    bedplate(["check", text(&image)]).succeeds();
    let told = format!("at byte 28672: block {} is not what was written", place / 4096 + 7);
    bedplate(["check", "--data", text(&image)]).ends(4).says(&told);
    bedplate(["cat", text(&image), "/db/f"]).fails(1, "is not what was written, and no copy is");
}

/// S-280: as the attributes of a live mount.
#[test]
fn s_280_integrity_is_set_on_a_live_mount() {
    if !can_mount("integrity on a live mount") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("mode=concurrent");
    let file = dir.join("f");
    std::fs::write(&file, pattern(8192)).unwrap();
    bedplate(["integrity", text(&file), "on"]).succeeds().says("gets checksums");
    bedplate(["stat", text(&file)]).succeeds().says("what is written gets checksums; 0");
    std::fs::write(&file, pattern(12_288)).unwrap();
    bedplate(["stat", text(&file)]).succeeds().says("gets checksums; 12 KiB have them");
    assert_eq!(std::fs::read(&file).unwrap(), pattern(12_288));
    bedplate(["info", text(&dir)]).succeeds().says("in memory of at most 96 MiB");
    bedplate(["integrity", "-R", text(&dir), "on"]).succeeds().says("1 files and directories");
    bedplate(["integrity", text(&file), "off"]).succeeds().says("gets no checksums");
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["check", "--data", text(&image)]).succeeds();
}
