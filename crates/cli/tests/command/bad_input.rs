//! Bad input: each with its one clear sentence, and nothing lost.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::harness::{Scratch, bedplate, can_mount, command, pattern, run, text};
use crate::loops::Loop;

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

/// Where the copies of the superblock are.
const SUPERBLOCKS: [u64; 2] = [0, 8 << 20];

/// CRC-32C of a superblock, as docs/format.md has it.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    };
    !bytes.iter().fold(!0, step)
}

#[test]
fn what_is_no_volume_is_refused_by_every_command() {
    let scratch = Scratch::new();
    let file = scratch.file("random.img", &pattern(64 << 20));
    let dir = scratch.directory("mnt");
    let source = scratch.file("source", b"x");
    let (file, dir) = (text(&file), text(&dir));
    for arguments in [
        &["mount", file, dir][..],
        &["mount", file, dir, "--foreground"],
        &["info", file],
        &["ls", file],
        &["cat", file, "/x"],
        &["put", file, text(&source), "/x"],
        &["grow", file],
        &["shrink", file, "48M"],
        &["log", "show", file],
        &["log", "move", file, "--home"],
        &["log", "resize", file, "2M"],
        &["stat", &format!("{file}:/x")],
    ] {
        bedplate(arguments).fails(1, "Bedplate");
    }
    bedplate(["check", file]).fails(4, "Bedplate");
    assert_eq!(std::fs::read(file).unwrap(), pattern(64 << 20));
}

#[test]
fn a_newer_format_is_left_alone() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    for at in SUPERBLOCKS {
        let mut block = vec![0; 4096];
        File::open(&image).unwrap().read_exact_at(&mut block, at).unwrap();
        block[8..12].copy_from_slice(&99_u32.to_le_bytes());
        block[12..16].fill(0);
        let crc = crc32c(&block);
        block[12..16].copy_from_slice(&crc.to_le_bytes());
        overwrite(&image, at, &block);
    }
    let before = std::fs::read(&image).unwrap();
    bedplate(["mount", text(&image), text(&scratch.directory("mnt"))]).fails(1, "version 99");
    bedplate(["check", "--repair", text(&image)]).fails(8, "version 99");
    bedplate(["format", text(&image)]).fails(1, "--force");
    assert!(std::fs::read(&image).unwrap() == before, "nothing was written");
}

#[test]
fn a_truncated_image_is_refused_and_whole_again_when_it_is_made_whole() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    let source = scratch.file("kept", b"kept");
    bedplate(["put", text(&image), text(&source), "/kept"]).succeeds();
    let whole = std::fs::read(&image).unwrap();
    OpenOptions::new().write(true).open(&image).unwrap().set_len(40 << 20).unwrap();
    bedplate(["info", text(&image)]).fails(4, "v.img");
    bedplate(["ls", text(&image)]).fails(1, "v.img");
    bedplate(["mount", text(&image), text(&scratch.directory("mnt"))]).fails(1, "v.img");
    assert_ne!(bedplate(["check", text(&image)]).code(), 0);
    std::fs::write(&image, whole).unwrap();
    assert_eq!(bedplate(["cat", text(&image), "/kept"]).succeeds().stdout(), "kept");
}

#[test]
fn both_superblocks_lost_is_broken() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    SUPERBLOCKS.iter().for_each(|at| overwrite(&image, at + 100, &[0xff; 100]));
    bedplate(["info", text(&image)]).fails(4, "superblock");
    let checked = bedplate(["check", text(&image)]).says("superblock").says("broken");
    assert_eq!(checked.code(), 4);
}

#[test]
fn sizes_and_blocks_that_cannot_be_are_refused_and_leave_no_image() {
    let scratch = Scratch::new();
    let image = scratch.path("v.img");
    let image = text(&image);
    for (arguments, code, part) in [
        (&["--size", "1M"][..], 1, "32"),
        (&["--size", "0"], 1, ""),
        (&["--size", "12 apples"], 2, "'12 apples' is not a size"),
        (&["--size", "64M", "--block-size", "3000"], 2, "power of two"),
        (&["--size", "64M", "--block-size", "128k"], 2, "power of two"),
        (&["--size", "64M", "--block-size", "256"], 2, "power of two"),
        (&["--size", "64M", "--log-size", "1k"], 1, "log"),
        (&["--size", "64M", "--log-size", "1G"], 1, "log"),
        (&[], 1, "add --size"),
    ] {
        bedplate(["format", image].iter().chain(arguments)).fails(code, part);
        assert!(!Path::new(image).exists(), "{arguments:?} left an image behind");
    }
    bedplate(["format", text(&scratch.path("no/such/dir.img")), "--size", "64M"])
        .fails(1, "No such file");
    bedplate(["format", text(&scratch.directory("d"))]).fails(1, "is a directory");
    bedplate(["format", text(&scratch.file("empty", b""))]).fails(1, "add --size");
}

#[test]
fn a_block_size_below_the_sector_is_refused() {
    let Some(device) = Loop::new(&["--sector-size", "4096"]) else { return };
    bedplate(["format", &device.name, "--block-size", "512"]).fails(1, "4096");
    bedplate(["format", &device.name, "--block-size", "4k"]).succeeds();
    bedplate(["format", &device.name, "--size", "64M", "--force"]).fails(2, "is a block device");
    bedplate(["check", &device.name]).succeeds();
}

#[test]
fn a_read_only_device_is_read_and_not_written() {
    let Some(device) = Loop::new(&[]) else { return };
    bedplate(["format", &device.name]).succeeds();
    let Some(read_only) = Loop::over(&device.scratch.path("loop.img"), &["--read-only"]) else {
        return;
    };
    bedplate(["format", &read_only.name, "--force"]).fails(1, "read-only");
    bedplate(["mkdir", &read_only.name, "/d"]).fails(1, "read-only");
    bedplate(["ls", &read_only.name]).succeeds();
    bedplate(["check", &read_only.name]).succeeds();
    if can_mount("a read-only device is mounted read-only") {
        let dir = read_only.scratch.directory("mnt");
        bedplate(["mount", &read_only.name, text(&dir)]).fails(1, "read-only");
        bedplate(["mount", &read_only.name, text(&dir), "-o", "ro"]).succeeds();
        assert!(std::fs::write(dir.join("x"), b"x").is_err());
        bedplate(["unmount", text(&dir)]).succeeds();
    }
}

#[test]
fn a_device_in_use_is_refused_with_who_uses_it() {
    if !can_mount("a device in use") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("");
    let sentence = format!("is mounted at {}", text(&dir));
    let other = scratch.directory("other");
    for arguments in [
        &["format", text(&image), "--force"][..],
        &["ls", text(&image)],
        &["mount", text(&image), text(&other)],
    ] {
        bedplate(arguments).fails(1, &sentence);
    }
    bedplate(["check", text(&image)]).fails(8, &sentence);
    std::fs::write(dir.join("alive"), b"still").unwrap();
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["check", text(&image)]).succeeds();
}

#[test]
fn a_wrong_command_line_is_one_sentence_and_exit_code_2() {
    for (arguments, part) in [
        (&["frobnicate"][..], "unrecognized subcommand 'frobnicate'"),
        (&["format"], "<PATH>"),
        (&["format", "x", "--colour"], "'--colour'"),
        (&["mount", "x"], "<DIR>"),
        (&["completions", "tcsh"], "'tcsh'"),
    ] {
        bedplate(arguments).fails(2, part);
    }
    let nothing: [&str; 0] = [];
    assert_eq!(bedplate(nothing).code(), 2);
}

#[test]
fn a_wrong_log_filter_is_told_and_does_no_harm() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    let mut check = command(["check", text(&image)]);
    check.env("BEDPLATE_LOG", "=[");
    let checked = run(check).succeeds();
    assert!(
        checked.stderr().starts_with("bedplate: warning: BEDPLATE_LOG="),
        "{}",
        checked.stderr()
    );
}
