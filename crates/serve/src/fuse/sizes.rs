//! The size that the kernel has of a file, made that of the file system after a rollback.
//!
//! The kernel keeps the size of a file it knows by itself, and appends where it believes the end to
//! be. Where it collects writes it takes a size from nothing but the answer to a truncation of its
//! own; elsewhere also from attributes, which it asks for when a program asks for them, not before
//! an append. So the control line goes to the file through the mount, as any program would, looks
//! at it, and where the size differs truncates it: the answer gives the size, and the truncation
//! itself changes nothing in the file system.
//!
//! It reaches a file by a name in the root that only the visiting thread gets an answer for, so
//! that files without a name are reached too.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bedplate_fs::{Attr, FileKind, InodeNo};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT, utimensat};

use super::names::Caller;
use super::shared::Shared;

/// What the name begins with; the inode number follows.
const NAME: &str = ".bedplate-visit-";
/// How often a size that writers change meanwhile is looked at.
const LOOKS_MAX: usize = 8;

/// Which thread visits which file.
#[derive(Debug, Default)]
pub(super) struct Visits {
    by_thread: Mutex<HashMap<u32, InodeNo>>,
}

impl Visits {
    /// Returns the file that the caller visits under a name in a directory.
    pub(super) fn named(&self, caller: Caller, dir: InodeNo, name: &OsStr) -> Option<InodeNo> {
        let number = name.to_str().filter(|_| dir == InodeNo::ROOT)?.strip_prefix(NAME)?;
        self.by_thread.lock().get(&caller.thread).copied().filter(|ino| number == ino.0.to_string())
    }

    /// Tells whether the caller visits a file.
    pub(super) fn are_of(&self, caller: Caller, ino: InodeNo) -> bool {
        self.by_thread.lock().get(&caller.thread) == Some(&ino)
    }
}

impl Shared {
    /// Gives the kernel the sizes of regular files that it may know.
    pub(super) fn tell_sizes<'a>(&self, inodes: impl IntoIterator<Item = &'a InodeNo>) {
        let Some(root) = self.mountpoint.get() else { return };
        for ino in inodes {
            let known = self.fs.is_retained(*ino)
                && self.fs.attr(*ino).is_ok_and(|attr| attr.kind == FileKind::File);
            if !known {
                continue;
            }
            if let Err(error) = self.visit(*ino, root) {
                tracing::warn!(
                    "the kernel may keep an old size of inode {}: {error}; close the file everywhere before it is appended to",
                    ino.0
                );
            }
        }
    }

    fn visit(&self, ino: InodeNo, root: &Path) -> io::Result<()> {
        let (thread, name) = (
            rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(),
            format!("{NAME}{}", ino.0),
        );
        self.visits.by_thread.lock().insert(thread, ino);
        let told = self.tell_size(ino, &root.join(&name));
        self.visits.by_thread.lock().remove(&thread);
        // The name would keep the file in the kernel's memory.
        self.kernel.drop_name(InodeNo::ROOT, OsStr::new(&name));
        told
    }

    fn tell_size(&self, ino: InodeNo, path: &PathBuf) -> io::Result<()> {
        for _ in 0..LOOKS_MAX {
            let believed = path.symlink_metadata()?.len();
            let Ok(attr) = self.fs.attr(ino) else { return Ok(()) };
            if believed == attr.size {
                break;
            }
            nix::unistd::truncate(path, i64::try_from(attr.size).unwrap_or(i64::MAX))?;
            self.tell_time(&attr, path)?;
        }
        Ok(())
    }

    /// Gives the kernel the time of modification where it keeps that by itself: the truncation has
    /// just set it.
    fn tell_time(&self, attr: &Attr, path: &PathBuf) -> io::Result<()> {
        if !self.write_back {
            return Ok(());
        }
        let mtime = SystemTime::from(attr.mtime);
        let since = mtime.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec {
                tv_sec: since.as_secs().cast_signed(),
                tv_nsec: since.subsec_nanos().into(),
            },
        };
        Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }
}
