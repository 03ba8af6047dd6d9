//! What the system knows about a device: sizes, alignments, cache.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Statx, StatxFlags};

use crate::descriptor::Kind;
use crate::{AlignedBuf, Geometry};

/// The largest piece of I/O that is believed to be a disk's best.
const ROW_BYTES_MAX: u32 = 64 << 20;

/// How a file was opened, as far as its geometry depends on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opened {
    pub kind: Kind,
    pub direct: bool,
    pub read_only: bool,
}

/// A device number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeviceNo {
    pub major: u32,
    pub minor: u32,
}

impl DeviceNo {
    /// Takes a `st_dev` or `st_rdev` apart.
    pub fn from_raw(raw: u64) -> Self {
        Self { major: rustix::fs::major(raw), minor: rustix::fs::minor(raw) }
    }

    /// Reads a number as the system writes it, `MAJOR:MINOR`.
    pub fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.trim().split_once(':')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }

    /// Reads a `dev` attribute of sysfs.
    pub fn read(path: &Path) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(path).ok()?)
    }

    /// Returns the path by which the device is usually opened.
    pub fn node(self) -> Option<PathBuf> {
        let dir = self.sysfs().canonicalize().ok()?;
        Some(Path::new("/dev").join(dir.file_name()?.to_str()?.replace('!', "/")))
    }

    /// Returns the device's directory in sysfs.
    pub fn sysfs(self) -> PathBuf {
        PathBuf::from(format!("/sys/dev/block/{self}"))
    }

    /// Reads an attribute of the request queue: the device's own, or for a partition that of its
    /// disk.
    fn queue_attribute(self, name: &str) -> Option<String> {
        let own = self.sysfs().join("queue").join(name);
        let disk = self.sysfs().join("..").join("queue").join(name);
        let text = std::fs::read_to_string(own).or_else(|_| std::fs::read_to_string(disk)).ok()?;
        Some(text.trim().to_owned())
    }

    fn queue_number(self, name: &str) -> Option<u32> {
        self.queue_attribute(name)?.parse().ok()
    }
}

impl std::fmt::Display for DeviceNo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// `STATX_WRITE_ATOMIC`, since Linux 6.11.
const WRITE_ATOMIC: StatxFlags = StatxFlags::from_bits_retain(0x1_0000);

/// Asks the system for everything that is known about an open file without its path.
pub(super) fn statx(file: &File) -> io::Result<Statx> {
    // Flags a kernel does not know are ignored, and the fields stay 0.
    let mask = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN | WRITE_ATOMIC;
    Ok(rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, mask)?)
}

/// Says whether direct I/O is refused although the open was not (a file system may say so per
/// file).
pub(super) fn refuses_direct(stat: &Statx) -> bool {
    stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 && stat.stx_dio_offset_align == 0
}

/// `_IO(0x12, 94)`; counted from `_IO(0x12, 104)` because the base differs between architectures.
const BLKROGET: libc::Ioctl = libc::BLKSSZGET - 10;

/// Says whether a block device is set read-only; newer kernels let it be opened for writing all the
/// same, and fail the writes.
pub(super) fn is_read_only(file: &File) -> io::Result<bool> {
    let mut flag: libc::c_int = 0;
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and the request writes one
    // int to the pointer.
    match unsafe { libc::ioctl(file.as_raw_fd(), BLKROGET, &raw mut flag) } {
        0 => Ok(flag != 0),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads a device's geometry from the system.
pub(super) fn geometry(file: &File, stat: &Statx, opened: Opened) -> io::Result<Geometry> {
    match opened.kind {
        Kind::Block => block_geometry(file, stat, opened),
        Kind::Image => image_geometry(file, stat, opened),
    }
}

fn block_geometry(file: &File, stat: &Statx, opened: Opened) -> io::Result<Geometry> {
    let device = DeviceNo { major: stat.stx_rdev_major, minor: stat.stx_rdev_minor };
    let logical = rustix::fs::ioctl_blksszget(file)?;
    let physical = rustix::fs::ioctl_blkpbszget(file)?;
    let dma_align = || device.queue_number("dma_alignment").map(|mask| mask.wrapping_add(1));
    let align = known(stat.stx_dio_mem_align).or_else(dma_align).unwrap_or(logical);
    let write_back =
        device.queue_attribute("write_cache").is_none_or(|cache| cache != "write through");
    Ok(effective_geometry(
        opened,
        Found {
            logical,
            physical,
            align,
            untorn: untorn_unit(stat, opened, physical),
            row: device.queue_number("optimal_io_size").unwrap_or(0),
            write_back,
        },
    ))
}

fn image_geometry(file: &File, stat: &Statx, opened: Opened) -> io::Result<Geometry> {
    let below = DeviceNo { major: stat.stx_dev_major, minor: stat.stx_dev_minor };
    let logical = match (opened.direct, known(stat.stx_dio_offset_align)) {
        (false, _) => 512,
        (true, Some(align)) => align,
        (true, None) => try_alignments(file)?,
    };
    // A write smaller than what the disk below writes at once is read-modify-written there, as on
    // the disk itself.
    let physical = below.queue_number("physical_block_size").unwrap_or(stat.stx_blksize);
    let align = known(stat.stx_dio_mem_align).unwrap_or(logical);
    // Even over a disk without a cache, the host's file system needs a flush to find the image's
    // blocks again.
    Ok(effective_geometry(
        opened,
        Found {
            logical,
            physical,
            align,
            untorn: untorn_unit(stat, opened, physical),
            // The host's file system decides which places of the disk are neighbours.
            row: 0,
            write_back: true,
        },
    ))
}

fn known(value: u32) -> Option<u32> {
    (value != 0).then_some(value)
}

/// Returns the largest write that the hardware promises not to tear, 0 if it promises nothing.
///
/// A file system that only imitates such writes, by writing elsewhere and remapping, promises more
/// than it says here: callers that do not ask should not pay for that. It tells by a largest
/// *optimised* unit of 0.
fn untorn_unit(stat: &Statx, opened: Opened, physical: u32) -> u32 {
    let known = opened.direct
        && stat.stx_mask & WRITE_ATOMIC.bits() != 0
        && stat.stx_atomic_write_unit_min <= physical;
    match opened.kind {
        _ if !known => 0,
        Kind::Block => stat.stx_atomic_write_unit_max,
        Kind::Image => stat.stx_atomic_write_unit_max_opt,
    }
}

/// What the system said, unchecked.
#[derive(Debug, Clone, Copy)]
struct Found {
    logical: u32,
    physical: u32,
    align: u32,
    untorn: u32,
    /// What the device says is best; 0: nothing.
    row: u32,
    write_back: bool,
}

/// Puts what was found into the shape that [`Geometry`] promises, whatever the system said.
fn effective_geometry(opened: Opened, found: Found) -> Geometry {
    let logical = found.logical.clamp(1, 1 << 16).next_power_of_two().max(512);
    let physical = found.physical.clamp(1, 1 << 20).next_power_of_two().max(logical);
    let untorn =
        if found.untorn.is_power_of_two() { found.untorn.clamp(logical, 1 << 24) } else { logical };
    Geometry {
        logical_block_size: logical,
        physical_block_size: physical,
        buffer_align: if opened.direct {
            found.align.clamp(1, AlignedBuf::ALIGN as u32).next_power_of_two()
        } else {
            1
        },
        untorn_unit: untorn,
        // Some disks state what is no multiple of their sectors, or more than a disk moves at once.
        row_bytes: if found.row.is_multiple_of(physical) && found.row <= ROW_BYTES_MAX {
            found.row
        } else {
            0
        },
        volatile_cache: found.write_back || !opened.direct,
        read_only: opened.read_only,
    }
}

/// Finds the alignment of direct I/O on a kernel that does not tell: the smallest that a read gets
/// through with.
fn try_alignments(file: &File) -> io::Result<u32> {
    let mut buf = AlignedBuf::zeroed(4096);
    for align in [512, 1024, 2048] {
        match file.read_at(&mut buf[..align], align as u64) {
            Ok(count) if count == align => return Ok(align as u32),
            // Too short a file to tell, or refused.
            Ok(_) => break,
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_the_system_says_the_geometry_keeps_its_rules() {
        for kind in [Kind::Block, Kind::Image] {
            let opened = Opened { kind, direct: true, read_only: false };
            for (logical, physical, align) in [
                (0, 0, 0),
                (512, 4096, 4),
                (4096, 512, 511),
                (u32::MAX, u32::MAX, u32::MAX),
                (520, 520, 3),
            ] {
                let geometry = effective_geometry(
                    opened,
                    Found { logical, physical, align, untorn: physical, row: 0, write_back: true },
                );
                crate::check::assert_geometry(&geometry);
                assert!(
                    geometry.buffer_align as usize <= AlignedBuf::ALIGN
                        && geometry.logical_block_size >= 512
                );
                assert!(geometry.untorn_unit.is_power_of_two());
            }
        }
    }

    #[test]
    fn a_best_size_is_believed_that_the_device_can_have() {
        let opened = Opened { kind: Kind::Block, direct: true, read_only: false };
        for (row, told) in [(0, 0), (65_536, 65_536), (65_535, 0), (196_608, 196_608), (1 << 30, 0)]
        {
            let found = Found {
                logical: 512,
                physical: 4096,
                align: 512,
                untorn: 0,
                row,
                write_back: true,
            };
            assert_eq!(effective_geometry(opened, found).row_bytes, told, "{row}");
        }
    }

    #[test]
    fn a_buffered_device_takes_any_buffer_and_has_a_volatile_cache() {
        let opened = Opened { kind: Kind::Block, direct: false, read_only: false };
        let geometry = effective_geometry(
            opened,
            Found { logical: 512, physical: 512, align: 512, untorn: 0, row: 0, write_back: false },
        );
        assert!(geometry.buffer_align == 1 && geometry.volatile_cache);
    }
}
