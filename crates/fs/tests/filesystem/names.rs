//! Names, links, renames and attributes.

use bedplate_fs::{
    ErrorKind, FileKind, FileSystem, InodeNo, IoMode, NewFile, RenameMode, SetAttr, Timestamp,
};

use crate::common::{around_kill, around_remount, assert_sound, formatted, mount, new_file};

const ROOT: InodeNo = InodeNo::ROOT;

fn file(fs: &FileSystem, dir: InodeNo, name: &str) -> InodeNo {
    fs.make(dir, name.as_bytes(), FileKind::File, new_file(), 0).unwrap().ino
}

fn directory(fs: &FileSystem, dir: InodeNo, name: &str) -> InodeNo {
    fs.make(dir, name.as_bytes(), FileKind::Directory, new_file(), 0).unwrap().ino
}

fn names(fs: &FileSystem, dir: InodeNo) -> Vec<String> {
    let entries = fs.read_dir(dir, None, usize::MAX).unwrap();
    entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()).collect()
}

fn kind_of<T: std::fmt::Debug>(result: bedplate_fs::Result<T>) -> ErrorKind {
    result.unwrap_err().kind
}

#[test]
fn every_kind_of_object_survives_a_remount() {
    let kinds = [
        FileKind::File,
        FileKind::Directory,
        FileKind::Fifo,
        FileKind::Socket,
        FileKind::CharDevice,
        FileKind::BlockDevice,
    ];
    around_remount(
        |fs| {
            for (i, kind) in kinds.into_iter().enumerate() {
                fs.make(ROOT, format!("object{i}").as_bytes(), kind, new_file(), 0x0801).unwrap();
            }
            fs.symlink(ROOT, b"symlink", b"object0", new_file()).unwrap();
        },
        |fs| {
            for (i, kind) in kinds.into_iter().enumerate() {
                let attr = fs.lookup(ROOT, format!("object{i}").as_bytes()).unwrap();
                assert_eq!((attr.kind, attr.mode, attr.uid, attr.gid), (kind, 0o640, 7, 8));
                let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
                assert_eq!(attr.rdev, if device { 0x0801 } else { 0 });
            }
            let link = fs.lookup(ROOT, b"symlink").unwrap();
            assert_eq!(fs.read_link(link.ino).unwrap(), b"object0");
            assert_eq!(fs.resolve("/symlink").unwrap().kind, FileKind::File);
        },
    );
}

#[test]
fn synced_names_survive_a_killed_process() {
    around_kill(
        |fs| {
            let dir = directory(fs, ROOT, "dir");
            for i in 0..1000 {
                file(fs, dir, &format!("file{i:04}"));
            }
            for i in (0..1000).step_by(2) {
                fs.unlink(dir, format!("file{i:04}").as_bytes()).unwrap();
            }
        },
        |fs| {
            let dir = fs.lookup(ROOT, b"dir").unwrap().ino;
            let expected: Vec<_> =
                (0..1000).skip(1).step_by(2).map(|i| format!("file{i:04}")).collect();
            assert_eq!(names(fs, dir), expected);
            assert_eq!(fs.statfs().inodes, 502);
        },
    );
}

#[test]
fn a_directory_is_read_in_pages() {
    around_remount(
        |fs| {
            for i in 0..100 {
                file(fs, ROOT, &format!("{i:03}"));
            }
        },
        |fs| {
            fs.unlink(ROOT, b"050").unwrap();
            file(fs, ROOT, "050x");
            let mut all = Vec::new();
            while let Some(last) = {
                let page = fs.read_dir(ROOT, all.last().map(Vec::as_slice), 7).unwrap();
                all.extend(page.iter().map(|entry| entry.name.clone()));
                page.last().map(|entry| entry.name.clone())
            } {
                assert_eq!(Some(&last), all.last());
            }
            assert_eq!(all.len(), 100);
            assert!(
                all.is_sorted()
                    && all.contains(&b"050x".to_vec())
                    && !all.contains(&b"050".to_vec())
            );
        },
    );
}

#[test]
fn link_counts_follow_names() {
    around_remount(
        |fs| {
            let a = file(fs, ROOT, "a");
            let dir = directory(fs, ROOT, "dir");
            assert_eq!(fs.link(a, dir, b"b").unwrap().nlink, 2);
            assert_eq!(kind_of(fs.link(dir, ROOT, b"no")), ErrorKind::NotPermitted);
            assert_eq!(kind_of(fs.link(a, ROOT, b"dir")), ErrorKind::Exists);
            fs.unlink(ROOT, b"a").unwrap();
            assert_eq!(fs.attr(a).unwrap().nlink, 1);
            assert_eq!(fs.attr(ROOT).unwrap().nlink, 3);
        },
        |fs| assert_eq!(fs.resolve("dir/b").unwrap().nlink, 1),
    );
}

#[test]
fn names_that_cannot_be_are_refused() {
    let fs = mount(&formatted());
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
        assert_eq!(kind_of(fs.make(ROOT, name, FileKind::File, new_file(), 0)), ErrorKind::Invalid);
    }
    assert_eq!(
        kind_of(fs.make(ROOT, &[b'x'; 256], FileKind::File, new_file(), 0)),
        ErrorKind::NameTooLong
    );
    fs.make(ROOT, &[b'x'; 255], FileKind::File, new_file(), 0).unwrap();
    fs.make(ROOT, b"\xff\xfe odd\n\"'", FileKind::File, new_file(), 0).unwrap();
    assert_eq!(
        kind_of(fs.make(ROOT, &[b'x'; 255], FileKind::File, new_file(), 0)),
        ErrorKind::Exists
    );
    assert_eq!(kind_of(fs.lookup(ROOT, b"absent")), ErrorKind::NotFound);
    let ino = fs.lookup(ROOT, &[b'x'; 255]).unwrap().ino;
    assert_eq!(kind_of(fs.lookup(ino, b"below")), ErrorKind::NotDirectory);
    assert_eq!(kind_of(fs.symlink(ROOT, b"s", &[b'x'; 4096], new_file())), ErrorKind::Invalid);
}

#[test]
fn rename_replaces_exchanges_and_refuses() {
    let device = formatted();
    let fs = mount(&device);
    let (a, b) = (file(&fs, ROOT, "a"), file(&fs, ROOT, "b"));
    let (d1, d2) = (directory(&fs, ROOT, "d1"), directory(&fs, ROOT, "d2"));
    assert_eq!(
        kind_of(fs.rename(ROOT, b"a", ROOT, b"b", RenameMode::NoReplace)),
        ErrorKind::Exists
    );
    fs.rename(ROOT, b"a", ROOT, b"b", RenameMode::Exchange).unwrap();
    assert_eq!((fs.lookup(ROOT, b"a").unwrap().ino, fs.lookup(ROOT, b"b").unwrap().ino), (b, a));
    fs.rename(ROOT, b"a", d1, b"c", RenameMode::Replace).unwrap();
    fs.rename(ROOT, b"b", d1, b"c", RenameMode::Replace).unwrap();
    assert_eq!(kind_of(fs.attr(b)), ErrorKind::NotFound, "the replaced file is gone");
    assert_eq!(
        kind_of(fs.rename(ROOT, b"d1", d1, b"below", RenameMode::Replace)),
        ErrorKind::Invalid
    );
    assert_eq!(
        kind_of(fs.rename(ROOT, b"d2", ROOT, b"d1", RenameMode::Replace)),
        ErrorKind::NotEmpty
    );
    assert_eq!(
        kind_of(fs.rename(d1, b"c", ROOT, b"d2", RenameMode::Replace)),
        ErrorKind::IsDirectory
    );
    fs.rename(ROOT, b"d1", d2, b"inner", RenameMode::Replace).unwrap();
    assert_eq!(fs.parent(d1).unwrap(), d2);
    assert_eq!((fs.attr(ROOT).unwrap().nlink, fs.attr(d2).unwrap().nlink), (3, 3));
    file(&fs, ROOT, "f");
    fs.rename(ROOT, b"d2", ROOT, b"f", RenameMode::Exchange).unwrap();
    fs.rename(ROOT, b"d2", ROOT, b"g", RenameMode::Whiteout).unwrap();
    let whiteout = fs.lookup(ROOT, b"d2").unwrap();
    assert_eq!((whiteout.kind, whiteout.rdev), (FileKind::CharDevice, 0));
    fs.unmount().unwrap();
    assert_sound(&device);
}

#[test]
fn rename_onto_another_name_of_the_same_file_does_nothing() {
    let fs = mount(&formatted());
    let a = file(&fs, ROOT, "a");
    fs.link(a, ROOT, b"b").unwrap();
    fs.rename(ROOT, b"a", ROOT, b"b", RenameMode::Replace).unwrap();
    assert_eq!(names(&fs, ROOT), ["a", "b"]);
    assert_eq!(fs.attr(a).unwrap().nlink, 2);
}

#[test]
fn directories_go_only_when_empty() {
    let fs = mount(&formatted());
    let dir = directory(&fs, ROOT, "dir");
    file(&fs, dir, "f");
    assert_eq!(kind_of(fs.rmdir(ROOT, b"dir")), ErrorKind::NotEmpty);
    assert_eq!(kind_of(fs.unlink(ROOT, b"dir")), ErrorKind::IsDirectory);
    assert_eq!(kind_of(fs.rmdir(dir, b"f")), ErrorKind::NotDirectory);
    fs.unlink(dir, b"f").unwrap();
    fs.rmdir(ROOT, b"dir").unwrap();
    assert_eq!(fs.attr(ROOT).unwrap().nlink, 2);
    assert_eq!(kind_of(fs.make(dir, b"late", FileKind::File, new_file(), 0)), ErrorKind::NotFound);
}

#[test]
fn an_unlinked_file_lives_while_it_is_retained() {
    let device = formatted();
    let fs = mount(&device);
    let a = file(&fs, ROOT, "a");
    fs.retain(a).unwrap();
    fs.retain(a).unwrap();
    fs.unlink(ROOT, b"a").unwrap();
    assert_eq!(fs.attr(a).unwrap().nlink, 0);
    fs.forget(a, 1);
    assert_eq!(fs.attr(a).unwrap().nlink, 0);
    fs.forget(a, 1);
    assert_eq!(kind_of(fs.attr(a)), ErrorKind::NotFound);
    fs.unmount().unwrap();
    assert_sound(&device);
}

#[test]
fn an_orphan_is_removed_by_the_next_mount() {
    around_kill(
        |fs| {
            let a = file(fs, ROOT, "a");
            fs.set_xattr(a, b"user.x", b"1", false, false).unwrap();
            fs.retain(a).unwrap();
            fs.unlink(ROOT, b"a").unwrap();
        },
        |fs| {
            assert_eq!(fs.info().recovery.orphans, 1);
            assert_eq!(fs.statfs().inodes, 1);
        },
    );
}

#[test]
fn an_unnamed_file_can_get_a_name() {
    around_kill(
        |fs| {
            let kept = fs.make_unnamed(ROOT, new_file()).unwrap();
            assert_eq!(kept.nlink, 0);
            fs.link(kept.ino, ROOT, b"kept").unwrap();
            fs.make_unnamed(ROOT, new_file()).unwrap();
        },
        |fs| {
            assert_eq!(names(fs, ROOT), ["kept"]);
            assert_eq!(fs.statfs().inodes, 2);
        },
    );
}

/// S-438: it did not take after its directory, so that a database that writes a file and then names
/// it lost what its directory promised.
#[test]
fn s_438_an_unnamed_file_takes_after_its_directory() {
    around_kill(
        |fs| {
            let dir = directory(fs, ROOT, "dir");
            fs.set_io_mode(dir, Some(IoMode::Concurrent)).unwrap();
            fs.set_untorn(dir, Some(8192)).unwrap();
            fs.set_integrity(dir, true).unwrap();
            fs.set_extent_size(dir, Some(1 << 20)).unwrap();
            let ino = fs.make_unnamed(dir, new_file()).unwrap().ino;
            fs.link(ino, dir, b"named").unwrap();
        },
        |fs| {
            let attr = fs.resolve("dir/named").unwrap();
            assert_eq!(attr.io_mode, Some(IoMode::Concurrent));
            assert_eq!(fs.untorn(attr.ino).unwrap().map(|untorn| untorn.bytes), Some(8192));
            assert!(fs.integrity(attr.ino).unwrap());
            assert_eq!(fs.extent_size(attr.ino).unwrap(), Some(1 << 20));
        },
    );
}

#[test]
fn attributes_and_modes_are_kept_and_inherited() {
    around_kill(
        |fs| {
            let dir = directory(fs, ROOT, "dir");
            fs.set_io_mode(dir, Some(IoMode::Concurrent)).unwrap();
            fs.set_attr(dir, &SetAttr { mode: Some(0o2755), gid: Some(99), ..SetAttr::default() })
                .unwrap();
            let sub = fs
                .make(
                    dir,
                    b"sub",
                    FileKind::Directory,
                    NewFile { mode: 0o700, uid: 1, gid: 1, umask: 0 },
                    0,
                )
                .unwrap();
            assert_eq!((sub.gid, sub.mode, sub.io_mode), (99, 0o2700, Some(IoMode::Concurrent)));
            let times = SetAttr {
                atime: Some(Timestamp(-5)),
                mtime: Some(Timestamp(7)),
                ..SetAttr::default()
            };
            fs.set_attr(file(fs, sub.ino, "f"), &times).unwrap();
        },
        |fs| {
            let attr = fs.resolve("dir/sub/f").unwrap();
            assert_eq!((attr.gid, attr.mode, attr.io_mode), (99, 0o640, Some(IoMode::Concurrent)));
            assert_eq!((attr.atime, attr.mtime), (Timestamp(-5), Timestamp(7)));
        },
    );
}

#[test]
fn extended_attributes_come_and_go() {
    around_kill(
        |fs| {
            let a = file(fs, ROOT, "a");
            fs.set_xattr(a, b"user.one", b"1", true, false).unwrap();
            assert_eq!(kind_of(fs.set_xattr(a, b"user.one", b"1", true, false)), ErrorKind::Exists);
            assert_eq!(
                kind_of(fs.set_xattr(a, b"user.two", b"2", false, true)),
                ErrorKind::NoAttribute
            );
            assert_eq!(
                kind_of(fs.set_xattr(a, b"user.big", &vec![0; 65537], false, false)),
                ErrorKind::Range
            );
            fs.set_xattr(a, b"user.big", &vec![7; 65536], false, false).unwrap();
            fs.set_xattr(a, b"user.gone", b"", false, false).unwrap();
            fs.remove_xattr(a, b"user.gone").unwrap();
            assert_eq!(kind_of(fs.remove_xattr(a, b"user.gone")), ErrorKind::NoAttribute);
        },
        |fs| {
            let a = fs.lookup(ROOT, b"a").unwrap().ino;
            assert_eq!(fs.list_xattr(a).unwrap(), [b"user.big".to_vec(), b"user.one".to_vec()]);
            assert_eq!(fs.get_xattr(a, b"user.big").unwrap(), vec![7; 65536]);
            fs.unlink(ROOT, b"a").unwrap();
        },
    );
}

#[test]
fn paths_follow_links_and_end() {
    let fs = mount(&formatted());
    fs.create_dir_all("/a/b/c").unwrap();
    fs.create_dir_all("a/b").unwrap();
    let a = fs.resolve("a").unwrap().ino;
    fs.symlink(a, b"up", b"../a/./b", new_file()).unwrap();
    fs.symlink(a, b"loop", b"loop", new_file()).unwrap();
    assert_eq!(fs.resolve("/a/up/c/..").unwrap().ino, fs.resolve("a/b").unwrap().ino);
    assert_eq!(kind_of(fs.resolve("a/loop")), ErrorKind::TooManyLinks);
    assert_eq!(kind_of(fs.resolve("a/none/x")), ErrorKind::NotFound);
    fs.remove("a/loop").unwrap();
    fs.rename_path("a/b/c", "c").unwrap();
    assert_eq!(names(&fs, ROOT), ["a", "c"]);
    assert_eq!(kind_of(fs.remove("/")), ErrorKind::Busy);
}

#[test]
fn many_threads_change_names_at_once() {
    let device = formatted();
    let fs = mount(&device);
    std::thread::scope(|scope| {
        for t in 0..8 {
            let fs = &fs;
            scope.spawn(move || {
                let dir = directory(fs, ROOT, &format!("dir{t}"));
                for i in 0..200 {
                    let name = format!("f{i}");
                    file(fs, dir, &name);
                    fs.rename(
                        dir,
                        name.as_bytes(),
                        ROOT,
                        format!("{t}-{i}").as_bytes(),
                        RenameMode::Replace,
                    )
                    .unwrap();
                    if i % 3 == 0 {
                        fs.sync_inode(dir).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(names(&fs, ROOT).len(), 8 + 1600);
    fs.unmount().unwrap();
    assert_sound(&device);
}

/// S-19: an inode number is not used twice, neither after a removal, nor a kill, nor a remount.
#[test]
fn s_19_inode_numbers_are_never_used_again() {
    let device = formatted();
    let mut seen = std::collections::HashSet::new();
    for round in 0..6 {
        let fs = mount(&device);
        for i in 0..300 {
            let name = format!("{round}-{i}");
            assert!(seen.insert(file(&fs, ROOT, &name)), "round {round}");
            fs.unlink(ROOT, name.as_bytes()).unwrap();
        }
        fs.sync().unwrap();
        if round % 2 == 0 {
            fs.unmount().unwrap();
        }
    }
}
