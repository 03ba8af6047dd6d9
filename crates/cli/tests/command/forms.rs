//! The fixed forms that scripts rely on, and the exit codes.

use std::os::unix::fs::{FileExt, PermissionsExt};

use crate::harness::{Scratch, bedplate, text};

#[test]
fn format_makes_the_image_that_check_finds_clean_and_info_describes() {
    let scratch = Scratch::new();
    let image = scratch.path("v.img");
    bedplate(["format", text(&image), "--size", "64M", "--block-size", "8k"])
        .succeeds()
        .says("64 MiB")
        .says("8 KiB");
    let meta = std::fs::metadata(&image).unwrap();
    assert_eq!(meta.len(), 64 << 20);
    assert_eq!(
        meta.permissions().mode() & 0o777,
        0o600,
        "an image that others may read shows them every file"
    );
    bedplate(["check", text(&image)]).succeeds().says("clean");
    let info = bedplate(["info", text(&image), "--json"]).succeeds().json();
    assert_eq!(
        (info["block_size"].as_u64(), info["mounted_at"].is_null()),
        (Some(8192), true),
        "{info}"
    );
    bedplate(["info", text(&image)]).succeeds().says("nowhere").says("engine");
}

#[test]
fn format_without_force_destroys_nothing() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    let source = scratch.file("kept", b"kept");
    bedplate(["put", text(&image), text(&source), "/kept"]).succeeds();
    bedplate(["format", text(&image)]).fails(1, "--force");
    bedplate(["format", text(&image), "--fill"]).fails(1, "--force");
    bedplate(["format", text(&image), "--size", "96M"]).fails(1, "--force");
    assert_eq!(bedplate(["cat", text(&image), "/kept"]).succeeds().stdout(), "kept");
    bedplate(["format", text(&image), "--force"]).succeeds();
    assert_eq!(bedplate(["ls", text(&image)]).succeeds().stdout(), "");
    bedplate(["format", text(&image), "--force", "--size", "96M"]).succeeds();
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 96 << 20);
}

#[test]
fn format_does_not_take_another_programs_file() {
    let scratch = Scratch::new();
    let mut content = b"SQLite format 3\0".to_vec();
    content.resize(64 << 20, 0);
    let database = scratch.file("app.db", &content);
    bedplate(["format", text(&database)]).fails(1, "holds an SQLite database");
    assert_eq!(std::fs::read(&database).unwrap(), content);
    bedplate(["format", text(&database), "--force"]).succeeds();
}

#[test]
fn a_filled_image_has_all_its_space_from_the_host() {
    let scratch = Scratch::new();
    let image = scratch.path("v.img");
    bedplate(["format", text(&image), "--size", "40M", "--fill"]).succeeds();
    assert!(
        std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&image).unwrap()) * 512
            >= 40 << 20
    );
    bedplate(["check", text(&image)]).succeeds();
}

#[test]
fn a_log_on_its_own_device_is_needed_ever_after() {
    let scratch = Scratch::new();
    let (image, log) = (scratch.path("v.img"), scratch.path("log.img"));
    bedplate(["format", text(&image), "--size", "64M", "--log", text(&log)]).fails(1, "--log-size");
    assert!(!image.exists(), "what was made for a failed format is gone");
    bedplate(["format", text(&image), "--size", "64M", "--log", text(&log), "--log-size", "8M"])
        .succeeds()
        .says("log.img");
    bedplate(["info", text(&image)]).fails(1, "log");
    bedplate(["info", text(&image), "--log", text(&log)]).succeeds().says("on its own device");
    let source = scratch.file("source", b"content");
    bedplate(["put", text(&image), "--log", text(&log), text(&source), "/file"]).succeeds();
    bedplate(["check", text(&image), "--log", text(&log)]).succeeds();
    let other = scratch.image("other.img");
    bedplate(["info", text(&image), "--log", text(&other)]).fails(1, "other.img");
}

#[test]
fn a_lost_superblock_is_a_fault_that_repair_mends() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    let source = scratch.file("kept", b"kept");
    bedplate(["put", text(&image), text(&source), "/kept"]).succeeds();
    std::fs::OpenOptions::new()
        .write(true)
        .open(&image)
        .unwrap()
        .write_all_at(&[0xff; 4096], 0)
        .unwrap();
    assert_eq!(
        bedplate(["cat", text(&image), "/kept"]).succeeds().stdout(),
        "kept",
        "the second copy is used"
    );
}

#[test]
fn check_tells_the_verdict_by_its_exit_code() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    assert_eq!(bedplate(["check", text(&image), "--json"]).succeeds().json()["verdict"], "clean");
    std::fs::OpenOptions::new()
        .write(true)
        .open(&image)
        .unwrap()
        .write_all_at(&[0xff; 4096], 0)
        .unwrap();
    let broken = bedplate(["check", text(&image), "--json"]);
    assert_eq!(
        (broken.code(), broken.json()["verdict"].as_str()),
        (4, Some("broken")),
        "{}",
        broken.stdout()
    );
    bedplate(["check", text(&image)]).says("--repair");
    let mended = bedplate(["check", text(&image), "--repair", "--json"]);
    assert_eq!(
        (mended.code(), mended.json()["verdict"].as_str()),
        (1, Some("mended")),
        "{}",
        mended.stdout()
    );
    bedplate(["check", text(&image)]).succeeds();
}

#[test]
fn version_help_completions_and_man_pages_are_there() {
    let scratch = Scratch::new();
    let version = format!("bedplate {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(bedplate(["--version"]).succeeds().stdout(), version);
    assert_eq!(bedplate(["mount", "--version"]).succeeds().stdout(), version);
    assert_eq!(
        bedplate(["check", "--version", "--json"]).succeeds().json()["version"],
        env!("CARGO_PKG_VERSION")
    );
    bedplate(["--help"]).succeeds().says("Exit codes").says("preallocate");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        bedplate(["completions", shell]).succeeds().says("preallocate");
    }
    let dir = scratch.path("man");
    bedplate(["manpages", text(&dir)]).succeeds();
    for page in ["bedplate.1", "bedplate-mount.1", "bedplate-check.1"] {
        assert!(std::fs::read_to_string(dir.join(page)).unwrap().contains(".TH"), "{page}");
    }
    assert!(
        !std::fs::read_to_string(dir.join("bedplate-mount.1")).unwrap().contains("daemon-child")
    );
}
