//! What the page cache of the kernel holds of a file: how much (`cachestat`, since Linux 6.5), and
//! which pages (`mincore`).
//!
//! The kernel answers only for files that the caller owns or may write: of others it says that all
//! is cached, or refuses.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// `SYS_cachestat`, the same number on every machine.
const CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range` of linux/mman.h.
#[repr(C)]
struct StatRange {
    offset: u64,
    length: u64,
}

/// `struct cachestat` of linux/mman.h.
#[repr(C)]
#[derive(Default)]
struct Stat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Has the kernel begin to write what is dirty of a part of a file; a length of 0 is all behind the
/// offset.
///
/// # Errors
/// What the system says.
pub fn begin_writing(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let place = |at: u64| i64::try_from(at).map_err(|_| io::ErrorKind::InvalidInput);
    let (offset, len) = (place(offset)?, place(len)?);
    // SAFETY: takes numbers only; the descriptor is open as long as `file` is borrowed.
    let done = unsafe {
        libc::sync_file_range(file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns how many bytes of a file are in the page cache.
///
/// # Errors
/// What the system says.
pub fn cached_bytes(file: &File) -> io::Result<u64> {
    let page = rustix::param::page_size() as u64;
    let (range, mut stat) = (StatRange { offset: 0, length: 0 }, Stat::default());
    // SAFETY: the descriptor is open as long as `file` is borrowed; the call reads one
    // `cachestat_range` and writes one `cachestat`, which these have the layouts of.
    let done =
        unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut stat, 0) };
    if done == 0 {
        return Ok(stat.cached * page);
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENOSYS) => {
            let pages = cached_pages(file, 0..file.metadata()?.len())?;
            Ok(pages.iter().filter(|cached| **cached).count() as u64 * page)
        }
        error => Err(error),
    }
}

/// Returns of each page that `range` of a file touches whether it is in the page cache; what is
/// behind the end of the file is left out.
///
/// # Errors
/// What the system says.
pub fn cached_pages(file: &File, range: Range<u64>) -> io::Result<Vec<bool>> {
    let page = rustix::param::page_size() as u64;
    let start = range.start / page * page;
    let end = range.end.min(file.metadata()?.len());
    if end <= start {
        return Ok(Vec::new());
    }
    let mapping = Mapping::new(file, start, end - start)?;
    let mut told = vec![0_u8; mapping.bytes.div_ceil(page as usize)];
    // SAFETY: the range is that of a mapping that lives until the end of this function, and the
    // call writes one byte for each page of it.
    let done = unsafe { libc::mincore(mapping.address, mapping.bytes, told.as_mut_ptr()) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(told.into_iter().map(|page| page & 1 != 0).collect())
}

/// Maps a file whole and reads one byte of it at each offset, as a program does that works on a
/// mapping. The file must be the caller's alone: a process that cuts it short meanwhile ends the
/// caller with SIGBUS.
///
/// # Errors
/// What the system says.
pub fn touch_mapped(file: &File, offsets: &[u64]) -> io::Result<()> {
    let len = file.metadata()?.len();
    if offsets.iter().any(|offset| *offset >= len) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mapping = Mapping::new(file, 0, len)?;
    for offset in offsets {
        // SAFETY: the offset is less than the length of the mapping, which is that of the file; a
        // byte has no alignment, and what another process writes to it makes it another byte.
        let byte = unsafe { mapping.address.cast::<u8>().add(*offset as usize).read_volatile() };
        std::hint::black_box(byte);
    }
    Ok(())
}

/// A part of a file in memory, to be read.
struct Mapping {
    address: *mut libc::c_void,
    bytes: usize,
}

impl Mapping {
    fn new(file: &File, start: u64, len: u64) -> io::Result<Self> {
        let bytes = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address that the kernel chooses aliases nothing of Rust's.
        let address = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, start)
        }?;
        Ok(Self { address, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and nothing refers to it any more. Unmapping what
        // is mapped does not fail.
        let _unmapped = unsafe { munmap(self.address, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn what_was_written_is_cached_and_what_was_dropped_is_not() {
        let page = rustix::param::page_size() as u64;
        let file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.write_all_at(&vec![7; 8 * page as usize], 0).unwrap();
        file.sync_all().unwrap();
        assert_eq!(cached_bytes(&file).unwrap(), 8 * page);
        assert_eq!(cached_pages(&file, 0..u64::MAX).unwrap(), [true; 8]);
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert_eq!(cached_bytes(&file).unwrap(), 0);
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        file.read_exact_at(&mut [0], 2 * page + 5).unwrap();
        assert_eq!(
            cached_pages(&file, page..4 * page).unwrap(),
            [false, true, false],
            "from the second page on"
        );
        touch_mapped(&file, &[0, 8 * page - 1]).unwrap();
        assert!(cached_pages(&file, 0..1).unwrap()[0]);
        assert!(touch_mapped(&file, &[8 * page]).is_err());
        assert!(cached_pages(&file, 9 * page..10 * page).unwrap().is_empty());
    }
}
