//! How many pieces a file lies in on its file system (`FS_IOC_FIEMAP`).

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
}
