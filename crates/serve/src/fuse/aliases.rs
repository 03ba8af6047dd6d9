//! Names with a mode suffix that the kernel has looked up.
//!
//! The kernel keeps an entry for each such name beside that of the plain one, and each entry keeps
//! its inode alive: a removed file with a suffixed name would hold its space until memory is short.
//! So when a plain name goes, the kernel is told to drop the suffixed ones too.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bedplate_fs::{InodeNo, IoMode};
use parking_lot::Mutex;

use super::shared::Shared;

/// The inodes that the kernel got under a suffixed name and has not forgotten: no more than it
/// knows.
#[derive(Debug, Default)]
pub(super) struct Aliases {
    inodes: Mutex<HashSet<InodeNo>>,
    /// Size of the set, so that mounts without suffixes take no lock.
    count: AtomicUsize,
}

impl Aliases {
    fn change<T>(&self, change: impl FnOnce(&mut HashSet<InodeNo>) -> T) -> T {
        let mut inodes = self.inodes.lock();
        let changed = change(&mut inodes);
        self.count.store(inodes.len(), Relaxed);
        changed
    }

    /// Notes that an inode was found under a suffixed name.
    pub(super) fn note(&self, ino: InodeNo) {
        self.change(|inodes| inodes.insert(ino));
    }

    /// Notes that the kernel knows an inode no more.
    pub(super) fn forgotten(&self, ino: InodeNo) {
        if !self.are_none() {
            self.change(|inodes| inodes.remove(&ino));
        }
    }

    pub(super) fn are_none(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    fn has(&self, ino: InodeNo) -> bool {
        !self.are_none() && self.inodes.lock().contains(&ino)
    }
}

/// Returns all names under which a file is opened in some mode.
pub(super) fn suffixed(plain: &[u8]) -> impl Iterator<Item = OsString> + '_ {
    IoMode::ALL
        .into_iter()
        .map(move |mode| OsString::from_vec([plain, b"::", mode.name().as_bytes()].concat()))
}

impl Shared {
    /// Tells whether the kernel may have suffixed names of the inode that a name leads to.
    pub(super) fn is_aliased(&self, dir: InodeNo, plain: &[u8]) -> bool {
        !self.aliases.are_none()
            && self.fs.lookup(dir, plain).is_ok_and(|attr| self.aliases.has(attr.ino))
    }

    /// Makes the kernel forget the suffixed names of a plain one that is gone. Not at once: the
    /// kernel keeps the directory locked until it is answered.
    pub(super) fn forget_suffixed(self: &Arc<Self>, dir: InodeNo, plain: &[u8]) {
        let plain = OsStr::from_bytes(plain).to_owned();
        self.run_for_caches(move |shared| {
            suffixed(plain.as_bytes()).for_each(|name| shared.kernel.drop_name(dir, &name));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suffix_is_one_that_names_a_mode() {
        let names: Vec<_> = suffixed(b"f").collect();
        assert_eq!(names.len(), IoMode::ALL.len());
        for name in names {
            let (plain, mode) = bedplate_fs::split_mode_suffix(name.as_bytes());
            assert!(plain == b"f" && mode.is_some(), "{name:?}");
        }
    }

    #[test]
    fn only_what_the_kernel_knows_is_kept() {
        let aliases = Aliases::default();
        assert!(aliases.are_none());
        aliases.note(InodeNo(7));
        aliases.note(InodeNo(7));
        assert!(aliases.has(InodeNo(7)) && !aliases.has(InodeNo(8)));
        aliases.forgotten(InodeNo(7));
        assert!(aliases.are_none() && !aliases.has(InodeNo(7)));
    }
}
