//! What the old file system has: names, attributes, and where data lies.

use std::collections::HashMap;
use std::fs::{File, Metadata, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bedplate_block::{FileExtent, file_extents};
use bedplate_fs::{AdoptedInode, FileKind, Timestamp};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result, system};
use crate::mounted::FILE_NAME;

/// The longest value of an extended attribute, and the longest list of names, that Linux has.
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;
/// Attributes by which a volume is told how to keep a file: they mean nothing elsewhere.
const OWN_ATTRIBUTES: &[u8] = b"user.bedplate.";
/// Attributes of the system that a volume knows too.
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Everything there is.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// All inodes, without their extents; the first is the root directory.
    pub inodes: Vec<AdoptedInode>,
    /// Where each lies on the old file system.
    pub extents: Vec<Vec<FileExtent>>,
    /// Extended attributes that a volume does not keep.
    pub left_out: u64,
}

struct Scanner<'a> {
    scan: Scan,
    /// Inodes with several names, by their number.
    linked: HashMap<u64, usize>,
    device: u64,
    shown: &'a Path,
    buffer: Vec<u8>,
}

/// Reads everything below a directory that a file system is mounted on.
pub(crate) fn scan(root: &Path) -> Result<Scan> {
    let is = root.symlink_metadata().map_err(system("look at", root))?;
    let mut scanner = Scanner {
        scan: Scan::default(),
        linked: HashMap::new(),
        device: is.dev(),
        shown: root,
        buffer: vec![0; ATTRIBUTE_BYTES_MAX],
    };
    scanner.add(root, &is, Vec::new())?;
    let directory = open_directory(root)?;
    scanner.walk(&directory, 0)?;
    Ok(scanner.scan)
}

fn open_directory(path: &Path) -> Result<File> {
    let flags = i32::try_from((OFlags::DIRECTORY | OFlags::NOFOLLOW).bits()).unwrap_or(0);
    OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(system("open", path))
}

/// Returns a path of something in an open directory, of whatever length its own path is.
fn within(directory: &File, name: &[u8]) -> PathBuf {
    let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    std::ffi::OsString::from_vec(path).into()
}

fn kind_of(is: &Metadata) -> Option<FileKind> {
    let kind = is.file_type();
    Some(match () {
        () if kind.is_file() => FileKind::File,
        () if kind.is_dir() => FileKind::Directory,
        () if kind.is_symlink() => FileKind::Symlink,
        () if kind.is_fifo() => FileKind::Fifo,
        () if kind.is_socket() => FileKind::Socket,
        () if kind.is_char_device() => FileKind::CharDevice,
        () if kind.is_block_device() => FileKind::BlockDevice,
        () => return None,
    })
}

/// Encodes a device number as the kernel does in 32 bits.
fn device_number(rdev: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

fn times(is: &Metadata) -> [Timestamp; 4] {
    let time =
        |secs: i64, nanos: i64| Timestamp(secs.saturating_mul(1_000_000_000).saturating_add(nanos));
    let changed = time(is.ctime(), is.ctime_nsec());
    let birth = is.created().map_or(changed, Timestamp::from);
    [time(is.atime(), is.atime_nsec()), time(is.mtime(), is.mtime_nsec()), changed, birth]
}

impl Scanner<'_> {
    /// Adds what has a name, unless it is known by another one; returns its index.
    fn add(&mut self, path: &Path, is: &Metadata, names: Vec<(usize, Vec<u8>)>) -> Result<usize> {
        let Some(kind) = kind_of(is) else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{} is of a kind that a volume has not", path.display()),
            ));
        };
        if is.dev() != self.device {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("another file system is mounted below {}", self.shown.display()),
            ));
        }
        let target = match kind {
            FileKind::Symlink => {
                std::fs::read_link(path).map_err(system("read", path))?.into_os_string().into_vec()
            }
            _ => Vec::new(),
        };
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let attributes = self.attributes(path)?;
        let extents = if kind == FileKind::File { extents_of(path)? } else { Vec::new() };
        self.scan.extents.push(extents);
        self.scan.inodes.push(AdoptedInode {
            kind,
            mode: is.mode() & 0o7777,
            uid: is.uid(),
            gid: is.gid(),
            rdev: if is_device { device_number(is.rdev()) } else { 0 },
            size: is.len(),
            times: times(is),
            target,
            attributes,
            extents: Vec::new(),
            names,
        });
        Ok(self.scan.inodes.len() - 1)
    }

    /// Adds what is in a directory. Directories are open while something below them is looked at.
    fn walk(&mut self, directory: &File, index: usize) -> Result<()> {
        let here = within(directory, b"");
        let list = std::fs::read_dir(&here).map_err(system("list", &here))?;
        for entry in list {
            let name = entry.map_err(system("list", &here))?.file_name().into_encoded_bytes();
            if index == 0 && name == FILE_NAME.as_bytes() {
                continue;
            }
            let path = within(directory, &name);
            let is = path.symlink_metadata().map_err(system("look at", &path))?;
            let has_others = is.nlink() > 1 && !is.is_dir();
            if let Some(known) = self.linked.get(&is.ino()).filter(|_| has_others) {
                self.scan.inodes[*known].names.push((index, name));
                continue;
            }
            let added = self.add(&path, &is, vec![(index, name)])?;
            if has_others {
                self.linked.insert(is.ino(), added);
            }
            if is.is_dir() {
                self.walk(&open_directory(&path)?, added)?;
            }
        }
        Ok(())
    }

    fn attributes(&mut self, path: &Path) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let len = match rustix::fs::llistxattr(path, &mut self.buffer[..]) {
            Ok(len) => len,
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(error) => return Err(Error::system("list attributes of", path, &error.into())),
        };
        let names = self.buffer[..len].to_vec();
        let mut all = Vec::new();
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let is_known = !name.starts_with(b"system.") || ACLS.contains(&name);
            if !is_known || name.starts_with(OWN_ATTRIBUTES) {
                self.scan.left_out += 1;
                continue;
            }
            let len = rustix::fs::lgetxattr(path, name, &mut self.buffer[..])
                .map_err(system("read attributes of", path))?;
            all.push((name.to_vec(), self.buffer[..len].to_vec()));
        }
        Ok(all)
    }
}

fn extents_of(path: &Path) -> Result<Vec<FileExtent>> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = file.map_err(system("open", path))?;
    file_extents(&file).map_err(system("find out where the blocks are of", path))
}

/// Opens an inode of a scan by its first name.
pub(crate) fn open(root: &Path, scan: &Scan, index: usize) -> Result<File> {
    let mut names = Vec::new();
    let mut at = index;
    while let Some((dir, name)) = scan.inodes[at].names.first() {
        names.push(name);
        at = *dir;
    }
    let mut directory = open_directory(root)?;
    for name in names[1..].iter().rev() {
        directory = open_directory(&within(&directory, name))?;
    }
    let path = within(&directory, names[0]);
    let shown = Path::new(std::ffi::OsStr::from_bytes(names[0]));
    File::open(path).map_err(system("open", shown))
}
