//! The modes with a library cache, and the way from the cache back to the device.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::DataPath;
use super::delayed::MayWait;
use super::windows::Ahead;
use super::write::Payload;
use crate::engine::{Engine, Listed};
use crate::inode::{CachePart, Inode};
use crate::mode::OpenClass;
use crate::{Error, ErrorKind, InodeNo, IoMode, Result};
use bedplate_cache::{Backing, CachedFile};

/// Up to where the library cache absorbs what callers write that cache by themselves: a small file
/// is closed without waiting for the device. Larger ones reach the device with less work in large
/// requests, several at once.
const ABSORBED_BYTES_MAX: u64 = 1 << 20;

thread_local! {
    static BEHIND: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread writes behind: the time of such a write was noted when its pages
/// became dirty, and a program may have set another since.
pub(super) fn is_behind() -> bool {
    BEHIND.get()
}

/// Writes what the library cache has absorbed of a file, and what is delayed, to the device (no
/// flush).
pub(crate) fn write_absorbed(fs: &Engine, inode: &Arc<Inode>) -> Result<()> {
    let io = DataPath::new(fs, inode);
    io.write_if_delayed()?;
    let absorbed =
        io.cached_if_any().filter(|cached| cached.dirty_bytes() > 0 && io.service().absorbs());
    absorbed.map_or(Ok(()), CachedFile::write_dirty)
}

/// What an append that was refused in its middle says: beginning it again would append its first
/// bytes twice.
fn half_appended(error: Error, bytes: usize) -> Error {
    Error {
        message: format!("{} ({bytes} bytes were appended before that)", error.message),
        blocks_wanted: 0,
        ..error
    }
}

/// The direct data path of one inode, as the cache sees it. Weak on both sides: the cache keeps no
/// inode and no file system alive.
struct FileBacking {
    ino: InodeNo,
    fs: Weak<Engine>,
    inode: Weak<Inode>,
}

impl Drop for FileBacking {
    fn drop(&mut self) {
        if let Some(fs) = self.fs.upgrade() {
            fs.unlist(Listed::Cached, self.ino, &self.inode);
        }
    }
}

impl FileBacking {
    fn with<T>(&self, work: impl FnOnce(DataPath<'_>) -> Result<T>) -> Result<T> {
        match (self.fs.upgrade(), self.inode.upgrade()) {
            (Some(fs), Some(inode)) => work(DataPath::new(&fs, &inode)),
            _ => Err(Error::new(
                ErrorKind::Busy,
                "the file system was dropped while its cache was in use",
            )),
        }
    }
}

impl Backing for FileBacking {
    fn read_direct(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.with(|io| {
            let _held = io.state().lock.shared(io.fs);
            let delayed = io.delayed_bytes(buf.len(), offset);
            io.read_aligned(buf, offset)?;
            if let Some(delayed) = delayed {
                delayed.overlay(buf, offset);
            }
            Ok(buf.len())
        })
    }

    fn write_direct(&self, buf: &[u8], offset: u64, size_after: u64) -> Result<()> {
        self.with(|io| io.write_back(buf, offset, size_after))
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        self.with(|io| io.reserve_blocks(&(offset..offset + len)))
    }

    fn size(&self) -> u64 {
        self.with(|io| Ok(io.uncached_size())).unwrap_or(0)
    }

    fn released(&self, bytes: u64) {
        let counted = self.with(|io| {
            io.count_released(bytes);
            Ok(())
        });
        // The counters of a file that is gone are not asked for any more.
        counted.unwrap_or_default();
    }
}

impl<'a> DataPath<'a> {
    /// Returns the inode's part of the cache, made with the first use.
    pub(super) fn cached(self) -> &'a CachedFile {
        let make = || {
            let backing = Arc::new(FileBacking {
                ino: self.inode.ino,
                fs: self.fs.weak(),
                inode: Arc::downgrade(self.inode),
            });
            self.fs.list(Listed::Cached, self.inode);
            let weak: Weak<FileBacking> = Arc::downgrade(&backing);
            CachePart::new(
                self.fs.cache().file(self.inode.ino.0, weak, Arc::clone(&self.inode.size)),
                backing,
            )
        };
        let file = &self.state().cached.get_or_init(make).file;
        file.set_release(self.release());
        file
    }

    /// Returns the inode's part of the cache if it ever had one.
    pub(super) fn cached_if_any(self) -> Option<&'a CachedFile> {
        self.state().cached.get().map(|part| &part.file)
    }

    /// Returns whether the inode ever was served through the cache.
    pub(crate) fn has_cache(self) -> bool {
        self.cached_if_any().is_some()
    }

    /// Reads what is in memory, without the order lock; `None` when it takes more than that.
    #[inline]
    pub(super) fn read_hit(self, buf: &mut [u8], offset: u64) -> Option<usize> {
        let len = self.cached_if_any()?.read_hit(buf, offset)?;
        self.count_cached_read(true, len);
        Some(len)
    }

    /// Counts a read through the cache: under hits or misses, of which `reads` is a sum when asked
    /// for.
    #[inline]
    fn count_cached_read(self, hit: bool, len: usize) {
        self.state().steady.io_counters.count_cached_read(hit, len);
    }

    /// Reads through the cache; `None` when the file is not served that way (any more).
    pub(super) fn read_cached(
        self,
        class: OpenClass,
        buf: &mut [u8],
        offset: u64,
        ahead: Ahead<'_>,
    ) -> Result<Option<usize>> {
        let _order = self.state().order.shared(self.fs);
        let service = self.service();
        if !service.uses_library_cache() {
            return Ok(None);
        }
        self.count_mixed(service, class);
        if service.absorbs() && self.cached_if_any().is_none_or(|cached| cached.dirty_bytes() == 0)
        {
            // Nothing becomes dirty meanwhile: the order lock is held.
            let held = self.state().lock.shared(self.fs);
            let size = self.inode.size.load(Ordering::Acquire);
            let len = self.read_mapped(&held, buf, offset, size, ahead)?;
            drop(held);
            self.count_read(len);
            return Ok(Some(len));
        }
        if self.passes_cache(service, buf, offset)
            && let Some(len) = self.read_large(buf, offset)?
        {
            return Ok(Some(len));
        }
        let (len, hit) = self.cached().read_at(buf, offset)?;
        self.count_cached_read(hit, len);
        Ok(Some(len))
    }

    /// Writes through the cache, at `offset` or at the end; `None` when the file is not served that
    /// way (any more).
    pub(super) fn write_cached(
        self,
        class: OpenClass,
        bytes: &[u8],
        offset: Option<u64>,
        may_wait: MayWait,
    ) -> Result<Option<u64>> {
        let service = self.service();
        match service.path() {
            IoMode::Cached if service.absorbs() && !self.is_absorbed(bytes, offset) => {
                self.write_past(bytes, offset)
            }
            IoMode::Cached => self.write_behind(class, bytes, offset),
            IoMode::ConcurrentCache if offset.is_some() => {
                let _order = self.state().order.shared(self.fs);
                self.write_through(bytes, offset, may_wait)
            }
            IoMode::ConcurrentCache => {
                let _order = self.state().order.exclusive(self.fs);
                self.write_through(bytes, offset, may_wait)
            }
            IoMode::Direct | IoMode::Concurrent => Ok(None),
        }
    }

    /// Returns whether a write of a caller that caches is taken by the library cache: it lies near
    /// the beginning, and no sync said that a caller waits for it.
    fn is_absorbed(self, bytes: &[u8], offset: Option<u64>) -> bool {
        let end = offset.map_or(u64::MAX, |at| at.saturating_add(bytes.len() as u64));
        end <= ABSORBED_BYTES_MAX && !self.state().synced.load(Ordering::Relaxed)
    }

    /// Writes past the library cache, which only absorbs; what it holds of the range goes to the
    /// device before and is forgotten.
    fn write_past(self, bytes: &[u8], offset: Option<u64>) -> Result<Option<u64>> {
        let order = &self.state().order;
        let (_shared, _exclusive) = match offset {
            Some(_) => (Some(order.shared(self.fs)), None),
            None => (None, Some(order.exclusive(self.fs))),
        };
        if !self.service().absorbs() {
            return Ok(None);
        }
        let at = offset.unwrap_or_else(|| self.inode.size.load(Ordering::Acquire));
        let data = Payload::new(bytes, at)?;
        let _announced = self
            .cached_if_any()
            .map(|cached| cached.begin_direct_write(at, bytes.len() as u64))
            .transpose()?;
        self.write_uncached(Payload { is_cached: true, ..data })?;
        Ok(Some(at))
    }

    fn write_behind(
        self,
        class: OpenClass,
        bytes: &[u8],
        offset: Option<u64>,
    ) -> Result<Option<u64>> {
        let _order = self.state().order.exclusive(self.fs);
        let service = self.service();
        if !service.path().writes_behind() {
            return Ok(None);
        }
        self.count_mixed(service, class);
        self.cached().set_passing(service.absorbs());
        let at = offset.unwrap_or_else(|| self.inode.size.load(Ordering::Acquire));
        Payload::new(bytes, at)?;
        if self.passes_cache(service, bytes, at) && self.write_large(bytes, at)? {
            return Ok(Some(at));
        }
        let mut done = 0;
        while done < bytes.len() {
            match self.cached().write_at(&bytes[done..], at + done as u64) {
                Ok(more) => {
                    debug_assert!(more > 0, "the cache takes a part or refuses: {done} bytes");
                    done += more;
                }
                Err(error) if offset.is_none() && done > 0 => {
                    return Err(half_appended(error, done));
                }
                Err(error) => return Err(error),
            }
        }
        self.wrote_in_place();
        self.state().steady.io_counters.count_indirect();
        Ok(Some(at))
    }

    /// Direct-write, copy-behind. The order lock is held: shared, or exclusive for an append, whose
    /// place must stay the end until it is announced.
    fn write_through(
        self,
        bytes: &[u8],
        offset: Option<u64>,
        may_wait: MayWait,
    ) -> Result<Option<u64>> {
        if !self.service().path().writes_through() {
            return Ok(None);
        }
        let at = offset.unwrap_or_else(|| self.inode.size.load(Ordering::Acquire));
        let data = Payload::new(bytes, at)?;
        let announced = self.cached().begin_direct_write(at, bytes.len() as u64)?;
        if !self.delay_through(&data, may_wait)? {
            self.write_uncached(data)?;
        }
        announced.refresh(bytes);
        Ok(Some(at))
    }

    /// Delays a write through the cache where it may be.
    fn delay_through(self, data: &Payload<'_>, may_wait: MayWait) -> Result<bool> {
        if !self.may_delay(may_wait, self.service(), data) || self.owes_pieces() {
            return Ok(false);
        }
        let held = self.state().lock.shared(self.fs);
        let delayed = self.delay(data, may_wait)?;
        if delayed {
            self.pass_full_pieces(&held);
        }
        Ok(delayed)
    }

    /// Writes what the cache carries out; the file grows to `size_after` at most, and nothing
    /// beyond its last sector is written.
    fn write_back(self, bytes: &[u8], offset: u64, size_after: u64) -> Result<()> {
        let keep =
            self.fs.grid().sector_ceil(size_after).saturating_sub(offset).min(bytes.len() as u64)
                as usize;
        if keep == 0 {
            return Ok(());
        }
        let data = Payload { size_max: size_after, ..Payload::new(&bytes[..keep], offset)? };
        debug_assert!(!BEHIND.get(), "a write behind causes no other in its thread");
        BEHIND.set(true);
        let written = self.write_uncached(data);
        BEHIND.set(false);
        written
    }
}
