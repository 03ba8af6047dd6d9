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

use std::sync::Arc;

use bedplate_block::sync::{Condvar, Mutex, rank};

use crate::extent::Run;
use crate::{BlockNo, InodeNo, Lsn, Result};

mod claims;
mod fence;
mod filter;
mod groups;
mod packed;
mod packing;
mod pending;
#[cfg(test)]
mod tests;
mod totals;
mod turn;
mod unread;
mod whole;
mod withheld;
mod within;

pub use claims::{Claim, Claims, Owner, Shared};
use fence::Fence;
pub use fence::FenceTotals;
use filter::Filter;
use groups::{Found, Groups};
pub use totals::SpaceTotals;
use turn::{FreeAtLeast, Turn};
use unread::UnreadRegions;
pub(crate) use unread::{Closed, RegionSource, Unread};
pub use withheld::WithheldRun;
pub use within::{Elsewhere, PlacedRuns};

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
    /// The part of a file that the blocks are for: small requests for one part come from one lot.
    pub part: Option<u64>,
}

/// The free space of a volume. Any number of threads; its mutex is a leaf.
#[derive(Debug)]
pub struct Allocator {
    block_bytes: u64,
    /// Small requests take blocks here, and what records freed is noted here.
    groups: Groups,
    /// Where free runs of the indexes begin.
    starts: Arc<Filter>,
    /// The regions that are not in the indexes, of so many blocks in powers of two.
    closed: Arc<Filter>,
    region_shift: u32,
    free_at_least: FreeAtLeast,
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
    /// As `by_start`, for what has no lock.
    starts: Arc<Filter>,
    /// Blocks that lots got; some of them may be in use.
    granted: u64,
    /// While it is not 0 no lot is filled.
    lots_barred: u32,
    /// All lots together take one part in so many.
    lots_share: u64,
    /// How often the mutex was taken.
    #[cfg(any(test, feature = "forge"))]
    turns: u64,
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

/// Bits of the table of where free runs begin: at four times as many as there are in the indexes.
const STARTS_BITS_MAX: u32 = packing::OPEN_RUNS_MAX.ilog2() + 2;

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
        let starts = Arc::new(Filter::of(blocks, STARTS_BITS_MAX));
        by_start.keys().for_each(|start| starts.add(*start));
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
            lots_share: groups::LOTS_SHARE,
            starts: Arc::clone(&starts),
            ..Inner::default()
        };
        let (groups, closed) = (Groups::new(), inner.unread.filter());
        let (inner, given_back) = (Mutex::new(inner), Condvar::new());
        let free_at_least = FreeAtLeast::default();
        Self {
            block_bytes,
            groups,
            starts,
            closed,
            region_shift: 0,
            free_at_least,
            inner,
            given_back,
        }
    }

    /// Allocates as [`allocate_after`](Self::allocate_after), of what is free now.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn allocate_all(&self, want: AllocRequest) -> Result<Vec<Run>> {
        self.allocate_after(want, Lsn(0))
    }

    /// Allocates exactly `want.blocks`, all or nothing, each run by this order: the continuation of
    /// the goal or of the run before, else the tightest free run that holds all that is left, else
    /// the longest. Where it looks for them, the blocks are free that records up to `sealed` freed.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn allocate_after(&self, want: AllocRequest, sealed: Lsn) -> Result<Vec<Run>> {
        let mut inner = match self.find_in_lot(want, sealed) {
            Found::InLot(run) => return Ok(vec![run]),
            Found::Nowhere(inner) => inner,
        };
        loop {
            if let Some(runs) = inner.allocate_runs(want) {
                self.keep_reserve_whole(inner);
                return Ok(runs);
            }
            let (found, any) = self.find_more(inner, want.class);
            inner = found;
            if !any {
                return Err(inner.no_space(want.blocks, self.block_bytes));
            }
            // What groups had may have waited for no more than that.
            inner.release_sealed(sealed);
        }
    }

    /// Takes the mutex.
    fn turn(&self) -> Turn<'_> {
        #[cfg_attr(not(any(test, feature = "forge")), expect(unused_mut, reason = "not counted"))]
        let mut inner = self.inner.lock();
        #[cfg(any(test, feature = "forge"))]
        {
            inner.turns += 1;
        }
        Turn { inner, told: &self.free_at_least }
    }

    /// Gives blocks back at once: no record ever named them. As many as were reserved before are
    /// reserved again.
    pub fn free(&self, runs: &[Run], reserved: u64) {
        let mut inner = self.turn();
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
        let mut inner = self.turn();
        while inner.available(SpaceClass::Data) < blocks {
            let (found, any) = self.find_more(inner, SpaceClass::Data);
            inner = found;
            if !any {
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
        let mut inner = self.turn();
        inner.reserved =
            inner.reserved.checked_sub(blocks).expect("what is taken back was reserved");
    }

    /// Gives up what is kept ahead for a file: it was closed, cut or removed.
    pub fn drop_ahead(&self, ino: InodeNo) {
        self.turn().revoke(ino);
    }

    /// Keeps at least `blocks` from data, up to an eighth of the volume: the metadata region
    /// doubles when it is full, and must not fail to.
    pub fn keep_for_metadata(&self, blocks: u64) {
        let mut inner = self.turn();
        inner.reserve = inner.reserve.max(blocks.min(inner.end / 8));
        self.keep_reserve_whole(inner);
    }
}

impl Inner {
    /// Allocates all that is asked for, or nothing.
    fn allocate_runs(&mut self, want: AllocRequest) -> Option<Vec<Run>> {
        // From here on they are counted like all others; the reservation is renewed if they are not
        // found.
        self.reserved = self
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
            let Some(run) = self.allocate(rest) else {
                runs.drain(..).for_each(|run| self.insert(run));
                self.reserved += want.reserved;
                return None;
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
            runs.iter().for_each(|run| self.unread.note_own(*run));
        }
        if let (Some((ino, blocks)), Some(last)) = (want.ahead, runs.last()) {
            self.keep_ahead(ino, last.end(), blocks);
        }
        debug_assert_eq!(
            runs.iter().map(|run| run.blocks).sum::<u64>(),
            want.blocks,
            "an allocation gives all that it is asked for, or nothing"
        );
        self.pack_some();
        self.check_totals();
        Some(runs)
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
        self.starts.add(start);
        self.by_len.insert((len, start));
        self.free += len;
    }

    fn remove_run(&mut self, start: u64, len: u64) {
        assert!(
            self.by_start.remove(&start).is_some() && self.by_len.remove(&(len, start)),
            "I-SPC-1: both indexes agree"
        );
        self.starts.remove(start);
        self.free = self.free.checked_sub(len).expect("the free total is that of the free runs");
    }
}
