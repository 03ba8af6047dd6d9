//! Files of which the kernel is to ask for the attributes again, because their blocks have changed.
//!
//! It is told a moment later, in one go for all that are still being written then: with every close
//! the kernel marks by itself that it does not know the blocks, so a small file that is made,
//! written and closed costs no message, no thread that is woken for it, and no look at the file
//! that is not asked for.

use std::sync::Arc;

use bedplate_block::Waker;
use parking_lot::Mutex;

use super::names::WRITTEN_TTL;
use super::open_files::OpenInode;
use super::shared::Shared;

/// What waits for its moment. The lock is a leaf.
#[derive(Debug, Default)]
pub(super) struct Asks {
    waiting: Mutex<Waiting>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Waiting {
    inodes: Vec<Arc<OpenInode>>,
    /// A job looks after them.
    attended: bool,
}

impl Asks {
    /// Takes in a file; returns whether a job must be begun that looks after those that wait.
    fn add(&self, inode: &Arc<OpenInode>) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.inodes.push(Arc::clone(inode));
        !std::mem::replace(&mut waiting.attended, true)
    }

    /// Takes the files that wait and are still being written; `None` where none waited, and then
    /// the job ends.
    fn take(&self) -> Option<Vec<Arc<OpenInode>>> {
        let mut waiting = self.waiting.lock();
        if waiting.inodes.is_empty() {
            waiting.attended = false;
            return None;
        }
        let mut inodes = std::mem::take(&mut waiting.inodes);
        drop(waiting);
        inodes.retain(|inode| inode.has_cached_writers());
        Some(inodes)
    }

    /// Ends the waiting: the mount is over.
    pub(super) fn stop(&self) {
        self.waker.stop();
    }
}

impl Shared {
    /// Makes the kernel ask for the attributes of a file again, in a moment, where it is still
    /// being written then.
    pub(super) fn ask_in_a_moment(self: &Arc<Self>, inode: &Arc<OpenInode>) {
        if self.asks.add(inode) {
            self.run_for_caches(|shared| {
                while shared.asks.waker.wait(WRITTEN_TTL) {
                    let Some(inodes) = shared.asks.take() else { return };
                    inodes.iter().for_each(|inode| shared.kernel.drop_attributes(inode.ino));
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::data::Durability;
    use crate::fuse::open_files::How;
    use bedplate_fs::InodeNo;

    /// For every small file that was made, written and closed a thread was woken to tell the kernel
    /// of its blocks, which asked once more for what it had known.
    #[test]
    fn a_file_that_was_closed_is_not_asked_for() {
        let writer = How { direct: false, writable: true, durability: Durability::None, pid: 1 };
        let (asks, inode) =
            (Asks::default(), |number| Arc::new(OpenInode::new(InodeNo(number), &Arc::default())));
        let (closed, open) = (inode(7), inode(8));
        [&closed, &open].iter().for_each(|inode| inode.opened(&writer));
        assert!(asks.add(&closed) && !asks.add(&open), "one job for both");
        closed.closed(&writer);
        let taken: Vec<InodeNo> =
            asks.take().expect("two waited").iter().map(|inode| inode.ino).collect();
        assert_eq!(taken, [InodeNo(8)]);
        assert!(
            asks.take().is_none() && asks.add(&open),
            "the job has ended, the next begins another"
        );
        asks.stop();
        assert!(!asks.waker.wait(WRITTEN_TTL));
    }
}
