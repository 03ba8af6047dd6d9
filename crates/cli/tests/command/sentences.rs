//! What a person is told when something stands in the way, or has an odd name.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{Scratch, bedplate, can_mount, pattern, text};

/// A rollback that was refused named all processes with any file of the mount open, and a file that
/// had moved by its inode number.
#[test]
fn a_rollback_says_who_and_what_stands_in_its_way_and_how_to_undo_it() {
    if !can_mount("rollbacks that are refused") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent");
    let at = |name: &str| dir.join(name);
    std::fs::create_dir(at("pg")).unwrap();
    for name in ["pg/a", "pg/b", "x"] {
        std::fs::write(at(name), pattern(5000)).unwrap();
    }
    let rollback =
        |path: &str| bedplate(["checkpoint", "rollback", text(&dir), "then", text(&at(path))]);
    bedplate(["checkpoint", "create", text(&dir), "then"]).succeeds().says(" UTC, of everything");

    let other = std::process::Command::new("sleep")
        .arg("60")
        .stdin(std::fs::File::open(at("x")).unwrap())
        .spawn();
    let mut other = other.unwrap();
    let open = std::fs::File::open(at("pg/a")).unwrap();
    let refused = rollback("pg").fails(1, &format!("({})", std::process::id()));
    assert!(
        !refused.stderr().contains("sleep"),
        "it has no file of the directory open: {}",
        refused.stderr()
    );
    drop(open);
    rollback("x").fails(1, &format!("open in sleep ({})", other.id()));
    other.kill().unwrap();
    other.wait().unwrap();

    std::fs::rename(at("pg/a"), at("moved")).unwrap();
    rollback("pg").fails(1, "has got the name /moved since");
    std::fs::rename(at("moved"), at("pg/a")).unwrap();
    std::fs::hard_link(at("pg/a"), at("linked")).unwrap();
    rollback("pg/a").fails(1, "has got the name /linked since");
    std::fs::remove_file(at("linked")).unwrap();
    rollback("later").fails(1, "/later was not there when checkpoint 'then' was made");

    std::fs::remove_dir_all(at("pg")).unwrap();
    rollback("pg/b").fails(1, "the directory of /pg/b is not there now");
    let whole = rollback("pg").succeeds().stdout();
    assert!(
        whole.trim_end().ends_with(|c: char| c.is_ascii_digit()),
        "what was not there before is undone with everything: {whole}"
    );
    std::fs::write(at("pg/b"), b"new").unwrap();
    let undo = rollback("pg/b").succeeds().stdout();
    let command = undo.split("to undo it: ").nth(1).unwrap().trim();
    assert!(command.ends_with("/pg/b"), "{command}");
    bedplate(command.split(' ').skip(1)).succeeds();
    assert_eq!(std::fs::read(at("pg/b")).unwrap(), b"new");
}

#[test]
fn nothing_is_deleted_where_one_name_is_wrong() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    for name in ["a", "b"] {
        bedplate(["checkpoint", "create", text(&image), name]).succeeds();
    }
    bedplate(["checkpoint", "delete", text(&image), "a", "never", "b"])
        .fails(1, "no checkpoint 'never'");
    assert_eq!(
        bedplate(["--json", "checkpoint", "list", text(&image)]).succeeds().json()["checkpoints"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    bedplate([
        "checkpoint",
        "schedule",
        "add",
        text(&image),
        "often",
        "--every",
        "15m",
        "--keep",
        "2",
        "--path",
        "/never",
    ])
    .fails(1, "'never' does not exist");
    bedplate(["checkpoint", "schedule", "add", text(&image), "hourly 3, hourly 4"])
        .fails(2, "'hourly' is given twice");
    bedplate(["checkpoint", "schedule", "list", text(&image)]).succeeds().says("no schedules");
    bedplate([
        "checkpoint",
        "create",
        text(&image),
        "c",
        "--database",
        &format!("sqlite:{}", text(&scratch.path("none.db"))),
    ])
    .fails(1, "cannot find the database");
    bedplate(["checkpoint", "create", text(&image), "a", "--database", "command:/bin/false"])
        .fails(1, "a checkpoint 'a' exists");
    bedplate(["mount", text(&image), text(&scratch.directory("mnt")), "-o", "metrics-files=3"])
        .fails(2, "'metrics='");
}

/// Two names that differ only in bytes that are no UTF-8 were one file to iostat, and broke the
/// metrics of all.
#[test]
fn odd_names_take_one_line_and_stay_different() {
    if !can_mount("odd names") {
        return;
    }
    let scratch = Scratch::new();
    let socket = scratch.path("metrics");
    let (_, dir) =
        scratch.mounted(&format!("mode=concurrent,metrics=unix:{},metrics-files=9", text(&socket)));
    for name in [&b"a\xff"[..], b"a\xfe", b"new\nline", b"esc\x1b[31m"] {
        std::fs::write(dir.join(OsStr::from_bytes(name)), pattern(4096)).unwrap();
    }
    let shown = bedplate(["iostat", text(&dir)])
        .succeeds()
        .says("/a\\xff\n")
        .says("/a\\xfe\n")
        .says("/new\\nline\n")
        .says("/esc\\u{1b}[31m\n");
    assert_eq!(
        shown.stdout().lines().count(),
        7,
        "two lines of heading, one of the threads that serve: {}",
        shown.stdout()
    );
    let told: Value = bedplate(["--json", "iostat", text(&dir)]).succeeds().json();
    assert!(
        told["files"]
            .as_array()
            .unwrap()
            .iter()
            .any(|file| file["path"].as_str().unwrap().ends_with("/new\nline")),
        "{told}"
    );
    let (_, metrics) = crate::metrics::ask(
        std::os::unix::net::UnixStream::connect(&socket).unwrap(),
        "GET /metrics",
    );
    let series: Vec<&str> =
        metrics.lines().filter(|line| line.starts_with("bedplate_file_writes_total{")).collect();
    let labels: std::collections::BTreeSet<&str> =
        series.iter().map(|line| line.rsplit_once(' ').unwrap().0).collect();
    assert!(series.len() == 4 && labels.len() == 4, "{series:?}");

    bedplate([
        OsStr::new("checkpoint"),
        "create".as_ref(),
        dir.as_os_str(),
        OsStr::from_bytes(b"c\n\xff"),
    ])
    .succeeds()
    .says("c\\n\\xff: ");
    let odd = dir.join(OsStr::from_bytes(b"a\xff"));
    bedplate([
        OsStr::new("checkpoint"),
        "create".as_ref(),
        dir.as_os_str(),
        "of one".as_ref(),
        odd.as_os_str(),
    ])
    .succeeds()
    .says("of /a\\xff");
    std::fs::write(&odd, b"changed").unwrap();
    bedplate(["checkpoint", "diff", text(&dir), "of one"]).succeeds().says("changed  /a\\xff (");
    bedplate([
        OsStr::new("checkpoint"),
        "rollback".as_ref(),
        dir.as_os_str(),
        "of one".as_ref(),
        odd.as_os_str(),
    ])
    .succeeds();
    assert!(std::fs::read(&odd).unwrap() == pattern(4096));
    bedplate([
        OsStr::new("--json"),
        "checkpoint".as_ref(),
        "delete".as_ref(),
        dir.as_os_str(),
        OsStr::from_bytes(b"c\n\xff"),
    ])
    .succeeds()
    .json();
    bedplate(["--json", "defrag", text(&dir), "--dry-run"]).succeeds().json();
}

/// A checkpoint beside its volume was told of in zeros, and "the daemon lost the request".
#[test]
fn commands_know_a_checkpoint_beside_its_volume_and_a_dead_mount() {
    if !can_mount("a checkpoint beside its volume") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent");
    std::fs::write(dir.join("f"), pattern(4096)).unwrap();
    bedplate(["checkpoint", "create", text(&dir), "then"]).succeeds();
    let aside = scratch.directory("aside");
    bedplate(["checkpoint", "mount", text(&dir), "then", text(&aside)]).succeeds();
    let file = aside.join("f");
    let commands: [&[&str]; 7] = [
        &["info", text(&aside)],
        &["stat", text(&file)],
        &["explain", text(&file)],
        &["iostat", text(&aside)],
        &["tune", text(&aside)],
        &["checkpoint", "list", text(&aside)],
        &["mode", text(&file), "direct"],
    ];
    for command in commands {
        bedplate(command).fails(1, &format!("ask about {}/.checkpoints/then", text(&dir)));
    }
    bedplate(["stat", text(&dir.join(".checkpoints/then/f"))]).succeeds();
    bedplate(["untorn", text(&dir.join("f")), "8k"]).succeeds();
    bedplate(["mode", text(&dir.join("f")), "cached"]).succeeds();
    bedplate(["untorn", text(&dir.join("f"))]).succeeds().says("but it is served as cached");
    bedplate(["unmount", text(&aside)]).succeeds();

    let mut value = [0; 16];
    let len = rustix::fs::getxattr(&dir, "user.bedplate.pid", &mut value[..]).unwrap();
    let daemon =
        Pid::from_raw(std::str::from_utf8(&value[..len]).unwrap().parse().unwrap()).unwrap();
    kill_process(daemon, Signal::KILL).unwrap();
    while std::fs::read_dir(&dir).is_ok() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    for command in [
        ["stat", text(&dir.join("f"))],
        ["defrag", text(&dir)],
        ["explain", text(&dir)],
        ["tune", text(&dir)],
    ] {
        bedplate(command).fails(1, &format!("run 'bedplate unmount {}'", text(&dir)));
    }
    // Of all mounts of the machine, whatever they are, the dead one is left out with a warning.
    let told = bedplate(["iostat"]).stderr();
    assert!(told.contains(&format!("bedplate: warning: {} is left over", text(&dir))), "{told}");
}
