//! Copies of the sectors at the edges of what a file's odd writes changed, so that the next write
//! to them reads nothing.
//!
//! A log written in odd pieces changes the last sector of one write with the next. A copy is kept
//! under the exclusive inode lock, by the write that read or wrote the sector; all other writes of
//! the file make the copies of what they touch go before they are issued.
//!
//! ```text
//!   read or written in part, inode lock exclusive ─► held ─► forgotten: another write, blocks that leave the file, the last close
//!                                                    ▲ │
//!                                                    └─┘ refreshed: written in part again
//! ```
//!
//! - I-HLD-1: a copy is what the device holds at its place, and no two copies of a file overlap.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_block::sync::{Mutex, rank};

use super::steady::Bit;
use crate::lock::Exclusive;
use bedplate_store::{PlantedBug, planted, within};

/// How many copies a file has at most, each of contiguous sectors.
const COPIES_MAX: usize = 4;

/// What all files together hold at most, in bytes.
const BYTES_MAX: u64 = 16 << 20;

const _: () = assert!(
    COPIES_MAX > 0 && (BYTES_MAX as usize).is_multiple_of(4096),
    "held bytes are bounded by whole pages"
);

/// How much all files of a mount hold.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeldBytes(Arc<AtomicU64>);

/// What one copy has of the bound.
#[derive(Debug)]
pub(super) struct Share {
    all: HeldBytes,
    bytes: u64,
}

impl HeldBytes {
    pub(super) fn take(&self, bytes: u64) -> Option<Share> {
        debug_assert!(
            bytes > 0 && bytes <= BYTES_MAX,
            "a share of the bytes that may be held is some: {bytes}"
        );
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            Some(held + bytes).filter(|held| *held <= BYTES_MAX)
        });
        taken.ok().map(|_| Share { all: self.clone(), bytes })
    }

    #[cfg(test)]
    pub(crate) fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let before = self.all.0.fetch_sub(self.bytes, Ordering::Relaxed);
        debug_assert!(
            before >= self.bytes,
            "a share is of what is held: {} of {before} bytes",
            self.bytes
        );
    }
}

/// A copy of contiguous sectors.
#[derive(Debug)]
struct Copied {
    /// Device offset.
    start: u64,
    bytes: Vec<u8>,
    _share: Share,
}

impl Copied {
    fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes.len() as u64
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.start < range.end && range.start < self.range().end
    }
}

/// The copies of one file, by device offset; the one that was used last is the last.
#[derive(Debug)]
pub(crate) struct HeldSectors {
    /// Whether there are any.
    any: Bit,
    /// Leaf.
    copies: Mutex<VecDeque<Copied>, { rank::HELD_SECTORS }>,
}

impl HeldSectors {
    pub(super) fn new(any: Bit) -> Self {
        Self { any, copies: Mutex::default() }
    }

    /// Fills `buf` with the device's bytes from `at` on if they are held.
    pub(crate) fn read(&self, buf: &mut [u8], at: u64) -> bool {
        if !self.any.is_set() {
            return false;
        }
        let mut copies = self.copies.lock();
        let end = at + buf.len() as u64;
        let Some(index) =
            copies.iter().position(|copied| copied.start <= at && end <= copied.range().end)
        else {
            return false;
        };
        let copied = copies.remove(index).expect("it was just found");
        let skip = (at - copied.start) as usize;
        buf.copy_from_slice(&copied.bytes[skip..skip + buf.len()]);
        copies.push_back(copied);
        true
    }

    /// Holds what was just read from the device or written to it; copies it into what is held
    /// already.
    pub(crate) fn keep(&self, _alone: &Exclusive<'_>, bytes: &[u8], at: u64, held: &HeldBytes) {
        if self.refresh(bytes, at) {
            return;
        }
        let range = at..at + bytes.len() as u64;
        self.retain(|copied| !copied.overlaps(&range));
        let mut copies = self.copies.lock();
        while copies.len() >= COPIES_MAX {
            copies.pop_front();
        }
        if let Some(share) = held.take(bytes.len() as u64) {
            copies.push_back(Copied { start: at, bytes: bytes.to_vec(), _share: share });
        }
        assert!(apart(&copies), "I-HLD-1: of two copies of a sector one would be old");
        self.any.set(!copies.is_empty());
    }

    /// Takes a write that has reached the device over into the copies that it overlaps, under the
    /// exclusive inode lock; returns whether one holds all of it.
    pub(crate) fn refresh(&self, bytes: &[u8], at: u64) -> bool {
        let mut whole = false;
        if !self.any.is_set() {
            return whole;
        }
        let range = at..at + bytes.len() as u64;
        for copied in self.copies.lock().iter_mut().filter(|copied| copied.overlaps(&range)) {
            let part = within(&range, &copied.range());
            let (from, to) = ((part.start - at) as usize, (part.start - copied.start) as usize);
            let len = (part.end - part.start) as usize;
            copied.bytes[to..to + len].copy_from_slice(&bytes[from..from + len]);
            whole |= len == bytes.len();
        }
        whole
    }

    /// Forgets the copies of device bytes that are about to be written past them.
    #[inline]
    pub(crate) fn forget(&self, range: &Range<u64>) {
        if self.any.is_set() && !planted(PlantedBug::HeldSectorsStay) {
            self.retain(|copied| !copied.overlaps(range));
        }
    }

    /// Forgets all copies: blocks leave the file, or nothing has it open.
    pub(crate) fn clear(&self) {
        if self.any.is_set() {
            self.retain(|_| false);
        }
    }

    #[cold]
    fn retain(&self, keep: impl Fn(&Copied) -> bool) {
        let mut copies = self.copies.lock();
        copies.retain(keep);
        self.any.set(!copies.is_empty());
    }
}

fn apart(copies: &VecDeque<Copied>) -> bool {
    copies.iter().enumerate().all(|(index, copied)| {
        copies.iter().skip(index + 1).all(|other| !other.overlaps(&copied.range()))
    })
}

#[cfg(test)]
mod tests {
    use super::super::steady::Cause;
    use super::*;
    use crate::lock::{Help, InodeLock};

    struct NoHelp;

    impl Help for NoHelp {
        fn help(&self) {}
    }

    fn held(copies: &HeldSectors, at: u64, len: usize) -> Option<Vec<u8>> {
        let mut buf = vec![0; len];
        copies.read(&mut buf, at).then_some(buf)
    }

    #[test]
    fn i_hld_1_a_copy_follows_odd_writes_and_goes_with_all_others() {
        let (lock, all, copies) = (
            InodeLock::default(),
            HeldBytes::default(),
            HeldSectors::new(Bit::alone(Cause::HeldSectors)),
        );
        let alone = lock.exclusive(&NoHelp);
        copies.keep(&alone, &[1; 1024], 4096, &all);
        assert_eq!(held(&copies, 4608, 512), Some(vec![1; 512]));
        assert_eq!(held(&copies, 3584, 1024), None, "only half of it is held");
        assert!(!copies.refresh(&[2; 1024], 4608), "the other half is not held");
        assert_eq!(
            (held(&copies, 4096, 512), held(&copies, 4608, 512)),
            (Some(vec![1; 512]), Some(vec![2; 512]))
        );
        copies.keep(&alone, &[3; 1024], 4608, &all);
        assert_eq!(
            (held(&copies, 4096, 512), held(&copies, 4608, 1024)),
            (None, Some(vec![3; 1024])),
            "what overlaps is one copy"
        );
        copies.forget(&(5632..9000));
        copies.forget(&(0..4608));
        assert!(held(&copies, 4608, 1024).is_some());
        copies.forget(&(5631..5632));
        assert!(held(&copies, 4608, 512).is_none() && !copies.any.is_set());
        assert_eq!(all.total(), 0);
    }

    #[test]
    fn what_is_held_is_bounded() {
        let (lock, all, copies) = (
            InodeLock::default(),
            HeldBytes::default(),
            HeldSectors::new(Bit::alone(Cause::HeldSectors)),
        );
        let alone = lock.exclusive(&NoHelp);
        for i in 0..6 {
            copies.keep(&alone, &[1; 512], i * 4096, &all);
            assert!(held(&copies, 0, 512).is_some(), "it is used again and again");
        }
        assert_eq!(all.total(), 4 * 512);
        assert!(held(&copies, 3 * 4096, 512).is_some() && held(&copies, 2 * 4096, 512).is_none());
        let others: Vec<_> = (0..BYTES_MAX / 4096).map_while(|_| all.take(4096)).collect();
        copies.keep(&alone, &[1; 512], 1 << 20, &all);
        copies.keep(&alone, &[1; 4096], 2 << 20, &all);
        assert!(held(&copies, 2 << 20, 4096).is_none(), "other files hold all there is");
        drop((others, copies));
        assert_eq!(all.total(), 0);
    }
}
