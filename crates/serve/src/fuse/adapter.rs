//! The protocol library's trait: one method a request, each of which calls and replies.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fs::{InodeNo, SetAttr};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags,
    PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use super::buffers::PAYLOAD_BYTES_MAX;
use super::convert::{time_or_now, timestamp};
use super::data::Write;
use super::errno::{Answer, Errno};
use super::names::{Entry, GENERATION, KERNEL_TTL};
use super::open_files::OpenFile;
use super::shared::Shared;

/// Requests that the kernel may have under way in the background: read-ahead, write-back, asynchronous direct I/O.
const BACKGROUND_MAX: u16 = 512;

/// What the mount cannot do without. All of it is older than Linux 6.6.
const REQUIRED: InitFlags = InitFlags::FUSE_PARALLEL_DIROPS
    .union(InitFlags::FUSE_ASYNC_DIO)
    .union(InitFlags::FUSE_HANDLE_KILLPRIV_V2)
    .union(InitFlags::FUSE_EXPLICIT_INVAL_DATA);

/// What it takes where the kernel offers it. Locks are not among them, so that the kernel keeps them itself, as it does for any local file
/// system; nor is the transport over io_uring, which the protocol library accepts and does not serve.
const WELCOME: InitFlags = InitFlags::FUSE_DO_READDIRPLUS
    .union(InitFlags::FUSE_READDIRPLUS_AUTO)
    .union(InitFlags::FUSE_CACHE_SYMLINKS)
    .union(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP)
    .union(InitFlags::FUSE_NO_EXPORT_SUPPORT);

/// Carries requests to [`Shared`].
pub(super) struct Adapter(pub(super) Arc<Shared>);

fn ino(number: INodeNo) -> InodeNo {
    InodeNo(number.0)
}

fn reply_entry(reply: ReplyEntry, answer: Answer<Entry>) {
    match answer {
        Ok(entry) => reply.entry_with_ttls(&KERNEL_TTL, &entry.name_ttl, &entry.attr, GENERATION),
        Err(errno) => reply.error(errno.into()),
    }
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
        config.add_capabilities(required).map_err(|missing| io::Error::other(format!("this kernel's FUSE lacks {missing:?}")))?;
        let welcome = WELCOME & config.capabilities();
        config.add_capabilities(welcome).map_err(|missing| io::Error::other(format!("this kernel offered {missing:?} and took it back")))?;
        let refused = |nearest| io::Error::other(format!("the kernel's limit is {nearest}"));
        config.set_max_write(PAYLOAD_BYTES_MAX as u32).map_err(refused)?;
        config.set_max_background(BACKGROUND_MAX).map_err(|nearest| refused(nearest.into()))?;
        config.set_time_granularity(Duration::from_nanos(1)).map_err(|nearest| io::Error::other(format!("{nearest:?}")))?;
        Ok(())
    }

    // ---- names ----

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        reply_entry(reply, self.0.run("lookup", || self.0.lookup(req.pid(), ino(parent), name)));
    }

    fn forget(&self, _req: &Request, number: INodeNo, count: u64) {
        // Nothing is answered, so there is nobody to tell of a failure but the log, where `run` has told it.
        self.0
            .run("forget", || {
                self.0.fs.forget(ino(number), count);
                Ok(())
            })
            .unwrap_or_default();
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, rdev: u32, reply: ReplyEntry) {
        reply_entry(reply, self.0.run("mknod", || self.0.mknod(req, ino(parent), name, mode, rdev)));
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        reply_entry(reply, self.0.run("mkdir", || self.0.mkdir(req, ino(parent), name, mode)));
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(reply, self.0.run("unlink", || self.0.unlink(ino(parent), name)));
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(reply, self.0.run("rmdir", || Ok(self.0.fs.rmdir(ino(parent), name.as_bytes())?)));
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        reply_entry(reply, self.0.run("symlink", || self.0.symlink(req, ino(parent), name, target.as_os_str())));
    }

    fn rename(&self, _req: &Request, parent: INodeNo, name: &OsStr, newparent: INodeNo, newname: &OsStr, flags: RenameFlags, reply: ReplyEmpty) {
        reply_empty(reply, self.0.run("rename", || self.0.rename(ino(parent), name, ino(newparent), newname, flags)));
    }

    fn link(&self, _req: &Request, number: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        reply_entry(reply, self.0.run("link", || self.0.link(ino(number), ino(newparent), newname)));
    }

    fn readlink(&self, _req: &Request, number: INodeNo, reply: ReplyData) {
        match self.0.run("readlink", || Ok(self.0.fs.read_link(ino(number))?)) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno.into()),
        }
    }

    // ---- attributes ----

    fn getattr(&self, _req: &Request, number: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.0.run("getattr", || self.0.getattr(ino(number))) {
            Ok(attr) => reply.attr(&KERNEL_TTL, &attr),
            Err(errno) => reply.error(errno.into()),
        }
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
        match self.0.run("setattr", || self.0.setattr(req.uid(), ino(number), change)) {
            Ok(attr) => reply.attr(&KERNEL_TTL, &attr),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn statfs(&self, _req: &Request, _number: INodeNo, reply: ReplyStatfs) {
        match self.0.run("statfs", || Ok(self.0.statfs())) {
            Ok(t) => reply.statfs(t.blocks, t.free, t.available, t.files, t.files_free, t.block_size, 255, t.block_size),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn access(&self, _req: &Request, _number: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        // `default_permissions` is always on: the kernel checks, and does not ask again after this.
        reply.error(Errno::NOSYS.into());
    }

    // ---- extended attributes ----

    fn setxattr(&self, _req: &Request, number: INodeNo, name: &OsStr, value: &[u8], flags: i32, _position: u32, reply: ReplyEmpty) {
        reply_empty(reply, self.0.run("setxattr", || self.0.setxattr(ino(number), name.as_bytes(), value, flags)));
    }

    fn getxattr(&self, _req: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        reply_xattr(reply, size, self.0.run("getxattr", || self.0.getxattr(ino(number), name.as_bytes())));
    }

    fn listxattr(&self, _req: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        reply_xattr(reply, size, self.0.run("listxattr", || self.0.listxattr(ino(number))));
    }

    fn removexattr(&self, _req: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(reply, self.0.run("removexattr", || self.0.removexattr(ino(number), name.as_bytes())));
    }

    // ---- files ----

    fn create(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, flags: i32, reply: ReplyCreate) {
        match self.0.run("create", || self.0.create(req, ino(parent), name, mode, flags)) {
            Ok((entry, handle, flags)) => reply.created(&entry.name_ttl, &entry.attr, GENERATION, FileHandle(handle), flags),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn open(&self, req: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let mode = self.0.hints.take(req.pid(), ino(number));
        match self.0.run("open", || self.0.open(ino(number), flags.0, mode)) {
            Ok((handle, flags)) => reply.opened(FileHandle(handle), flags),
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
        // A read on behalf of a caller names the owner of its locks; one that fills pages has no caller.
        self.0.read(fh.0, offset, size, owner.is_none(), reply);
    }

    fn write(
        &self,
        _req: &Request,
        _number: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        _open_flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.0.write(&Write { handle: fh.0, offset, data, flags }, reply);
    }

    fn flush(&self, _req: &Request, _number: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        // A close needs nothing of us: the kernel has written its pages and keeps the locks. It does not ask again after this.
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

    fn fsync(&self, _req: &Request, _number: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.0.run_sync(move |shared| {
            let answer = shared.run("fsync", || shared.fsync(&*shared.open_file(fh.0)?, datasync));
            reply_empty(reply, answer);
        });
    }

    fn fallocate(&self, _req: &Request, _number: INodeNo, fh: FileHandle, offset: u64, length: u64, mode: i32, reply: ReplyEmpty) {
        reply_empty(reply, self.0.run("fallocate", || self.0.fallocate(fh.0, offset, length, mode)));
    }

    fn lseek(&self, _req: &Request, _number: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let Ok(open) = self.0.open_file(fh.0) else { return reply.error(Errno::BADF.into()) };
        let answer = move |shared: &Shared, open: &OpenFile| match shared.run("lseek", || shared.lseek(open, offset, whence)) {
            Ok(offset) => reply.offset(offset),
            Err(errno) => reply.error(errno.into()),
        };
        if self.0.has_dirty_pages(&open) {
            self.0.run_on_worker(move |shared| {
                shared.drop_kernel_pages(open.inode.ino, 0, 0);
                answer(shared, &open);
            });
        } else {
            answer(&self.0, &open);
        }
    }

    fn copy_file_range(
        &self,
        _req: &Request,
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
        match self.0.run("copy_file_range", || self.0.copy_range((fh_in.0, offset_in), (fh_out.0, offset_out), len)) {
            Ok(copied) => reply.written(copied),
            Err(errno) => reply.error(errno.into()),
        }
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

    fn poll(&self, _req: &Request, _number: INodeNo, _fh: FileHandle, _ph: PollNotifier, _events: PollEvents, _flags: PollFlags, reply: ReplyPoll) {
        reply.error(Errno::NOSYS.into());
    }

    fn bmap(&self, _req: &Request, _number: INodeNo, _blocksize: u32, _idx: u64, reply: ReplyBmap) {
        reply.error(Errno::NOSYS.into());
    }

    // ---- directories ----

    fn opendir(&self, _req: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.0.run("opendir", || self.0.opendir(ino(number))) {
            Ok(handle) => reply.opened(FileHandle(handle), fuser::FopenFlags::empty()),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn readdir(&self, _req: &Request, _number: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let answer = self.0.run("readdir", || {
            self.0.readdir(fh.0, offset, |listed| Ok(!reply.add(INodeNo(listed.ino.0), listed.cookie, listed.kind, OsStr::from_bytes(listed.name))))
        });
        match answer {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn readdirplus(&self, _req: &Request, _number: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        match self.0.run("readdirplus", || self.0.readdirplus(fh.0, offset, &mut reply)) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn releasedir(&self, _req: &Request, _number: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.0.dirs.remove(fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, _req: &Request, _number: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.0.run_sync(move |shared| {
            let answer = shared.run("fsyncdir", || shared.fsyncdir(fh.0));
            reply_empty(reply, answer);
        });
    }
}
