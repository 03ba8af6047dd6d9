//! Comparing moments of which one, or both, are checkpoints of named files.

use bedplate_block::AlignedBuf;
use bedplate_fs::{CheckpointOptions, FileSystem, InodeNo, IoMode, OpenOptions, RollbackOptions};

use crate::checkpoints::{everything, of, sound, write};
use crate::support::{device, format, mount_as};

fn told(fs: &FileSystem, from: &str, to: Option<&str>) -> Vec<String> {
    let line = |difference: &bedplate_fs::CheckpointDifference| {
        let from = difference
            .from
            .as_ref()
            .map(|from| format!(" from {}", from.escape_ascii()))
            .unwrap_or_default();
        format!(
            "{:?} {}{from} {}",
            difference.kind,
            difference.path.escape_ascii(),
            difference.changed_bytes
        )
    };
    fs.checkpoint_diff(from, to.map(str::as_bytes)).unwrap().iter().map(line).collect()
}

fn filled(fs: &FileSystem, names: &[&str]) {
    names.iter().for_each(|name| write(fs, name, 0, &[1; 9000], IoMode::Cached));
}

/// S-121: a diff of a checkpoint of named files was refused altogether.
#[test]
fn s_121_named_files_are_compared_with_the_present_and_with_everything_wherever_they_went() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Cached);
    for dir in ["/db/deep", "/other"] {
        fs.create_dir_all(dir).unwrap();
    }
    filled(
        &fs,
        &["/db/same", "/db/written", "/db/gone", "/db/deep/moved", "/file", "/linked", "/other/x"],
    );
    fs.create_checkpoint("whole", &everything()).unwrap();
    fs.create_checkpoint("set", &of(&["/db", "/file", "/linked"])).unwrap();
    assert_eq!(told(&fs, "set", None), [] as [&str; 0]);
    assert_eq!(told(&fs, "whole", Some("set")), [] as [&str; 0]);
    write(&fs, "/db/written", 4096, &[2; 10], IoMode::Cached);
    fs.remove("/db/gone").unwrap();
    fs.rename_path("/db/deep/moved", "/other/moved").unwrap();
    fs.remove("/file").unwrap();
    filled(&fs, &["/file", "/db/came", "/other/came"]);
    write(&fs, "/other/x", 0, &[3; 10], IoMode::Cached);
    fs.link(fs.resolve("/linked").unwrap().ino, InodeNo::ROOT, b"again").unwrap();
    fs.create_dir_all("/db/new/below").unwrap();
    filled(&fs, &["/db/new/below/f"]);
    fs.create_checkpoint("later", &everything()).unwrap();
    let expected = [
        "Added /again 9000",
        "Added /db/came 9000",
        "Removed /db/gone 0",
        "Added /db/new 0",
        "Added /db/new/below 0",
        "Added /db/new/below/f 9000",
        "Changed /db/written 4096",
        "Removed /file 0",
        "Added /file 9000",
        "Renamed /other/moved from /db/deep/moved 0",
    ];
    for to in [None, Some("later")] {
        assert_eq!(told(&fs, "set", to), expected, "{to:?}");
    }
    // The directory itself went elsewhere.
    fs.rename_path("/db", "/other/db").unwrap();
    let moved = told(&fs, "set", None);
    assert!(
        moved.contains(&"Renamed /other/db from /db 0".to_owned())
            && moved.contains(&"Changed /other/db/written 4096".to_owned()),
        "{moved:?}"
    );
    // Everything, and later one of named files: only what that is of.
    fs.create_checkpoint("set2", &of(&["/other/db"])).unwrap();
    assert_eq!(told(&fs, "later", Some("set2")), ["Renamed /other/db from /db 0"]);
    fs.unmount().unwrap();
    sound(&device);
}

/// S-121
#[test]
fn s_121_two_checkpoints_of_named_files_are_compared_where_both_are_of_them() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Cached);
    for dir in ["/a/deep", "/b/sub", "/c"] {
        fs.create_dir_all(dir).unwrap();
    }
    filled(
        &fs,
        &[
            "/a/deep/x",
            "/b/same",
            "/b/written",
            "/b/gone",
            "/b/sub/y",
            "/c/z",
            "/single",
            "/wanders",
        ],
    );
    let take = |name: &str, options: &CheckpointOptions| {
        fs.create_checkpoint(name, options).map(drop).unwrap();
    };
    take("one", &of(&["/a", "/b", "/single", "/wanders"]));
    write(&fs, "/b/written", 0, &[2; 10], IoMode::Cached);
    fs.remove("/b/gone").unwrap();
    fs.rename_path("/wanders", "/c/wanders").unwrap();
    filled(&fs, &["/b/came"]);
    fs.remove("/b/sub/y").unwrap();
    fs.remove("/b/sub").unwrap();
    take("two", &of(&["/b", "/c"]));
    let expected = [
        "OnlyFirst /a 0",
        "Added /b/came 9000",
        "Removed /b/gone 0",
        "Removed /b/sub 0",
        "Removed /b/sub/y 0",
        "Changed /b/written 4096",
        "OnlySecond /c 0",
        "Renamed /c/wanders from /wanders 0",
        "OnlyFirst /single 0",
    ];
    assert_eq!(told(&fs, "one", Some("two")), expected);
    // What is of a part of the other only.
    take("three", &of(&["/b/came"]));
    write(&fs, "/b/came", 0, &[3; 10], IoMode::Cached);
    take("four", &of(&["/b"]));
    let found = told(&fs, "three", Some("four"));
    assert!(
        found.contains(&"Changed /b/came 4096".to_owned())
            && found.contains(&"OnlySecond /b 0".to_owned()),
        "{found:?}"
    );
    fs.unmount().unwrap();
    sound(&device);
}

/// S-77: a file that was cut within a block, and came back longer by a rollback, has bytes behind
/// the cut that a copy does not have (seed 10100334).
#[test]
fn s_77_what_a_rollback_brings_back_within_the_last_block_is_told() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    let file = fs.open("/file", &OpenOptions::create()).unwrap();
    let content = AlignedBuf::from_slice(&[7; 8192]);
    file.write_at(&content, 0).unwrap();
    fs.create_checkpoint("whole", &CheckpointOptions::default()).unwrap();
    file.set_size(5000).unwrap();
    fs.create_checkpoint("cut", &CheckpointOptions::default()).unwrap();
    fs.rollback("whole", &RollbackOptions { path: None, force: true }).unwrap();
    let told = fs.changed_blocks(file.ino(), "cut", None).unwrap();
    assert_eq!((told.size_before, told.size), (Some(5000), 8192));
    let mut copy = vec![7; 5000];
    copy.resize(8192, 0);
    for range in told {
        let bytes = range.offset as usize..(range.offset + range.len) as usize;
        copy[bytes.clone()].copy_from_slice(&content[bytes]);
    }
    assert!(copy == content[..], "a copy lacks what came back");
    let found = fs.checkpoint_diff("cut", None).unwrap();
    assert_eq!(found[0].changed_bytes, 4096, "as many bytes as the changed blocks have");
}
