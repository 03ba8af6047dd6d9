//! Arithmetic of blocks and sectors: pure functions on byte offsets.

use std::ops::Range;

/// The two units of a file: the allocation block and the smallest direct I/O. Both are powers of two; a block holds whole sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grid {
    /// Allocation unit in bytes.
    pub(crate) block: u64,
    /// Alignment in bytes of offset and length that the device wants.
    pub(crate) sector: u64,
    /// Alignment in bytes that the device wants of a buffer's address.
    pub(crate) buffer: usize,
}

impl Grid {
    /// The largest file in bytes, 64 PiB: far beyond any volume, and far enough below 2^64 that sums of two offsets cannot overflow.
    pub(crate) const FILE_BYTES_MAX: u64 = 1 << 56;

    /// Returns the block that holds `offset`.
    pub(crate) fn block_of(&self, offset: u64) -> u64 {
        offset / self.block
    }

    /// Returns the first block that begins at or after `offset`.
    pub(crate) fn block_after(&self, offset: u64) -> u64 {
        offset.div_ceil(self.block)
    }

    /// Returns the blocks that a byte range touches.
    pub(crate) fn blocks(&self, bytes: &Range<u64>) -> Range<u64> {
        self.block_of(bytes.start)..self.block_after(bytes.end)
    }

    /// Returns `offset` rounded down to a sector.
    pub(crate) fn sector_floor(&self, offset: u64) -> u64 {
        offset - offset % self.sector
    }

    /// Returns `offset` rounded up to a sector.
    pub(crate) fn sector_ceil(&self, offset: u64) -> u64 {
        offset.next_multiple_of(self.sector)
    }

    /// Returns whether `offset` is where a block begins.
    pub(crate) fn on_block(&self, offset: u64) -> bool {
        offset.is_multiple_of(self.block)
    }

    /// Returns whether `offset` is where a sector begins.
    pub(crate) fn on_sector(&self, offset: u64) -> bool {
        offset.is_multiple_of(self.sector)
    }

    /// Returns whether the device takes the buffer as it is.
    pub(crate) fn takes(&self, buf: &[u8]) -> bool {
        buf.as_ptr().addr().is_multiple_of(self.buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_holds_at_the_edges() {
        let grid = Grid { block: 4096, sector: 512, buffer: 512 };
        assert_eq!(grid.blocks(&(0..1)), 0..1);
        assert_eq!(grid.blocks(&(4095..4097)), 0..2);
        assert_eq!(grid.blocks(&(4096..8192)), 1..2);
        assert_eq!((grid.sector_floor(1023), grid.sector_ceil(1023), grid.sector_ceil(1024)), (512, 1024, 1024));
        assert_eq!(grid.block_after(Grid::FILE_BYTES_MAX), 1 << 44);
    }
}
