//! Checkpoints from the command line: on a live mount and on a volume that is not mounted.

use crate::harness::{Scratch, bedplate, can_mount, pattern, text};

#[test]
fn checkpoints_of_a_live_mount_are_made_read_rolled_back_to_and_deleted() {
    if !can_mount("checkpoints of a live mount") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("mode=cached");
    let (file, content) = (dir.join("table"), pattern(300_000));
    std::fs::write(&file, &content).unwrap();
    std::fs::create_dir(dir.join("other")).unwrap();
    // What the kernel still holds is in it too: the command asks for it first.
    bedplate(["checkpoint", "create", text(&dir), "two words"]).succeeds().says("two words");
    bedplate(["checkpoint", "create", text(&dir), "set", text(&file), "--keep"])
        .succeeds()
        .says("of /table (kept)");
    bedplate(["checkpoint", "create", text(&dir), "set"]).fails(1, "exists");
    bedplate(["checkpoint", "create", text(&dir), "a/b"]).fails(1, "cannot be a name");
    std::fs::write(&file, b"overwritten").unwrap();
    std::fs::write(dir.join("later"), b"later").unwrap();
    assert!(std::fs::read(dir.join(".checkpoints/two words/table")).unwrap() == content);
    assert!(std::fs::read(dir.join(".checkpoints/set/table")).unwrap() == content);
    let listed: Vec<_> =
        std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!listed.iter().any(|name| name == ".checkpoints"), "{listed:?}");
    assert!(std::fs::write(dir.join(".checkpoints/set/table"), b"x").is_err());
    let shown =
        bedplate(["--json", "checkpoint", "show", text(&dir), "two words"]).succeeds().json();
    assert!(shown["rows"].as_u64().unwrap() > 0, "{shown}");
    let open = std::fs::File::open(&file).unwrap();
    bedplate(["checkpoint", "rollback", text(&dir), "two words"]).fails(1, "/table");
    drop(open);
    let done =
        bedplate(["--json", "checkpoint", "rollback", text(&dir), "two words"]).succeeds().json();
    assert!(std::fs::read(&file).unwrap() == content);
    assert!(!dir.join("later").exists());
    bedplate(["checkpoint", "rollback", text(&dir), done["undo"].as_str().unwrap(), text(&file)])
        .succeeds()
        .says("to undo it");
    assert_eq!(std::fs::read(&file).unwrap(), b"overwritten");
    bedplate(["checkpoint", "delete", text(&image), "two words", "set"]).succeeds();
    bedplate(["checkpoint", "delete", text(&dir), "set"]).fails(1, "no checkpoint 'set'");
    assert!(!dir.join(".checkpoints/set").exists());
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["check", text(&image)]).succeeds();
}

#[test]
fn checkpoints_of_a_volume_that_is_not_mounted() {
    let scratch = Scratch::new();
    let (image, content) = (scratch.image("v.img"), pattern(100_000));
    let (old, new) = (scratch.file("old", &content), scratch.file("new", b"new"));
    bedplate(["put", text(&image), text(&old), "/table"]).succeeds();
    bedplate(["checkpoint", "list", text(&image)]).succeeds().says("no checkpoints");
    bedplate(["checkpoint", "create", text(&image), "then"]).succeeds();
    bedplate(["put", text(&image), text(&new), "/table"]).succeeds();
    assert!(
        bedplate(["cat", text(&image), "/.checkpoints/then/table"]).succeeds().stdout_bytes()
            == content
    );
    bedplate(["checkpoint", "rollback", text(&image), "then", "/table"]).succeeds();
    assert!(bedplate(["cat", text(&image), "/table"]).succeeds().stdout_bytes() == content);
    let listed = bedplate(["--json", "checkpoint", "list", text(&image)]).succeeds().json();
    assert_eq!(listed["checkpoints"].as_array().unwrap().len(), 2, "{listed}");
    bedplate(["checkpoint", "keep", text(&image), "then"]).succeeds().says("kept");
    bedplate(["checkpoint", "show", text(&image), "never"]).fails(1, "no checkpoint 'never'");
    bedplate(["check", text(&image)]).succeeds();
}

/// S-77.
#[test]
fn what_differs_is_told_by_name_and_by_block() {
    let scratch = Scratch::new();
    let (image, content) = (scratch.image("v.img"), pattern(300_000));
    let mut other = content.clone();
    other[100_000] ^= 1;
    let (old, new) = (scratch.file("old", &content), scratch.file("new", &other));
    bedplate(["put", text(&image), text(&old), "/table"]).succeeds();
    bedplate(["checkpoint", "create", text(&image), "a"]).succeeds();
    bedplate(["checkpoint", "diff", text(&image), "a"]).succeeds().says("no differences");
    bedplate(["put", text(&image), text(&new), "/table"]).succeeds();
    bedplate(["mkdir", text(&image), "/one"]).succeeds();
    bedplate(["mkdir", text(&image), "/two"]).succeeds();
    bedplate(["checkpoint", "create", text(&image), "b"]).succeeds();
    let told = bedplate(["--json", "checkpoint", "diff", text(&image), "a", "b"]).succeeds().json();
    assert_eq!(told["differences"].as_array().unwrap().len(), 3, "{told}");
    assert_eq!(told["differences"][1]["path"], "/table", "{told}");
    let told =
        bedplate(["--json", "checkpoint", "diff", text(&image), "a", "b", "--file", "/table"])
            .succeeds()
            .json();
    assert_eq!(
        (told["size_bytes"].as_u64(), told["size_before_bytes"].as_u64()),
        (Some(300_000), Some(300_000)),
        "{told}"
    );
    bedplate(["checkpoint", "diff", text(&image), "a", "--file", "/none"]).fails(1, "/none");
    bedplate(["checkpoint", "diff", text(&image), "b", "a"]).fails(1, "older");
    if !can_mount("differences on a mount") {
        return;
    }
    let dir = scratch.directory("mnt");
    bedplate(["mount", text(&image), text(&dir), "-o", "mode=cached"]).succeeds();
    for i in 0..500 {
        std::fs::create_dir(dir.join(format!("another directory with rather a long name {i}")))
            .unwrap();
    }
    // More than one answer holds.
    let told = bedplate(["--json", "checkpoint", "diff", text(&dir), "b"]).succeeds().json();
    assert_eq!(told["differences"].as_array().unwrap().len(), 500);
    bedplate(["checkpoint", "diff", text(&dir), "a", "--file", text(&dir.join("table"))])
        .succeeds()
        .says("changed");
    // A file that changed is told of by the name that it had, also when it got another since.
    bedplate(["checkpoint", "create", text(&dir), "c"]).succeeds();
    std::fs::hard_link(dir.join("table"), dir.join("zlink")).unwrap();
    std::fs::write(dir.join("table"), b"changed").unwrap();
    std::fs::remove_dir(dir.join("one")).unwrap();
    std::fs::write(dir.join("one"), b"").unwrap();
    let told = bedplate(["--json", "checkpoint", "diff", text(&dir), "c"]).succeeds().json();
    let told: Vec<(&str, &str)> = told["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["kind"].as_str().unwrap(), one["path"].as_str().unwrap()))
        .collect();
    assert_eq!(
        told,
        [("removed", "/one"), ("added", "/one"), ("changed", "/table"), ("added", "/zlink")]
    );
    bedplate(["unmount", text(&dir)]).succeeds();
}

#[test]
fn untorn_is_set_inherited_and_told() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    let address = |path: &str| format!("{}:{path}", text(&image));
    bedplate(["mkdir", text(&image), "/db"]).succeeds();
    bedplate(["untorn", &address("/db")]).succeeds().says("by itself");
    bedplate(["untorn", &address("/db"), "8k"]).succeeds().says("8 KiB untorn, by ");
    bedplate(["untorn", &address("/db"), "3k"]).fails(1, "power of two");
    let file = scratch.file("t", b"content");
    bedplate(["put", text(&image), text(&file), "/db/t"]).succeeds();
    let told = bedplate(["--json", "stat", &address("/db/t")]).succeeds().json();
    assert_eq!(told["untorn"]["bytes"].as_u64(), Some(8192), "{told}");
    bedplate(["untorn", &address("/db/t"), "none"]).succeeds().says("by itself");
    if !can_mount("untorn on a mount") {
        return;
    }
    let dir = scratch.directory("mnt");
    bedplate(["mount", text(&image), text(&dir), "-o", "mode=concurrent"]).succeeds();
    std::fs::write(dir.join("db/live"), vec![7; 65_536]).unwrap();
    bedplate(["stat", text(&dir.join("db/live"))]).succeeds().says("untorn        8 KiB");
    std::fs::write(dir.join("db/live"), vec![8; 65_536]).unwrap();
    assert!(std::fs::read(dir.join("db/live")).unwrap() == vec![8; 65_536]);
    std::fs::create_dir(dir.join("db/below")).unwrap();
    std::fs::write(dir.join("db/below/f"), b"x").unwrap();
    std::os::unix::fs::symlink("/etc", dir.join("db/away")).unwrap();
    bedplate(["untorn", "-R", text(&dir.join("db"))]).fails(2, "<SIZE>");
    bedplate(["untorn", "-R", text(&dir.join("db")), "16k"])
        .succeeds()
        .says("16 KiB untorn, by ")
        .says("so are 4 files and directories in it");
    bedplate(["untorn", text(&dir.join("db/below/f"))]).succeeds().says("16 KiB untorn");
    bedplate(["untorn", text(&dir.join("db")), "none"]).succeeds();
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["untorn", "--recursive", &address("/"), "none"])
        .succeeds()
        .says("so are 5 files and directories in it");
    bedplate(["untorn", &address("/db/below/f")]).succeeds().says("by itself");
    bedplate(["check", text(&image)]).succeeds();
}

#[test]
fn a_checkpoint_is_mounted_alone() {
    if !can_mount("a checkpoint alone") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("mode=cached");
    std::fs::write(dir.join("a"), b"then").unwrap();
    bedplate(["checkpoint", "create", text(&dir), "then"]).succeeds();
    std::fs::write(dir.join("a"), b"now").unwrap();
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["mount", text(&image), text(&dir), "-o", "checkpoint=then"])
        .succeeds()
        .says("read-only");
    assert_eq!(std::fs::read(dir.join("a")).unwrap(), b"then");
    assert!(std::fs::write(dir.join("a"), b"x").is_err());
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["mount", text(&image), text(&dir), "-o", "checkpoint=never"])
        .fails(1, "no checkpoint 'never'");
}

/// S-120
fn schedules_tell_of_their_last_turn_and_of_the_next(scratch: &Scratch, volume: &str) {
    let list = || bedplate(["checkpoint", "schedule", "list", volume]).succeeds();
    list().says(" UTC, next 20");
    bedplate(["put", volume, text(&scratch.file("x", b"x")), "/x"]).succeeds();
    bedplate([
        "checkpoint",
        "schedule",
        "add",
        volume,
        "yearly",
        "--every",
        "365d",
        "--keep",
        "1",
        "--path",
        "/x",
    ])
    .succeeds()
    .says("last not yet, due");
    bedplate(["rm", volume, "/x"]).succeeds();
    bedplate(["checkpoint", "run-schedule", volume]).fails(1, "/x");
    list().says("\n  the last made no checkpoint: /x: ");
    let listed = bedplate(["--json", "checkpoint", "schedule", "list", volume]).succeeds().json();
    let yearly = listed["schedules"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["name"] == "yearly")
        .unwrap()
        .clone();
    assert!(
        yearly["failure"].as_str().unwrap().contains("/x")
            && yearly["due"] == false
            && yearly["next"].as_i64() > yearly["last"].as_i64(),
        "{yearly}"
    );
    bedplate(["checkpoint", "schedule", "remove", volume, "yearly"]).succeeds();
}

/// S-80, S-82, S-83: what an administrator does with checkpoints, on a volume that is not mounted
/// and on one that is.
#[test]
fn checkpoints_are_scheduled_counted_and_given_a_policy() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    let volume = text(&image);
    bedplate(["checkpoint", "policy", volume]).succeeds().says("refuse");
    bedplate(["checkpoint", "policy", volume, "delete-oldest"]).succeeds().says("delete-oldest");
    bedplate(["checkpoint", "policy", volume, "newest"]).fails(1, "'newest'");
    bedplate(["info", volume]).succeeds().says("delete the oldest automatic ones");
    bedplate(["checkpoint", "schedule", "list", volume]).succeeds().says("no schedules");
    bedplate(["checkpoint", "schedule", "add", volume, "hourly 24, daily 7"])
        .succeeds()
        .says("hourly: every 1 h, keeps 24, of everything, last not yet");
    bedplate(["checkpoint", "schedule", "add", volume, "often"]).fails(2, "--every");
    bedplate(["checkpoint", "schedule", "add", volume, "often", "--every", "1s", "--keep", "3"])
        .fails(1, "a minute");
    bedplate(["checkpoint", "run-schedule", volume]).succeeds().says("made hourly-20");
    bedplate(["checkpoint", "run-schedule", volume]).succeeds();
    schedules_tell_of_their_last_turn_and_of_the_next(&scratch, volume);
    bedplate(["checkpoint", "schedule", "remove", volume, "daily"]).succeeds();
    bedplate(["checkpoint", "schedule", "remove", volume, "daily"]).fails(1, "no schedule 'daily'");
    let listed = bedplate(["--json", "checkpoint", "list", volume, "--space"]).succeeds().json();
    let made: Vec<_> = listed["checkpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap().to_owned())
        .collect();
    assert!(
        made.len() >= 2 && made[0].starts_with("daily-20") && listed["held_bytes"] == 0,
        "{listed}"
    );
    let old = scratch.file("old", &pattern(1 << 20));
    bedplate(["put", volume, text(&old), "/a"]).succeeds();
    bedplate(["checkpoint", "create", volume, "one"]).succeeds();
    bedplate(["checkpoint", "create", volume, "two"]).succeeds();
    bedplate(["rm", volume, "/a"]).succeeds();
    // Neither holds it alone, both together do.
    bedplate(["checkpoint", "show", volume, "one"]).succeeds().says("frees 0 B");
    bedplate(["checkpoint", "delete", "--would-free", volume, "one", "two"])
        .succeeds()
        .says("would free 1 MiB; nothing");
    bedplate(["checkpoint", "delete", "--would-free", volume, "one", "never"])
        .fails(1, "no checkpoint 'never'");
    bedplate(["checkpoint", "list", volume, "--space"])
        .succeeds()
        .says("all of them would free 1 MiB");
    bedplate(["check", volume]).succeeds();
}

/// What only looks works on a mount that takes no writes.
#[test]
fn checkpoints_are_looked_at_on_a_read_only_mount() {
    if !can_mount("looking on a read-only mount") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("mode=cached");
    std::fs::write(dir.join("a"), b"then").unwrap();
    bedplate(["checkpoint", "create", text(&dir), "then"]).succeeds();
    bedplate(["checkpoint", "schedule", "add", text(&dir), "weekly"]).succeeds();
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["mount", text(&image), text(&dir), "-o", "ro"]).succeeds();
    bedplate(["checkpoint", "list", text(&dir), "--space"]).succeeds().says("then: ");
    bedplate(["checkpoint", "show", text(&dir), "then"]).succeeds().says("frees");
    bedplate(["checkpoint", "delete", "--would-free", text(&dir), "then"])
        .succeeds()
        .says("would free");
    bedplate(["checkpoint", "schedule", "list", text(&dir)]).succeeds().says("weekly");
    bedplate(["checkpoint", "policy", text(&dir)]).succeeds().says("refuse");
    bedplate(["info", text(&dir)]).succeeds().says("checkpoints   ");
    bedplate(["checkpoint", "diff", text(&dir), "then"]).succeeds().says("no differences");
    bedplate(["defrag", text(&dir), "--dry-run"]).succeeds().says("0 of 1 files");
    // A path that one name of an attribute does not hold.
    let beside = scratch.directory(&"far/".repeat(60));
    bedplate(["checkpoint", "mount", text(&dir), "then", text(&beside)])
        .succeeds()
        .says("read-only");
    assert_eq!(std::fs::read(beside.join("a")).unwrap(), b"then");
    bedplate(["unmount", text(&beside)]).succeeds();
    bedplate(["checkpoint", "create", text(&dir), "now"]).fails(1, "read-only");
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// S-51, S-52: a checkpoint of a live volume is mounted beside it, stays while it is, and its mount
/// ends with the volume's.
#[test]
fn s_52_a_checkpoint_mounted_beside_its_volume_stays() {
    if !can_mount("a checkpoint beside its volume") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("mode=cached");
    let (beside, again) = (scratch.directory("beside"), scratch.directory("again"));
    std::fs::create_dir(dir.join("d")).unwrap();
    std::fs::write(dir.join("d/a"), pattern(100_000)).unwrap();
    bedplate(["checkpoint", "create", text(&dir), "then"]).succeeds();
    std::fs::write(dir.join("d/a"), b"now").unwrap();
    bedplate(["checkpoint", "mount", text(&dir), "never", text(&beside)])
        .fails(1, "no checkpoint 'never'");
    bedplate(["checkpoint", "mount", text(&dir), "then", text(&dir.join("missing"))])
        .fails(1, "does not exist");
    bedplate(["checkpoint", "mount", text(&dir), "then", text(&beside)])
        .succeeds()
        .says("read-only");
    assert!(std::fs::read(beside.join("d/a")).unwrap() == pattern(100_000));
    assert!(
        std::fs::write(beside.join("d/a"), b"x").is_err() && !beside.join(".checkpoints").exists()
    );
    let names: Vec<_> = std::fs::read_dir(beside.join("d/.."))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["d"]);
    // By its volume the live mount is found, not this one.
    bedplate(["info", text(&image)]).succeeds().says(text(&dir));
    bedplate(["checkpoint", "delete", text(&dir), "then"]).fails(1, "is mounted");
    bedplate(["unmount", text(&beside)]).succeeds();
    assert!(!beside.join("d").exists());
    bedplate(["checkpoint", "mount", text(&image), "then", text(&beside)]).succeeds();
    bedplate(["checkpoint", "mount", text(&dir), "then", text(&again)]).succeeds();
    assert_eq!(std::fs::read(dir.join("d/a")).unwrap(), b"now");
    bedplate(["unmount", text(&dir)]).succeeds();
    assert!(
        !beside.join("d").exists() && !again.join("d").exists(),
        "they end with the volume's mount"
    );
    bedplate(["checkpoint", "mount", text(&image), "then", text(&beside)]).succeeds();
    assert!(std::fs::read(beside.join("d/a")).unwrap() == pattern(100_000));
    bedplate(["unmount", text(&beside)]).succeeds();
    bedplate(["checkpoint", "delete", text(&image), "then"]).succeeds();
    bedplate(["check", text(&image)]).succeeds();
}

/// Names that shells and terminals dislike, and paths that are none.
#[test]
fn checkpoints_with_odd_names() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    let ask = |action: &str, name: &OsStr| {
        bedplate([
            OsStr::new("checkpoint"),
            OsStr::new(action),
            image.as_os_str(),
            OsStr::new("--"),
            name,
        ])
    };
    let long = "x".repeat(255);
    let odd: [&[u8]; 6] = [b"a\nb", b"\xff\xfe", b"-rf", b" ", "späte".as_bytes(), long.as_bytes()];
    for name in odd {
        ask("create", OsStr::from_bytes(name)).succeeds();
        ask("show", OsStr::from_bytes(name)).succeeds().says("frees");
        ask("keep", OsStr::from_bytes(name)).succeeds();
    }
    ask("show", OsStr::from_bytes(b"\xfe\xff")).fails(1, "no checkpoint");
    let too_long = "x".repeat(256);
    for (name, why) in [
        (&b"."[..], "cannot be a name"),
        (b"..", "cannot be a name"),
        (b"a/b", "cannot be a name"),
        (b"", "name"),
        (too_long.as_bytes(), "255"),
    ] {
        ask("create", OsStr::from_bytes(name)).fails(1, why);
    }
    let listed =
        bedplate([OsStr::new("checkpoint"), OsStr::new("list"), image.as_os_str()]).succeeds();
    assert_eq!(listed.stdout().trim().lines().count(), 6, "a name is a line, whatever is in it");
    for name in odd {
        ask("delete", OsStr::from_bytes(name)).succeeds();
    }
    bedplate(["check", text(&image)]).succeeds();
}
