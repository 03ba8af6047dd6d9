//! The pages of the metadata tree, read without its library: whatever still has the right checksum,
//! and where need be what merely looks right.
//!
//! Only what the format of redb's files (version 3) says of leaves and branches is used here; every
//! number is checked before use.
//!
//! ```text
//! file    page 0: magic 9 | flags u8 (1: slot 1 is the present one) | 2 | page size u32 | header pages u32 | region pages u32 | … | slots at 64, 192
//! slot    version u8 | has root u8 | 6 | root: page u64, checksum u128, length u64 | … | transaction u64 at 104 | checksum u128 at 112
//! leaf    1 | 0 | pairs u16 | end of each key u32 | end of each value u32 | keys | values
//! branch  2 | 0 | keys u16 | 4 | checksum of each child u128 | page of each child u64 | end of each key u32 | keys
//! page    order : 5 | … | region : 20 | index : 20
//! ```

use twox_hash::XxHash3_128;

use bedplate_store::Region;

const MAGIC: &[u8; 9] = b"redb\x1a\n\xa9\r\n";
pub(super) const PAGE: usize = 4096;
const SLOTS: [usize; 2] = [64, 192];
const SLOT_BYTES: usize = 128;
const LEAF: u8 = 1;
const BRANCH: u8 = 2;
/// Larger pages hold one large value; none of ours is so large.
const ORDER_MAX: u32 = 8;
/// No sound tree is deeper.
const DEPTH_MAX: usize = 32;

/// A page of the tree and what it must contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Root {
    pub(super) page: u64,
    checksum: u128,
}

/// One commit as its slot in the header describes it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    root: Option<Root>,
    /// Whether the slot itself has the right checksum. Where it has not, its root may be right
    /// still: the root's own checksum tells.
    pub(super) intact: bool,
}

/// Keys of which nothing is known: above `after` (or from the beginning) up to `upto` (or the end).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) after: Option<Vec<u8>>,
    pub(super) upto: Option<Vec<u8>>,
    /// What is wrong, and where.
    pub(super) reason: String,
}

impl Gap {
    pub(super) fn holds(&self, key: &[u8]) -> bool {
        self.after.as_deref().is_none_or(|after| key > after)
            && self.upto.as_deref().is_none_or(|upto| key <= upto)
    }
}

/// A table's name, and its root unless it is empty.
pub(super) type TableRoot = (Vec<u8>, Option<Root>);

/// Bounds of keys: above the first, up to the second.
type Bounds = (Option<Vec<u8>>, Option<Vec<u8>>);

/// What a walk over one tree found.
#[derive(Debug, Default)]
pub(super) struct Walked {
    pub(super) rows: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) gaps: Vec<Gap>,
}

/// The tree's file.
pub(super) struct TreeFile<'a> {
    region: &'a Region,
    len: u64,
    header_pages: u64,
    region_pages: u64,
}

impl<'a> TreeFile<'a> {
    /// Reads the header; `None` where it is none. Returns the commits too, the present one first.
    pub(super) fn open(region: &'a Region) -> Option<(Self, Vec<Slot>)> {
        let len = region.superblock().metadata_len;
        let mut header = vec![0; PAGE];
        if len < 2 * PAGE as u64
            || region.read(0, &mut header).is_err()
            || header[..9] != *MAGIC
            || u32_at(&header, 12)? as usize != PAGE
        {
            return None;
        }
        let (header_pages, region_pages) =
            (u64::from(u32_at(&header, 16)?), u64::from(u32_at(&header, 20)?));
        let mut slots: Vec<Slot> =
            SLOTS.iter().filter_map(|at| Slot::read(header.get(*at..at + SLOT_BYTES)?)).collect();
        if header[9] & 1 != 0 {
            slots.reverse();
        }
        Some((Self { region, len, header_pages, region_pages }, slots))
    }

    /// Returns where a page lies in the tree's file; `None` where it cannot be.
    pub(super) fn place(&self, number: u64) -> Option<(u64, u64)> {
        let order = u32::try_from(number >> 59).ok()?;
        let (region, index) = ((number >> 20) & 0xf_ffff, number & (0xf_ffff >> order.min(20)));
        if order > ORDER_MAX || region > 0 && self.region_pages == 0 {
            return None;
        }
        let bytes = (PAGE as u64) << order;
        let region_bytes = (self.header_pages + self.region_pages) * PAGE as u64;
        let start =
            PAGE as u64 + region * region_bytes + self.header_pages * PAGE as u64 + index * bytes;
        (start.checked_add(bytes)? <= self.len).then_some((start, bytes))
    }

    /// Reads a page; `None` where there is none or the device fails.
    fn page(&self, number: u64) -> Option<Vec<u8>> {
        let (start, bytes) = self.place(number)?;
        let mut page = vec![0; usize::try_from(bytes).ok()?];
        self.region.read(start, &mut page).ok()?;
        Some(page)
    }

    /// Returns the roots of the tables of a commit by name, and the parts of the list of tables
    /// that are lost.
    pub(super) fn tables(&self, slot: &Slot) -> (Vec<TableRoot>, Vec<Gap>) {
        let Some(root) = slot.root else { return (Vec::new(), Vec::new()) };
        let walked = self.walk(root);
        // Type, length, then whether there is a root, and the root.
        let root_of = |definition: &[u8]| {
            (*definition.get(9)? != 0).then(|| Root::read(definition.get(10..)?)).flatten()
        };
        (
            walked
                .rows
                .into_iter()
                .map(|(name, definition)| (name, root_of(&definition)))
                .collect(),
            walked.gaps,
        )
    }

    /// Walks a tree; a page that is not what its parent says becomes a gap.
    pub(super) fn walk(&self, root: Root) -> Walked {
        let mut walked = Walked::default();
        self.descend(root, &(None, None), 0, &mut walked);
        walked
    }

    fn descend(&self, root: Root, bounds: &Bounds, depth: usize, walked: &mut Walked) {
        let lost = |what: &str| {
            let (after, upto) = bounds.clone();
            Gap {
                after,
                upto,
                reason: format!("page {:#x} of the metadata tree {what}", root.page),
            }
        };
        let Some(page) = self.page(root.page) else {
            return walked.gaps.push(lost("cannot be read"));
        };
        if depth > DEPTH_MAX || checksum(&page) != Some(root.checksum) {
            return walked.gaps.push(lost("does not have its checksum"));
        }
        match Branch::read(&page) {
            Some(branch) => {
                for (at, child) in branch.children.iter().enumerate() {
                    let after = at.checked_sub(1).map_or_else(
                        || bounds.0.clone(),
                        |before| Some(branch.keys[before].clone()),
                    );
                    let upto = branch.keys.get(at).cloned().or_else(|| bounds.1.clone());
                    self.descend(*child, &(after, upto), depth + 1, walked);
                }
            }
            None => match leaf(&page) {
                Some(rows) => walked.rows.extend(rows),
                None => walked.gaps.push(lost("is neither leaf nor branch")),
            },
        }
    }
}

impl Slot {
    fn read(bytes: &[u8]) -> Option<Self> {
        let stored = u128::from_le_bytes(bytes.get(112..128)?.try_into().ok()?);
        let intact = XxHash3_128::oneshot(bytes.get(..112)?) == stored;
        let root = (bytes[1] != 0).then(|| Root::read(&bytes[8..])).flatten();
        Some(Self { root, intact })
    }
}

impl Root {
    fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            page: u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?),
            checksum: u128::from_le_bytes(bytes.get(8..24)?.try_into().ok()?),
        })
    }
}

struct Branch {
    children: Vec<Root>,
    keys: Vec<Vec<u8>>,
}

impl Branch {
    fn read(page: &[u8]) -> Option<Self> {
        let keys = (*page.first()? == BRANCH).then(|| u16_at(page, 2))?? as usize;
        let children = (0..=keys).map(|n| {
            let sum = page.get(8 + 16 * n..)?.get(..16)?;
            let number = page.get(8 + 16 * (keys + 1) + 8 * n..)?.get(..8)?;
            Some(Root {
                page: u64::from_le_bytes(number.try_into().ok()?),
                checksum: u128::from_le_bytes(sum.try_into().ok()?),
            })
        });
        let children = children.collect::<Option<Vec<_>>>()?;
        let ends_at = 8 + 24 * (keys + 1);
        let keys = pieces(page, ends_at, keys, ends_at + 4 * keys)?;
        Some(Self { children, keys: keys.into_iter().map(<[u8]>::to_vec).collect() })
    }
}

/// Returns the rows of a leaf; `None` where it is none.
pub(super) fn leaf(page: &[u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let pairs = (*page.first()? == LEAF).then(|| u16_at(page, 2))?? as usize;
    if pairs == 0 {
        return None;
    }
    let keys = pieces(page, 4, pairs, 4 + 8 * pairs)?;
    let values_start = u32_at(page, 4 + 4 * (pairs - 1))? as usize;
    let values = pieces(page, 4 + 4 * pairs, pairs, values_start)?;
    Some(keys.into_iter().zip(values).map(|(key, value)| (key.to_vec(), value.to_vec())).collect())
}

/// Cuts a page at `count` ends that stand at `ends_at`; the first piece begins at `start`.
fn pieces(page: &[u8], ends_at: usize, count: usize, start: usize) -> Option<Vec<&[u8]>> {
    let mut from = start;
    let piece = |n| {
        let end = u32_at(page, ends_at + 4 * n)? as usize;
        let piece = page.get(from..end)?;
        from = end;
        Some(piece)
    };
    (0..count).map(piece).collect()
}

/// The checksum of a page covers it up to the end of its last value or key.
fn checksum(page: &[u8]) -> Option<u128> {
    let count = u16_at(page, 2)? as usize;
    let last = count.checked_sub(1)?;
    let end = match *page.first()? {
        LEAF => u32_at(page, 4 + 4 * count + 4 * last)?,
        BRANCH => u32_at(page, 8 + 24 * (count + 1) + 4 * last)?,
        _ => return None,
    };
    Some(XxHash3_128::oneshot(page.get(..end as usize)?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_are_a_page_or_none() {
        let mut state = 7_u64;
        for _ in 0..2000 {
            let mut page = vec![0_u8; 256];
            for byte in &mut page {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (state >> 60) as u8;
            }
            page[0] = 1 + (state >> 40) as u8 % 2;
            let _pieces = (leaf(&page).is_some(), Branch::read(&page).is_some(), checksum(&page));
        }
    }

    #[test]
    fn a_gap_holds_what_lies_between_its_bounds() {
        let gap = Gap { after: Some(vec![1]), upto: Some(vec![3]), reason: String::new() };
        assert!(!gap.holds(&[1]) && gap.holds(&[1, 0]) && gap.holds(&[3]) && !gap.holds(&[3, 0]));
    }
}
