//! Allocation groups: threads that take and free blocks at the same time seldom meet at the
//! allocator's mutex.
//!
//! ```text
//!   small request for data ─► group of its part of the file ─► cut off the group's lot
//!                                        ▲ empty: one turn of the allocator's mutex fills it
//!   blocks that a record freed ─► group of their place ─► many are checked in one turn ─► the record is sealed ─► lot
//!                                                                     └─ too many, or too long ─► pending free
//!   space runs out, a fence, totals ─────────────────────► all groups give up what they hold
//! ```
//!
//! Requests for one part of a file share a group, so neighbours that several threads write at once
//! still lie side by side. A lot is filled with the runs that the next requests of its length would
//! have got one by one, and a request whose goal is free goes there first, in a lot or not.
//!
//! - I-SPC-10: a block of a lot is in no index and in no other lot. Blocks of lots belong to the free
//!   total, and to neither the reserve nor what is reserved; a crash or a close gives them back for
//!   nothing.
//! - I-SPC-11: no lot is filled between the moment at which all are asked for and the answer to what
//!   asked, so nothing is refused for blocks that lie in lots.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};

use bedplate_block::sync::{Mutex, rank};

use super::filter::slot;
use super::{AllocRequest, Allocator, Inner, SpaceClass, Turn};
use crate::extent::Run;
use crate::planted::{PlantedBug, planted};
use crate::{BlockNo, Lsn};

#[cfg(test)]
mod tests;

/// The fewest and the most groups.
const GROUPS_MIN: usize = 8;
const GROUPS_MAX: usize = 64;
/// Groups for each processor: threads that hash to one group are few then.
const GROUPS_OF_PROCESSOR: usize = 8;
/// The most blocks that a lot is filled with.
const LOT_BLOCKS_MAX: u64 = 256;
/// The most blocks that a group has, with those that records freed.
const GROUP_BLOCKS_MAX: u64 = 4 * LOT_BLOCKS_MAX;
/// The most blocks of a request that a lot serves.
const REQUEST_BLOCKS_MAX: u64 = 32;
/// A lot serves at least so many requests of the length that it is filled for.
const LOT_REQUESTS_MIN: u64 = 8;
/// All groups together have at most one part in so many of what is free for data.
pub(super) const LOTS_SHARE: u64 = 64;
/// So many freed runs go to the allocator in one turn.
const FREED_RUNS_MAX: usize = 64;
/// Blocks, as a power of two, for which one owner is noted.
const CHUNK_SHIFT: u32 = 6;
/// Bits of the table of owners.
const OWNER_BITS: u32 = 12;

/// The groups of an allocator.
#[derive(Debug)]
pub(super) struct Groups {
    all: Box<[Group]>,
    /// How many of them are in use, a power of two.
    count: AtomicUsize,
    owners: Owners,
}

/// Whole cache lines, in pairs, because processors fetch them so.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Group {
    /// Rank 9.9.
    held: Mutex<HeldByGroup, { rank::ALLOCATION_GROUP }>,
}

#[derive(Debug, Default)]
pub(super) struct HeldByGroup {
    lot: Lot,
    /// Freed by these records, and not looked at.
    freed: Vec<(Lsn, Run)>,
    /// Freed by these records: free for the lot once they are sealed (I-SPC-2).
    pending: VecDeque<(Lsn, Run)>,
    /// Blocks in `pending`.
    pending_blocks: u64,
    /// How many blocks the allocator counts as the group's; some of them may be in use.
    granted: u64,
}

/// Free blocks that one group hands out.
#[derive(Debug, Default)]
struct Lot {
    runs: VecDeque<Run>,
    blocks: u64,
}

/// Which group's lot has a block, as far as it is known: what is wrong costs a look, or a place
/// beside a neighbour.
#[derive(Debug)]
struct Owners(Box<[AtomicU8]>);

impl Owners {
    fn entry(&self, chunk: u64) -> &AtomicU8 {
        &self.0[slot(chunk, OWNER_BITS)]
    }

    fn note(&self, run: Run, group: usize) {
        let code = u8::try_from(group + 1).expect("there are at most 64 groups");
        for chunk in run.start.0 >> CHUNK_SHIFT..=(run.end() - 1) >> CHUNK_SHIFT {
            self.entry(chunk).store(code, Relaxed);
        }
    }

    fn of(&self, block: u64) -> Option<usize> {
        usize::from(self.entry(block >> CHUNK_SHIFT).load(Relaxed)).checked_sub(1)
    }

    /// Forgets the chunks that a run has left behind, and the last one where nothing of it is left.
    fn forget(&self, taken: Run, is_used_up: bool, group: usize) {
        let end = (taken.end() >> CHUNK_SHIFT) + u64::from(is_used_up);
        for chunk in taken.start.0 >> CHUNK_SHIFT..end {
            let entry = self.entry(chunk);
            if usize::from(entry.load(Relaxed)) == group + 1 {
                entry.store(0, Relaxed);
            }
        }
    }
}

impl Lot {
    /// Takes blocks from the first run that has so many, or from the one that begins at `goal`.
    fn cut(
        &mut self,
        blocks: u64,
        goal: Option<BlockNo>,
        owners: &Owners,
        group: usize,
    ) -> Option<Run> {
        let serves = |run: &Run| run.blocks >= blocks && goal.is_none_or(|goal| goal == run.start);
        let at = self.runs.iter().position(serves)?;
        let run = &mut self.runs[at];
        let taken = Run { start: run.start, blocks };
        *run = Run { start: BlockNo(taken.end()), blocks: run.blocks - blocks };
        let is_used_up = run.blocks == 0;
        if is_used_up {
            self.runs.remove(at);
        }
        self.blocks -= blocks;
        owners.forget(taken, is_used_up, group);
        Some(taken)
    }
}

impl HeldByGroup {
    /// Moves blocks to the lot that records up to `sealed` freed; returns whether there were any. They
    /// come first there, as the shortest free runs do anywhere, and in their order on the volume, so that
    /// what is written in order lies in order.
    fn recycle(&mut self, sealed: Lsn) -> bool {
        let sealed = if planted(PlantedBug::LotBeforeSealed) { Lsn(u64::MAX) } else { sealed };
        let count = self.pending.iter().take_while(|(lsn, _)| *lsn <= sealed).count();
        let mut free: Vec<Run> = self.pending.drain(..count).map(|(_, run)| run).collect();
        free.sort_unstable_by_key(|run| Reverse(run.start));
        for run in free {
            self.pending_blocks -= run.blocks;
            self.lot.blocks += run.blocks;
            match self.lot.runs.front_mut().filter(|next| next.start.0 == run.end()) {
                Some(next) => *next = Run { blocks: run.blocks + next.blocks, ..run },
                None => self.lot.runs.push_front(run),
            }
        }
        count > 0
    }

    /// Leaves out what the group has already: what is stored may name blocks twice that were damaged.
    fn forget_doubles(&mut self) {
        self.freed.sort_unstable_by_key(|(_, run)| run.start);
        let freed = &self.freed;
        let met = |run: &Run| {
            let before = freed.partition_point(|(_, other)| other.start.0 < run.end());
            before > 0 && freed[before - 1].1.end() > run.start.0
        };
        let is_met = freed.windows(2).any(|pair| pair[0].1.end() > pair[1].1.start.0)
            || self.lot.runs.iter().any(met)
            || self.pending.iter().any(|(_, run)| met(run));
        if is_met {
            self.leave_doubles_out();
        }
    }

    #[cold]
    fn leave_doubles_out(&mut self) {
        let mut freed: Vec<(Lsn, Run)> = Vec::with_capacity(self.freed.len());
        for (lsn, run) in self.freed.drain(..) {
            let meets = |other: &Run| other.start.0 < run.end() && run.start.0 < other.end();
            let waiting = self.pending.iter().chain(&freed).map(|(_, other)| other);
            if self.lot.runs.iter().chain(waiting).any(meets) {
                tell_double(run);
            } else {
                freed.push((lsn, run));
            }
        }
        self.freed = freed;
    }

    /// The last record that something waits for.
    fn waits_for(&self) -> Option<Lsn> {
        self.freed.iter().chain(&self.pending).map(|(lsn, _)| *lsn).max()
    }

    fn is_empty(&self) -> bool {
        self.freed.is_empty() && self.granted == 0
    }
}

impl Groups {
    pub(super) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let count = GROUPS_OF_PROCESSOR * processors;
        let count = count.next_power_of_two().clamp(GROUPS_MIN, GROUPS_MAX);
        Self {
            all: (0..count).map(|_| Group::default()).collect(),
            count: AtomicUsize::new(count),
            owners: Owners((0..1 << OWNER_BITS).map(|_| AtomicU8::new(0)).collect()),
        }
    }

    fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    fn of(&self, key: u64) -> usize {
        slot(key, GROUPS_MAX.ilog2()) & (self.count() - 1)
    }

    /// Takes blocks at a goal that lies in a lot.
    fn continued(&self, goal: BlockNo, blocks: u64) -> Option<Run> {
        let group = self.owners.of(goal.0)?;
        self.all[group].held.lock().lot.cut(blocks, Some(goal), &self.owners, group)
    }
}

impl AllocRequest {
    /// The part of a file that a request is for, where a lot may serve it.
    fn part_for_lot(&self) -> Option<u64> {
        let is_plain = self.class == SpaceClass::Data && self.ahead.is_none() && self.reserved == 0;
        let is_small = (1..=REQUEST_BLOCKS_MAX).contains(&self.blocks);
        self.part.filter(|_| is_plain && is_small)
    }
}

/// What is taken from groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    All,
    /// Without freed blocks that were not looked at, for which a region may have to be read: a commit
    /// of the tree asks, in the middle of which nothing can be read. It had them looked at before.
    InMemory,
}

/// What a look at the groups came to.
pub(super) enum Found<'a> {
    /// A lot had the blocks.
    InLot(Run),
    /// The allocator has to find them.
    Nowhere(Turn<'a>),
}

impl Allocator {
    /// Takes what is asked for from a lot, where one may serve it; fills an empty one, once the
    /// blocks are free that records up to `sealed` freed.
    pub(super) fn find_in_lot(&self, want: AllocRequest, sealed: Lsn) -> Found<'_> {
        let groups = &self.groups;
        let Some(part) = want.part_for_lot() else { return self.without_lot(sealed) };
        if let Some(goal) = want.goal {
            if let Some(run) = groups.continued(goal, want.blocks) {
                return Found::InLot(run);
            }
            if self.starts.may_have(goal.0) || self.closed.may_have(goal.0 >> self.region_shift) {
                return self.without_lot(sealed);
            }
        }
        let group = groups.of(part);
        let mut held = groups.all[group].held.lock();
        held.recycle(sealed);
        if let Some(run) = held.lot.cut(want.blocks, None, &groups.owners, group) {
            return Found::InLot(run);
        }
        let mut inner = self.turn();
        inner.release_sealed(sealed);
        inner.fill(&mut held, want.blocks, groups.count() as u64);
        held.lot.runs.iter().for_each(|run| groups.owners.note(*run, group));
        match held.lot.cut(want.blocks, None, &groups.owners, group) {
            Some(run) => Found::InLot(run),
            None => Found::Nowhere(inner),
        }
    }

    fn without_lot(&self, sealed: Lsn) -> Found<'_> {
        let mut inner = self.turn();
        inner.release_sealed(sealed);
        Found::Nowhere(inner)
    }

    /// Notes blocks that a record freed; many are looked at in one turn.
    pub(super) fn note_pending(&self, lsn: Lsn, run: Run) {
        let group = &self.groups.all[self.groups.of(run.start.0 >> CHUNK_SHIFT)];
        let mut held = group.held.lock();
        held.freed.push((lsn, run));
        if held.freed.len() >= FREED_RUNS_MAX {
            self.look_at_freed(&mut held);
        }
    }

    fn look_at_freed(&self, held: &mut HeldByGroup) {
        held.forget_doubles();
        self.turn().look_at_freed(held, self.groups.count() as u64);
    }

    /// Makes the blocks free that records up to `sealed` freed, in lots or not. Returns whether there
    /// were any.
    pub(super) fn release_in_groups(&self, sealed: Lsn) -> bool {
        let mut any = false;
        for group in &self.groups.all {
            let mut held = group.held.lock();
            if !held.freed.is_empty() {
                self.look_at_freed(&mut held);
            }
            any |= held.recycle(sealed);
        }
        any
    }

    /// As [`release_in_groups`](Self::release_in_groups), of what was looked at.
    pub(super) fn recycle_in_groups(&self, sealed: Lsn) {
        for group in &self.groups.all {
            group.held.lock().recycle(sealed);
        }
    }

    /// The last record that the groups' blocks wait for.
    pub(super) fn groups_wait_for(&self) -> Option<Lsn> {
        self.groups.all.iter().filter_map(|group| group.held.lock().waits_for()).max()
    }

    /// Has all groups give up what they hold; no lot is filled until the guard is dropped, or waits
    /// (I-SPC-11).
    pub(super) fn give_up_lots(&self) -> Turn<'_> {
        self.take_from_groups(Reach::All)
    }

    fn take_from_groups(&self, reach: Reach) -> Turn<'_> {
        self.turn().lots_barred += 1;
        for group in &self.groups.all {
            let mut held = group.held.lock();
            if !held.is_empty() {
                held.forget_doubles();
                self.turn().take_all_back(&mut held, reach);
            }
        }
        let mut inner = self.turn();
        inner.lots_barred -= 1;
        assert!(inner.granted == 0, "I-SPC-11: {} blocks are in lots still", inner.granted);
        inner
    }

    /// Finds more blocks for what found too few: those of lots, else those that are withheld, for
    /// which it waits. `false`: there are none.
    pub(super) fn find_more<'a>(
        &'a self,
        mut inner: Turn<'a>,
        class: SpaceClass,
    ) -> (Turn<'a>, bool) {
        if inner.granted > 0 {
            drop(inner);
            let reach = match class {
                SpaceClass::Data => Reach::All,
                SpaceClass::Metadata => Reach::InMemory,
            };
            return (self.take_from_groups(reach), true);
        }
        let any = self.wait_for_withheld(&mut inner);
        (inner, any)
    }

    /// Has lots given up once metadata takes of the reserve: what lots hold would be data's, and then
    /// it would be data that took it (I-SPC-3).
    pub(super) fn keep_reserve_whole(&self, inner: Turn<'_>) {
        let is_broken = inner.granted > 0 && inner.reachable() < inner.reserve + inner.reserved;
        drop(inner);
        if is_broken {
            drop(self.take_from_groups(Reach::InMemory));
        }
    }

    /// Sets how many of the groups are in use, a power of two, and what part of the free space all
    /// lots together may take, one in so many; `None`: as serves best.
    pub fn limit_lots(&self, lots: Option<(usize, u64)>) {
        let mut inner = self.give_up_lots();
        if let Some((groups, share)) = lots {
            let groups = groups.next_power_of_two().clamp(1, self.groups.all.len());
            self.groups.count.store(groups, Relaxed);
            inner.lots_share = share.max(1);
        }
    }

    /// Returns how often the allocator's mutex was taken.
    #[cfg(any(test, feature = "forge"))]
    pub fn turns(&self) -> u64 {
        self.inner.lock().turns
    }
}

/// Says that blocks were freed that are free.
pub(super) fn tell_double(run: Run) {
    tracing::error!(
        "blocks {} to {} leave a file and were free, at least in part: run a check",
        run.start.0,
        run.end() - 1
    );
}

impl Inner {
    /// How many blocks a group may have.
    fn group_max(&self, groups: u64) -> u64 {
        let share = self.available(SpaceClass::Data) / self.lots_share.saturating_mul(groups);
        if self.lots_barred > 0 { 0 } else { share.min(GROUP_BLOCKS_MAX) }
    }

    /// Fills a lot with the runs that requests of so many blocks would get one by one.
    fn fill(&mut self, held: &mut HeldByGroup, blocks: u64, groups: u64) {
        self.take_lot_back(held);
        // The rest of what it may have is for blocks that records free.
        let most = (self.group_max(groups) / 2).min(LOT_BLOCKS_MAX);
        if most < LOT_REQUESTS_MIN * blocks {
            return;
        }
        let (class, part) = (SpaceClass::Data, None);
        let want = AllocRequest { goal: None, blocks, ahead: None, class, reserved: 0, part };
        let mut rest = most - most % blocks;
        while rest > 0 {
            let Some(at) = self.place(want, blocks) else { break };
            let free = self.by_start[&at];
            let taken = (free - free % blocks).min(rest);
            if taken == 0 {
                break;
            }
            held.lot.runs.push_back(self.take(at, taken));
            held.lot.blocks += taken;
            rest -= taken;
        }
        self.count_granted(held);
        self.pack_some();
        self.check_totals();
    }

    /// Lets a group keep what it freed, as far as it may; what is beyond waits here for its records.
    fn look_at_freed(&mut self, held: &mut HeldByGroup, groups: u64) {
        let most = match self.fence.is_some() || self.freed.is_some() {
            true => 0,
            false => self.group_max(groups),
        };
        for (lsn, run) in std::mem::take(&mut held.freed) {
            if !self.may_leave(lsn, run) {
                continue;
            }
            let is_short = run.blocks <= REQUEST_BLOCKS_MAX;
            let fits = held.lot.blocks + held.pending_blocks + run.blocks <= most;
            if is_short && fits && !self.is_free_in(run) {
                held.pending_blocks += run.blocks;
                held.pending.push_back((lsn, run));
            } else {
                self.keep_pending(lsn, run);
            }
        }
        self.count_granted(held);
        self.check_totals();
    }

    /// Counts what a group has now.
    fn count_granted(&mut self, held: &mut HeldByGroup) {
        let now = held.lot.blocks + held.pending_blocks;
        debug_assert_eq!(
            now,
            held.lot
                .runs
                .iter()
                .chain(held.pending.iter().map(|(_, run)| run))
                .map(|run| run.blocks)
                .sum::<u64>(),
            "I-SPC-10: a group has what it counts"
        );
        self.granted = (self.granted + now)
            .checked_sub(held.granted)
            .expect("I-SPC-10: what a group had was granted");
        held.granted = now;
    }

    /// Makes free what is left of a lot.
    fn take_lot_back(&mut self, held: &mut HeldByGroup) {
        held.lot.runs.drain(..).for_each(|run| self.insert_released(run));
        held.lot.blocks = 0;
        self.count_granted(held);
        self.check_totals();
    }

    /// Takes back what a group has.
    fn take_all_back(&mut self, held: &mut HeldByGroup, reach: Reach) {
        for (lsn, run) in held.pending.drain(..) {
            self.keep_pending(lsn, run);
        }
        held.pending_blocks = 0;
        if reach == Reach::All {
            for (lsn, run) in held.freed.drain(..) {
                if self.may_leave(lsn, run) {
                    self.keep_pending(lsn, run);
                }
            }
        }
        self.take_lot_back(held);
    }
}
