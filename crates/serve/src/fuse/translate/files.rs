//! Requests on open files: their data above all.

use bedplate_fuse::{Reply, opcode};

use super::super::data::{Durability, Read, Write};
use super::super::errno::{Answer, Errno};
use super::super::lease;
use super::Translator;
use super::answers::{answer, empty, ioctl, put_opened};
use super::fields::Fields;

impl Translator {
    pub(super) fn file(&self, reply: Reply) {
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
            opcode::CREATE | opcode::TMPFILE => {
                let (flags, mode) = (fields.u32(0).cast_signed(), fields.permissions(4, 8));
                let (caller, dir) = (fields.caller(), self.node(header.node));
                let made = if header.opcode == opcode::TMPFILE {
                    shared.run("tmpfile", || shared.create_unnamed(caller, dir, mode, flags))
                } else {
                    shared
                        .run("create", || shared.create(caller, dir, fields.name()?.0, mode, flags))
                };
                answer(reply, made, |out, (entry, opened)| {
                    self.put_entry(out, &entry.in_tree(dir.tree));
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
    pub(super) fn read(&self, mut reply: Reply) {
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
            Ok(Read::Lent(bytes)) => reply.send_bytes(&bytes),
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
    pub(super) fn write(&self, reply: Reply) {
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

    pub(super) fn range(&self, reply: Reply) {
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
            lease::TAIL_IOCTL | lease::APPEND_IOCTL => {
                let asked = fields.0.payload.to_vec();
                let answer = move |told| ioctl(reply, out_size, told);
                return shared.growth((uid, handle), (command, &asked), answer);
            }
            lease::SYNC_IOCTL => {
                return shared.sync_beside(handle, move |told| ioctl(reply, out_size, told));
            }
            _ => Err(Errno::NOTTY),
        };
        ioctl(reply, out_size, told);
    }
}

/// Answers how many bytes were written (`struct fuse_write_out`).
fn count(reply: Reply, written: Answer<u32>) {
    answer(reply, written, |out, bytes| {
        out.u32(bytes);
        out.u32(0);
    });
}
