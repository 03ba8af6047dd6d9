//! In which order addresses may go from one layout to another that shares places with it. Pure.
//!
//! A place that both layouts use holds one address now and another later. In steps of a grain `g`
//! upward, a step overwrites nothing that is still needed but its own bytes when at every such
//! place `now / g <= later / g`; downward, when `now / g >= later / g`. That is looked at for every
//! place, so what is found to be possible is proven, whatever the layouts are.

use super::{Direction, Layout, Leaf};

/// What grains are a multiple of where that is possible.
const COARSE_BYTES: u64 = 64 << 10;

/// A way from one layout to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Walk {
    pub direction: Direction,
    pub grain_bytes: u64,
}

/// Finds a way for addresses up to `span`, by way of a scratch area of a size where that is needed.
/// `block` divides both units.
pub(crate) fn find(
    from: &Layout,
    to: &Layout,
    span: u64,
    scratch_bytes: u64,
    block: u64,
) -> Option<Walk> {
    let (rows, next_rows) = (row_bytes(from), row_bytes(to));
    let grains = [next_rows, rows, least_multiple(rows, next_rows)];
    // Coarse ones are looked at sooner; fine ones fit a small scratch area.
    // Rows of a RAID-5 go in whole.
    let parity = parity_rows(from, to).unwrap_or(1);
    let mut grains: Vec<u64> = [COARSE_BYTES, block]
        .into_iter()
        .flat_map(|least| grains.map(|grain| least_multiple(least_multiple(grain, parity), least)))
        .collect();
    grains.dedup();
    let walks = |grain_bytes| {
        [Direction::Upward, Direction::Downward].map(|direction| Walk { direction, grain_bytes })
    };
    grains
        .into_iter()
        .flat_map(walks)
        .find(|walk| is_possible(from, to, span, scratch_bytes, *walk))
}

/// Says whether a walk overwrites nothing that it still needs.
pub(crate) fn is_possible(
    from: &Layout,
    to: &Layout,
    span: u64,
    scratch_bytes: u64,
    walk: Walk,
) -> bool {
    match look(from, to, span, &walk) {
        Look::Free => true,
        Look::OwnBytes => walk.grain_bytes <= scratch_bytes,
        Look::Taken => false,
    }
}

/// Says whether every address up to `span` lives where it should already: at every place of `to`.
pub(crate) fn is_there(from: &Layout, to: &Layout, span: u64) -> bool {
    let rows = |layout: &Layout| {
        if let Layout::Raid5(raid5) = layout {
            Some((raid5.unit_bytes(), raid5.columns().len()))
        } else {
            None
        }
    };
    if rows(from) != rows(to) {
        return false;
    }
    let mut at = 0;
    while at < span {
        let (now, later) = (from.locate(at), to.locate(at));
        if !later.copies().iter().all(|copy| now.copies().contains(copy)) {
            return false;
        }
        at += now.len.min(later.len);
    }
    true
}

/// Returns the rows in which volume addresses are laid out from address 0 on; 0 where there are
/// none, as of parts that are joined, each of which has rows of its own.
pub(crate) fn rows_from_start(layout: &Layout) -> u32 {
    match row_bytes(layout) {
        rows if rows > 1 && !layout.is_joined() => u32::try_from(rows).unwrap_or(0),
        _ => 0,
    }
}

/// Returns the bytes after which a layout begins with its first column again; 1 where it has none.
fn row_bytes(layout: &Layout) -> u64 {
    match layout {
        Layout::Stripe(stripe) => stripe.unit_bytes() * stripe.columns().len() as u64,
        Layout::Raid5(raid5) => raid5.row_bytes(),
        _ => layout.children().iter().map(row_bytes).max().unwrap_or(1),
    }
}

/// Returns what rows of RAID-5 among two layouts are parts of; nothing where there are none.
pub(crate) fn parity_rows(from: &Layout, to: &Layout) -> Option<u64> {
    let rows = [from, to].into_iter().filter_map(|layout| {
        if let Layout::Raid5(raid5) = layout { Some(raid5.row_bytes()) } else { None }
    });
    rows.reduce(least_multiple)
}

fn least_multiple(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a.max(1), b.max(1));
    while y > 0 {
        (x, y) = (y, x % y);
    }
    (a.max(1) / x).saturating_mul(b.max(1))
}

/// What steps would overwrite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Look {
    /// Nothing that is needed.
    Free,
    /// Some of them bytes of their own.
    OwnBytes,
    /// Bytes of later steps.
    Taken,
}

fn look(from: &Layout, to: &Layout, span: u64, walk: &Walk) -> Look {
    let (old, new) = (from.leaves(), to.leaves());
    let mut worst = Look::Free;
    for later in &new {
        for now in old.iter().filter(|now| now.extent.member == later.extent.member) {
            worst = worst.max(look_at_places(now, later, span, walk));
            if worst == Look::Taken {
                return worst;
            }
        }
    }
    worst
}

/// Looks at the places that two leaves share.
fn look_at_places(now: &Leaf<'_>, later: &Leaf<'_>, span: u64, walk: &Walk) -> Look {
    let (one, two) = (now.extent, later.extent);
    let (mut at, end) = (one.start.max(two.start), (one.start + one.len).min(two.start + two.len));
    let mut worst = Look::Free;
    while at < end {
        let (old, old_len) = now.address(at - one.start);
        let (new, new_len) = later.address(at - two.start);
        let (grain, len) = (walk.grain_bytes, (end - at).min(old_len).min(new_len));
        debug_assert!(
            old_len > 0 && new_len > 0,
            "I-LAY-1: a run holds at least a byte, also at {at} of a member"
        );
        let rows = now.is_of_rows() || later.is_of_rows();
        if old >= span || new >= span || (old == new && !rows) {
            at += len;
            continue;
        }
        // To the end of a run or of a step, whichever is first.
        at += len.min(grain - old % grain).min(grain - new % grain);
        let (from, to) = (old / grain, new / grain);
        worst = worst.max(match walk.direction {
            _ if from == to => Look::OwnBytes,
            Direction::Upward if from < to => Look::Free,
            Direction::Downward if from > to => Look::Free,
            _ => return Look::Taken,
        });
    }
    worst
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::{Concat, Extent, Mirror, Stripe};

    const UNIT: u64 = 4096;
    const LEN: u64 = 240 * UNIT;

    fn extents(members: impl IntoIterator<Item = u16>) -> Vec<Layout> {
        members
            .into_iter()
            .map(|member| Layout::Extent(Extent { member, start: 4 << 20, len: LEN }))
            .collect()
    }

    fn stripe(unit: u64, members: impl IntoIterator<Item = u16>) -> Layout {
        Layout::Stripe(Stripe::new(unit, extents(members)))
    }

    fn mirror(plexes: Vec<Layout>) -> Layout {
        Layout::Mirror(Mirror::new(plexes))
    }

    /// Walks unit by unit over a model of the members, as steps do it, and says whether every
    /// address arrives.
    fn arrives(from: &Layout, to: &Layout, span: u64, walk: &Walk) -> bool {
        let mut places: HashMap<(u16, u64), u64> = HashMap::new();
        for at in (0..span).step_by(512) {
            places.extend(
                from.locate(at).copies().iter().map(|copy| ((copy.member, copy.offset), at)),
            );
        }
        let mut steps: Vec<u64> = (0..span).step_by(walk.grain_bytes as usize).collect();
        if walk.direction == Direction::Downward {
            steps.reverse();
        }
        for start in steps {
            let step: Vec<u64> =
                (start..(start + walk.grain_bytes).min(span)).step_by(512).collect();
            // All is read before anything is written: that is what the scratch area is for.
            let read: Vec<u64> = step
                .iter()
                .map(|at| {
                    places[&(
                        from.locate(*at).copies()[0].member,
                        from.locate(*at).copies()[0].offset,
                    )]
                })
                .collect();
            for (at, found) in step.iter().zip(read) {
                places.extend(
                    to.locate(*at).copies().iter().map(|copy| ((copy.member, copy.offset), found)),
                );
            }
        }
        (0..span).step_by(512).all(|at| {
            to.locate(at).copies().iter().all(|copy| places[&(copy.member, copy.offset)] == at)
        })
    }

    /// I-RLY-1: what the way says is possible is, step by step; and both directions of it are.
    #[test]
    fn i_rly_1_on_a_way_that_was_found_no_step_overwrites_what_is_needed() {
        let one = || extents([0]).remove(0);
        let ways = [
            ("columns added", stripe(UNIT, 0..3), stripe(UNIT, 0..5), Direction::Upward),
            ("columns taken away", stripe(UNIT, 0..5), stripe(UNIT, 0..3), Direction::Downward),
            ("one member to a stripe", one(), stripe(UNIT, 0..4), Direction::Upward),
            ("a stripe to one member", stripe(UNIT, 0..4), one(), Direction::Downward),
            ("a larger unit", stripe(UNIT, 0..4), stripe(4 * UNIT, 0..4), Direction::Upward),
            (
                "another unit and more columns",
                stripe(3 * UNIT, 0..2),
                stripe(2 * UNIT, 0..3),
                Direction::Upward,
            ),
            (
                "a plex more",
                stripe(UNIT, 0..2),
                mirror(vec![stripe(UNIT, 0..2), stripe(UNIT, 2..4)]),
                Direction::Upward,
            ),
            (
                "a mirror to a stripe",
                mirror(extents([0, 1])),
                stripe(UNIT, 0..2),
                Direction::Upward,
            ),
            (
                "elsewhere",
                Layout::Concat(Concat::new(extents([0, 1]))),
                stripe(UNIT, 2..4),
                Direction::Upward,
            ),
        ];
        for (name, from, to, direction) in ways {
            let span = from.size_bytes().min(to.size_bytes());
            let walk = find(&from, &to, span, 64 * UNIT, 512).expect(name);
            assert_eq!(walk.direction, direction, "{name}");
            assert!(arrives(&from, &to, span, &walk), "{name}: {walk:?}");
            let back = Walk {
                direction: if direction == Direction::Upward {
                    Direction::Downward
                } else {
                    Direction::Upward
                },
                ..walk
            };
            assert_ne!(look(&to, &from, span, &back), Look::Taken, "{name}, back");
            assert!(arrives(&to, &from, span, &back), "{name}, back");
        }
    }

    #[test]
    fn a_way_that_would_overwrite_is_not_found() {
        let concat = Layout::Concat(Concat::new(extents([0, 1])));
        let span = concat.size_bytes();
        assert_eq!(find(&concat, &stripe(UNIT, 0..2), span, 1 << 30, 512), None);
        let wrong = Walk { direction: Direction::Downward, grain_bytes: 15 * UNIT };
        assert_eq!(look(&stripe(UNIT, 0..3), &stripe(UNIT, 0..5), LEN, &wrong), Look::Taken);
        assert!(
            !arrives(&stripe(UNIT, 0..3), &stripe(UNIT, 0..5), LEN, &wrong),
            "and the model agrees"
        );
        assert_eq!(
            find(&stripe(UNIT, 0..4), &stripe(4 * UNIT, 0..4), LEN, UNIT, 512),
            None,
            "the scratch area is too small"
        );
    }

    #[test]
    fn what_is_there_already_is_seen() {
        let (one, two) = (stripe(UNIT, 0..2), stripe(UNIT, 2..4));
        let both = mirror(vec![one.clone(), two.clone()]);
        assert!(
            is_there(&both, &one, LEN)
                && is_there(&both, &two, LEN)
                && !is_there(&one, &both, LEN)
                && !is_there(&one, &two, LEN)
        );
        assert_eq!(
            (row_bytes(&both), least_multiple(6, 4), least_multiple(1, 512)),
            (2 * UNIT, 12, 512)
        );
    }

    #[test]
    fn rows_are_told_where_they_begin_with_the_volume() {
        let striped = stripe(UNIT, 0..2);
        assert_eq!(rows_from_start(&striped), 2 * UNIT as u32);
        assert_eq!(
            rows_from_start(&mirror(vec![striped.clone(), stripe(UNIT, 2..4)])),
            2 * UNIT as u32
        );
        assert_eq!(
            rows_from_start(&Layout::Concat(Concat::new(vec![striped, stripe(UNIT, 2..4)]))),
            0
        );
    }
}
