//! Clones of files and directories.

use crate::harness::{Scratch, bedplate, can_mount, pattern, text};

/// A clone of a cluster shared its table spaces with the original: `DROP TABLE` in the copy
/// destroyed the original's table.
#[test]
fn s_192_a_clone_of_a_cluster_has_table_spaces_of_its_own() {
    use std::os::unix::fs::symlink;
    if !can_mount("a clone of a cluster with table spaces") {
        return;
    }
    let scratch = Scratch::new();
    let (_image, dir) = scratch.mounted("mode=cached");
    let dir = dir.canonicalize().unwrap();
    let (pg, space, new) = (dir.join("pg"), dir.join("space"), dir.join("copy"));
    std::fs::create_dir_all(pg.join("pg_tblspc")).unwrap();
    std::fs::create_dir_all(&space).unwrap();
    std::fs::write(pg.join("PG_VERSION"), "15\n").unwrap();
    std::fs::write(space.join("table"), "rows").unwrap();
    symlink(&space, pg.join("pg_tblspc/16400")).unwrap();
    symlink("/etc", pg.join("conf")).unwrap();

    let source = format!(":{}", text(&pg));
    bedplate(["checkpoint", "clone", text(&dir), &source, text(&new)])
        .succeeds()
        .says("pg_tblspc/16400 leads to")
        .says("conf leads to /etc, out of the clone");
    assert_eq!(std::fs::read_link(new.join("pg_tblspc/16400")).unwrap(), dir.join("copy.16400"));
    std::fs::write(new.join("pg_tblspc/16400/table"), "dropped").unwrap();
    assert_eq!(std::fs::read_to_string(space.join("table")).unwrap(), "rows");
    let listed = bedplate(["--json", "checkpoint", "list", text(&dir)]).succeeds().json();
    assert_eq!(
        listed["checkpoints"].as_array().map(Vec::len),
        Some(0),
        "the passing checkpoint is gone: {listed}"
    );

    // A second one of the same name changes nothing, and neither does one whose table space has no
    // room.
    bedplate(["checkpoint", "clone", text(&dir), &source, text(&new)]).fails(1, "exists");
    std::fs::create_dir(dir.join("other.16400")).unwrap();
    bedplate(["checkpoint", "clone", text(&dir), &source, text(&dir.join("other"))])
        .fails(1, "exists");
    let mut names: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["copy", "copy.16400", "other.16400", "pg", "space"]);

    // A table space off the mount cannot be cloned.
    symlink("/usr", pg.join("pg_tblspc/16401")).unwrap();
    bedplate(["checkpoint", "clone", text(&dir), &source, text(&dir.join("third"))])
        .fails(1, "pg_tblspc/16401 leads to /usr, off the mount");
    assert!(!dir.join("third").exists());
    bedplate([
        "checkpoint",
        "clone",
        "--keep-links",
        text(&dir),
        &source,
        text(&dir.join("third")),
    ])
    .succeeds();
    assert_eq!(std::fs::read_link(dir.join("third/pg_tblspc/16400")).unwrap(), space);

    // The same of a checkpoint, with what the cluster was then.
    std::fs::remove_file(pg.join("pg_tblspc/16401")).unwrap();
    bedplate(["checkpoint", "create", text(&dir), "then"]).succeeds();
    std::fs::write(space.join("table"), "later").unwrap();
    let listed = bedplate([
        "--json",
        "checkpoint",
        "clone",
        text(&dir),
        "then:/pg",
        text(&dir.join("fourth")),
    ])
    .succeeds()
    .json();
    assert_eq!(listed["links"].as_array().map(Vec::len), Some(2), "{listed}");
    assert_eq!(std::fs::read_to_string(dir.join("fourth/pg_tblspc/16400/table")).unwrap(), "rows");
    bedplate(["unmount", text(&dir)]).succeeds();
}

/// S-75, S-76.
#[test]
fn clones_are_made_of_checkpoints_and_of_the_present() {
    let scratch = Scratch::new();
    let (image, content) = (scratch.image("v.img"), pattern(300_000));
    let (old, new) = (scratch.file("old", &content), scratch.file("new", b"new"));
    bedplate(["mkdir", text(&image), "/db"]).succeeds();
    bedplate(["put", text(&image), text(&old), "/db/table"]).succeeds();
    bedplate(["checkpoint", "create", text(&image), "a:b"]).succeeds();
    bedplate(["put", text(&image), text(&new), "/db/table"]).succeeds();
    bedplate(["checkpoint", "clone", text(&image), "a:b:/db", "/then"])
        .succeeds()
        .says("2 files and directories");
    let cloned = bedplate(["--json", "checkpoint", "clone", text(&image), ":/db/table", "/now"])
        .succeeds()
        .json();
    assert_eq!(cloned["inodes"].as_u64(), Some(1), "{cloned}");
    assert!(bedplate(["cat", text(&image), "/then/table"]).succeeds().stdout_bytes() == content);
    assert_eq!(bedplate(["cat", text(&image), "/now"]).succeeds().stdout_bytes(), b"new");
    bedplate(["checkpoint", "clone", text(&image), ":/db", "/then"]).fails(1, "exists");
    bedplate(["checkpoint", "clone", text(&image), "never", "/x"])
        .fails(1, "no checkpoint 'never'");
    bedplate(["checkpoint", "clone", text(&image), "/db", "/x"]).fails(2, "names no source");
    bedplate(["check", text(&image)]).succeeds();
    if !can_mount("clones on a mount") {
        return;
    }
    let dir = scratch.directory("mnt");
    bedplate(["mount", text(&image), text(&dir), "-o", "mode=cached"]).succeeds();
    assert!(!dir.join("live").exists());
    // What the kernel still holds is in the clone of the present.
    std::fs::write(dir.join("db/table"), b"written just now").unwrap();
    bedplate([
        "checkpoint",
        "clone",
        text(&dir),
        &format!(":{}", text(&dir.join("db"))),
        text(&dir.join("live")),
    ])
    .succeeds();
    assert_eq!(std::fs::read(dir.join("live/table")).unwrap(), b"written just now");
    std::fs::write(dir.join("live/table"), b"other").unwrap();
    assert_eq!(std::fs::read(dir.join("db/table")).unwrap(), b"written just now");
    bedplate(["checkpoint", "clone", text(&dir), "a:b:/db/table", text(&dir.join("again"))])
        .succeeds();
    bedplate(["checkpoint", "delete", text(&dir), "a:b"]).succeeds();
    assert!(std::fs::read(dir.join("again")).unwrap() == content);
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["check", text(&image)]).succeeds();
}
