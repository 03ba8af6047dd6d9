//! Which addresses lie on which members.
//!
//! ```text
//!   concat of a and a mirror of b and c     0 ── a ──┬── b, c ──     parts behind each other: their ranges
//!   mirror of a and a concat of b and c     0 ─ a, b ┬ a, c ────     copies: divided where any of them is
//!   stripe, RAID-5                          0 ──── all ─────────     a row is on every column
//! ```
//!
//! * I-PLC-1: ranges by member cover every address once.

use std::collections::BTreeSet;
use std::ops::Range;

use super::{Layout, Mirror};

/// Addresses that all lie on the same members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OnMembers {
    pub bytes: Range<u64>,
    /// The members by their index in the group.
    pub members: BTreeSet<u16>,
}

impl OnMembers {
    /// The range of the first `size` bytes, on all members of a layout.
    fn on_all(layout: &Layout, size: u64) -> Self {
        let members = layout.extents().iter().map(|extent| extent.member).collect();
        Self { bytes: 0..size, members }
    }
}

impl Layout {
    /// Returns ranges with their members: in order, without gaps, each as long as it can be.
    pub(crate) fn by_member(&self) -> Vec<OnMembers> {
        let found = match self {
            Self::Concat(concat) => {
                let mut start = 0;
                let mut all = Vec::new();
                for part in concat.parts() {
                    all.extend(part.by_member().into_iter().map(|range| OnMembers {
                        bytes: start + range.bytes.start..start + range.bytes.end,
                        ..range
                    }));
                    start += part.size_bytes();
                }
                all
            }
            Self::Mirror(mirror) => of_mirror(mirror),
            Self::Extent(_) | Self::Stripe(_) | Self::Raid5(_) => {
                vec![OnMembers::on_all(self, self.size_bytes())]
            }
        };
        let joined = joined(found);
        debug_assert!(
            joined.first().is_none_or(|first| first.bytes.start == 0)
                && joined.last().map_or(0, |last| last.bytes.end) == self.size_bytes()
                && joined.windows(2).all(|pair| pair[0].bytes.end == pair[1].bytes.start),
            "I-PLC-1: ranges by member cover every address once: {joined:?}"
        );
        joined
    }
}

/// Divides a mirror where any of its plexes is divided.
fn of_mirror(mirror: &Mirror) -> Vec<OnMembers> {
    let plexes: Vec<Vec<OnMembers>> = mirror.plexes().iter().map(Layout::by_member).collect();
    let size = mirror.size_bytes();
    let mut edges: BTreeSet<u64> =
        plexes.iter().flatten().map(|range| range.bytes.end.min(size)).collect();
    edges.insert(0);
    let edges: Vec<u64> = edges.into_iter().collect();
    let members_at = |at: u64| {
        let holding = plexes.iter().flatten().filter(|range| range.bytes.contains(&at));
        holding.flat_map(|range| range.members.iter().copied()).collect()
    };
    edges
        .windows(2)
        .map(|pair| OnMembers { bytes: pair[0]..pair[1], members: members_at(pair[0]) })
        .collect()
}

/// Joins neighbours on the same members.
fn joined(ranges: Vec<OnMembers>) -> Vec<OnMembers> {
    let mut out: Vec<OnMembers> = Vec::with_capacity(ranges.len());
    for range in ranges.into_iter().filter(|range| !range.bytes.is_empty()) {
        match out.last_mut() {
            Some(last) if last.members == range.members => last.bytes.end = range.bytes.end,
            _ => out.push(range),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Concat, Extent, Raid5, Stripe};

    fn extent(member: u16, len: u64) -> Layout {
        Layout::Extent(Extent { member, start: 4096, len })
    }

    fn told(layout: &Layout) -> Vec<(Range<u64>, Vec<u16>)> {
        let ranges = layout.by_member().into_iter();
        ranges.map(|range| (range.bytes, range.members.into_iter().collect())).collect()
    }

    /// I-PLC-1: as the layout itself resolves every address.
    fn agrees(layout: &Layout) {
        let ranges = layout.by_member();
        for at in (0..layout.size_bytes()).step_by(50) {
            let on = ranges.iter().find(|range| range.bytes.contains(&at)).unwrap();
            let run = layout.locate(at);
            assert!(run.copies().iter().all(|copy| on.members.contains(&copy.member)), "{at}");
        }
    }

    /// S-616: a concatenation is divided by member, rows over members are not.
    #[test]
    fn s_616_i_plc_1_ranges_are_those_that_the_layout_resolves() {
        let concat = |parts: Vec<Layout>| Layout::Concat(Concat::new(parts));
        let mirror = |plexes: Vec<Layout>| Layout::Mirror(Mirror::new(plexes));
        let two = concat(vec![extent(0, 100), extent(1, 300)]);
        assert_eq!(told(&two), [(0..100, vec![0]), (100..400, vec![1])]);
        // A member that was extended, and one that stands in two places.
        let grown = concat(vec![extent(0, 100), extent(0, 50), extent(1, 100), extent(0, 100)]);
        assert_eq!(told(&grown), [(0..150, vec![0]), (150..250, vec![1]), (250..350, vec![0])]);
        let copies = mirror(vec![two.clone(), concat(vec![extent(2, 200), extent(3, 150)])]);
        assert_eq!(
            told(&copies),
            [(0..100, vec![0, 2]), (100..200, vec![1, 2]), (200..350, vec![1, 3])]
        );
        let mirrors = concat(vec![
            mirror(vec![extent(0, 100), extent(1, 100)]),
            mirror(vec![extent(2, 100), extent(3, 120)]),
        ]);
        assert_eq!(told(&mirrors), [(0..100, vec![0, 1]), (100..200, vec![2, 3])]);
        let stripe = Layout::Stripe(Stripe::new(50, vec![extent(0, 100), extent(1, 100)]));
        assert_eq!(told(&stripe), [(0..200, vec![0, 1])]);
        let raid5 = Layout::Raid5(Raid5::new(50, (0..3).map(|m| extent(m, 100)).collect()));
        assert_eq!(told(&raid5), [(0..200, vec![0, 1, 2])]);
        [two, grown, copies, mirrors, stripe].iter().for_each(agrees);
    }
}
