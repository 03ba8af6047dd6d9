//! The size that the kernel has of a file, made that of the file system where it may be an old one.
//!
//! The kernel keeps the size of a file it knows by itself, and appends where it believes the end to
//! be. Where it collects writes it takes a size from nothing but the answer to a truncation of its
//! own; elsewhere also from attributes, which it asks for when a program asks for them, not before
//! an append. So the control line goes to the file through the mount, as any program would, looks
//! at it, and where the size differs truncates it: the answer gives the size, and the truncation
//! itself changes nothing in the file system.
//!
//! It reaches a file by a name in what is mounted that only the visiting thread gets an answer for, so
//! that files without a name are reached too.
//!
//! The kernel's size is an old one in two cases. After a forced rollback of an open file the size
//! on the volume is another. And a look-up may pass an eviction: one program looks a file up while
//! the kernel knows it already (two programs create one file at once, and the second drops the name
//! that the first is about to fill); the first writes, closes, and the kernel forgets the file;
//! then the kernel loads the file from the answer to the look-up, which has the size from before.
//!
//! - I-SIZ-1: an open is answered only while the kernel has the file's size, or one that follows
//!   from writes it has not handed over. So a size that was told of a file that the kernel could
//!   know already is noted, until the kernel has forgotten the file, and an open that finds another
//!   size than the noted ones is answered after a visit.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, SystemTime};

use bedplate_fs::{Attr, FileKind, InodeNo};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT, utimensat};

use super::names::Caller;
use super::shared::Shared;
use super::trees::Node;

/// What the name begins with; the inode number follows.
pub(super) const VISIT_NAME: &str = ".bedplate-visit-";
/// How often a size that writers change meanwhile is replaced.
const LOOKS_MAX: usize = 8;
/// How long a visit waits between two looks for the end of opens that the kernel has closed, and
/// how often.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSES_MAX: usize = 1000;

/// A file, and the directory that a name of it was asked for in.
#[derive(Debug)]
struct Visit {
    ino: InodeNo,
    seen_in: Option<Node>,
}

/// Which thread visits which file.
#[derive(Debug, Default)]
pub(super) struct Visits {
    by_thread: Mutex<HashMap<u32, Visit>>,
    /// Held from the first look of a visit to its end. What one visit made of a size, and what
    /// programs then wrote, a second with an older look would cut off.
    one_at_a_time: Mutex<()>,
}

impl Visits {
    /// Returns the file that the caller visits under a name in a directory.
    pub(super) fn named(&self, caller: Caller, dir: Node, name: &OsStr) -> Option<InodeNo> {
        let number = name.to_str()?.strip_prefix(VISIT_NAME)?;
        let mut by_thread = self.by_thread.lock();
        let visit = by_thread.get_mut(&caller.thread)?;
        (number == visit.ino.0.to_string()).then(|| {
            visit.seen_in = Some(dir);
            visit.ino
        })
    }

    /// Tells whether the caller visits a file.
    pub(super) fn are_of(&self, caller: Caller, ino: InodeNo) -> bool {
        self.by_thread.lock().get(&caller.thread).is_some_and(|visit| visit.ino == ino)
    }
}

/// Sizes that the kernel was told of files that it could know already, by name or from a list.
#[derive(Debug, Default)]
pub(super) struct ToldSizes {
    /// The smallest and the largest. The lock comes before those of the file system.
    by_inode: Mutex<HashMap<InodeNo, RangeInclusive<u64>>>,
    /// Size of the map, so that where no file was told of twice no lock is taken.
    count: AtomicUsize,
}

impl ToldSizes {
    /// Notes a size that is about to be told. The inode is retained.
    pub(super) fn note(&self, ino: InodeNo, size: u64) {
        let mut by_inode = self.by_inode.lock();
        let told = by_inode.entry(ino).or_insert(size..=size);
        *told = size.min(*told.start())..=size.max(*told.end());
        self.count.store(by_inode.len(), SeqCst);
    }

    /// Forgets an inode that the kernel has forgotten. Whether it has is asked under the lock: a
    /// size that is told from then on is noted after.
    pub(super) fn forget_unless(&self, ino: InodeNo, is_retained: impl FnOnce() -> bool) {
        if self.count.load(SeqCst) == 0 {
            return;
        }
        let mut by_inode = self.by_inode.lock();
        if by_inode.contains_key(&ino) && !is_retained() {
            by_inode.remove(&ino);
            self.count.store(by_inode.len(), SeqCst);
        }
    }

    /// Tells whether the kernel may have another size than `size` from an answer.
    fn has_other(&self, ino: InodeNo, size: impl FnOnce() -> Option<u64>) -> bool {
        if self.count.load(SeqCst) == 0 {
            return false;
        }
        let told = self.by_inode.lock().get(&ino).cloned();
        told.is_some_and(|told| size().is_some_and(|size| told != (size..=size)))
    }
}

/// Which sizes of the kernel a visit replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replace {
    /// Any that differs.
    All,
    /// Those that writes not handed over cannot explain: smaller ones, and larger ones where no
    /// open writes through the kernel's pages.
    Unexplained,
}

impl Shared {
    /// Runs an open, after a visit where the kernel may have loaded the file from an old answer
    /// (I-SIZ-1).
    pub(super) fn with_present_size(
        self: &Arc<Self>,
        ino: InodeNo,
        open: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) {
        let size = || self.fs.attr(ino).ok().map(|attr| attr.size);
        if !self.told_sizes.has_other(ino, size) {
            return open(self);
        }
        self.run_control(move |shared| {
            shared.try_to_tell(ino, Replace::Unexplained);
            open(shared);
        });
    }

    /// Gives the kernel the sizes of regular files that it may know.
    pub(super) fn tell_sizes<'a>(&self, inodes: impl IntoIterator<Item = &'a InodeNo>) {
        for ino in inodes {
            self.try_to_tell(*ino, Replace::All);
        }
    }

    fn try_to_tell(&self, ino: InodeNo, replace: Replace) {
        let Some(root) = self.reached_at() else { return };
        let known = self.fs.is_retained(ino)
            && self.fs.attr(ino).is_ok_and(|attr| attr.kind == FileKind::File);
        if !known {
            return;
        }
        if let Err(error) = self.visit(ino, &root, replace) {
            tracing::warn!(
                "the kernel may keep an old size of inode {}: {error}; close the file everywhere \
                 before it is appended to",
                ino.0
            );
        }
    }

    fn visit(&self, ino: InodeNo, root: &Path, replace: Replace) -> io::Result<()> {
        let _turn = self.visits.one_at_a_time.lock();
        let (thread, name) = (
            rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(),
            format!("{VISIT_NAME}{}", ino.0),
        );
        self.visits.by_thread.lock().insert(thread, Visit { ino, seen_in: None });
        let told = self.tell_size(ino, &root.join(&name), replace);
        let visit = self.visits.by_thread.lock().remove(&thread);
        // The name would keep the file in the kernel's memory.
        if let Some(dir) = visit.and_then(|visit| visit.seen_in) {
            let dir = InodeNo(dir.number(FileKind::Directory));
            self.kernel.drop_name(dir, OsStr::new(&name));
        }
        told
    }

    fn tell_size(&self, ino: InodeNo, path: &PathBuf, replace: Replace) -> io::Result<()> {
        let (mut looks, mut pauses) = (0, 0);
        while looks < LOOKS_MAX {
            let believed = path.symlink_metadata()?.len();
            let Ok(attr) = self.fs.attr(ino) else { return Ok(()) };
            if believed == attr.size {
                break;
            }
            if replace == Replace::Unexplained && self.files.has_cached_writers(ino) {
                if believed > attr.size {
                    break;
                }
                // Either these are closed and their end is on its way, or a direct write is, and
                // with its answer the kernel has its size.
                pauses += 1;
                if pauses < PAUSES_MAX {
                    std::thread::sleep(PAUSE);
                    continue;
                }
            }
            looks += 1;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i_siz_1_only_a_size_that_was_not_told_is_another() {
        let (told, file) = (ToldSizes::default(), InodeNo(7));
        let has_other = |size| told.has_other(file, || Some(size));
        assert!(!has_other(9), "nothing was told");
        told.note(file, 100);
        assert!(!has_other(100) && has_other(200) && has_other(0));
        told.note(file, 200);
        assert!(has_other(100) && has_other(200), "two were told: either may be what it has");
        assert!(!told.has_other(InodeNo(8), || Some(100)), "of another file nothing was");
        assert!(!told.has_other(file, || None), "a file that is gone has no size");
        told.forget_unless(file, || true);
        assert!(has_other(200), "the kernel knows it still");
        told.forget_unless(file, || false);
        assert!(!has_other(200));
    }
}
