//! What has to be prepared below a mount, or looked at below it: names that only the library makes, and what a power cut leaves.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use block::{BlockDevice, CrashChoice, SimulatedDevice};
use fs::{FileKind, FileSystem, FormatOptions, InodeNo, MountOptions, NewFile, OpenOptions};

use crate::harness::{Mounted, available, errno, format_memory, has_program, shell};

/// Files with such names cannot be made on a mount, but by the library: then they are what their names say.
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
        volume.open_inode(ino, &OpenOptions::read_write()).unwrap().write_at(name.as_bytes(), 0).unwrap();
    }
    volume.unmount().unwrap();
    let m = Mounted::on(device, "");
    for (name, content) in [("both", "both"), ("both::direct", "both::direct"), ("both::cached", "both"), ("only::concurrent", "only::concurrent")] {
        let file = File::open(m.path(name)).unwrap();
        assert_eq!(std::io::read_to_string(&file).unwrap(), content, "S-28: {name}");
    }
    assert_eq!(errno(File::open(m.path("only"))), libc::ENOENT);
    assert_ne!(m.path("both").metadata().unwrap().ino(), m.path("both::direct").metadata().unwrap().ino());
    m.finish();
}

/// Writes through a mapping and makes it durable by `msync` or by `fsync`; then what a program writes as it likes, made durable by `fdatasync`.
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

/// The power goes while the volume is still mounted: what `msync`, `fsync` or `fdatasync` had answered for is there, and nothing else made it so.
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
        let m = Mounted::on(device, &[options, "sync=3600s"].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(","));
        for how in ["msync", "fsync", "write"] {
            shell(&m, &format!("python3 {} {how} $M/{how}", script.path().display()));
            let image: Arc<dyn BlockDevice> = simulated.crash_image(simulated.operation_count(), &CrashChoice::LoseAll);
            let left = FileSystem::mount(image, None, MountOptions::default()).unwrap();
            let file = left.open(format!("/{how}"), &OpenOptions::read_only()).unwrap_or_else(|error| panic!("S-3: {options}, {how}: {error}"));
            let mut found = vec![0; 70_003];
            assert_eq!(file.read_at(&mut found, 0).unwrap(), 70_003, "S-1: {options}, {how}");
            assert!(found[3..] == *b"durable".repeat(10_000), "S-43: {options}, {how}");
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
    let mut server = crate::harness::Server::start(rustix::process::geteuid().as_raw(), "mode=direct");
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
        assert_eq!(errno(result), libc::ENOTCONN, "S-45");
    }
}
