//! `bedplate release-behind`, on a mount and in a volume that is not mounted.

use crate::harness::{Scratch, bedplate, can_mount, pattern, text};

#[test]
fn s_250_release_behind_is_set_shown_taken_over_and_counted() {
    if !can_mount("release-behind on a live mount") {
        return;
    }
    let scratch = Scratch::new();
    // The library's cache: the kernel collects nothing.
    let (image, dir) = scratch.mounted("mode=concurrent+cache");
    let sub = dir.join("scans");
    std::fs::create_dir(&sub).unwrap();
    let shown = |path: &std::path::Path| {
        bedplate(["--json", "release-behind", text(path)]).succeeds().json()["release_behind"]
            .clone()
    };
    bedplate(["release-behind", text(&sub)]).succeeds().says("not set: its volume's");
    bedplate(["release-behind", text(&sub), "both"]).succeeds().says("a sequential read or write");
    let file = sub.join("f");
    std::fs::write(&file, pattern(4 << 20)).unwrap();
    assert_eq!(shown(&file), "both", "taken over");
    assert_eq!(std::fs::read(&file).unwrap(), pattern(4 << 20));
    bedplate(["stat", text(&file)])
        .succeeds()
        .says("release       pages behind sequential I/O: both")
        .says("released      4 MiB behind sequential I/O");
    bedplate(["info", text(&dir)]).succeeds().says("released      4 MiB behind sequential I/O");
    assert_eq!(
        bedplate(["--json", "info", text(&dir)]).succeeds().json()["cache"]["resident_bytes"],
        0
    );
    bedplate(["release-behind", "-R", text(&sub), "off"])
        .succeeds()
        .says("so it is for 1 files and directories in it");
    assert_eq!(shown(&file), "off");
    bedplate(["release-behind", text(&file), "inherit"]).succeeds().says("its volume's");
    bedplate(["release-behind", text(&file), "rbr"]).fails(2, "'rbr' is none of off, read");
    bedplate(["release-behind", text(&dir.join("none")), "off"]).fails(1, "none");
    bedplate(["tune", text(&dir), "release-behind=write"]).succeeds();
    bedplate(["tune", text(&dir), "release-behind=much"]).fails(1, "none of off, read");
    bedplate(["unmount", text(&dir)]).succeeds();
    let inside = |path: &str| format!("{}:{path}", text(&image));
    bedplate(["release-behind", &inside("/scans"), "read"]).succeeds().says("a sequential read");
    bedplate(["stat", &inside("/scans")]).succeeds().says("pages behind sequential I/O: read");
    bedplate(["check", text(&image)]).succeeds();
}
