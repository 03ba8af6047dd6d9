//! The allocator: free space, which is what no extent covers, in memory.
//!
//! ```text
//!            claim (mount)                 allocate
//!   free ───────────────────▶ used ◀──────────────── free ◀──┐ revoked when space runs out
//!    ▲                          │                     │ ▲    │
//!    │ release_sealed(sealed)   │ release_after(lsn)  └─┴─ ahead: kept for one file's next append
//!    └─────── pending free ◀─────┘
//! ```
//!
//! - I-SPC-1: free runs neither overlap nor touch; every free run is in both indexes.
//! - I-SPC-2: blocks that a record freed stay out of reach until that record is sealed, so that
//!   replay never meets them with other data.
//! - I-SPC-3: data never takes the reserve: a full volume can still delete, log and grow its
//!   metadata.
//! - I-SPC-5: blocks reserved for cached writes are found when those reach the device: nothing else
//!   takes the last of them but metadata.
//! - I-SPC-4: blocks kept ahead for a file belong to the free total and to no extent; a crash or a
//!   close gives them back for nothing.

use std::collections::{BTreeMap, BTreeSet};

use bedplate_block::sync::{Condvar, Mutex, rank};

use crate::extent::Run;
use crate::{BlockNo, Error, InodeNo, Lsn, Result};

mod claims;
mod fence;
mod packed;
mod packing;
#[cfg(test)]
mod tests;
mod unread;
mod whole;
mod withheld;

pub use claims::{Claim, Claims, Owner, Shared};
use fence::Fence;
pub use fence::FenceTotals;
use unread::UnreadRegions;
pub(crate) use unread::{Closed, RegionSource, Unread};
pub use withheld::WithheldRun;

/// What an allocation is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpaceClass {
    /// File data: leaves the reserve alone.
    Data,
    /// Metadata: may take the last block.
    Metadata,
}

/// Asks for blocks.
#[derive(Debug, Clone, Copy)]
pub struct AllocRequest {
    /// Where the blocks would continue what the file has, if somewhere.
    pub goal: Option<BlockNo>,
    /// How many blocks.
    pub blocks: u64,
    /// How many further blocks behind them to keep ahead for this file's next append.
    pub ahead: Option<(InodeNo, u64)>,
    /// What for.
    pub class: SpaceClass,
    /// How many of the blocks were reserved before.
    pub reserved: u64,
}

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

/// The free space of a volume. Any number of threads; its mutex is a leaf.
#[derive(Debug)]
pub struct Allocator {
    block_bytes: u64,
    /// A leaf.
    inner: Mutex<Inner, { rank::ALLOCATOR }>,
    /// Withheld blocks were given back.
    given_back: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    /// First block after the last.
    end: u64,
    /// Free runs: length by start.
    by_start: BTreeMap<u64, u64>,
    /// Free runs: (length, start).
    by_len: BTreeSet<(u64, u64)>,
    /// Blocks in `by_start`.
    free: u64,
    /// Blocks in `ahead`.
    kept: u64,
    /// Blocks in `pending_free`.
    left: u64,
    /// Blocks that are withheld for a while.
    withheld: u64,
    /// Blocks that cached writes will need.
    reserved: u64,
    reserve: u64,
    /// What is kept for a file's next append.
    ahead: BTreeMap<InodeNo, Run>,
    /// Freed by a record that is not sealed yet: (record, start, length).
    pending_free: BTreeSet<(Lsn, u64, u64)>,
    /// What is not in the indexes: not read, or packed.
    unread: UnreadRegions,
    /// So many runs are in the indexes before regions are packed; and where the next is looked for.
    open_runs_max: usize,
    pack_from: u64,
    /// Where the volume is to end, while it becomes smaller.
    fence: Option<Fence>,
    /// What became free lately, where that is noted.
    freed: Option<Vec<Run>>,
}

/// Returns how many of `blocks` are kept from data: 1/64, 1 MiB to 256 MiB.
fn reserve_of(blocks: u64, block_bytes: u64) -> u64 {
    debug_assert!(
        block_bytes.is_power_of_two() && block_bytes <= 1 << 20,
        "the reserve is counted in whole blocks of at most 1 MiB, not of {block_bytes} bytes"
    );
    (blocks / 64).clamp((1 << 20) / block_bytes, (256 << 20) / block_bytes)
}

impl Allocator {
    /// Makes the space of a volume of `blocks` blocks in which only `free` (sorted, apart) is free.
    fn new(block_size: u32, blocks: u64, free: impl Iterator<Item = Run>) -> Self {
        let block_bytes = u64::from(block_size);
        let by_start: BTreeMap<u64, u64> = free.map(|run| (run.start.0, run.blocks)).collect();
        let by_len = by_start.iter().map(|(start, len)| (*len, *start)).collect();
        let free = by_start.values().sum();
        debug_assert!(free <= blocks, "I-SPC-1: {free} blocks are free in a volume of {blocks}");
        debug_assert!(
            by_start.last_key_value().is_none_or(|(start, len)| start + len <= blocks),
            "I-SPC-1: the last free run ends within the volume of {blocks} blocks"
        );
        let inner = Inner {
            end: blocks,
            by_start,
            by_len,
            free,
            reserve: reserve_of(blocks, block_bytes),
            open_runs_max: packing::OPEN_RUNS_MAX,
            ..Inner::default()
        };
        Self { block_bytes, inner: Mutex::new(inner), given_back: Condvar::new() }
    }

    /// Allocates exactly `want.blocks`, all or nothing, each run by this order: the continuation of
    /// the goal or of the run before, else the tightest free run that holds all that is left, else
    /// the longest.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn allocate_all(&self, want: AllocRequest) -> Result<Vec<Run>> {
        let mut inner = self.inner.lock();
        // From here on they are counted like all others; the reservation is renewed if they are not
        // found.
        inner.reserved = inner
            .reserved
            .checked_sub(want.reserved)
            .expect("I-SPC-5: what an allocation claims was reserved");
        debug_assert!(
            want.reserved <= want.blocks,
            "no more blocks were reserved than are asked for: {want:?}"
        );
        let mut runs: Vec<Run> = Vec::new();
        let mut rest = want;
        while rest.blocks > 0 {
            let Some(run) = inner.allocate(rest) else {
                runs.drain(..).for_each(|run| inner.insert(run));
                if self.wait_for_withheld(&mut inner) {
                    rest = want;
                    continue;
                }
                inner.reserved += want.reserved;
                return Err(inner.no_space(want.blocks, self.block_bytes));
            };
            debug_assert!(
                run.blocks > 0 && run.blocks <= rest.blocks,
                "an allocation gives no more than it is asked for: {run:?} of {}",
                rest.blocks
            );
            rest = AllocRequest {
                goal: Some(BlockNo(run.end())),
                blocks: rest.blocks - run.blocks,
                ..rest
            };
            runs.push(run);
        }
        if want.class == SpaceClass::Metadata {
            runs.iter().for_each(|run| inner.unread.note_own(*run));
        }
        if let (Some((ino, blocks)), Some(last)) = (want.ahead, runs.last()) {
            inner.keep_ahead(ino, last.end(), blocks);
        }
        debug_assert_eq!(
            runs.iter().map(|run| run.blocks).sum::<u64>(),
            want.blocks,
            "an allocation gives all that it is asked for, or nothing"
        );
        inner.pack_some();
        inner.check_totals();
        Ok(runs)
    }

    /// Gives blocks back at once: no record ever named them. As many as were reserved before are
    /// reserved again.
    pub fn free(&self, runs: &[Run], reserved: u64) {
        let mut inner = self.inner.lock();
        for run in runs {
            inner.unread.forget_own(*run);
            inner.insert(*run);
        }
        inner.reserved += reserved;
        inner.check_totals();
    }

    /// Promises blocks to data that is not on its way yet.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn reserve_blocks(&self, blocks: u64) -> Result<()> {
        let mut inner = self.inner.lock();
        while inner.available(SpaceClass::Data) < blocks {
            if !self.wait_for_withheld(&mut inner) {
                return Err(inner.no_space(blocks, self.block_bytes));
            }
        }
        inner.reserved += blocks;
        debug_assert!(
            blocks == 0 || inner.reserve + inner.reserved <= inner.reachable(),
            "I-SPC-5: {} reserved blocks are free, beside a reserve of {}",
            inner.reserved,
            inner.reserve
        );
        Ok(())
    }

    /// Takes back a reservation: the data is gone.
    pub fn release_reserved(&self, blocks: u64) {
        let mut inner = self.inner.lock();
        inner.reserved =
            inner.reserved.checked_sub(blocks).expect("what is taken back was reserved");
    }

    /// Gives blocks back once the record that freed them is sealed (I-SPC-2).
    pub fn release_after(&self, lsn: Lsn, run: Run) {
        let mut inner = self.inner.lock();
        if !inner.unread.may_be_of_file(run, inner.end) {
            return;
        }
        assert!(
            run.blocks > 0 && run.end() <= inner.end,
            "blocks of the volume leave a file: {run:?}"
        );
        inner.keep_run(run);
        debug_assert!(
            inner.unread.is_stored() || inner.last_free_in(run).is_none(),
            "I-SPC-2: {run:?} is out of reach until record {lsn:?} is sealed"
        );
        inner.left += run.blocks;
        assert!(
            inner.pending_free.insert((lsn, run.start.0, run.blocks)),
            "blocks leave a file once"
        );
        inner.check_totals();
    }

    /// Makes the blocks free that records up to `sealed` freed. Returns whether there were any.
    pub fn release_sealed(&self, sealed: Lsn) -> bool {
        let mut inner = self.inner.lock();
        let before = inner.left;
        while let Some(&(lsn, start, blocks)) =
            inner.pending_free.first().filter(|(lsn, ..)| *lsn <= sealed)
        {
            inner.pending_free.remove(&(lsn, start, blocks));
            inner.left -= blocks;
            let run = Run { start: BlockNo(start), blocks };
            inner.insert_released(run);
            inner.note_freed(run);
        }
        debug_assert!(
            inner.pending_free.first().is_none_or(|(lsn, ..)| *lsn > sealed),
            "I-SPC-2: what waits, waits for a record behind {sealed:?}"
        );
        inner.check_totals();
        inner.left != before
    }

    /// Returns the last record that must be sealed before every released block is free; `None` when
    /// none is waiting.
    pub fn waiting_for(&self) -> Option<Lsn> {
        self.inner.lock().pending_free.last().map(|(lsn, ..)| *lsn)
    }

    /// Gives up what is kept ahead for a file: it was closed, cut or removed.
    pub fn drop_ahead(&self, ino: InodeNo) {
        self.inner.lock().revoke(ino);
    }

    /// Keeps at least `blocks` from data, up to an eighth of the volume: the metadata region
    /// doubles when it is full, and must not fail to.
    pub fn keep_for_metadata(&self, blocks: u64) {
        let mut inner = self.inner.lock();
        inner.reserve = inner.reserve.max(blocks.min(inner.end / 8));
    }

    /// Returns the totals.
    pub fn totals(&self) -> SpaceTotals {
        let inner = self.inner.lock();
        let unread_max = inner.unread.longest(true).map_or(0, |unread| unread.longest);
        SpaceTotals {
            total: inner.end,
            free: inner.reachable() + inner.left + inner.withheld,
            reserve: inner.reserve + inner.reserved,
            runs: inner.by_start.len() as u64 + inner.unread.runs(),
            run_max: inner.by_len.last().map_or(0, |(len, _)| *len).max(unread_max),
        }
    }

    /// Returns how many blocks metadata may take, counting what is about to become free, and how
    /// many are reserved for cached writes.
    pub fn free_and_reserved(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.reachable() + inner.left + inner.withheld, inner.reserved)
    }

    /// Returns whether `want.blocks` would be found, also counting what is about to become free.
    pub fn would_fit(&self, blocks: u64) -> bool {
        self.lacking(blocks) == 0
    }

    /// Returns how many blocks `blocks` more for data would lack, also counting what is about to
    /// become free.
    pub fn lacking(&self, blocks: u64) -> u64 {
        let inner = self.inner.lock();
        (inner.reserve + inner.reserved + blocks)
            .saturating_sub(inner.reachable() + inner.left + inner.withheld)
    }
}

impl Inner {
    /// Checks what must hold between any two changes, as far as that costs nothing.
    #[inline]
    fn check_totals(&self) {
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

    /// Free blocks, with those kept ahead and those that are not read.
    fn reachable(&self) -> u64 {
        self.free + self.kept + self.unread.free
    }

    /// Free blocks that `class` may take, with those kept ahead.
    fn available(&self, class: SpaceClass) -> u64 {
        self.check_totals();
        match class {
            SpaceClass::Data => self.reachable().saturating_sub(self.reserve + self.reserved),
            SpaceClass::Metadata => self.free + self.kept + self.unread.packed_free,
        }
    }

    fn allocate(&mut self, want: AllocRequest) -> Option<Run> {
        let blocks = want.blocks.min(self.available(want.class));
        if blocks == 0 {
            return None;
        }
        let left = self.reachable() - blocks;
        assert!(
            want.class == SpaceClass::Metadata || left >= self.reserve + self.reserved,
            "I-SPC-3, I-SPC-5: data leaves the reserve and what is reserved"
        );
        if let Some(run) = self.take_ahead(want, blocks) {
            return Some(run);
        }
        let closed = match want.class {
            SpaceClass::Data => self.unread.free,
            SpaceClass::Metadata => self.unread.packed_free,
        };
        if self.by_start.is_empty() && closed == 0 {
            self.revoke_all();
        }
        if let Some(run) = self.take_packed(want, blocks) {
            return Some(run);
        }
        let at = self.place(want, blocks)?;
        Some(self.take(at, blocks))
    }

    /// Takes from what is kept for this file where the goal lies in it. Appends that run at once
    /// may arrive out of order: what lies before the goal becomes free and is found by the one it
    /// continues.
    fn take_ahead(&mut self, want: AllocRequest, blocks: u64) -> Option<Run> {
        let ((ino, _), goal) = (want.ahead?, want.goal?.0);
        let kept =
            self.ahead.get(&ino).copied().filter(|run| (run.start.0..run.end()).contains(&goal))?;
        self.ahead.remove(&ino);
        self.kept -= kept.blocks;
        debug_assert!(
            self.continuation(kept.start).is_none(),
            "I-SPC-4: what is kept ahead is in no free run: {kept:?}"
        );
        let taken = Run { start: BlockNo(goal), blocks: blocks.min(kept.end() - goal) };
        if goal > kept.start.0 {
            self.insert(Run { start: kept.start, blocks: goal - kept.start.0 });
        }
        let rest = Run { start: BlockNo(taken.end()), blocks: kept.end() - taken.end() };
        if rest.blocks > 0 {
            self.kept += rest.blocks;
            self.ahead.insert(ino, rest);
        }
        debug_assert!(
            taken.blocks > 0 && taken.end() <= kept.end(),
            "what is taken of {kept:?} lies in it: {taken:?}"
        );
        Some(taken)
    }

    /// The place `goal` if it is free.
    fn continuation(&self, goal: BlockNo) -> Option<u64> {
        let (start, len) = self.by_start.range(..=goal.0).next_back()?;
        (goal.0 < start + len).then_some(goal.0)
    }

    /// The last free part of a run.
    fn last_free_in(&self, run: Run) -> Option<Run> {
        let (start, len) =
            self.by_start.range(..run.end()).next_back().map(|(start, len)| (*start, *len))?;
        let (from, to) = (start.max(run.start.0), (start + len).min(run.end()));
        debug_assert!(len > 0, "I-SPC-1: no free run is empty, as that at {start}");
        (from < to).then(|| Run { start: BlockNo(from), blocks: to - from })
    }

    /// The start of the shortest run of at least `blocks`; of equals the first on the volume.
    fn best(&self, blocks: u64) -> Option<u64> {
        debug_assert!(blocks > 0, "a run is looked for that holds something");
        self.by_len.range((blocks, 0)..).next().map(|(_, start)| *start)
    }

    /// Takes up to `blocks` from the free run around `at`, beginning there.
    fn take(&mut self, at: u64, blocks: u64) -> Run {
        let (&start, &len) =
            self.by_start.range(..=at).next_back().expect("the place was found in a free run");
        assert!(
            at < start + len && blocks > 0,
            "{blocks} blocks at {at} are asked of the free run at {start} of {len}"
        );
        let taken = Run { start: BlockNo(at), blocks: blocks.min(start + len - at) };
        self.remove_run(start, len);
        for rest in [
            Run { start: BlockNo(start), blocks: at - start },
            Run { start: BlockNo(taken.end()), blocks: start + len - taken.end() },
        ] {
            if rest.blocks > 0 {
                self.add_run(rest.start.0, rest.blocks);
            }
        }
        debug_assert!(
            self.continuation(taken.start).is_none(),
            "I-SPC-1: what was taken is not free any more: {taken:?}"
        );
        taken
    }

    /// Keeps up to `blocks` from `at` on for the next append of `ino`; scarce space is not kept.
    fn keep_ahead(&mut self, ino: InodeNo, at: u64, blocks: u64) {
        if self.ahead.get(&ino).is_some_and(|run| run.start.0 == at) {
            return;
        }
        self.revoke(ino);
        let scarce = self.available(SpaceClass::Data) < (self.end / 16).max(blocks);
        if blocks == 0 || scarce || self.continuation(BlockNo(at)).is_none() {
            return;
        }
        let free = self.free + self.kept;
        let run = self.take(at, blocks);
        self.kept += run.blocks;
        assert!(self.free + self.kept == free, "I-SPC-4: what is kept ahead is still free");
        self.ahead.insert(ino, run);
    }

    fn revoke(&mut self, ino: InodeNo) {
        if let Some(run) = self.ahead.remove(&ino) {
            debug_assert!(self.kept >= run.blocks, "I-SPC-4: {run:?} was counted as kept ahead");
            self.kept -= run.blocks;
            self.insert(run);
        }
    }

    fn revoke_all(&mut self) {
        let kept: u64 = std::mem::take(&mut self.kept);
        debug_assert_eq!(
            kept,
            self.ahead.values().map(|run| run.blocks).sum::<u64>(),
            "I-SPC-4: what is kept is kept for a file"
        );
        for run in std::mem::take(&mut self.ahead).into_values() {
            self.insert(run);
        }
    }

    /// Adds free blocks to the indexes and joins them with their neighbours there (I-SPC-1).
    fn insert_open(&mut self, run: Run) {
        let (mut start, mut end) = (run.start.0, run.end());
        if let Some((&before, &len)) = self.by_start.range(..=start).next_back() {
            assert!(
                before + len <= start,
                "blocks are freed once: {run:?} meets the free run at {before} of {len}"
            );
            if before + len == start {
                self.remove_run(before, len);
                start = before;
            }
        }
        if let Some((&after, &len)) = self.by_start.range(start..).next() {
            assert!(
                end <= after,
                "blocks are freed once: {run:?} meets the free run at {after} of {len}"
            );
            if end == after {
                self.remove_run(after, len);
                end = after + len;
            }
        }
        self.add_run(start, end - start);
    }

    fn add_run(&mut self, start: u64, len: u64) {
        debug_assert!(
            len > 0 && start + len <= self.end,
            "a free run lies within the volume: {len} blocks at {start} of {}",
            self.end
        );
        debug_assert!(
            !self.by_start.contains_key(&start) && !self.by_len.contains(&(len, start)),
            "I-SPC-1: a free run is in each index once: {len} blocks at {start}"
        );
        self.by_start.insert(start, len);
        self.by_len.insert((len, start));
        self.free += len;
    }

    fn remove_run(&mut self, start: u64, len: u64) {
        assert!(
            self.by_start.remove(&start).is_some() && self.by_len.remove(&(len, start)),
            "I-SPC-1: both indexes agree"
        );
        self.free = self.free.checked_sub(len).expect("the free total is that of the free runs");
    }

    fn no_space(&self, blocks: u64, block_bytes: u64) -> Error {
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
