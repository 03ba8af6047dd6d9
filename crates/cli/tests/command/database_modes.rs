//! `bedplate mode database`: the files of a database are listed, set and put back.

use std::path::Path;

use crate::harness::{Scratch, bedplate, can_mount, text};

fn mode_of(path: &Path) -> Option<String> {
    let told = bedplate(["--json", "mode", text(path)]).succeeds().json();
    told["mode"].as_str().map(str::to_owned)
}

/// S-506: a list is written before anything is set, and puts back what is still as it was set.
#[test]
fn s_506_files_of_a_database_are_set_and_put_back() {
    if !can_mount("modes of a database") {
        return;
    }
    let scratch = Scratch::new();
    let (_, dir) = scratch.mounted("mode=cached");
    let (file, log, list) = (dir.join("app.db"), dir.join("app.db-wal"), scratch.path("list.json"));
    let other = dir.join("other");
    std::fs::write(&file, b"SQLite format 3\0".repeat(512)).unwrap();
    std::fs::write(&log, [7; 4096]).unwrap();
    std::fs::write(&other, "x").unwrap();
    bedplate(["mode", text(&log), "direct"]).succeeds();
    let set = |rest: &[&str]| {
        let words = ["mode", "database", "--sqlite", text(&file), "concurrent"];
        bedplate(words.into_iter().chain(rest.iter().copied()))
    };
    set(&[]).fails(2, "--list");
    set(&["--dry-run"]).succeeds().says("1 file of data, 8 KiB: not set → concurrent");
    assert_eq!((mode_of(&file), list.exists()), (None, false), "S-506: a dry run sets nothing");

    set(&["--list", text(&list)]).succeeds().says("2 were set");
    let concurrent = Some("concurrent".to_owned());
    assert_eq!((mode_of(&file), mode_of(&log)), (concurrent.clone(), concurrent.clone()));
    assert_eq!(mode_of(&other), None, "what is not the database's stays");
    set(&["--list", text(&list)]).fails(1, "is there already");

    // One is changed by hand, and keeps that.
    bedplate(["mode", text(&file), "cached"]).succeeds();
    let undo = || bedplate(["mode", "database", "--undo", text(&list)]);
    let told = "1 files and directories have the mode again that they had; 1 have another mode";
    undo().succeeds().says(told);
    assert_eq!((mode_of(&file), mode_of(&log)), (Some("cached".into()), Some("direct".into())));
    std::fs::remove_file(&log).unwrap();
    undo().succeeds().says("1 are gone");

    std::fs::write(&list, "{\"mode\":\"concurrent\",\"files\":[{}]}").unwrap();
    undo().fails(1, "is no list of 'bedplate mode database'");
    std::fs::write(&list, "{\"mode\":\"fast\",\"files\":[]}").unwrap();
    undo().fails(1, "a mode in it is none");
}

/// A database elsewhere, and what is none.
#[test]
fn s_506_what_cannot_be_set_is_told() {
    let scratch = Scratch::new();
    let file = scratch.path("app.db");
    let set = || {
        let words = ["mode", "database", "--sqlite", text(&file), "direct", "--dry-run"];
        bedplate(words)
    };
    set().fails(1, "No such file");
    std::fs::write(&file, "no database").unwrap();
    set().fails(1, "is no database of SQLite");
    std::fs::write(&file, b"SQLite format 3\0").unwrap();
    set().fails(1, "none of its 1 files and directories lies on a Bedplate mount");
    bedplate(["mode", "database", "direct", "--dry-run"]).fails(2, "--postgres");
    bedplate(["mode", "database", "--undo", "list", "--dry-run"]).fails(2, "--undo");
}
