//! Layouts as values: a tree that says where a volume address lives. Pure; nothing here does I/O.
//!
//! ```text
//!   stripe-mirror (RAID 1+0)          mirror-stripe (RAID 0+1)          leaf: an extent of one member
//!        Stripe                            Mirror
//!       /      \                          /      \
//!   Mirror    Mirror                  Stripe    Stripe                    locate(address) ─► Run { len, 1 … 4 copies }
//!    /  \      /  \                    /  \      /  \
//!   a    b    c    d                  a    b    c    d
//! ```
//! Whatever the nesting, an address resolves to a *run*: so many bytes from there on that lie
//! contiguously on each of one to four members. So RAID 1+0 and 0+1 need no code of their own, and
//! a 0+1 volume survives every loss that leaves one copy of every byte.
//!
//! A RAID-5 is a node at the root alone. Its runs have one copy, the data; where that is gone, and
//! whenever something is written, the data path asks the node itself for rows and columns
//! (`io/raid5/`).
//!
//! * I-LAY-1: a run is never empty and never passes the end of any node that it goes through.

mod by_member;
mod concat;
mod inverse;
mod mirror;
pub(crate) mod order;
mod raid5;
mod relayout;
mod shape;
mod stripe;
pub(crate) mod walk;

pub(crate) use by_member::OnMembers;
pub use concat::Concat;
pub(crate) use inverse::Leaf;
pub use mirror::Mirror;
pub(crate) use order::Order;
pub use raid5::Raid5;
pub use relayout::{Direction, Relayout};
pub(crate) use relayout::{SCRATCH_BYTES, SCRATCH_START, STEP_BYTES_MAX, Side};
pub use shape::{Arrangement, Shape, UNIT_BYTES_DEFAULT};
pub use stripe::Stripe;
pub(crate) use walk::rows_from_start;

/// How many copies of a byte there may be.
pub const COPIES_MAX: usize = 4;
/// How deep layouts nest at most.
pub(crate) const DEPTH_MAX: usize = 4;

/// A contiguous piece of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Index of the member in the group.
    pub member: u16,
    /// First byte on the member.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Where a volume address lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layout {
    /// A piece of a member.
    Extent(Extent),
    /// One part behind the other.
    Concat(Concat),
    /// Units dealt out to columns in turn.
    Stripe(Stripe),
    /// Every byte on every plex.
    Mirror(Mirror),
    /// Units dealt out to columns in turn, and in every row their parity.
    Raid5(Raid5),
}

/// Where one copy of a run lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Copy {
    /// Index of the member in the group.
    pub member: u16,
    /// First byte on the member.
    pub offset: u64,
}

/// Bytes that lie contiguously on each of their members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Length in bytes from the address that was asked for.
    pub len: u64,
    copies: [Copy; COPIES_MAX],
    count: u8,
}

impl Run {
    fn one(member: u16, offset: u64, len: u64) -> Self {
        debug_assert!(
            offset.checked_add(len).is_some(),
            "I-LAY-1: a run of {len} bytes at {offset} of member {member} ends somewhere"
        );
        let mut copies = [Copy::default(); COPIES_MAX];
        copies[0] = Copy { member, offset };
        Self { len, copies, count: 1 }
    }

    /// Returns the copies, in the order of the plexes.
    #[inline]
    #[must_use]
    pub fn copies(&self) -> &[Copy] {
        &self.copies[..self.count.into()]
    }

    /// Adds the copies of another plex and keeps what both have.
    fn join(&mut self, other: &Self) {
        debug_assert!(
            usize::from(self.count) + other.copies().len() <= COPIES_MAX,
            "a run has at most {COPIES_MAX} copies: {self:?}, {other:?}"
        );
        self.len = self.len.min(other.len);
        for copy in other.copies() {
            self.copies[usize::from(self.count)] = *copy;
            self.count += 1;
        }
    }

    /// Returns the run, cut after `len` bytes.
    #[inline]
    pub(crate) fn at_most(mut self, len: u64) -> Self {
        debug_assert!(len > 0, "I-LAY-1: a run holds at least a byte: {self:?}");
        self.len = self.len.min(len);
        self
    }
}

/// What addresses are resolved by: a layout, or a volume between two of them.
pub(crate) trait Locate {
    /// Resolves an address, which lies within.
    fn locate(&self, at: u64) -> Run;
}

impl Locate for Layout {
    #[inline]
    fn locate(&self, at: u64) -> Run {
        Self::locate(self, at)
    }
}

impl Layout {
    /// Returns the size of the address space in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        match self {
            Self::Extent(extent) => extent.len,
            Self::Concat(concat) => concat.size_bytes(),
            Self::Stripe(stripe) => stripe.size_bytes(),
            Self::Mirror(mirror) => mirror.size_bytes(),
            Self::Raid5(raid5) => raid5.size_bytes(),
        }
    }

    /// Resolves an address.
    ///
    /// # Panics
    /// When the address lies beyond the end.
    #[inline]
    #[must_use]
    pub fn locate(&self, at: u64) -> Run {
        let run = match self {
            Self::Extent(extent) => {
                assert!(
                    at < extent.len,
                    "address {at} lies beyond an extent of {} bytes",
                    extent.len
                );
                Run::one(extent.member, extent.start + at, extent.len - at)
            }
            Self::Concat(concat) => concat.locate(at),
            Self::Stripe(stripe) => stripe.locate(at),
            Self::Mirror(mirror) => mirror.locate(at),
            Self::Raid5(raid5) => raid5.locate(at),
        };
        assert!(run.len > 0, "I-LAY-1: a run holds at least a byte");
        run
    }

    /// Returns how many copies of every byte there are.
    #[must_use]
    pub fn copies(&self) -> usize {
        match self {
            Self::Extent(_) | Self::Raid5(_) => 1,
            Self::Mirror(mirror) => mirror.plexes().iter().map(Self::copies).sum(),
            Self::Concat(_) | Self::Stripe(_) => {
                self.children().iter().map(Self::copies).min().unwrap_or(0)
            }
        }
    }

    /// Says whether the loss of a member need not be the loss of data.
    #[must_use]
    pub fn is_redundant(&self) -> bool {
        self.copies() > 1 || self.has_parity()
    }

    /// Returns how many members may be lost at once without losing data, whichever they are.
    #[must_use]
    pub fn losses_survived(&self) -> usize {
        if self.has_parity() { 1 } else { self.copies().saturating_sub(1) }
    }

    /// Says whether every byte has whole copies, and no part of a row.
    pub(crate) fn is_mirrored(&self) -> bool {
        self.copies() > 1 && !self.has_parity()
    }

    /// Says whether its addresses lie in rows with parity.
    #[must_use]
    pub fn has_parity(&self) -> bool {
        self.rows().is_some()
    }

    /// Returns the rows with parity that its addresses lie in, where they do.
    pub(crate) fn rows(&self) -> Option<&Raid5> {
        match self {
            Self::Raid5(raid5) => Some(raid5),
            Self::Extent(_) | Self::Concat(_) | Self::Stripe(_) | Self::Mirror(_) => None,
        }
    }

    /// Says whether a part begins where the one before it ends, at an address that the lengths of
    /// the parts decide.
    pub(crate) fn is_joined(&self) -> bool {
        match self {
            Self::Concat(_) => true,
            Self::Extent(_) | Self::Stripe(_) | Self::Mirror(_) | Self::Raid5(_) => false,
        }
    }

    /// Returns the nodes below.
    #[must_use]
    pub fn children(&self) -> &[Self] {
        match self {
            Self::Extent(_) => &[],
            Self::Concat(concat) => concat.parts(),
            Self::Stripe(stripe) => stripe.columns(),
            Self::Mirror(mirror) => mirror.plexes(),
            Self::Raid5(raid5) => raid5.columns(),
        }
    }

    /// Returns the extents, in order.
    #[must_use]
    pub fn extents(&self) -> Vec<Extent> {
        match self {
            Self::Extent(extent) => vec![*extent],
            _ => self.children().iter().flat_map(Self::extents).collect(),
        }
    }

    /// Returns the members of each plex, one whole copy of everything, by their index: one plex
    /// where there is one copy.
    #[must_use]
    pub fn plexes(&self) -> Vec<Vec<usize>> {
        let below = self.children().iter().map(Self::plexes);
        let mut plexes: Vec<Vec<usize>> = match self {
            Self::Extent(extent) => vec![vec![extent.member.into()]],
            Self::Mirror(_) => below.flatten().collect(),
            // The first copies of all parts are a plex, the second ones are another.
            Self::Concat(_) | Self::Stripe(_) | Self::Raid5(_) => {
                below.fold(Vec::new(), |mut sum: Vec<Vec<usize>>, part| {
                    sum.resize(sum.len().max(part.len()), Vec::new());
                    sum.iter_mut().zip(part).for_each(|(plex, members)| plex.extend(members));
                    sum
                })
            }
        };
        for plex in &mut plexes {
            plex.sort_unstable();
            plex.dedup();
        }
        plexes
    }

    /// Calls `change` with every extent and returns the layout that follows.
    #[must_use]
    pub fn map_extents(&self, change: &mut dyn FnMut(Extent) -> Extent) -> Self {
        let mut children =
            |nodes: &[Self]| nodes.iter().map(|node| node.map_extents(change)).collect();
        match self {
            Self::Extent(extent) => Self::Extent(change(*extent)),
            Self::Concat(concat) => Self::Concat(Concat::new(children(concat.parts()))),
            Self::Stripe(stripe) => {
                Self::Stripe(Stripe::new(stripe.unit_bytes(), children(stripe.columns())))
            }
            Self::Mirror(mirror) => Self::Mirror(Mirror::new(children(mirror.plexes()))),
            Self::Raid5(raid5) => {
                Self::Raid5(Raid5::new(raid5.unit_bytes(), children(raid5.columns())))
            }
        }
    }

    /// Returns the layout that keeps the first `size` bytes, or a little more where a unit or a row
    /// is cut. Nothing changes its place.
    #[must_use]
    pub(crate) fn truncated(&self, size: u64) -> Self {
        match self {
            Self::Extent(extent) => Self::Extent(Extent { len: extent.len.min(size), ..*extent }),
            Self::Mirror(mirror) => Self::Mirror(Mirror::new(
                mirror.plexes().iter().map(|plex| plex.truncated(size)).collect(),
            )),
            Self::Stripe(stripe) => {
                let column = size.div_ceil(stripe.unit_bytes() * stripe.columns().len() as u64)
                    * stripe.unit_bytes();
                Self::Stripe(Stripe::new(
                    stripe.unit_bytes(),
                    stripe.columns().iter().map(|one| one.truncated(column)).collect(),
                ))
            }
            Self::Raid5(raid5) => {
                let column = size.div_ceil(raid5.row_bytes()) * raid5.unit_bytes();
                Self::Raid5(Raid5::new(
                    raid5.unit_bytes(),
                    raid5.columns().iter().map(|one| one.truncated(column)).collect(),
                ))
            }
            Self::Concat(concat) => {
                let (mut left, mut parts) = (size, Vec::new());
                for part in concat.parts() {
                    if left == 0 {
                        break;
                    }
                    parts.push(part.truncated(left));
                    left = left.saturating_sub(part.size_bytes());
                }
                if parts.len() == 1 { parts.remove(0) } else { Self::Concat(Concat::new(parts)) }
            }
        }
    }

    /// Returns the stripe unit, where there is one.
    #[must_use]
    pub fn unit_bytes(&self) -> Option<u64> {
        match self {
            Self::Stripe(stripe) => Some(stripe.unit_bytes()),
            Self::Raid5(raid5) => Some(raid5.unit_bytes()),
            _ => self.children().iter().find_map(Self::unit_bytes),
        }
    }

    /// Returns the name of the whole arrangement, as commands take it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        let below = self.children().first();
        match (self, below) {
            (Self::Stripe(_), Some(Self::Mirror(_))) => "stripe-mirror",
            (Self::Mirror(_), Some(Self::Stripe(_))) => "mirror-stripe",
            (Self::Stripe(_), _) => "stripe",
            (Self::Mirror(_), _) => "mirror",
            (Self::Raid5(_), _) => "raid5",
            (Self::Extent(_) | Self::Concat(_), _) => "concat",
        }
    }

    /// Returns whether every byte has a copy on a member that is `good`. Exact for what
    /// [`Shape`](crate::Shape) builds, cautious for other trees.
    pub(crate) fn survives(&self, good: &dyn Fn(u16) -> bool) -> bool {
        match self {
            Self::Extent(extent) => good(extent.member),
            Self::Concat(_) | Self::Stripe(_) => {
                self.children().iter().all(|child| child.survives(good))
            }
            Self::Mirror(mirror) => mirror.survives(good),
            Self::Raid5(raid5) => raid5.survives(good),
        }
    }

    /// Returns what makes the tree one that this software does not build: empty nodes, too deep,
    /// too many copies, plexes of unlike units.
    pub(crate) fn fault(&self) -> Option<String> {
        self.fault_at(0)
    }

    fn fault_at(&self, depth: usize) -> Option<String> {
        if depth >= DEPTH_MAX {
            return Some(format!("the layout nests deeper than {DEPTH_MAX}"));
        }
        if self.size_bytes() == 0 {
            return Some("a part of the layout is empty".to_owned());
        }
        if self.copies() > COPIES_MAX {
            return Some(format!("more than {COPIES_MAX} copies of a byte"));
        }
        if let Self::Raid5(raid5) = self
            && let Some(fault) = if depth > 0 {
                Some("a RAID-5 lies within another layout".to_owned())
            } else {
                raid5.fault()
            }
        {
            return Some(fault);
        }
        self.children().iter().find_map(|child| child.fault_at(depth + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn extent(member: u16, start: u64, len: u64) -> Layout {
        Layout::Extent(Extent { member, start, len })
    }

    fn all(layout: &Layout) -> Vec<(u64, Vec<(u16, u64)>)> {
        let (mut at, mut runs) = (0, Vec::new());
        while at < layout.size_bytes() {
            let run = layout.locate(at);
            runs.push((
                run.len,
                run.copies().iter().map(|copy| (copy.member, copy.offset)).collect(),
            ));
            at += run.len;
        }
        assert_eq!(at, layout.size_bytes(), "runs cover the volume exactly");
        runs
    }

    /// I-LAY-1, and that no two addresses share a place.
    #[test]
    fn i_lay_1_every_layout_covers_its_members_once() {
        let pair = |a, b| {
            Layout::Mirror(Mirror::new(vec![extent(a, 4096, 70_000), extent(b, 8192, 65_536)]))
        };
        let layouts = [
            Layout::Concat(Concat::new(vec![extent(0, 4096, 5000), extent(1, 0, 3000)])),
            Layout::Stripe(Stripe::new(
                4096,
                (0..5).map(|m| extent(m, 512, 20_000 + u64::from(m))).collect(),
            )),
            Layout::Stripe(Stripe::new(16_384, vec![pair(0, 1), pair(2, 3)])),
            Layout::Mirror(Mirror::new(
                (0..2)
                    .map(|p| {
                        Layout::Stripe(Stripe::new(
                            4096,
                            vec![extent(2 * p, 0, 40_960), extent(2 * p + 1, 0, 40_960)],
                        ))
                    })
                    .collect(),
            )),
            Layout::Mirror(Mirror::new((0..4).map(|m| extent(m, 0, 100)).collect())),
            Layout::Raid5(Raid5::new(
                4096,
                (0..5).map(|m| extent(m, 512, 20_000 + u64::from(m))).collect(),
            )),
        ];
        for layout in layouts {
            assert_eq!(layout.fault(), None);
            let mut taken = std::collections::HashSet::new();
            for (len, copies) in all(&layout) {
                assert_eq!(copies.len(), layout.copies());
                for (member, offset) in copies {
                    let inside = layout.extents().iter().any(|e| {
                        e.member == member && e.start <= offset && offset + len <= e.start + e.len
                    });
                    assert!(inside && taken.insert((member, offset)));
                }
            }
        }
    }

    #[test]
    fn a_truncated_layout_keeps_every_place_that_it_keeps() {
        let pair = |a, b| {
            Layout::Mirror(Mirror::new(vec![extent(a, 4096, 70_000), extent(b, 8192, 65_536)]))
        };
        let layouts = [
            Layout::Concat(Concat::new(vec![extent(0, 4096, 5000), extent(1, 0, 3000)])),
            Layout::Stripe(Stripe::new(4096, vec![pair(0, 1), pair(2, 3)])),
            Layout::Raid5(Raid5::new(4096, (0..5).map(|m| extent(m, 512, 20_000)).collect())),
        ];
        for layout in layouts {
            for size in [1, 4096, 4999, 5000, 5001, layout.size_bytes()] {
                let cut = layout.truncated(size);
                assert!(
                    cut.fault().is_none() && (size..=size + 20_000).contains(&cut.size_bytes()),
                    "{layout:?} cut to {size}"
                );
                (0..size)
                    .step_by(500)
                    .for_each(|at| assert_eq!(cut.locate(at).copies(), layout.locate(at).copies()));
            }
            assert_eq!(layout.truncated(layout.size_bytes()).size_bytes(), layout.size_bytes());
        }
    }

    #[test]
    fn nested_layouts_resolve_to_all_copies() {
        let stripe =
            |a, b| Layout::Stripe(Stripe::new(4096, vec![extent(a, 0, 8192), extent(b, 0, 8192)]));
        let layout = Layout::Mirror(Mirror::new(vec![stripe(0, 1), stripe(2, 3)]));
        assert_eq!(all(&layout)[1], (4096, vec![(1, 0), (3, 0)]));
        assert_eq!(
            (layout.name(), layout.copies(), layout.unit_bytes()),
            ("mirror-stripe", 2, Some(4096))
        );
    }

    #[test]
    fn a_mirror_of_stripes_survives_what_leaves_one_copy_of_every_column() {
        let stripe =
            |a, b| Layout::Stripe(Stripe::new(4096, vec![extent(a, 0, 8192), extent(b, 0, 8192)]));
        let layout = Layout::Mirror(Mirror::new(vec![stripe(0, 1), stripe(2, 3)]));
        let survives = |lost: &[u16]| layout.survives(&|member| !lost.contains(&member));
        assert!(survives(&[]) && survives(&[0]) && survives(&[0, 1]) && survives(&[0, 3]));
        assert!(!survives(&[0, 2]) && !survives(&[0, 1, 2]));
    }

    #[test]
    fn layouts_that_nobody_builds_are_found() {
        let five = Layout::Mirror(Mirror::new((0..5).map(|m| extent(m, 0, 100)).collect()));
        assert!(five.fault().unwrap().contains("copies"));
        let mut deep = extent(0, 0, 100);
        for _ in 0..DEPTH_MAX {
            deep = Layout::Concat(Concat::new(vec![deep]));
        }
        assert!(deep.fault().unwrap().contains("deeper"));
        assert!(
            Layout::Stripe(Stripe::new(4096, vec![extent(0, 0, 100)]))
                .fault()
                .unwrap()
                .contains("empty")
        );
        let raid5 = |columns: u16| {
            Layout::Raid5(Raid5::new(50, (0..columns).map(|m| extent(m, 0, 100)).collect()))
        };
        assert!(raid5(2).fault().unwrap().contains("three"));
        assert!(Layout::Concat(Concat::new(vec![raid5(3)])).fault().unwrap().contains("within"));
    }
}
