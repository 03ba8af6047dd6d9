//! Volumes that were kept from every version of the format are opened and read (docs/format.md).
//!
//! `images/KIND-vN.kept` has the devices of a volume, `images/KIND-vN.txt` what could be read of it
//! when it was kept. A version that writes something new keeps what it writes:
//! `cargo run -p bedplate --example keep_images`, which never replaces a file.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod making;
mod packing;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate::{
    AlignedBuf, BlockDevice, ErrorKind, FileSystem, Group, GroupErrorKind, ImportOptions,
    MountOptions, OpenOptions, Role,
};

use making::{IDLE, KINDS, crc32c, manifest, members_of, quiet, version_of};
use packing::{Named, content, copies, unpack};

/// A kept volume as it is opened: the file system's device, its log's, and the group below.
struct Opened {
    device: Arc<dyn BlockDevice>,
    log: Option<Arc<dyn BlockDevice>>,
    group: Option<Group>,
}

fn images() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kept/images")
}

/// Returns every kept volume: its name, its devices, and what could be read of it.
fn kept() -> Vec<(String, Vec<Named>, String)> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(images())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "kept"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    let read = |path: &PathBuf| {
        let packed = std::fs::read(path).unwrap();
        assert!(packed.len() < 100 << 10, "{}: {} bytes", path.display(), packed.len());
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        (name, unpack(&packed), std::fs::read_to_string(path.with_extension("txt")).unwrap())
    };
    paths.iter().map(read).collect()
}

/// Opens the group where there is one.
fn opened(devices: &[Named], options: &ImportOptions) -> Opened {
    let states = |kind| {
        let of_kind = |(_, device): &&Named| version_of(device).is_some_and(|(k, _)| k == kind);
        devices.iter().filter(of_kind).map(|(_, device)| Arc::clone(device)).collect::<Vec<_>>()
    };
    let members = members_of(devices);
    if members.is_empty() {
        let (device, log) = (Arc::clone(&states("volume")[0]), states("log device").pop());
        return Opened { device, log, group: None };
    }
    let group = Group::import(&members, options).unwrap();
    Opened { device: group.volume(Role::Data).unwrap(), log: None, group: Some(group) }
}

fn mount(opened: &Opened, options: MountOptions) -> FileSystem {
    FileSystem::mount(Arc::clone(&opened.device), opened.log.clone(), options).unwrap()
}

fn sound(name: &str, opened: &Opened) {
    let report = FileSystem::check(&opened.device, opened.log.as_ref(), false).unwrap();
    assert!(report.findings.is_empty(), "{name}: {:?}", report.findings);
}

/// Returns the lines of all but what the test changes: the directory `/a` and two names in it.
fn untouched(manifest: &str) -> Vec<&str> {
    let touched = |line: &&str| ["/a ", "/a/odd ", "/a/later "].iter().any(|p| line.starts_with(p));
    manifest.lines().filter(|line| !touched(line)).collect()
}

fn close(opened: Opened) {
    drop(opened.device);
    if let Some(group) = opened.group {
        group.close().unwrap();
    }
}

/// S-241: what any version wrote is checked, mounted without a write, mounted for writing, changed
/// and mounted again, and every byte of every file and checkpoint is what it was.
#[test]
fn s_241_a_volume_of_every_version_opens_with_all_that_it_holds() {
    for (name, devices, expected) in kept() {
        let read_only = ImportOptions { read_only: true, ..IDLE };
        let before: Vec<_> = devices.iter().map(|(_, device)| content(device)).collect();
        let volume = opened(&devices, &read_only);
        sound(&name, &volume);
        let fs = mount(&volume, MountOptions { read_only: true, ..quiet() });
        assert_eq!(manifest(&fs), expected, "{name}, read-only");
        fs.unmount().unwrap();
        close(volume);
        let after: Vec<_> = devices.iter().map(|(_, device)| content(device)).collect();
        assert!(before == after, "{name}: a read-only mount wrote");

        let volume = opened(&devices, &IDLE);
        if let Some(group) = &volume.group {
            group.run_relayout(&mut |_| true).unwrap();
            assert!(group.relayout_progress().is_none(), "{name}");
        }
        let fs = mount(&volume, quiet());
        assert_eq!(manifest(&fs), expected, "{name}, for writing");
        fs.remove("/a/odd").unwrap();
        let later = fs.open("/a/later", &OpenOptions::create()).unwrap();
        later.write_at(b"later", 0).unwrap();
        drop(later);
        fs.unmount().unwrap();
        sound(&name, &volume);
        let fs = mount(&volume, quiet());
        let found = manifest(&fs);
        assert_eq!(untouched(&found), untouched(&expected), "{name}, later");
        assert!(found.contains("\n/a/later ") && !found.contains("\n/a/odd "), "{name}: {found}");
        fs.unmount().unwrap();
        close(volume);
    }
}

/// S-196: a volume of any version is upgraded in place to the present one, with all that it holds.
#[test]
fn s_196_a_volume_of_every_version_is_upgraded_with_all_that_it_holds() {
    for (name, devices, expected) in kept() {
        let volume = opened(&devices, &IDLE);
        FileSystem::upgrade(&volume.device, volume.log.as_ref()).unwrap();
        sound(&name, &volume);
        let fs = mount(&volume, quiet());
        assert_eq!(manifest(&fs), expected, "{name}, upgraded");
        fs.unmount().unwrap();
        if volume.group.is_none() {
            assert_eq!(version_of(&volume.device), Some(("volume", 5)), "{name}");
        }
        close(volume);
    }
}

/// S-242: what is written today is kept: a change that writes a new version of anything keeps a
/// volume of it, and what was kept of older ones stays.
#[test]
fn s_242_a_volume_of_every_version_that_is_written_is_kept() {
    let mut versions: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    let kept = kept();
    for (_, devices, _) in &kept {
        for (kind, version) in devices.iter().filter_map(|(_, device)| version_of(device)) {
            versions.entry(kind).or_default().push(version);
        }
    }
    for (kind, make) in KINDS {
        for (name, device) in make() {
            let Some((what, version)) = version_of(&device) else { continue };
            assert!(
                versions.get(what).is_some_and(|known| known.contains(&version)),
                "{kind}: the {what} of {name} is of version {version}, of which nothing is kept: \
                 run `cargo run -p bedplate --example keep_images` and commit what it makes"
            );
        }
    }
    for (what, newest) in [("volume", 6), ("label", 8), ("log device", 1)] {
        for version in 1..=newest {
            assert!(versions[what].contains(&version), "no {what} of version {version} is kept");
        }
    }
}

/// Makes a device state a version that no software knows, under a checksum that fits.
fn from_the_future(
    device: &Arc<dyn BlockDevice>,
    copies: &[u64],
    covered: impl Fn(&[u8]) -> usize,
) {
    for at in copies {
        let mut head = AlignedBuf::zeroed(64 << 10);
        device.read_at(&mut head, *at).unwrap();
        head[8..12].copy_from_slice(&99_u32.to_le_bytes());
        head[12..16].fill(0);
        let sum = crc32c(&head[..covered(&head)]);
        head[12..16].copy_from_slice(&sum.to_le_bytes());
        device.write_at(&head, *at).unwrap();
    }
}

/// S-243: what a newer version wrote is refused by that number, in one sentence that says what to
/// do, and nothing is written to it.
#[test]
fn s_243_a_newer_version_is_refused_and_left_alone() {
    let all = kept();
    let of = |kind: &str| {
        let (_, devices, _) = all.iter().find(|(name, ..)| name.starts_with(kind)).unwrap();
        copies(devices)
    };
    let refused = |message: &str, known: u32| {
        for words in ["99", &known.to_string(), "use "] {
            assert!(message.contains(words), "{message} lacks {words}");
        }
        assert!(message.contains("newer"), "{message}");
    };

    let volume = of("unmounted").remove(0).1;
    from_the_future(&volume, &[0, 8 << 20], |_| 4096);
    let before = content(&volume);
    let error = FileSystem::mount(Arc::clone(&volume), None, quiet()).err().unwrap();
    assert_eq!(error.kind, ErrorKind::NewerFormat, "{error}");
    refused(&error.to_string(), 6);
    let error = FileSystem::check(&volume, None, true).err().unwrap();
    assert_eq!(error.kind, ErrorKind::NewerFormat, "{error}");
    assert!(content(&volume) == before, "something was written");

    let members: Vec<_> = of("mirror").into_iter().map(|(_, device)| device).collect();
    let length = |head: &[u8]| u32::from_le_bytes(head[16..20].try_into().unwrap()) as usize;
    from_the_future(&members[0], &[0, 1 << 20], length);
    let before = content(&members[0]);
    let error = Group::import(&members, &IDLE).err().unwrap();
    assert_eq!(error.kind, GroupErrorKind::NewerFormat, "{error}");
    refused(&error.to_string(), 8);
    assert!(content(&members[0]) == before, "something was written");

    let devices = of("log-device");
    let (volume, log) = (Arc::clone(&devices[0].1), Arc::clone(&devices[1].1));
    from_the_future(&log, &[0], |_| 64);
    let before = content(&log);
    let error = FileSystem::mount(volume, Some(Arc::clone(&log)), quiet()).err().unwrap();
    refused(&error.to_string(), 1);
    assert!(content(&log) == before, "something was written");
}
