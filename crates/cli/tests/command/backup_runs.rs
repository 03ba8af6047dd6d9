//! `bedplate backup run`: turns as a timer makes them.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;

use crate::harness::{Scratch, bedplate, can_mount, command, pattern, text};

fn turn(dir: &Path, repository: &Path, more: &[&str]) -> Value {
    let arguments = ["--json", "backup", "run", text(dir), text(repository)];
    bedplate(arguments.into_iter().chain(more.iter().copied())).succeeds().json()
}

fn checkpoints(dir: &Path) -> Vec<String> {
    let listed = bedplate(["--json", "checkpoint", "list", text(dir)]).succeeds().json();
    let all = listed["checkpoints"].as_array().unwrap();
    all.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

fn backups(repository: &Path) -> Vec<Value> {
    let listed = bedplate(["--json", "backup", "list", text(repository)]).succeeds().json();
    listed["backups"].as_array().unwrap().clone()
}

/// Names have seconds.
fn next_second() {
    std::thread::sleep(std::time::Duration::from_millis(1100));
}

/// S-234: each turn leaves the checkpoint of its backup and no earlier one, reads only what changed
/// since the turn before, and keeps of the backups what the rules say; what people made stays.
#[test]
fn s_234_turns_of_a_timer_leave_one_checkpoint_and_the_backups_of_the_rules() {
    if !can_mount("turns of backups") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent");
    let repository = scratch.path("backups");
    let table = dir.join("table");
    fs::write(&table, pattern(4 << 20)).unwrap();
    let people = ["backup-monday", "other-2026-01-01T00:00:00Z"];
    people.iter().for_each(|name| {
        bedplate(["checkpoint", "create", text(&dir), name]).succeeds();
    });

    let first = turn(&dir, &repository, &[]);
    let kept = first["checkpoint"].as_str().unwrap().to_owned();
    assert!(kept.starts_with("backup-20"), "{first}");
    assert!(first["backup"]["base"].is_null() && first["retained"].is_null(), "{first}");
    assert_eq!(checkpoints(&dir), [people[0], people[1], &kept]);

    next_second();
    let file = fs::OpenOptions::new().write(true).open(&table).unwrap();
    file.write_all_at(&[7; 8192], 1 << 20).unwrap();
    drop(file);
    let second = turn(&dir, &repository, &["--keep-last", "1"]);
    let newest = second["checkpoint"].as_str().unwrap().to_owned();
    assert_eq!(second["backup"]["base"], kept, "{second}");
    assert!(second["backup"]["read_bytes"].as_u64().unwrap() < 256 << 10, "{second}");
    assert_eq!(second["deleted_checkpoints"][0], kept, "{second}");
    assert_eq!(second["retained"]["kept"], 1, "{second}");
    assert_eq!(checkpoints(&dir), [people[0], people[1], &newest]);
    assert_eq!(backups(&repository).len(), 1);

    // One that a person protects stays, and is no base of the next.
    bedplate(["checkpoint", "keep", text(&dir), &newest]).succeeds();
    next_second();
    turn(&dir, &repository, &[]);
    assert_eq!(checkpoints(&dir).len(), 4);

    let restored = scratch.path("restored");
    let last = backups(&repository).last().unwrap()["name"].as_str().unwrap().to_owned();
    bedplate(["restore", text(&repository), &last, text(&restored)]).succeeds();
    assert!(fs::read(restored.join("table")).unwrap() == fs::read(&table).unwrap());
}

/// S-234: a turn that fails leaves no checkpoint, and two turns of a mount exclude each other.
#[test]
fn s_234_a_turn_that_fails_leaves_nothing() {
    if !can_mount("turns of backups that fail") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=concurrent");
    fs::write(dir.join("table"), pattern(1 << 20)).unwrap();
    let repository = scratch.path("backups");

    let root = fs::File::open(&dir).unwrap();
    rustix::fs::flock(&root, rustix::fs::FlockOperation::LockExclusive).unwrap();
    bedplate(["backup", "run", text(&dir), text(&repository)]).fails(1, "is under way");
    drop(root);
    assert!(checkpoints(&dir).is_empty());

    // A place that is something else is told before anything is made.
    let file = scratch.path("a-file");
    fs::write(&file, "x").unwrap();
    bedplate(["backup", "run", text(&dir), text(&file)]).fails(1, "a-file");
    assert!(checkpoints(&dir).is_empty());

    // The repository takes no chunk: the checkpoint was made, and goes.
    turn(&dir, &repository, &[]);
    let before = checkpoints(&dir);
    let chunks = repository.join("chunks");
    fs::remove_dir_all(&chunks).unwrap();
    fs::write(&chunks, "no directory").unwrap();
    fs::write(dir.join("more"), pattern(1 << 20).iter().map(|byte| !byte).collect::<Vec<_>>())
        .unwrap();
    next_second();
    bedplate(["backup", "run", text(&dir), text(&repository)]).fails(1, "");
    assert_eq!(checkpoints(&dir), before);

    bedplate(["backup", "run", text(&dir), text(&repository), "--prefix", "a/b"])
        .fails(2, "beginning");
    bedplate(["backup", "run", text(&repository), text(&repository)]).fails(1, "mount");
}

/// S-235: a volume that is not mounted is backed up as one that is, by a checkpoint of its own or a
/// new one, and is not mounted afterwards; what it held is restored.
#[test]
fn s_235_a_volume_that_is_not_mounted_is_backed_up() {
    if !can_mount("backups of unmounted volumes") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("mode=concurrent");
    fs::write(dir.join("table"), pattern(1 << 20)).unwrap();
    bedplate(["checkpoint", "create", text(&dir), "monday"]).succeeds();
    fs::write(dir.join("later"), "x").unwrap();
    bedplate(["unmount", text(&dir)]).succeeds();
    let repository = scratch.path("backups");

    let created = ["--json", "backup", "create", text(&image), "monday", text(&repository)];
    let first = bedplate(created).succeeds().json();
    assert!(first["base"].is_null(), "{first}");
    let second = turn(&image, &repository, &[]);
    assert_eq!(second["backup"]["base"], "monday", "{second}");
    bedplate(["backup", "create", text(&image), "tuesday", text(&repository)])
        .fails(1, "no checkpoint 'tuesday'");
    // Nothing has it any more.
    bedplate(["check", text(&image)]).succeeds();

    let of = |name: &str| {
        let restored = scratch.path(&format!("restored-{name}"));
        bedplate(["restore", text(&repository), name, text(&restored)]).succeeds();
        (fs::read(restored.join("table")).unwrap(), restored.join("later").exists())
    };
    assert!(of("monday") == (pattern(1 << 20), false));
    assert!(of(second["checkpoint"].as_str().unwrap()) == (pattern(1 << 20), true));
}

/// S-235: a signal in the midst ends the mount that was made for the command.
#[test]
fn s_235_a_signal_ends_the_mount_of_a_backup() {
    if !can_mount("backups of unmounted volumes, ended by a signal") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("mode=concurrent");
    fs::write(dir.join("table"), pattern(16 << 20)).unwrap();
    bedplate(["checkpoint", "create", text(&dir), "monday"]).succeeds();
    bedplate(["unmount", text(&dir)]).succeeds();
    let repository = scratch.path("backups");
    let mut child = command(["backup", "create", text(&image), "monday", text(&repository)])
        .env("TMPDIR", scratch.path(""))
        .spawn()
        .unwrap();
    let own = scratch.path(&format!("bedplate-backup-{}", child.id()));
    while !own.join("table").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be ended");
        std::thread::yield_now();
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = child.wait().unwrap();
    assert!(status.code() == Some(143) || status.success(), "{status}");
    assert!(!own.exists(), "its directory is left");
    bedplate(["check", text(&image)]).succeeds();
}
