//! Taking away set-user-ID, set-group-ID and file capabilities when a file changes.
//!
//! The mount asks the kernel to leave this to it (`FUSE_HANDLE_KILLPRIV_V2`), because otherwise the kernel asks for `security.capability`
//! before every single write. A write says whether its caller may keep the set-ID bits; capabilities always go. So that a write of a file
//! without any of these costs one comparison, each open remembers the *epoch* in which it was found clean, and everything that could give a
//! file privileges starts a new epoch.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bedplate_fs::{Attr, ErrorKind, FileKind, FileSystem, InodeNo, SetAttr};

use super::errno::Answer;
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

    /// Takes privileges away before a write through `open`; the set-ID bits only where `kill_set_id` says so.
    pub(super) fn before_write(&self, fs: &FileSystem, open: &OpenFile, kill_set_id: bool) -> Answer<()> {
        let epoch = self.epoch.load(Relaxed);
        if open.clean_epoch.load(Relaxed) == epoch {
            return Ok(());
        }
        let attr = fs.attr(open.inode.ino)?;
        remove_capabilities(fs, open.inode.ino)?;
        let kept = without_set_id(&attr);
        if let Some(mode) = kept
            && kill_set_id
        {
            fs.set_attr(open.inode.ino, &SetAttr { mode: Some(mode), ..SetAttr::default() })?;
        }
        if kept.is_none() || kill_set_id {
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

/// Returns the permission bits that are left when the set-ID bits go; `None` when there are none to take. Set-group-ID without group
/// execution is no privilege, and on directories neither bit is.
pub(super) fn without_set_id(attr: &Attr) -> Option<u32> {
    if attr.kind == FileKind::Directory {
        return None;
    }
    let mut mode = attr.mode & !libc::S_ISUID;
    if mode & libc::S_IXGRP != 0 {
        mode &= !libc::S_ISGID;
    }
    (mode != attr.mode).then_some(mode)
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
        assert_eq!(without_set_id(&attr(FileKind::File, 0o755)), None);
        assert_eq!(without_set_id(&attr(FileKind::File, 0o4755)), Some(0o755));
        assert_eq!(without_set_id(&attr(FileKind::File, 0o6755)), Some(0o755));
        // Without group execution, set-group-ID once meant mandatory locking; it stays.
        assert_eq!(without_set_id(&attr(FileKind::File, 0o2644)), None);
        assert_eq!(without_set_id(&attr(FileKind::Directory, 0o2775)), None);
    }
}
