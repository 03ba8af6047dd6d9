//! Release-behind: what asks for it, and what it leaves in the library cache.

use bedplate_fs::{
    FileKind, FileSystem, InodeNo, IoMode, MountOptions, OpenOptions, ReleaseBehind, Tunable,
    TuneOptions,
};

use crate::common::{formatted, mount, new_file};

const MIB: usize = 1 << 20;

fn open(fs: &FileSystem, name: &str) -> bedplate_fs::File {
    fs.open(name, &OpenOptions { mode: Some(IoMode::Cached), ..OpenOptions::create() }).unwrap()
}

/// Writes a file of 8 MiB and reads it, both in order; returns the bytes that stay in the cache
/// after each.
fn scan(fs: &FileSystem, name: &str) -> (u64, u64) {
    let file = open(fs, name);
    let before = fs.info().cache.resident_bytes;
    let content: Vec<u8> = (0..8 * MIB).map(|at| (at / 4096 + at % 251) as u8).collect();
    for (step, bytes) in content.chunks(100_000).enumerate() {
        file.write_at(bytes, step as u64 * 100_000).unwrap();
    }
    file.sync_data().unwrap();
    let written = fs.info().cache.resident_bytes - before;
    let mut seen = vec![0; content.len()];
    for (step, bytes) in seen.chunks_mut(50_000).enumerate() {
        file.read_at(bytes, step as u64 * 50_000).unwrap();
    }
    assert_eq!(seen, content);
    (written, fs.info().cache.resident_bytes - before)
}

#[test]
fn s_250_the_file_goes_before_its_directory_and_that_before_the_volume() {
    let device = formatted();
    let fs = mount(&device);
    let dir = fs.make(InodeNo::ROOT, b"d", FileKind::Directory, new_file(), 0).unwrap().ino;
    fs.set_release_behind(dir, Some(ReleaseBehind::Both)).unwrap();
    let all = 8 * MIB as u64;
    assert_eq!(scan(&fs, "/plain"), (all, all));
    assert_eq!(scan(&fs, "/d/f"), (0, 0), "S-250");
    let counters = open(&fs, "/d/f").counters();
    assert_eq!(counters.released_bytes, 2 * all, "once written, once read");
    let file = fs.resolve("/d/f").unwrap().ino;
    assert_eq!(fs.release_behind(file).unwrap(), Some(ReleaseBehind::Both), "taken over");
    fs.set_release_behind(dir, Some(ReleaseBehind::Write)).unwrap();
    assert_eq!(scan(&fs, "/d/w"), (0, all), "only what was written leaves");
    fs.set_release_behind(dir, Some(ReleaseBehind::Off)).unwrap();
    let tune = |release: ReleaseBehind| {
        let changes = vec![(Tunable::ReleaseBehind, Some(release as u64))];
        fs.tune(&TuneOptions { changes, live_only: false }).unwrap();
    };
    tune(ReleaseBehind::Both);
    assert_eq!(scan(&fs, "/others"), (0, 0), "S-250: the volume's");
    assert_eq!(scan(&fs, "/d/off"), (all, all), "the file's own counts");
    assert_eq!(open(&fs, "/others").release_behind(), ReleaseBehind::Both);
    fs.unmount().unwrap();
    let fs = mount(&device);
    assert_eq!(fs.release_behind(file).unwrap(), Some(ReleaseBehind::Both), "it is stored");
    assert_eq!(open(&fs, "/d/off").release_behind(), ReleaseBehind::Off);
    assert_eq!(open(&fs, "/others").release_behind(), ReleaseBehind::Both);
    fs.unmount().unwrap();
    let options = MountOptions { release_behind: ReleaseBehind::Read, ..MountOptions::default() };
    let fs = FileSystem::mount(device, None, options).unwrap();
    assert_eq!(open(&fs, "/others").release_behind(), ReleaseBehind::Read, "a mount option");
    fs.unmount().unwrap();
}

/// A change counts for files that are open and have pages.
#[test]
fn s_250_a_change_counts_at_once() {
    let fs = mount(&formatted());
    let (file, ino) = (open(&fs, "/f"), fs.resolve("/f").unwrap().ino);
    let all = 8 * MIB as u64;
    file.write_at(&vec![7; 8 * MIB], 0).unwrap();
    file.sync_data().unwrap();
    assert_eq!(fs.info().cache.resident_bytes, all);
    let read = || {
        // Every byte is in memory, and so little is found without a lock.
        let mut buf = vec![0; 16 << 10];
        for step in 0..512 {
            file.read_at(&mut buf, step * (16 << 10)).unwrap();
        }
        fs.info().cache.resident_bytes
    };
    fs.set_release_behind(ino, Some(ReleaseBehind::Read)).unwrap();
    assert_eq!(read(), 0, "S-250");
    fs.set_release_behind(ino, None).unwrap();
    assert_eq!((fs.release_behind(ino).unwrap(), read()), (None, all));
    fs.unmount().unwrap();
}
