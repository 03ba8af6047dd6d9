//! `cp`, `cat`, `tee` and `compress` on files of any file system.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::{Scratch, bedplate, can_mount, command, pattern, text};
use crate::loops::Loop;

/// More than a request, and no whole block.
const LEN: usize = (9 << 20) + 777;

#[test]
fn a_file_goes_through_copy_and_pipe_and_comes_back() {
    let scratch = Scratch::new();
    let source = scratch.file("source", &pattern(LEN));
    let target = scratch.path("target");
    let copied =
        bedplate(["--json", "cp", "--verify", "--reflink", "never", text(&source), text(&target)])
            .succeeds()
            .json();
    let copy = &copied["copies"][0];
    assert_eq!((&copy["size_bytes"], &copy["verified"]), (&LEN.into(), &true.into()), "{copied}");
    assert!(std::fs::read(&target).unwrap() == pattern(LEN));
    assert!(bedplate(["cat", text(&target)]).succeeds().stdout_bytes() == pattern(LEN));

    let piped = scratch.path("piped");
    let mut tee = command(["tee", text(&piped)]);
    let mut tee = tee.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = tee.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(&pattern(LEN)));
    let passed = tee.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(passed.status.success() && passed.stdout == pattern(LEN));
    assert!(std::fs::read(&piped).unwrap() == pattern(LEN));

    bedplate(["compress", text(&source), "--format", "gzip"]).succeeds().says(".gz");
    let back =
        Command::new("gzip").args(["-dc", text(&scratch.path("source.gz"))]).output().unwrap();
    assert!(back.status.success() && back.stdout == pattern(LEN));
    bedplate(["compress", text(&source), "--format", "gzip"]).fails(1, "is there already");
}

#[test]
fn a_tree_needs_to_be_asked_for_and_goes_into_a_directory() {
    let scratch = Scratch::new();
    let (source, target) = (scratch.directory("source/deep"), scratch.directory("target"));
    std::fs::write(source.join("file"), "content").unwrap();
    let source = scratch.path("source");
    bedplate(["cp", text(&source), text(&target)]).fails(2, "--recursive");
    bedplate(["cp", "-r", text(&source), text(&target)]).succeeds().says("1 file in 2 directories");
    assert_eq!(std::fs::read_to_string(target.join("source/deep/file")).unwrap(), "content");
    bedplate(["cp", "-r", text(&source), text(&source.join("in"))]).fails(2, "which is copied");
    let missing = scratch.path("missing");
    bedplate(["cp", text(&missing), text(&target)]).fails(1, "missing");
    let file = target.join("source/deep/file");
    bedplate(["cp", text(&file), text(&file), text(&missing)]).fails(2, "not a directory");
    bedplate(["cp", "--range", "5", text(&file), text(&missing)]).fails(2, "OFFSET:BYTES");
    bedplate(["cp", "--range", "5:9", text(&file), text(&missing)]).fails(2, "ends at byte 7");
    bedplate(["cat", text(&target)]).fails(1, "neither a file nor a block device");
    assert!(!missing.exists());
}

#[test]
fn a_full_file_system_is_told_before_the_copy_and_nothing_is_left() {
    if !can_mount("a copy to a full volume") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("");
    let source = scratch.path("source");
    File::create(&source).unwrap().set_len(200 << 20).unwrap();
    let file = File::options().write(true).open(&source).unwrap();
    for at in 0..50 {
        file.write_all_at(&pattern(4 << 20), at << 22).unwrap();
    }
    bedplate(["cp", text(&source), text(&dir.join("copy"))]).fails(1, "No space left");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    // And what fits is copied to a volume and back.
    let small = scratch.file("small", &pattern(LEN));
    bedplate(["cp", "--verify", text(&small), text(&dir)]).succeeds();
    bedplate(["cp", text(&dir.join("small")), text(&scratch.path("back"))]).succeeds();
    assert!(std::fs::read(scratch.path("back")).unwrap() == pattern(LEN));
}

/// S-531: more copies than the volume has room for, each with its blocks shared.
#[test]
fn a_copy_within_a_mount_shares_its_blocks() {
    const COPIES: usize = 12;
    if !can_mount("copies within a mount") {
        return;
    }
    for options in ["", "mode=concurrent"] {
        let scratch = Scratch::new();
        let (_, dir) = scratch.mounted(options);
        let source = dir.join("source");
        std::fs::write(&source, pattern(LEN)).unwrap();
        let content = std::fs::File::options().write(true).open(&source).unwrap();
        // Ends in a hole.
        content.set_len(LEN as u64 + 100_000).unwrap();
        let mut expected = pattern(LEN);
        expected.resize(LEN + 100_000, 0);
        for number in 0..COPIES {
            let copy = dir.join(format!("copy-{number}"));
            let told = bedplate(["--json", "cp", text(&source), text(&copy)]).succeeds().json();
            assert_eq!(told["copies"][0]["shared"], true, "S-531: {options}: {told}");
            assert!(std::fs::read(&copy).unwrap() == expected, "S-531: {options}: {number}");
        }
        let copy = dir.join("copy-0");
        bedplate(["cp", "--reflink", "always", text(&source), text(&copy)])
            .fails(1, "cannot share");
        assert!(std::fs::read(&copy).unwrap() == expected, "it is as it was");
        let told =
            bedplate(["--json", "cp", "--verify", text(&source), text(&copy)]).succeeds().json();
        let done = &told["copies"][0];
        assert_eq!((&done["shared"], &done["verified"]), (&false.into(), &true.into()), "{told}");
        assert!(std::fs::read(&copy).unwrap() == expected, "{options}: compared");
    }
}

#[test]
fn a_device_takes_a_file_and_gives_it_back() {
    let Some(device) = Loop::new(&[]) else { return };
    let scratch = Scratch::new();
    let source = scratch.file("source", &pattern(LEN));
    bedplate(["cp", "--verify", text(&source), &device.name]).succeeds();
    let back = scratch.file("back", b"");
    let range = format!("0:{LEN}");
    bedplate(["cp", "--range", &range, &device.name, text(&back)]).succeeds();
    assert!(std::fs::read(&back).unwrap() == pattern(LEN));
    assert_eq!(bedplate(["cat", &device.name]).succeeds().stdout_bytes().len(), 64 << 20);
    let large = scratch.path("large");
    File::create(&large).unwrap().set_len(65 << 20).unwrap();
    bedplate(["cp", text(&large), &device.name]).fails(1, "are needed");
}

#[test]
fn a_killed_copy_leaves_its_target_and_the_next_one_is_whole() {
    let scratch = Scratch::new();
    let source = scratch.file("source", &pattern(3 * LEN));
    let target = scratch.file("target", b"before");
    let partial = scratch.path(".target.partial");
    let arguments = ["cp", "--resume", "--reflink", "never", text(&source), text(&target)];
    let mut copy = command(arguments).args(["--rate", "4M"]).stdout(Stdio::null()).spawn().unwrap();
    while !partial.exists() {
        assert!(copy.try_wait().unwrap().is_none(), "the copy takes seconds");
        std::thread::sleep(Duration::from_millis(10));
    }
    copy.kill().unwrap();
    copy.wait().unwrap();
    assert_eq!(std::fs::read(&target).unwrap(), b"before");
    bedplate(arguments).succeeds();
    assert!(std::fs::read(&target).unwrap() == pattern(3 * LEN));
    assert!(!partial.exists());
}

/// S-349: the calls themselves are tested with the library.
#[test]
fn s_349_a_program_runs_past_the_page_cache_and_says_what_went_there() {
    let beside = Path::new(env!("CARGO_BIN_EXE_bedplate")).with_file_name("libbedplate_lease.so");
    if !beside.exists() {
        println!("skipped: {} is built with the workspace", beside.display());
        return;
    }
    let scratch = Scratch::new();
    let source = scratch.file("source.raw", &pattern(LEN));
    let target = scratch.path("target");
    let run = |direct: &str| {
        let (from, to) = (format!("if={}", text(&source)), format!("of={}", text(&target)));
        bedplate(["--json", "run", "--report", direct, "--", "dd", &from, &to, "bs=1M"])
    };
    let told = run("--direct=*.raw").succeeds().json();
    assert!(std::fs::read(&target).unwrap() == pattern(LEN));
    let direct = &told["direct"];
    if direct["refused"] == 0 {
        // Nine, the blocks of the tenth, what is behind them, and the end.
        assert_eq!((&direct["files"], &direct["reads"]), (&1.into(), &12.into()), "{told}");
    }
    let told = run("--direct=other").succeeds().json();
    assert!(told.get("direct").is_none(), "no file was meant: {told}");
    bedplate(["run", "--direct=", "--", "true"]).fails(2, "wants a pattern");
}
