//! Which blocks of a file stay where they lie, and which are copied. Pure functions over values.
//!
//! A block is copied where the old file system has its bytes in another form or place (inline data,
//! unaligned ends), where it lies at one of the places of the superblock, and where another file has
//! it too. Blocks that are only reserved are never copied.

use std::ops::Range;

use bedplate_block::{FileExtent, IN_PLACE_SECOND_COPY};
use bedplate_fs::AdoptedExtent;

/// Bytes from 0 and from 8 MiB on that belong to the copies of the superblock.
const COPY_BYTES: u64 = 64 << 10;

/// Returns the bytes at which nothing can stay.
pub(crate) fn fixed() -> [Range<u64>; 2] {
    [0..COPY_BYTES, IN_PLACE_SECOND_COPY..IN_PLACE_SECOND_COPY + COPY_BYTES]
}

/// What becomes of the blocks of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Split {
    /// Those that stay, in the order of the file.
    pub stays: Vec<AdoptedExtent>,
    /// Blocks of the file that are copied, in order and apart.
    pub copies: Vec<Range<u64>>,
}

impl Split {
    fn copy(&mut self, blocks: Range<u64>) {
        if !blocks.is_empty() {
            self.copies.push(blocks);
        }
    }

    /// Puts what is copied in order.
    fn settle(&mut self) {
        self.copies.sort_by_key(|blocks| blocks.start);
        let mut joined: Vec<Range<u64>> = Vec::new();
        for blocks in self.copies.drain(..) {
            match joined.last_mut() {
                Some(last) if blocks.start <= last.end => last.end = last.end.max(blocks.end),
                _ => joined.push(blocks),
            }
        }
        self.copies = joined;
    }

    /// Returns how many blocks are copied.
    pub fn copied(&self) -> u64 {
        self.copies.iter().map(|blocks| blocks.end - blocks.start).sum()
    }
}

/// Splits a file of `size` bytes, in blocks of `block` bytes.
pub(crate) fn split(extents: &[FileExtent], size: u64, block: u64) -> Split {
    let file_end = size.div_ceil(block);
    let mut split = Split::default();
    for extent in extents {
        let end = extent.offset.saturating_add(extent.len);
        let touched = extent.offset / block..end.div_ceil(block);
        let whole = extent.offset.div_ceil(block)..end / block;
        let is_aligned = extent.place % block == extent.offset % block;
        if !extent.is_plain || !is_aligned || whole.is_empty() {
            if !extent.unwritten {
                split.copy(touched.start..touched.end.min(file_end));
            }
            continue;
        }
        if !extent.unwritten {
            split.copy(touched.start..whole.start);
            split.copy(whole.end..touched.end.min(file_end).max(whole.end));
        }
        let first = (extent.place + (whole.start * block - extent.offset)) / block;
        stay(&mut split, whole, first, extent.unwritten, file_end, block);
    }
    split.settle();
    split
}

/// Lets blocks of the file stay that lie from block `first` of the device on, cut where the file
/// ends and where the superblock has its places.
fn stay(
    split: &mut Split,
    whole: Range<u64>,
    first: u64,
    unwritten: bool,
    file_end: u64,
    block: u64,
) {
    let mut at = whole.start;
    while at < whole.end {
        let place = (first + (at - whole.start)) * block;
        let mut len = whole.end - at;
        if at < file_end {
            len = len.min(file_end - at);
        }
        let mut is_taken = false;
        for fixed in fixed() {
            let fixed = fixed.start..fixed.end.next_multiple_of(block);
            if fixed.contains(&place) {
                is_taken = true;
                len = len.min((fixed.end - place) / block);
            } else if place < fixed.start {
                len = len.min((fixed.start - place).div_ceil(block));
            }
        }
        // What lies behind the end of the file shows when the file becomes longer.
        let reads_as_zeros = unwritten || at >= file_end;
        match (is_taken, reads_as_zeros) {
            (true, true) => {}
            (true, false) => split.copy(at..at + len),
            (false, _) => split.stays.push(AdoptedExtent {
                file_block: at,
                start: place / block,
                blocks: len,
                unwritten: reads_as_zeros,
            }),
        }
        at += len;
    }
}

/// Has blocks copied that several files have, or one has twice: the first keeps them. Returns how
/// many blocks these are.
pub(crate) fn part_shared(splits: &mut [Split]) -> u64 {
    let mut all: Vec<(u64, u64, usize, usize)> = Vec::new();
    for (file, split) in splits.iter().enumerate() {
        for (index, one) in split.stays.iter().enumerate() {
            all.push((one.start, one.blocks, file, index));
        }
    }
    all.sort_unstable();
    let (mut taken_to, mut parted, mut blocks) = (0, Vec::new(), 0);
    for (start, len, file, index) in all {
        if start < taken_to {
            parted.push((file, index));
            blocks += len;
        } else {
            taken_to = start + len;
        }
    }
    parted.sort_unstable();
    for (file, index) in parted.into_iter().rev() {
        let one = splits[file].stays.remove(index);
        if !one.unwritten {
            splits[file].copy(one.file_block..one.file_block + one.blocks);
        }
        splits[file].settle();
    }
    blocks
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of ranges are meant")]
mod tests {
    use super::*;

    const BLOCK: u64 = 4096;

    fn extent(offset: u64, place: u64, len: u64) -> FileExtent {
        FileExtent { offset, place, len, unwritten: false, is_plain: true }
    }

    fn stays(file_block: u64, start: u64, blocks: u64, unwritten: bool) -> AdoptedExtent {
        AdoptedExtent { file_block, start, blocks, unwritten }
    }

    #[test]
    fn whole_blocks_stay_with_their_holes_and_reservations() {
        let reserved = FileExtent { unwritten: true, ..extent(10 * BLOCK, 500 * BLOCK, 3 * BLOCK) };
        let found = split(&[extent(0, 100 * BLOCK, 4 * BLOCK), reserved], 12 * BLOCK - 7, BLOCK);
        let expected = [stays(0, 100, 4, false), stays(10, 500, 2, true), stays(12, 502, 1, true)];
        assert_eq!((found.stays.as_slice(), found.copies.len()), (&expected[..], 0));
        let behind = split(&[extent(0, 100 * BLOCK, 4 * BLOCK)], BLOCK + 1, BLOCK);
        assert_eq!(behind.stays, [stays(0, 100, 2, false), stays(2, 102, 2, true)]);
    }

    #[test]
    fn what_is_not_plain_or_not_aligned_is_copied() {
        let inline = FileExtent { is_plain: false, ..extent(0, 12_345, 60) };
        assert_eq!(split(&[inline], 60, BLOCK), Split { stays: vec![], copies: vec![0..1] });
        // Blocks of 1 KiB: the second piece begins within a block of the volume.
        let pieces =
            [extent(0, 100 * BLOCK, BLOCK + 1024), extent(BLOCK + 1024, 7 * 1024, 9 * 1024)];
        let found = split(&pieces, BLOCK + 10 * 1024, BLOCK);
        assert_eq!(found, Split { stays: vec![stays(0, 100, 1, false)], copies: vec![1..4] });
        let encoded = FileExtent { is_plain: false, unwritten: true, ..extent(0, 0, BLOCK) };
        assert_eq!(split(&[encoded], BLOCK, BLOCK), Split::default());
    }

    #[test]
    fn the_places_of_the_superblock_are_kept_free() {
        let second = IN_PLACE_SECOND_COPY / BLOCK;
        let found = split(&[extent(0, (second - 2) * BLOCK, 30 * BLOCK)], 30 * BLOCK, BLOCK);
        let expected = [stays(0, second - 2, 2, false), stays(18, second + 16, 12, false)];
        assert_eq!(found, Split { stays: expected.to_vec(), copies: vec![2..18] });
        let reserved = FileExtent { unwritten: true, ..extent(0, BLOCK, 20 * BLOCK) };
        let found = split(&[reserved], 0, BLOCK);
        assert_eq!(found, Split { stays: vec![stays(15, 16, 5, true)], copies: vec![] });
        for place in (0..32 << 20).step_by(37 * BLOCK as usize) {
            let found = split(&[extent(0, place, 40 * BLOCK)], 40 * BLOCK, BLOCK);
            let blocks: u64 = found.stays.iter().map(|one| one.blocks).sum();
            assert_eq!(blocks + found.copied(), 40, "all blocks are somewhere");
            for one in &found.stays {
                let bytes = one.start * BLOCK..(one.start + one.blocks) * BLOCK;
                let free =
                    |fixed: &Range<u64>| bytes.end <= fixed.start || fixed.end <= bytes.start;
                assert!(fixed().iter().all(free), "{one:?}");
            }
        }
    }

    #[test]
    fn of_files_that_share_blocks_one_keeps_them() {
        let mut splits = vec![
            split(&[extent(0, 100 * BLOCK, 8 * BLOCK)], 8 * BLOCK, BLOCK),
            split(&[extent(0, 104 * BLOCK, 2 * BLOCK)], 2 * BLOCK, BLOCK),
            split(
                &[extent(0, 300 * BLOCK, BLOCK), extent(BLOCK, 300 * BLOCK, BLOCK)],
                2 * BLOCK,
                BLOCK,
            ),
        ];
        assert_eq!(part_shared(&mut splits), 3);
        assert_eq!(splits[0].copied(), 0);
        assert_eq!(splits[1], Split { stays: vec![], copies: vec![0..2] });
        assert_eq!(splits[2], Split { stays: vec![stays(0, 300, 1, false)], copies: vec![1..2] });
    }
}
