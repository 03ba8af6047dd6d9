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
    bedplate(["checkpoint", "create", text(&dir), "set", text(&file), "--keep"]).succeeds().says("of /table (kept)");
    bedplate(["checkpoint", "create", text(&dir), "set"]).fails(1, "exists");
    bedplate(["checkpoint", "create", text(&dir), "a/b"]).fails(1, "cannot be a name");
    std::fs::write(&file, b"overwritten").unwrap();
    std::fs::write(dir.join("later"), b"later").unwrap();
    assert!(std::fs::read(dir.join(".checkpoints/two words/table")).unwrap() == content);
    assert!(std::fs::read(dir.join(".checkpoints/set/table")).unwrap() == content);
    let listed: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!listed.iter().any(|name| name == ".checkpoints"), "{listed:?}");
    assert!(std::fs::write(dir.join(".checkpoints/set/table"), b"x").is_err());
    let shown = bedplate(["--json", "checkpoint", "show", text(&dir), "two words"]).succeeds().json();
    assert!(shown["rows"].as_u64().unwrap() > 0, "{shown}");
    let open = std::fs::File::open(&file).unwrap();
    bedplate(["checkpoint", "rollback", text(&dir), "two words"]).fails(1, "/table");
    drop(open);
    let done = bedplate(["--json", "checkpoint", "rollback", text(&dir), "two words"]).succeeds().json();
    assert!(std::fs::read(&file).unwrap() == content);
    assert!(!dir.join("later").exists());
    bedplate(["checkpoint", "rollback", text(&dir), done["undo"].as_str().unwrap(), text(&file)]).succeeds().says("to undo it");
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
    assert!(bedplate(["cat", text(&image), "/.checkpoints/then/table"]).succeeds().stdout_bytes() == content);
    bedplate(["checkpoint", "rollback", text(&image), "then", "/table"]).succeeds();
    assert!(bedplate(["cat", text(&image), "/table"]).succeeds().stdout_bytes() == content);
    let listed = bedplate(["--json", "checkpoint", "list", text(&image)]).succeeds().json();
    assert_eq!(listed["checkpoints"].as_array().unwrap().len(), 2, "{listed}");
    bedplate(["checkpoint", "keep", text(&image), "then"]).succeeds().says("kept");
    bedplate(["checkpoint", "show", text(&image), "never"]).fails(1, "no checkpoint 'never'");
    bedplate(["check", text(&image)]).succeeds();
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
    bedplate(["checkpoint", "clone", text(&image), "a:b:/db", "/then"]).succeeds().says("2 files and directories");
    let cloned = bedplate(["--json", "checkpoint", "clone", text(&image), ":/db/table", "/now"]).succeeds().json();
    assert_eq!(cloned["inodes"].as_u64(), Some(1), "{cloned}");
    assert!(bedplate(["cat", text(&image), "/then/table"]).succeeds().stdout_bytes() == content);
    assert_eq!(bedplate(["cat", text(&image), "/now"]).succeeds().stdout_bytes(), b"new");
    bedplate(["checkpoint", "clone", text(&image), ":/db", "/then"]).fails(1, "exists");
    bedplate(["checkpoint", "clone", text(&image), "never", "/x"]).fails(1, "no checkpoint 'never'");
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
    bedplate(["checkpoint", "clone", text(&dir), &format!(":{}", text(&dir.join("db"))), text(&dir.join("live"))]).succeeds();
    assert_eq!(std::fs::read(dir.join("live/table")).unwrap(), b"written just now");
    std::fs::write(dir.join("live/table"), b"other").unwrap();
    assert_eq!(std::fs::read(dir.join("db/table")).unwrap(), b"written just now");
    bedplate(["checkpoint", "clone", text(&dir), "a:b:/db/table", text(&dir.join("again"))]).succeeds();
    bedplate(["checkpoint", "delete", text(&dir), "a:b"]).succeeds();
    assert!(std::fs::read(dir.join("again")).unwrap() == content);
    bedplate(["unmount", text(&dir)]).succeeds();
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
    let told = bedplate(["--json", "checkpoint", "diff", text(&image), "a", "b", "--file", "/table"]).succeeds().json();
    assert_eq!((told["size_bytes"].as_u64(), told["size_before_bytes"].as_u64()), (Some(300_000), Some(300_000)), "{told}");
    bedplate(["checkpoint", "diff", text(&image), "a", "--file", "/none"]).fails(1, "/none");
    bedplate(["checkpoint", "diff", text(&image), "b", "a"]).fails(1, "older");
    if !can_mount("differences on a mount") {
        return;
    }
    let dir = scratch.directory("mnt");
    bedplate(["mount", text(&image), text(&dir), "-o", "mode=cached"]).succeeds();
    for i in 0..500 {
        std::fs::create_dir(dir.join(format!("another directory with rather a long name {i}"))).unwrap();
    }
    // More than one answer holds.
    let told = bedplate(["--json", "checkpoint", "diff", text(&dir), "b"]).succeeds().json();
    assert_eq!(told["differences"].as_array().unwrap().len(), 500);
    bedplate(["checkpoint", "diff", text(&dir), "a", "--file", text(&dir.join("table"))]).succeeds().says("changed");
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
    bedplate(["untorn", "-R", text(&dir.join("db")), "16k"]).succeeds().says("16 KiB untorn, by ").says("so are 4 files and directories in it");
    bedplate(["untorn", text(&dir.join("db/below/f"))]).succeeds().says("16 KiB untorn");
    bedplate(["untorn", text(&dir.join("db")), "none"]).succeeds();
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["untorn", "--recursive", &address("/"), "none"]).succeeds().says("so are 5 files and directories in it");
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
    bedplate(["mount", text(&image), text(&dir), "-o", "checkpoint=then"]).succeeds().says("read-only");
    assert_eq!(std::fs::read(dir.join("a")).unwrap(), b"then");
    assert!(std::fs::write(dir.join("a"), b"x").is_err());
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["mount", text(&image), text(&dir), "-o", "checkpoint=never"]).fails(1, "no checkpoint 'never'");
}
