//! Trees: the directories of a volume once more for each I/O mode, so that what is opened through
//! them is opened in that mode.
//!
//! ```text
//!   the kernel's number of a directory   | 0xfff0 + code of the mode | number of the inode, 48 bits |
//!   of a directory outside of trees, and of everything that is no directory: the number of the inode
//! ```
//!
//! A directory has an inode of its own in the kernel for each tree, and what lies in it has one for
//! all: so a file has one page cache, one size, one set of locks, whatever tree it is reached
//! through. What the kernel has twice are names and attributes of directories.
//!
//! - I-TRE-1: while the kernel knows a directory of a tree, it keeps no name, and no attributes of a
//!   directory, in trees and outside of them: each is asked for when it is used. What it had kept
//!   until then is expired before it is shown the first one.
//!
//! To tell the kernel of each change instead, as with suffixed names (`aliases.rs`), would have the
//! request that makes the change wait for the other directory's lock while it holds that of the
//! file, which both share: two renames of one file would wait for each other for ever.
//!
//! The open that follows a look-up takes its mode as with a suffixed name (`hints.rs`).

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use bedplate_block::MountEntry;
use bedplate_fs::{ErrorKind, FileKind, InodeNo, IoMode};
use parking_lot::Mutex;

use super::names::KERNEL_TTL;
use super::parts::part_of;
use super::shared::Shared;
use crate::Result;

/// An inode as the kernel asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) ino: InodeNo,
    /// The tree that it was reached through.
    pub(super) tree: Option<IoMode>,
}

const FIRST_SLOT: u64 = InodeNo::OF_FRONT_END.0 >> InodeNo::BITS;

impl Node {
    /// Reads the kernel's number.
    pub(super) fn of(number: u64) -> Self {
        let code = (number >> InodeNo::BITS).checked_sub(FIRST_SLOT);
        let tree = IoMode::ALL.into_iter().find(|mode| code == Some(*mode as u64));
        let ino = if tree.is_some() { number & ((1 << InodeNo::BITS) - 1) } else { number };
        Self { ino: InodeNo(ino), tree }
    }

    /// Returns the number by which the kernel is to know an inode of a kind.
    pub(super) fn number(self, kind: FileKind) -> u64 {
        match self.tree {
            Some(mode) if kind == FileKind::Directory => self.directory_of(mode),
            _ => self.ino.0,
        }
    }

    fn directory_of(self, mode: IoMode) -> u64 {
        assert!(self.ino.is_possible(), "I-TRE-1: checkpoints have no trees");
        (FIRST_SLOT + mode as u64) << InodeNo::BITS | self.ino.0
    }
}

/// Which trees the kernel was shown, and whether it knows any.
#[derive(Debug, Default)]
pub(super) struct Trees {
    shown: AtomicU8,
    /// References of the kernel to directories of trees, and mounts of them that are being made.
    known: AtomicU64,
    /// Where the kernel looked the trees up.
    roots: Mutex<HashSet<(InodeNo, IoMode)>>,
}

impl Trees {
    /// Notes that the kernel is about to know one more; returns whether it knew none.
    pub(super) fn note_one(&self) -> bool {
        self.known.fetch_add(1, SeqCst) == 0
    }

    /// Notes that the kernel gives references back.
    pub(super) fn forgotten(&self, count: u64) {
        let before = self.known.fetch_sub(count, SeqCst);
        debug_assert!(before >= count, "I-TRE-1: {count} of {before} are forgotten");
    }

    /// Notes the root of a tree.
    pub(super) fn show(&self, dir: InodeNo, mode: IoMode) {
        self.shown.fetch_or(1 << mode as u8, SeqCst);
        self.roots.lock().insert((dir, mode));
    }

    /// Tells whether the kernel knows a directory of a tree.
    pub(super) fn are_known(&self) -> bool {
        self.known.load(SeqCst) > 0
    }

    fn modes(&self) -> impl Iterator<Item = IoMode> + use<> {
        let shown = if self.are_known() { self.shown.load(SeqCst) } else { 0 };
        IoMode::ALL.into_iter().filter(move |mode| shown & 1 << *mode as u8 != 0)
    }
}

/// Returns the name of the root of a tree.
pub(super) fn root_name(mode: IoMode) -> OsString {
    format!("::{}", mode.name()).into()
}

impl Shared {
    /// Returns how long the kernel may keep a name.
    pub(super) fn name_ttl(&self) -> Duration {
        if self.trees.are_known() { Duration::ZERO } else { KERNEL_TTL }
    }

    /// Has the kernel ask for all that it keeps of names, and of attributes of directories, before it
    /// uses it (I-TRE-1). Names that it is looking up are waited for.
    pub(super) fn expire_names(&self) -> Result<()> {
        const BATCH: usize = 512;
        self.kernel.forget_absent();
        let mut dirs = vec![self.shown.root()];
        self.kernel.drop_attributes(self.shown.root());
        while let Some(dir) = dirs.pop() {
            let mut after: Option<Vec<u8>> = None;
            loop {
                let names = match self.fs.read_dir(dir, after.as_deref(), BATCH) {
                    Err(error) if error.kind == ErrorKind::NotFound => break,
                    names => names?,
                };
                for entry in names.iter().filter(|entry| self.fs.is_retained(entry.ino)) {
                    self.kernel.expire_name(dir, OsStr::from_bytes(&entry.name));
                    if entry.kind == FileKind::Directory {
                        self.kernel.drop_attributes(entry.ino);
                        dirs.push(entry.ino);
                    }
                }
                if names.len() < BATCH {
                    break;
                }
                after = names.into_iter().next_back().map(|entry| entry.name);
            }
        }
        Ok(())
    }

    /// Has the kernel forget trees of which nothing is mounted any more; what is in use still it
    /// keeps.
    pub(super) fn forget_trees(self: &Arc<Self>) {
        if !self.trees.are_known() {
            return;
        }
        self.run_for_caches(|shared| {
            // While one is being mounted it is in no list.
            let Some(_turn) = shared.parts.one_at_a_time.try_lock() else { return };
            let entries = MountEntry::all().unwrap_or_default();
            let mut own = entries.iter().filter(|entry| Some(&entry.device) == shared.device.get());
            if own.any(|entry| part_of(&entry.root).1.is_some()) {
                return;
            }
            let roots = shared.trees.roots.lock().clone();
            roots.iter().for_each(|(dir, mode)| shared.kernel.drop_name(*dir, &root_name(*mode)));
        });
    }

    /// Makes the kernel forget names that are gone where they are known too: they are looked up again
    /// in any case, but until then keep a removed file's space.
    pub(super) fn free_names(self: &Arc<Self>, tree: Option<IoMode>, gone: &[(InodeNo, &OsStr)]) {
        let others: Vec<Option<IoMode>> = [None]
            .into_iter()
            .chain(self.trees.modes().map(Some))
            .filter(|other| *other != tree)
            .collect();
        if others.is_empty() {
            return;
        }
        let gone: Vec<_> = gone.iter().map(|(dir, name)| (*dir, (*name).to_owned())).collect();
        self.run_for_caches(move |shared| {
            for (ino, name) in &gone {
                for tree in &others {
                    let dir = Node { ino: *ino, tree: *tree };
                    shared.kernel.drop_name(InodeNo(dir.number(FileKind::Directory)), name);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i_tre_1_only_directories_of_a_volume_have_a_number_for_each_tree() {
        for tree in [None].into_iter().chain(IoMode::ALL.map(Some)) {
            let node = Node { ino: InodeNo(4711), tree };
            assert_eq!(Node::of(node.number(FileKind::Directory)), node, "I-TRE-1");
            assert_eq!(node.number(FileKind::File), 4711, "I-TRE-1: a file has one page cache");
        }
        for number in [1, 7 << 48 | 3, InodeNo::CHECKPOINTS.0, 0xfff0 << 48 | 9, 0xfff5 << 48 | 9] {
            assert_eq!(Node::of(number), Node { ino: InodeNo(number), tree: None });
        }
    }

    #[test]
    fn i_tre_1_names_are_kept_again_when_the_kernel_knows_no_tree() {
        let trees = Trees::default();
        assert!(trees.note_one() && !trees.note_one() && trees.are_known(), "I-TRE-1");
        trees.show(InodeNo::ROOT, IoMode::Concurrent);
        trees.show(InodeNo::ROOT, IoMode::Cached);
        assert_eq!(trees.modes().collect::<Vec<_>>(), [IoMode::Cached, IoMode::Concurrent]);
        trees.forgotten(2);
        assert!(!trees.are_known() && trees.modes().count() == 0, "I-TRE-1");
    }
}
