//! Small writes that wait for the exclusive lock of their file: the one that gets it takes along what
//! lies beside it, as one write of the device and one record. So writers that append to one log wait for
//! one write each, and not for those of all that came before (flat combining: Hendler, Incze, Shavit and
//! Tzafrir, 2010).
//!
//! ```text
//!   write ─► joins ─► waits for the inode lock ─► carried along meanwhile? ─► returns
//!                                                        │ no
//!                                                        ▼
//!                                           writes, with what lies beside it; marks that
//! ```
//!
//! - I-CMB-1: what has joined is looked at and marked under the exclusive inode lock only, and stays
//!   until its writer has that lock, or gives up.
//! - I-CMB-2: what is written together has no byte twice, and between its parts only bytes that lie
//!   behind the end of the file: they are zeros, and no block lies wholly among them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_block::AlignedBuf;
use bedplate_block::sync::{Mutex, rank};
use bedplate_store::{PlantedBug, planted};

use crate::lock::Exclusive;

/// What is written together at most, in bytes.
const TOGETHER_BYTES_MAX: u64 = 256 << 10;
/// A longer write is not worth a copy.
pub(crate) const WRITE_BYTES_MAX: usize = 16 << 10;

/// One write that waits.
#[derive(Debug)]
struct Entry {
    offset: u64,
    bytes: Vec<u8>,
    /// Another writer carried it along.
    is_done: AtomicBool,
}

impl Entry {
    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes.len() as u64
    }
}

/// The writes of one file that wait for its lock.
#[derive(Debug, Default)]
pub(crate) struct Combining {
    /// Leaf.
    waiting: Mutex<Vec<Arc<Entry>>, { rank::COMBINING }>,
}

/// A write that has joined those that wait, until it is dropped.
#[derive(Debug)]
pub(crate) struct Joined<'a> {
    all: &'a Combining,
    entry: Arc<Entry>,
}

/// Several writes that are one.
#[derive(Debug)]
pub(crate) struct Together {
    pub(crate) offset: u64,
    pub(crate) bytes: AlignedBuf,
    /// Those of other writers.
    others: Vec<Arc<Entry>>,
}

impl Combining {
    /// Adds a write to those that wait.
    pub(crate) fn join(&self, bytes: &[u8], offset: u64) -> Joined<'_> {
        debug_assert!(
            !bytes.is_empty() && bytes.len() <= WRITE_BYTES_MAX,
            "only small writes are copied: {} bytes",
            bytes.len()
        );
        let is_done = AtomicBool::new(false);
        let entry = Arc::new(Entry { offset, bytes: bytes.to_vec(), is_done });
        self.waiting.lock().push(Arc::clone(&entry));
        Joined { all: self, entry }
    }
}

impl Joined<'_> {
    /// Returns whether another writer carried the write along; final once the lock is held (I-CMB-1).
    pub(crate) fn is_done(&self, _held: &Exclusive<'_>) -> bool {
        self.entry.is_done.load(Ordering::Acquire)
    }

    /// Returns the write together with those beside it of a file of `size` bytes, or `None` where there
    /// are none.
    pub(crate) fn together(
        &self,
        _held: &Exclusive<'_>,
        size: u64,
        block: u64,
    ) -> Option<Together> {
        let mut others: Vec<Arc<Entry>> = {
            let waiting = self.all.waiting.lock();
            let is_other = |it: &&Arc<Entry>| {
                !Arc::ptr_eq(it, &self.entry) && !it.is_done.load(Ordering::Acquire)
            };
            waiting.iter().filter(is_other).cloned().collect()
        };
        others.sort_unstable_by_key(|entry| entry.offset);
        let behind = others.partition_point(|entry| entry.offset < self.entry.offset);
        let mut range = self.entry.range();
        let mut taken = Vec::new();
        for entry in &others[behind..] {
            let wider = range.start..entry.range().end;
            if !is_beside(range.end..entry.offset, size, block) || is_long(&wider) {
                break;
            }
            (range, _) = (wider, taken.push(Arc::clone(entry)));
        }
        for entry in others[..behind].iter().rev() {
            let wider = entry.offset..range.end;
            if !is_beside(entry.range().end..range.start, size, block) || is_long(&wider) {
                break;
            }
            (range, _) = (wider, taken.push(Arc::clone(entry)));
        }
        (!taken.is_empty()).then(|| Together::new(range, &self.entry, taken))
    }
}

/// Returns whether what ends and begins at these places may be written together (I-CMB-2).
fn is_beside(gap: Range<u64>, size: u64, block: u64) -> bool {
    gap.start == gap.end
        || (size <= gap.start
            && gap.start < gap.end
            && gap.start.next_multiple_of(block) + block > gap.end / block * block)
}

fn is_long(range: &Range<u64>) -> bool {
    range.end - range.start > TOGETHER_BYTES_MAX
}

impl Together {
    fn new(range: Range<u64>, own: &Entry, others: Vec<Arc<Entry>>) -> Self {
        let mut bytes = AlignedBuf::zeroed((range.end - range.start) as usize);
        let carried = others.iter().map(|entry| &**entry);
        for entry in carried.chain([own]) {
            let at = (entry.offset - range.start) as usize;
            bytes[at..at + entry.bytes.len()].copy_from_slice(&entry.bytes);
        }
        if planted(PlantedBug::CombinedWriteLeftOut) {
            let at = (others[0].offset - range.start) as usize;
            bytes[at..at + others[0].bytes.len()].fill(0);
        }
        Self { offset: range.start, bytes, others }
    }

    /// How many writes of other writers are among it.
    pub(crate) fn others(&self) -> usize {
        self.others.len()
    }

    /// It is written: the writes of other writers are done (I-CMB-1).
    pub(crate) fn end(self, _held: &Exclusive<'_>) {
        self.others.iter().for_each(|entry| entry.is_done.store(true, Ordering::Release));
    }
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        self.all.waiting.lock().retain(|entry| !Arc::ptr_eq(entry, &self.entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Help, InodeLock};

    struct NoHelp;

    impl Help for NoHelp {
        fn help(&self) {}
    }

    const BLOCK: u64 = 4096;

    fn fill_of(at: u64) -> u8 {
        (at / 512 % 250) as u8 + 1
    }

    /// Joins writes of 512 bytes at these places, and returns from where to where the first is written
    /// with others in a file of `size` bytes.
    fn together(places: &[u64], size: u64) -> Option<Range<u64>> {
        let lock = InodeLock::default();
        let held = lock.exclusive(&NoHelp);
        let all = Combining::default();
        let joined: Vec<_> = places.iter().map(|at| all.join(&[fill_of(*at); 512], *at)).collect();
        let together = joined[0].together(&held, size, BLOCK)?;
        let range = together.offset..together.offset + together.bytes.len() as u64;
        for (at, joined) in places.iter().zip(&joined) {
            let is_in = range.contains(at);
            let byte = together.bytes.get(at.wrapping_sub(range.start) as usize);
            assert_eq!(byte.copied().filter(|_| is_in), is_in.then_some(fill_of(*at)));
            assert!(!joined.is_done(&held));
        }
        together.end(&held);
        let done = joined.iter().filter(|joined| joined.is_done(&held)).count();
        let carried = places[1..].iter().filter(|at| range.contains(at)).count();
        assert_eq!(done, carried, "I-CMB-1: all but the writer's own");
        drop(joined);
        assert!(all.waiting.lock().is_empty());
        Some(range)
    }

    #[test]
    fn i_cmb_2_what_lies_beside_is_written_along() {
        assert_eq!(together(&[1024, 512, 1536, 2048], 0), Some(512..2560));
        assert_eq!(together(&[1024], 0), None);
        assert_eq!(together(&[1024, 1024], 0), None, "the same bytes twice");
        assert_eq!(together(&[1024, 2048], 1536), Some(1024..2560), "a gap behind the end");
        assert_eq!(together(&[1024, 2048], 2048), None, "a gap that may have bytes");
        assert_eq!(together(&[2048, 0], 512), Some(0..2560));
        assert_eq!(together(&[512, 7680], 0), Some(512..8192), "a part of two blocks");
        assert_eq!(together(&[512, 8192], 0), None, "a whole block");
        assert_eq!(together(&[0, 4096], 0), Some(0..4608));
        assert_eq!(together(&[3584, 8192], 0), None, "exactly a block");
    }

    #[test]
    fn i_cmb_2_what_is_written_together_is_bounded() {
        let places: Vec<u64> = (0..600).map(|index| index * 512).collect();
        assert_eq!(together(&places, 0), Some(0..TOGETHER_BYTES_MAX));
    }
}
