//! Commands and the socket of a mount: where it is reached, and what works where it is not.

use std::process::Command;

use crate::harness::{Scratch, bedplate, can_mount, command, run, text};

/// S-181: in a container that has the mount and not the directory of its socket, `info` and what
/// concerns single files work; the rest says where it has to run.
#[test]
fn s_181_where_the_socket_is_not_reached_info_and_single_files_are() {
    if !can_mount("a mount without its socket") {
        return;
    }
    let scratch = Scratch::new();
    let (_image, dir) = scratch.mounted("");
    let file = dir.join("file");
    std::fs::write(&file, b"content").unwrap();
    let inside = |words: &[&str]| {
        let bedplate = command(words);
        let mut container = Command::new("unshare");
        let hide = "for dir in /run/bedplate /run/user/*/bedplate $TMP/bedplate-[0-9]*; do test -d \
                    $dir && mount -t tmpfs -o mode=700 none $dir; done; exec \"$@\"";
        container
            .args(["-m", "--propagation", "private", "sh", "-c", hide, "sh"])
            .arg(bedplate.get_program())
            .args(bedplate.get_args());
        container.env_remove("BEDPLATE_LOG").env("TMP", "/tmp");
        container
    };
    if !inside(&["--version"]).output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: a mount without its socket: unshare(1) is not allowed here");
        return;
    }
    run(inside(&["info", text(&dir)])).succeeds().says("mounted at");
    run(inside(&["mode", text(&file), "concurrent"])).succeeds();
    run(inside(&["stat", text(&file)])).succeeds().says("concurrent");
    for refused in [
        &["checkpoint", "create", text(&dir), "c"][..],
        &["tune", text(&dir)],
        &["checkpoint", "list", text(&dir)],
    ] {
        run(inside(refused)).fails(1, "where this command has to run");
    }
    bedplate(["checkpoint", "list", text(&dir)]).succeeds().says("no checkpoints");
    bedplate(["tune", text(&dir)]).succeeds();
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// An answer of more than 64 KiB once came in pieces, and a list in pages: both come in one line,
/// and so does what fits no attribute.
#[test]
fn s_181_long_lists_come_whole() {
    if !can_mount("long lists") {
        return;
    }
    let scratch = Scratch::new();
    let (_image, dir) = scratch.mounted("");
    bedplate(["checkpoint", "create", text(&dir), "before"]).succeeds();
    let name = |number: usize| format!("{number:04}-{}", "n".repeat(200));
    (0..600).for_each(|number| std::fs::write(dir.join(name(number)), b"x").unwrap());
    let differences = bedplate(["--json", "checkpoint", "diff", text(&dir), "before"]).succeeds();
    assert!(differences.stdout().len() > 128 << 10, "{}", differences.stdout().len());
    assert!(
        (0..600).all(|number| differences.stdout().contains(&name(number))),
        "S-181: a name is missing"
    );
    let active = bedplate(["--json", "iostat", text(&dir)]).succeeds().stdout();
    assert!((0..600).all(|number| active.contains(&name(number))), "S-181: a file is missing");
    bedplate(["unmount", text(&dir)]).succeeds();
}
