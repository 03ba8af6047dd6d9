//! Intent logs that move, with and without a mount, and one whose device is lost.

use std::fs::File;
use std::io::Write;

use crate::harness::{Scratch, bedplate, can_mount, pattern, text};

/// S-397, S-398: without a mount the log goes onto a device and comes home; with that device lost it
/// comes home too.
#[test]
fn s_398_a_log_moves_away_and_comes_home_also_when_its_device_is_lost() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    let log = scratch.path("log.img");
    File::create(&log).unwrap().set_len(8 << 20).unwrap();
    let source = scratch.file("source", &pattern(300_000));
    let (volume, device) = (text(&image), text(&log));
    bedplate(["put", volume, text(&source), "/f"]).succeeds();
    bedplate(["log", "show", volume]).succeeds().says("on the volume").says("in use");
    bedplate(["log", "move", volume, "--home"]).fails(1, "on itself already");
    bedplate(["log", "move", volume, text(&source)]).fails(1, "at least");
    bedplate(["log", "move", volume, device, "--home"]).fails(2, "cannot be used");
    bedplate(["log", "move", volume, text(&scratch.path("none"))]).fails(1, "none");
    bedplate(["log", "move", volume, device, "--dry-run"]).succeeds().says("would be");
    let moved =
        bedplate(["log", "move", volume, device, "--size", "2M", "--json"]).succeeds().json();
    assert_eq!(
        (moved["to"]["size_bytes"].as_u64(), moved["from"]["device"].as_str()),
        (Some(2 << 20), None),
        "{moved}"
    );
    bedplate(["cat", volume, "/f"]).fails(1, "on a device of its own");
    bedplate(["log", "resize", volume, "4M", "--log", device]).succeeds().says("4 MiB");
    bedplate(["log", "show", volume, "--log", device]).succeeds().says("4 MiB on ");
    bedplate(["check", volume, "--log", device]).succeeds();
    bedplate(["log", "move", volume, "--home", "--log", device]).succeeds().says("without -o log=");
    bedplate(["log", "move", volume, device]).succeeds().says(&format!("-o log={device}"));
    std::fs::remove_file(&log).unwrap();
    bedplate(["cat", volume, "/f"]).fails(1, "name that device");
    bedplate(["log", "move", volume, "--home", "--dry-run"]).succeeds().says("would be");
    bedplate(["log", "move", volume, "--home"]).succeeds().says("on a device that is lost");
    bedplate(["check", volume]).succeeds();
    let back = scratch.path("back");
    bedplate(["get", volume, "/f", text(&back)]).succeeds();
    assert!(std::fs::read(&back).unwrap() == pattern(300_000));
}

/// S-394: the log of a mount moves below open files, and the next mount finds it where it is told.
#[test]
fn s_394_the_log_of_a_mount_moves_below_open_files() {
    if !can_mount("moving the log of a mounted volume") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("");
    let log = scratch.path("log.img");
    File::create(&log).unwrap().set_len(8 << 20).unwrap();
    let mut open = File::create(dir.join("open")).unwrap();
    let mut write = |byte: u8| {
        open.write_all(&[byte; 5000]).unwrap();
        open.sync_all().unwrap();
    };
    write(1);
    let (mount, device) = (text(&dir), text(&log));
    bedplate(["log", "move", mount, device, "--size", "2M"]).succeeds().says("-o log=");
    write(2);
    bedplate(["log", "move", mount, text(&image)]).fails(1, "use");
    bedplate(["log", "resize", mount, "4M"]).succeeds();
    write(3);
    let shown = bedplate(["log", "show", mount, "--json"]).succeeds().json();
    assert_eq!(shown["log"]["size_bytes"].as_u64(), Some(4 << 20), "{shown}");
    assert!(shown["log"]["writes"].as_u64() > Some(0), "{shown}");
    bedplate(["log", "move", mount, "--home"]).succeeds();
    write(4);
    bedplate(["log", "move", mount, device]).succeeds();
    write(5);
    let whole: Vec<u8> = (1..=5).flat_map(|byte| [byte; 5000]).collect();
    assert!(std::fs::read(dir.join("open")).unwrap() == whole);
    drop(open);
    bedplate(["unmount", mount]).succeeds();
    bedplate(["mount", text(&image), mount]).fails(1, "on a device of its own");
    bedplate(["mount", text(&image), mount, "-o", &format!("log={device}")]).succeeds();
    assert!(std::fs::read(dir.join("open")).unwrap() == whole);
    bedplate(["unmount", mount]).succeeds();
    bedplate(["check", text(&image), "--log", device]).succeeds();
}

/// S-585: the logs of several volumes lie in parts of one device, each with its own share, mounted
/// beside each other.
#[test]
fn s_585_one_device_has_the_logs_of_several_volumes() {
    if !can_mount("one device with the logs of two mounted volumes") {
        return;
    }
    let scratches = [Scratch::new(), Scratch::new()];
    let device = scratches[0].path("logs.img");
    File::create(&device).unwrap().set_len(24 << 20).unwrap();
    let part = |from: u32, mib: u32| format!("{}#{from}M+{mib}M", text(&device));
    let shares = [part(0, 8), part(8, 12)];
    let mounts = scratches.each_ref().map(|scratch| scratch.mounted(""));
    for ((_, dir), share) in mounts.iter().zip(&shares) {
        bedplate(["log", "move", text(dir), share]).succeeds().says(&format!("-o log={share}"));
    }
    // What another one has a byte of, nothing else gets.
    bedplate(["log", "move", text(&mounts[1].1), &part(4, 8)]).fails(1, "in use");
    bedplate(["log", "move", text(&mounts[1].1), text(&device)]).fails(1, "in use");
    for (number, (_, dir)) in mounts.iter().enumerate() {
        let mut file = File::create(dir.join("f")).unwrap();
        file.write_all(&pattern(100_000 + number)).unwrap();
        file.sync_all().unwrap();
        let shown = bedplate(["log", "show", text(dir), "--json"]).succeeds().json();
        assert!(shown["log"]["writes"].as_u64() > Some(0), "S-585: each has its load: {shown}");
    }
    mounts.iter().for_each(|(_, dir)| _ = bedplate(["unmount", text(dir)]).succeeds());
    let (image, dir) = &mounts[1];
    let with = |share: &str| format!("log={share}");
    let other = bedplate(["mount", text(image), text(dir), "-o", &with(&shares[0])]);
    other.fails(1, "log");
    for (number, ((image, dir), share)) in mounts.iter().zip(&shares).enumerate() {
        bedplate(["mount", text(image), text(dir), "-o", &with(share)]).succeeds();
        assert!(std::fs::read(dir.join("f")).unwrap() == pattern(100_000 + number), "S-585");
    }
    mounts.iter().for_each(|(_, dir)| _ = bedplate(["unmount", text(dir)]).succeeds());
}
