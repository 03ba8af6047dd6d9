//! Files with checksums (`integrity`): every block that is written has one, and every block that is
//! read from the device is compared with it.
//!
//! ```text
//!   write  whole blocks ─► new blocks, and one record that maps them and has their checksums
//!          parts of blocks ─► what stays is read and compared ─► whole blocks, as above
//!   read   whole blocks around the range ─► compared ─ right ─► given
//!                                              └ wrong ─► another copy ─ right ─► written over the wrong one, given
//!                                                                 └ none ─► an error
//! ```
//!
//! What has a checksum says its extent, not the setting of the file: a file keeps those that it has
//! when the setting goes, and has none for what was there when it came. Blocks with checksums are
//! never written in place, whatever the setting is (I-SUM-2); so the block in which a file ends is
//! written anew, with zeros, before the file grows past it.

use std::ops::{ControlFlow, Range};

use bedplate_block::AlignedBuf;

use super::exposure::Exposing;
use super::write::Payload;
use super::{Alone, DataPath};
use crate::engine::Engine;
use crate::{Error, InodeNo, Result};
use bedplate_store::{
    ExtentState, Grid, Piece, PlantedBug, SUMS_OF_RECORD, Table, crc32c, planted, within,
};

/// The extended attribute that says that what is written gets checksums.
pub(crate) const ATTRIBUTE: &[u8] = b"user.bedplate.integrity";

/// How much is read at once around a range that does not begin and end on blocks, in bytes.
const AROUND_BYTES: u64 = 256 << 10;

/// How many checksums are looked up at once.
const SUMS_AT_ONCE: usize = 16;

impl Engine {
    /// Returns whether what is written to a file, or made in a directory, gets checksums.
    pub(crate) fn has_integrity(&self, ino: InodeNo) -> Result<bool> {
        Ok(self.row_of(Table::Xattr, ino, ATTRIBUTE)?.is_some())
    }
}

/// Blocks that a range of bytes touches.
fn whole(grid: &Grid, bytes: &Range<u64>) -> Range<u64> {
    grid.bytes(&grid.blocks(bytes))
}

impl DataPath<'_> {
    /// Returns whether what the file is written gets checksums.
    #[inline]
    pub(super) fn gives_sums(self) -> bool {
        self.cow_epoch();
        self.state().gives_sums.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Begins to collect what a write exposes, and its checksums where blocks get them.
    #[inline]
    pub(super) fn begin_exposing(self, bytes_expected: u64) -> Exposing {
        let mut exposing = Exposing::new(bytes_expected);
        // The setting may have changed since the write was planned.
        let fits = bytes_expected <= self.fs.grid().start_of(SUMS_OF_RECORD);
        if fits && self.gives_sums() {
            exposing.set_summing(self.fs.grid().block);
        }
        exposing
    }

    /// Returns how many bytes of the file have checksums.
    pub(crate) fn summed_bytes(self) -> Result<u64> {
        let mut blocks = 0;
        self.extents_of(0, |_, extent| {
            if extent.state == ExtentState::Summed {
                blocks += u64::from(extent.blocks);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(self.fs.grid().start_of(blocks))
    }

    /// Returns whether some block of the file has a checksum.
    pub(super) fn has_sums(self) -> Result<bool> {
        let mut any = false;
        if self.fs.may_have_sums() {
            self.extents_of(0, |_, extent| {
                any |= extent.state == ExtentState::Summed;
                Ok(if any { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
        }
        Ok(any)
    }

    /// Returns whether a write under the shared inode lock would be one record with too many
    /// checksums.
    pub(super) fn has_too_many_sums(self, bytes: &Range<u64>) -> bool {
        let blocks = self.fs.grid().blocks(bytes);
        blocks.end - blocks.start > SUMS_OF_RECORD && self.gives_sums()
    }

    /// Reads a part of the device where blocks have checksums, and compares them. `file` is the
    /// offset in the file, for messages.
    pub(super) fn read_summed(self, buf: &mut [u8], at: u64, file: u64) -> Result<()> {
        let grid = self.fs.grid();
        let bytes = at..at + buf.len() as u64;
        if whole(grid, &bytes) == bytes && grid.takes(buf) {
            return self.read_summed_blocks(buf, at, file);
        }
        let step = AROUND_BYTES.max(grid.block);
        let mut around = AlignedBuf::zeroed(
            step.min(whole(grid, &bytes).end - whole(grid, &bytes).start) as usize,
        );
        let mut from = bytes.start;
        while from < bytes.end {
            let first = grid.start_of(grid.block_of(from));
            let part = from..bytes.end.min(first + step);
            let end = whole(grid, &part).end;
            let blocks = &mut around[..(end - first) as usize];
            // The first block of the file's part may begin before the part.
            let file_first = (file + (from - bytes.start)).saturating_sub(from - first);
            self.read_summed_blocks(blocks, first, file_first)?;
            buf[(part.start - at) as usize..(part.end - at) as usize].copy_from_slice(
                &blocks[(part.start - first) as usize..(part.end - first) as usize],
            );
            from = part.end;
        }
        Ok(())
    }

    fn read_summed_blocks(self, buf: &mut [u8], at: u64, file: u64) -> Result<()> {
        self.fs.read_device(buf, at)?;
        self.make_right(buf, at, file)
    }

    /// Compares blocks that were read from a byte of the device, which is one of the file, and fills
    /// those that are wrong with what is right.
    pub(crate) fn make_right(self, buf: &mut [u8], at: u64, file: u64) -> Result<()> {
        let block = self.fs.grid().block as usize;
        let mut done = 0;
        while let Some((wrong, sum)) =
            self.first_wrong(&buf[done..], at + done as u64, file + done as u64)?
        {
            let skip = done + wrong * block;
            let part = &mut buf[skip..skip + block];
            self.read_another(part, at + skip as u64, file + skip as u64, sum)?;
            done = skip + block;
        }
        Ok(())
    }

    /// Compares blocks that were read from a byte of the device, which is one of the file; returns
    /// which is the first that is wrong, and its checksum.
    #[inline]
    pub(crate) fn first_wrong(
        self,
        buf: &[u8],
        at: u64,
        file: u64,
    ) -> Result<Option<(usize, u32)>> {
        let block = self.fs.grid().block as usize;
        let first = self.fs.grid().block_of(at);
        let mut sums = [0; SUMS_AT_ONCE];
        for (index, part) in buf.chunks(block * SUMS_AT_ONCE).enumerate() {
            let before = index * SUMS_AT_ONCE;
            let sums = &mut sums[..part.len() / block];
            let known = self.fs.sums_of(first + before as u64, sums);
            known.map_err(|error| self.without_sum(error, file + (before * block) as u64))?;
            let mut parts = part.chunks(block).zip(&*sums);
            if planted(PlantedBug::OnlyFirstSumChecked) {
                let wrong = parts.next().filter(|(part, sum)| before == 0 && crc32c(part) != **sum);
                return Ok(wrong.map(|(_, sum)| (0, *sum)));
            }
            if let Some(wrong) = parts.position(|(part, sum)| crc32c(part) != *sum) {
                return Ok(Some((before + wrong, sums[wrong])));
            }
        }
        Ok(None)
    }

    /// Says of which byte a checksum cannot be read.
    #[cold]
    fn without_sum(self, error: Error, file: u64) -> Error {
        let message = format!("inode {} at byte {file}: {}", self.inode.ino.0, error.message);
        Error { message, ..error }
    }

    /// Fills a block whose checksum is another with what has it.
    #[cold]
    fn read_another(self, buf: &mut [u8], at: u64, file: u64, sum: u32) -> Result<()> {
        let what = || {
            let (ino, block) = (self.inode.ino.0, self.fs.grid().block_of(at));
            format!("inode {ino} at byte {file}: block {block} of {}", self.fs.device_name())
        };
        self.fs.read_another(buf, at, &|bytes| crc32c(bytes) == sum, &what)
    }

    /// Returns whether a write has to write whole blocks: it touches some in part that have
    /// checksums, or get them.
    pub(super) fn needs_whole_blocks(self, data: &Payload<'_>) -> Result<bool> {
        let grid = self.fs.grid();
        let bytes = data.range();
        let gives = self.gives_sums();
        if whole(grid, &bytes) == bytes {
            return Ok(gives && self.has_too_many_sums(&bytes));
        }
        let blocks = grid.blocks(&bytes);
        let map = self.map(blocks.clone())?;
        Ok(gives || map.pieces(blocks).any(|piece| piece.is_summed()))
    }

    /// Writes whole blocks around a range, in as many records as their checksums need.
    pub(super) fn write_whole_blocks(self, held: &Alone<'_>, data: Payload<'_>) -> Result<()> {
        let grid = self.fs.grid();
        let step = grid.start_of(SUMS_OF_RECORD);
        let mut from = data.offset;
        while from < data.end() {
            let to = data.end().min(from - from % step + step);
            let part = Payload { bytes: data.part(&(from..to)), offset: from, ..data };
            self.write_whole_part(held, part).map_err(|error| {
                // What is written stays: beginning again might append it twice.
                let blocks_wanted = if from > data.offset { 0 } else { error.blocks_wanted };
                Error { blocks_wanted, ..error }
            })?;
            from = to;
        }
        Ok(())
    }

    fn write_whole_part(self, held: &Alone<'_>, data: Payload<'_>) -> Result<()> {
        let grid = self.fs.grid();
        let bytes = whole(grid, &data.range());
        if bytes == data.range() {
            return self.write_placed(held, data);
        }
        let size = data.size_after(self.state().logged_size());
        let mut buf = AlignedBuf::zeroed((bytes.end - bytes.start) as usize);
        let edge = |buf: &mut [u8], at: u64| {
            let block = grid.start_of(grid.block_of(at));
            let into = &mut buf[(block - bytes.start) as usize..][..grid.block as usize];
            self.read_kept(into, block)
        };
        let keeps = !(data.renews && planted(PlantedBug::RenewedInPart));
        if data.offset > bytes.start && keeps {
            edge(&mut buf, bytes.start)?;
        }
        if keeps
            && data.end() < bytes.end
            && (data.offset == bytes.start || bytes.end - bytes.start > grid.block)
        {
            edge(&mut buf, bytes.end - 1)?;
        }
        let skip = (data.offset - bytes.start) as usize;
        buf[skip..skip + data.bytes.len()].copy_from_slice(data.bytes);
        // What a cache pads a write with does not become part of the file.
        let beyond = within(&(size..bytes.end), &bytes);
        buf[(beyond.start - bytes.start) as usize..(beyond.end - bytes.start) as usize].fill(0);
        if !data.was_held {
            self.count_misaligned(data.bytes, data.offset, data.bytes.len());
        }
        let data = Payload { bytes: &buf, offset: bytes.start, size_max: size, ..data };
        self.write_placed(held, data)
    }

    /// Fills a block with what the file has there, and zeros behind its end.
    fn read_kept(self, buf: &mut [u8], at: u64) -> Result<()> {
        let grid = self.fs.grid();
        let kept = self.state().logged_size().saturating_sub(at).min(buf.len() as u64);
        let mut block = AlignedBuf::zeroed(buf.len());
        if kept > 0 {
            self.read_sectors(&mut block[..grid.sector_ceil(kept) as usize], at)?;
        }
        block[kept as usize..].fill(0);
        buf.copy_from_slice(&block);
        Ok(())
    }

    /// Makes sure that zeros follow the end of the file in its last block, of a file that grows by
    /// bytes from `to` on: a block with a checksum is written anew. `false`: it has none.
    pub(super) fn zero_summed_tail(self, held: &Alone<'_>, to: u64) -> Result<bool> {
        let grid = self.fs.grid();
        let logged = self.state().logged_size();
        let block = grid.block_of(logged);
        let piece = self.map(block..block + 1)?.pieces(block..block + 1).next();
        if grid.on_block(logged) || !piece.is_some_and(|piece| piece.is_summed()) {
            return Ok(false);
        }
        let at = grid.start_of(block);
        if to <= at {
            return Ok(true); // it is written over as a whole
        }
        let mut buf = AlignedBuf::zeroed(grid.block as usize);
        self.read_aligned(&mut buf, at)?;
        let tail = &mut buf[(logged - at) as usize..];
        if tail.iter().all(|byte| *byte == 0) || planted(PlantedBug::TailNotZeroed) {
            return Ok(true);
        }
        tail.fill(0);
        let data = Payload { size_max: logged, ..Payload::waited(&buf, at) };
        self.write_placed(held, data).map(|()| true)
    }

    /// Zeroes what of a byte range lies in blocks with checksums.
    pub(super) fn zero_summed(self, held: &Alone<'_>, range: &Range<u64>) -> Result<()> {
        let grid = self.fs.grid();
        let blocks = grid.blocks(range);
        let map = self.map(blocks.clone())?;
        let pieces: Vec<Piece> = map.pieces(blocks).filter(Piece::is_summed).collect();
        drop(map);
        let logged = self.state().logged_size();
        for piece in pieces {
            let part =
                within(&grid.bytes(&(piece.file_block..piece.file_block + piece.blocks)), range);
            let zeros = AlignedBuf::zeroed((part.end - part.start) as usize);
            let data = Payload { size_max: logged, ..Payload::waited(&zeros, part.start) };
            self.write_whole_blocks(held, data)?;
        }
        Ok(())
    }
}
