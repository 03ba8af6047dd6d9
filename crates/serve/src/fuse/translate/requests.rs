//! One arm a request, each of which calls and answers: names, attributes and directories.

use std::sync::Arc;
use std::time::Duration;

use bedplate_fuse::{Reply, opcode};

use super::super::errno::{Answer, Errno};
use super::super::names::Entry;
use super::super::trees::Node;
use super::Translator;
use super::answers::{answer, empty, value};
use super::fields::Fields;

impl Translator {
    /// Serves one request.
    pub(super) fn serve(&self, reply: Reply) {
        match reply.request().header.opcode {
            opcode::READ => self.read(reply),
            opcode::WRITE => self.write(reply),
            opcode::OPEN | opcode::CREATE | opcode::TMPFILE | opcode::RELEASE | opcode::FSYNC => {
                self.file(reply);
            }
            opcode::FALLOCATE | opcode::LSEEK | opcode::COPY_FILE_RANGE | opcode::IOCTL => {
                self.range(reply);
            }
            opcode::GETATTR | opcode::SETATTR | opcode::STATX | opcode::STATFS => {
                self.attributes(reply);
            }
            opcode::SETXATTR | opcode::GETXATTR | opcode::LISTXATTR | opcode::REMOVEXATTR => {
                self.extended(reply);
            }
            opcode::OPENDIR
            | opcode::READDIR
            | opcode::READDIRPLUS
            | opcode::RELEASEDIR
            | opcode::FSYNCDIR => self.directory(reply),
            opcode::FORGET | opcode::BATCH_FORGET => self.forget(reply),
            _ => self.names(reply),
        }
    }

    /// Takes back what the kernel held, which waits for no answer.
    fn forget(&self, reply: Reply) {
        let forgotten = Fields(reply.request()).forgotten();
        let done = self.0.run("forget", || {
            for (number, count) in forgotten {
                let node = self.node(number);
                self.0.forget(node.ino, count);
                if node.tree.is_some() {
                    self.0.trees.forgotten(count);
                }
            }
            Ok(())
        });
        empty(reply, done);
    }

    // ---- names ----

    fn names(&self, reply: Reply) {
        let fields = Fields(reply.request());
        let (header, shared) = (fields.0.header, &self.0);
        let (caller, node) = (fields.caller(), self.node(header.node));
        let dir = node.ino;
        match header.opcode {
            opcode::LOOKUP => {
                let found = shared.run("lookup", || {
                    let name = fields.name()?.0;
                    match shared.lookup(caller, node, name) {
                        Err(Errno::NOENT) => Ok(Err(shared.absent_ttl(node, name))),
                        found => Ok(Ok(found?)),
                    }
                });
                self.found(reply, found);
            }
            opcode::MKNOD => {
                let (mode, rdev) = (fields.permissions(0, 8), fields.u32(4));
                let made =
                    shared.run("mknod", || shared.mknod(caller, dir, fields.name()?.0, mode, rdev));
                self.made(reply, node, made);
            }
            opcode::MKDIR => {
                let mode = fields.permissions(0, 4);
                let made =
                    shared.run("mkdir", || shared.mkdir(caller, dir, fields.name()?.0, mode));
                self.made(reply, node, made);
            }
            opcode::SYMLINK => {
                let made = shared.run("symlink", || {
                    let (name, target) = fields.names()?;
                    shared.symlink(caller, dir, name, target)
                });
                self.made(reply, node, made);
            }
            opcode::LINK => {
                let ino = self.ino(fields.u64(0));
                let made = shared.run("link", || shared.link(ino, dir, fields.name()?.0));
                self.made(reply, node, made);
            }
            opcode::READLINK => {
                let target = shared.run("readlink", || Ok(shared.fs.read_link(dir)?));
                answer(reply, target, |out, target| out.put(&target));
            }
            _ => self.moved_names(reply),
        }
    }

    /// Answers with what a name leads to, or for how long the kernel may take it for absent.
    fn found(&self, reply: Reply, found: Answer<Result<Entry, Duration>>) {
        match found {
            Ok(Err(Duration::ZERO)) => empty(reply, Err(Errno::NOENT)),
            Ok(Err(ttl)) => answer(reply, Ok(()), |out, ()| out.absent(ttl)),
            Ok(Ok(entry)) => self.entry(reply, Ok(entry)),
            Err(errno) => self.entry(reply, Err(errno)),
        }
    }

    /// Answers with what was made in a directory.
    fn made(&self, reply: Reply, dir: Node, made: Answer<Entry>) {
        self.entry(reply, made.map(|entry| entry.in_tree(dir.tree)));
    }

    /// What takes names away.
    fn moved_names(&self, reply: Reply) {
        let fields = Fields(reply.request());
        let (header, shared) = (fields.0.header, &self.0);
        let node = self.node(header.node);
        let dir = node.ino;
        let done = match header.opcode {
            opcode::UNLINK => shared.run("unlink", || {
                let name = fields.name()?.0;
                shared.unlink(dir, name)?;
                shared.free_names(node.tree, &[(dir, name)]);
                Ok(())
            }),
            opcode::RMDIR => shared.run("rmdir", || {
                let name = fields.name()?.0;
                shared.fs.rmdir(dir, name.as_encoded_bytes())?;
                shared.free_names(node.tree, &[(dir, name)]);
                Ok(())
            }),
            opcode::RENAME | opcode::RENAME2 => {
                let flags = if header.opcode == opcode::RENAME2 { fields.u32(8) } else { 0 };
                shared.run("rename", || {
                    let (from, to) = fields.names()?;
                    let to_dir = self.ino(fields.u64(0));
                    shared.rename(dir, from, to_dir, to, flags)?;
                    shared.free_names(node.tree, &[(dir, from), (to_dir, to)]);
                    Ok(())
                })
            }
            _ => Err(Errno::NOSYS),
        };
        empty(reply, done);
    }

    // ---- attributes ----

    fn attributes(&self, reply: Reply) {
        /// `FUSE_GETATTR_FH`.
        const OF_HANDLE: u32 = 1;
        let fields = Fields(reply.request());
        let (header, shared) = (fields.0.header, &self.0);
        let ino = self.ino(header.node);
        match header.opcode {
            // A question of `lseek(SEEK_END)`, after which the kernel goes by its own size.
            opcode::GETATTR if fields.u32(0) & OF_HANDLE != 0 && shared.size_moves(ino) => {
                shared.run_for_caches(move |shared| {
                    shared.raise_size(ino);
                    let found = shared.run("getattr", || shared.getattr(ino));
                    Self(Arc::clone(shared)).attr(reply, found);
                });
            }
            opcode::GETATTR => self.attr(reply, shared.run("getattr", || shared.getattr(ino))),
            opcode::STATX => {
                self.extended_attr(reply, shared.run("statx", || shared.getattr(ino)));
            }
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
        /// `FUSE_SETXATTR_ACL_KILL_SGID`.
        const ACL_KILL_SET_GID: u32 = 1;
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
                    let kills_set_gid = fields.u32(8) & ACL_KILL_SET_GID != 0;
                    shared.setxattr(ino, name.as_encoded_bytes(), value, flags, kills_set_gid)
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
                let tree = self.node(header.node).tree;
                self.list_with_attributes(reply, tree, (handle, cookie, size));
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
