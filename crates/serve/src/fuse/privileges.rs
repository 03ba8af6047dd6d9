//! Taking away set-user-ID, set-group-ID and file capabilities when a file changes.
//!
//! The mount asks the kernel to leave this to it (`FUSE_HANDLE_KILLPRIV_V2`), because otherwise the
//! kernel asks for `security.capability` before every single write. A write says whether its caller
//! may keep the set-ID bits; capabilities always go. So that a write of a file without any of these
//! costs one comparison, each open remembers the *epoch* in which it was found clean, and
//! everything that could give a file privileges starts a new epoch.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bedplate_fs::{Attr, ErrorKind, FileKind, FileSystem, InodeNo, SetAttr};

use super::errno::Answer;
use super::names::Caller;
use super::open_files::OpenFile;

/// The attribute that holds a file's capabilities.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// The current epoch.
#[derive(Debug)]
pub(super) struct Privileges {
    epoch: AtomicU64,
}

impl Privileges {
    pub(super) fn new() -> Self {
        Self { epoch: AtomicU64::new(1) }
    }

    /// Notes that some file may have got privileges.
    pub(super) fn granted(&self) {
        self.epoch.fetch_add(1, Relaxed);
    }

    /// Takes privileges away before a caller's write through `open`; the set-ID bits only where
    /// `kill_set_id` says so.
    pub(super) fn before_write(
        &self,
        fs: &FileSystem,
        open: &OpenFile,
        caller: Caller,
        kill_set_id: bool,
    ) -> Answer<()> {
        let epoch = self.epoch.load(Relaxed);
        if open.clean_epoch.load(Relaxed) == epoch {
            return Ok(());
        }
        let attr = fs.attr(open.inode.ino)?;
        remove_capabilities(fs, open.inode.ino)?;
        // Asked only where they go: it may have to read the caller's groups.
        let left = if kill_set_id { without_set_id(&attr, caller) } else { None };
        if let Some(mode) = left {
            fs.set_attr(open.inode.ino, &SetAttr { mode: Some(mode), ..SetAttr::default() })?;
        }
        // What this caller may keep the next may not.
        if left.unwrap_or(attr.mode) & SET_ID == 0 {
            open.clean_epoch.store(epoch, Relaxed);
        }
        Ok(())
    }
}

/// Removes a file's capabilities, if it has any.
pub(super) fn remove_capabilities(fs: &FileSystem, ino: InodeNo) -> Answer<()> {
    match fs.get_xattr(ino, CAPABILITY) {
        Ok(_) => Ok(fs.remove_xattr(ino, CAPABILITY)?),
        Err(error) if error.kind == ErrorKind::NoAttribute => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The bits that make a program run as another.
const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;

/// Returns the permission bits that are left when a caller's change takes the set-ID bits; `None`
/// when there are none to take. Set-group-ID without group execution is no privilege of a member of
/// the group, and on directories neither bit is.
pub(super) fn without_set_id(attr: &Attr, caller: Caller) -> Option<u32> {
    if attr.kind == FileKind::Directory || attr.mode & SET_ID == 0 {
        return None;
    }
    let mut mode = attr.mode & !libc::S_ISUID;
    if mode & libc::S_ISGID != 0 && (mode & libc::S_IXGRP != 0 || !belongs_to(caller, attr.gid)) {
        mode &= !libc::S_ISGID;
    }
    (mode != attr.mode).then_some(mode)
}

/// Tells whether a caller belongs to a group, as root does to all. A request names only the first
/// of its groups.
fn belongs_to(caller: Caller, gid: u32) -> bool {
    let status = || std::fs::read_to_string(format!("/proc/{}/status", caller.thread));
    caller.uid == 0 || caller.gid == gid || status().is_ok_and(|status| has_group(&status, gid))
}

/// Reads the further groups in what `/proc` says of a thread.
fn has_group(status: &str, gid: u32) -> bool {
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    groups.split_whitespace().any(|group| group.parse() == Ok(gid))
}

#[cfg(test)]
mod tests {
    use bedplate_fs::Timestamp;

    use super::*;

    fn attr(kind: FileKind, mode: u32) -> Attr {
        let t = Timestamp(0);
        Attr {
            ino: InodeNo(2),
            kind,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            allocated_bytes: 0,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
            io_mode: None,
        }
    }

    #[test]
    fn set_id_bits_go_as_they_do_on_local_file_systems() {
        let caller = |uid, gid| Caller { uid, gid, thread: 0 };
        let left = |kind, mode| without_set_id(&attr(kind, mode), caller(1, 1));
        assert_eq!(left(FileKind::File, 0o755), None);
        assert_eq!(left(FileKind::File, 0o4755), Some(0o755));
        assert_eq!(left(FileKind::File, 0o6755), Some(0o755));
        assert_eq!(left(FileKind::Directory, 0o2775), None);
        // Without group execution, set-group-ID once meant mandatory locking; it stays for root and
        // the group.
        assert_eq!(left(FileKind::File, 0o2644), Some(0o644));
        for keeper in [caller(0, 1), caller(1, 0)] {
            assert_eq!(without_set_id(&attr(FileKind::File, 0o2644), keeper), None);
            assert_eq!(without_set_id(&attr(FileKind::File, 0o6644), keeper), Some(0o2644));
        }
    }

    #[test]
    fn further_groups_are_read() {
        let status = "Name:\tx\nGid:\t7\t7\t7\t7\nGroups:\t4 24 1000 \nVmPeak:\t5 kB\n";
        assert!(has_group(status, 24) && has_group(status, 1000));
        assert!(
            !has_group(status, 7)
                && !has_group(status, 2)
                && !has_group("Groups:\t\n", 0)
                && !has_group("", 0)
        );
    }
}
