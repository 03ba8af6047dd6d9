//! How a file's bytes are cut into pages, units and groups: pure arithmetic.
//!
//! ```text
//!   unit   the I/O alignment (512 B to 64 KiB): what is valid or dirty as a whole
//!   page   4 KiB, or a unit where that is larger: what is kept or evicted as a whole; at most 8 units, one bit each
//!   group  16 pages of one file, aligned: found by one look-up, guarded by one shard's lock
//! ```
//!
//! 4 KiB pages, because databases read 4 to 16 KiB at random places and a larger page would fill
//! the cap with bytes that were not asked for; groups, because a look-up and a lock for every 4 KiB
//! would cost a sequential reader more than the copy. Beside its data a page takes some 45 bytes,
//! plus 5 (dense) to 80 (alone in its group), plus 9 for the ghost queue: 1.5 to 3.3 %.

use std::ops::Range;

/// Pages of a group; as many as a `u16` has bits.
pub(super) use bedplate_lease::GROUP_PAGES;

/// Bytes of the largest request to the backing.
pub const REQUEST_BYTES_MAX: u64 = 1 << 20;

const _: () = assert!(
    GROUP_PAGES.is_power_of_two() && GROUP_PAGES <= 16,
    "a group has a bit for each of its pages"
);

/// Bytes of a cluster, in which completed runs of dirty pages are counted for the write-behind of
/// one file. It begins at a multiple of so many bytes of the file.
pub const CLUSTER_BYTES: u64 = 128 << 10;

const PAGE_SIZE_MIN: u32 = 4096;

const _: () = assert!(
    REQUEST_BYTES_MAX.is_power_of_two() && PAGE_SIZE_MIN.is_power_of_two(),
    "requests and pages are told apart by shifts"
);

#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    page_shift: u32,
    unit_shift: u32,
    /// Whether a valid page with a dirty unit may be written whole without allocating more blocks
    /// than the dirty unit does.
    pub(super) whole_pages: bool,
}

impl Layout {
    pub(super) fn new(io_align: u32, block_size: u32) -> Self {
        assert!(
            io_align.is_power_of_two() && (512..=65536).contains(&io_align),
            "the data path states a sound I/O alignment"
        );
        let page_size = io_align.max(PAGE_SIZE_MIN);
        Self {
            page_shift: page_size.trailing_zeros(),
            unit_shift: io_align.trailing_zeros(),
            whole_pages: block_size >= page_size,
        }
    }

    pub(super) fn page_size(self) -> usize {
        1 << self.page_shift
    }

    pub(super) fn page_of(self, offset: u64) -> u64 {
        offset >> self.page_shift
    }

    /// Returns the page after the last one that holds a byte before `offset`.
    pub(super) fn page_end(self, offset: u64) -> u64 {
        (offset >> self.page_shift) + u64::from(offset & self.page_mask() != 0)
    }

    pub(super) fn start_of(self, page: u64) -> u64 {
        page << self.page_shift
    }

    pub(super) fn in_page(self, offset: u64) -> usize {
        (offset & self.page_mask()) as usize
    }

    fn page_mask(self) -> u64 {
        (1 << self.page_shift) - 1
    }

    pub(super) fn group_of(self, offset: u64) -> u64 {
        offset >> self.page_shift >> GROUP_PAGES.trailing_zeros()
    }

    /// Returns the offset of the first byte after the group that holds `offset`.
    pub(super) fn group_end(self, offset: u64) -> u64 {
        let shift = self.page_shift + GROUP_PAGES.trailing_zeros();
        ((offset >> shift) + 1).saturating_mul(1 << shift)
    }

    /// The bits of all units of a page.
    pub(super) fn all_units(self) -> u8 {
        bits(0, 1 << (self.page_shift - self.unit_shift))
    }

    /// The bits of the units that hold a byte of `range` (offsets within the page).
    pub(super) fn units_touched(self, range: &Range<usize>) -> u8 {
        bits(range.start >> self.unit_shift, self.unit_ceil(range.end))
    }

    /// The bits of the units that lie wholly in `range`.
    pub(super) fn units_covered(self, range: &Range<usize>) -> u8 {
        bits(self.unit_ceil(range.start), range.end >> self.unit_shift)
    }

    /// The bits of the units that begin at or after `start`.
    pub(super) fn units_from(self, start: usize) -> u8 {
        bits(self.unit_ceil(start), 1 << (self.page_shift - self.unit_shift))
    }

    fn unit_ceil(self, at: usize) -> usize {
        at.div_ceil(1 << self.unit_shift)
    }

    /// Calls `each` with the byte range (within the page) of every run of set bits.
    pub(super) fn unit_runs(self, units: u8, mut each: impl FnMut(Range<usize>)) {
        let mut rest = u32::from(units);
        let mut base = 0;
        while rest != 0 {
            let skip = rest.trailing_zeros();
            let len = (rest >> skip).trailing_ones();
            each(
                ((base + skip) as usize) << self.unit_shift
                    ..((base + skip + len) as usize) << self.unit_shift,
            );
            base += skip + len;
            rest = rest.checked_shr(skip + len).unwrap_or(0);
        }
    }
}

fn bits(first: usize, end: usize) -> u8 {
    if first >= end {
        return 0;
    }
    ((1_u16 << end) - (1_u16 << first)) as u8
}

/// The part of a page range that lies in one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupSpan {
    pub(super) group: u64,
    pub(super) first: u64,
    pub(super) end: u64,
}

impl GroupSpan {
    /// The bits of the span's pages within the group.
    pub(super) fn bits(self) -> u16 {
        debug_assert!(
            self.first < self.end && self.end - self.first <= GROUP_PAGES,
            "a span has pages of one group: {}..{}",
            self.first,
            self.end
        );
        debug_assert!(
            self.first / GROUP_PAGES == self.group && (self.end - 1) / GROUP_PAGES == self.group,
            "a span lies in its group {}: {}..{}",
            self.group,
            self.first,
            self.end
        );
        let first = slot_of(self.first);
        let len = (self.end - self.first) as u32;
        (((1_u32 << len) - 1) << first) as u16
    }
}

/// Cuts a range of pages at group boundaries.
pub(super) fn group_spans(pages: Range<u64>) -> impl Iterator<Item = GroupSpan> {
    let mut at = pages.start;
    std::iter::from_fn(move || {
        if at >= pages.end {
            return None;
        }
        let group = at / GROUP_PAGES;
        let end = pages.end.min((group + 1) * GROUP_PAGES);
        let span = GroupSpan { group, first: at, end };
        at = end;
        Some(span)
    })
}

/// The place of a page in its group.
pub(super) fn slot_of(page: u64) -> usize {
    (page % GROUP_PAGES) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_a_range() {
        let layout = Layout::new(512, 4096);
        assert_eq!(layout.all_units(), 0xff);
        assert_eq!(layout.units_touched(&(100..600)), 0b11);
        assert_eq!(layout.units_covered(&(100..600)), 0);
        assert_eq!(layout.units_covered(&(512..1536)), 0b110);
        assert_eq!(layout.units_from(513), 0b1111_1100);
        let mut runs = Vec::new();
        layout.unit_runs(0b1011_0001, |r| runs.push(r));
        assert_eq!(runs, [0..512, 2048..3072, 3584..4096]);
        assert_eq!(Layout::new(65536, 65536).all_units(), 1);
    }

    #[test]
    fn spans_of_a_range() {
        let spans: Vec<_> = group_spans(14..33).collect();
        assert_eq!(
            spans.iter().map(|s| (s.group, s.first, s.end)).collect::<Vec<_>>(),
            [(0, 14, 16), (1, 16, 32), (2, 32, 33)]
        );
        assert_eq!(spans[0].bits(), 0b1100_0000_0000_0000);
        assert_eq!(spans[1].bits(), 0xffff);
    }

    #[test]
    fn the_last_group_of_the_offset_space_ends() {
        assert_eq!(Layout::new(4096, 4096).group_end(u64::MAX), u64::MAX);
    }
}
