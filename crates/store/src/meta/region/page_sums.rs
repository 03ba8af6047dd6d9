//! The checksums that pages of the tree's file must have, as far as they are known: each page is
//! compared when it is read from the device, and where it differs another copy is asked (S-410).
//!
//! ```text
//!   header ─► roots of the two lists of tables ─► roots of tables ─► children of branches        a page that was read says what those below it are
//!   a page that is written                                                                       says what it is itself
//! ```
//!
//! Nothing of this is on the device besides what redb keeps in its own pages: the checksum of each
//! child stands in its parent (the layout is in `fs/src/salvage/pages.rs`), and a page is read only
//! after its parent was. A page that was written since the region was opened is known by its content
//! as a whole. redb never overwrites a page that is in use: what is known of one holds until it is
//! written again.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::RwLock;
use twox_hash::XxHash3_128;

use super::PAGE;

const MAGIC: &[u8; 9] = b"redb\x1a\n\xa9\r\n";
/// Bytes of the header that redb reads and writes.
pub(super) const HEADER_BYTES: usize = 320;
const SLOTS: [usize; 2] = [64, 192];
/// Where a commit slot has the roots of the lists of tables, each behind a byte that says whether
/// there is one: those of the file system, and those of redb itself.
const ROOTS: [(usize, usize); 2] = [(1, 8), (2, 40)];
const SLOT_SUM_AT: usize = 112;
const SLOT_BYTES: usize = 128;
/// A definition in a list of tables: its type, and where the root and the widths stand.
const NORMAL_TABLE: u8 = 3;
const ROOT_AT: usize = 9;
const WIDTHS_AT: [usize; 2] = [42, 47];
const LEAF: u8 = 1;
const BRANCH: u8 = 2;
/// A page is 4,096 bytes, two to this power times, at most.
const ORDER_MAX: u32 = 15;
const HASH_BITS: u32 = 52;
const HASH: u64 = (1 << HASH_BITS) - 1;
/// The most kinds of pages that are told apart; more are not compared.
const KINDS_MAX: usize = 255;

/// What is known of a page besides its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The checksum is of all of its bytes.
    Whole,
    /// It belongs to a list of tables.
    Tables,
    /// It belongs to a table whose keys and values may have fixed widths.
    Rows { key: Option<u32>, value: Option<u32> },
}

/// Where pages lie in the tree's file.
#[derive(Debug, Clone, Copy)]
struct Shape {
    header_pages: u64,
    region_pages: u64,
}

#[derive(Debug, Default)]
struct Known {
    /// By page of 4,096 bytes: number of the kind from 1 on (8 bits), order of the page (4), and as
    /// much of its checksum as there is room for. 0: nothing is known.
    pages: Vec<u64>,
    kinds: Vec<Kind>,
    shape: Option<Shape>,
}

/// What was compared, and what came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MetadataCounts {
    /// Reads of pages that were compared with their checksums.
    pub verified: u64,
    /// Those that were not what was written, and another copy was.
    pub healed: u64,
    /// Those of which no copy was what was written.
    pub lost: u64,
}

/// The checksums of the pages of a region, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct PageSums {
    known: RwLock<Known>,
    /// The header as it was last written to the volume; nothing before.
    header: RwLock<Option<Box<[u8]>>>,
    verified: AtomicU64,
    pub(super) healed: AtomicU64,
    pub(super) lost: AtomicU64,
}

/// What a page must be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Expected {
    /// The header: one of its slots is the present one, and that must be whole.
    Header,
    Page(Sum),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Sum {
    kind: Kind,
    hash: u64,
}

impl Expected {
    /// Says whether bytes are what they must be.
    pub(super) fn is_met_by(self, bytes: &[u8]) -> bool {
        match self {
            Self::Header => present_slot(bytes).is_some(),
            Self::Page(sum) => hash(sum.kind, bytes) == Some(sum.hash),
        }
    }
}

impl PageSums {
    /// Returns what a read must return, if that is known.
    pub(super) fn expected(&self, offset: u64, len: usize) -> Option<Expected> {
        if is_header(offset, len) {
            return Some(Expected::Header);
        }
        let page = self.known.read().page(page_of(offset, len)? as u64);
        let (_, sum) = page.filter(|(known, _)| *known == len as u64)?;
        self.verified.fetch_add(1, Relaxed);
        Some(Expected::Page(sum))
    }

    /// Returns how long the page is that begins at a place, where that is known.
    pub(super) fn page_at(&self, offset: u64) -> Option<u64> {
        if offset == 0 {
            return Some(PAGE);
        }
        self.known.read().page(offset / PAGE).map(|(len, _)| len)
    }

    /// Returns the page that a place lies in: where it begins, its length, and what it must be; not
    /// of the header, of which a part has no checksum.
    pub(super) fn covering(&self, at: u64) -> Option<(u64, u64, Expected)> {
        let (at, known) = (at / PAGE, self.known.read());
        let starts = (at.saturating_sub((1 << ORDER_MAX) - 1).max(1)..=at).rev();
        let (start, (len, sum)) =
            starts.into_iter().find_map(|start| Some((start, known.page(start)?)))?;
        ((at - start) * PAGE < len).then_some((start * PAGE, len, Expected::Page(sum)))
    }

    /// Takes note of what is about to be written to the volume, where that is the header.
    pub(super) fn note_header_below(&self, offset: u64, bytes: &[u8]) {
        if is_header(offset, bytes.len()) {
            *self.header.write() = Some(bytes.into());
        }
    }

    /// Returns the header as it was last written to the volume, if it was.
    pub(super) fn header_below(&self) -> Option<Box<[u8]>> {
        self.header.read().clone()
    }

    /// Returns where pages may lie that a page leads to: those that are known among them do.
    pub(super) fn below(&self, offset: u64, bytes: &[u8]) -> Vec<u64> {
        let shape = self.known.read().shape;
        let place = |page: u64| Some(shape?.place(page)?.0);
        let pages: Vec<u64> = if offset == 0 {
            let Some(slot) = present_slot(bytes) else { return Vec::new() };
            let roots = ROOTS.iter().filter(|(flag, _)| slot[*flag] != 0);
            roots.filter_map(|(_, at)| Some(child(slot, *at)?.0)).collect()
        } else if bytes.first() == Some(&BRANCH) {
            children(bytes).unwrap_or_default().into_iter().map(|(page, _)| page).collect()
        } else {
            let definitions = values(bytes).unwrap_or_default().into_iter();
            definitions.filter_map(|one| Some(child(one, ROOT_AT + 1)?.0)).collect()
        };
        pages.into_iter().filter_map(place).collect()
    }

    /// Takes note of what a page that was read, and is what it must be, says of others.
    pub(super) fn note_read(&self, offset: u64, bytes: &[u8], expected: Expected) {
        match expected {
            Expected::Header => self.note_header(bytes),
            Expected::Page(Sum { kind: Kind::Whole, .. }) => {}
            Expected::Page(Sum { kind, .. }) => match bytes.first() {
                Some(&BRANCH) => {
                    for (page, sum) in children(bytes).unwrap_or_default() {
                        self.note_child(page, sum, kind);
                    }
                }
                Some(&LEAF) if kind == Kind::Tables => self.note_tables(bytes),
                _ => {}
            },
        }
        debug_assert!(offset == 0 || offset.is_multiple_of(PAGE), "pages are read whole");
    }

    /// Takes note that a page is about to be written: what it was does not count any more.
    pub(super) fn forget(&self, offset: u64, len: usize) {
        let mut known = self.known.write();
        let first = usize::try_from(offset / PAGE).unwrap_or(usize::MAX);
        let last = usize::try_from((offset + len as u64).div_ceil(PAGE)).unwrap_or(usize::MAX);
        let last = last.min(known.pages.len());
        if first < last {
            known.pages[first..last].fill(0);
        }
    }

    /// Takes note of what was written.
    pub(super) fn note_written(&self, offset: u64, bytes: &[u8]) {
        if let Some(hash) = page_of(offset, bytes.len()).and_then(|_| hash(Kind::Whole, bytes)) {
            self.known.write().set(offset, bytes.len() as u64, Kind::Whole, hash);
        }
    }

    pub(super) fn counts(&self) -> MetadataCounts {
        MetadataCounts {
            verified: self.verified.load(Relaxed),
            healed: self.healed.load(Relaxed),
            lost: self.lost.load(Relaxed),
        }
    }

    fn note_header(&self, bytes: &[u8]) {
        let Some(slot) = present_slot(bytes) else { return };
        let word = |at: usize| u32_at(bytes, at).map(u64::from);
        let (Some(header_pages), Some(region_pages)) = (word(16), word(20)) else { return };
        self.known.write().shape = Some(Shape { header_pages, region_pages });
        for (flag, at) in ROOTS {
            if slot[flag] != 0
                && let Some((page, sum)) = child(slot, at)
            {
                self.note_child(page, sum, Kind::Tables);
            }
        }
    }

    fn note_tables(&self, bytes: &[u8]) {
        for definition in values(bytes).unwrap_or_default() {
            let width = |at: usize| -> Option<Option<u32>> {
                Some(if *definition.get(at)? == 0 {
                    None
                } else {
                    Some(u32_at(definition, at + 1)?)
                })
            };
            if definition.first() == Some(&NORMAL_TABLE)
                && definition.get(ROOT_AT).is_some_and(|has_root| *has_root != 0)
                && let Some((page, sum)) = child(definition, ROOT_AT + 1)
                && let (Some(key), Some(value)) = (width(WIDTHS_AT[0]), width(WIDTHS_AT[1]))
            {
                self.note_child(page, sum, Kind::Rows { key, value });
            }
        }
    }

    fn note_child(&self, page: u64, sum: u128, kind: Kind) {
        let mut known = self.known.write();
        let Some((offset, len)) = known.shape.and_then(|shape| shape.place(page)) else { return };
        // What was written since is known better.
        let is_written =
            known.pages.get(usize::try_from(offset / PAGE).unwrap_or(usize::MAX)).and_then(
                |entry| known.kinds.get(usize::from((entry >> 56) as u8).checked_sub(1)?),
            ) == Some(&Kind::Whole);
        if !is_written {
            known.set(offset, len, kind, sum as u64 & HASH);
        }
    }
}

impl Known {
    /// Returns what is known of the page that begins at a page of 4,096 bytes: its length, and what it
    /// must be.
    fn page(&self, number: u64) -> Option<(u64, Sum)> {
        let entry = *self.pages.get(usize::try_from(number).ok()?)?;
        let kind = *self.kinds.get(usize::from((entry >> 56) as u8).checked_sub(1)?)?;
        Some((PAGE << ((entry >> HASH_BITS) & 0xf), Sum { kind, hash: entry & HASH }))
    }

    fn set(&mut self, offset: u64, len: u64, kind: Kind, hash: u64) {
        let (Ok(at), Some(order)) =
            (usize::try_from(offset / PAGE), usize::try_from(len).ok().and_then(order_of))
        else {
            return;
        };
        let number = match self.kinds.iter().position(|known| *known == kind) {
            Some(number) => number,
            None if self.kinds.len() == KINDS_MAX => return,
            None => {
                self.kinds.push(kind);
                self.kinds.len() - 1
            }
        };
        if at >= self.pages.len() {
            self.pages.resize((at + 1).next_power_of_two(), 0);
        }
        self.pages[at] = (number as u64 + 1) << 56 | u64::from(order) << HASH_BITS | hash;
    }
}

impl Shape {
    /// Returns where a page lies in the file, and its length.
    fn place(self, number: u64) -> Option<(u64, u64)> {
        let order = u32::try_from(number >> 59).ok().filter(|order| *order <= ORDER_MAX)?;
        let (region, index) = ((number >> 20) & 0xf_ffff, number & (0xf_ffff >> order));
        let bytes = PAGE << order;
        let region_bytes = self.header_pages.checked_add(self.region_pages)?.checked_mul(PAGE)?;
        let in_region = self.header_pages * PAGE + index * bytes;
        let start = region.checked_mul(region_bytes)?.checked_add(PAGE)?.checked_add(in_region)?;
        // A file has no more pages than the device has bytes; what is above is damage.
        (start / PAGE < 1 << 36).then_some((start, bytes))
    }
}

fn is_header(offset: u64, len: usize) -> bool {
    offset == 0 && (HEADER_BYTES..=4096).contains(&len)
}

fn page_of(offset: u64, len: usize) -> Option<usize> {
    order_of(len)?;
    offset.is_multiple_of(PAGE).then(|| usize::try_from(offset / PAGE).ok())?
}

/// Returns which power of two of pages this is.
fn order_of(len: usize) -> Option<u32> {
    let pages = (len as u64).is_multiple_of(PAGE).then_some(len as u64 / PAGE)?;
    (pages.is_power_of_two() && pages.trailing_zeros() <= ORDER_MAX)
        .then_some(pages.trailing_zeros())
}

/// Returns the slot of the present commit, if it has its checksum.
fn present_slot(header: &[u8]) -> Option<&[u8]> {
    if header.get(..9)? != MAGIC || u64::from(u32_at(header, 12)?) != PAGE {
        return None;
    }
    let at = SLOTS[usize::from(header[9] & 1)];
    let slot = header.get(at..at + SLOT_BYTES)?;
    let stored = u128::from_le_bytes(slot[SLOT_SUM_AT..].try_into().ok()?);
    (XxHash3_128::oneshot(&slot[..SLOT_SUM_AT]) == stored).then_some(slot)
}

/// Returns as much of a page's checksum as is kept; `None` where it cannot be such a page.
fn hash(kind: Kind, page: &[u8]) -> Option<u64> {
    let end = match kind {
        Kind::Whole => page.len(),
        Kind::Tables => end_of(page, None, None)?,
        Kind::Rows { key, value } => end_of(page, key, value)?,
    };
    Some(XxHash3_128::oneshot(page.get(..end)?) as u64 & HASH)
}

/// Returns where the last value of a leaf, or the last key of a branch, ends.
fn end_of(page: &[u8], key: Option<u32>, value: Option<u32>) -> Option<usize> {
    let count = usize::from(u16_at(page, 2)?);
    let last = count.checked_sub(1)?;
    let ends = |at: usize| u32_at(page, at + 4 * last).map(|end| end as usize);
    let fixed = |width: u32| count.checked_mul(width as usize);
    match *page.first()? {
        LEAF => {
            let key_ends = if key.is_none() { 4 * count } else { 0 };
            let value_ends = if value.is_none() { 4 * count } else { 0 };
            match (key, value) {
                (_, None) => ends(4 + key_ends),
                (None, Some(value)) => ends(4)?.checked_add(fixed(value)?),
                (Some(key), Some(value)) => {
                    (4 + key_ends + value_ends).checked_add(fixed(key)?)?.checked_add(fixed(value)?)
                }
            }
        }
        BRANCH => {
            let start = 8 + 24 * (count + 1);
            key.map_or_else(|| ends(start), |key| start.checked_add(fixed(key)?))
        }
        _ => None,
    }
}

/// Returns the children of a branch and their checksums.
fn children(page: &[u8]) -> Option<Vec<(u64, u128)>> {
    let keys = usize::from(u16_at(page, 2)?);
    (0..=keys)
        .map(|n| {
            let sum = page.get(8 + 16 * n..)?.get(..16)?.try_into().ok()?;
            let number = page.get(8 + 16 * (keys + 1) + 8 * n..)?.get(..8)?.try_into().ok()?;
            Some((u64::from_le_bytes(number), u128::from_le_bytes(sum)))
        })
        .collect()
}

/// Returns the values of a leaf whose keys and values have no fixed widths.
fn values(page: &[u8]) -> Option<Vec<&[u8]>> {
    let pairs = usize::from(u16_at(page, 2)?);
    let mut from = u32_at(page, 4 + 4 * pairs.checked_sub(1)?)? as usize;
    (0..pairs)
        .map(|n| {
            let end = u32_at(page, 4 + 4 * pairs + 4 * n)? as usize;
            let value = page.get(from..end)?;
            from = end;
            Some(value)
        })
        .collect()
}

/// Returns a page and its checksum that stand at a place.
fn child(bytes: &[u8], at: usize) -> Option<(u64, u128)> {
    let page = bytes.get(at..at + 8)?.try_into().ok()?;
    let sum = bytes.get(at + 8..at + 24)?.try_into().ok()?;
    Some((u64::from_le_bytes(page), u128::from_le_bytes(sum)))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
