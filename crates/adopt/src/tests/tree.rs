//! A tree with everything that files may have, and what is seen of it through the kernel and through
//! a volume.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use bedplate_block::BlockDevice;
use bedplate_fs::{FileKind, FileSystem, InodeNo, MountOptions, OpenOptions as Opening};
use rustix::fs::{CWD, FallocateFlags, FileType, Mode, XattrFlags, fallocate, mknodat};

/// What is seen of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    kind: u32,
    mode: u32,
    owner: (u32, u32),
    links: u64,
    size: u64,
    times: (i64, i64),
    target: Vec<u8>,
    device: u32,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    hash: u64,
}

pub type Tree = BTreeMap<Vec<u8>, Seen>;

/// Longer files are looked at in places.
const WHOLE_BYTES: u64 = 32 << 20;
const PLACE_BYTES: u64 = 64 << 10;
const PLACES_APART: u64 = 16 << 20;

fn hashed(size: u64, mut read: impl FnMut(&mut [u8], u64)) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut buf = vec![0; PLACE_BYTES as usize];
    let step = if size > WHOLE_BYTES { PLACES_APART } else { PLACE_BYTES };
    let mut at = 0;
    while at < size {
        let len = PLACE_BYTES.min(size - at) as usize;
        buf[..len].fill(0xee);
        read(&mut buf[..len], at);
        hasher.write(&buf[..len]);
        at += step;
    }
    hasher.finish()
}

/// Reads everything below a directory of the system.
pub fn through_the_kernel(root: &Path) -> Tree {
    let mut tree = Tree::new();
    walk(root, root, &mut tree);
    tree
}

fn walk(root: &Path, dir: &Path, tree: &mut Tree) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap() == crate::FILE_NAME {
            continue;
        }
        let is = path.symlink_metadata().unwrap();
        let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
        tree.insert(name, seen(&path, &is));
        if is.is_dir() {
            walk(root, &path, tree);
        }
    }
}

fn seen(path: &Path, is: &fs::Metadata) -> Seen {
    let mut names = vec![0; 65536];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let attributes = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let attributes = attributes.map(|name| {
        let mut value = vec![0; 65536];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        (name.to_vec(), value[..len].to_vec())
    });
    let is_device = matches!(is.mode() & 0o170_000, 0o020_000 | 0o060_000);
    let (major, minor) = (rustix::fs::major(is.rdev()), rustix::fs::minor(is.rdev()));
    let hash = if is.is_file() {
        let file = File::open(path).unwrap();
        hashed(is.len(), |buf, at| file.read_exact_at(buf, at).unwrap())
    } else {
        0
    };
    let target = fs::read_link(path).map(|target| target.as_os_str().as_bytes().to_vec());
    Seen {
        kind: is.mode() & 0o170_000,
        mode: is.mode() & 0o7777,
        owner: (is.uid(), is.gid()),
        links: is.nlink(),
        size: if is.is_dir() { 0 } else { is.len() },
        times: (
            is.mtime() * 1_000_000_000 + is.mtime_nsec(),
            is.atime() * 1_000_000_000 + is.atime_nsec(),
        ),
        target: target.unwrap_or_default(),
        device: if is_device { minor & 0xff | major << 8 } else { 0 },
        attributes: attributes.collect(),
        hash,
    }
}

/// Reads everything on a volume, which is only read.
pub fn through_the_volume(device: &Arc<dyn BlockDevice>) -> Tree {
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = FileSystem::mount(Arc::clone(device), None, options).unwrap();
    let mut tree = Tree::new();
    walk_volume(&fs, InodeNo::ROOT, b"", &mut tree);
    fs.unmount().unwrap();
    tree
}

fn walk_volume(fs: &FileSystem, dir: InodeNo, path: &[u8], tree: &mut Tree) {
    for entry in fs.read_dir(dir, None, usize::MAX).unwrap() {
        let name =
            if path.is_empty() { entry.name.clone() } else { [path, &entry.name].join(&b'/') };
        let attr = fs.attr(entry.ino).unwrap();
        let attributes = fs.list_xattr(entry.ino).unwrap().into_iter();
        let attributes =
            attributes.map(|name| (name.clone(), fs.get_xattr(entry.ino, &name).unwrap()));
        let attributes = attributes.collect();
        let kind = match attr.kind {
            FileKind::File => 0o100_000,
            FileKind::Directory => 0o040_000,
            FileKind::Symlink => 0o120_000,
            FileKind::Fifo => 0o010_000,
            FileKind::Socket => 0o140_000,
            FileKind::CharDevice => 0o020_000,
            FileKind::BlockDevice => 0o060_000,
        };
        let hash = if attr.kind == FileKind::File {
            let options = Opening { create: false, write: false, ..Opening::create() };
            let file = fs.open_inode(entry.ino, &options).unwrap();
            hashed(attr.size, |buf, at| assert_eq!(file.read_at(buf, at).unwrap(), buf.len()))
        } else {
            0
        };
        let target = if attr.kind == FileKind::Symlink {
            fs.read_link(entry.ino).unwrap()
        } else {
            Vec::new()
        };
        let is_directory = attr.kind == FileKind::Directory;
        tree.insert(
            name.clone(),
            Seen {
                kind,
                mode: attr.mode,
                owner: (attr.uid, attr.gid),
                links: u64::from(attr.nlink),
                size: if is_directory { 0 } else { attr.size },
                times: (attr.mtime.0, attr.atime.0),
                target,
                device: attr.rdev,
                attributes,
                hash,
            },
        );
        if is_directory {
            walk_volume(fs, entry.ino, &name, tree);
        }
    }
}

/// Says where two trees differ.
pub fn assert_same(old: &Tree, new: &Tree) {
    for (name, seen) in old {
        let shown = String::from_utf8_lossy(name);
        assert_eq!(new.get(name), Some(seen), "{shown}");
    }
    assert_eq!(old.len(), new.len(), "the volume has names that the old file system has not");
}

fn write(path: &Path, len: usize, seed: u64) {
    let bytes: Vec<u8> =
        (0..len as u64).map(|at| (((at * 2_654_435_761) ^ seed) >> 7) as u8 ^ seed as u8).collect();
    fs::write(path, bytes).unwrap();
}

/// Makes plain files: so many, in directories.
pub fn fill_plainly(root: &Path, files: u64, bytes: impl Fn(u64) -> usize) {
    for number in 0..files {
        let dir = root.join(format!("d{}", number / 100));
        if number % 100 == 0 {
            fs::create_dir(&dir).unwrap();
        }
        write(&dir.join(format!("file{number}")), bytes(number), number);
    }
}

/// Makes everything that files may have.
pub fn fill(root: &Path) {
    fill_plainly(root, 300, |number| {
        [0, 1, 57, 100, 4096, 4097, 20_000, 130_000][number as usize % 8]
    });
    let odd = root.join("odd");
    fs::create_dir(&odd).unwrap();
    fs::set_permissions(&odd, std::os::unix::fs::PermissionsExt::from_mode(0o1751)).unwrap();
    std::os::unix::fs::chown(odd.join("."), Some(12), Some(34)).unwrap();
    sparse(&odd);
    fragmented(&odd);
    nodes(&odd);
    let user = odd.join("attributes");
    write(&user, 10, 3);
    for (name, len) in [("user.short", 3), ("user.long", 3000), ("trusted.one", 1)] {
        let value = vec![b'v'; len];
        rustix::fs::setxattr(&user, name, &value, XattrFlags::empty()).unwrap();
    }
    // An access control list: owner, user 5, group, mask, others.
    let list: Vec<u8> =
        [(1, 7, u32::MAX), (2, 4, 5), (4, 5, u32::MAX), (16, 5, u32::MAX), (32, 0, u32::MAX)]
            .into_iter()
            .flat_map(|(tag, bits, id): (u16, u16, u32)| {
                [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat()
            })
            .collect();
    let list = [&2_u32.to_le_bytes()[..], &list].concat();
    rustix::fs::setxattr(&user, "system.posix_acl_access", &list, XattrFlags::empty()).unwrap();
    let mut deep = odd.join("deep");
    for level in 0..40 {
        fs::create_dir(&deep).unwrap();
        write(&deep.join("here"), 10 * level, level as u64);
        deep = deep.join("a directory with a name that makes the path long, and longer than that");
    }
}

/// Holes, blocks that are only reserved, within the file and behind its end.
fn sparse(odd: &Path) {
    let file = File::create(odd.join("one gigabyte")).unwrap();
    file.set_len(1 << 30).unwrap();
    for at in [0, 2 * PLACES_APART, 20 * PLACES_APART + 5, (1 << 30) - 100] {
        file.write_all_at(&[0x5a; 100], at).unwrap();
    }
    let mut options = OpenOptions::new();
    let file = options.create_new(true).write(true).open(odd.join("reserved")).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    file.write_all_at(&[7; 9000], 100_000).unwrap();
    file.write_all_at(&[8; 4096], 40_960).unwrap();
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 65_536, 16_384)
        .unwrap();
    let file = File::create(odd.join("reserved behind")).unwrap();
    file.write_all_at(&[9; 5000], 0).unwrap();
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 300_000).unwrap();
    let file = File::create(odd.join("hole at the end")).unwrap();
    file.write_all_at(&[1; 10], 0).unwrap();
    file.set_len(1_000_000).unwrap();
}

/// Two files that are written in turns.
fn fragmented(odd: &Path) {
    let files = ["one", "other"].map(|name| File::create(odd.join(name)).unwrap());
    for round in 0..300_u64 {
        for (index, file) in files.iter().enumerate() {
            file.write_all_at(&[round as u8 ^ index as u8; 4096], round * 8192).unwrap();
            file.sync_data().unwrap();
        }
    }
}

fn nodes(odd: &Path) {
    write(&odd.join("first name"), 7000, 1);
    fs::hard_link(odd.join("first name"), odd.join("second name")).unwrap();
    fs::hard_link(odd.join("first name"), odd.join("../third name")).unwrap();
    std::os::unix::fs::symlink("first name", odd.join("short link")).unwrap();
    std::os::unix::fs::symlink("x".repeat(500), odd.join("long link")).unwrap();
    std::os::unix::net::UnixListener::bind(odd.join("socket")).map(drop).unwrap();
    let mode = Mode::from_raw_mode(0o640);
    mknodat(CWD, odd.join("pipe"), FileType::Fifo, mode, 0).unwrap();
    let device = rustix::fs::makedev(7, 200);
    mknodat(CWD, odd.join("character"), FileType::CharacterDevice, mode, device).unwrap();
    mknodat(CWD, odd.join("block"), FileType::BlockDevice, mode, device).unwrap();
    fs::write(odd.join(std::ffi::OsStr::from_bytes(b"not \xff text")), b"x").unwrap();
}
