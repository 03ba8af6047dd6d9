//! The other way round: which address lives at a place of a member. Pure.

use super::{Extent, Layout};

/// A leaf of a layout: the extent, and the way there from the root.
#[derive(Debug, Clone)]
pub(crate) struct Leaf<'a> {
    root: &'a Layout,
    way: Vec<usize>,
    pub extent: Extent,
}

impl Layout {
    /// Returns the leaves.
    pub(crate) fn leaves(&self) -> Vec<Leaf<'_>> {
        let mut leaves = Vec::new();
        self.find_leaves(self, &mut Vec::new(), &mut leaves);
        leaves
    }

    fn find_leaves<'a>(&'a self, root: &'a Self, way: &mut Vec<usize>, leaves: &mut Vec<Leaf<'a>>) {
        if let Self::Extent(extent) = self {
            return leaves.push(Leaf { root, way: way.clone(), extent: *extent });
        }
        for (at, child) in self.children().iter().enumerate() {
            way.push(at);
            child.find_leaves(root, way, leaves);
            way.pop();
        }
    }

    /// Returns the address of byte `offset` of the leaf at the end of `way`, and for how many bytes
    /// the addresses go on with the places.
    fn address(&self, way: &[usize], offset: u64) -> (u64, u64) {
        let Some((child, rest)) = way.split_first() else {
            return (offset, self.size_bytes() - offset);
        };
        let (at, len) = self.children()[*child].address(rest, offset);
        match self {
            Self::Extent(_) => unreachable!("an extent has no children"),
            Self::Mirror(_) => (at, len),
            Self::Concat(concat) => {
                (concat.parts()[..*child].iter().map(Self::size_bytes).sum::<u64>() + at, len)
            }
            Self::Stripe(stripe) => {
                let (unit, width) = (stripe.unit_bytes(), stripe.columns().len() as u64);
                let row = (at / unit).saturating_mul(width);
                (
                    row.saturating_add(*child as u64)
                        .saturating_mul(unit)
                        .saturating_add(at % unit),
                    len.min(unit - at % unit),
                )
            }
            // A row is one thing, its parity included: whatever stands in it stands for the address
            // of its first byte.
            Self::Raid5(raid5) => {
                let unit = raid5.unit_bytes();
                ((at / unit).saturating_mul(raid5.row_bytes()), len.min(unit - at % unit))
            }
        }
    }
}

impl Leaf<'_> {
    /// Says whether it is a column of a RAID-5, whose places stand for whole rows.
    pub fn is_of_rows(&self) -> bool {
        self.root.has_parity()
    }

    /// Returns the address of byte `offset` of the extent, and for how many bytes the addresses go
    /// on with the places. It may lie beyond the end of the layout, where an extent is longer than
    /// its neighbours.
    pub fn address(&self, offset: u64) -> (u64, u64) {
        self.root.address(&self.way, offset)
    }
}

#[cfg(test)]
mod tests {
    use crate::layout::tests::extent;
    use crate::{Concat, Layout, Mirror, Stripe};

    #[test]
    fn every_place_knows_its_address() {
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
        ];
        for layout in layouts {
            let (mut at, leaves) = (0, layout.leaves());
            while at < layout.size_bytes() {
                let run = layout.locate(at);
                for copy in run.copies() {
                    let leaf =
                        leaves.iter().find(|leaf| leaf.extent.member == copy.member).unwrap();
                    let (address, len) = leaf.address(copy.offset - leaf.extent.start);
                    assert!(
                        address == at && len >= run.len,
                        "{layout:?} at {at}: {address}, {len}"
                    );
                }
                at += run.len;
            }
        }
    }
}
