//! Defragmentation from the command line: on a live mount and on a volume that is not mounted.

use std::os::unix::fs::FileExt;

use crate::harness::{Scratch, bedplate, can_mount, pattern, text};

const BLOCK: usize = 4096;

/// Writes every block of a file again, the last first.
fn scatter(path: &std::path::Path, content: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    for (at, block) in content.chunks(BLOCK).enumerate().rev() {
        file.write_all_at(block, (at * BLOCK) as u64).unwrap();
    }
    file.sync_all().unwrap();
}

#[test]
fn files_of_a_live_mount_are_moved_together() {
    if !can_mount("defragmenting on a live mount") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("mode=concurrent");
    let (file, content) = (dir.join("table"), pattern(64 * BLOCK));
    std::fs::write(&file, pattern(64 * BLOCK)).unwrap();
    std::fs::create_dir(dir.join("sub")).unwrap();
    std::fs::write(dir.join("sub/whole"), b"whole").unwrap();
    bedplate(["checkpoint", "create", text(&dir), "before"]).succeeds();
    scatter(&file, &content);
    let told = bedplate(["--json", "defrag", text(&dir), "--dry-run"]).succeeds().json();
    assert_eq!(told["files_looked_at"], 2, "{told}");
    let runs = told["files"][0]["before"]["runs"].as_u64().unwrap();
    assert!(runs > 32 && told["files"].as_array().unwrap().len() == 1, "{told}");
    let open = std::fs::File::open(&file).unwrap();
    bedplate(["defrag", text(&file), "--rate", "100m"]).succeeds().says("now 1 run of 256 KiB").says("0 of 1 files lie in more than one run");
    drop(open);
    assert!(std::fs::read(&file).unwrap() == content);
    bedplate(["defrag", text(&image)]).succeeds().says("0 of 2 files");
    bedplate(["defrag", text(&dir.join("missing"))]).fails(1, "missing");
    bedplate(["defrag", text(&file), "--rate", "0"]).fails(2, "rate");
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["check", text(&image)]).succeeds();
}

#[test]
fn files_of_a_volume_that_is_not_mounted_are_moved_together() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    let content = pattern(100_000);
    let source = scratch.file("source", &content);
    bedplate(["put", text(&image), text(&source), "/table"]).succeeds();
    bedplate(["defrag", text(&image)]).succeeds().says("0 of 1 files lie in more than one run");
    bedplate(["defrag", &format!("{}:/table", text(&image)), "--dry-run"]).succeeds().says("0 of 1 files");
    bedplate(["defrag", &format!("{}:/none", text(&image))]).fails(1, "none");
    assert!(bedplate(["cat", text(&image), "/table"]).succeeds().stdout_bytes() == content);
}
