//! Access control lists of the library: kept true to the mode, inherited, and kept over a crash.

use bedplate_fs::{
    AclKind, CloneSource, ErrorKind, FileKind, FileSystem, InodeNo, NewFile, SetAttr, SetGroupId,
};

use crate::common::{around_kill, around_remount, assert_sound, formatted, mount, new_file};

const ROOT: InodeNo = InodeNo::ROOT;
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Owner, a named user, owning group, mask, others.
fn list(permissions: [u16; 5]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions) in [1_u16, 2, 4, 16, 32].into_iter().zip(permissions) {
        bytes.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        bytes.extend(if tag == 2 { 1000_u32 } else { u32::MAX }.to_le_bytes());
    }
    bytes
}

fn set(fs: &FileSystem, ino: InodeNo, name: &[u8], value: &[u8]) -> bedplate_fs::Result<()> {
    fs.set_xattr(ino, name, value, false, false)
}

fn make(fs: &FileSystem, dir: InodeNo, name: &str, kind: FileKind) -> InodeNo {
    fs.make(dir, name.as_bytes(), kind, new_file(), 0).unwrap().ino
}

fn mode(fs: &FileSystem, ino: InodeNo) -> u32 {
    fs.attr(ino).unwrap().mode
}

fn chmod(fs: &FileSystem, ino: InodeNo, mode: u32) {
    fs.set_attr(ino, &SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap();
}

#[test]
fn s_492_a_list_sets_the_mode_and_a_mode_the_list() {
    around_kill(
        |fs| {
            let f = make(fs, ROOT, "f", FileKind::File);
            assert!(!fs.has_acls());
            set(fs, f, ACCESS, &list([7, 6, 5, 4, 1])).unwrap();
            assert!(fs.has_acls());
            assert_eq!(mode(fs, f), 0o741, "S-492");
            chmod(fs, f, 0o2623);
            assert_eq!(fs.get_xattr(f, ACCESS).unwrap(), list([6, 6, 5, 2, 3]), "S-492");
            fs.set_acl(f, AclKind::Access, &list([6, 6, 5, 2, 3]), SetGroupId::Keep).unwrap();
            assert_eq!(mode(fs, f), 0o2623);
            fs.set_acl(f, AclKind::Access, &list([6, 6, 5, 2, 3]), SetGroupId::Clear).unwrap();
            assert_eq!(mode(fs, f), 0o623, "S-492");
            let kind = |result: bedplate_fs::Result<()>| result.unwrap_err().kind;
            let any = list([7; 5]);
            assert_eq!(kind(fs.set_xattr(f, ACCESS, &any, true, false)), ErrorKind::Exists);
            let g = make(fs, ROOT, "g", FileKind::File);
            assert_eq!(kind(fs.set_xattr(g, ACCESS, &any, false, true)), ErrorKind::NoAttribute);
        },
        |fs| {
            assert!(fs.has_acls(), "S-494: a later mount knows");
            let f = fs.resolve("f").unwrap().ino;
            assert_eq!(fs.get_xattr(f, ACCESS).unwrap(), list([6, 6, 5, 2, 3]));
            chmod(fs, f, 0o700);
            assert_eq!(fs.get_xattr(f, ACCESS).unwrap(), list([7, 6, 5, 0, 0]), "S-492");
            fs.remove_xattr(f, ACCESS).unwrap();
            assert_eq!(mode(fs, f), 0o700);
        },
    );
}

#[test]
fn s_493_what_is_made_inherits() {
    let default = list([7, 6, 5, 6, 4]);
    around_remount(
        |fs| {
            let dir = make(fs, ROOT, "d", FileKind::Directory);
            set(fs, dir, DEFAULT, &default).unwrap();
            let new = NewFile { mode: 0o667, umask: 0o077, ..NewFile::default() };
            let f = fs.make(dir, b"f", FileKind::File, new, 0).unwrap();
            assert_eq!(f.mode, 0o664, "S-493: the default list counts, not the umask");
            assert_eq!(fs.make(ROOT, b"f", FileKind::File, new, 0).unwrap().mode, 0o600);
            let unnamed = fs.make_unnamed(dir, new).unwrap();
            assert_eq!(unnamed.mode, 0o664, "S-493");
            fs.forget(unnamed.ino, 1);
            assert_eq!(fs.make_unnamed(ROOT, new).unwrap().mode, 0o600);
            assert_eq!(fs.make(dir, b"sub", FileKind::Directory, new, 0).unwrap().mode, 0o664);
            let link = fs.symlink(dir, b"s", b"f", new).unwrap();
            assert_eq!((link.mode, fs.list_xattr(link.ino).unwrap().len()), (0o777, 0));
        },
        |fs| {
            let ino = |path: &str| fs.resolve(path).unwrap().ino;
            assert_eq!(fs.get_xattr(ino("d/f"), ACCESS).unwrap(), list([6, 6, 5, 6, 4]), "S-493");
            assert_eq!(fs.list_xattr(ino("d/f")).unwrap(), [ACCESS.to_vec()]);
            let sub = ino("d/sub");
            assert_eq!(fs.get_xattr(sub, DEFAULT).unwrap(), default, "S-493: and hands it on");
            let g = make(fs, sub, "g", FileKind::File);
            assert_eq!(fs.get_xattr(g, ACCESS).unwrap(), list([6, 6, 5, 4, 0]), "S-493");
        },
    );
}

#[test]
fn s_494_clones_have_the_lists_of_what_they_are_of() {
    let fs = mount(&formatted());
    let dir = make(&fs, ROOT, "d", FileKind::Directory);
    let f = make(&fs, dir, "f", FileKind::File);
    set(&fs, f, ACCESS, &list([6, 6, 4, 6, 0])).unwrap();
    set(&fs, dir, DEFAULT, &list([7; 5])).unwrap();
    fs.clone_files(&CloneSource::Present("/d".into()), "/copy").unwrap();
    let ino = |path: &str| fs.resolve(path).unwrap().ino;
    assert_eq!(fs.get_xattr(ino("copy/f"), ACCESS).unwrap(), list([6, 6, 4, 6, 0]), "S-494");
    assert_eq!(fs.get_xattr(ino("copy"), DEFAULT).unwrap(), list([7; 5]), "S-494");
    assert_eq!(mode(&fs, ino("copy/f")), 0o660);
    fs.unmount().unwrap();
}

#[test]
fn s_495_what_is_no_list_is_refused_in_one_sentence() {
    let device = formatted();
    let fs = mount(&device);
    let f = make(&fs, ROOT, "f", FileKind::File);
    let link = fs.symlink(ROOT, b"s", b"f", new_file()).unwrap().ino;
    let whole = list([7; 5]);
    for (ino, name, value, kind) in [
        (f, ACCESS, &whole[..7], ErrorKind::Invalid),
        (f, ACCESS, b"", ErrorKind::Invalid),
        (f, DEFAULT, &whole[..], ErrorKind::Invalid),
        (link, ACCESS, &whole[..], ErrorKind::Unsupported),
    ] {
        let error = set(&fs, ino, name, value).unwrap_err();
        assert_eq!(error.kind, kind, "S-495: {error}");
        assert!(error.message.contains(str::from_utf8(name).unwrap()), "{error}");
    }
    assert!(fs.list_xattr(f).unwrap().is_empty() && !fs.has_acls(), "S-495: nothing changed");
    fs.unmount().unwrap();
    assert_sound(&device);
}
