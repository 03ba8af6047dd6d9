//! One arm a request, each of which calls and answers.

use bedplate_fuse_ring::Reply;

use super::super::data::{Durability, Read, Write};
use super::super::errno::{Answer, Errno};
use super::super::lease;
use super::Translator;
use super::answers::{answer, empty, ioctl, put_opened, value};
use super::fields::Fields;

/// `enum fuse_opcode`: what the kernel asks for over io_uring. What is not here is refused as not
/// implemented, and the kernel does not ask again.
mod opcode {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const READLINK: u32 = 5;
    pub(super) const SYMLINK: u32 = 6;
    pub(super) const MKNOD: u32 = 8;
    pub(super) const MKDIR: u32 = 9;
    pub(super) const UNLINK: u32 = 10;
    pub(super) const RMDIR: u32 = 11;
    pub(super) const RENAME: u32 = 12;
    pub(super) const LINK: u32 = 13;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const SETXATTR: u32 = 21;
    pub(super) const GETXATTR: u32 = 22;
    pub(super) const LISTXATTR: u32 = 23;
    pub(super) const REMOVEXATTR: u32 = 24;
    pub(super) const OPENDIR: u32 = 27;
    pub(super) const READDIR: u32 = 28;
    pub(super) const RELEASEDIR: u32 = 29;
    pub(super) const FSYNCDIR: u32 = 30;
    pub(super) const CREATE: u32 = 35;
    pub(super) const IOCTL: u32 = 39;
    pub(super) const FALLOCATE: u32 = 43;
    pub(super) const READDIRPLUS: u32 = 44;
    pub(super) const RENAME2: u32 = 45;
    pub(super) const LSEEK: u32 = 46;
    pub(super) const COPY_FILE_RANGE: u32 = 47;
}

impl Translator {
    /// Serves one request.
    pub(super) fn serve(&self, reply: Reply) {
        match reply.request().header.opcode {
            opcode::READ => self.read(reply),
            opcode::WRITE => self.write(reply),
            opcode::OPEN | opcode::CREATE | opcode::RELEASE | opcode::FSYNC => self.file(reply),
            opcode::FALLOCATE | opcode::LSEEK | opcode::COPY_FILE_RANGE | opcode::IOCTL => {
                self.range(reply);
            }
            opcode::GETATTR | opcode::SETATTR | opcode::STATFS => self.attributes(reply),
            opcode::SETXATTR | opcode::GETXATTR | opcode::LISTXATTR | opcode::REMOVEXATTR => {
                self.extended(reply);
            }
            opcode::OPENDIR
            | opcode::READDIR
            | opcode::READDIRPLUS
            | opcode::RELEASEDIR
            | opcode::FSYNCDIR => self.directory(reply),
            _ => self.names(reply),
        }
    }

    // ---- names ----

    fn names(&self, reply: Reply) {
        let fields = Fields(reply.request());
        let (header, shared) = (fields.0.header, &self.0);
        let (caller, dir) = (fields.caller(), self.ino(header.node));
        match header.opcode {
            opcode::LOOKUP => {
                let found = shared.run("lookup", || shared.lookup(caller, dir, fields.name()?.0));
                self.entry(reply, found);
            }
            opcode::MKNOD => {
                let (mode, rdev) = (fields.u32(0), fields.u32(4));
                let made =
                    shared.run("mknod", || shared.mknod(caller, dir, fields.name()?.0, mode, rdev));
                self.entry(reply, made);
            }
            opcode::MKDIR => {
                let mode = fields.u32(0);
                let made =
                    shared.run("mkdir", || shared.mkdir(caller, dir, fields.name()?.0, mode));
                self.entry(reply, made);
            }
            opcode::SYMLINK => {
                let made = shared.run("symlink", || {
                    let (name, target) = fields.names()?;
                    shared.symlink(caller, dir, name, target)
                });
                self.entry(reply, made);
            }
            opcode::LINK => {
                let ino = self.ino(fields.u64(0));
                let made = shared.run("link", || shared.link(ino, dir, fields.name()?.0));
                self.entry(reply, made);
            }
            opcode::READLINK => {
                let target = shared.run("readlink", || Ok(shared.fs.read_link(dir)?));
                answer(reply, target, |out, target| out.put(&target));
            }
            _ => self.moved_names(reply),
        }
    }

    /// What takes names away.
    fn moved_names(&self, reply: Reply) {
        let fields = Fields(reply.request());
        let (header, shared) = (fields.0.header, &self.0);
        let dir = self.ino(header.node);
        let done = match header.opcode {
            opcode::UNLINK => shared.run("unlink", || shared.unlink(dir, fields.name()?.0)),
            opcode::RMDIR => shared
                .run("rmdir", || Ok(shared.fs.rmdir(dir, fields.name()?.0.as_encoded_bytes())?)),
            opcode::RENAME | opcode::RENAME2 => {
                let flags = if header.opcode == opcode::RENAME2 { fields.u32(8) } else { 0 };
                shared.run("rename", || {
                    let (from, to) = fields.names()?;
                    shared.rename(dir, from, self.ino(fields.u64(0)), to, flags)
                })
            }
            _ => Err(Errno::NOSYS),
        };
        empty(reply, done);
    }

    // ---- attributes ----

    fn attributes(&self, reply: Reply) {
        let fields = Fields(reply.request());
        let (header, shared) = (fields.0.header, &self.0);
        let ino = self.ino(header.node);
        match header.opcode {
            opcode::GETATTR => self.attr(reply, shared.run("getattr", || shared.getattr(ino))),
            opcode::SETATTR => {
                let (caller, change) = (fields.caller(), fields.change());
                let changed = shared.run("setattr", || shared.setattr(caller, ino, change));
                self.attr(reply, changed);
            }
            _ => answer(reply, shared.run("statfs", || Ok(shared.statfs())), |out, totals| {
                let t = totals;
                [t.blocks, t.free, t.available, t.files, t.files_free]
                    .iter()
                    .for_each(|value| out.u64(*value));
                [t.block_size, 255, t.block_size, 0].iter().for_each(|value| out.u32(*value));
                (0..6).for_each(|_| out.u32(0));
            }),
        }
    }

    fn extended(&self, reply: Reply) {
        let fields = Fields(reply.request());
        let (header, shared) = (fields.0.header, &self.0);
        let ino = self.ino(header.node);
        let name = || -> Answer<&[u8]> { Ok(fields.name()?.0.as_encoded_bytes()) };
        match header.opcode {
            opcode::SETXATTR => {
                let set = shared.run("setxattr", || {
                    let (name, value) = fields.name()?;
                    let value = value.get(..fields.u32(0) as usize).ok_or(Errno::IO)?;
                    let flags = fields.u32(4).cast_signed();
                    shared.setxattr(ino, name.as_encoded_bytes(), value, flags)
                });
                empty(reply, set);
            }
            opcode::GETXATTR => {
                let size = fields.u32(0);
                let found = shared.run("getxattr", || shared.getxattr(ino, name()?));
                value(reply, size, found);
            }
            opcode::LISTXATTR => {
                let size = fields.u32(0);
                value(reply, size, shared.run("listxattr", || shared.listxattr(ino)));
            }
            _ => {
                let removed = shared.run("removexattr", || shared.removexattr(ino, name()?));
                empty(reply, removed);
            }
        }
    }

    // ---- files ----

    fn file(&self, reply: Reply) {
        let fields = Fields(reply.request());
        let (header, shared) = (fields.0.header, &self.0);
        match header.opcode {
            opcode::OPEN => {
                let (thread, ino, flags) =
                    (header.pid, self.ino(header.node), fields.u32(0).cast_signed());
                let mode = shared.hints.take(thread, ino);
                shared.with_present_size(ino, move |shared| {
                    let opened = shared.run("open", || shared.open(thread, ino, flags, mode));
                    answer(reply, opened, put_opened);
                });
            }
            opcode::CREATE => {
                let (flags, mode) = (fields.u32(0).cast_signed(), fields.u32(4));
                let (caller, dir) = (fields.caller(), self.ino(header.node));
                let made = shared
                    .run("create", || shared.create(caller, dir, fields.name()?.0, mode, flags));
                answer(reply, made, |out, (entry, opened)| {
                    self.put_entry(out, &entry);
                    put_opened(out, opened);
                });
            }
            opcode::RELEASE => {
                let handle = fields.u64(0);
                let released = shared.run("release", || {
                    shared.release(handle);
                    Ok(())
                });
                empty(reply, released);
            }
            _ => {
                const DATA_ONLY: u32 = 1;
                let (handle, data_only) = (fields.u64(0), fields.u32(8) & DATA_ONLY != 0);
                shared.run_sync(move |shared| {
                    let synced = shared
                        .run("fsync", || shared.fsync(&*shared.open_file(handle)?, data_only));
                    empty(reply, synced);
                });
            }
        }
    }

    /// Reads into the payload, from which the kernel takes it.
    fn read(&self, mut reply: Reply) {
        const NAMES_LOCK_OWNER: u32 = 1 << 1;
        let fields = Fields(reply.request());
        let (handle, offset, size) = (fields.u64(0), fields.u64(8), fields.u32(16) as usize);
        // A read on behalf of a caller names the owner of its locks; one that fills pages has no
        // caller.
        let for_pages = fields.u32(20) & NAMES_LOCK_OWNER == 0;
        let Some(buf) = reply.payload().get_mut(..size) else {
            return reply.refuse(Errno::INVAL.code());
        };
        match self.0.read_into(handle, offset, buf, for_pages) {
            Ok(Read::Done(len)) => reply.send(len),
            Ok(Read::Short(open)) => self.0.run_for_caches(move |shared| {
                match shared.read_again(&open, offset, &mut reply.payload()[..size]) {
                    Ok(len) => reply.send(len),
                    Err(errno) => reply.refuse(errno.code()),
                }
            }),
            Err(errno) => reply.refuse(errno.code()),
        }
    }

    /// Writes from the payload, where the device takes it as it lies.
    fn write(&self, reply: Reply) {
        const FROM_PAGES: u32 = 1;
        const KILL_SET_ID: u32 = 1 << 2;
        let fields = Fields(reply.request());
        let (size, flags) = (fields.u32(16), fields.u32(20));
        let written = fields.0.payload.get(..size as usize).ok_or(Errno::IO).and_then(|data| {
            self.0.begin_write(&Write {
                caller: fields.caller(),
                handle: fields.u64(0),
                offset: fields.u64(8),
                data,
                from_pages: flags & FROM_PAGES != 0,
                kill_set_id: flags & KILL_SET_ID != 0,
                // The flags of the open and, since Linux sends them along, those of this one call
                // (`RWF_DSYNC`, `RWF_SYNC`).
                durability: Durability::of_flags(fields.u32(32).cast_signed()),
            })
        });
        match written {
            Ok(written) => self.0.end_write(written, move |done| count(reply, done.map(|()| size))),
            Err(errno) => reply.refuse(errno.code()),
        }
    }

    fn range(&self, reply: Reply) {
        let fields = Fields(reply.request());
        let (header, caller) = (fields.0.header, fields.caller());
        let handle = fields.u64(0);
        match header.opcode {
            opcode::FALLOCATE => {
                let (offset, len) = (fields.u64(8), fields.u64(16));
                let mode = fields.u32(24).cast_signed();
                self.0.fallocate(caller, handle, offset, len, mode, |done| empty(reply, done));
            }
            opcode::LSEEK => {
                let offset = fields.u64(8).cast_signed();
                let whence = fields.u32(16).cast_signed();
                self.0.lseek(handle, offset, whence, |found| {
                    answer(reply, found, |out, offset| out.u64(offset.cast_unsigned()));
                });
            }
            opcode::COPY_FILE_RANGE => {
                let (from, to) = ((handle, fields.u64(8)), (fields.u64(24), fields.u64(32)));
                let len = fields.u64(40);
                self.0.copy_range(caller, from, to, len, |copied| count(reply, copied));
            }
            _ => self.control(reply),
        }
    }

    fn control(&self, reply: Reply) {
        const OF_DIRECTORY: u32 = 1 << 4;
        let fields = Fields(reply.request());
        let (shared, uid, handle) = (&self.0, fields.0.header.uid, fields.u64(0));
        let (flags, command, out_size) = (fields.u32(8), fields.u32(12), fields.u32(28));
        let told = match command {
            _ if flags & OF_DIRECTORY != 0 => Err(Errno::NOTTY),
            lease::IOCTL => shared.run("ioctl", || shared.offer(uid, handle)).map(Vec::from),
            lease::ODD_IOCTL => shared
                .run("ioctl", || shared.odd_writes(uid, handle, fields.0.payload))
                .map(Vec::from),
            lease::TAIL_IOCTL => {
                let asked = fields.0.payload.to_vec();
                return shared
                    .tail((uid, handle), &asked, move |told| ioctl(reply, out_size, told));
            }
            _ => Err(Errno::NOTTY),
        };
        ioctl(reply, out_size, told);
    }

    // ---- directories ----

    fn directory(&self, reply: Reply) {
        let fields = Fields(reply.request());
        let (header, shared) = (fields.0.header, &self.0);
        let handle = fields.u64(0);
        match header.opcode {
            opcode::OPENDIR => {
                let opened = shared.run("opendir", || shared.opendir(self.ino(header.node)));
                answer(reply, opened, |out, handle| out.handle(handle, 0));
            }
            opcode::READDIR => {
                let (cookie, size) = (fields.u64(8), fields.u32(16));
                self.list(reply, handle, cookie, size);
            }
            opcode::READDIRPLUS => {
                let (cookie, size) = (fields.u64(8), fields.u32(16));
                self.list_with_attributes(reply, handle, cookie, size);
            }
            opcode::RELEASEDIR => {
                shared.dirs.remove(handle);
                empty(reply, Ok(()));
            }
            _ => shared.run_sync(move |shared| {
                empty(reply, shared.run("fsyncdir", || shared.fsyncdir(handle)));
            }),
        }
    }
}

/// Answers how many bytes were written (`struct fuse_write_out`).
fn count(reply: Reply, written: Answer<u32>) {
    answer(reply, written, |out, bytes| {
        out.u32(bytes);
        out.u32(0);
    });
}
