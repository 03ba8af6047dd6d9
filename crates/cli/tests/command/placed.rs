//! Files on chosen members from the command line: on a live mount and on a volume that is not
//! mounted.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::harness::{Scratch, bedplate, can_mount, pattern, text};
use crate::volumes::group;

const BLOCK: usize = 4096;

/// A formatted concatenation of two members.
fn concatenation(scratch: &Scratch) -> Vec<PathBuf> {
    let members = group(scratch, "concat", 2, &[]);
    bedplate(["format", text(&members[0])]).succeeds();
    members
}

/// Bytes of a file on each of two members, as `place` tells them.
fn on_members(path: &str, members: &[PathBuf]) -> [u64; 2] {
    let told = bedplate(["--json", "place", path]).succeeds().json();
    bytes_of(&told["paths"][0], members)
}

fn bytes_of(told: &Value, members: &[PathBuf]) -> [u64; 2] {
    [0, 1].map(|at: usize| {
        let on = told["on"].as_array().unwrap().iter();
        on.filter(|one| one["path"] == text(&members[at]))
            .map(|one| one["bytes"].as_u64().unwrap())
            .sum()
    })
}

/// S-616, S-620, S-622: in a volume that is not mounted.
#[test]
fn s_622_files_of_a_volume_that_is_not_mounted_are_placed_and_moved() {
    let scratch = Scratch::new();
    let members = concatenation(&scratch);
    let content = pattern(3 << 20);
    let source = scratch.file("source", &content);
    let volume = text(&members[0]);
    let inside = |path: &str| format!("{volume}:{path}");
    bedplate(["mkdir", volume, "/dir"]).succeeds();
    bedplate(["put", volume, text(&source), "/dir/file"]).succeeds();
    bedplate(["place", &inside("/dir/file")])
        .succeeds()
        .says("/dir/file: anywhere")
        .says(&format!("3 MiB on {}", text(&members[0])));
    for (member, at) in [("m1.img", 1), (text(&members[0]), 0), ("m1.img", 1)] {
        bedplate(["place", &inside("/dir/file"), "--on", member])
            .succeeds()
            .says("3 MiB moved")
            .says(&format!("3 MiB on {}", text(&members[at])));
        assert_eq!(on_members(&inside("/dir/file"), &members)[at], 3 << 20);
        assert!(
            bedplate(["cat", volume, "/dir/file"]).succeeds().stdout_bytes() == content,
            "{member}"
        );
    }
    let again = bedplate(["place", &inside("/dir/file"), "--on", "m1.img"]).succeeds().stdout();
    assert!(!again.contains("moved"), "{again}");
    // A directory hands its placement on; -R takes what is there along.
    bedplate(["place", &inside("/dir"), "--on", "m1.img"]).succeeds().says("/dir: on ");
    bedplate(["put", volume, text(&source), "/dir/new"]).succeeds();
    assert_eq!(on_members(&inside("/dir/new"), &members), [0, 3 << 20]);
    let told =
        bedplate(["--json", "place", "-R", &inside("/"), "--on", "m0.img"]).succeeds().json();
    let paths = told["paths"].as_array().unwrap();
    assert_eq!(paths.len(), 4, "{told}");
    let moved: u64 = paths.iter().map(|path| path["moved_bytes"].as_u64().unwrap()).sum();
    assert_eq!(moved, 6 << 20, "{told}");
    assert!(paths.iter().all(|path| path["state"] == "placed"), "{told}");
    bedplate(["place", "-R", &inside("/"), "--anywhere"]).succeeds().says("/dir/new: anywhere");
    // What cannot be.
    let refused = |arguments: &[&str], why: &str| {
        bedplate([&["place", &inside("/dir/file")[..]], arguments].concat()).fails(1, why);
    };
    refused(&["--on", "m7.img"], "'m7.img' is no member");
    refused(&["--on", "m0.img,m1.img"], "needs no placement");
    bedplate(["place", &inside("/none")]).fails(1, "none");
    bedplate(["place", &inside("/dir/file"), "--on", "m0.img", "--anywhere"])
        .fails(2, "--anywhere");
    bedplate(["place", &inside("/dir/file"), "--rate", "20m"]).fails(2, "--on");
    bedplate(["check", volume]).succeeds();
}

/// S-616: where every row lies on all members, another volume or layout is proposed.
#[test]
fn s_616_files_of_a_stripe_are_not_placed() {
    let scratch = Scratch::new();
    let members = group(&scratch, "stripe", 2, &[]);
    bedplate(["format", text(&members[0])]).succeeds();
    bedplate(["mkdir", text(&members[0]), "/dir"]).succeeds();
    let dir = format!("{}:/dir", text(&members[0]));
    bedplate(["place", &dir, "--on", "m0.img"]).fails(1, "bedplate volume add-volume");
    let image = scratch.image("v.img");
    bedplate(["place", &format!("{}:/", text(&image)), "--on", "m0.img"])
        .fails(1, "lies on one device");
}

/// S-619, S-622: on a live mount, while a program writes the file.
#[test]
fn s_619_a_file_of_a_live_mount_moves_while_it_is_written() {
    if !can_mount("placing files of a live mount") {
        return;
    }
    let scratch = Scratch::new();
    let members = concatenation(&scratch);
    let dir = scratch.directory("mnt");
    bedplate(["mount", text(&members[0]), text(&dir), "-o", "mode=concurrent"]).succeeds();
    let (file, content) = (dir.join("table"), pattern(4 << 20));
    std::fs::write(&file, &content).unwrap();
    assert_eq!(on_members(text(&file), &members), [4 << 20, 0]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        scope.spawn(|| write_again(&file, &content, &stop));
        for (member, at) in [(text(&members[1]), 1), ("m0.img", 0), ("m1.img", 1)] {
            let told = bedplate(["--json", "place", text(&file), "--on", member, "--rate", "1g"])
                .succeeds()
                .json();
            assert_eq!(bytes_of(&told["paths"][0], &members)[at], 4 << 20, "{told}");
        }
    });
    assert!(std::fs::read(&file).unwrap() == content);
    bedplate(["place", text(&file)]).succeeds().says(&format!("on {}", text(&members[1])));
    bedplate(["place", text(&dir), "--on", "m1.img"]).succeeds();
    std::fs::write(dir.join("new"), &content).unwrap();
    std::fs::File::open(dir.join("new")).unwrap().sync_all().unwrap();
    assert_eq!(on_members(text(&dir.join("new")), &members), [0, 4 << 20]);
    bedplate(["place", text(&dir.join("none"))]).fails(1, "none");
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["check", text(&members[0])]).succeeds();
    let inside = format!("{}:/table", text(&members[0]));
    assert_eq!(on_members(&inside, &members), [0, 4 << 20]);
}

/// Ends what goes on beside a test, also where that fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes what a file holds over it, block by block.
fn write_again(file: &Path, content: &[u8], stop: &AtomicBool) {
    let open = std::fs::OpenOptions::new().write(true).open(file).unwrap();
    while !stop.load(Ordering::Relaxed) {
        for (at, block) in content.chunks(BLOCK).enumerate() {
            open.write_all_at(block, (at * BLOCK) as u64).unwrap();
        }
    }
}
