//! `convert`: a directory moves to a mount and back. A server that runs meanwhile is tried by
//! `cargo xtask real convert-postgres`, each step and each kill by the tests of `crates/direct`.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

use crate::harness::{Scratch, bedplate, can_mount, command, pattern, text};

const LEN: usize = (9 << 20) + 777;

fn filled(scratch: &Scratch, name: &str) -> std::path::PathBuf {
    let source = scratch.directory(name);
    fs::write(source.join("data"), pattern(LEN)).unwrap();
    fs::create_dir(source.join("log")).unwrap();
    fs::write(source.join("log/1"), "first").unwrap();
    source
}

/// A script that writes to the file of a database, as one does until it is stopped.
fn writing(file: &Path, words: &str) -> String {
    format!("printf '{words}' | dd of={} bs=1 seek=5000 conv=notrunc 2>/dev/null", text(file))
}

/// S-458, S-462: what was written until the stop is in the copy, files get the modes that were asked
/// for, passes over a mount read what changed between checkpoints, and none of those is left.
#[test]
fn s_462_a_directory_moves_to_a_mount_and_back() {
    if !can_mount("converting a directory") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("mode=cached");
    let (source, copy) = (filled(&scratch, "main"), dir.join("main"));
    let plan = ["convert", text(&source), "--to", text(&copy), "--dry-run"];
    bedplate(plan).succeeds().says("2 files in 2 directories");
    assert!(!copy.exists() && fs::read_dir(source.parent().unwrap()).unwrap().count() == 3);

    let started = scratch.path("started");
    let (stop, start) =
        (writing(&source.join("data"), "to the mount"), format!("touch {}", text(&started)));
    let told = bedplate([
        "--json",
        "convert",
        text(&source),
        "--to",
        text(&copy),
        "--stop",
        &stop,
        "--start",
        &start,
        "--mode",
        "direct",
        "--log-dir",
        "log=concurrent",
    ])
    .succeeds()
    .json();
    assert_eq!((&told["switch"], &told["back"]), (&"link".into(), &false.into()), "{told}");
    assert!(started.exists() && told["compared_bytes"].as_u64() > Some(LEN as u64), "{told}");
    assert_eq!(fs::read_link(&source).unwrap(), copy);
    assert_eq!(&fs::read(source.join("data")).unwrap()[5000..5012], b"to the mount");
    bedplate(["mode", text(&copy.join("data"))]).succeeds().says("direct");
    bedplate(["mode", text(&copy.join("log/1"))]).succeeds().says("concurrent");

    fs::write(source.join("log/2"), "second").unwrap();
    let stop = writing(&copy.join("data"), "back again!!");
    let told = bedplate([
        "--json",
        "convert",
        text(&source),
        "--back",
        "--stop",
        &stop,
        "--start",
        "true",
    ])
    .succeeds()
    .json();
    assert_eq!(&told["back"], &true, "{told}");
    // The last pass reads the block that the stop changed, and nothing else.
    assert_eq!(&told["last_pass"]["read_bytes"], &4096, "{told}");
    assert!(!source.is_symlink() && source.join("log/2").exists());
    assert_eq!(&fs::read(source.join("data")).unwrap()[5000..5012], b"back again!!");
    let left = bedplate(["--json", "checkpoint", "list", text(&dir)]).succeeds().stdout();
    assert!(!left.contains("convert-"), "{left}");

    let target = scratch.path("elsewhere");
    bedplate(["convert", text(&copy), "--back-to", text(&target), "--no-switch"])
        .succeeds()
        .says("is a copy of");
    assert!(fs::read(target.join("data")).unwrap() == fs::read(copy.join("data")).unwrap());
    assert!(!copy.is_symlink());
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["check", text(&image)]).succeeds();
}

/// S-461: each in one sentence, and nothing is changed.
#[test]
fn s_461_what_cannot_be_converted_is_refused_in_a_sentence() {
    if !can_mount("converting a directory") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=cached");
    let (source, copy) = (filled(&scratch, "main"), dir.join("main"));
    let (s, c) = (text(&source), text(&copy));
    bedplate(["convert", s]).fails(2, "required");
    bedplate(["convert", s, "--to", text(&scratch.path("copy"))]).fails(1, "Bedplate mount");
    bedplate(["convert", s, "--back-to", text(&scratch.path("copy"))]).fails(1, "Bedplate mount");
    bedplate(["convert", s, "--to", text(&dir.join("no/such"))]).fails(1, "no");
    bedplate(["convert", s, "--continue"]).fails(1, "is not being converted");
    bedplate(["convert", s, "--back"]).fails(1, "is not being converted");
    bedplate(["convert", s, "--to", c, "--log-dir", "pg_wal=concurrent"]).fails(2, "pg_wal");
    bedplate(["convert", s, "--to", c, "--rate", "0"]).fails(2, "would never end");
    bedplate(["convert", s, "--to", c, "--stop", "exit 3", "--start", "true"])
        .fails(1, "exit status: 3");
    bedplate(["convert", s, "--to", c]).fails(1, "was not ended");
    bedplate(["convert", s, "--abandon"]).succeeds().says("is what it was");
    assert!(!copy.exists() && source.join("data").exists());
    // Nothing can be asked of this standard input.
    let asked = bedplate(["convert", s, "--to", c, "--wait"]).ends(1).stderr();
    assert!(asked.contains("standard input ended") && asked.lines().count() == 2, "{asked}");
    bedplate(["convert", s, "--abandon"]).succeeds();

    fs::create_dir(&copy).unwrap();
    fs::write(copy.join("mine"), "").unwrap();
    bedplate(["convert", s, "--to", c]).fails(1, "is not empty");
    let large = fs::File::create(source.join("large")).unwrap();
    for at in 0..80 {
        large.write_all_at(&pattern(1 << 20), at << 20).unwrap();
    }
    drop(large);
    bedplate(["convert", s, "--to", text(&dir.join("full"))]).fails(1, "are free");
    assert!(!dir.join("full").exists() && copy.join("mine").exists());
}

/// S-460: one that waits for the stop locks the directory for others, and is given up once it is
/// killed.
#[test]
fn s_460_a_conversion_that_is_killed_while_it_waits_is_given_up() {
    if !can_mount("converting a directory") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=cached");
    let (source, copy) = (filled(&scratch, "main"), dir.join("main"));
    let mut waiting = command(["convert", text(&source), "--to", text(&copy), "--wait"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut asked = String::new();
    let mut told = std::io::BufReader::new(waiting.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut told, &mut asked).unwrap();
    assert!(asked.starts_with("Stop what writes to"), "{asked}");
    bedplate(["convert", text(&source), "--to", text(&dir.join("other"))])
        .fails(1, "by another process");
    bedplate(["convert", text(&source), "--abandon"]).fails(1, "by another process");
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    assert!(source.join("data").exists() && !source.is_symlink());
    bedplate(["convert", text(&source), "--abandon"]).succeeds().says("is what it was");
    assert!(!copy.exists() && fs::read(source.join("data")).unwrap() == pattern(LEN));
}
