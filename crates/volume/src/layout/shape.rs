//! From what a user asks for to a layout: which member takes which place.

use crate::{Concat, Error, Extent, Layout, Mirror, Raid5, Result, Stripe};

/// The arrangements that a group is created with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One member behind the other.
    Concat,
    /// Units dealt out over all members.
    Stripe,
    /// Every member holds everything.
    Mirror,
    /// A stripe over mirrors: RAID 1+0.
    StripeMirror,
    /// A mirror over stripes: RAID 0+1.
    MirrorStripe,
    /// Units dealt out over all members but one in turn, which holds their parity.
    Raid5,
}

impl Shape {
    /// All of them with the names that commands take.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Concat, "concat"),
        (Self::Stripe, "stripe"),
        (Self::Mirror, "mirror"),
        (Self::StripeMirror, "stripe-mirror"),
        (Self::MirrorStripe, "mirror-stripe"),
        (Self::Raid5, "raid5"),
    ];
}

impl Shape {
    /// Returns the stripe unit in bytes where none is asked for. That of RAID-5 is small, so that a
    /// write of ordinary size fills whole rows.
    #[must_use]
    pub fn unit_bytes_default(self) -> u64 {
        if self.has_parity() { 16 << 10 } else { UNIT_BYTES_DEFAULT }
    }

    /// Says whether units are dealt out over members, so that there is a unit.
    #[must_use]
    pub fn is_striped(self) -> bool {
        match self {
            Self::Stripe | Self::StripeMirror | Self::MirrorStripe | Self::Raid5 => true,
            Self::Concat | Self::Mirror => false,
        }
    }

    /// Says whether mirrors and stripes are nested, so that there are both columns and plexes.
    #[must_use]
    pub fn is_nested(self) -> bool {
        match self {
            Self::StripeMirror | Self::MirrorStripe => true,
            Self::Concat | Self::Stripe | Self::Mirror | Self::Raid5 => false,
        }
    }

    /// Says whether members hold parity.
    #[must_use]
    pub fn has_parity(self) -> bool {
        match self {
            Self::Raid5 => true,
            Self::Concat
            | Self::Stripe
            | Self::Mirror
            | Self::StripeMirror
            | Self::MirrorStripe => false,
        }
    }

    /// Says whether the loss of one member is not the loss of data.
    #[must_use]
    pub fn is_redundant(self) -> bool {
        match self {
            Self::Mirror | Self::StripeMirror | Self::MirrorStripe | Self::Raid5 => true,
            Self::Concat | Self::Stripe => false,
        }
    }

    /// Returns how many members may be lost at once without losing data, whichever they are, with
    /// so many copies of everything.
    #[must_use]
    pub fn losses_survived(self, plexes: usize) -> usize {
        match self {
            Self::Mirror | Self::StripeMirror | Self::MirrorStripe => plexes.saturating_sub(1),
            Self::Raid5 => 1,
            Self::Concat | Self::Stripe => 0,
        }
    }

    /// Says whether each member counts as large as the smallest beside it.
    #[must_use]
    pub fn needs_equal_members(self) -> bool {
        match self {
            Self::Stripe | Self::Mirror | Self::StripeMirror | Self::MirrorStripe | Self::Raid5 => {
                true
            }
            Self::Concat => false,
        }
    }

    /// Says whether every member has a whole copy, so that there are as many as copies.
    #[must_use]
    pub fn has_a_member_per_copy(self) -> bool {
        self == Self::Mirror
    }

    /// Returns over how many members, at least one, what a volume holds is spread, of so many that
    /// have `plexes` copies where mirrors and stripes are nested.
    pub(crate) fn shares(self, members: usize, plexes: usize) -> usize {
        let shares = match self {
            Self::Mirror => 1,
            Self::Concat | Self::Stripe => members,
            Self::StripeMirror | Self::MirrorStripe => members / plexes.max(1),
            Self::Raid5 => members.saturating_sub(1),
        };
        shares.max(1)
    }

    /// Returns what it becomes with both columns and plexes: a nested shape stays what it is.
    pub(crate) fn nested(self) -> Self {
        match self {
            Self::MirrorStripe => Self::MirrorStripe,
            Self::Concat | Self::Stripe | Self::Mirror | Self::StripeMirror | Self::Raid5 => {
                Self::StripeMirror
            }
        }
    }
}

/// The stripe unit where none is asked for, but for RAID-5.
pub const UNIT_BYTES_DEFAULT: u64 = 64 << 10;

/// How the members of a volume are arranged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrangement {
    /// The arrangement.
    pub shape: Shape,
    /// The stripe unit in bytes.
    pub unit_bytes: u64,
    /// How many copies of everything there are, where the shape nests mirrors and stripes; 2 to 4.
    /// A plain mirror has one on every member.
    pub plexes: usize,
}

impl Arrangement {
    /// Lays the arrangement over extents.
    ///
    /// # Errors
    /// `Invalid` with the reason when the members do not fit it.
    pub(crate) fn lay(&self, extents: &[Extent], block: u64) -> Result<Layout> {
        let members = extents.len();
        let leaves =
            |extents: &[Extent]| extents.iter().copied().map(Layout::Extent).collect::<Vec<_>>();
        let stripe = |columns| Layout::Stripe(Stripe::new(self.unit_bytes, columns));
        let striped = self.shape.is_striped();
        if striped && (self.unit_bytes == 0 || !self.unit_bytes.is_multiple_of(block)) {
            let unit = self.unit_bytes;
            return Err(Error::invalid(format!(
                "a stripe unit of {unit} bytes is not a multiple of {block}, the largest block of \
                 the members"
            )));
        }
        let room = extents.iter().map(|extent| extent.len).min().unwrap_or(0);
        if striped && room < self.unit_bytes {
            let unit = self.unit_bytes;
            return Err(Error::invalid(format!(
                "a stripe unit of {unit} bytes does not fit the smallest member, which has {room} \
                 bytes for data"
            )));
        }
        if self.shape.is_nested()
            && (!(2..=4).contains(&self.plexes)
                || members < 2 * self.plexes
                || !members.is_multiple_of(self.plexes))
        {
            let plexes = self.plexes;
            return Err(Error::invalid(format!(
                "{members} members do not make {plexes} copies over equal stripes: give 2 to 4 \
                 copies and at least twice as many members, a multiple"
            )));
        }
        match (self.shape, members) {
            (_, 0) => Err(Error::invalid("a volume needs a member")),
            (Shape::Concat, 1) => Ok(Layout::Extent(extents[0])),
            (Shape::Concat, _) => Ok(Layout::Concat(Concat::new(leaves(extents)))),
            (Shape::Stripe, 1) => Err(Error::invalid("a stripe needs at least two members")),
            (Shape::Stripe, _) => Ok(stripe(leaves(extents))),
            (Shape::Mirror, 2..=4) => Ok(Layout::Mirror(Mirror::new(leaves(extents)))),
            (Shape::Mirror, _) => Err(Error::invalid(format!(
                "a mirror has 2 to 4 members and not {members}; see stripe-mirror for more"
            ))),
            (Shape::Raid5, 3..) => Ok(Layout::Raid5(Raid5::new(self.unit_bytes, leaves(extents)))),
            (Shape::Raid5, _) => Err(Error::invalid(format!(
                "a RAID-5 needs at least three members and not {members}"
            ))),
            (Shape::StripeMirror, _) => Ok(stripe(
                extents
                    .chunks(self.plexes)
                    .map(|mirrored| Layout::Mirror(Mirror::new(leaves(mirrored))))
                    .collect(),
            )),
            (Shape::MirrorStripe, _) => Ok(Layout::Mirror(Mirror::new(
                extents
                    .chunks(members / self.plexes)
                    .map(|striped| stripe(leaves(striped)))
                    .collect(),
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(count: u16) -> Vec<Extent> {
        (0..count).map(|member| Extent { member, start: 4 << 20, len: 1 << 20 }).collect()
    }

    #[test]
    fn a_shape_says_of_itself_what_its_layout_shows() {
        for (shape, name) in Shape::ALL {
            let arrangement = Arrangement { shape, unit_bytes: 65_536, plexes: 2 };
            let layout = arrangement.lay(&extents(4), 512).unwrap();
            assert_eq!(shape.has_parity(), layout.has_parity(), "{name}");
            assert_eq!(shape.is_redundant(), layout.is_redundant(), "{name}");
            assert_eq!(
                shape.is_nested(),
                layout.children().iter().any(|child| !child.children().is_empty()),
                "{name}"
            );
            assert_eq!(shape.is_striped(), layout.unit_bytes().is_some(), "{name}");
            let mut unequal = extents(4);
            unequal[0].len *= 2;
            let grows = arrangement.lay(&unequal, 512).unwrap().size_bytes() > layout.size_bytes();
            assert_eq!(shape.needs_equal_members(), !grows, "{name}");
        }
    }

    #[test]
    fn members_take_their_places_in_the_order_given() {
        let lay = |shape, members, plexes| {
            Arrangement { shape, unit_bytes: 65_536, plexes }.lay(&extents(members), 512)
        };
        let second = |layout: &Layout| {
            layout.locate(65_536).copies().iter().map(|copy| copy.member).collect::<Vec<_>>()
        };
        assert_eq!(second(&lay(Shape::StripeMirror, 4, 2).unwrap()), vec![2, 3]);
        assert_eq!(second(&lay(Shape::MirrorStripe, 4, 2).unwrap()), vec![1, 3]);
        assert_eq!(second(&lay(Shape::MirrorStripe, 6, 3).unwrap()), vec![1, 3, 5]);
        for (shape, name) in Shape::ALL {
            let layout = lay(shape, 4, 2).unwrap();
            assert_eq!((layout.name(), layout.fault()), (name, None));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_reason() {
        let refusal = |shape, members, unit_bytes, plexes| {
            Arrangement { shape, unit_bytes, plexes }
                .lay(&extents(members), 4096)
                .unwrap_err()
                .message
        };
        assert!(refusal(Shape::Stripe, 2, 6144, 2).contains("multiple of 4096"));
        assert!(refusal(Shape::Raid5, 3, 2 << 20, 2).contains("does not fit the smallest member"));
        assert!(refusal(Shape::Mirror, 5, 65_536, 2).contains("2 to 4"));
        assert!(refusal(Shape::StripeMirror, 5, 65_536, 2).contains("5 members"));
        assert!(refusal(Shape::Stripe, 1, 65_536, 2).contains("two members"));
        assert!(refusal(Shape::Raid5, 2, 16_384, 2).contains("three members"));
        assert!(refusal(Shape::Concat, 0, 65_536, 2).contains("needs a member"));
    }
}
