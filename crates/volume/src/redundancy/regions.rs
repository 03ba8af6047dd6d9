//! What is known of every region of a volume with redundancy, in one atomic word each.
//!
//! ```text
//!   clean ──mark()──► dirty ──write──► dirty, touched ──clean_up() twice, nothing in flight──► clean
//!     a crash, or a member that comes back:  unsynced / behind ─► copying ──sync_part() to the end──► dirty
//! ```
//! A region that is behind is copied in parts, between which it is written to like any other: what
//! is copied already is written on all members. When another member comes meanwhile the region is
//! behind again, and is copied from the start.
//!
//! * I-RGN-1: a region is locked only while no write is under way in it, so what is copied there is
//!   not older than what was written.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::planted::{Mistake, is_planted};

const WRITERS: u32 = 0xffff;
/// The region's bit in the dirty region log is durable.
pub(crate) const DIRTY: u32 = 1 << 16;
/// Written since the last clean-up looked.
const TOUCHED: u32 = 1 << 17;
/// The region is being copied between its members; writes wait.
const LOCKED: u32 = 1 << 18;
/// After a crash: its copies may differ, and it is not read before they agree.
pub(crate) const UNSYNCED: u32 = 1 << 19;
/// A stale member does not hold it yet; the active ones agree.
pub(crate) const BEHIND: u32 = 1 << 20;
/// As [`BEHIND`], and a copy of it has begun since.
pub(crate) const COPYING: u32 = 1 << 21;

const _: () = assert!(
    (DIRTY | TOUCHED | LOCKED | UNSYNCED | BEHIND | COPYING) & WRITERS == 0,
    "flags of a region and the count of its writers share no bit"
);

/// What keeps a writer out of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// Its bit is to be set first.
    Clean,
    /// It is being copied.
    Locked,
    /// It is to be resynchronised first.
    Unsynced,
}

#[derive(Debug)]
pub(crate) struct Regions {
    shift: u32,
    size_bytes: u64,
    states: Box<[AtomicU32]>,
}

impl Regions {
    pub fn new(size_bytes: u64, region_bytes: u64) -> Self {
        debug_assert!(
            region_bytes.is_power_of_two(),
            "regions are told apart by shifts: {region_bytes} bytes"
        );
        let count = usize::try_from(size_bytes.div_ceil(region_bytes))
            .expect("the log bounds the number of regions");
        Self {
            shift: region_bytes.trailing_zeros(),
            size_bytes,
            states: (0..count).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    pub fn count(&self) -> u64 {
        self.states.len() as u64
    }

    /// Returns the first and the last region of a range that is not empty.
    #[inline]
    pub fn span(&self, offset: u64, len: u64) -> (u64, u64) {
        debug_assert!(
            len > 0 && offset.checked_add(len).is_some(),
            "a span holds a byte: {len} at {offset}"
        );
        (offset >> self.shift, (offset + len - 1) >> self.shift)
    }

    /// Returns first address and length of a region.
    pub fn range(&self, region: u64) -> (u64, u64) {
        debug_assert!(region < self.count(), "region {region} is one of {}", self.count());
        let start = region << self.shift;
        (start, (1_u64 << self.shift).min(self.size_bytes - start))
    }

    fn state(&self, region: u64) -> &AtomicU32 {
        &self.states[region as usize]
    }

    #[inline]
    pub fn is_unsynced(&self, region: u64) -> bool {
        self.state(region).load(Ordering::Acquire) & UNSYNCED != 0
            && !is_planted(Mistake::DoubtfulRegionRead)
    }

    pub fn is_dirty(&self, region: u64) -> bool {
        self.has(region, DIRTY)
    }

    pub fn has(&self, region: u64, flags: u32) -> bool {
        self.state(region).load(Ordering::Acquire) & flags != 0
    }

    pub fn set(&self, region: u64, flags: u32) {
        self.state(region).fetch_or(flags, Ordering::AcqRel);
    }

    pub fn set_dirty(&self, region: u64) {
        self.set(region, DIRTY);
    }

    /// Counts a writer in, unless something has to happen first.
    #[inline]
    pub fn enter(&self, region: u64) -> Result<(), Obstacle> {
        let state = self.state(region);
        let mut now = state.load(Ordering::Acquire);
        loop {
            if now & (DIRTY | LOCKED | UNSYNCED) != DIRTY {
                return Err(match now {
                    now if now & LOCKED != 0 => Obstacle::Locked,
                    now if now & UNSYNCED != 0 => Obstacle::Unsynced,
                    _ => Obstacle::Clean,
                });
            }
            assert!(now & WRITERS < WRITERS, "fewer writes are under way than a region counts");
            match state.compare_exchange_weak(
                now,
                (now + 1) | TOUCHED,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Ok(()),
                Err(changed) => now = changed,
            }
        }
    }

    #[inline]
    pub fn leave(&self, region: u64) {
        let before = self.state(region).fetch_sub(1, Ordering::AcqRel);
        assert!(before & WRITERS > 0, "a region that is left was entered");
    }

    /// Locks a region against writers; gives up when writes under way do not end in time, because
    /// their owner may be the thread that waits here.
    pub fn lock(&self, region: u64, timeout: Duration) -> bool {
        let state = self.state(region);
        if state.fetch_or(LOCKED, Ordering::AcqRel) & LOCKED != 0 {
            return false;
        }
        let start = Instant::now();
        while state.load(Ordering::Acquire) & WRITERS != 0
            && !is_planted(Mistake::LockedBesideWriters)
        {
            if start.elapsed() > timeout {
                state.fetch_and(!LOCKED, Ordering::AcqRel);
                return false;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        true
    }

    /// As [`lock`](Self::lock), and waits as long for another holder of the lock.
    pub fn lock_in_time(&self, region: u64, timeout: Duration) -> bool {
        let start = Instant::now();
        while !self.lock(region, timeout) {
            if start.elapsed() > timeout {
                return false;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        true
    }

    /// Unlocks a region and takes flags off it.
    pub fn unlock(&self, region: u64, done: u32) {
        let before = self.state(region).fetch_and(!(LOCKED | done), Ordering::AcqRel);
        assert!(
            before & LOCKED != 0 && before & WRITERS == 0,
            "I-RGN-1: no write is under way in a locked region"
        );
    }

    /// Says of a locked region that a copy begins. Returns whether that has to be from its first
    /// byte on.
    pub fn begin_copy(&self, region: u64) -> bool {
        let state = self.state(region);
        let mut now = state.load(Ordering::Acquire);
        while now & BEHIND != 0 {
            match state.compare_exchange_weak(
                now,
                now & !BEHIND | COPYING,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return true,
                Err(changed) => now = changed,
            }
        }
        false
    }

    /// Takes a region without writes under way, and without any since the last call, out of the
    /// dirty ones; its next writer marks it again.
    pub fn retire(&self, region: u64) -> bool {
        let state = self.state(region);
        let now = state.load(Ordering::Acquire);
        let writers = if is_planted(Mistake::RetiredBesideWriters) { 0 } else { WRITERS };
        if now & DIRTY == 0 || now & (writers | LOCKED | UNSYNCED | BEHIND | COPYING) != 0 {
            return false;
        }
        if now & TOUCHED != 0 {
            state.fetch_and(!TOUCHED, Ordering::AcqRel);
            return false;
        }
        state.compare_exchange(now, now & !DIRTY, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Takes over what another table knew of every region, but for the writers under way.
    pub fn take_over(&self, others: &Self) {
        debug_assert_eq!(self.shift, others.shift, "regions are taken over by ones of their size");
        for (own, theirs) in self.states.iter().zip(&others.states) {
            let now = theirs.load(Ordering::Acquire);
            let behind = if now & COPYING == 0 { 0 } else { BEHIND };
            own.store(now & !(WRITERS | LOCKED | COPYING) | behind, Ordering::Release);
        }
    }

    /// Returns the first region from `from` on that has one of the flags.
    pub fn next_with(&self, flags: u32, from: u64) -> Option<u64> {
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(self.states.len());
        self.states[from..]
            .iter()
            .position(|state| state.load(Ordering::Acquire) & flags != 0)
            .map(|at| (from + at) as u64)
    }

    /// Returns how many regions have one of the flags.
    pub fn count_with(&self, flags: u32) -> u64 {
        self.states.iter().filter(|state| state.load(Ordering::Relaxed) & flags != 0).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I-RGN-1
    #[test]
    fn i_rgn_1_a_region_is_locked_only_when_nobody_writes() {
        let regions = Regions::new(1 << 20, 1 << 16);
        assert_eq!(
            (regions.count(), regions.span(65_535, 2), regions.range(15)),
            (16, (0, 1), (983_040, 65_536))
        );
        assert_eq!(regions.enter(3), Err(Obstacle::Clean));
        regions.set_dirty(3);
        regions.enter(3).unwrap();
        assert!(!regions.lock(3, Duration::ZERO));
        regions.leave(3);
        assert!(regions.lock(3, Duration::ZERO));
        assert_eq!(regions.enter(3), Err(Obstacle::Locked));
        assert!(!regions.lock(3, Duration::ZERO));
        regions.unlock(3, 0);
        assert_eq!(regions.enter(3), Ok(()));
    }

    #[test]
    fn a_member_that_comes_while_a_region_is_copied_begins_another_copy() {
        let regions = Regions::new(1 << 20, 1 << 16);
        regions.set_dirty(2);
        regions.set(2, BEHIND);
        assert!(regions.lock(2, Duration::ZERO) && regions.begin_copy(2) && !regions.begin_copy(2));
        regions.unlock(2, 0);
        regions.enter(2).unwrap();
        regions.leave(2);
        assert!(
            !regions.retire(2) && !regions.retire(2),
            "what is copied by half stays in the log"
        );
        let other = Regions::new(1 << 20, 1 << 16);
        other.take_over(&regions);
        assert!(
            other.has(2, BEHIND) && !other.has(2, COPYING),
            "places of another layout are copied again"
        );
        regions.set(2, BEHIND);
        assert!(regions.lock(2, Duration::ZERO) && regions.begin_copy(2));
        regions.set(2, BEHIND);
        regions.unlock(2, COPYING);
        assert!(regions.has(2, BEHIND), "the member that came last is not forgotten");
    }

    #[test]
    fn a_region_is_retired_when_two_looks_in_a_row_find_it_idle() {
        let regions = Regions::new(1 << 20, 1 << 16);
        regions.set_dirty(0);
        regions.enter(0).unwrap();
        assert!(!regions.retire(0));
        regions.leave(0);
        assert!(!regions.retire(0), "it was touched");
        assert!(regions.retire(0));
        assert_eq!((regions.enter(0), regions.count_with(DIRTY)), (Err(Obstacle::Clean), 0));
        regions.set(5, UNSYNCED);
        assert_eq!(
            (regions.enter(5), regions.next_with(UNSYNCED, 0), regions.next_with(UNSYNCED, 6)),
            (Err(Obstacle::Unsynced), Some(5), None)
        );
    }
}
