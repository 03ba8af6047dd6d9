//! A relayout as a value: two layouts, the address up to which the second counts, and what waits in
//! the scratch area between them. Pure; what moves addresses is `relayout/`.

use std::ops::Range;

use super::{Extent, Layout, Run, order, walk};

/// Where the part of every member begins that a relayout may use for a step under way.
pub(crate) const SCRATCH_START: u64 = (3 << 20) + (512 << 10);
/// How large that part is.
pub(crate) const SCRATCH_BYTES: u64 = 512 << 10;
/// The most that one step moves, because writes to it wait meanwhile.
pub(crate) const STEP_BYTES_MAX: u64 = 4 << 20;
const _: () = assert!(
    SCRATCH_START.is_multiple_of(4096) && SCRATCH_BYTES.is_multiple_of(4096),
    "the scratch area is whole blocks of every device"
);
const _: () = assert!(
    SCRATCH_BYTES <= STEP_BYTES_MAX,
    "a step that goes by the scratch area is no larger than any other may be"
);

/// The end from which a relayout walks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the first address on.
    Upward,
    /// From the last address on.
    Downward,
}

/// Where an address lives between two layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Where it came from.
    Now,
    /// In the scratch area.
    Staged,
    /// Where it goes.
    Next,
}

/// A relayout under way: a second layout beside the first, and the address up to which it counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relayout {
    /// Where addresses go.
    pub next: Layout,
    /// The order in which they go.
    pub direction: Direction,
    /// How far they went: what lies on the side where the walk began is in the next layout.
    pub position: u64,
    /// How many bytes from the position on are in the scratch area.
    pub staged_bytes: u64,
    /// Where a step lies whose new places hold its own old bytes.
    pub scratch: Layout,
    /// Steps begin and end at multiples of this, or at the end.
    pub grain_bytes: u64,
    /// The most that one step moves.
    pub step_bytes_max: u64,
    /// Nothing moves until it is resumed.
    pub paused: bool,
    /// The parity log of the layout lies where that of the next one does at first: it turned round
    /// an odd number of times.
    pub logs_swapped: bool,
    /// Pieces of a grain go one where the other was: the position, and what is in the scratch area,
    /// count them in that order, and the first of the scratch area is the hand.
    pub in_cycles: bool,
}

impl Relayout {
    /// Returns how many addresses both layouts have: those that move, and those that the volume has
    /// meanwhile.
    #[must_use]
    pub fn span_bytes(&self, layout: &Layout) -> u64 {
        layout.size_bytes().min(self.next.size_bytes())
    }

    /// Returns the addresses that are in the scratch area.
    #[must_use]
    pub fn staged(&self) -> Range<u64> {
        debug_assert!(
            self.direction == Direction::Upward || self.staged_bytes <= self.position,
            "what is staged below {} are no {} bytes",
            self.position,
            self.staged_bytes
        );
        match self.direction {
            Direction::Upward => self.position..self.position + self.staged_bytes,
            Direction::Downward => self.position - self.staged_bytes..self.position,
        }
    }

    /// Returns how many bytes are in the next layout.
    #[must_use]
    pub fn moved_bytes(&self, layout: &Layout) -> u64 {
        match self.direction {
            Direction::Upward => self.position,
            Direction::Downward => self.span_bytes(layout) - self.position,
        }
    }

    /// Says whether all are in the next layout.
    #[must_use]
    pub fn is_over(&self, layout: &Layout) -> bool {
        self.moved_bytes(layout) == self.span_bytes(layout)
    }

    /// Turns around: where addresses came from is where they go. Nothing moves by that.
    pub(crate) fn turn(&mut self, layout: &mut Layout) {
        let staged = self.staged();
        self.logs_swapped ^= self.has_parity(layout);
        std::mem::swap(layout, &mut self.next);
        (self.direction, self.position) = match self.direction {
            Direction::Upward => (Direction::Downward, staged.end),
            Direction::Downward => (Direction::Upward, staged.start),
        };
    }

    /// Says whether the rest of a walk from one end to the other overwrites nothing that is still
    /// needed.
    pub(crate) fn is_walkable(&self, layout: &Layout) -> bool {
        let walk = walk::Walk { direction: self.direction, grain_bytes: self.grain_bytes };
        self.is_over(layout)
            || walk::is_possible(
                layout,
                &self.next,
                self.span_bytes(layout),
                self.scratch.size_bytes(),
                walk,
            )
    }

    /// Says where an address lives.
    #[inline]
    pub(crate) fn side(&self, at: u64) -> Side {
        let staged = self.staged();
        match self.direction {
            _ if staged.contains(&at) => Side::Staged,
            Direction::Upward if at < staged.start => Side::Next,
            Direction::Downward if at >= staged.end => Side::Next,
            _ => Side::Now,
        }
    }

    /// Says whether it comes from a RAID-5 or goes to one.
    pub(crate) fn has_parity(&self, layout: &Layout) -> bool {
        [layout, &self.next].into_iter().any(Layout::has_parity)
    }

    /// Resolves an address.
    pub(crate) fn locate(&self, layout: &Layout, at: u64) -> Run {
        let staged = self.staged();
        if staged.contains(&at) {
            return self.scratch.locate(at - staged.start).at_most(staged.end - at);
        }
        let (low, high) = match self.direction {
            Direction::Upward => (&self.next, layout),
            Direction::Downward => (layout, &self.next),
        };
        if at < staged.start { low.locate(at).at_most(staged.start - at) } else { high.locate(at) }
    }

    /// Returns how it stands once a range from the position on is where it goes.
    pub(crate) fn arrived(&self, range: &Range<u64>) -> Self {
        debug_assert!(
            match self.direction {
                Direction::Upward => range.start == self.position && range.end >= self.position,
                Direction::Downward => range.end == self.position && range.start <= self.position,
            },
            "a relayout goes on where it stands: {range:?} at {}",
            self.position
        );
        let position = if self.direction == Direction::Upward { range.end } else { range.start };
        Self { position, staged_bytes: 0, ..self.clone() }
    }

    /// Returns the range of the next step of at most `len` bytes.
    pub(crate) fn step(&self, layout: &Layout, len: u64) -> Range<u64> {
        debug_assert!(self.grain_bytes > 0, "a step moves at least a grain");
        let len = (len - len % self.grain_bytes).max(self.grain_bytes);
        match self.direction {
            Direction::Upward => self.position..(self.position + len).min(self.span_bytes(layout)),
            Direction::Downward => {
                let end = self.position.next_multiple_of(self.grain_bytes);
                end.saturating_sub(len)..self.position
            }
        }
    }

    /// Returns what makes it one that this software does not begin.
    pub(crate) fn fault(&self, layout: &Layout) -> Option<String> {
        let span = self.span_bytes(layout);
        let fits = match self.direction {
            Direction::Upward => self.position <= span && self.staged_bytes <= span - self.position,
            Direction::Downward => self.position <= span && self.staged_bytes <= self.position,
        };
        let hand = if self.in_cycles { self.grain_bytes } else { 0 };
        if !fits || self.staged_bytes > self.scratch.size_bytes().saturating_sub(hand) {
            return Some(format!(
                "a relayout at {} of {span} with {} bytes in the scratch area is not possible",
                self.position, self.staged_bytes
            ));
        }
        if self.grain_bytes == 0
            || self.step_bytes_max == 0
            || self.grain_bytes > 1 << 40
            || self.step_bytes_max > 1 << 40
        {
            return Some(format!(
                "steps of {} to {} bytes are not possible",
                self.grain_bytes, self.step_bytes_max
            ));
        }
        let aligned = |at: u64| at.is_multiple_of(self.grain_bytes) || at == span;
        if !aligned(self.staged().start) || !aligned(self.staged().end) {
            return Some(format!(
                "a relayout at {} does not stand between steps of {} bytes",
                self.position, self.grain_bytes
            ));
        }
        if self.in_cycles
            && (self.scratch.size_bytes() / 2 < self.grain_bytes
                || span / self.grain_bytes > order::PIECES_MAX)
        {
            return Some(format!(
                "{} pieces by way of {} bytes are not possible",
                span / self.grain_bytes,
                self.scratch.size_bytes()
            ));
        }
        if let Some(fault) = self.scratch_fault() {
            return Some(fault);
        }
        if let Some(rows) = walk::parity_rows(layout, &self.next)
            .filter(|rows| self.grain_bytes > 1 && !self.grain_bytes.is_multiple_of(*rows))
        {
            return Some(format!(
                "steps of {} bytes would part rows of a RAID-5 ({rows} bytes)",
                self.grain_bytes
            ));
        }
        self.next.fault().or_else(|| self.scratch.fault())
    }

    /// Returns what makes the scratch area one that cannot be.
    fn scratch_fault(&self) -> Option<String> {
        let parts_pieces = match &self.scratch {
            Layout::Extent(_) => false,
            Layout::Stripe(stripe) => {
                self.scratch.copies() > 1 || !stripe.unit_bytes().is_multiple_of(self.grain_bytes)
            }
            _ => true,
        };
        if self.in_cycles && parts_pieces {
            return Some(format!(
                "pieces of {} bytes do not each lie at one place of the scratch area",
                self.grain_bytes
            ));
        }
        let outside = |extent: &Extent| {
            extent.start < SCRATCH_START
                || extent.start.saturating_add(extent.len) > SCRATCH_START + SCRATCH_BYTES
        };
        if let Some(extent) = self.scratch.extents().iter().find(|extent| outside(extent)) {
            return Some(format!(
                "the scratch area begins at byte {} of member {}",
                extent.start, extent.member
            ));
        }
        if self.scratch.has_parity() {
            return Some("a scratch area is no RAID-5".to_owned());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Stripe;

    fn stripe(columns: u16) -> Layout {
        Layout::Stripe(Stripe::new(
            4096,
            (0..columns)
                .map(|member| Layout::Extent(Extent { member, start: 4 << 20, len: 64 << 10 }))
                .collect(),
        ))
    }

    #[test]
    fn an_address_lives_at_one_place_and_stays_there_when_the_walk_turns() {
        let mut layout = stripe(2);
        let scratch =
            Layout::Extent(Extent { member: 0, start: SCRATCH_START, len: SCRATCH_BYTES });
        let (position, staged_bytes) = (24_576, 12_288);
        let mut relayout = Relayout {
            next: stripe(3),
            direction: Direction::Upward,
            position,
            staged_bytes,
            scratch,
            grain_bytes: 12_288,
            step_bytes_max: 1 << 20,
            paused: false,
            logs_swapped: false,
            in_cycles: false,
        };
        assert_eq!(relayout.fault(&layout), None);
        let all = |relayout: &Relayout, layout: &Layout| {
            (0..32)
                .map(|unit| relayout.locate(layout, unit * 4096))
                .map(|run| (run.len, run.copies()[0]))
                .collect::<Vec<_>>()
        };
        let before = all(&relayout, &layout);
        assert_eq!(
            (before[0].1.member, before[2].1.member, before[6].1.offset),
            (0, 2, SCRATCH_START)
        );
        relayout.turn(&mut layout);
        assert_eq!(
            (all(&relayout, &layout), relayout.position, relayout.staged()),
            (before.clone(), 36_864, 24_576..36_864)
        );
        assert_eq!(relayout.fault(&layout), None);
        relayout.turn(&mut layout);
        assert_eq!((all(&relayout, &layout), relayout.position), (before, position));
        assert_eq!(relayout.step(&layout, 30_000), 24_576..49_152);
        relayout.position += 1;
        assert!(relayout.fault(&layout).unwrap().contains("between steps"));
    }
}
