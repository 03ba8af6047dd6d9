//! Defragmentation from the command line: on a live mount and on a volume that is not mounted.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Scratch, bedplate, can_mount, pattern, text};

const BLOCK: usize = 4096;

/// Writes every block of a file again, the last first.
fn scatter(path: &Path, content: &[u8]) {
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
    bedplate(["defrag", text(&file), "--rate", "100m"])
        .succeeds()
        .says("now 1 run of 256 KiB")
        .says("0 of 1 files lie in more than one run");
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
    bedplate(["defrag", &format!("{}:/table", text(&image)), "--dry-run"])
        .succeeds()
        .says("0 of 1 files");
    bedplate(["defrag", &format!("{}:/none", text(&image))]).fails(1, "none");
    assert!(bedplate(["cat", text(&image), "/table"]).succeeds().stdout_bytes() == content);
}

/// Makes files that lie in many runs below a mount: written, checkpointed and written over block by
/// block.
fn scattered(dir: &Path, names: &[&str], blocks: usize) -> Vec<PathBuf> {
    let files: Vec<PathBuf> = names.iter().map(|name| dir.join(name)).collect();
    files.iter().for_each(|file| std::fs::write(file, pattern(blocks * BLOCK)).unwrap());
    bedplate(["checkpoint", "create", text(dir), "before"]).succeeds();
    files.iter().for_each(|file| scatter(file, &pattern(blocks * BLOCK)));
    bedplate(["checkpoint", "delete", text(dir), "before"]).succeeds();
    files
}

/// Asks until an answer is as wanted.
fn until(what: &str, mut ask: impl FnMut() -> Value, is_so: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let answer = ask();
        if is_so(&answer) {
            return answer;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{what} does not come: {answer}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_is_moved_in_the_background_is_told_by_report_iostat_and_top() {
    if !can_mount("background defragmentation") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("mode=concurrent");
    std::fs::create_dir(dir.join("sub")).unwrap();
    let files = scattered(&dir, &["one", "sub/two"], 1024);
    let report =
        |dir: &Path| bedplate(["--json", "defrag", "--report", text(dir)]).succeeds().json();
    assert_eq!(report(&dir)["state"], "off");
    bedplate(["defrag", "--report", text(&dir)])
        .succeeds()
        .says("off: bedplate tune DIR defrag-rate=20m");
    let quiet = bedplate(["--json", "iostat", text(&dir)]).succeeds().json();
    assert_eq!(quiet["defragmentation"].as_array().map(Vec::len), Some(0), "{quiet}");
    // So slowly that it is at its first file for seconds, and is seen there; asking is no load.
    bedplate(["tune", text(&dir), "defrag-rate=1m", "defrag-load=1000000"]).succeeds();
    let is_at = |told: &Value| told["now"].is_object() && told["moved_bytes"].as_u64() > Some(0);
    let working = until("work", || report(&dir), is_at);
    let at = files
        .iter()
        .position(|file| working["now_path"] == text(file))
        .unwrap_or_else(|| panic!("{working}"));
    assert!(
        working["state"] == "working" && working["now"]["before"]["runs"].as_u64() > Some(500),
        "{working}"
    );
    bedplate(["defrag", "--report", text(&dir)])
        .succeeds()
        .says("working")
        .says(&format!("now {}: ", text(&files[at])));
    let counted = bedplate(["--json", "iostat", text(&dir)]).succeeds().json();
    let moved = &counted["defragmentation"][0];
    assert!(
        moved["file"] == text(&files[at]) && moved["moved_bytes"].as_u64() > Some(0),
        "{counted}"
    );
    bedplate(["iostat", text(&files[0])]).succeeds().says(&format!(
        "defragmentation of {}: works on {}",
        text(&dir),
        text(&files[at])
    ));
    bedplate(["top", text(&dir), "-i", "20ms"])
        .succeeds()
        .says(&format!("works on {}", text(&files[at])))
        .says("/s, 0 files put together");
    bedplate(["tune", text(&dir), "defrag-rate=1g"]).succeeds();
    let done = until("an end", || report(&dir), |told| told["files"] == 2 && told["now"].is_null());
    let paths: Vec<&str> =
        done["paths"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(paths.len() == 2 && files.iter().all(|file| paths.contains(&text(file))), "{done}");
    assert!(
        done["last"]
            .as_array()
            .unwrap()
            .iter()
            .all(|file| file["after"]["runs"].as_u64() < file["before"]["runs"].as_u64()),
        "{done}"
    );
    bedplate(["defrag", "--report", text(&dir)])
        .succeeds()
        .says("2 files put together since the mount")
        .says(&format!("{}: ", text(&files[0])));
    bedplate(["defrag", "--report", text(&image)]).succeeds().says("2 files put together");
    assert!(files.iter().all(|file| std::fs::read(file).unwrap() == pattern(1024 * BLOCK)));
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["defrag", "--report", text(&image)]).fails(1, "");
    bedplate(["defrag", "--report", &format!("{}:/one", text(&image))])
        .fails(2, "--report is for a volume that is mounted");
    bedplate(["check", text(&image)]).succeeds();
}

/// Writes blocks to two files in turns, each write an open of its own; returns in how many runs the
/// first lies then.
fn runs_in_turns(dir: &Path, names: [&str; 2]) -> usize {
    for at in 0..32_u64 {
        for name in names {
            let file = std::fs::OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(dir.join(name))
                .unwrap();
            file.write_all_at(&pattern(BLOCK), at * BLOCK as u64).unwrap();
            file.sync_data().unwrap();
        }
    }
    let stat = bedplate(["--json", "stat", text(&dir.join(names[0]))]).succeeds().json();
    let starts: Vec<(u64, u64)> = stat["extents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| (number(e, "volume_offset"), number(e, "len")))
        .collect();
    1 + starts.windows(2).filter(|pair| pair[0].0 + pair[0].1 != pair[1].0).count()
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {value}"))
}

/// S-103: an extent size is shown, set, taken over, set below and taken away, on a mount and in a
/// volume that is not mounted, and files follow it.
#[test]
fn s_103_an_extent_size_is_set_shown_taken_over_and_followed() {
    if !can_mount("extent sizes on a live mount") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("mode=concurrent");
    let (sized, plain) = (dir.join("sized"), dir.join("plain"));
    [&sized, &plain].into_iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    bedplate(["extent-size", text(&sized)]).succeeds().says("no size of extents: its volume's");
    bedplate(["extent-size", text(&sized), "256k"]).succeeds().says("extents of 256 KiB");
    let (without, with) = (runs_in_turns(&plain, ["a", "b"]), runs_in_turns(&sized, ["a", "b"]));
    // A close reaches the file system a moment later, so now and then a file still has what was
    // kept for it by its next write.
    assert!(with < 4 && without > 8, "{with} runs with a size, {without} without");
    let told = bedplate(["--json", "extent-size", text(&sized.join("a"))]).succeeds().json();
    assert_eq!(
        (told["extent_bytes"].as_u64(), told["below"].as_u64()),
        (Some(256 << 10), Some(0)),
        "{told}"
    );
    bedplate(["extent-size", "-R", text(&plain), "1m"])
        .succeeds()
        .says("extents of 1 MiB; so are 2 files and directories in it");
    assert_eq!(
        bedplate(["--json", "extent-size", text(&plain.join("b"))]).succeeds().json()["extent_bytes"],
        1 << 20
    );
    bedplate(["stat", text(&plain.join("b"))]).succeeds().says("1 MiB");
    bedplate(["extent-size", text(&plain.join("b")), "none"]).succeeds().says("its volume's");
    for (size, why) in [("1000", "multiple of the block size"), ("2g", "1 GiB")] {
        bedplate(["extent-size", text(&plain), size]).fails(1, why);
    }
    bedplate(["extent-size", text(&plain), "much"]).fails(2, "much");
    bedplate(["extent-size", "-R", text(&plain)]).fails(2, "SIZE");
    bedplate(["extent-size", text(&dir.join("none"))]).fails(1, "none");
    bedplate(["unmount", text(&dir)]).succeeds();
    let inside = |path: &str| format!("{}:{path}", text(&image));
    bedplate(["extent-size", &inside("/plain/b")]).succeeds().says("its volume's");
    assert_eq!(
        bedplate(["--json", "extent-size", &inside("/sized/b")]).succeeds().json()["extent_bytes"],
        256 << 10
    );
    bedplate(["extent-size", "-R", &inside("/"), "64k"])
        .succeeds()
        .says("so are 6 files and directories in it");
    assert_eq!(
        bedplate(["--json", "extent-size", &inside("/plain/b")]).succeeds().json()["extent_bytes"],
        64 << 10
    );
    bedplate(["extent-size", &inside("/plain/b"), "none"]).succeeds();
    bedplate(["extent-size", &inside("/nothing")]).fails(1, "nothing");
    bedplate(["check", text(&image)]).succeeds();
}
