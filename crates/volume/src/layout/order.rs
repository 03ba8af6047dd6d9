//! Where addresses change places with each other: the order in which pieces of a volume go, one
//! after the other. Pure.
//!
//! ```text
//!   chain   a place that nothing lies on ◄─ x1 ◄─ x2 ◄─ x3          each goes where the one before it was
//!   cycle   (x0) ◄─ x1 ◄─ x2 ◄─ x0                                  x0 waits in the scratch area, the *hand*, until all others have gone
//! ```
//! From a concatenation to a stripe of the same members nearly every byte goes where another still
//! lies, so no walk from one end to the other is possible ([`walk`](super::walk)). But where a
//! piece goes lies one piece at most, so all of them are chains and cycles, and along those a walk
//! goes: a piece's *rank* takes the part that its address has in other relayouts. Ranks follow from
//! both layouts alone; labels name only how far they went.

use std::collections::HashMap;
use std::ops::Range;

use super::{Copy, Direction, Layout, Leaf, Relayout, Run};

/// How many pieces there may be: of each two numbers are kept.
pub(crate) const PIECES_MAX: u64 = 1 << 27;
/// What a piece is at most; it divides the units of a scratch area, so that a piece there has one
/// place.
const PIECE_BYTES_MAX: u64 = 64 << 10;
/// No piece.
const NONE: u32 = u32::MAX;
const _: () = assert!(
    PIECES_MAX < NONE as u64,
    "every piece of an order has a number that stands for itself"
);

/// In which order pieces of `grain_bytes` go.
#[derive(Debug)]
pub(crate) struct Order {
    grain_bytes: u64,
    /// By piece.
    ranks: Box<[u32]>,
    /// By rank.
    pieces: Box<[u32]>,
    /// The ranks after the chains and after each cycle.
    ends: Box<[u32]>,
}

/// Returns the size of the largest pieces that each lie at one place before and after; nothing
/// where there are none of a block.
pub(crate) fn grain(from: &Layout, to: &Layout, span: u64, block: u64) -> Option<u64> {
    let bounds = |layout: &Layout| match layout {
        Layout::Concat(concat) => concat.parts().iter().map(Layout::size_bytes).collect(),
        Layout::Stripe(stripe) => vec![stripe.unit_bytes()],
        _ => Vec::new(),
    };
    let all = bounds(from).into_iter().chain(bounds(to)).chain([span]);
    let grain = all.fold(PIECE_BYTES_MAX, |grain, bound| {
        if bound == 0 { grain } else { 1 << grain.trailing_zeros().min(bound.trailing_zeros()) }
    });
    (grain >= block.max(512)).then_some(grain)
}

impl Order {
    /// Returns the order of a relayout that goes by one; nothing where its layouts have none.
    pub fn of(layout: &Layout, relayout: &Relayout) -> Option<Self> {
        let (span, grain) = (relayout.span_bytes(layout), relayout.grain_bytes);
        // It begins upward: a walk downward has turned.
        match relayout.direction {
            Direction::Upward => Self::find(layout, &relayout.next, span, grain),
            Direction::Downward => Self::find(&relayout.next, layout, span, grain),
        }
    }

    /// Returns the order in which pieces go from one layout of single copies to another, up to an
    /// address.
    pub fn find(from: &Layout, to: &Layout, span: u64, grain: u64) -> Option<Self> {
        let single = |layout: &Layout| layout.copies() == 1 && !layout.is_redundant();
        if !single(from)
            || !single(to)
            || grain == 0
            || !span.is_multiple_of(grain)
            || span / grain > PIECES_MAX
        {
            return None;
        }
        Some(Self::along(&followers(from, to, span, grain)?, grain))
    }

    /// Makes the order from the piece that goes to the place of each piece.
    fn along(followers: &[u32], grain_bytes: u64) -> Self {
        let count = followers.len();
        let (mut pieces, mut ends, mut follows) =
            (Vec::with_capacity(count), Vec::new(), vec![false; count]);
        followers
            .iter()
            .filter(|follower| **follower != NONE)
            .for_each(|follower| follows[*follower as usize] = true);
        let all = || 0..count as u32;
        pieces.extend(all().filter(|piece| followers[*piece as usize] == *piece));
        for head in all().filter(|piece| !follows[*piece as usize]) {
            let mut piece = head;
            while piece != NONE {
                pieces.push(piece);
                piece = followers[piece as usize];
            }
        }
        ends.push(pieces.len() as u32);
        let mut gone = follows;
        gone.fill(false);
        pieces.iter().for_each(|piece| gone[*piece as usize] = true);
        for first in all() {
            let mut piece = first;
            while !gone[first as usize] {
                // The first of a cycle goes last.
                piece = followers[piece as usize];
                gone[piece as usize] = true;
                pieces.push(piece);
            }
            if ends.last() != Some(&(pieces.len() as u32)) {
                ends.push(pieces.len() as u32);
            }
        }
        debug_assert_eq!(pieces.len(), count, "a relayout in cycles moves every piece once");
        debug_assert!(ends.is_sorted(), "cycles follow each other: {ends:?}");
        let mut ranks = vec![0; count];
        (0..).zip(&pieces).for_each(|(rank, piece)| ranks[*piece as usize] = rank);
        Self { grain_bytes, ranks: ranks.into(), pieces: pieces.into(), ends: ends.into() }
    }

    /// Returns the ranks of the cycle within which a position lies; nothing between cycles and in
    /// chains.
    fn cycle(&self, position: u64) -> Option<Range<u32>> {
        let rank = (position / self.grain_bytes) as u32;
        let next = self.ends.partition_point(|end| *end < rank);
        (next > 0 && self.ends[next] != rank).then(|| self.ends[next - 1]..self.ends[next])
    }

    /// Returns the piece that waits in the hand while the walk stands at a position.
    fn hand(&self, position: u64) -> Option<u32> {
        self.cycle(position).map(|cycle| self.pieces[cycle.end as usize - 1])
    }

    /// Returns where a piece stands in the walk.
    fn position_of(&self, piece: u32) -> u64 {
        u64::from(self.ranks[piece as usize]) * self.grain_bytes
    }

    /// Returns the addresses of the pieces that a step concerns: those in its range, and those in
    /// the hand before and after it.
    pub fn concerned(&self, range: &Range<u64>) -> Vec<u64> {
        let ranks =
            (range.start / self.grain_bytes) as usize..(range.end / self.grain_bytes) as usize;
        let hands = [range.start, range.end].into_iter().filter_map(|position| self.hand(position));
        let mut pieces: Vec<u32> = self.pieces[ranks].iter().copied().chain(hands).collect();
        pieces.sort_unstable();
        pieces.dedup();
        pieces.into_iter().map(|piece| u64::from(piece) * self.grain_bytes).collect()
    }

    /// Says whether a step concerns any of so many bytes from an address on.
    pub fn concerns(&self, range: &Range<u64>, at: u64, len: u64) -> bool {
        let hands = [self.hand(range.start), self.hand(range.end)];
        let mut pieces = (at / self.grain_bytes) as u32
            ..(at + len).div_ceil(self.grain_bytes).min(self.pieces.len() as u64) as u32;
        pieces.any(|piece| range.contains(&self.position_of(piece)) || hands.contains(&Some(piece)))
    }

    /// Returns the range of the next step: what the scratch area holds beside the hand, and no more
    /// than the rest of a cycle that is begun.
    pub fn step(&self, relayout: &Relayout, span: u64) -> Range<u64> {
        let (grain, position) = (self.grain_bytes, relayout.position);
        let room = (relayout.scratch.size_bytes() - grain).min(relayout.step_bytes_max.max(grain))
            / grain
            * grain;
        let limit = self
            .cycle(position)
            .map_or(0..span, |cycle| u64::from(cycle.start) * grain..u64::from(cycle.end) * grain);
        match relayout.direction {
            Direction::Upward => position..(position + room).min(limit.end),
            Direction::Downward => position.saturating_sub(room).max(limit.start)..position,
        }
    }

    /// Resolves an address of a volume between two layouts.
    #[inline]
    pub fn locate(&self, relayout: &Relayout, layout: &Layout, at: u64) -> Run {
        let (staged, piece) = (relayout.staged(), (at / self.grain_bytes) as u32);
        let (position, within) = (self.position_of(piece), at % self.grain_bytes);
        let in_hand = |end| self.hand(end) == Some(piece);
        let run = if in_hand(staged.start) || (relayout.staged_bytes > 0 && in_hand(staged.end)) {
            relayout.scratch.locate(within)
        } else if staged.contains(&position) {
            relayout.scratch.locate(self.grain_bytes + (position - staged.start) + within)
        } else {
            let has_gone = (position < staged.start) == (relayout.direction == Direction::Upward);
            if has_gone { relayout.next.locate(at) } else { layout.locate(at) }
        };
        run.at_most(self.grain_bytes - within)
    }
}

impl Relayout {
    /// Returns the range of the next step in cycles, and how the relayout stands afterwards.
    pub(crate) fn next_in_cycles(&self, order: &Order, span: u64) -> (Range<u64>, Self) {
        if self.staged_bytes == 0 {
            let range = order.step(self, span);
            let staged_bytes = range.end - range.start;
            return (range, Self { staged_bytes, ..self.clone() });
        }
        let range = self.staged();
        let after = self.arrived(&range);
        (range, after)
    }
}

/// Returns for every piece the one that goes where it is; nothing where pieces do not change places
/// as wholes.
fn followers(from: &Layout, to: &Layout, span: u64, grain: u64) -> Option<Vec<u32>> {
    let leaves = to.leaves();
    let mut remainders: HashMap<u16, u64> = HashMap::new();
    let mut place = |layout: &Layout, at: u64| {
        let run = layout.locate(at);
        let copy = run.copies()[0];
        let remainder = copy.offset % grain;
        (run.len >= grain && *remainders.entry(copy.member).or_insert(remainder) == remainder)
            .then_some(copy)
    };
    (0..span)
        .step_by(usize::try_from(grain).ok()?)
        .map(|at| {
            place(to, at)?;
            Some(
                address_at(&leaves, place(from, at)?)
                    .filter(|at| *at < span)
                    .map_or(NONE, |at| (at / grain) as u32),
            )
        })
        .collect()
}

/// Returns the address that lies at a place.
fn address_at(leaves: &[Leaf<'_>], place: Copy) -> Option<u64> {
    let holds = |extent: &crate::Extent| {
        extent.member == place.member
            && (extent.start..extent.start + extent.len).contains(&place.offset)
    };
    leaves
        .iter()
        .find(|leaf| holds(&leaf.extent))
        .map(|leaf| leaf.address(place.offset - leaf.extent.start).0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{SCRATCH_BYTES, SCRATCH_START};
    use crate::{Concat, Extent, Stripe};

    const GRAIN: u64 = 4096;

    fn extents(members: impl IntoIterator<Item = u16>, len: u64) -> Vec<Layout> {
        members
            .into_iter()
            .map(|member| Layout::Extent(Extent { member, start: 4 << 20, len }))
            .collect()
    }

    fn concat(members: u16, len: u64) -> Layout {
        Layout::Concat(Concat::new(extents(0..members, len)))
    }

    fn stripe(unit: u64, members: u16, len: u64) -> Layout {
        Layout::Stripe(Stripe::new(unit, extents(0..members, len)))
    }

    fn relayout(next: &Layout, room: u64) -> Relayout {
        let scratch = Layout::Stripe(Stripe::new(64 << 10, extents_of_scratch()));
        Relayout {
            next: next.clone(),
            direction: Direction::Upward,
            position: 0,
            staged_bytes: 0,
            scratch,
            grain_bytes: GRAIN,
            step_bytes_max: room,
            paused: false,
            logs_swapped: false,
            in_cycles: true,
        }
    }

    fn extents_of_scratch() -> Vec<Layout> {
        (0..2)
            .map(|member| {
                Layout::Extent(Extent { member, start: SCRATCH_START, len: SCRATCH_BYTES })
            })
            .collect()
    }

    /// Goes along a walk over a model of the members, turning round with a chance of one in
    /// `turns`, until it is over, and says how it ended.
    fn walk(from: &Layout, to: &Layout, room: u64, turns: u64) -> (Layout, usize) {
        let (mut layout, mut way) = (from.clone(), relayout(to, room));
        let span = way.span_bytes(&layout);
        let order = Order::of(&layout, &way).unwrap();
        let mut places: HashMap<(u16, u64), u64> = HashMap::new();
        let at = |way: &Relayout, layout: &Layout, address| {
            let run = order.locate(way, layout, address);
            assert_eq!(run.len, GRAIN);
            (run.copies()[0].member, run.copies()[0].offset)
        };
        let all = || (0..span).step_by(GRAIN as usize);
        places.extend(all().map(|address| (at(&way, &layout, address), address)));
        let (mut steps, mut random) = (0, 12345_u64);
        while !way.is_over(&layout) {
            steps += 1;
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if turns > 0 && (random >> 33) % turns == 0 && steps < 2000 {
                way.turn(&mut layout);
                continue;
            }
            let (range, after) = way.next_in_cycles(&order, span);
            let moves: Vec<_> = order
                .concerned(&range)
                .into_iter()
                .map(|a| (at(&way, &layout, a), at(&after, &layout, a), a))
                .collect();
            for (_, there, _) in moves.iter().filter(|(here, there, _)| here != there) {
                assert!(!moves.iter().any(|(here, ..)| here == there), "I-RLY-1 within the step");
            }
            for (_, there, address) in moves.iter().filter(|(here, there, _)| here != there) {
                places.insert(*there, *address);
            }
            way = after;
            // I-RLY-1: every piece that lives anywhere is still there.
            all().for_each(|address| {
                assert_eq!(
                    places[&at(&way, &layout, address)],
                    address,
                    "{:?} after {steps} steps",
                    way.staged()
                );
            });
        }
        all().for_each(|address| {
            assert_eq!(way.next.locate(address).copies()[0].offset, at(&way, &layout, address).1);
        });
        (way.next, steps)
    }

    #[test]
    fn i_rly_1_along_chains_and_cycles_nothing_is_overwritten_that_is_needed() {
        let len = 60 * GRAIN;
        let ways = [
            ("two members", concat(2, len), stripe(GRAIN, 2, len)),
            ("five members", concat(5, len), stripe(GRAIN, 5, len)),
            ("larger units", concat(3, len), stripe(4 * GRAIN, 3, len)),
            (
                "a truncated concatenation",
                concat(3, len).truncated(151 * GRAIN),
                stripe(GRAIN, 3, len),
            ),
            (
                "parts of several sizes",
                Layout::Concat(Concat::new([extents([0], len), extents([1], 20 * GRAIN)].concat())),
                stripe(GRAIN, 2, len),
            ),
            ("another unit", stripe(GRAIN, 4, len), stripe(6 * GRAIN, 4, len)),
            (
                "members in another order",
                concat(3, len),
                Layout::Concat(Concat::new(extents([2, 0, 1], len))),
            ),
        ];
        for (name, one, two) in ways {
            for (from, to) in [(&one, &two), (&two, &one)] {
                for room in [GRAIN, 7 * GRAIN, 1 << 20] {
                    let (arrived, steps) = walk(from, to, room, 0);
                    assert!(arrived == *to && steps >= 2, "{name}");
                    let (arrived, _) = walk(from, to, room, 3);
                    assert!(arrived == *to || arrived == *from, "{name}");
                }
            }
        }
    }

    #[test]
    fn writes_wait_for_the_pieces_of_a_step_and_for_the_hand() {
        let (from, to) = (concat(2, 60 * GRAIN), stripe(GRAIN, 2, 60 * GRAIN));
        let order = Order::find(&from, &to, 120 * GRAIN, GRAIN).unwrap();
        let range = 10 * GRAIN..14 * GRAIN;
        let concerned = order.concerned(&range);
        assert!(concerned.len() >= 4 && order.hand(range.start).is_some());
        for at in (0..120 * GRAIN).step_by(GRAIN as usize) {
            assert_eq!(order.concerns(&range, at + 512, 512), concerned.contains(&at));
        }
        assert!(order.concerns(&range, 0, 120 * GRAIN));
    }

    #[test]
    fn what_does_not_go_in_pieces_has_no_order() {
        let (one, two) = (concat(2, 60 * GRAIN), stripe(GRAIN, 2, 60 * GRAIN));
        assert!(
            Order::find(&one, &two, 120 * GRAIN, 3 * GRAIN).is_none(),
            "pieces of several units"
        );
        assert!(Order::find(&one, &two, 120 * GRAIN - 512, GRAIN).is_none(), "half a piece");
        assert!(Order::find(&one, &two, 0, 0).is_none());
        let shifted = Layout::Concat(Concat::new(vec![Layout::Extent(Extent {
            member: 0,
            start: (4 << 20) + 512,
            len: 120 * GRAIN,
        })]));
        assert!(
            Order::find(&one, &shifted, 120 * GRAIN, GRAIN).is_none(),
            "places that overlap in part"
        );
        assert_eq!(
            (grain(&one, &two, 120 * GRAIN, 512), grain(&one, &two, 120 * GRAIN - 256, 512)),
            (Some(GRAIN), None)
        );
        assert_eq!(
            grain(&concat(2, 1 << 20), &stripe(1 << 20, 2, 1 << 20), 2 << 20, 512),
            Some(64 << 10)
        );
    }
}
