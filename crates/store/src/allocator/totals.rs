//! How much is free, and what is said where it is too little.
//!
//! What asks for a total has all lots given up and all freed blocks collected, so it hears the truth
//! of one moment. What decides only whether something fits does so where it seems not to.

use super::{Allocator, Inner, SpaceClass};
use crate::Error;

/// Totals in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceTotals {
    /// All blocks between the ends.
    pub total: u64,
    /// Free ones, with those kept ahead and those about to become free.
    pub free: u64,
    /// Kept from data, and reserved for data that is still in the cache.
    pub reserve: u64,
    /// Number of free runs.
    pub runs: u64,
    /// The longest free run.
    pub run_max: u64,
}

impl Allocator {
    /// Returns the totals.
    pub fn totals(&self) -> SpaceTotals {
        let inner = self.give_up_lots();
        let unread_max = inner.unread.longest(true).map_or(0, |unread| unread.longest);
        SpaceTotals {
            total: inner.end,
            free: inner.free_or_pending(),
            reserve: inner.reserve + inner.reserved,
            runs: inner.by_start.len() as u64 + inner.unread.runs(),
            run_max: inner.by_len.last().map_or(0, |(len, _)| *len).max(unread_max),
        }
    }

    /// Returns how many blocks metadata may take, counting what is about to become free, and how
    /// many are reserved for cached writes.
    pub fn free_and_reserved(&self) -> (u64, u64) {
        let inner = self.give_up_lots();
        (inner.free_or_pending(), inner.reserved)
    }

    /// Returns how many blocks metadata may take at least, counting what is about to become free:
    /// without what the groups have, and without a lock.
    pub fn free_at_least(&self) -> u64 {
        self.free_at_least.blocks()
    }

    /// Returns whether `want.blocks` would be found, also counting what is about to become free.
    pub fn would_fit(&self, blocks: u64) -> bool {
        self.lacking(blocks) == 0
    }

    /// Returns how many blocks `blocks` more for data would lack, also counting what is about to
    /// become free.
    pub fn lacking(&self, blocks: u64) -> u64 {
        let lacking = |inner: &Inner| {
            (inner.reserve + inner.reserved + blocks).saturating_sub(inner.free_or_pending())
        };
        let first = lacking(&self.turn());
        if first == 0 { first } else { lacking(&self.give_up_lots()) }
    }
}

impl Inner {
    /// Checks what must hold between any two changes, as far as that costs nothing.
    #[inline]
    pub(super) fn check_totals(&self) {
        debug_assert!(
            self.reachable() + self.left + self.withheld + self.fenced() <= self.end,
            "I-SPC-1: {} free, {} kept ahead and {} pending blocks are more than {}",
            self.free + self.unread.free,
            self.kept,
            self.left,
            self.end
        );
        debug_assert_eq!(
            self.by_start.len(),
            self.by_len.len(),
            "I-SPC-1: every free run is in both indexes"
        );
        debug_assert_eq!(
            self.pending_free.is_empty(),
            self.left == 0,
            "I-SPC-2: {} blocks wait for a seal in {} runs",
            self.left,
            self.pending_free.len()
        );
        debug_assert_eq!(
            self.ahead.is_empty(),
            self.kept == 0,
            "I-SPC-4: {} blocks are kept ahead for {} files",
            self.kept,
            self.ahead.len()
        );
    }

    /// Free blocks, with those kept ahead and those that are not read, but for those of lots.
    pub(super) fn reachable(&self) -> u64 {
        self.free + self.kept + self.unread.free
    }

    /// Free blocks that `class` may take, with those kept ahead, but for those of lots.
    pub(super) fn available(&self, class: SpaceClass) -> u64 {
        self.check_totals();
        match class {
            SpaceClass::Data => self.reachable().saturating_sub(self.reserve + self.reserved),
            SpaceClass::Metadata => self.free + self.kept + self.unread.packed_free,
        }
    }

    /// Free blocks, also those that are about to become free, but for those of lots.
    pub(super) fn free_or_pending(&self) -> u64 {
        self.reachable() + self.left + self.withheld
    }

    pub(super) fn no_space(&self, blocks: u64, block_bytes: u64) -> Error {
        let free = self.reachable() * block_bytes;
        let reserve = (self.reserve + self.reserved) * block_bytes;
        let message = format!(
            "no space for {blocks} blocks of {block_bytes} bytes: {free} bytes are free, {reserve} \
             of them kept for metadata, deletion and cached writes; remove something or grow the \
             volume"
        );
        Error::no_space(blocks, message)
    }
}
