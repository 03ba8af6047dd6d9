//! Damaged volumes: what `check`, `check --repair` and `salvage` say and do.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use bedplate::{
    DeviceOptions, FileSystem, InodeNo, IoMode, MountOptions, NewFile, Volume, VolumeOptions,
};

use crate::harness::{Scratch, bedplate, pattern, text};

/// Where the copies of the superblock are.
const SUPERBLOCKS: [u64; 2] = [0, 8 << 20];
const HOLE: u64 = 1 << 20;

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

/// Mounts an image in this process.
pub fn mounted(image: &Path) -> FileSystem {
    // No claim: a program that a test beside this one starts would inherit it for a moment, and the
    // next command would find the image in use.
    let options =
        VolumeOptions { device: DeviceOptions { exclusive: false, ..DeviceOptions::default() } };
    let device = Volume::open(image, &options).unwrap().device();
    FileSystem::mount(device, None, MountOptions::default()).unwrap()
}

/// An image with `/d/data`, its second name `/again`, the sparse `/holes`, the link `/link` and the
/// pipe `/pipe`.
fn filled(scratch: &Scratch) -> std::path::PathBuf {
    let image = scratch.image("v.img");
    let fs = mounted(&image);
    let d = fs.create_dir_all("/d").unwrap().ino;
    let create =
        bedplate::OpenOptions { mode: Some(IoMode::Concurrent), ..bedplate::OpenOptions::create() };
    let data = fs.open("/d/data", &create).unwrap();
    data.write_at(&pattern(300_001), 0).unwrap();
    fs.link(data.ino(), InodeNo::ROOT, b"again").unwrap();
    fs.set_xattr(data.ino(), b"user.note", b"kept", false, false).unwrap();
    let holes = fs.open("/holes", &create).unwrap();
    holes.write_at(&pattern(4096), HOLE).unwrap();
    holes.set_size(2 * HOLE).unwrap();
    let new = NewFile { mode: 0o751, uid: 0, gid: 0, umask: 0 };
    fs.symlink(InodeNo::ROOT, b"link", b"d/data", new).unwrap();
    fs.make(InodeNo::ROOT, b"pipe", bedplate::FileKind::Fifo, new, 0).unwrap();
    let attributes = bedplate::SetAttr {
        mode: Some(0o751),
        mtime: Some(bedplate::Timestamp(1_234_567_890_000_000_000)),
        ..Default::default()
    };
    fs.set_attr(d, &attributes).unwrap();
    fs.set_attr(data.ino(), &attributes).unwrap();
    drop((data, holes));
    fs.unmount().unwrap();
    image
}

#[test]
fn salvage_copies_everything_out_of_a_sound_volume() {
    let scratch = Scratch::new();
    let image = filled(&scratch);
    let before = std::fs::read(&image).unwrap();
    let to = scratch.path("saved");
    bedplate(["salvage", text(&image), text(&to)])
        .succeeds()
        .says("2 files, 1 directory, 3 others")
        .says("nothing is missing");
    assert!(std::fs::read(&image).unwrap() == before, "the source is not written");
    assert!(std::fs::read(to.join("d/data")).unwrap() == pattern(300_001));
    let data = to.join("d/data").metadata().unwrap();
    assert_eq!(
        (data.nlink(), data.mtime(), data.permissions().mode() & 0o777),
        (2, 1_234_567_890, 0o751)
    );
    assert_eq!(
        (to.join("d").metadata().unwrap().mtime(), to.join("again").metadata().unwrap().ino()),
        (1_234_567_890, data.ino())
    );
    assert_eq!(to.join("link").read_link().unwrap(), Path::new("d/data"));
    let holes = to.join("holes").metadata().unwrap();
    assert_eq!(holes.len(), 2 * HOLE);
    assert!(holes.blocks() * 512 < HOLE, "{} blocks", holes.blocks());
    let mut part = vec![0; 4096];
    File::open(to.join("holes")).unwrap().read_exact_at(&mut part, HOLE).unwrap();
    assert!(part == pattern(4096));
    bedplate(["salvage", text(&image), text(&to)]).fails(1, "is not empty");
}

#[test]
fn salvage_reads_what_no_mount_does() {
    let scratch = Scratch::new();
    let image = filled(&scratch);
    for at in SUPERBLOCKS {
        overwrite(&image, at, &[0; 4096]);
    }
    bedplate(["ls", text(&image)]).fails(1, "Bedplate");
    let to = scratch.path("saved");
    let run = bedplate(["salvage", text(&image), text(&to)]).says("both superblocks are lost");
    assert_eq!(run.code(), 4);
    assert!(std::fs::read(to.join("d/data")).unwrap() == pattern(300_001));
    let document =
        bedplate(["salvage", text(&image), text(&scratch.path("again")), "--json"]).json();
    assert_eq!(
        (
            document["complete"].as_bool(),
            document["files"].as_u64(),
            document["lost_bytes"].as_u64()
        ),
        (Some(false), Some(2), Some(0))
    );
    assert!(
        document["doubtful"]
            .as_array()
            .is_some_and(|list| list.iter().any(|noted| noted["path"] == "d/data")),
        "{document}"
    );
    bedplate(["salvage", text(&image), text(&scratch.path("third")), "--block-size", "3000"])
        .fails(2, "power of two");
}

#[test]
fn salvage_of_what_is_no_volume_says_so() {
    let scratch = Scratch::new();
    let file = scratch.file("random.img", &pattern(64 << 20));
    bedplate(["salvage", text(&file), text(&scratch.path("to"))])
        .fails(4, "not one file was found");
}

#[test]
fn a_repair_says_what_it_did_and_a_check_what_it_would_do() {
    let scratch = Scratch::new();
    let image = filled(&scratch);
    overwrite(&image, SUPERBLOCKS[1] + 200, &[0xff; 8]);
    let before = std::fs::read(&image).unwrap();
    let check = bedplate(["check", text(&image)])
        .says("superblock at byte 8388608 is damaged")
        .says("a repair writes it again")
        .says("mends it");
    assert_eq!(check.code(), 4);
    assert!(std::fs::read(&image).unwrap() == before, "a check writes nothing");
    let repair =
        bedplate(["check", "--repair", text(&image)]).says("(mended)").says("1 fault, all mended");
    assert_eq!(repair.code(), 1);
    bedplate(["check", text(&image)]).succeeds();
}

#[test]
fn a_repair_that_needs_a_guess_writes_nothing_and_says_what_to_do() {
    let scratch = Scratch::new();
    let image = filled(&scratch);
    // Pages of the metadata that hold the names; one of them is of the present commit.
    let content = std::fs::read(&image).unwrap();
    let pages: Vec<usize> = (0..content.len() / 4096)
        .filter(|page| content[page * 4096..][..4096].windows(6).any(|bytes| bytes == b"\x01again"))
        .collect();
    assert!(!pages.is_empty());
    pages.iter().for_each(|page| overwrite(&image, *page as u64 * 4096, &[0xaa; 64]));
    let before = std::fs::read(&image).unwrap();
    for arguments in [&["check", text(&image)][..], &["check", "--repair", text(&image)]] {
        let run = bedplate(arguments).says("metadata tree is damaged").says("bedplate salvage");
        assert_eq!(run.code(), 4);
        assert!(std::fs::read(&image).unwrap() == before, "nothing was written");
    }
    let document = bedplate(["check", text(&image), "--json"]).json();
    assert_eq!(
        (document["findings"][0]["repairable"].as_bool(), document["findings"][0]["kind"].as_str()),
        (Some(false), Some("metadata"))
    );
    let to = scratch.path("saved");
    assert_eq!(bedplate(["salvage", text(&image), text(&to)]).code(), 4);
    let saved = std::process::Command::new("find")
        .arg(&to)
        .args(["-type", "f", "-size", "300001c"])
        .output()
        .unwrap();
    let saved = String::from_utf8(saved.stdout).unwrap();
    let path = saved.lines().next().expect("the file is there, under some name");
    assert!(std::fs::read(path).unwrap() == pattern(300_001));
}
