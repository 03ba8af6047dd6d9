//! Arithmetic of blocks and sectors: pure functions on byte offsets.

use std::ops::Range;

use crate::extent::Piece;

/// The part of `range` within `to`; empty somewhere in `to` where there is none.
#[inline]
pub fn within(range: &Range<u64>, to: &Range<u64>) -> Range<u64> {
    let start = range.start.clamp(to.start, to.end);
    start..range.end.clamp(start, to.end)
}

/// The two units of a file: the allocation block and the smallest direct I/O. Both are powers of
/// two (so nothing here divides), and a block holds whole sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Allocation unit in bytes.
    pub block: u64,
    /// Alignment in bytes of offset and length that the device wants.
    pub sector: u64,
    /// Alignment in bytes that the device wants of a buffer's address.
    buffer: usize,
    block_shift: u32,
}

impl Grid {
    /// The largest file in bytes, 64 PiB: far beyond any volume, and far enough below 2^64 that
    /// sums of two offsets cannot overflow.
    pub const FILE_BYTES_MAX: u64 = 1 << 56;

    /// Makes a grid of sizes in bytes, all powers of two.
    pub fn new(block: u32, sector: u32, buffer: u32) -> Self {
        assert!(
            block.is_power_of_two()
                && sector.is_power_of_two()
                && buffer.is_power_of_two()
                && sector <= block,
            "sizes were checked at mount"
        );
        Self {
            block: block.into(),
            sector: sector.into(),
            buffer: buffer as usize,
            block_shift: block.trailing_zeros(),
        }
    }

    /// Returns the block that holds `offset`.
    #[inline]
    pub fn block_of(&self, offset: u64) -> u64 {
        offset >> self.block_shift
    }

    /// Returns where `offset` lies within its block.
    #[inline]
    pub fn in_block(&self, offset: u64) -> u64 {
        offset & (self.block - 1)
    }

    /// Returns the byte at which a block begins, of a file or of the volume.
    #[inline]
    pub fn start_of(&self, block: u64) -> u64 {
        block << self.block_shift
    }

    /// Returns the first block that begins at or after `offset`.
    #[inline]
    pub fn block_after(&self, offset: u64) -> u64 {
        self.block_of(offset + (self.block - 1))
    }

    /// Returns the blocks that a byte range touches.
    #[inline]
    pub fn blocks(&self, bytes: &Range<u64>) -> Range<u64> {
        debug_assert!(bytes.start <= bytes.end, "a range ends behind its start: {bytes:?}");
        self.block_of(bytes.start)..self.block_after(bytes.end)
    }

    /// Returns the bytes of a range of blocks.
    #[inline]
    pub fn bytes(&self, blocks: &Range<u64>) -> Range<u64> {
        debug_assert!(
            blocks.start <= blocks.end && blocks.end <= u64::MAX >> self.block_shift,
            "blocks of a file have bytes: {blocks:?}"
        );
        self.start_of(blocks.start)..self.start_of(blocks.end)
    }

    /// Returns `offset` rounded down to a sector.
    #[inline]
    pub fn sector_floor(&self, offset: u64) -> u64 {
        offset & !(self.sector - 1)
    }

    /// Returns `offset` rounded up to a sector.
    #[inline]
    pub fn sector_ceil(&self, offset: u64) -> u64 {
        self.sector_floor(offset + (self.sector - 1))
    }

    /// Returns whether `offset` is where a block begins.
    #[inline]
    pub fn on_block(&self, offset: u64) -> bool {
        self.in_block(offset) == 0
    }

    /// Returns whether `offset` is where a sector begins.
    #[inline]
    pub fn on_sector(&self, offset: u64) -> bool {
        offset & (self.sector - 1) == 0
    }

    /// Returns whether the device takes a transfer between `buf` and this offset of a file as it
    /// is.
    #[inline]
    pub fn takes_at(&self, buf: &[u8], offset: u64) -> bool {
        self.on_sector(offset | buf.len() as u64) && self.takes(buf)
    }

    /// Returns whether the device takes the buffer as it is.
    #[inline]
    pub fn takes(&self, buf: &[u8]) -> bool {
        buf.as_ptr().addr() & (self.buffer - 1) == 0
    }
}

const _: () = assert!(
    Grid::FILE_BYTES_MAX.is_power_of_two() && Grid::FILE_BYTES_MAX <= 1 << 62,
    "no offset in a file overflows when it is rounded up"
);

impl Piece {
    /// Returns the part of a byte range of the file that lies in this piece.
    pub fn bytes(&self, grid: &Grid, range: &Range<u64>) -> Range<u64> {
        within(range, &grid.bytes(&(self.file_block..self.file_block + self.blocks)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_holds_at_the_edges() {
        let grid = Grid::new(4096, 512, 512);
        assert_eq!(grid.blocks(&(0..1)), 0..1);
        assert_eq!(grid.blocks(&(4095..4097)), 0..2);
        assert_eq!(grid.blocks(&(4096..8192)), 1..2);
        assert_eq!(
            (grid.sector_floor(1023), grid.sector_ceil(1023), grid.sector_ceil(1024)),
            (512, 1024, 1024)
        );
        assert_eq!(grid.block_after(Grid::FILE_BYTES_MAX), 1 << 44);
    }
}
