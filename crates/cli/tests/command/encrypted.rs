//! Encrypted backups, as a person and a schedule make them.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::{Run, Scratch, bedplate, can_mount, command, pattern, run, text};

const VARIABLE: &str = "BEDPLATE_BACKUP_PASSPHRASE";

/// Runs the binary with a passphrase in its environment.
fn with(passphrase: &str, arguments: &[&str]) -> Run {
    let mut command = command(arguments);
    command.env(VARIABLE, passphrase);
    run(command)
}

/// The binary in a session of its own, which has no terminal.
fn without_terminal(arguments: &[&str]) -> Command {
    let binary = command(arguments);
    let mut command = Command::new("setsid");
    command.arg("--wait").arg(binary.get_program()).args(binary.get_args());
    command
}

fn holds(dir: &Path, wanted: &[u8]) -> bool {
    let mut todo = vec![dir.to_owned()];
    while let Some(at) = todo.pop() {
        if at.file_name().unwrap_or_else(|| OsStr::new("")).as_encoded_bytes() == wanted {
            return true;
        }
        if at.is_dir() {
            todo.extend(fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().path()));
        } else if fs::read(&at).unwrap().windows(wanted.len()).any(|found| found == wanted) {
            return true;
        }
    }
    false
}

/// S-325, S-326: made, filled, listed, verified, restored, and given another passphrase, from files
/// and from the environment; without the passphrase one sentence says what is missing.
#[test]
fn s_325_a_checkpoint_is_backed_up_encrypted() {
    if !can_mount("encrypted backups") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent");
    let mut content = pattern(2_000_000);
    content[..22].copy_from_slice(b"a row that is hidden..");
    fs::write(dir.join("payroll"), &content).unwrap();
    bedplate(["checkpoint", "create", text(&dir), "monday"]).succeeds();
    let (key, place) = (scratch.path("key"), scratch.path("backups"));
    let (key, place) = (text(&key), text(&place));
    fs::write(key, "correct horse\n").unwrap();
    bedplate(["backup", "init", place, "--key-file", key]).fails(2, "add --encrypt");
    with("x", &["backup", "init", place]).fails(2, "add --encrypt");
    bedplate(["backup", "init", place, "--encrypt", "--key-file", key])
        .succeeds()
        .says("ready for encrypted backups");
    bedplate(["backup", "init", place]).fails(1, "holds backups already");
    let create = ["backup", "create", text(&dir), "monday", place];
    run(without_terminal(&create)).fails(2, "there is no terminal to ask at: add --key-file");
    with("wrong", &create).fails(1, "the passphrase does not open");
    with("correct horse", &create).succeeds();
    for hidden in [&b"a row that is hidden.."[..], b"payroll", b"monday"] {
        assert!(!holds(Path::new(place), hidden), "{} is there", hidden.escape_ascii());
    }
    bedplate(["backup", "list", place, "--key-file", key]).succeeds().says("monday: ");
    bedplate(["backup", "show", place, "monday", "--key-file", key]).succeeds();
    let new = scratch.path("new key");
    fs::write(&new, "battery staple").unwrap();
    bedplate(["backup", "key", "change", place, "--key-file", key, "--new-key-file", text(&new)])
        .succeeds()
        .says("opens with the new passphrase");
    bedplate(["backup", "verify", place, "--key-file", key]).fails(1, "does not open");
    with("battery staple", &["backup", "verify", place]).succeeds().says("1 backup");
    let back = scratch.path("back");
    bedplate(["restore", place, "monday", text(&back), "--key-file", key]).fails(1, "not open");
    bedplate(["restore", place, "monday", text(&back), "--key-file", text(&new)]).succeeds();
    assert!(fs::read(back.join("payroll")).unwrap() == content);
    with("battery staple", &["backup", "delete", place, "monday"]).succeeds();
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// S-326: what was meant to be encrypted is not put where nothing is.
#[test]
fn s_326_a_passphrase_for_a_place_that_is_not_encrypted_is_refused() {
    let scratch = Scratch::new();
    let place = scratch.path("backups");
    bedplate(["backup", "init", text(&place)]).succeeds().says("ready for backups");
    with("x", &["backup", "list", text(&place)]).fails(1, "is not encrypted");
    with("x", &["backup", "key", "change", text(&place)]).fails(1, "is not encrypted");
    bedplate(["backup", "list", text(&place)]).succeeds().says("no backups");
    bedplate(["backup", "list", text(&place), "--key-file", "/none"])
        .fails(1, "cannot read the passphrase from /none");
}
