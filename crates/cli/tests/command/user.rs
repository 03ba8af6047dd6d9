//! Everything an ordinary user may do: format, mount, use, unmount, without root.

use std::process::Command;

use crate::harness::{Scratch, can_mount, command, run, text};

const USER: &str = "65534";

/// Runs the binary as an ordinary user: as this one, or from root as one without rights.
pub fn as_user<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let own = command(arguments);
    if !rustix::process::geteuid().is_root() {
        return own;
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", USER, "--regid", USER, "--clear-groups", "--"])
        .arg(own.get_program())
        .args(own.get_args());
    command.env_remove("BEDPLATE_LOG").current_dir("/");
    command
}

/// Makes a scratch directory that the ordinary user owns; `None` where the user cannot reach the
/// binary.
pub fn scratch(test: &str) -> Option<Scratch> {
    let reachable = as_user(["--version"]).output().is_ok_and(|output| output.status.success());
    if !reachable {
        eprintln!("skipped: {test}: an ordinary user cannot run the binary here");
        return None;
    }
    let scratch = Scratch::new();
    if rustix::process::geteuid().is_root() {
        let id = USER.parse().unwrap();
        std::os::unix::fs::chown(scratch.path(""), Some(id), Some(id)).unwrap();
    }
    Some(scratch)
}

#[test]
fn an_ordinary_user_formats_uses_and_checks_an_image() {
    let Some(scratch) = scratch("an ordinary user") else { return };
    let image = scratch.path("v.img");
    let source = scratch.file("source", b"content");
    run(as_user(["format", text(&image), "--size", "64M"])).succeeds();
    run(as_user(["put", text(&image), text(&source), "/file"])).succeeds();
    run(as_user(["cat", text(&image), "/file"])).succeeds().says("content");
    run(as_user(["check", text(&image)])).succeeds();
}

#[test]
fn an_ordinary_user_mounts_and_unmounts() {
    if !can_mount("an ordinary user's mount") {
        return;
    }
    let Some(scratch) = scratch("an ordinary user's mount") else { return };
    let everybody = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata("/dev/fuse").unwrap())
        & 0o006
        == 0o006;
    if rustix::process::geteuid().is_root() && !everybody {
        eprintln!("skipped: an ordinary user's mount: /dev/fuse is for root only here");
        return;
    }
    let (image, dir) = (scratch.path("v.img"), scratch.path("mnt"));
    run(as_user(["format", text(&image), "--size", "64M"])).succeeds();
    std::fs::create_dir(&dir).unwrap();
    if rustix::process::geteuid().is_root() {
        let id = USER.parse().unwrap();
        std::os::unix::fs::chown(&dir, Some(id), Some(id)).unwrap();
    }
    run(as_user(["mount", text(&image), text(&dir)])).succeeds();
    run(as_user(["preallocate", text(&dir.join("file")), "1M"])).succeeds();
    run(as_user(["stat", text(&dir.join("file"))])).succeeds().says("1 MiB allocated");
    run(as_user(["unmount", text(&dir)])).succeeds();
    run(as_user(["ls", text(&image)])).succeeds().says("file");
}

#[test]
fn what_a_user_may_not_touch_is_refused_and_untouched() {
    let Some(scratch) = scratch("a foreign image") else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a foreign image: only root can make one");
        return;
    }
    let image = scratch.image("root.img");
    std::fs::set_permissions(&image, std::os::unix::fs::PermissionsExt::from_mode(0o444)).unwrap();
    let before = std::fs::read(&image).unwrap();
    run(as_user(["format", text(&image), "--force"])).fails(1, "root.img");
    run(as_user(["mkdir", text(&image), "/d"])).fails(1, "root.img");
    run(as_user(["ls", text(&image)])).succeeds();
    assert!(std::fs::read(&image).unwrap() == before, "nothing was written");
}
