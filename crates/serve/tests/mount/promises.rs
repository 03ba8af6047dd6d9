//! What has to be prepared below a mount, or looked at below it: names that only the library makes,
//! and what a power cut leaves.

use std::fs::File;
use std::io::IoSlice;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::sync::Arc;

use bedplate_block::{BlockDevice, CrashChoice, SimulatedDevice};
use bedplate_fs::{
    FileKind, FileSystem, FormatOptions, InodeNo, MountOptions, NewFile, OpenOptions,
};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::ReadWriteFlags;

use crate::harness::{Mounted, available, errno, format_memory, has_program, pattern, shell};
use crate::names::{name_it, unnamed};

/// Files with such names cannot be made on a mount, but by the library: then they are what their
/// names say.
#[test]
fn s_28_a_file_whose_name_really_ends_so_wins() {
    if !available() {
        return;
    }
    let device = format_memory();
    let volume = FileSystem::mount(Arc::clone(&device), None, MountOptions::default()).unwrap();
    for name in ["both", "both::direct", "only::concurrent"] {
        let new = NewFile { mode: 0o644, ..NewFile::default() };
        let ino = volume.make(InodeNo::ROOT, name.as_bytes(), FileKind::File, new, 0).unwrap().ino;
        volume
            .open_inode(ino, &OpenOptions::read_write())
            .unwrap()
            .write_at(name.as_bytes(), 0)
            .unwrap();
    }
    volume.unmount().unwrap();
    let m = Mounted::on(device, "");
    for (name, content) in [
        ("both", "both"),
        ("both::direct", "both::direct"),
        ("both::cached", "both"),
        ("only::concurrent", "only::concurrent"),
    ] {
        let file = File::open(m.path(name)).unwrap();
        assert_eq!(std::io::read_to_string(&file).unwrap(), content, "S-28: {name}");
    }
    assert_eq!(errno(File::open(m.path("only"))), libc::ENOENT);
    assert_ne!(
        m.path("both").metadata().unwrap().ino(),
        m.path("both::direct").metadata().unwrap().ino()
    );
    m.finish();
}

/// Writes through a mapping and makes it durable by `msync` or by `fsync`; then what a program
/// writes as it likes, made durable by `fdatasync`.
const DURABLE: &str = r#"
import mmap, os, sys
how, path = sys.argv[1], sys.argv[2]
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
if how == "write":
    os.pwrite(fd, b"durable" * 10000, 3)
    os.fdatasync(fd)
else:
    os.ftruncate(fd, 70003)
    os.fsync(fd)
    m = mmap.mmap(fd, 70003)
    m[3:70003] = b"durable" * 10000
    m.flush() if how == "msync" else os.fsync(fd)
d = os.open(os.path.dirname(path), os.O_RDONLY)
os.fsync(d)
"#;

/// The power goes while the volume is still mounted: what `msync`, `fsync` or `fdatasync` had
/// answered for is there, and nothing else made it so.
#[test]
fn s_1_s_3_s_43_what_a_program_on_the_mount_made_durable_survives_a_power_cut() {
    if !available() || !has_program("python3") {
        return;
    }
    let script = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(script.path(), DURABLE).unwrap();
    for options in crate::data::ALL {
        let simulated = SimulatedDevice::new(64 << 20, 1);
        let device: Arc<dyn BlockDevice> = Arc::clone(&simulated) as _;
        FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
        // The daemon of the file system must not come before the cut.
        let m = Mounted::on(
            device,
            &[options, "sync=3600s"]
                .into_iter()
                .filter(|part| !part.is_empty())
                .collect::<Vec<_>>()
                .join(","),
        );
        for how in ["msync", "fsync", "write"] {
            shell(&m, &format!("python3 {} {how} $M/{how}", script.path().display()));
            let image: Arc<dyn BlockDevice> =
                simulated.crash_image(simulated.operation_count(), &CrashChoice::LoseAll);
            let left = FileSystem::mount(image, None, MountOptions::default()).unwrap();
            let file = left
                .open(format!("/{how}"), &OpenOptions::read_only())
                .unwrap_or_else(|error| panic!("S-3: {options}, {how}: {error}"));
            let mut found = vec![0; 70_003];
            assert_eq!(file.read_at(&mut found, 0).unwrap(), 70_003, "S-1: {options}, {how}");
            assert!(found[3..] == *b"durable".repeat(10_000), "S-43: {options}, {how}");
        }
        m.finish();
    }
}

/// How one call, or all calls through one open, ask to be durable.
const SYNCED: [(i32, ReadWriteFlags); 4] = [
    (0, ReadWriteFlags::DSYNC),
    (0, ReadWriteFlags::SYNC),
    (libc::O_DSYNC, ReadWriteFlags::empty()),
    (libc::O_SYNC, ReadWriteFlags::empty()),
];

/// The flags of a single call (`RWF_DSYNC`, `RWF_SYNC`) were dropped past the page cache, and
/// `copy_file_range` and `fallocate` through an `O_DSYNC` or `O_SYNC` open were synced nowhere: an
/// answered change was lost by the next power cut.
#[test]
fn s_6_what_asked_to_be_durable_survives_a_power_cut() {
    if !available() {
        return;
    }
    for options in crate::data::ALL {
        let simulated = SimulatedDevice::new(64 << 20, 1);
        let device: Arc<dyn BlockDevice> = Arc::clone(&simulated) as _;
        FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
        let m = Mounted::on(
            device,
            &[options, "sync=3600s"]
                .into_iter()
                .filter(|part| !part.is_empty())
                .collect::<Vec<_>>()
                .join(","),
        );
        std::fs::write(m.path("source"), pattern(9, 0, 20_000)).unwrap();
        for (round, (flags, of_call)) in SYNCED.into_iter().enumerate() {
            for (direct, suffix) in [
                (0, ""),
                (libc::O_DIRECT, ""),
                (0, "::concurrent"),
                (0, "::concurrent+cache"),
                (0, "::direct"),
                (0, "::cached"),
            ] {
                let name = format!("f{round}{direct}{}", &suffix.replace(':', ""));
                let what =
                    format!("S-6: '{options}', {name}: {flags:#o}, {of_call:?}, {direct:#o}");
                File::create(m.path(&name)).unwrap().sync_all().unwrap();
                File::open(m.root()).unwrap().sync_all().unwrap();
                let mut open = File::options();
                let file = open
                    .read(true)
                    .write(true)
                    .custom_flags(flags | direct)
                    .open(m.path(&format!("{name}{suffix}")))
                    .unwrap();
                let mut data = bedplate_block::AlignedBuf::zeroed(8192);
                data.copy_from_slice(&pattern(round as u64, 0, 8192));
                assert_eq!(
                    rustix::io::pwritev2(&file, &[IoSlice::new(&data)], 0, of_call).unwrap(),
                    8192,
                    "{what}"
                );
                let cut = || {
                    let image: Arc<dyn BlockDevice> =
                        simulated.crash_image(simulated.operation_count(), &CrashChoice::LoseAll);
                    let left = FileSystem::mount(image, None, MountOptions::default()).unwrap();
                    left.open(format!("/{name}"), &OpenOptions::read_only()).unwrap()
                };
                let mut found = vec![0; 8192];
                assert_eq!(cut().read_at(&mut found, 0).unwrap(), 8192, "{what}");
                assert!(found == *data, "{what}");
                if flags == 0 {
                    continue;
                }
                fallocate(&file, FallocateFlags::empty(), 8192, 8192).unwrap();
                assert_eq!(cut().size(), 16_384, "{what}: fallocate");
                let source = File::open(m.path("source")).unwrap();
                let copied = rustix::fs::copy_file_range(
                    &source,
                    Some(&mut 0),
                    &file,
                    Some(&mut 16_384),
                    20_000,
                )
                .unwrap();
                let mut found = vec![0; 20_000];
                assert_eq!(
                    (copied, cut().read_at(&mut found, 16_384).unwrap()),
                    (20_000, 20_000),
                    "{what}: copy_file_range"
                );
                assert!(found == pattern(9, 0, 20_000), "{what}: copy_file_range");
            }
        }
        m.finish();
    }
}

/// `O_SYNC` and `RWF_SYNC` ask for all attributes too, also after a write that changed nothing
/// else.
#[test]
fn s_6_a_fully_synced_write_keeps_its_time_over_a_power_cut() {
    if !available() {
        return;
    }
    for options in ["mode=direct", "mode=concurrent", "mode=concurrent+cache"] {
        let simulated = SimulatedDevice::new(64 << 20, 1);
        let device: Arc<dyn BlockDevice> = Arc::clone(&simulated) as _;
        FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
        let m = Mounted::on(device, &format!("{options},sync=3600s"));
        for (name, flags, of_call) in
            [("call", 0, ReadWriteFlags::SYNC), ("open", libc::O_SYNC, ReadWriteFlags::empty())]
        {
            let file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .custom_flags(flags)
                .open(m.path(name))
                .unwrap();
            file.write_all_at(&[1; 4096], 0).unwrap();
            file.set_modified(std::time::UNIX_EPOCH).unwrap();
            file.sync_all().unwrap();
            File::open(m.root()).unwrap().sync_all().unwrap();
            rustix::io::pwritev2(&file, &[IoSlice::new(&[2; 4096])], 0, of_call).unwrap();
            let image: Arc<dyn BlockDevice> =
                simulated.crash_image(simulated.operation_count(), &CrashChoice::LoseAll);
            let left = FileSystem::mount(image, None, MountOptions::default()).unwrap();
            assert!(left.resolve(format!("/{name}")).unwrap().mtime.0 > 0, "{options}, {name}");
        }
        m.finish();
    }
}

/// Unlike a name that is looked up, an open file is asked about without any lookup.
#[test]
fn s_45_an_open_file_fails_at_once_after_a_kill() {
    if !available() {
        return;
    }
    let mut server =
        crate::harness::Server::start(rustix::process::geteuid().as_raw(), "mode=direct");
    let path = server.dir.path().join("f");
    std::fs::write(&path, [7; 8192]).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    for result in [
        file.read_at(&mut [0; 4096], 0).map(drop),
        file.write_at(&[1; 4096], 0).map(drop),
        file.sync_all(),
        file.set_len(1),
        File::open(&path).map(drop),
    ] {
        crate::harness::is_cut_off(result);
    }
}

/// S-438: a power cut leaves of files without a name those that had been given one, with what was
/// made durable of them; the next mount removes the others.
#[test]
fn s_438_a_power_cut_leaves_no_unnamed_file() {
    if !available() {
        return;
    }
    let simulated = SimulatedDevice::new(64 << 20, 1);
    let device: Arc<dyn BlockDevice> = Arc::clone(&simulated) as _;
    FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
    let m = Mounted::on(device, "sync=3600s");
    let [kept, lost] = [1, 2].map(|fill| {
        let file = unnamed(m.root(), rustix::fs::OFlags::empty());
        file.write_all_at(&[fill; 50_000], 0).unwrap();
        file.sync_all().unwrap();
        file
    });
    name_it(&kept, &m.path("kept")).unwrap();
    kept.sync_all().unwrap();
    let image: Arc<dyn BlockDevice> =
        simulated.crash_image(simulated.operation_count(), &CrashChoice::LoseAll);
    let left = FileSystem::mount(Arc::clone(&image), None, MountOptions::default()).unwrap();
    let file = left.open("/kept", &OpenOptions::read_only()).unwrap();
    let mut found = vec![0; 50_001];
    assert_eq!(file.read_at(&mut found, 0).unwrap(), 50_000);
    assert!(found[..50_000] == [1; 50_000], "S-438: what was synced before it had a name is there");
    drop(file);
    assert_eq!(left.statfs().inodes, 2, "S-438: the root, and the file that has a name");
    left.unmount().unwrap();
    let report = FileSystem::check(&image, None, false).unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    drop((kept, lost));
    m.finish();
}
