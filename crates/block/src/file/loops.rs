//! Loop devices: the file that each presents, known by its identity and not by a name.
//!
//! The driver tells device number and inode of the file (`LOOP_GET_STATUS64`) to those that may
//! open the loop device. Others go by the name in sysfs, which follows renames, and leads nowhere
//! once that name is removed.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirEntryExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::probe::DeviceNo;
use super::target::Target;
use crate::MountEntry;

/// A loop device that presents a file or another block device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Loop {
    pub device: DeviceNo,
    /// What it presents.
    pub backing: Target,
    /// The name of that, as the kernel has it.
    pub backing_path: PathBuf,
    /// The part of it that is presented; without an end where the loop device grows with the file.
    pub bytes: Range<u64>,
}

impl Loop {
    /// Returns the loop device with this number; `None` for any other device, and for one that
    /// presents nothing or cannot be looked at.
    pub fn of(device: DeviceNo) -> Option<Self> {
        let backing_path = backing_path(device)?;
        let (backing, offset, limit) =
            status(device).ok().or_else(|| attributes(device, &backing_path))?;
        let end = if limit == 0 { u64::MAX } else { offset.saturating_add(limit) };
        Some(Self { device, backing, backing_path, bytes: offset..end })
    }

    /// Opens what the loop device presents: by its name, by another name in the same directory, or
    /// by the descriptor of a process that has it open. Says whether it is open for writing, which
    /// is tried first with `write`.
    pub fn open_backing(&self, write: bool) -> Option<(File, bool)> {
        let try_open = |path: PathBuf| self.open_verified(&path, write);
        if let Target::Block(device) = self.backing {
            return device.node().and_then(try_open);
        }
        let named = try_open(self.backing_path.clone());
        named
            .or_else(|| self.names_beside().find_map(try_open))
            .or_else(|| self.descriptors().find_map(try_open))
    }

    fn open_verified(&self, path: &Path, write: bool) -> Option<(File, bool)> {
        // Opening what is no regular file may have effects.
        if Target::at(path).ok()? != self.backing {
            return None;
        }
        let open = |write: bool| {
            OpenOptions::new()
                .read(true)
                .write(write)
                .custom_flags(libc::O_NONBLOCK)
                .open(path)
                .ok()
                .map(|file| (file, write))
        };
        let opened = if write { open(true).or_else(|| open(false)) } else { open(false) };
        opened.filter(|(file, _)| {
            file.metadata().is_ok_and(|metadata| Target::of(&metadata) == self.backing)
        })
    }

    /// Returns the hard links to the file in the directory where it was when its name was removed.
    fn names_beside(&self) -> impl Iterator<Item = PathBuf> {
        let inode = if let Target::File { ino, .. } = self.backing { Some(ino) } else { None };
        let entries = self
            .backing_path
            .parent()
            .and_then(|dir| fs::read_dir(dir).ok())
            .into_iter()
            .flatten()
            .flatten();
        entries.filter(move |entry| Some(entry.ino()) == inode).map(|entry| entry.path())
    }

    /// Returns the descriptors of processes that have the file open.
    fn descriptors(&self) -> impl Iterator<Item = PathBuf> {
        let is_process =
            |entry: &fs::DirEntry| entry.file_name().as_bytes().iter().all(u8::is_ascii_digit);
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten().filter(is_process);
        processes
            .flat_map(|process| {
                fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten()
            })
            .map(|entry| entry.path())
    }
}

/// Finds the loop devices that present a file or a block device.
pub(super) fn loops_over(backing: Target) -> Vec<Loop> {
    let Ok(entries) = fs::read_dir("/sys/block") else { return Vec::new() };
    let mounts = MountEntry::all().unwrap_or_default();
    let attached = entries.flatten().filter_map(|entry| DeviceNo::read(&entry.path().join("dev")));
    let asked = attached.filter(|device| {
        backing_path(*device).is_some_and(|path| may_ask(&mounts, &path, backing))
    });
    asked.filter_map(Loop::of).filter(|found| found.backing == backing).collect()
}

/// Says whether the file of a loop device may be asked for. The file system that it lies on has to
/// answer, and where that is another one served through FUSE the answer might have to come from
/// this very process, which waits for it.
fn may_ask(mounts: &[MountEntry], path: &Path, backing: Target) -> bool {
    let Some(mount) = MountEntry::above(mounts, path) else { return true };
    !mount.kind.starts_with("fuse")
        || matches!(backing, Target::File { dev, .. } if Some(DeviceNo::from_raw(dev)) == DeviceNo::parse(&mount.device))
}

/// Returns the present name of a loop device's file; the kernel puts " (deleted)" behind one that
/// was removed.
fn backing_path(device: DeviceNo) -> Option<PathBuf> {
    let mut name = fs::read(device.sysfs().join("loop/backing_file")).ok()?;
    name.pop_if(|last| *last == b'\n');
    Some(OsString::from_vec(name).into())
}

/// Asks sysfs for file, offset and limit of size.
fn attributes(device: DeviceNo, backing_path: &Path) -> Option<(Target, u64, u64)> {
    let number = |name: &str| {
        fs::read_to_string(device.sysfs().join("loop").join(name)).ok()?.trim().parse().ok()
    };
    Some((Target::at(backing_path).ok()?, number("offset")?, number("sizelimit")?))
}

/// `LOOP_GET_STATUS64` of linux/loop.h.
const LOOP_GET_STATUS64: libc::Ioctl = 0x4C05;

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// Asks the driver for file, offset and limit of size.
fn status(device: DeviceNo) -> io::Result<(Target, u64, u64)> {
    let node = device.node().ok_or(io::ErrorKind::NotFound)?;
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(node)?;
    let metadata = file.metadata()?;
    if !metadata.file_type().is_block_device() || DeviceNo::from_raw(metadata.rdev()) != device {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: `LoopInfo` is plain numbers, for which zeros are valid.
    let mut info: LoopInfo = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open as long as `file` lives; the request writes one `loop_info64`
    // to the pointer, which `info` has the layout of.
    if unsafe { libc::ioctl(file.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let below = DeviceNo::from_raw(info.rdevice);
    let is_block = info.rdevice != 0 && below.sysfs().exists();
    let target = if is_block {
        Target::Block(below)
    } else {
        Target::File { dev: info.device, ino: info.inode }
    };
    Ok((target, info.offset, info.size_limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_has_the_size_that_the_kernel_writes() {
        assert_eq!(size_of::<LoopInfo>(), 232);
    }

    /// A daemon that opens a device asks each loop device for its file. One over a file of its own
    /// mount would be answered by the daemon itself.
    #[test]
    fn only_the_own_file_system_is_asked_where_it_is_served_through_fuse() {
        let mounts = MountEntry::parse(
            b"27 1 254:0 / / rw - ext4 /dev/vda rw\n40 27 0:42 / /mnt rw - fuse.bedplate /v.img \
             rw\n",
        );
        let on = |major, minor| Target::File { dev: rustix::fs::makedev(major, minor), ino: 12 };
        assert!(
            may_ask(&mounts, Path::new("/srv/v.img"), on(254, 0))
                && may_ask(&mounts, Path::new("/srv/v.img"), on(8, 1))
        );
        assert!(
            may_ask(&mounts, Path::new("/mnt/v.img"), on(0, 42))
                && !may_ask(&mounts, Path::new("/mnt/v.img"), on(254, 0))
        );
        assert!(!may_ask(
            &mounts,
            Path::new("/mnt/v.img"),
            Target::Block(DeviceNo { major: 7, minor: 0 })
        ));
    }

    #[test]
    fn a_file_without_its_name_is_opened_by_a_hard_link_beside_it_or_by_a_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let [gone, link] = ["gone", "link"].map(|name| dir.path().join(name));
        fs::write(&gone, b"image").unwrap();
        let found = Loop {
            device: DeviceNo { major: 7, minor: 0 },
            backing: Target::at(&gone).unwrap(),
            backing_path: dir.path().join("gone (deleted)"),
            bytes: 0..u64::MAX,
        };
        fs::hard_link(&gone, &link).unwrap();
        fs::remove_file(&gone).unwrap();
        // Another file took the name; it is not the one that is presented.
        fs::write(&gone, b"other").unwrap();
        let opens = |write| {
            found.open_backing(write).map(|(file, writable)| {
                (Target::of(&file.metadata().unwrap()) == found.backing, writable)
            })
        };
        assert_eq!((opens(true), opens(false)), (Some((true, true)), Some((true, false))));
        let held = File::open(&link).unwrap();
        fs::remove_file(&link).unwrap();
        assert_eq!(opens(true), Some((true, true)));
        drop(held);
        assert_eq!(opens(true), None);
    }
}
