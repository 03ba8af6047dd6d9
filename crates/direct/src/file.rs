//! A file that is open for direct I/O.
//!
//! Where the system refuses direct I/O, when the file is opened or at a request, the file goes on
//! through the page cache, and what it left there is thrown out behind it: slower, and the cache
//! stays as it was all the same. [`Route`] tells.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bedplate_block::AlignedBuf;
use rustix::fs::{Advice, AtFlags, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result, system};

/// Alignment of direct requests where the system does not tell one: a page, which all take.
const GRID_BYTES: u64 = 4096;

/// The largest alignment that is served; more is nothing that a system tells today.
const GRID_BYTES_MAX: u64 = 1 << 20;

/// Written bytes after which a file that goes through the page cache is synced and thrown out.
const DROPPED_BEHIND_BYTES: u64 = 64 << 20;

/// How a file was read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Past the page cache.
    Direct,
    /// Through the page cache, since the system refuses direct I/O on it, and out of it again.
    Buffered,
}

/// A file that is read and written in windows. Threads share it.
#[derive(Debug)]
pub(crate) struct DirectFile {
    file: File,
    path: PathBuf,
    grid: u64,
    is_direct: AtomicBool,
    /// Written through the page cache since the last sync.
    behind: AtomicU64,
}

impl DirectFile {
    /// Opens a file or a block device to read it.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Self::open_as(path, OpenOptions::new().read(true), "open")
    }

    /// Opens a file or a block device to change a part of it.
    pub(crate) fn open_to_change(path: &Path) -> Result<Self> {
        Self::open_as(path, OpenOptions::new().read(true).write(true), "open")
    }

    /// Opens a file to write it; makes it where it is missing, for the caller's eyes only until
    /// its mode is set.
    pub(crate) fn create(path: &Path, truncate: bool, mode: u32) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(truncate).mode(mode);
        Self::open_as(path, &options, "make")
    }

    /// Opens a file to read it; a link is refused, which someone may have put in its place.
    pub(crate) fn open_itself(path: &Path) -> Result<Self> {
        Self::open_with(path, OpenOptions::new().read(true), OFlags::NOFOLLOW, "open")
    }

    /// Opens or makes a file to write it, for the caller's eyes only until its mode is set; a link
    /// is refused, which someone may have put in its place.
    pub(crate) fn create_itself(path: &Path) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        Self::open_with(path, &options, OFlags::NOFOLLOW, "make")
    }

    fn open_as(path: &Path, options: &OpenOptions, doing: &str) -> Result<Self> {
        Self::open_with(path, options, OFlags::empty(), doing)
    }

    fn open_with(path: &Path, options: &OpenOptions, further: OFlags, doing: &str) -> Result<Self> {
        let explain = |error| Error::system(doing, path, &error);
        let open = |flags: OFlags| {
            options.clone().custom_flags((flags | OFlags::CLOEXEC).bits() as i32).open(path)
        };
        let (file, is_direct) = match open(OFlags::DIRECT | further) {
            Ok(file) => (file, true),
            Err(error) if is_refusal(&error) => (open(further).map_err(explain)?, false),
            Err(error) => return Err(explain(error)),
        };
        let kind = file.metadata().map_err(system("look at", path))?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{} is neither a file nor a block device", path.display()),
            ));
        }
        let grid = alignment(&file, is_direct);
        Ok(Self {
            is_direct: AtomicBool::new(is_direct && grid.is_some()),
            grid: grid.unwrap_or(GRID_BYTES),
            path: path.to_owned(),
            behind: AtomicU64::new(0),
            file,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn system(&self) -> &File {
        &self.file
    }

    /// Offsets and lengths of requests are multiples of this, a power of two.
    pub(crate) fn grid(&self) -> u64 {
        self.grid
    }

    pub(crate) fn route(&self) -> Route {
        if self.is_direct.load(Ordering::Relaxed) { Route::Direct } else { Route::Buffered }
    }

    pub(crate) fn metadata(&self) -> Result<Metadata> {
        self.file.metadata().map_err(system("look at", &self.path))
    }

    /// Returns whether it is a file, whose end moves, and no device.
    pub(crate) fn is_regular(&self) -> Result<bool> {
        Ok(self.metadata()?.is_file())
    }

    /// Bytes that can be read, of a device too.
    pub(crate) fn size(&self) -> Result<u64> {
        if self.is_regular()? {
            return Ok(self.metadata()?.len());
        }
        rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0))
            .map_err(system("tell the size of", &self.path))
    }

    /// Reads whole blocks of the grid until the buffer is full or the file ends; returns how much
    /// was read.
    pub(crate) fn read(&self, buf: &mut [u8], at: u64) -> Result<usize> {
        debug_assert!(self.takes(buf.len(), at), "a read of {} at {at} is aligned", buf.len());
        let mut done = 0;
        while done < buf.len() {
            let was = self.route();
            match self.file.read_at(&mut buf[done..], at + done as u64) {
                Ok(0) => break,
                Ok(read) => {
                    done += read;
                    if !(read as u64).is_multiple_of(self.grid) {
                        // The end of the file lies there: no aligned request goes on from it.
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if self.gives_up(was, &error) => {}
                Err(error) => {
                    return Err(Error::system(
                        &format!("read byte {} of", at + done as u64),
                        &self.path,
                        &error,
                    ));
                }
            }
        }
        if self.route() == Route::Buffered {
            self.drop_pages(at, done as u64);
        }
        Ok(done)
    }

    /// Writes whole blocks of the grid.
    pub(crate) fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        debug_assert!(self.takes(bytes.len(), at), "a write of {} at {at} is aligned", bytes.len());
        let mut done = 0;
        while done < bytes.len() {
            let was = self.route();
            match self.file.write_at(&bytes[done..], at + done as u64) {
                Ok(written) => done += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if self.gives_up(was, &error) => {}
                Err(error) => {
                    return Err(Error::system(
                        &format!("write byte {} of", at + done as u64),
                        &self.path,
                        &error,
                    ));
                }
            }
        }
        if self.route() == Route::Buffered {
            let len = bytes.len() as u64;
            if self.behind.fetch_add(len, Ordering::Relaxed) + len >= DROPPED_BEHIND_BYTES {
                self.behind.store(0, Ordering::Relaxed);
                self.sync()?;
            }
        }
        Ok(())
    }

    /// Makes what was written durable.
    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(system("sync", &self.path))?;
        if self.route() == Route::Buffered {
            self.drop_pages(0, 0);
        }
        Ok(())
    }

    pub(crate) fn set_size(&self, size: u64) -> Result<()> {
        self.file.set_len(size).map_err(system("set the size of", &self.path))
    }

    fn takes(&self, len: usize, at: u64) -> bool {
        at.is_multiple_of(self.grid) && (len as u64).is_multiple_of(self.grid)
    }

    /// Goes on through the page cache where the system took the flag and refuses a request that
    /// went this way.
    fn gives_up(&self, was: Route, error: &io::Error) -> bool {
        let gives_up = was == Route::Direct
            && is_refusal(error)
            && rustix::fs::fcntl_getfl(&self.file)
                .and_then(|flags| rustix::fs::fcntl_setfl(&self.file, flags - OFlags::DIRECT))
                .is_ok();
        if gives_up {
            self.is_direct.store(false, Ordering::Relaxed);
        }
        gives_up
    }

    /// Throws clean pages of a range out of the page cache; of all from `at` on for no length.
    fn drop_pages(&self, at: u64, len: u64) {
        // Advice: a system that does not take it keeps the pages.
        let _advised = rustix::fs::fadvise(&self.file, at, NonZeroU64::new(len), Advice::DontNeed);
    }
}

/// Returns whether an error says that direct I/O is not served.
fn is_refusal(error: &io::Error) -> bool {
    [Errno::INVAL, Errno::OPNOTSUPP]
        .iter()
        .any(|refusal| error.raw_os_error() == Some(refusal.raw_os_error()))
}

/// Tells the alignment of direct requests, from `statx(2)` (`STATX_DIOALIGN`, Linux 6.1) where the
/// file system answers; `None` where it says that it serves none.
fn alignment(file: &File, is_direct: bool) -> Option<u64> {
    let told = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        .ok()
        .filter(|stat| stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    match told {
        Some(stat) if is_direct => {
            let grid = u64::from(stat.stx_dio_offset_align).max(GRID_BYTES);
            let memory = u64::from(stat.stx_dio_mem_align);
            (stat.stx_dio_offset_align > 0
                && grid.is_power_of_two()
                && grid <= GRID_BYTES_MAX
                && memory <= AlignedBuf::ALIGN as u64)
                .then_some(grid)
        }
        _ => Some(GRID_BYTES),
    }
}
