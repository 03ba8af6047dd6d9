//! Branches of directories: writable copies that are listed, renewed and removed. Those of
//! PostgreSQL are tried with a server by `cargo xtask real branch-postgres`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::harness::{Scratch, bedplate, can_mount, command, text};

#[test]
fn s_320_a_branch_of_files_is_made_listed_reset_and_dropped() {
    if !can_mount("branching a directory") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("mode=cached");
    let (app, branch) = (dir.join("app"), dir.join("review"));
    std::fs::create_dir(&app).unwrap();
    std::fs::write(app.join("app.db"), b"first").unwrap();
    std::fs::write(app.join("app.db-wal"), b"log").unwrap();
    std::fs::write(app.join("app.db-shm"), b"shared memory").unwrap();
    bedplate(["branch", "list", text(&dir)]).succeeds().says("no branches");
    bedplate(["branch", "create", text(&app), text(&branch)]).succeeds().says("branch of");
    assert_eq!(std::fs::read(branch.join("app.db")).unwrap(), b"first");
    assert!(branch.join("app.db-wal").exists() && !branch.join("app.db-shm").exists());

    std::fs::write(branch.join("app.db"), b"in the branch").unwrap();
    std::fs::write(app.join("app.db"), b"in production").unwrap();
    assert_eq!(std::fs::read(branch.join("app.db")).unwrap(), b"in the branch");
    let told = bedplate(["--json", "branch", "list", text(&dir)]).succeeds().json();
    let only = &told["branches"][0];
    assert_eq!((&only["kind"], &only["running"]), (&"files".into(), &false.into()), "{told}");
    assert_eq!(told["branches"].as_array().unwrap().len(), 1, "{told}");

    bedplate(["branch", "reset", text(&branch)]).succeeds().says("branch of");
    assert_eq!(std::fs::read(branch.join("app.db")).unwrap(), b"in production");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 2, "nothing is left aside");

    // One that cannot be read hides no other.
    std::fs::create_dir(dir.join("broken")).unwrap();
    std::fs::write(dir.join("broken/bedplate.branch"), b"{").unwrap();
    bedplate(["branch", "list", text(&dir)])
        .succeeds()
        .says("review: branch of")
        .says("does not say what this is a branch of");
    bedplate(["branch", "drop", text(&dir.join("broken"))]).fails(1, "by hand");
    std::fs::remove_dir_all(dir.join("broken")).unwrap();

    bedplate(["branch", "drop", text(&app)]).fails(1, "is no branch");
    bedplate(["branch", "create", text(&app), text(&branch)]).fails(1, "exists");
    bedplate(["branch", "create", text(&app), text(&app.join("within"))]).fails(2, "lies in");
    bedplate(["branch", "create", text(&dir.join("missing")), text(&branch)]).fails(1, "missing");
    let off = scratch.path("off-the-mount");
    std::fs::create_dir(&off).unwrap();
    bedplate(["branch", "create", text(&off), text(&branch)]).fails(1, "Bedplate mount");
    // The user of a branch may write anything into what it says of itself.
    let record = branch.join("bedplate.branch");
    let hostile = std::fs::read_to_string(&record).unwrap();
    let hostile = hostile.replace("\"parts\": []", &format!("\"parts\": [{:?}]", text(&app)));
    assert!(hostile.contains(&format!("[{:?}]", text(&app))), "{hostile}");
    std::fs::write(&record, hostile).unwrap();
    bedplate(["branch", "drop", text(&branch)]).succeeds().says("dropped");
    assert!(app.join("app.db").exists(), "a drop removes what is the branch's alone");
    let (victim, link) = (scratch.file("victim", b"precious"), app.join("bedplate.branch"));
    std::os::unix::fs::symlink(&victim, &link).unwrap();
    bedplate(["branch", "create", text(&app), text(&branch)]).succeeds();
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious", "no link is followed");
    std::fs::remove_file(link).unwrap();
    bedplate(["branch", "drop", text(&branch)]).succeeds().says("dropped");
    assert!(!branch.exists() && app.join("app.db-shm").exists());

    // A branch whose source is gone stays when a reset fails.
    bedplate(["branch", "create", text(&app), text(&branch)]).succeeds();
    std::fs::remove_dir_all(&app).unwrap();
    bedplate(["branch", "reset", text(&branch)]).fails(1, "app");
    assert_eq!(std::fs::read(branch.join("app.db")).unwrap(), b"in production");
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["check", text(&image)]).succeeds();
}

/// Makes a directory with a file, a branch of it, and a change of each.
fn branched(dir: &Path) -> (PathBuf, PathBuf) {
    let (app, branch) = (dir.join("app"), dir.join("review"));
    fs::create_dir(&app).unwrap();
    fs::write(app.join("app.db"), b"first").unwrap();
    bedplate(["branch", "create", text(&app), text(&branch)]).succeeds();
    fs::write(branch.join("app.db"), b"in the branch").unwrap();
    fs::write(app.join("app.db"), b"in production").unwrap();
    (app, branch)
}

fn content(branch: &Path) -> Vec<u8> {
    fs::read(branch.join("app.db")).unwrap()
}

fn mark_incomplete(branch: &Path) {
    let path = branch.join("bedplate.branch");
    let record = fs::read_to_string(&path).unwrap();
    fs::write(path, record.replacen('{', "{\"incomplete\": true,", 1)).unwrap();
}

/// S-404: whatever a reset that was cut short left is told by `list`, and the next reset or drop
/// ends it: before anything is made of it nothing is lost, and afterwards nothing is left.
#[test]
fn s_404_a_reset_that_was_cut_short_is_told_and_ended() {
    if !can_mount("branching a directory") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=cached");
    let (app, branch) = branched(&dir);
    let aside = dir.join(".review.before-reset");
    let copy = || {
        fs::create_dir(&branch).unwrap();
        for file in ["app.db", "bedplate.branch"] {
            fs::copy(aside.join(file), branch.join(file)).unwrap();
        }
        fs::write(branch.join("app.db"), b"the new one").unwrap();
    };

    // Between: there is only what was put aside. A reset that fails gives it back.
    fs::rename(&branch, &aside).unwrap();
    bedplate(["branch", "list", text(&dir)]).succeeds().says("was cut short");
    bedplate(["branch", "create", text(&app), text(&branch)]).fails(1, "was cut short");
    fs::rename(&app, dir.join("elsewhere")).unwrap();
    bedplate(["branch", "reset", text(&branch)]).fails(1, "app");
    assert_eq!(content(&branch), b"in the branch", "S-404");
    fs::rename(dir.join("elsewhere"), &app).unwrap();

    // Within: the new one is not complete, and goes.
    fs::rename(&branch, &aside).unwrap();
    copy();
    mark_incomplete(&branch);
    bedplate(["branch", "list", text(&dir)]).succeeds().says("while it was made");
    bedplate(["branch", "reset", text(&branch)]).succeeds().says("branch of");
    assert_eq!((content(&branch), aside.exists()), (b"in production".to_vec(), false), "S-404");

    // After: the new one is complete, and the old one goes.
    fs::rename(&branch, &aside).unwrap();
    copy();
    bedplate(["branch", "drop", text(&branch)]).succeeds();
    assert!(!branch.exists() && !aside.exists(), "S-404: a drop leaves nothing");

    // What the reset did not make stays, and is named.
    bedplate(["branch", "create", text(&app), text(&branch)]).succeeds();
    fs::rename(&branch, &aside).unwrap();
    fs::create_dir(&branch).unwrap();
    fs::write(branch.join("precious"), b"").unwrap();
    for verb in ["reset", "drop"] {
        bedplate(["branch", verb, text(&branch)]).fails(1, "nothing that it made");
    }
    assert!(branch.join("precious").exists() && aside.join("app.db").exists());
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// S-404: killed at any moment, a reset leaves what the next one ends.
#[test]
fn s_404_a_reset_that_is_killed_leaves_the_branch_or_what_the_next_one_needs() {
    if !can_mount("branching a directory") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("mode=cached");
    let (_, branch) = branched(&dir);
    let mut cut = 0;
    for wait_ms in (0..60).step_by(3) {
        let mut reset = command(["branch", "reset", text(&branch)]);
        let mut reset = reset.stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(wait_ms));
        reset.kill().unwrap();
        reset.wait().unwrap();
        let told = bedplate(["branch", "list", text(&dir)]).succeeds();
        cut += usize::from(told.stdout().contains("cut short"));
        bedplate(["branch", "reset", text(&branch)]).succeeds();
        assert_eq!(content(&branch), b"in production", "S-404: killed after {wait_ms} ms");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2, "S-404: killed after {wait_ms} ms");
    }
    println!("{cut} of 20 resets were cut short");
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["check", text(&image)]).succeeds();
}
