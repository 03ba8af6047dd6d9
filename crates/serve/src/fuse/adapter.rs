//! The protocol library: the only file that knows its types. One method a request, each of which calls and replies.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bedplate_fs::{Attr, FileKind, InodeNo, SetAttr, Timestamp};
use fuser::{
    AccessFlags, BsdFileFlags, Config, CopyFileRangeFlags, FileAttr, FileHandle, FileType,
    Filesystem, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner,
    Notifier, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyBmap,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, SessionACL,
    TimeOrNow, WriteFlags,
};

use super::buffers::PAYLOAD_BYTES_MAX;
use super::data::{Durability, Opened, Write};
use super::errno::{Answer, Errno};
use super::names::{Caller, Entry};
use super::shared::Shared;

/// Requests that the kernel may have under way in the background: read-ahead, write-back,
/// asynchronous direct I/O.
const BACKGROUND_MAX: u16 = 512;

/// What the mount cannot do without. All of it is older than Linux 6.6.
const REQUIRED: InitFlags = InitFlags::FUSE_PARALLEL_DIROPS
    .union(InitFlags::FUSE_ASYNC_DIO)
    .union(InitFlags::FUSE_HANDLE_KILLPRIV_V2)
    .union(InitFlags::FUSE_EXPLICIT_INVAL_DATA);

/// What it takes where the kernel offers it. Locks are not among them, so that the kernel keeps
/// them itself, as it does for any local file system; nor is the transport over io_uring, which the
/// protocol library accepts and does not serve.
const WELCOME: InitFlags = InitFlags::FUSE_DO_READDIRPLUS
    .union(InitFlags::FUSE_READDIRPLUS_AUTO)
    .union(InitFlags::FUSE_CACHE_SYMLINKS)
    .union(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP)
    .union(InitFlags::FUSE_EXPORT_SUPPORT);

/// How the protocol library calls the threads that take requests.
const EVENT_THREADS: &str = "fuser-";

/// A connection on which the kernel has agreed to everything and waits to be served.
pub(super) struct Session(fuser::Session<Adapter>);

impl Session {
    /// Agrees with the kernel on how to talk.
    pub(super) fn open(
        shared: &Arc<Shared>,
        connection: OwnedFd,
        threads: usize,
        channel_each: bool,
    ) -> io::Result<Self> {
        let mut config = Config::default();
        config.n_threads = Some(threads);
        config.clone_fd = channel_each;
        // The library's own check of users would refuse the kernel's write-back; the kernel has
        // checked already.
        let session = fuser::Session::from_fd(
            Adapter(Arc::clone(shared)),
            connection,
            SessionACL::All,
            config,
        )?;
        shared.kernel.connect(session.notifier());
        Ok(Self(session))
    }

    /// Serves until the connection ends.
    pub(super) fn serve(self) -> io::Result<()> {
        match self.0.run() {
            // An event thread that took a request off the queue in the very moment of the unmount
            // is told so, instead of "no device".
            Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => Ok(()),
            result => result,
        }
    }
}

/// Messages to the kernel. Each waits for the kernel, and so for requests that event threads
/// answer: not for those (I-LIN-1).
#[derive(Debug, Default)]
pub(super) struct Kernel(OnceLock<Notifier>);

impl Kernel {
    fn connect(&self, notifier: Notifier) {
        assert!(self.0.set(notifier).is_ok(), "a mount has one session");
    }

    /// Returns the way to the kernel, which no event thread may take; `None` before the kernel has
    /// answered.
    fn notifier(&self) -> Option<&Notifier> {
        let on_event_thread =
            std::thread::current().name().is_some_and(|name| name.starts_with(EVENT_THREADS));
        assert!(!on_event_thread, "I-LIN-1: an event thread waits for the kernel");
        self.0.get()
    }

    /// Makes the kernel write its dirty pages of a range (`len` 0: to the end) and drop all of
    /// them.
    pub(super) fn drop_pages(&self, number: InodeNo, offset: u64, len: u64) {
        let (Some(notifier), Ok(offset), Ok(len)) =
            (self.notifier(), i64::try_from(offset), i64::try_from(len))
        else {
            return;
        };
        if let Err(error) = notifier.inval_inode(INodeNo(number.0), offset, len) {
            tracing::debug!("the kernel kept pages of inode {}: {error}", number.0);
        }
    }

    /// Makes the kernel ask for attributes when they are wanted next.
    pub(super) fn drop_attributes(&self, number: InodeNo) {
        let Some(notifier) = self.notifier() else { return };
        // An offset below 0: no pages.
        if let Err(error) = notifier.inval_inode(INodeNo(number.0), -1, 0) {
            tracing::debug!("the kernel kept the attributes of inode {}: {error}", number.0);
        }
    }

    /// Makes the kernel forget a name.
    pub(super) fn drop_name(&self, dir: InodeNo, name: &OsStr) {
        let Some(notifier) = self.notifier() else { return };
        if let Err(error) = notifier.inval_entry(INodeNo(dir.0), name) {
            tracing::debug!("the kernel kept the name {name:?}: {error}");
        }
    }
}

/// Carries requests to [`Shared`].
struct Adapter(Arc<Shared>);

impl Adapter {
    /// Returns the inode that the kernel means: what it calls the root may be a checkpoint's.
    fn ino(&self, number: INodeNo) -> InodeNo {
        if number == INodeNo::ROOT { self.0.shown.root() } else { InodeNo(number.0) }
    }

    fn attr(&self, attr: &Attr) -> FileAttr {
        file_attr(attr, self.0.block_size)
    }

    fn reply_entry(&self, reply: ReplyEntry, answer: Answer<Entry>) {
        match answer {
            Ok(Entry { attr, name_ttl }) if attr.ino == self.0.shown.root() => {
                let root = FileAttr { ino: INodeNo::ROOT, ..self.attr(&attr) };
                reply.entry_with_ttls(&self.0.attr_ttl(attr.ino), &name_ttl, &root, Generation(0));
            }
            Ok(Entry { attr, name_ttl }) => reply.entry_with_ttls(
                &self.0.attr_ttl(attr.ino),
                &name_ttl,
                &self.attr(&attr),
                generation(&attr),
            ),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn reply_attr(&self, reply: ReplyAttr, answer: Answer<Attr>) {
        match answer {
            Ok(attr) => reply.attr(&self.0.attr_ttl(attr.ino), &self.attr(&attr)),
            Err(errno) => reply.error(errno.into()),
        }
    }
}

impl From<Errno> for fuser::Errno {
    fn from(errno: Errno) -> Self {
        Self::from_i32(errno.code())
    }
}

fn caller(req: &Request) -> Caller {
    Caller { uid: req.uid(), gid: req.gid(), thread: req.pid() }
}

fn open_flags(opened: Opened) -> FopenFlags {
    let mut flags = FopenFlags::empty();
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, !opened.direct);
    flags.set(FopenFlags::FOPEN_DIRECT_IO, opened.direct);
    flags.set(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES, opened.parallel);
    flags
}

fn reply_empty(reply: ReplyEmpty, answer: Answer<()>) {
    match answer {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno.into()),
    }
}

fn reply_xattr(reply: ReplyXattr, size: u32, answer: Answer<Vec<u8>>) {
    match answer {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::RANGE.into()),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(errno.into()),
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut required = REQUIRED;
        if self.0.write_back {
            required |= InitFlags::FUSE_WRITEBACK_CACHE;
        }
        config
            .add_capabilities(required)
            .map_err(|missing| io::Error::other(format!("this kernel's FUSE lacks {missing:?}")))?;
        let welcome = WELCOME & config.capabilities();
        config.add_capabilities(welcome).map_err(|missing| {
            io::Error::other(format!("this kernel offered {missing:?} and took it back"))
        })?;
        let refused = |nearest| io::Error::other(format!("the kernel's limit is {nearest}"));
        config.set_max_write(PAYLOAD_BYTES_MAX as u32).map_err(refused)?;
        config.set_max_background(BACKGROUND_MAX).map_err(|nearest| refused(nearest.into()))?;
        config
            .set_time_granularity(Duration::from_nanos(1))
            .map_err(|nearest| io::Error::other(format!("{nearest:?}")))?;
        Ok(())
    }

    // ---- names ----

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.reply_entry(
            reply,
            self.0.run("lookup", || self.0.lookup(caller(req), self.ino(parent), name)),
        );
    }

    fn forget(&self, _req: &Request, number: INodeNo, count: u64) {
        // A FORGET has no reply: `run` has logged a failure, and no more can be done.
        self.0
            .run("forget", || {
                self.0.forget(self.ino(number), count);
                Ok(())
            })
            .unwrap_or_default();
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.reply_entry(
            reply,
            self.0.run("mknod", || self.0.mknod(caller(req), self.ino(parent), name, mode, rdev)),
        );
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        self.reply_entry(
            reply,
            self.0.run("mkdir", || self.0.mkdir(caller(req), self.ino(parent), name, mode)),
        );
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(reply, self.0.run("unlink", || self.0.unlink(self.ino(parent), name)));
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(
            reply,
            self.0.run("rmdir", || Ok(self.0.fs.rmdir(self.ino(parent), name.as_bytes())?)),
        );
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        self.reply_entry(
            reply,
            self.0.run("symlink", || {
                self.0.symlink(caller(req), self.ino(parent), name, target.as_os_str())
            }),
        );
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply_empty(
            reply,
            self.0.run("rename", || {
                self.0.rename(self.ino(parent), name, self.ino(newparent), newname, flags.bits())
            }),
        );
    }

    fn link(
        &self,
        _req: &Request,
        number: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        self.reply_entry(
            reply,
            self.0.run("link", || self.0.link(self.ino(number), self.ino(newparent), newname)),
        );
    }

    fn readlink(&self, _req: &Request, number: INodeNo, reply: ReplyData) {
        match self.0.run("readlink", || Ok(self.0.fs.read_link(self.ino(number))?)) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno.into()),
        }
    }

    // ---- attributes ----

    fn getattr(&self, _req: &Request, number: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.reply_attr(reply, self.0.run("getattr", || self.0.getattr(self.ino(number))));
    }

    fn setattr(
        &self,
        req: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = SetAttr {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(time_or_now),
            mtime: mtime.map(time_or_now),
            ctime: ctime.map(timestamp),
        };
        self.reply_attr(
            reply,
            self.0.run("setattr", || self.0.setattr(caller(req), self.ino(number), change)),
        );
    }

    fn statfs(&self, _req: &Request, _number: INodeNo, reply: ReplyStatfs) {
        match self.0.run("statfs", || Ok(self.0.statfs())) {
            Ok(t) => reply.statfs(
                t.blocks,
                t.free,
                t.available,
                t.files,
                t.files_free,
                t.block_size,
                255,
                t.block_size,
            ),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn access(&self, _req: &Request, _number: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        // `default_permissions` is always on: the kernel checks, and does not ask again after this.
        reply.error(Errno::NOSYS.into());
    }

    // ---- extended attributes ----

    fn setxattr(
        &self,
        req: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        reply_empty(
            reply,
            self.0.run("setxattr", || {
                self.0.setxattr(caller(req), self.ino(number), name.as_bytes(), value, flags)
            }),
        );
    }

    fn getxattr(&self, req: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.0.getxattr(caller(req), self.ino(number), name.as_bytes(), move |answer| {
            reply_xattr(reply, size, answer)
        });
    }

    fn listxattr(&self, _req: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        reply_xattr(reply, size, self.0.run("listxattr", || self.0.listxattr(self.ino(number))));
    }

    fn removexattr(&self, _req: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(
            reply,
            self.0.run("removexattr", || self.0.removexattr(self.ino(number), name.as_bytes())),
        );
    }

    // ---- files ----

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self
            .0
            .run("create", || self.0.create(caller(req), self.ino(parent), name, mode, flags))
        {
            Ok((entry, opened)) => {
                reply.created(
                    &entry.name_ttl,
                    &self.attr(&entry.attr),
                    generation(&entry.attr),
                    FileHandle(opened.handle),
                    open_flags(opened),
                );
            }
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn open(&self, req: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let mode = self.0.hints.take(req.pid(), self.ino(number));
        match self.0.run("open", || self.0.open(req.pid(), self.ino(number), flags.0, mode)) {
            Ok(opened) => reply.opened(FileHandle(opened.handle), open_flags(opened)),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn read(
        &self,
        _req: &Request,
        _number: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // A read on behalf of a caller names the owner of its locks; one that fills pages has no
        // caller.
        self.0.read(fh.0, offset, size, owner.is_none(), |answer| match answer {
            Ok(data) => reply.data(data),
            Err(errno) => reply.error(errno.into()),
        });
    }

    fn write(
        &self,
        req: &Request,
        _number: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        open_flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (from_pages, kill_set_id) = (
            flags.contains(WriteFlags::FUSE_WRITE_CACHE),
            flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        );
        let len = data.len() as u32;
        // The flags of the open and, since Linux sends them along, those of this one call
        // (`RWF_DSYNC`, `RWF_SYNC`).
        let durability = Durability::of_flags(open_flags.0);
        self.0.write(
            &Write {
                caller: caller(req),
                handle: fh.0,
                offset,
                data,
                from_pages,
                kill_set_id,
                durability,
            },
            move |answer| match answer {
                Ok(()) => reply.written(len),
                Err(errno) => reply.error(errno.into()),
            },
        );
    }

    fn flush(
        &self,
        _req: &Request,
        _number: INodeNo,
        _fh: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // A close needs nothing of us: the kernel has written its pages and keeps the locks. It
        // does not ask again after this.
        reply.error(Errno::NOSYS.into());
    }

    fn release(
        &self,
        _req: &Request,
        _number: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let answer = self.0.run("release", || {
            self.0.files.release(fh.0);
            Ok(())
        });
        reply_empty(reply, answer);
    }

    fn fsync(
        &self,
        _req: &Request,
        _number: INodeNo,
        fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.0.run_sync(move |shared| {
            let answer = shared.run("fsync", || shared.fsync(&*shared.open_file(fh.0)?, datasync));
            reply_empty(reply, answer);
        });
    }

    fn fallocate(
        &self,
        req: &Request,
        _number: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.0.fallocate(caller(req), fh.0, offset, length, mode, |answer| {
            reply_empty(reply, answer)
        });
    }

    fn lseek(
        &self,
        _req: &Request,
        _number: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.0.lseek(fh.0, offset, whence, |answer| match answer {
            Ok(offset) => reply.offset(offset),
            Err(errno) => reply.error(errno.into()),
        });
    }

    fn copy_file_range(
        &self,
        req: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.0.copy_range(
            caller(req),
            (fh_in.0, offset_in),
            (fh_out.0, offset_out),
            len,
            |answer| match answer {
                Ok(copied) => reply.written(copied),
                Err(errno) => reply.error(errno.into()),
            },
        );
    }

    fn ioctl(
        &self,
        _req: &Request,
        _number: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::NOTTY.into());
    }

    fn poll(
        &self,
        _req: &Request,
        _number: INodeNo,
        _fh: FileHandle,
        _ph: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::NOSYS.into());
    }

    fn bmap(&self, _req: &Request, _number: INodeNo, _blocksize: u32, _idx: u64, reply: ReplyBmap) {
        reply.error(Errno::NOSYS.into());
    }

    // ---- directories ----

    fn opendir(&self, _req: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.0.run("opendir", || self.0.opendir(self.ino(number))) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn readdir(
        &self,
        _req: &Request,
        _number: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let answer = self.0.run("readdir", || {
            self.0.readdir(fh.0, offset, |listed| {
                Ok(!reply.add(
                    INodeNo(listed.ino.0),
                    listed.cookie,
                    file_type(listed.kind),
                    OsStr::from_bytes(listed.name),
                ))
            })
        });
        match answer {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn readdirplus(
        &self,
        _req: &Request,
        _number: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let answer = self.0.run("readdirplus", || {
            self.0.readdirplus(fh.0, offset, |listed, attr| {
                !reply.add(
                    INodeNo(attr.ino.0),
                    listed.cookie,
                    OsStr::from_bytes(listed.name),
                    &self.0.attr_ttl(attr.ino),
                    &self.attr(attr),
                    generation(attr),
                )
            })
        });
        match answer {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn releasedir(
        &self,
        _req: &Request,
        _number: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.0.dirs.remove(fh.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        _number: INodeNo,
        fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.0.run_sync(move |shared| {
            let answer = shared.run("fsyncdir", || shared.fsyncdir(fh.0));
            reply_empty(reply, answer);
        });
    }
}

/// Returns what tells an inode from another of the same number, for file handles.
///
/// A volume gives no number twice, except one whose creation a power cut undid: that inode was born
/// at another time. 32 bits are what a handle keeps.
fn generation(attr: &Attr) -> Generation {
    const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;
    Generation(attr.btime.0.cast_unsigned().wrapping_mul(GOLDEN_RATIO) >> 32)
}

/// Converts attributes; `block_size` becomes what `stat` calls the preferred size.
fn file_attr(attr: &Attr, block_size: u32) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino.0),
        size: attr.size,
        blocks: attr.allocated_bytes.div_ceil(512),
        atime: attr.atime.into(),
        mtime: attr.mtime.into(),
        ctime: attr.ctime.into(),
        crtime: attr.btime.into(),
        kind: file_type(attr.kind),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: block_size,
        flags: 0,
    }
}

fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

fn time_or_now(time: TimeOrNow) -> Timestamp {
    match time {
        TimeOrNow::Now => Timestamp::now(),
        TimeOrNow::SpecificTime(time) => timestamp(time),
    }
}

/// Converts a time that the protocol library decoded.
///
/// The kernel sends seconds (negative before 1970) and nanoseconds that always count forwards; the
/// library takes both away from the epoch together when the seconds are negative, which this
/// undoes.
fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(_) => time.into(),
        Err(before) => {
            let distance = before.duration();
            let nanos = Duration::from_nanos(distance.subsec_nanos().into());
            (UNIX_EPOCH - Duration::from_secs(distance.as_secs()) + nanos).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_the_epoch_keep_their_fraction() {
        // -1.8 s is sent as -2 s and 200 ms, and decoded as the epoch less 2.2 s.
        let decoded = UNIX_EPOCH - Duration::new(2, 200_000_000);
        assert_eq!(timestamp(decoded), Timestamp(-1_800_000_000));
        assert_eq!(timestamp(UNIX_EPOCH + Duration::from_nanos(5)), Timestamp(5));
        assert_eq!(timestamp(UNIX_EPOCH - Duration::from_secs(3)), Timestamp(-3_000_000_000));
    }

    #[test]
    fn only_cached_opens_go_through_the_page_cache() {
        let opened = |direct, parallel| open_flags(Opened { handle: 0, direct, parallel });
        assert_eq!(opened(false, false), FopenFlags::FOPEN_KEEP_CACHE);
        assert_eq!(opened(true, false), FopenFlags::FOPEN_DIRECT_IO);
        assert_eq!(
            opened(true, true),
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
        );
    }
}
