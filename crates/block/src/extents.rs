//! The pieces that a file lies in on its file system (`FS_IOC_FIEMAP`).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `FS_IOC_FIEMAP` of linux/fs.h: `_IOWR('f', 11, struct fiemap)`.
const FIEMAP: libc::c_ulong = 0xc020_660b;

/// `struct fiemap` of linux/fiemap.h, without extents behind it.
#[repr(C)]
#[derive(Default)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
}

/// Returns how many extents a file has; data that waits to be written may have none yet.
///
/// # Errors
/// What the system says: file systems in memory and FUSE do not know.
pub fn extents(file: &File) -> io::Result<u32> {
    // Without room for extents the kernel only counts them.
    let mut map = Map { length: u64::MAX, ..Map::default() };
    // SAFETY: the descriptor is open as long as `file` is borrowed; the call reads and writes one
    // `fiemap`, which `map` has the layout of, and no extents, for which there is no room.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), FIEMAP as _, &raw mut map) };
    if done == 0 { Ok(map.mapped_extents) } else { Err(io::Error::last_os_error()) }
}

/// How many extents one call returns.
const AT_ONCE: usize = 256;
/// `FIEMAP_FLAG_SYNC`: data that waits to be written is written first.
const SYNC: u32 = 1;
const LAST: u32 = 0x1;
const UNWRITTEN: u32 = 0x800;
/// Flags of data that is not at its place as it is read: its place is unknown, or not decided, it is
/// encoded or encrypted, unaligned, or lies among metadata.
const ELSEWHERE: u32 = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400;

/// `struct fiemap_extent` of linux/fiemap.h.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct MapExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct FullMap {
    head: Map,
    extents: [MapExtent; AT_ONCE],
}

/// A piece of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileExtent {
    /// First byte in the file.
    pub offset: u64,
    /// First byte on the device of the file system; means nothing where `is_plain` is false.
    pub place: u64,
    /// Length in bytes.
    pub len: u64,
    /// Whether it is only reserved and reads as zeros.
    pub unwritten: bool,
    /// Whether the bytes at that place are those of the file, unchanged.
    pub is_plain: bool,
}

/// Returns where a file lies, in order; what waits to be written is written first.
///
/// # Errors
/// What the system says: file systems in memory and FUSE do not know.
pub fn file_extents(file: &File) -> io::Result<Vec<FileExtent>> {
    let mut all = Vec::new();
    let mut from = 0;
    loop {
        let head = Map {
            start: from,
            length: u64::MAX - from,
            flags: SYNC,
            extent_count: AT_ONCE as u32,
            ..Map::default()
        };
        let mut map = Box::new(FullMap { head, extents: [MapExtent::default(); AT_ONCE] });
        // SAFETY: the descriptor is open as long as `file` is borrowed; the call reads and writes one
        // `fiemap` with `extent_count` extents behind it, which `FullMap` has the layout of.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), FIEMAP as _, &raw mut *map) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        let count = (map.head.mapped_extents as usize).min(AT_ONCE);
        for one in &map.extents[..count] {
            all.push(FileExtent {
                offset: one.logical,
                place: one.physical,
                len: one.length,
                unwritten: one.flags & UNWRITTEN != 0,
                is_plain: one.flags & ELSEWHERE == 0,
            });
        }
        match map.extents[..count].last() {
            Some(last) if last.flags & LAST == 0 && last.length > 0 => {
                from = last.logical.saturating_add(last.length);
            }
            _ => return Ok(all),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn pieces_with_holes_between_them_are_counted() {
        const BLOCK: u64 = 64 << 10;
        let file = tempfile::tempfile_in("/var/tmp").unwrap();
        for place in 0..5 {
            file.write_all_at(&[1; BLOCK as usize], place * 4 * BLOCK).unwrap();
        }
        file.sync_all().unwrap();
        match extents(&file) {
            Ok(count) => assert!(count >= 5, "{count}"),
            Err(error) => println!("skipped: {error}"),
        }
    }

    #[test]
    fn all_pieces_are_told_however_many_there_are() {
        const BLOCK: u64 = 64 << 10;
        let pieces = AT_ONCE as u64 + 40;
        let file = tempfile::tempfile_in("/var/tmp").unwrap();
        for place in 0..pieces {
            file.write_all_at(&[1; BLOCK as usize], place * 2 * BLOCK).unwrap();
        }
        let all = match file_extents(&file) {
            Ok(all) => all,
            Err(error) => return println!("skipped: {error}"),
        };
        assert!(all.windows(2).all(|pair| pair[0].offset + pair[0].len <= pair[1].offset));
        assert!(all.len() as u64 >= pieces);
        assert_eq!(all.iter().map(|one| one.len).sum::<u64>(), pieces * BLOCK);
        assert_eq!(all.last().map(|one| one.offset), Some((pieces - 1) * 2 * BLOCK));
    }
}
