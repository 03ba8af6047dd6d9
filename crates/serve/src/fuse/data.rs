//! Open files and their data.
//!
//! How an I/O mode maps onto what the kernel does with an open:
//!
//! | mode | kernel | library |
//! | --- | --- | --- |
//! | `cached` | page cache, kept from open to open; writes collected where the mount has `writeback=on` | its cache; where the kernel collects writes, only small ones on their way to the device |
//! | `direct` | every I/O handed on; parallel, unless `inode-lock=whole` | byte-range locks |
//! | `concurrent` | every I/O handed on; parallel | nothing in the way |
//! | `concurrent+cache` | every I/O handed on; parallel | its cache for reads |
//!
//! Opens of one file in several of these at once are kept coherent by the kernel: a direct read
//! first writes back the dirty pages of its range, a direct write also drops them, and while cached
//! opens exist direct writes run one at a time. Three things it leaves to this module:
//!
//! - A page that is read in after the kernel dropped those of a direct write's range, and before
//!   the write is done, may hold the bytes from before the write, and stays: also after the open
//!   that read it has ended. So after a direct write of a file of which the kernel may hold pages
//!   (I-PAG-1), those of its range are dropped again before the write is answered; or all, once,
//!   where only opens that have ended left some.
//! - Where the kernel collects writes it may know a larger size than the file system, and does not
//!   send what makes the difference before a direct read of a hole further down. So a direct read
//!   that ends short is done again after dirty pages were written.
//! - `SEEK_DATA` and `SEEK_HOLE` know nothing of dirty pages. So those are written first.

use std::ffi::OsStr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bedplate_fs::{
    AllocateMode, InodeLockSetting, InodeNo, IoMode, OpenOptions, ReadBytes, WindowBytes,
};

use super::errno::{Answer, Errno};
use super::names::{Caller, Entry, Permissions};
use super::open_files::{How, KernelPages, OpenFile};
use super::shared::Shared;
use super::trees::Node;

/// The most bytes one `copy_file_range` request reads and writes, so that it does not hold its event
/// thread for long; the caller asks again. What is shared is as long as the answer can say.
const COPY_BYTES_MAX: u64 = 8 << 20;

/// The most bytes that the answer to a copy can name, in whole blocks of any size.
const ANSWER_BYTES_MAX: u64 = (1 << 32) - (1 << 20);

/// `fallocate(2)` flags.
const KEEP_SIZE: i32 = libc::FALLOC_FL_KEEP_SIZE;
const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE;
const ZERO_RANGE: i32 = libc::FALLOC_FL_ZERO_RANGE;

/// What a change makes durable before it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Durability {
    /// Nothing.
    None,
    /// `O_DSYNC`, `RWF_DSYNC`: the bytes, and what is needed to read them back.
    Data,
    /// `O_SYNC`, `RWF_SYNC`: that and all attributes.
    All,
}

impl Durability {
    /// Reads the flags of an open, or of a write request: those of its open, and those of the one
    /// call.
    pub(super) fn of_flags(flags: i32) -> Self {
        // `O_SYNC` is `O_DSYNC` and one bit more.
        match flags & libc::O_SYNC {
            libc::O_SYNC => Self::All,
            dsync if dsync & libc::O_DSYNC != 0 => Self::Data,
            _ => Self::None,
        }
    }
}

/// A write request.
pub(super) struct Write<'a> {
    pub(super) caller: Caller,
    pub(super) handle: u64,
    pub(super) offset: u64,
    pub(super) data: &'a [u8],
    /// The kernel writes back pages; otherwise a caller waits.
    pub(super) from_pages: bool,
    /// The caller may not keep set-ID bits.
    pub(super) kill_set_id: bool,
    pub(super) durability: Durability,
}

/// What came of a read.
pub(super) enum Read {
    /// So many bytes.
    Done(usize),
    /// Bytes that were read ahead, as many as were asked for.
    Lent(WindowBytes),
    /// Fewer than were asked for, where the kernel may know a larger size and have dirty pages: to
    /// be read again once it has sent them.
    Short(Arc<OpenFile>),
}

/// A write that is done, and not answered.
pub(super) struct Written {
    open: Arc<OpenFile>,
    result: Answer<()>,
    range: Range<u64>,
    from_pages: bool,
    durability: Durability,
}

/// A file opened for the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) handle: u64,
    /// Every read and write is to be handed on, past the page cache.
    pub(crate) direct: bool,
    /// Writes need not wait for each other.
    pub(crate) parallel: bool,
}

impl Shared {
    /// Opens a file for a caller whose name for it asked for `mode`; says what the kernel is to do
    /// with it.
    pub(super) fn open(
        &self,
        pid: u32,
        ino: InodeNo,
        flags: i32,
        mode: Option<IoMode>,
    ) -> Answer<Opened> {
        let options = OpenOptions {
            // The kernel reads through any handle to fill pages that a write covers in part.
            read: true,
            write: flags & libc::O_ACCMODE != libc::O_RDONLY,
            mode,
            direct_flag: flags & libc::O_DIRECT != 0,
            caller_caches: self.write_back,
            keep_atime: flags & libc::O_NOATIME != 0,
            delay_writes: Durability::of_flags(flags) == Durability::None,
            read_windows: true,
            ..OpenOptions::default()
        };
        let file = self.fs.open_inode(ino, &options)?;
        let direct = !file.requested_mode().writes_behind();
        let parallel = direct
            && (!file.requested_mode().locks_ranges()
                || self.inode_lock == InodeLockSetting::Range);
        let how =
            How { direct, writable: options.write, durability: Durability::of_flags(flags), pid };
        Ok(Opened { handle: self.files.insert(file, how), direct, parallel })
    }

    /// Makes a file and opens it.
    pub(super) fn create(
        &self,
        caller: Caller,
        dir: Node,
        name: &OsStr,
        permissions: Permissions,
        flags: i32,
    ) -> Answer<(Entry, Opened)> {
        let made = self.make_file(caller, dir.ino, name, permissions);
        let (entry, mode) = made.map_err(|errno| self.of_creation(errno, flags))?;
        self.open_made(caller, entry, flags, mode.or(dir.tree))
    }

    /// Returns what an open that makes a file fails with. The kernel found no file, and keeps others
    /// from making one by the directory's lock, of which there are several where it knows trees: then
    /// it is to look again, and open what another caller has made.
    fn of_creation(&self, errno: Errno, flags: i32) -> Errno {
        let may_be_there = flags & libc::O_EXCL == 0 && self.trees.are_known();
        if errno == Errno::EXIST && may_be_there { Errno::STALE } else { errno }
    }

    /// Makes a file without a name and opens it (`O_TMPFILE`). It goes with its last open, or a
    /// crash, unless it is linked before.
    pub(super) fn create_unnamed(
        &self,
        caller: Caller,
        dir: Node,
        permissions: Permissions,
        flags: i32,
    ) -> Answer<(Entry, Opened)> {
        let entry = self.make_unnamed_file(caller, dir.ino, permissions)?;
        self.open_made(caller, entry, flags, dir.tree)
    }

    fn open_made(
        &self,
        caller: Caller,
        entry: Entry,
        flags: i32,
        mode: Option<IoMode>,
    ) -> Answer<(Entry, Opened)> {
        match self.open(caller.thread, entry.attr.ino, flags, mode) {
            Ok(opened) => Ok((entry, opened)),
            Err(errno) => {
                self.forget(entry.attr.ino, 1);
                Err(errno)
            }
        }
    }

    /// Ends an open.
    pub(super) fn release(self: &Arc<Self>, handle: u64) {
        if let Some(open) = self.files.release(handle).filter(|open| !open.how.direct) {
            self.release_behind_close(&open);
        }
    }

    /// Reads; `for_pages`: the kernel fills pages, no caller waits.
    pub(super) fn read_into(
        self: &Arc<Self>,
        handle: u64,
        offset: u64,
        buf: &mut [u8],
        for_pages: bool,
    ) -> Answer<Read> {
        let open = self.open_file(handle)?;
        if for_pages && open.how.direct {
            open.is_mapped();
        }
        self.note_alignment(&open, offset, buf.len());
        if for_pages && !open.how.direct {
            self.release_behind_read(&open, offset..offset + buf.len() as u64);
        }
        // A program names pages that it will read (`posix_fadvise`), and then reads them past the
        // kernel's: that is the only use of filling those.
        let read = self.run("read", || {
            Ok(if for_pages && open.how.direct {
                ReadBytes::Copied(open.file.read_for_later(buf, offset)?)
            } else {
                open.file.read_or_lend(buf, offset)?
            })
        })?;
        let n = match read {
            ReadBytes::Copied(n) => n,
            ReadBytes::Lent(bytes) => return Ok(Read::Lent(bytes)),
        };
        let may_be_short =
            open.how.direct && !for_pages && self.write_back && open.inode.may_have_dirty_pages();
        Ok(if n < buf.len() && may_be_short { Read::Short(open) } else { Read::Done(n) })
    }

    /// Reads once more, when the kernel has sent its dirty pages; from a worker of the line for
    /// caches.
    pub(super) fn read_again(&self, open: &OpenFile, offset: u64, buf: &mut [u8]) -> Answer<usize> {
        self.kernel.drop_pages(open.inode.ino, 0, 0);
        self.run("read", || Ok(open.file.read_at(buf, offset)?))
    }

    /// Writes, and returns what is left to do before and after the answer.
    pub(super) fn begin_write(&self, request: &Write<'_>) -> Answer<Written> {
        let open = self.open_file(request.handle)?;
        if request.from_pages && open.how.direct {
            open.is_mapped();
        }
        self.note_alignment(&open, request.offset, request.data.len());
        let result = self.run("write", || self.write_data(&open, request));
        Ok(Written {
            open,
            result,
            range: request.offset..request.offset + request.data.len() as u64,
            from_pages: request.from_pages,
            durability: request.durability,
        })
    }

    /// Does what is left of a write, and answers: from a worker where the kernel has to drop pages
    /// first, or a flush is waited for while nearly all event threads wait for one.
    pub(super) fn end_write(
        self: &Arc<Self>,
        written: Written,
        answer: impl FnOnce(Answer<()>) + Send + 'static,
    ) {
        let Written { open, result, range, from_pages, durability } = written;
        if !open.how.direct || from_pages {
            if from_pages {
                self.ask_for_attributes_again(&open);
            }
            // Before the answer: the close may come right behind it.
            let behind = self.sent_behind(&open, &range);
            // What must be durable the kernel asks for by itself, once it has sent all pages.
            answer(result);
            return self.drop_behind(&open, behind);
        }
        let (offset, len) = (range.start, range.end - range.start);
        let durability = if result.is_ok() { durability } else { Durability::None };
        self.when_durable(open, durability, range, move |shared, open, synced| {
            shared.when_pages_agree(&open, offset, len, move || answer(result.and(synced)));
        });
    }

    /// Makes a range of a file that was changed durable as far as it must be, and goes on with
    /// `then`.
    fn when_durable(
        self: &Arc<Self>,
        open: Arc<OpenFile>,
        durability: Durability,
        range: Range<u64>,
        then: impl FnOnce(&Arc<Self>, Arc<OpenFile>, Answer<()>) + Send + 'static,
    ) {
        if durability == Durability::None {
            return then(self, open, Ok(()));
        }
        self.run_sync(move |shared| {
            let synced = shared.run("sync", || {
                match durability {
                    Durability::All => open.file.sync_all()?,
                    Durability::Data | Durability::None => {
                        open.file.sync_range(range.start, range.end - range.start)?;
                    }
                }
                Ok(())
            });
            then(shared, open, synced);
        });
    }

    /// Makes the kernel drop the pages of a range that was written past it, where it may hold any,
    /// and goes on with `then`.
    fn when_pages_agree(
        self: &Arc<Self>,
        open: &Arc<OpenFile>,
        offset: u64,
        len: u64,
        then: impl FnOnce() + Send + 'static,
    ) {
        let pages = open.inode.kernel_pages();
        if pages == KernelPages::Nothing {
            return then();
        }
        let open = Arc::clone(open);
        self.run_for_caches(move |shared| {
            if let KernelPages::LeftUpto(upto) = pages {
                // All of them, so that later writes find none.
                shared.kernel.drop_pages(open.inode.ino, 0, 0);
                open.inode.dropped_left(upto);
            } else {
                shared.kernel.drop_pages(open.inode.ino, offset, len);
            }
            then();
        });
    }

    fn write_data(&self, open: &OpenFile, request: &Write<'_>) -> Answer<()> {
        self.privileges.before_write(&self.fs, open, request.caller, request.kill_set_id)?;
        open.file.write_at(request.data, request.offset)?;
        Ok(())
    }

    pub(super) fn fsync(self: &Arc<Self>, open: &OpenFile, data_only: bool) -> Answer<()> {
        let began = Instant::now();
        let synced = if data_only { open.file.sync_data() } else { open.file.sync_all() };
        open.count_sync(began.elapsed());
        self.ask_for_attributes_again(open);
        Ok(synced?)
    }

    /// Changes the allocation of a range; durable when it answers, where the open says so (the
    /// kernel asks for no sync here, whatever the mode).
    pub(super) fn fallocate(
        self: &Arc<Self>,
        caller: Caller,
        handle: u64,
        offset: u64,
        len: u64,
        mode: i32,
        answer: impl FnOnce(Answer<()>) + Send + 'static,
    ) {
        let changed = self.run("fallocate", || {
            let open = self.open_file(handle)?;
            self.privileges.before_write(&self.fs, &open, caller, !caller.keeps_set_id())?;
            open.file.allocate(allocate_mode(mode)?, offset, len)?;
            Ok(open)
        });
        match changed {
            Ok(open) => {
                let durability = open.how.durability;
                self.when_durable(
                    open,
                    durability,
                    offset..offset.saturating_add(len),
                    |_, _, synced| answer(synced),
                );
            }
            Err(errno) => answer(Err(errno)),
        }
    }

    /// Finds data or a hole, and answers, from a worker where the kernel has to write dirty pages
    /// first.
    pub(super) fn lseek(
        self: &Arc<Self>,
        handle: u64,
        offset: i64,
        whence: i32,
        answer: impl FnOnce(Answer<i64>) + Send + 'static,
    ) {
        let open = match self.open_file(handle) {
            Ok(open) => open,
            Err(errno) => return answer(Err(errno)),
        };
        if open.inode.may_have_dirty_pages() {
            self.run_for_caches(move |shared| {
                shared.kernel.drop_pages(open.inode.ino, 0, 0);
                answer(shared.run("lseek", || find(&open, offset, whence)));
            });
        } else {
            answer(self.run("lseek", || find(&open, offset, whence)));
        }
    }

    /// Copies within the file system, by reference where it can; durable when it answers, where the
    /// open of the target says so. The kernel has written and dropped its pages of both ranges and
    /// holds the target's lock.
    pub(super) fn copy_range(
        self: &Arc<Self>,
        caller: Caller,
        from: (u64, u64),
        to: (u64, u64),
        len: u64,
        answer: impl FnOnce(Answer<u32>) + Send + 'static,
    ) {
        let copied = self.run("copy_file_range", || {
            let (source, target) = (self.open_file(from.0)?, self.open_file(to.0)?);
            self.privileges.before_write(&self.fs, &target, caller, !caller.keeps_set_id())?;
            let copied = copy(&source, from.1, &target, to.1, len.min(ANSWER_BYTES_MAX))?;
            Ok((target, copied))
        });
        match copied {
            Ok((target, copied)) => {
                let durability = target.how.durability;
                self.when_durable(target, durability, to.1..to.1 + copied, move |_, _, synced| {
                    answer(synced.map(|()| copied as u32));
                });
            }
            Err(errno) => answer(Err(errno)),
        }
    }
}

/// Copies up to `len` bytes, of which no more than [`COPY_BYTES_MAX`] are read and written, the others
/// shared; returns how many.
fn copy(source: &OpenFile, from: u64, target: &OpenFile, to: u64, len: u64) -> Answer<u64> {
    let len = len.min(source.file.size().saturating_sub(from));
    let (mut done, mut moved) = (0, 0);
    while done < len && moved < COPY_BYTES_MAX {
        let rest = (len - done).min(if moved > 0 { COPY_BYTES_MAX - moved } else { len });
        match source.file.copy_step(from + done, &target.file, to + done, rest) {
            Ok(step) if step.bytes == 0 => break,
            Ok(step) => {
                done += step.bytes;
                moved += if step.shared { 0 } else { step.bytes };
            }
            // What was copied counts; the error comes back when the caller goes on.
            Err(_) if done > 0 => break,
            Err(error) => return Err(error.into()),
        }
    }
    debug_assert!(done <= len, "no more is copied than was asked for: {done} of {len}");
    Ok(done)
}

fn find(open: &OpenFile, offset: i64, whence: i32) -> Answer<i64> {
    let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
    let found = match whence {
        libc::SEEK_DATA => open.file.seek_data(offset)?,
        libc::SEEK_HOLE => open.file.seek_hole(offset)?,
        _ => return Err(Errno::INVAL),
    };
    i64::try_from(found.ok_or(Errno::NXIO)?).map_err(|_| Errno::OVERFLOW)
}

fn allocate_mode(flags: i32) -> Answer<AllocateMode> {
    let keep_size = flags & KEEP_SIZE != 0;
    match flags & !KEEP_SIZE {
        0 => Ok(AllocateMode::Preallocate { keep_size }),
        PUNCH_HOLE if keep_size => Ok(AllocateMode::PunchHole),
        ZERO_RANGE => Ok(AllocateMode::ZeroRange { keep_size }),
        libc::FALLOC_FL_COLLAPSE_RANGE if !keep_size => Ok(AllocateMode::CollapseRange),
        libc::FALLOC_FL_INSERT_RANGE if !keep_size => Ok(AllocateMode::InsertRange),
        _ => Err(Errno::OPNOTSUPP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_6_what_must_be_durable_is_read_from_the_flags() {
        for (flags, durability) in [
            (libc::O_RDWR, Durability::None),
            (libc::O_RDWR | libc::O_APPEND | libc::O_DIRECT, Durability::None),
            (libc::O_WRONLY | libc::O_DSYNC, Durability::Data),
            (libc::O_WRONLY | libc::O_SYNC, Durability::All),
        ] {
            assert_eq!(Durability::of_flags(flags), durability, "{flags:#o}");
        }
    }

    #[test]
    fn every_mode_of_fallocate_is_known_or_refused() {
        assert_eq!(allocate_mode(0), Ok(AllocateMode::Preallocate { keep_size: false }));
        assert_eq!(allocate_mode(KEEP_SIZE), Ok(AllocateMode::Preallocate { keep_size: true }));
        assert_eq!(allocate_mode(PUNCH_HOLE | KEEP_SIZE), Ok(AllocateMode::PunchHole));
        assert_eq!(allocate_mode(PUNCH_HOLE), Err(Errno::OPNOTSUPP));
        assert_eq!(
            allocate_mode(ZERO_RANGE | KEEP_SIZE),
            Ok(AllocateMode::ZeroRange { keep_size: true })
        );
        assert_eq!(allocate_mode(libc::FALLOC_FL_COLLAPSE_RANGE), Ok(AllocateMode::CollapseRange));
        assert_eq!(allocate_mode(libc::FALLOC_FL_INSERT_RANGE), Ok(AllocateMode::InsertRange));
        assert_eq!(allocate_mode(libc::FALLOC_FL_UNSHARE_RANGE), Err(Errno::OPNOTSUPP));
    }
}
