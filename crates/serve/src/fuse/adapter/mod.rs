//! The protocol library: the only room that knows its types. One method a request, each of which
//! calls and replies; its session and its values have files of their own.

mod convert;
mod reply;
mod session;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bedplate_fs::{Attr, InodeNo, SetAttr};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileAttr, FileHandle, Filesystem, FopenFlags,
    INodeNo, IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier,
    RenameFlags, ReplyAttr, ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use super::data::{Durability, Write};
use super::errno::Errno;
use super::lease;
use super::shared::Shared;
pub(super) use convert::generation_of;
use convert::{caller, file_attr, file_type, generation, open_flags, time_or_now, timestamp};
use reply::{reply_empty, reply_xattr};
use session::agree;
pub(super) use session::{Kernel, Session};

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
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        agree(config, &self.0)
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
        _req: &Request,
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
                self.0.setxattr(self.ino(number), name.as_bytes(), value, flags)
            }),
        );
    }

    fn getxattr(
        &self,
        _req: &Request,
        number: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        reply_xattr(
            reply,
            size,
            self.0.run("getxattr", || self.0.getxattr(self.ino(number), name.as_bytes())),
        );
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
        let (thread, ino) = (req.pid(), self.ino(number));
        let mode = self.0.hints.take(thread, ino);
        self.0.with_present_size(ino, move |shared| {
            match shared.run("open", || shared.open(thread, ino, flags.0, mode)) {
                Ok(opened) => reply.opened(FileHandle(opened.handle), open_flags(opened)),
                Err(errno) => reply.error(errno.into()),
            }
        });
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
            self.0.release(fh.0);
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
            reply_empty(reply, answer);
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
        req: &Request,
        _number: INodeNo,
        fh: FileHandle,
        flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        let shared = &self.0;
        let answer = match cmd {
            _ if flags.contains(IoctlFlags::FUSE_IOCTL_DIR) => Err(Errno::NOTTY),
            lease::IOCTL => shared.run("ioctl", || shared.offer(req.uid(), fh.0)).map(Vec::from),
            lease::ODD_IOCTL => {
                shared.run("ioctl", || shared.odd_writes(req.uid(), fh.0, in_data)).map(Vec::from)
            }
            lease::TAIL_IOCTL => {
                let answer = move |told| reply::answer_ioctl(reply, out_size, told);
                return shared.tail((req.uid(), fh.0), in_data, answer);
            }
            _ => Err(Errno::NOTTY),
        };
        reply::answer_ioctl(reply, out_size, answer);
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
