//! Clauses that one sentence of a test proves or refutes: a clean unmount, which mode an open gets,
//! names with a suffix, formatting, superblocks.

use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice, CrashChoice, SimulatedDevice};
use bedplate_fs::{
    ErrorKind, FileKind, FileSystem, FormatOptions, InodeNo, IoMode, MountOptions, OpenOptions,
    SetAttr,
};

use crate::common::{SIZE, assert_sound, device, formatted, mount, new_file};
use crate::support::options;

/// Where the second copy of the superblock lies.
const COPY_B: u64 = 8 << 20;

fn content(byte: u8) -> Vec<u8> {
    (0..200_001_usize).map(|at| byte.wrapping_add((at / 7) as u8)).collect()
}

/// Leaves files, names, attributes and a checkpoint that no sync made durable.
fn work(fs: &FileSystem) {
    fs.create_dir_all("/d/e").unwrap();
    for (number, mode) in IoMode::ALL.into_iter().enumerate() {
        let file = fs
            .open(
                format!("/d/{}", mode.name()),
                &OpenOptions { mode: Some(mode), ..OpenOptions::create() },
            )
            .unwrap();
        file.write_at(&content(number as u8), 0).unwrap();
    }
    // It makes all before it durable; what comes after it is left to the unmount.
    fs.create_checkpoint("kept", &bedplate_fs::CheckpointOptions::default()).unwrap();
    for (number, mode) in IoMode::ALL.into_iter().enumerate() {
        let file = fs
            .open(
                format!("/d/{}", mode.name()),
                &OpenOptions { mode: Some(mode), ..OpenOptions::read_write() },
            )
            .unwrap();
        file.write_at(&content(number as u8 + 100)[..5000], 3000).unwrap();
        fs.set_attr(
            file.ino(),
            &SetAttr { mode: Some(0o4700), uid: Some(9), ..SetAttr::default() },
        )
        .unwrap();
        fs.set_xattr(file.ino(), b"user.note", b"kept", false, false).unwrap();
    }
    fs.remove("/d/e").unwrap();
}

fn assert_work(fs: &FileSystem) {
    assert!(!fs.info().recovery.needed, "S-8: a clean volume needs no recovery");
    assert_eq!(fs.checkpoints().len(), 1);
    assert_eq!(fs.resolve("/d/e").unwrap_err().kind, ErrorKind::NotFound);
    for (number, mode) in IoMode::ALL.into_iter().enumerate() {
        let file = fs.open(format!("/d/{}", mode.name()), &OpenOptions::read_only()).unwrap();
        let mut expected = content(number as u8);
        expected[3000..8000].copy_from_slice(&content(number as u8 + 100)[..5000]);
        let mut found = vec![0; file.size() as usize];
        file.read_at(&mut found, 0).unwrap();
        assert!(found == expected, "S-8: {mode}");
        let attr = fs.attr(file.ino()).unwrap();
        assert_eq!((attr.mode & 0o7777, attr.uid), (0o4700, 9), "S-8: {mode}");
        assert_eq!(fs.get_xattr(file.ino(), b"user.note").unwrap(), b"kept");
    }
}

/// S-8: nothing but what the device was made to keep is there afterwards, so an unmount that does
/// not sync, or does not flush last, shows.
#[test]
fn s_8_a_clean_unmount_leaves_nothing_to_a_cache_below() {
    for own_log in [false, true] {
        let data = SimulatedDevice::new(SIZE, 1);
        let log = SimulatedDevice::new(SIZE, 2);
        let devices = |data: &Arc<SimulatedDevice>, log: &Arc<SimulatedDevice>| {
            let log: Option<Arc<dyn BlockDevice>> = own_log.then(|| Arc::clone(log) as _);
            (Arc::clone(data) as Arc<dyn BlockDevice>, log)
        };
        let (volume, its_log) = devices(&data, &log);
        FileSystem::format(&volume, its_log.as_ref(), &FormatOptions::default()).unwrap();
        let fs = FileSystem::mount(volume, its_log, options(IoMode::Cached)).unwrap();
        work(&fs);
        fs.unmount().unwrap();
        let cut = |device: &SimulatedDevice| {
            device.crash_image(device.operation_count(), &CrashChoice::LoseAll)
        };
        let (volume, its_log): (Arc<dyn BlockDevice>, Option<Arc<dyn BlockDevice>>) =
            (cut(&data), own_log.then(|| cut(&log) as _));
        let report = FileSystem::check(&volume, its_log.as_ref(), false).unwrap();
        assert!(report.clean_unmount && report.findings.is_empty(), "S-8: {:?}", report.findings);
        let fs = FileSystem::mount(volume, its_log, MountOptions::default()).unwrap();
        assert_work(&fs);
        fs.unmount().unwrap();
    }
}

fn modes() -> impl Iterator<Item = Option<IoMode>> {
    std::iter::once(None).chain(IoMode::ALL.into_iter().map(Some))
}

/// S-26, S-27: every mode at every one of the four places, with and without `O_DIRECT`; also after
/// the volume was mounted again.
#[test]
fn s_26_s_27_the_open_goes_before_the_file_the_directory_and_the_mount() {
    let device = formatted();
    let fs = mount(&device);
    for directory in modes() {
        let dir = fs.create_dir_all(format!("/{directory:?}")).unwrap().ino;
        fs.set_io_mode(dir, directory).unwrap();
        // What was made before the directory's mode changed keeps its own; a directory below
        // inherits as a file does.
        let below = fs.make(dir, b"below", FileKind::Directory, new_file(), 0).unwrap().ino;
        for file in modes() {
            let ino = fs
                .make(below, format!("{file:?}").as_bytes(), FileKind::File, new_file(), 0)
                .unwrap()
                .ino;
            if file.is_some() {
                fs.set_io_mode(ino, file).unwrap();
            }
        }
        fs.set_io_mode(dir, Some(IoMode::Direct)).unwrap();
        fs.set_io_mode(below, Some(IoMode::Concurrent)).unwrap();
    }
    fs.unmount().unwrap();
    for mounted in IoMode::ALL {
        let fs = FileSystem::mount(Arc::clone(&device), None, options(mounted)).unwrap();
        for (directory, file, open) in modes().flat_map(|directory| {
            modes().flat_map(move |file| modes().map(move |open| (directory, file, open)))
        }) {
            let asked = open.or(file).or(directory).unwrap_or(mounted);
            for direct_flag in [false, true] {
                let path = format!("/{directory:?}/below/{file:?}");
                let opened = fs
                    .open(
                        &path,
                        &OpenOptions { mode: open, direct_flag, ..OpenOptions::read_write() },
                    )
                    .unwrap();
                let expected =
                    if direct_flag && asked == IoMode::Cached { IoMode::Direct } else { asked };
                assert_eq!(
                    opened.effective_mode(),
                    expected,
                    "S-26, S-27: {path} opened as {open:?}, O_DIRECT {direct_flag}, mounted \
                     {mounted}"
                );
            }
        }
        fs.unmount().unwrap();
    }
}

/// S-27: what keeps an `O_DIRECT` open from being direct is a conflicting open, and nothing else;
/// it ends with that.
#[test]
fn s_27_o_direct_is_less_than_direct_only_beside_a_cached_open() {
    let fs = mount(&formatted());
    let direct =
        fs.open("/f", &OpenOptions { direct_flag: true, ..OpenOptions::create() }).unwrap();
    for mode in IoMode::ALL {
        let other =
            fs.open("/f", &OpenOptions { mode: Some(mode), ..OpenOptions::read_write() }).unwrap();
        let expected = if mode == IoMode::Cached { IoMode::Cached } else { IoMode::Direct };
        assert_eq!(direct.effective_mode(), expected, "S-27, S-30: beside {mode}");
        drop(other);
        assert_eq!(direct.effective_mode(), IoMode::Direct, "S-30: {mode} is gone");
    }
    fs.set_io_mode(direct.ino(), Some(IoMode::Cached)).unwrap();
    assert_eq!(
        direct.effective_mode(),
        IoMode::Direct,
        "S-27: a change of the file does not go below the open"
    );
}

fn text(fs: &FileSystem, path: &str) -> (String, IoMode) {
    let file = fs.open(path, &OpenOptions::read_only()).unwrap();
    let mut bytes = vec![0; file.size() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    (String::from_utf8(bytes).unwrap(), file.effective_mode())
}

/// S-28: files whose names really end so, beside files that the suffix would name.
#[test]
fn s_28_a_suffix_names_a_mode_unless_a_name_really_ends_so() {
    let fs = mount(&formatted());
    for name in ["plain", "both", "both::direct", "only::concurrent", "l"] {
        let ino =
            fs.make(InodeNo::ROOT, name.as_bytes(), FileKind::File, new_file(), 0).unwrap().ino;
        fs.open_inode(ino, &OpenOptions::read_write())
            .unwrap()
            .write_at(name.as_bytes(), 0)
            .unwrap();
    }
    fs.symlink(InodeNo::ROOT, b"l::direct", b"nowhere", new_file()).unwrap();
    for mode in IoMode::ALL {
        assert_eq!(text(&fs, &format!("/plain::{}", mode.name())), ("plain".into(), mode));
    }
    assert_eq!(
        text(&fs, "/both::direct"),
        ("both::direct".into(), IoMode::Cached),
        "S-28: the real name wins, and names no mode"
    );
    assert_eq!(text(&fs, "/both::concurrent"), ("both".into(), IoMode::Concurrent));
    assert_eq!(text(&fs, "/both::direct::concurrent"), ("both::direct".into(), IoMode::Concurrent));
    assert_eq!(text(&fs, "/only::concurrent"), ("only::concurrent".into(), IoMode::Cached));
    for none in ["/only::direct", "/plain::fast", "/plain::", "/l::direct", "/::direct"] {
        assert_eq!(
            fs.open(none, &OpenOptions::read_only()).map(drop).unwrap_err().kind,
            ErrorKind::NotFound,
            "S-28: {none}"
        );
    }
    // A new file gets the plain name; a link that leads nowhere is followed and not taken for a
    // suffix.
    fs.open("/new::direct", &OpenOptions::create()).unwrap();
    assert!(fs.resolve("/new").is_ok() && fs.resolve("/new::direct").is_err());
    fs.open("/l::direct", &OpenOptions::create()).unwrap();
    assert!(fs.resolve("/nowhere").is_ok());
}

/// S-39: whichever copy is damaged, and only the second one is reported.
#[test]
fn s_39_either_copy_of_the_superblock_is_enough() {
    for (damaged, second) in [(0, true), (COPY_B, false)] {
        let device = formatted();
        let fs = mount(&device);
        fs.make(InodeNo::ROOT, b"f", FileKind::File, new_file(), 0).unwrap();
        fs.unmount().unwrap();
        let mut copy = AlignedBuf::zeroed(4096);
        device.read_at(&mut copy, damaged).unwrap();
        copy[90] ^= 4;
        device.write_at(&copy, damaged).unwrap();
        let fs = mount(&device);
        assert_eq!(fs.info().recovery.second_superblock, second, "S-39: damaged at {damaged}");
        fs.lookup(InodeNo::ROOT, b"f").unwrap();
        fs.unmount().unwrap();
        assert_sound(&device);
    }
}

/// S-41: volumes of ours and of others, on the device and on that for the log; refused means
/// untouched.
#[test]
fn s_41_formatting_over_a_volume_needs_force_and_a_refusal_writes_nothing() {
    let xfs = device();
    let mut head = AlignedBuf::zeroed(4096);
    head[..4].copy_from_slice(b"XFSB");
    xfs.write_at(&head, 0).unwrap();
    let logged = (device(), device());
    FileSystem::format(&logged.0, Some(&logged.1), &FormatOptions::default()).unwrap();
    let cases = [
        (formatted(), None),
        (xfs, None),
        (device(), Some(formatted())),
        (device(), Some(Arc::clone(&logged.1))),
        (Arc::clone(&logged.0), None),
    ];
    for (number, (volume, log)) in cases.into_iter().enumerate() {
        let writes =
            || volume.counters().writes + log.as_ref().map_or(0, |log| log.counters().writes);
        let before = writes();
        let refusal =
            FileSystem::format(&volume, log.as_ref(), &FormatOptions::default()).unwrap_err();
        assert_eq!(
            (refusal.kind, writes()),
            (ErrorKind::Exists, before),
            "S-41: case {number}: {refusal}"
        );
        assert!(number != 1 || refusal.message.contains("an XFS file system"), "{refusal}");
        FileSystem::format(
            &volume,
            log.as_ref(),
            &FormatOptions { force: true, ..FormatOptions::default() },
        )
        .unwrap();
        let fs =
            FileSystem::mount(Arc::clone(&volume), log.clone(), MountOptions::default()).unwrap();
        fs.unmount().unwrap();
    }
}
