//! Names: lookups, and what makes, moves and removes them.
//!
//! Every answer that gives the kernel an inode retains it first, because the kernel may forget it
//! the moment the answer is out.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use bedplate_fs::{
    Attr, ErrorKind, FileKind, InodeNo, IoMode, NewFile, RenameMode, split_mode_suffix,
};

use super::errno::{Answer, Errno};
use super::shared::Shared;
use super::sizes::VISIT_NAME;
use super::trees::Node;

/// How long the kernel may keep attributes and names. Only the kernel changes a mounted volume, so
/// it may keep them as long as it likes.
pub(super) const KERNEL_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// How long it may keep attributes of a file that is written through its page cache: it is not told
/// which blocks those writes were given.
pub(super) const WRITTEN_TTL: Duration = Duration::from_secs(1);
const _: () = assert!(
    WRITTEN_TTL.as_secs() < KERNEL_TTL.as_secs(),
    "what the kernel writes is asked for again sooner"
);

/// The process behind a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// The id of the thread, 0 where the kernel cannot express it.
    pub(super) thread: u32,
}

impl Caller {
    /// Tells whether writes of this caller leave set-ID bits alone. The right to that is
    /// `CAP_FSETID`, which FUSE does not name with most requests: taken to be root's.
    pub(super) fn keeps_set_id(self) -> bool {
        self.uid == 0
    }
}

/// The mode that a request makes an object with. The kernel has applied the umask, unless access
/// control lists count: then it may not count itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Permissions {
    pub(super) mode: u32,
    pub(super) umask: u32,
}

/// An inode given to the kernel under a name.
pub(super) struct Entry {
    pub(super) attr: Attr,
    /// How long the kernel may keep the name: not at all for a name with a mode suffix, or in a
    /// tree.
    pub(super) name_ttl: Duration,
    /// The tree that it lies in.
    pub(super) tree: Option<IoMode>,
}

impl Entry {
    /// Returns the same inode, found or made in a directory of a tree.
    pub(super) fn in_tree(self, tree: Option<IoMode>) -> Self {
        match tree {
            None => self,
            tree => Self { tree, name_ttl: Duration::ZERO, ..self },
        }
    }
}

/// A name as the caller wrote it, taken apart.
struct Name<'a> {
    /// The name in the directory.
    real: &'a [u8],
    /// What its suffix asked for, when the caller wrote one.
    mode: Option<IoMode>,
}

impl Shared {
    fn entry(&self, attr: Attr, mode: Option<IoMode>) -> Answer<Entry> {
        if mode.is_none() {
            return self.entry_for(attr, self.name_ttl());
        }
        let entry = self.entry_for(attr, Duration::ZERO)?;
        self.aliases.note(entry.attr.ino);
        Ok(entry)
    }

    /// Gives back what the kernel held of an inode.
    pub(super) fn forget(&self, ino: InodeNo, count: u64) {
        self.fs.forget(ino, count);
        if !self.aliases.are_none() && !self.fs.is_retained(ino) {
            self.aliases.forgotten(ino);
        }
        self.told_sizes.forget_unless(ino, || self.fs.is_retained(ino));
    }

    /// As [`entry`](Self::entry), of what was made. The kernel may take the plain name for absent, of
    /// which it has seen another one made.
    fn made(&self, attr: Attr, mode: Option<IoMode>) -> Answer<Entry> {
        if mode.is_some() {
            self.kernel.forget_absent();
        }
        self.entry(attr, mode)
    }

    /// Returns how long the kernel may take a name for absent that was not found in a directory
    /// (S-540): not at all where something other than its own requests may make it found.
    pub(super) fn absent_ttl(&self, dir: Node, name: &OsStr) -> Duration {
        let name = name.as_bytes();
        // What a name with a mode or of a tree leads to, and a visit's, depends on the thread that asks.
        let depends =
            name.windows(2).any(|two| two == b"::") || name.starts_with(VISIT_NAME.as_bytes());
        let is_plain = dir.tree.is_none() && dir.ino.is_possible() && !depends;
        let may_know = is_plain && self.kernel.may_know_absent();
        if may_know { self.name_ttl() } else { Duration::ZERO }
    }

    fn entry_for(&self, attr: Attr, name_ttl: Duration) -> Answer<Entry> {
        let attr = self.retain_and_tell(attr)?;
        Ok(Entry { attr, name_ttl, tree: None })
    }

    /// Retains an inode whose attributes are about to be told to the kernel, and returns those to
    /// tell.
    ///
    /// They are looked at once more: until it was retained the kernel could forget the inode, and
    /// with it what it knew of changes since the first look.
    pub(super) fn retain_and_tell(&self, attr: Attr) -> Answer<Attr> {
        let known = self.fs.retain(attr.ino)?;
        if attr.kind != FileKind::File {
            return Ok(attr);
        }
        let attr = self.fs.attr(attr.ino).inspect_err(|_| self.forget(attr.ino, 1))?;
        if known {
            self.told_sizes.note(attr.ino, attr.size);
        }
        Ok(attr)
    }

    /// Takes a mode suffix off a name, unless an object of the whole name exists.
    fn take_apart<'a>(&self, dir: InodeNo, name: &'a OsStr) -> Answer<Name<'a>> {
        let name = name.as_bytes();
        let (base, mode) = split_mode_suffix(name);
        if mode.is_none() {
            return Ok(Name { real: name, mode: None });
        }
        match self.fs.lookup(dir, name) {
            Ok(_) => Ok(Name { real: name, mode: None }),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(Name { real: base, mode }),
            Err(error) => Err(error.into()),
        }
    }

    /// As [`take_apart`](Self::take_apart), for a name that something other than a regular file is
    /// or will be known by: suffixes are for files.
    fn take_apart_for<'a>(
        &self,
        kind: FileKind,
        dir: InodeNo,
        name: &'a OsStr,
    ) -> Answer<Name<'a>> {
        if kind == FileKind::File {
            self.take_apart(dir, name)
        } else {
            Ok(Name { real: name.as_bytes(), mode: None })
        }
    }

    /// Makes the kernel forget the plain name after an operation reached it through a suffixed one.
    fn forget_plain(self: &Arc<Self>, dir: InodeNo, name: &Name<'_>) {
        if name.mode.is_some() {
            self.kernel.forget_absent();
            let plain = OsStr::from_bytes(name.real).to_owned();
            self.run_for_caches(move |shared| shared.kernel.drop_name(dir, &plain));
        }
    }

    /// Returns the inode of a number that a file handle names, or the directory that it lies in.
    ///
    /// The kernel asks only for what it does not know any more. A checkpoint's inodes have their
    /// numbers only as long as the volume is mounted, so a handle of theirs leads nowhere then, as
    /// does one of a file without a name.
    fn by_number(&self, number: InodeNo, name: &OsStr) -> Answer<Entry> {
        if name == ".." {
            return self.entry(self.fs.lookup(number, b"..")?, None);
        }
        if !number.is_possible() {
            return Err(Errno::NOENT);
        }
        let attr = self.fs.attr(number)?;
        if attr.nlink == 0 { Err(Errno::NOENT) } else { self.entry(attr, None) }
    }

    pub(super) fn lookup(&self, caller: Caller, node: Node, name: &OsStr) -> Answer<Entry> {
        let Node { ino: dir, tree } = node;
        if name == "." || name == ".." {
            return Ok(self.by_number(dir, name)?.in_tree(tree));
        }
        if let Some(ino) = self.visits.named(caller, node, name) {
            // Not noted as told: the visit compares what the kernel knows by itself.
            let attr = self.fs.attr(ino)?;
            self.fs.retain(ino)?;
            return Ok(Entry { attr, name_ttl: Duration::ZERO, tree: None });
        }
        if let Some(mode) = self.parts.asked(caller, node, name) {
            self.trees.show(dir, mode);
            return Ok(self.entry(self.fs.attr(dir)?, None)?.in_tree(Some(mode)));
        }
        let Name { real, mode } = self.take_apart(dir, name)?;
        let attr = self.fs.lookup(dir, real)?;
        let is_file = attr.kind == FileKind::File;
        // Checkpoints are not shown in trees: nothing of them is written.
        if mode.is_some() && !is_file || tree.is_some() && !attr.ino.is_possible() {
            return Err(Errno::NOENT);
        }
        self.hints.note(caller.thread, attr.ino, mode.or(tree).filter(|_| is_file));
        if dir == InodeNo::CHECKPOINTS {
            // Checkpoints come and go without the kernel being told.
            return self.entry_for(attr, Duration::ZERO);
        }
        Ok(self.entry(attr, mode)?.in_tree(tree))
    }

    /// Makes a file, device node, pipe or socket; returns its attributes, what the suffix asked
    /// for, and the entry.
    pub(super) fn mknod(
        &self,
        caller: Caller,
        dir: InodeNo,
        name: &OsStr,
        permissions: Permissions,
        rdev: u32,
    ) -> Answer<Entry> {
        let kind = kind_of_mode(permissions.mode).ok_or(Errno::INVAL)?;
        let name = self.take_apart_for(kind, dir, name)?;
        let attr = self.fs.make(dir, name.real, kind, new_file(caller, permissions), rdev)?;
        self.made(attr, name.mode)
    }

    /// Makes a regular file that is about to be opened; returns also what the suffix asked for.
    pub(super) fn make_file(
        &self,
        caller: Caller,
        dir: InodeNo,
        name: &OsStr,
        permissions: Permissions,
    ) -> Answer<(Entry, Option<IoMode>)> {
        let name = self.take_apart(dir, name)?;
        let new = new_file(caller, permissions);
        let attr = self.fs.make(dir, name.real, FileKind::File, new, 0)?;
        Ok((self.made(attr, name.mode)?, name.mode))
    }

    /// Makes a regular file without a name, which is about to be opened.
    pub(super) fn make_unnamed_file(
        &self,
        caller: Caller,
        dir: InodeNo,
        permissions: Permissions,
    ) -> Answer<Entry> {
        // It is retained by being made.
        let attr = self.fs.make_unnamed(dir, new_file(caller, permissions))?;
        Ok(Entry { attr, name_ttl: Duration::ZERO, tree: None })
    }

    pub(super) fn mkdir(
        &self,
        caller: Caller,
        dir: InodeNo,
        name: &OsStr,
        permissions: Permissions,
    ) -> Answer<Entry> {
        let new = new_file(caller, permissions);
        let attr = self.fs.make(dir, name.as_bytes(), FileKind::Directory, new, 0)?;
        self.entry(attr, None)
    }

    pub(super) fn symlink(
        &self,
        caller: Caller,
        dir: InodeNo,
        name: &OsStr,
        target: &OsStr,
    ) -> Answer<Entry> {
        let new = new_file(caller, Permissions { mode: 0o777, umask: 0 });
        let attr = self.fs.symlink(dir, name.as_bytes(), target.as_bytes(), new)?;
        self.entry(attr, None)
    }

    pub(super) fn link(&self, ino: InodeNo, dir: InodeNo, name: &OsStr) -> Answer<Entry> {
        let name = self.take_apart_for(self.fs.attr(ino)?.kind, dir, name)?;
        let attr = self.fs.link(ino, dir, name.real)?;
        self.made(attr, name.mode)
    }

    pub(super) fn unlink(self: &Arc<Self>, dir: InodeNo, name: &OsStr) -> Answer<()> {
        let name = self.take_apart(dir, name)?;
        let aliased = self.is_aliased(dir, name.real);
        self.fs.unlink(dir, name.real)?;
        self.forget_plain(dir, &name);
        if aliased {
            self.forget_suffixed(dir, name.real);
        }
        Ok(())
    }

    pub(super) fn rename(
        self: &Arc<Self>,
        from_dir: InodeNo,
        from: &OsStr,
        to_dir: InodeNo,
        to: &OsStr,
        flags: u32,
    ) -> Answer<()> {
        let mode = rename_mode(flags)?;
        let from = self.take_apart(from_dir, from)?;
        let kind = self.fs.lookup(from_dir, from.real)?.kind;
        let to = self.take_apart_for(kind, to_dir, to)?;
        let aliased = [(from_dir, from.real), (to_dir, to.real)]
            .map(|(dir, name)| self.is_aliased(dir, name).then_some((dir, name)));
        self.fs.rename(from_dir, from.real, to_dir, to.real, mode)?;
        self.forget_plain(from_dir, &from);
        self.forget_plain(to_dir, &to);
        for (dir, name) in aliased.into_iter().flatten() {
            self.forget_suffixed(dir, name);
        }
        if kind == FileKind::Directory || mode == RenameMode::Exchange {
            // What lies below has another path now.
            self.known_names.lock().clear();
        }
        Ok(())
    }
}

/// What a request says of an object it makes.
fn new_file(caller: Caller, permissions: Permissions) -> NewFile {
    let Permissions { mode, umask } = permissions;
    NewFile { mode: mode & 0o7777, uid: caller.uid, gid: caller.gid, umask: umask & 0o777 }
}

/// Returns what `mknod` asks to be made; `None` for a kind that it cannot make.
fn kind_of_mode(mode: u32) -> Option<FileKind> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Some(FileKind::File),
        libc::S_IFIFO => Some(FileKind::Fifo),
        libc::S_IFSOCK => Some(FileKind::Socket),
        libc::S_IFCHR => Some(FileKind::CharDevice),
        libc::S_IFBLK => Some(FileKind::BlockDevice),
        _ => None,
    }
}

fn rename_mode(flags: u32) -> Answer<RenameMode> {
    match flags {
        0 => Ok(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        libc::RENAME_WHITEOUT => Ok(RenameMode::Whiteout),
        // NOREPLACE with WHITEOUT is all that remains; no file system on Linux needs it.
        _ => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rename_flag_is_known_or_refused() {
        assert_eq!(rename_mode(0), Ok(RenameMode::Replace));
        assert_eq!(rename_mode(libc::RENAME_EXCHANGE), Ok(RenameMode::Exchange));
        assert_eq!(rename_mode(libc::RENAME_WHITEOUT), Ok(RenameMode::Whiteout));
        assert_eq!(rename_mode(libc::RENAME_NOREPLACE), Ok(RenameMode::NoReplace));
        assert_eq!(rename_mode(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE), Err(Errno::INVAL));
        assert_eq!(rename_mode(1 << 10), Err(Errno::INVAL));
    }

    #[test]
    fn mknod_makes_everything_but_directories_and_links() {
        assert_eq!(kind_of_mode(0o644), Some(FileKind::File));
        assert_eq!(kind_of_mode(libc::S_IFIFO | 0o600), Some(FileKind::Fifo));
        assert_eq!(kind_of_mode(libc::S_IFDIR | 0o755), None);
        assert_eq!(kind_of_mode(libc::S_IFLNK | 0o777), None);
    }
}
