//! Names: everything that makes, finds, moves and removes them.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, makedev, mknodat, renameat_with,
};

use crate::harness::{Mounted, errno, needs_root, shell};

#[test]
fn files_and_directories_are_made_found_and_removed() {
    let Some(m) = Mounted::new("") else { return };
    fs::create_dir_all(m.path("a/b/c")).unwrap();
    fs::write(m.path("a/b/c/file"), b"content").unwrap();
    assert_eq!(fs::read(m.path("a/b/c/file")).unwrap(), b"content");
    assert_eq!(errno(fs::create_dir(m.path("a"))), libc::EEXIST);
    assert_eq!(errno(fs::remove_dir(m.path("a/b"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::remove_file(m.path("a/none"))), libc::ENOENT);
    assert_eq!(errno(fs::remove_dir(m.path("a/b/c/file"))), libc::ENOTDIR);
    assert_eq!(errno(fs::remove_file(m.path("a/b"))), libc::EISDIR);
    assert_eq!(errno(fs::metadata(m.path("a/b/c/file/below"))), libc::ENOTDIR);
    assert_eq!(errno(File::create(m.path(&"n".repeat(256)))), libc::ENAMETOOLONG);
    File::create(m.path(&"n".repeat(255))).unwrap();
    assert_eq!(m.path("a").metadata().unwrap().nlink(), 3);
    fs::remove_dir_all(m.path("a")).unwrap();
    assert_eq!(errno(fs::metadata(m.path("a"))), libc::ENOENT);
    m.finish();
}

#[test]
fn names_survive_a_remount() {
    let Some(m) = Mounted::new("") else { return };
    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("d/f"), b"kept").unwrap();
    symlink("d/f", m.path("s")).unwrap();
    let ino = m.path("d/f").metadata().unwrap().ino();
    let m = m.again("");
    assert_eq!(fs::read(m.path("s")).unwrap(), b"kept");
    assert_eq!(m.path("d/f").metadata().unwrap().ino(), ino);
    m.finish();
}

#[test]
fn symbolic_and_hard_links() {
    let Some(m) = Mounted::new("") else { return };
    fs::write(m.path("file"), b"1").unwrap();
    symlink("file", m.path("soft")).unwrap();
    assert_eq!(fs::read_link(m.path("soft")).unwrap().to_str(), Some("file"));
    assert_eq!(fs::read(m.path("soft")).unwrap(), b"1");
    let long = "x/".repeat(2000);
    symlink(&long, m.path("long")).unwrap();
    assert_eq!(fs::read_link(m.path("long")).unwrap().to_str(), Some(long.as_str()));
    fs::hard_link(m.path("file"), m.path("hard")).unwrap();
    assert_eq!(m.path("file").metadata().unwrap().nlink(), 2);
    assert_eq!(m.path("file").metadata().unwrap().ino(), m.path("hard").metadata().unwrap().ino());
    fs::write(m.path("hard"), b"2").unwrap();
    assert_eq!(fs::read(m.path("file")).unwrap(), b"2");
    fs::remove_file(m.path("file")).unwrap();
    assert_eq!(m.path("hard").metadata().unwrap().nlink(), 1);
    assert_eq!(errno(fs::hard_link(m.root(), m.path("root"))), libc::EPERM);
    m.finish();
}

#[test]
fn s_14_rename_in_all_its_ways() {
    let Some(m) = Mounted::new("") else { return };
    let rename = |from: &str, to: &str, flags| {
        renameat_with(CWD, m.path(from), CWD, m.path(to), flags).map_err(std::io::Error::from)
    };
    let read = |name: &str| fs::read_to_string(m.path(name)).unwrap();
    fs::write(m.path("a"), "a").unwrap();
    fs::write(m.path("b"), "b").unwrap();
    assert_eq!(errno(rename("a", "b", RenameFlags::NOREPLACE)), libc::EEXIST);
    rename("a", "b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!((read("a"), read("b")), ("b".into(), "a".into()));
    assert_eq!(errno(rename("a", "none", RenameFlags::EXCHANGE)), libc::ENOENT);
    rename("a", "c", RenameFlags::NOREPLACE).unwrap();
    rename("c", "b", RenameFlags::empty()).unwrap();
    assert_eq!(read("b"), "b");
    assert_eq!(errno(fs::metadata(m.path("c"))), libc::ENOENT);
    fs::create_dir_all(m.path("d/e")).unwrap();
    assert_eq!(errno(rename("d", "d/e/f", RenameFlags::empty())), libc::EINVAL);
    assert_eq!(errno(rename("b", "d", RenameFlags::empty())), libc::EISDIR);
    assert_eq!(errno(rename("d", "b", RenameFlags::empty())), libc::ENOTDIR);
    fs::create_dir(m.path("g")).unwrap();
    assert_eq!(errno(rename("g", "d", RenameFlags::empty())), libc::ENOTEMPTY);
    rename("d/e", "g", RenameFlags::empty()).unwrap();
    rename("g", "b", RenameFlags::EXCHANGE).unwrap();
    assert!(m.path("b").is_dir() && m.path("g").is_file());
    m.finish();
}

#[test]
fn rename_with_a_whiteout_leaves_one() {
    if !needs_root() {
        return;
    }
    let Some(m) = Mounted::new("dev") else { return };
    fs::write(m.path("a"), "a").unwrap();
    renameat_with(CWD, m.path("a"), CWD, m.path("b"), RenameFlags::WHITEOUT).unwrap();
    assert_eq!(fs::read(m.path("b")).unwrap(), b"a");
    let whiteout = m.path("a").symlink_metadata().unwrap();
    assert!(whiteout.file_type().is_char_device());
    assert_eq!(whiteout.rdev(), 0);
    m.finish();
}

#[test]
fn pipes_sockets_and_device_nodes() {
    if !needs_root() {
        return;
    }
    let Some(m) = Mounted::new("dev") else { return };
    let node = |name: &str, kind, device| {
        mknodat(CWD, m.path(name), kind, Mode::from_raw_mode(0o600), device).unwrap();
    };
    node("null", FileType::CharacterDevice, makedev(1, 3));
    node("disk", FileType::BlockDevice, makedev(259, 0x12345));
    node("file", FileType::RegularFile, 0);
    node("pipe", FileType::Fifo, 0);
    drop(std::os::unix::net::UnixListener::bind(m.path("socket")).unwrap());
    let mut null = OpenOptions::new().read(true).write(true).open(m.path("null")).unwrap();
    null.write_all(b"gone").unwrap();
    assert_eq!(null.read(&mut [0; 8]).unwrap(), 0);
    drop(null);
    let m = m.again("");
    let of = |name: &str| m.path(name).symlink_metadata().unwrap();
    assert!(
        of("pipe").file_type().is_fifo()
            && of("socket").file_type().is_socket()
            && of("file").file_type().is_file()
    );
    assert_eq!(of("null").rdev(), makedev(1, 3));
    assert_eq!(of("disk").rdev(), makedev(259, 0x12345));
    assert_eq!(errno(File::open(m.path("null"))), libc::EACCES, "nodev is the default");
    m.finish();
}

#[test]
fn s_17_a_removed_file_lives_until_it_is_closed() {
    let Some(m) = Mounted::new("") else { return };
    let before = rustix::fs::statvfs(m.root()).unwrap();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(m.path("f"))
        .unwrap();
    file.write_all(&vec![7; 1 << 20]).unwrap();
    fs::remove_file(m.path("f")).unwrap();
    assert_eq!(errno(fs::metadata(m.path("f"))), libc::ENOENT);
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all(&vec![8; 1 << 20]).unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.metadata().unwrap().len(), 2 << 20);
    let mut buf = [0; 1];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut buf, (1 << 20) + 5).unwrap();
    assert_eq!(buf, [8]);
    drop(file);
    let m = m.again("");
    assert_eq!(
        rustix::fs::statvfs(m.root()).unwrap().f_files
            - rustix::fs::statvfs(m.root()).unwrap().f_ffree,
        before.f_files - before.f_ffree
    );
    m.finish();
}

#[test]
fn new_files_belong_to_their_maker_and_heed_umask_and_set_group_id() {
    let Some(m) = Mounted::new("") else { return };
    shell(&m, "umask 027; touch $M/f; mkdir $M/d; mkfifo $M/p");
    let mode = |name: &str| m.path(name).symlink_metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("f"), mode("d"), mode("p")), (0o640, 0o750, 0o640));
    assert_eq!(m.path("f").metadata().unwrap().uid(), rustix::process::geteuid().as_raw());
    if needs_root() {
        shell(&m, "mkdir $M/g; chown 0:100 $M/g; chmod 2775 $M/g; touch $M/g/f; mkdir $M/g/d");
        let made = m.path("g/f").metadata().unwrap();
        assert_eq!(made.gid(), 100);
        let made = m.path("g/d").metadata().unwrap();
        assert_eq!((made.gid(), made.permissions().mode() & 0o2000), (100, 0o2000));
    }
    m.finish();
}

/// Opens a file without a name in a directory (`O_TMPFILE`).
pub fn unnamed(dir: &std::path::Path, more: OFlags) -> File {
    let flags = OFlags::TMPFILE | OFlags::RDWR | more;
    File::from(rustix::fs::open(dir, flags, Mode::from_raw_mode(0o640)).unwrap())
}

/// Gives an open file a name, by the way that needs no privilege.
pub fn name_it(file: &File, path: &std::path::Path) -> rustix::io::Result<()> {
    let open = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, open, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

#[test]
fn s_438_an_unnamed_file_lives_until_it_is_closed_or_gets_a_name() {
    for options in ["", "mode=concurrent", "mode=direct"] {
        let Some(m) = Mounted::new(options) else { return };
        fs::create_dir(m.path("d")).unwrap();
        let inodes = || rustix::fs::statvfs(m.root()).unwrap().f_ffree;
        let before = inodes();
        let file = unnamed(&m.path("d"), OFlags::empty());
        let stat = file.metadata().unwrap();
        assert_eq!((stat.nlink(), stat.mode() & 0o7777, stat.len()), (0, 0o640, 0), "{options}");
        file.write_all_at(&[7; 100_000], 3).unwrap();
        file.sync_all().unwrap();
        assert_eq!(fs::read_dir(m.path("d")).unwrap().count(), 0, "S-438: it has no name");
        name_it(&file, &m.path("d/named")).unwrap();
        assert_eq!(name_it(&file, &m.path("d/named")), Err(rustix::io::Errno::EXIST));
        assert_eq!(file.metadata().unwrap().nlink(), 1);
        assert_eq!(fs::read(m.path("d/named")).unwrap()[3..], [7; 100_000]);
        fs::remove_file(m.path("d/named")).unwrap();
        drop(file);

        // One for good without a name, and one that is left to its fate.
        let exclusive = unnamed(m.root(), OFlags::EXCL);
        assert_eq!(name_it(&exclusive, &m.path("x")), Err(rustix::io::Errno::NOENT));
        exclusive.write_all_at(&[1; 50_000], 0).unwrap();
        drop(exclusive);
        for _ in 0..500 {
            if inodes() == before {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(inodes(), before, "S-438: {options}: what is closed is gone");
        m.finish();
    }
}

/// The kernel's entry of a suffixed name kept a removed file alive, and its space taken, until
/// memory was short: a volume that was empty was full.
#[test]
fn s_17_s_28_a_removed_file_gives_its_space_back_by_whatever_name_it_was_opened() {
    for options in ["", "mode=direct"] {
        let Some(m) = Mounted::new(options) else { return };
        let write = |name: &str| {
            let file = File::create(m.path(name)).unwrap();
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 100 << 20)
                .unwrap_or_else(|error| panic!("S-17: '{options}', {name}: {error}"));
        };
        let free = || rustix::fs::statvfs(m.root()).unwrap().f_bfree;
        let enough = free() - 1000;
        // The kernel is told once it has been answered, and forgets the file a moment later.
        let wait_for_space = |what: &str| {
            let back = (0..30_000).any(|_| {
                free() >= enough || {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    false
                }
            });
            assert!(back, "S-17: '{options}', {what}: its space is still taken");
        };
        for round in 0..10 {
            let (name, suffix) = (
                format!("f{round}"),
                ["::concurrent", "::direct", "::cached", "::concurrent+cache"][round % 4],
            );
            write(&format!("{name}{suffix}"));
            // A name that was only looked at has an entry too.
            fs::metadata(m.path(&format!("{name}::direct"))).unwrap();
            match round % 3 {
                0 => fs::remove_file(m.path(&name)).unwrap(),
                1 => fs::remove_file(m.path(&format!("{name}{suffix}"))).unwrap(),
                _ => {
                    fs::write(m.path("new"), b"new").unwrap();
                    fs::rename(m.path("new"), m.path(&name)).unwrap();
                }
            }
            wait_for_space(&name);
        }
        for round in 0..10 {
            // Renamed away from under its suffixed name, and then removed.
            let (name, moved) = (format!("g{round}"), format!("h{round}"));
            write(&format!("{name}::concurrent"));
            fs::rename(m.path(&name), m.path(&moved)).unwrap();
            fs::remove_file(m.path(&moved)).unwrap();
            wait_for_space(&name);
        }
        m.finish();
    }
}
