//! One volume on several directories: how it is asked for, told of and ended.

use std::path::Path;

use serde_json::json;

use crate::harness::{Scratch, bedplate, can_mount, text};

fn is_mounted(dir: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4) == dir.to_str())
}

/// S-510, S-512: named by image or by mount; told by `info` and the list of mounts; each ends alone,
/// and the volume is free after the last.
#[test]
fn s_510_a_volume_is_mounted_on_several_directories() {
    if !can_mount("one volume on several directories") || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::new();
    let (image, first) = scratch.mounted("");
    let (second, third) = (scratch.directory("second"), scratch.directory("third"));
    std::fs::create_dir_all(first.join("data/base")).unwrap();
    std::fs::write(first.join("data/base/f"), b"content").unwrap();
    let of = |volume: &Path, path: &str| format!("{}:{path}", text(volume));
    let (data, all) = (of(&image, "/data"), of(&first, "/"));
    let told = bedplate(["--json", "mount", &data, text(&second), "-o", "mode=concurrent,nofail"])
        .succeeds()
        .json();
    assert_eq!(told["path"], "/data", "S-510: {told}");
    assert_eq!((&told["mode"], &told["read_only"]), (&json!("concurrent"), &json!(false)));
    bedplate(["mount", &all, text(&third), "-o", "ro"]).succeeds().says("read-only, beside");
    assert_eq!(std::fs::read(third.join("data/base/f")).unwrap(), b"content");
    let info = bedplate(["--json", "info", text(&second)]).succeeds().json();
    let places: Vec<_> =
        info["places"].as_array().unwrap().iter().map(|place| place["mode"].clone()).collect();
    assert_eq!(places, [json!(null), json!("concurrent"), json!(null)], "S-510: {info}");
    let open = std::fs::File::open(second.join("base/f")).unwrap();
    bedplate(["--json", "stat", text(&first.join("data/base/f"))])
        .succeeds()
        .says("\"effective_mode\": \"concurrent\"");
    // What lies below a part has its path in the volume.
    bedplate(["defrag", text(&second.join("base")), "--dry-run"]).succeeds();
    bedplate(["checkpoint", "create", text(&second), "c", text(&second.join("base"))]).succeeds();
    bedplate(["checkpoint", "list", text(&first)]).succeeds().says("/data/base");

    let more = scratch.directory("more");
    bedplate(["mount", text(&image), text(&more)]).fails(1, &format!("{}:/'", text(&image)));
    for (option, said) in [
        ("cache=1g", "one of the whole volume"),
        ("metrics=unix:/x", "one serves it"),
        ("frobnicate", "unknown"),
    ] {
        bedplate(["mount", &data, text(&more), "-o", option]).fails(2, said);
    }
    bedplate(["mount", &of(&image, "/data/base/f"), text(&more)]).fails(1, "no directory");

    bedplate(["unmount", text(&first)]).succeeds().says("stays mounted at");
    assert!(!is_mounted(&first) && is_mounted(&second), "S-510: one goes, the others stay");
    bedplate(["unmount", text(&second)]).fails(1, "in use");
    drop(open);
    bedplate(["unmount", text(&image)]).succeeds().says("is free");
    assert!(!is_mounted(&second) && !is_mounted(&third), "S-510: the volume is free");

    // A directory of a volume that is not mounted, with options of the volume, and one below it.
    bedplate(["mount", &data, text(&first), "-o", "cache=32M"]).succeeds().says("/data of ");
    assert_eq!(std::fs::read(first.join("base/f")).unwrap(), b"content");
    let base = of(&first, "/data/base");
    bedplate(["mount", &base, text(&second), "-o", "mode=direct"]).succeeds();
    bedplate(["mount", &of(&image, "/"), text(&third)]).fails(1, "mount the whole volume first");
    bedplate(["unmount", text(&image)]).succeeds();
    bedplate(["mount", &of(&image, "/none"), text(&first)]).fails(1, "does not exist");
    bedplate(["check", text(&image)]).succeeds();
}
