//! An open file.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::data::{Ahead, DataPath, Follow, MayWait, SpaceDemand, Stream};
use crate::engine::Engine;
use crate::inode::{Inode, WindowBytes};
use crate::mode::OpenClass;
use crate::statistics::{DeviceWatch, Timed, Timing, WaitMeter};
use crate::{
    AllocateMode, Attr, CounterSnapshot, Error, ErrorKind, ExtentInfo, FileKind, InodeNo, IoMode,
    OpenOptions, ReleaseBehind, Result,
};

/// An open file. `&self` everywhere: any number of threads may read and write at once; what
/// excludes what is the I/O mode's business.
///
/// Dropping the file closes it; errors of write-behind are reported by `sync_data`, not by the
/// drop.
pub struct File {
    fs: Arc<Engine>,
    inode: Arc<Inode>,
    class: OpenClass,
    read: bool,
    write: bool,
    append: bool,
    data_sync: bool,
    /// Whether small writes may wait in memory.
    delay_writes: bool,
    /// Where what is written over the file goes on.
    written: Follow,
    /// Whether what is read in order is read ahead.
    read_windows: bool,
    /// Where reads go on.
    read_on: Follow,
    /// Where those go on that the program named before it needs them.
    named_on: Follow,
    /// Whether a read of this open has looked at the access time, or none is to.
    read_noted: AtomicBool,
}

/// Where the bytes of a read are.
#[derive(Debug, Clone)]
pub enum ReadBytes {
    /// So many in the caller's buffer: fewer than it holds only at the end of the file.
    Copied(usize),
    /// In memory that was read ahead, as many as the buffer holds.
    Lent(WindowBytes),
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "File(inode {}, {} bytes)", self.inode.ino.0, self.size())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.io().close(self.class);
    }
}

impl File {
    /// Opens a file (pins the inode).
    pub(crate) fn open(
        fs: &Arc<Engine>,
        inode: &Arc<Inode>,
        options: &OpenOptions,
    ) -> Result<Self> {
        match inode.kind {
            FileKind::File => {}
            FileKind::Directory => {
                return Err(Error::new(
                    ErrorKind::IsDirectory,
                    format!("inode {} is a directory and cannot be opened as a file", inode.ino.0),
                ));
            }
            _ => {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!(
                        "inode {} is not a regular file and cannot be opened as one",
                        inode.ino.0
                    ),
                ));
            }
        }
        if options.write || options.append || options.truncate {
            // Being open for writing changes nothing yet.
            if options.truncate {
                crate::data::begin_set_size(fs, inode, 0)
            } else {
                fs.begin_removal()
            }?;
            fs.need_live(inode.ino)?;
        }
        let changing = fs.change();
        let io = DataPath::new(fs, inode);
        drop(io.map(0..1)?);
        let class = OpenClass {
            mode: options.mode,
            direct_flag: options.direct_flag,
            caller_caches: options.caller_caches,
        };
        io.open(class)?;
        let file = Self::new(Arc::clone(fs), Arc::clone(inode), class, options);
        if options.truncate {
            crate::data::set_size(&changing, fs, inode, 0)?;
        }
        Ok(file)
    }

    /// Makes the handle of an open that the inode's table already counts.
    fn new(fs: Arc<Engine>, inode: Arc<Inode>, class: OpenClass, options: &OpenOptions) -> Self {
        let write = options.write || options.append;
        let &OpenOptions { read, append, data_sync, keep_atime, delay_writes, direct_flag, .. } =
            options;
        Self {
            fs,
            inode,
            class,
            read,
            write,
            append,
            data_sync,
            delay_writes: delay_writes && !data_sync && !direct_flag,
            written: Follow::default(),
            read_windows: options.read_windows,
            read_on: Follow::default(),
            named_on: Follow::default(),
            read_noted: AtomicBool::new(keep_atime),
        }
    }

    pub(crate) fn io(&self) -> DataPath<'_> {
        DataPath::new(&self.fs, &self.inode)
    }

    /// Ends a read or write that may be one of those timed.
    #[inline]
    pub(crate) fn timed(&self, what: Timed, timing: Option<Timing>) {
        if let Some(timing) = timing {
            self.fs.sampler().end(&self.inode.latencies, what, timing);
        }
    }

    /// Reads or writes on this thread, which may be one of those that are timed.
    #[inline]
    fn sampled<T>(&self, what: Timed, work: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.fs.sampler().begin() {
            None => work(),
            Some(timing) => self.timed_here(what, timing, work),
        }
    }

    /// Times a read or write, and what this thread waits for the device.
    #[cold]
    #[inline(never)]
    fn timed_here<T>(
        &self,
        what: Timed,
        timing: Timing,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let watch = DeviceWatch::begin(timing);
        let done = work()?;
        watch.end(self.wait_meters());
        self.timed(what, Some(timing));
        Ok(done)
    }

    /// Returns where waits count: for the file, and for all.
    pub(crate) fn wait_meters(&self) -> [&WaitMeter; 2] {
        [&self.inode.data.waits, self.fs.sampler().waits()]
    }

    /// Returns whether every write goes to the end.
    pub(crate) fn appends(&self) -> bool {
        self.append
    }

    /// Returns whether every write must be durable before it returns.
    pub(crate) fn syncs_data(&self) -> bool {
        self.data_sync
    }

    pub(crate) fn fs(&self) -> &Arc<Engine> {
        &self.fs
    }

    /// Returns whether every write goes to the end, or must be durable before it returns: such a
    /// write is more than one device operation.
    pub(crate) fn writes_specially(&self) -> bool {
        self.append || self.data_sync
    }

    #[inline]
    pub(crate) fn may_read(&self) -> Result<()> {
        if self.read { Ok(()) } else { Err(self.not_open_for("reading")) }
    }

    #[inline]
    pub(crate) fn may_write(&self) -> Result<()> {
        self.need_write()?;
        self.fs.begin_change()
    }

    #[inline]
    fn need_write(&self) -> Result<()> {
        if self.write { Ok(()) } else { Err(self.not_open_for("writing")) }
    }

    /// Runs a change that may need blocks, and again each time that room could be made for all of
    /// it. No lock is held here.
    pub(crate) fn with_room<T>(
        &self,
        ask: impl Fn() -> SpaceDemand,
        mut change: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        loop {
            match change() {
                Err(error) if error.kind == ErrorKind::NoSpace => self.make_room(error, &ask())?,
                other => return other,
            }
        }
    }

    /// Goes on after a write failed: makes room where that was missing.
    #[cold]
    fn write_again(&self, refused: Error, buf: &[u8], offset: Option<u64>) -> Result<u64> {
        if refused.kind != ErrorKind::NoSpace {
            return Err(refused);
        }
        let ask = || {
            let at = offset.unwrap_or_else(|| self.size());
            SpaceDemand::Write(at..at.saturating_add(buf.len() as u64))
        };
        self.make_room(refused, &ask())?;
        let may_wait = if self.delay_writes { MayWait::Growth } else { MayWait::No };
        self.with_room(ask, || self.io().write(self.class, buf, offset, may_wait))
    }

    /// Returns whether writes through this open may wait in memory.
    pub(crate) fn delays_writes(&self) -> bool {
        self.delay_writes
    }

    /// Returns what a write may wait for; follows what is written over the file.
    #[inline(never)]
    fn may_wait(&self, buf: &[u8], offset: Option<u64>) -> MayWait {
        let range = offset.map(|at| at..at.saturating_add(buf.len() as u64));
        let over = range.filter(|range| range.end <= self.size());
        let step = self.fs.limits().follow_step_bytes;
        if over.is_some_and(|range| self.written.goes_on(&range, step)) {
            MayWait::Stream
        } else {
            MayWait::Growth
        }
    }

    #[cold]
    fn make_room(&self, refused: Error, ask: &SpaceDemand) -> Result<()> {
        self.fs.make_room(refused, &|without| self.io().demand(ask, without))
    }

    #[cold]
    fn not_open_for(&self, what: &str) -> Error {
        Error::new(
            ErrorKind::NotPermitted,
            format!("inode {} is not open for {what}", self.inode.ino.0),
        )
    }

    /// Looks at the access time with the first read of this open.
    #[inline]
    pub(crate) fn note_read(&self) {
        if !self.read_noted.load(Ordering::Relaxed) {
            self.note_first_read();
        }
    }

    #[cold]
    fn note_first_read(&self) {
        if !self.read_noted.swap(true, Ordering::Relaxed) {
            self.io().note_access();
        }
    }

    /// Reads up to `buf.len()` bytes at `offset`; short only at the end of the file. An aligned
    /// buffer is filled without a copy.
    ///
    /// # Errors
    /// `Io`; `NotPermitted` when not open for reading.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let ahead = if self.read_windows { self.ahead(buf.len(), offset, None) } else { Ahead::No };
        self.read_from(buf, offset, ahead)
    }

    /// As [`read_at`](Self::read_at), where what was read ahead is lent instead of copied: for a
    /// caller that copies it to its place by itself. `buf` is unspecified then.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn read_or_lend(&self, buf: &mut [u8], offset: u64) -> Result<ReadBytes> {
        if !self.read_windows {
            return self.read_from(buf, offset, Ahead::No).map(ReadBytes::Copied);
        }
        let lends = RefCell::new(None);
        let ahead = self.ahead(buf.len(), offset, Some(&lends));
        let len = self.read_from(buf, offset, ahead)?;
        Ok(lends.into_inner().map_or(ReadBytes::Copied(len), ReadBytes::Lent))
    }

    /// As [`read_at`](Self::read_at), of what nothing asks for yet: a program said that it will.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn read_for_later(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        let ahead = if !self.read_windows || self.class.direct_flag {
            Ahead::No
        } else if self.named_on.goes_on(&range, self.fs.limits().follow_step_bytes) {
            Ahead::Stream(Stream { follow: &self.named_on, lends: None })
        } else {
            self.named_on.jumped();
            Ahead::Hint
        };
        self.read_from(buf, offset, ahead)
    }

    #[inline]
    fn read_from(&self, buf: &mut [u8], offset: u64, ahead: Ahead<'_>) -> Result<usize> {
        self.may_read()?;
        self.note_read();
        self.sampled(Timed::Read, || self.io().read(self.class, buf, offset, ahead))
    }

    /// Returns what a read may find and leave ahead; follows it.
    #[inline(never)]
    fn ahead<'a>(
        &'a self,
        len: usize,
        offset: u64,
        lends: Option<&'a RefCell<Option<WindowBytes>>>,
    ) -> Ahead<'a> {
        if self.class.direct_flag && !self.io().is_long_for_direct(len as u64) {
            return Ahead::No;
        }
        let range = offset..offset.saturating_add(len as u64);
        let near = self.read_on.is_near(range.start);
        if self.read_on.goes_on_or_skips(&range, self.fs.limits().follow_step_bytes) {
            Ahead::Stream(Stream { follow: &self.read_on, lends })
        } else if near {
            Ahead::Near
        } else {
            self.read_on.jumped();
            Ahead::Asked
        }
    }

    /// Writes all of `buf` at `offset` (at the end, when opened with `append`); returns the offset
    /// it was written at.
    ///
    /// # Errors
    /// `NoSpace`, `TooLarge`, `Io`, `ReadOnly`; `NotPermitted` when not open for writing. After an
    /// error any block-sized part may have been written.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<u64> {
        self.may_write()?;
        let offset = if self.append { None } else { Some(offset) };
        let at = self.sampled(Timed::Write, || {
            let may_wait = if self.delay_writes { self.may_wait(buf, offset) } else { MayWait::No };
            let written = self.io().write(self.class, buf, offset, may_wait);
            written.or_else(|refused| self.write_again(refused, buf, offset))
        })?;
        if self.data_sync {
            self.sync_range(at, buf.len() as u64)?;
        }
        Ok(at)
    }
    /// Makes a range that was just written, and what is needed to read it back, durable: what
    /// `O_DSYNC` asks for with one write.
    ///
    /// # Errors
    /// As [`sync_data`](Self::sync_data).
    pub fn sync_range(&self, offset: u64, len: u64) -> Result<()> {
        self.io().sync_written(offset, len)
    }
    /// Makes the data and what is needed to read it back durable (`fdatasync`).
    ///
    /// # Errors
    /// The latched error after a failed write or flush.
    pub fn sync_data(&self) -> Result<()> {
        self.io().sync_data()
    }
    /// Makes data and all attributes durable (`fsync`).
    ///
    /// # Errors
    /// As [`sync_data`](Self::sync_data).
    pub fn sync_all(&self) -> Result<()> {
        self.io().sync_all()
    }
    /// Returns the size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.inode.seen_size()
    }
    /// Cuts or extends (with a hole) to `size` bytes.
    ///
    /// # Errors
    /// `TooLarge`, `Io`, `ReadOnly`; `NotPermitted` when not open for writing.
    pub fn set_size(&self, size: u64) -> Result<()> {
        self.need_write()?;
        crate::data::begin_set_size(&self.fs, &self.inode, size)?;
        self.with_room(
            || SpaceDemand::SetSize(size),
            || crate::data::set_size(&self.fs.change(), &self.fs, &self.inode, size),
        )
    }
    /// Changes the allocation of a range.
    ///
    /// # Errors
    /// `NoSpace`, `Invalid` (empty range; unaligned or past the end for collapse and insert),
    /// `TooLarge`, `Io`, `ReadOnly`; `NotPermitted` when not open for writing.
    pub fn allocate(&self, mode: AllocateMode, offset: u64, len: u64) -> Result<()> {
        self.need_write()?;
        if mode == AllocateMode::PunchHole {
            self.fs.begin_removal()
        } else {
            self.fs.begin_change()
        }?;
        let ask = || SpaceDemand::Allocate(mode, offset..offset.saturating_add(len));
        self.with_room(ask, || {
            self.io().need_room(&ask())?;
            self.io().change_allocation(mode, offset, len)
        })
    }
    /// Returns the first offset at or after `offset` that holds data; `None` when there is none.
    ///
    /// # Errors
    /// `Io`.
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        self.io().seek_data(offset)
    }
    /// Returns the first offset at or after `offset` inside a hole (the end of the file counts as
    /// one); `None` when `offset` is past the end.
    ///
    /// # Errors
    /// `Io`.
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        self.io().seek_hole(offset)
    }
    /// Returns the extent map.
    ///
    /// # Errors
    /// `Io`.
    pub fn extents(&self) -> Result<Vec<ExtentInfo>> {
        self.extents_from(0, usize::MAX)
    }
    /// Returns at most `limit` extents in file order, those that begin at `offset` (bytes) or
    /// behind it.
    ///
    /// # Errors
    /// `Io`.
    pub fn extents_from(&self, offset: u64, limit: usize) -> Result<Vec<ExtentInfo>> {
        self.io().extents_from(offset, limit)
    }
    /// Returns the extent that byte `offset` lies in; `None` in a hole.
    ///
    /// # Errors
    /// `Io`.
    pub fn extent_at(&self, offset: u64) -> Result<Option<ExtentInfo>> {
        self.io().extent_at(offset)
    }
    /// Returns in how many extents the file lies.
    ///
    /// # Errors
    /// `Io`.
    pub fn extent_count(&self) -> Result<usize> {
        self.io().extent_count()
    }
    /// Returns the attributes.
    ///
    /// # Errors
    /// `Io`.
    pub fn attr(&self) -> Result<Attr> {
        Ok(self.inode.stat(self.fs.block_size()))
    }
    /// Returns the inode.
    #[must_use]
    pub fn ino(&self) -> InodeNo {
        self.inode.ino
    }
    /// Returns the mode this open asks for, after precedence; follows a live change of the file's
    /// mode unless the open named one.
    #[must_use]
    pub fn requested_mode(&self) -> IoMode {
        self.class.requested(self.fs.file_mode(&self.inode), self.fs.tuning().mode())
    }
    /// Returns the mode that this open itself names, and whether it carried `O_DIRECT`.
    #[must_use]
    pub fn named_mode(&self) -> (Option<IoMode>, bool) {
        (self.class.mode, self.class.direct_flag)
    }
    /// Returns the mode the file is served in now (`cached` while conflicting opens exist).
    #[must_use]
    pub fn effective_mode(&self) -> IoMode {
        self.io().service().mode()
    }
    /// Returns which pages of the file leave the caches behind a sequential read or write: what is
    /// set on it, or else the tunable.
    #[must_use]
    pub fn release_behind(&self) -> ReleaseBehind {
        self.io().release_behind()
    }
    /// Counts bytes that the caller's own cache released for that reason.
    pub fn count_released(&self, bytes: u64) {
        self.io().count_released(bytes);
    }
    /// Returns the file's counters since it was first opened.
    #[must_use]
    pub fn counters(&self) -> CounterSnapshot {
        self.inode.snapshot()
    }
}
