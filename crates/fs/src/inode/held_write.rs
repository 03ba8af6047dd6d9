//! An odd write that has returned and not reached the device yet: the writes that go on where it
//! ends become one with it.
//!
//! ```text
//!   odd write, all of it over the file's own written blocks ─► held ─► written: another write of its sectors, or one that does not go on there,
//!                                                              ▲ │               sync, freeze, change of size, allocation or service,
//!                                                              └─┘ joined        a turn of the sync daemon
//! ```
//!
//! It changes bytes in place and no metadata, so what a crash loses of it is what any write may
//! lose that was not synced (S-7).
//!
//! - I-HLD-2: a held write comes, grows and goes under the exclusive inode lock only, so it stays
//!   while a reader or another writer holds the lock shared.
//! - I-HLD-3: no device bytes below a held write are written past it.

use std::ops::Range;

use bedplate_block::sync::{Mutex, rank};

use super::held_sectors::{HeldBytes, Share};
use super::steady::Bit;
use crate::lock::Exclusive;
use bedplate_store::{PlantedBug, planted, within};

/// The longest held write in bytes.
const BYTES_MAX: usize = 64 << 10;
/// A longer write is not worth a copy.
pub(crate) const WRITE_BYTES_MAX: usize = BYTES_MAX / 2;
const _: () = assert!(WRITE_BYTES_MAX <= BYTES_MAX, "a write that may be held fits what is held");

/// Contiguous bytes of a file.
#[derive(Debug)]
pub(crate) struct Bytes {
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
    _share: Share,
}

impl Bytes {
    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes.len() as u64
    }
}

/// The held write of one file, if there is one.
#[derive(Debug)]
pub(crate) struct HeldWrite {
    /// Also while it is being written: a sync then waits for the inode lock.
    any: Bit,
    /// Leaf. Boxed: few files ever have one.
    held: Mutex<Option<Box<Bytes>>, { rank::HELD_WRITE }>,
}

impl HeldWrite {
    pub(super) fn new(any: Bit) -> Self {
        Self { any, held: Mutex::default() }
    }

    /// Returns whether there is one; under the inode lock that stays so.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.is_set()
    }

    /// Returns whether there is one whose sectors overlap a byte range of the file.
    #[inline]
    pub(crate) fn overlaps(&self, range: &Range<u64>, sector: u64) -> bool {
        self.any() && self.find(range, sector)
    }

    #[cold]
    fn find(&self, range: &Range<u64>, sector: u64) -> bool {
        self.held.lock().as_ref().is_some_and(|held| {
            let Range { start, end } = held.range();
            start / sector * sector < range.end && range.start < end.next_multiple_of(sector)
        })
    }

    /// Puts what is held over what was read of the device from byte `offset` of the file on.
    #[inline]
    pub(crate) fn overlay(&self, buf: &mut [u8], offset: u64) {
        if self.any() && !planted(PlantedBug::HeldWriteNotRead) {
            self.copy_to(buf, offset);
        }
    }

    #[cold]
    fn copy_to(&self, buf: &mut [u8], offset: u64) {
        if let Some(held) = &*self.held.lock() {
            let part = within(&held.range(), &(offset..offset + buf.len() as u64));
            let from = within(&part, &held.range());
            let len = (from.end - from.start) as usize;
            let (to, from) =
                ((from.start.max(offset) - offset) as usize, (from.start - held.offset) as usize);
            if len > 0 {
                buf[to..to + len].copy_from_slice(&held.bytes[from..from + len]);
            }
        }
    }

    /// Makes a write part of the held one if it begins within it or at its end, and the sum is not
    /// too long.
    pub(crate) fn join(&self, _alone: &Exclusive<'_>, bytes: &[u8], offset: u64) -> bool {
        let mut held = self.held.lock();
        let Some(held) =
            held.as_mut().filter(|held| held.offset <= offset && offset <= held.range().end)
        else {
            return false;
        };
        let skip = (offset - held.offset) as usize;
        let end = skip + bytes.len();
        if end > BYTES_MAX {
            return false;
        }
        held.bytes.resize(held.bytes.len().max(end), 0);
        held.bytes[skip..end].copy_from_slice(bytes);
        debug_assert!(
            held.bytes.len() <= BYTES_MAX,
            "I-HLD-3: {} bytes are held",
            held.bytes.len()
        );
        true
    }

    /// Holds a write; `false` where all files together hold too much.
    pub(crate) fn begin(
        &self,
        _alone: &Exclusive<'_>,
        bytes: &[u8],
        offset: u64,
        all: &HeldBytes,
    ) -> bool {
        debug_assert!(
            !bytes.is_empty() && bytes.len() <= BYTES_MAX,
            "I-HLD-3: what is held is a small write: {} bytes",
            bytes.len()
        );
        let mut held = self.held.lock();
        assert!(held.is_none(), "I-HLD-3: the write that was held before has been written");
        let Some(share) = all.take(BYTES_MAX as u64) else { return false };
        *held = Some(Box::new(Bytes { offset, bytes: bytes.to_vec(), _share: share }));
        self.any.set(true);
        true
    }

    /// Takes the held write, to write it, or because its bytes leave the file; [`end`](Self::end)
    /// or [`put_back`](Self::put_back) follows.
    pub(crate) fn take(&self, _alone: &Exclusive<'_>) -> Option<Box<Bytes>> {
        if self.any() { self.held.lock().take() } else { None }
    }

    /// What was taken has been written, or is of no use any more.
    pub(crate) fn end(&self, _alone: &Exclusive<'_>) {
        debug_assert!(
            self.held.lock().is_none(),
            "I-HLD-2: a held write ends when it was written or dropped"
        );
        self.any.set(false);
    }

    /// Puts back what could not be written: the next sync tries again.
    pub(crate) fn put_back(&self, _alone: &Exclusive<'_>, bytes: Box<Bytes>) {
        let before = self.held.lock().replace(bytes);
        assert!(
            before.is_none() && self.any(),
            "I-HLD-2: nothing comes while the lock is held to write what was held"
        );
    }
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

    #[test]
    fn i_hld_2_writes_that_go_on_become_one() {
        let (lock, all, held) = (
            InodeLock::default(),
            HeldBytes::default(),
            HeldWrite::new(Bit::alone(Cause::HeldWrite)),
        );
        let alone = lock.exclusive(&NoHelp);
        assert!(!held.join(&alone, &[1; 24], 1000) && held.take(&alone).is_none());
        assert!(
            held.begin(&alone, &[1; 24], 1000, &all)
                && held.join(&alone, &[2; 100], 1024)
                && held.join(&alone, &[3; 10], 1010)
        );
        assert!(!held.join(&alone, &[4; 10], 1125), "a gap");
        assert!(!held.join(&alone, &[4; 10], 995), "before it");
        assert!(!held.join(&alone, &vec![4; BYTES_MAX], 1001), "too long");
        let mut buf = [9; 200];
        held.overlay(&mut buf, 950);
        assert_eq!(
            (buf[49], buf[50], buf[59], buf[60], buf[69], buf[70], buf[73], buf[74]),
            (9, 1, 1, 3, 3, 1, 1, 2)
        );
        assert_eq!((buf[173], buf[174]), (2, 9));
        for (from, to) in [(0, 500), (1124, 2000), (1060, 1070)] {
            let mut part = vec![9; to - from];
            held.overlay(&mut part, from as u64);
            assert_eq!(part[0], if from == 1060 { 2 } else { 9 });
        }
        let bytes = held.take(&alone).expect("it is held");
        assert_eq!(
            (bytes.offset, bytes.bytes.len(), held.any()),
            (1000, 124, true),
            "a sync beside it waits until it is written"
        );
        held.put_back(&alone, bytes);
        assert!(held.take(&alone).is_some());
        held.end(&alone);
        assert_eq!((held.any(), all.total()), (false, 0));
    }

    #[test]
    fn i_hld_3_its_whole_sectors_count() {
        let (lock, all, held) = (
            InodeLock::default(),
            HeldBytes::default(),
            HeldWrite::new(Bit::alone(Cause::HeldWrite)),
        );
        assert!(held.begin(&lock.exclusive(&NoHelp), &[1; 24], 1010, &all));
        let overlaps = |range| held.overlaps(&range, 512);
        assert!(overlaps(512..513) && overlaps(1030..1031) && overlaps(1535..9000));
        assert!(!overlaps(0..512) && !overlaps(1536..1537));
    }
}
