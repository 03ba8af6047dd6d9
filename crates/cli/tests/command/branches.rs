//! Branches of directories: writable copies that are listed, renewed and removed. Those of
//! PostgreSQL are tried with a server by `cargo xtask real branch-postgres`.

use crate::harness::{Scratch, bedplate, can_mount, text};

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
