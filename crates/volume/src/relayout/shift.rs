//! One step: a range of addresses moves from where it lives to another place, durably, and then
//! lives there.

use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;

use bedplate_block::{AlignedBuf, Operation};

use crate::io::plan::{self, Piece, handle_of};
use crate::io::{LayoutEpoch, RelayoutStepState, VolumeIo};
use crate::layout::{Copy, Locate, Order, Run};
use crate::planted::{Mistake, is_planted};
use crate::{Layout, Relayout, Result};

/// How much is copied at once.
const CHUNK_BYTES: u64 = 4 << 20;
const _: () = assert!(
    CHUNK_BYTES.is_multiple_of(4096),
    "what is moved at once is whole blocks of every device"
);
/// How long writes to a step's range wait at most for operations of older epochs.
const DRAIN_TIMEOUT_MAX: Duration = Duration::from_secs(1);

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stepped {
    /// So many bytes live elsewhere now, the scratch area included.
    Moved(u64),
    /// Operations under way did not end in time.
    Busy,
    /// Everything is in the next layout.
    Over,
    /// There is nothing to do: no relayout, or one that is paused.
    Idle,
}

/// How a step goes.
enum StepMethod<'a> {
    /// From a layout to another, each with the address of its first byte.
    Straight { from: (&'a Layout, u64), to: (&'a Layout, u64) },
    /// Piece by piece in their order, of which it is a range.
    InCycles(&'a Order),
}

/// A step that was chosen.
struct Step<'a> {
    range: Range<u64>,
    method: StepMethod<'a>,
    /// How the relayout stands afterwards.
    after: Relayout,
}

impl Relayout {
    fn choose<'a>(&'a self, layout: &'a Layout, order: Option<&'a Order>) -> Step<'a> {
        if let Some(order) = order {
            let (range, after) = self.next_in_cycles(order, self.span_bytes(layout));
            return Step { range, method: StepMethod::InCycles(order), after };
        }
        let collect = |range: Range<u64>| {
            let from =
                if self.staged_bytes > 0 { (&self.scratch, range.start) } else { (layout, 0) };
            Step {
                method: StepMethod::Straight { from, to: (&self.next, 0) },
                after: self.arrived(&range),
                range,
            }
        };
        if self.staged_bytes > 0 {
            return collect(self.staged());
        }
        let small = self.step(layout, self.scratch.size_bytes().min(self.step_bytes_max));
        if let Some(range) = [self.step(layout, self.step_bytes_max), small.clone()]
            .into_iter()
            .find(|range| !overlaps((layout, 0), (&self.next, 0), range))
        {
            return collect(range);
        }
        let after = Self { staged_bytes: small.end - small.start, ..self.clone() };
        Step {
            method: StepMethod::Straight { from: (layout, 0), to: (&self.scratch, small.start) },
            range: small,
            after,
        }
    }
}

/// Bytes of a member, and the address of the volume that lives there. In order: by member, then by
/// offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    member: u16,
    offset: u64,
    len: u64,
    address: u64,
}

impl Place {
    fn end(&self) -> u64 {
        self.offset + self.len
    }

    /// Returns by how much addresses are ahead of offsets: the same for two places that meet where
    /// their bytes belong together.
    fn shift(&self) -> u64 {
        self.address.wrapping_sub(self.offset)
    }
}

/// Returns the places of a range, sorted. In rows of a RAID-5 these are whole rows, and `elsewhere`
/// replaces the address of each.
fn places((layout, base): (&Layout, u64), range: &Range<u64>, elsewhere: u64) -> Vec<Place> {
    let (mut at, mut places) = (range.start, Vec::new());
    if let Some(raid5) = layout.rows() {
        let len = raid5.unit_bytes();
        for row in
            (range.start - base) / raid5.row_bytes()..(range.end - base).div_ceil(raid5.row_bytes())
        {
            let copies = (0..raid5.columns().len()).map(|column| raid5.copy(column, row));
            places.extend(copies.map(|copy| Place {
                member: copy.member,
                offset: copy.offset,
                len,
                address: elsewhere.wrapping_add(copy.offset),
            }));
        }
        places.sort_unstable();
        return places;
    }
    while at < range.end {
        let run = layout.locate(at - base).at_most(range.end - at);
        places.extend(run.copies().iter().map(|copy| Place {
            member: copy.member,
            offset: copy.offset,
            len: run.len,
            address: at,
        }));
        at += run.len;
    }
    places.sort_unstable();
    places
}

/// Says whether the new places of a range hold bytes of that range that belong elsewhere.
fn overlaps(from: (&Layout, u64), to: (&Layout, u64), range: &Range<u64>) -> bool {
    // No row is a copy of another, so no place of one is the same as any.
    let (old, new) = (places(from, range, 1 << 62), places(to, range, 1 << 63));
    let mut first = 0;
    for place in new {
        while first < old.len()
            && (old[first].member, old[first].end()) <= (place.member, place.offset)
        {
            first += 1;
        }
        let meets = |other: &&Place| other.member == place.member && other.offset < place.end();
        // The same address at the same place is no overlap.
        if old[first..].iter().take_while(meets).any(|other| other.shift() != place.shift()) {
            return true;
        }
    }
    false
}

impl VolumeIo {
    /// Returns the range that the next step copies; `None` where there is none, or nothing in it has
    /// another copy.
    pub fn next_step(&self) -> Option<Range<u64>> {
        let epoch = self.epochs.peek();
        let relayout = epoch.relayout.as_ref().filter(|relayout| {
            epoch.redundancy.is_some()
                && !relayout.in_cycles
                && !relayout.paused
                && !relayout.is_over(&epoch.layout)
        })?;
        Some(relayout.choose(&epoch.layout, None).range)
    }

    /// Takes the next step, in pieces of at most `chunk_bytes`; where copies are to be compared
    /// before, only one whose range was.
    ///
    /// # Errors
    /// When the range cannot be copied: it lives where it did. When the labels cannot say where it
    /// lives: nothing is written to the volume any more.
    pub fn relayout_step(&self, chunk_bytes: u64, compares: bool) -> Result<Stepped> {
        let epoch = self.epochs.get();
        let Some(relayout) = epoch.relayout.clone() else { return Ok(Stepped::Idle) };
        if relayout.is_over(&epoch.layout) {
            return Ok(Stepped::Over);
        }
        if relayout.paused {
            return Ok(Stepped::Idle);
        }
        let layout = epoch.layout.clone();
        let order = epoch.order.clone();
        let step = relayout.choose(&layout, order.as_deref());
        let compared = self.relayout_step_state.lock().compared.clone();
        if compares && !relayout.in_cycles && compared.as_ref() != Some(&step.range) {
            return Ok(Stepped::Busy); // turned round meanwhile
        }
        // Queues may have writes under way that their owners do not look after now.
        epoch.parities().for_each(|parity| self.help(parity));
        drop(epoch);
        let timeout = self.relayout_step_state.lock().timeout;
        self.epochs.change(|epoch| {
            epoch.barred = Some(step.range.clone()).filter(|_| !is_planted(Mistake::WritesNotHeld));
        });
        if !self.epochs.drain(timeout) {
            self.epochs.change(|epoch| epoch.barred = None);
            self.relayout_step_state.lock().timeout = (timeout * 2).min(DRAIN_TIMEOUT_MAX);
            return Ok(Stepped::Busy);
        }
        let moved = self.shift(&step, chunk_bytes.min(CHUNK_BYTES));
        let arrived = moved.is_ok();
        self.epochs.change(|epoch| {
            epoch.barred = None;
            if arrived {
                epoch.relayout = Some(step.after.clone());
            }
        });
        *self.relayout_step_state.lock() = RelayoutStepState {
            last_error: moved.as_ref().err().map(ToString::to_string),
            ..RelayoutStepState::default()
        };
        moved.map(|()| Stepped::Moved(step.range.end - step.range.start))
    }

    /// Copies a range that is barred to writes, and lets the labels say where it lives.
    fn shift(&self, step: &Step<'_>, chunk_bytes: u64) -> Result<()> {
        let epoch = self.epochs.get();
        let (start, len) = (step.range.start, step.range.end - step.range.start);
        if let Some(redundancy) = &epoch.redundancy {
            // What a member that is away misses of the copy is in the log as what it misses of
            // writes.
            let (first, last) = redundancy.regions.span(start, len);
            if !is_planted(Mistake::CopyNotMarked) {
                self.mark(&epoch, redundancy, first, last)?;
            }
        }
        loop {
            let overwritten = self.group_state.overwritten_count();
            self.carry_step(&epoch, step, chunk_bytes)?;
            // What was copied from a member that was overwritten is copied again from another: the
            // places where it went hold nothing that is needed.
            if !self.is_overwritten_since(&epoch, overwritten)? {
                break;
            }
        }
        if !is_planted(Mistake::LabelsBeforeFlush) {
            self.flush_in(&epoch)?;
        }
        // I-RLY-3
        if let Some(parity) = epoch.parity_at(start).filter(|_| !is_planted(Mistake::RowsStayInLog))
        {
            self.forget_rows(parity, &step.range)?;
        }
        assert!(
            epoch.barred.as_ref() == Some(&step.range) || is_planted(Mistake::WritesNotHeld),
            "I-RLY-2: nothing is written to what was copied"
        );
        self.say(step)
    }

    /// Copies what a step moves to where it goes.
    fn carry_step(
        &self,
        epoch: &LayoutEpoch,
        step: &Step<'_>,
        chunk_bytes: u64,
    ) -> bedplate_block::Result<()> {
        match step.method {
            StepMethod::Straight { from, to } => {
                // I-RLY-1: of other ranges that was proven before the walk began.
                assert!(
                    !overlaps(from, to, &step.range),
                    "I-RLY-1: a step overwrites nothing that lives there"
                );
                self.carry(epoch, &step.range, to, chunk_bytes)
            }
            StepMethod::InCycles(order) => self.carry_pieces(epoch, order, step, chunk_bytes),
        }
    }

    /// Copies a range to its place.
    fn carry(
        &self,
        epoch: &LayoutEpoch,
        range: &Range<u64>,
        (to, base): (&Layout, u64),
        chunk_bytes: u64,
    ) -> bedplate_block::Result<()> {
        if let Some(raid5) = to.rows() {
            return self.copy_to_rows(epoch, raid5, range, chunk_bytes);
        }
        let arrival = Arrival { epoch, to, base };
        let mut buf = AlignedBuf::zeroed((range.end - range.start).min(chunk_bytes) as usize);
        let mut at = range.start;
        while at < range.end {
            let part = &mut buf[..(range.end - at).min(chunk_bytes) as usize];
            self.copy_to(&arrival, part, at)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Copies the pieces of a step that live elsewhere after it.
    fn carry_pieces(
        &self,
        epoch: &LayoutEpoch,
        order: &Order,
        step: &Step<'_>,
        chunk_bytes: u64,
    ) -> bedplate_block::Result<()> {
        let (grain, concerned) = (step.after.grain_bytes, order.concerned(&step.range));
        let now: Vec<Copy> = concerned.iter().map(|at| epoch.locate(*at).copies()[0]).collect();
        let then: Vec<Copy> = concerned
            .iter()
            .map(|at| order.locate(&step.after, &epoch.layout, *at).copies()[0])
            .collect();
        let moves: Vec<usize> = (0..concerned.len()).filter(|at| now[*at] != then[*at]).collect();
        // I-RLY-1: of other pieces that follows from their order.
        let held: HashSet<Copy> = now.iter().copied().collect();
        assert!(
            moves.iter().all(|at| !held.contains(&then[*at])),
            "I-RLY-1: a step overwrites nothing that lives there"
        );
        let handles = self.group_state.handles();
        for moves in moves.chunks((chunk_bytes / grain).max(1) as usize) {
            let mut buf = AlignedBuf::zeroed(moves.len() * grain as usize);
            let mut shares = Vec::new();
            for (at, (from, part)) in
                moves.iter().zip((0..).step_by(grain as usize).zip(buf.chunks_mut(grain as usize)))
            {
                let (address, place) = (concerned[*at], then[*at]);
                self.read_in(epoch, part, address)?;
                let handle = handle_of(&handles, place.member)
                    .filter(|handle| handle.takes_writes() && handle.is_active());
                let handle = handle.ok_or_else(|| self.no_copy(Operation::Write, address))?;
                plan::add(
                    &mut shares,
                    handle,
                    Piece { offset: place.offset, from, len: part.len() },
                );
            }
            self.write_shares(shares, &buf)?;
        }
        Ok(())
    }

    /// Lets the labels say where a range lives. Some may say so and others not when that fails:
    /// both places hold the same, and stay so, because nothing is written any more.
    fn say(&self, step: &Step<'_>) -> Result<()> {
        let mut lost = false;
        let said = self.group_state.change(|config| {
            config.volumes[self.ordinal].relayout = Some(step.after.clone());
            // A member that left while it was written to may have had the only copy of it: where
            // the range lives now there is another.
            lost = !config.survives_without(&[]) && !is_planted(Mistake::LostCopyCounts);
            if lost { Err(self.no_copy_of(config, step.range.start).into()) } else { Ok(()) }
        });
        if let Some(error) = said.as_ref().err().filter(|_| !lost) {
            let detail = format!("the labels cannot say how far the relayout is: {error}");
            self.latch(&self.error(
                bedplate_block::ErrorKind::Io,
                Operation::Write,
                Some(step.range.start),
                detail,
            ));
        }
        said
    }

    /// Copies a part of a step to all places that do not hold it yet.
    fn copy_to(
        &self,
        arrival: &Arrival<'_>,
        part: &mut [u8],
        at: u64,
    ) -> bedplate_block::Result<()> {
        let (epoch, handles, mut shares) = (arrival.epoch, self.group_state.handles(), Vec::new());
        let rows = epoch.parity_at(at).is_some();
        plan::runs(arrival, at, 0, part.len(), |run, address, from, len| {
            let now = epoch.locate(address);
            let good = run.copies().iter().any(|copy| {
                handle_of(&handles, copy.member).is_some_and(|handle| handle.is_active())
            });
            // What a place of a RAID-5 holds is its own, even where it is the same.
            for copy in run.copies().iter().filter(|copy| rows || !now.copies().contains(copy)) {
                if let Some(handle) =
                    handle_of(&handles, copy.member).filter(|handle| handle.takes_writes())
                {
                    plan::add(&mut shares, handle, Piece { offset: copy.offset, from, len });
                }
            }
            if good { Ok(()) } else { Err(self.no_copy(Operation::Write, address)) }
        })?;
        if shares.is_empty() {
            return Ok(());
        }
        self.read_in(epoch, part, at)?;
        self.write_shares(shares, part)
    }
}

/// The new places of addresses, in runs that go no further than those of the present ones.
struct Arrival<'a> {
    epoch: &'a LayoutEpoch,
    to: &'a Layout,
    base: u64,
}

impl Locate for Arrival<'_> {
    fn locate(&self, at: u64) -> Run {
        self.to.locate(at - self.base).at_most(self.epoch.locate(at).len)
    }
}
