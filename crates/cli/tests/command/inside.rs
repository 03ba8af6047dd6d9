//! Files of a volume that is not mounted.

use std::io::Write;
use std::process::Stdio;

use crate::harness::{Scratch, bedplate, can_mount, command, pattern, run, text};

#[test]
fn what_is_put_is_listed_and_got_back_byte_for_byte() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    let volume = text(&image);
    for len in [0, 1, 511, 4096, 4097, 5 << 20, (5 << 20) + 13] {
        let content = pattern(len);
        let source = scratch.file("source", &content);
        let name = format!("/file-{len}");
        bedplate(["put", volume, text(&source), &name]).succeeds();
        bedplate(["get", volume, &name, text(&scratch.path("back"))]).succeeds();
        assert_eq!(std::fs::read(scratch.path("back")).unwrap(), content, "{len} bytes");
        assert_eq!(
            bedplate(["cat", volume, &name]).succeeds().stdout_bytes(),
            content,
            "{len} bytes"
        );
    }
    let listing = bedplate(["--json", "ls", volume]).succeeds().json();
    let sizes: Vec<u64> = listing["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["size_bytes"].as_u64().unwrap())
        .collect();
    assert_eq!(sizes.len(), 7, "{listing}");
    assert_eq!(sizes.iter().max(), Some(&((5 << 20) + 13)));
    bedplate(["check", volume]).succeeds();
}

#[test]
fn directories_are_made_listed_and_removed() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    let volume = text(&image);
    let source = scratch.file("pages", b"content");
    bedplate(["mkdir", volume, "/srv/b", "--mode", "concurrent"]).succeeds();
    bedplate(["put", volume, text(&source), "/srv/b"]).succeeds().says("/srv/b/pages");
    bedplate(["ls", volume, "/srv"]).succeeds().says("b/");
    bedplate(["ls", volume, "-lR"])
        .succeeds()
        .says("-rw-r--r--")
        .says("concurrent")
        .says("srv/b/pages");
    bedplate(["rm", volume, "/srv"]).fails(1, "not empty");
    bedplate(["rm", volume, "/srv/b/pages"]).succeeds().says("removed 1 file");
    bedplate(["rm", volume, "-r", "/srv"]).succeeds().says("2 directories");
    assert_eq!(bedplate(["ls", volume]).succeeds().stdout(), "");
    bedplate(["rm", volume, "/srv"]).fails(1, "/srv");
    bedplate(["rm", volume, "/"]).fails(2, "root");
}

#[test]
fn holes_stay_holes_both_ways() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    let source = scratch.path("sparse");
    let file = std::fs::File::create(&source).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"begin", 0).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"end", 40 << 20).unwrap();
    file.set_len(200 << 20).unwrap();
    let copied =
        bedplate(["--json", "put", text(&image), text(&source), "/sparse"]).succeeds().json();
    assert_eq!(copied["size_bytes"], 200 << 20, "more than the volume has");
    bedplate(["get", text(&image), "/sparse", text(&scratch.path("back"))]).succeeds();
    let back = std::fs::File::open(scratch.path("back")).unwrap();
    assert_eq!(back.metadata().unwrap().len(), 200 << 20);
    assert!(std::os::unix::fs::MetadataExt::blocks(&back.metadata().unwrap()) * 512 < 8 << 20);
    let mut end = [0; 4];
    std::os::unix::fs::FileExt::read_exact_at(&back, &mut end, 40 << 20).unwrap();
    assert_eq!(&end, b"end\0");
}

#[test]
fn a_pipe_is_put_and_got() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    let content = pattern((9 << 20) + 5);
    let mut put = command(["put", text(&image), "-", "/piped"]);
    let mut child = put.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&content).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(bedplate(["get", text(&image), "/piped", "-"]).succeeds().stdout_bytes(), content);
    let mut put = command(["put", text(&image), "-", "/"]);
    put.stdin(Stdio::null());
    run(put).fails(1, "name the file");
}

#[test]
fn a_copy_that_does_not_fit_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    let source = scratch.file("large", &pattern(80 << 20));
    bedplate(["put", text(&image), text(&source), "/large"]).fails(1, "");
    assert_eq!(bedplate(["ls", text(&image)]).succeeds().stdout(), "");
    let small = scratch.file("small", &pattern(1 << 20));
    bedplate(["put", text(&image), text(&small), "/small"]).succeeds();
    bedplate(["check", text(&image)]).succeeds();
}

#[test]
fn the_mode_of_a_file_is_set_shown_and_taken_away() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    let source = scratch.file("pages", b"content");
    bedplate(["put", text(&image), text(&source), "/pages", "--mode", "direct"]).succeeds();
    let address = format!("{}:/pages", text(&image));
    bedplate(["mode", &address]).succeeds().says("direct");
    bedplate(["mode", &address, "concurrent+cache"]).succeeds().says("concurrent+cache");
    assert_eq!(
        bedplate(["--json", "mode", &address]).succeeds().json()["mode"],
        "concurrent+cache"
    );
    bedplate(["mode", &address, "inherit"]).succeeds().says("not set");
    bedplate(["mode", &address, "fast"]).fails(2, "unknown I/O mode 'fast'");
    let root = format!("{}:/", text(&image));
    bedplate(["mode", &root, "concurrent"]).succeeds();
    bedplate(["put", text(&image), text(&source), "/heir"]).succeeds();
    assert_eq!(
        bedplate(["--json", "stat", &format!("{}:/heir", text(&image))]).succeeds().json()["effective_mode"],
        "concurrent"
    );
}

#[test]
fn blocks_are_preallocated_and_shown_as_unwritten() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    let address = format!("{}:/log", text(&image));
    bedplate(["preallocate", &address, "8M"]).succeeds().says("8 MiB allocated in 1 extent");
    let stat = bedplate(["--json", "stat", &address]).succeeds().json();
    assert_eq!(
        (stat["size_bytes"].as_u64(), stat["extents"][0]["unwritten"].as_bool()),
        (Some(8 << 20), Some(true)),
        "{stat}"
    );
    bedplate(["stat", "--extents", &address]).succeeds().says("unwritten").says("file offset");
    bedplate(["preallocate", &address, "4M", "--offset", "8M", "--keep-size"])
        .succeeds()
        .says("size 8 MiB");
    bedplate(["preallocate", &address, "1G"]).fails(1, "");
}

#[test]
fn a_volume_grows_with_its_image() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    bedplate(["grow", text(&image)]).succeeds().says("did not grow");
    let grown = bedplate(["--json", "grow", text(&image), "128M"]).succeeds().json();
    assert!(grown["size_bytes"].as_u64() > grown["before_bytes"].as_u64(), "{grown}");
    bedplate(["grow", text(&image), "64M"]).fails(1, "bedplate shrink");
    let source = scratch.file("large", &pattern(80 << 20));
    bedplate(["put", text(&image), text(&source), "/large"]).succeeds();
    bedplate(["check", text(&image)]).succeeds();
}

/// A directory with all that is in it, mounted and not.
#[test]
fn the_mode_of_a_tree_is_set() {
    let scratch = Scratch::new();
    let image = scratch.image("v.img");
    let file = scratch.file("file", b"content");
    let inside = |path: &str| format!("{}:{path}", text(&image));
    bedplate(["mkdir", text(&image), "/db"]).succeeds();
    bedplate(["mkdir", text(&image), "/db/base"]).succeeds();
    for path in ["/db/base/1", "/db/base/2", "/outside"] {
        bedplate(["put", text(&image), text(&file), path]).succeeds();
    }
    let mode = |path: &str| bedplate(["--json", "mode", path]).succeeds().json()["mode"].clone();
    bedplate(["mode", "-R", &inside("/db"), "concurrent"])
        .succeeds()
        .says("so are 3 files and directories in it");
    for path in ["/db", "/db/base", "/db/base/2"] {
        assert_eq!(mode(&inside(path)), "concurrent", "{path}");
    }
    assert!(mode(&inside("/outside")).is_null());
    bedplate(["mode", "-R", &inside("/db")]).fails(2, "MODE");

    if !can_mount("the mode of a tree") {
        return;
    }
    let dir = scratch.directory("mnt");
    bedplate(["mount", text(&image), text(&dir)]).succeeds();
    bedplate(["mode", "-R", text(&dir.join("db")), "inherit"]).succeeds();
    assert!(mode(text(&dir.join("db/base/1"))).is_null());
    bedplate(["unmount", text(&dir)]).succeeds();
}
