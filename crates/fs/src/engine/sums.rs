//! Checksums of file data: where the data path asks for them, and what is counted of it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bedplate_block::{AlignedBuf, Copies};
use serde::{Deserialize, Serialize};

use super::Engine;
use crate::{Error, ErrorKind, FileBlock, InodeNo, Result};
use bedplate_store::{ExtentRow, ExtentState, Table, crc32c, extent_key};

/// What the mount did about checksums of file data.
#[derive(Debug, Default)]
pub(crate) struct SumCounters {
    verified: AtomicU64,
    tree: AtomicU64,
    wrong: AtomicU64,
    healed: AtomicU64,
    lost: AtomicU64,
}

/// What a mount did about checksums of file data and of the metadata tree, since it began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntegrityCounts {
    /// Blocks that were compared with their checksums.
    pub verified_blocks: u64,
    /// Reads that took checksums from the metadata tree: memory did not have all.
    pub tree_lookups: u64,
    /// Blocks that were not what was written.
    pub wrong_blocks: u64,
    /// Of them, those that were read right from another copy or made from parity, and written over
    /// the wrong one.
    pub healed_blocks: u64,
    /// Of them, those of which no copy was right: reading them failed.
    pub lost_blocks: u64,
    /// Reads of pages of the metadata tree that were compared with their checksums.
    pub verified_pages: u64,
    /// Of them, those that were not what was written, and another copy was, which was written over
    /// the wrong one.
    pub healed_pages: u64,
    /// Of them, those of which no copy was right.
    pub lost_pages: u64,
}

impl Engine {
    /// Looks up the checksums of blocks from `first` on, that an extent says have them.
    #[inline]
    pub(crate) fn sums_of(&self, first: u64, sums: &mut [u32]) -> Result<()> {
        let in_memory = self.meta.sums(first, sums)?;
        self.sums.verified.fetch_add(sums.len() as u64, Relaxed);
        if !in_memory {
            self.sums.tree.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Returns the checksum of a block if the extent that begins at a file block has it, and its
    /// blocks have checksums, at this moment: as long as nothing is written to the block, its
    /// content is what the checksum is of.
    fn sum_in_use(&self, ino: InodeNo, extent: FileBlock, block: u64) -> Result<Option<u32>> {
        self.reading(|rows| {
            let row = rows.get(Table::Extent, &extent_key(ino, extent))?;
            let row = row.map(|bytes| ExtentRow::decode(&bytes)).transpose()?;
            let has_block = |row: &ExtentRow| {
                row.state == ExtentState::Summed
                    && block >= row.start.0
                    && block - row.start.0 < row.len.into()
            };
            row.filter(has_block).map(|_| rows.sum(block)).transpose()
        })
    }

    /// Says whether a block of the volume is what was written, as [`sum_in_use`](Self::sum_in_use)
    /// knows it; `None`: that is not known.
    pub(crate) fn is_as_written(
        &self,
        ino: InodeNo,
        (extent_offset, place): (u64, u64),
        bytes: &[u8],
    ) -> Result<Option<bool>> {
        let grid = self.grid();
        if bytes.len() as u64 != grid.block
            || !grid.on_block(extent_offset)
            || !grid.on_block(place)
        {
            return Ok(None);
        }
        let extent = FileBlock(grid.block_of(extent_offset));
        let sum = self.sum_in_use(ino, extent, grid.block_of(place))?;
        Ok(sum.map(|sum| sum == crc32c(bytes)))
    }

    /// Reads a block again, that was not what it should be, until a copy is.
    ///
    /// # Errors
    /// `Io` where none is; `what` names the block.
    #[cold]
    pub(crate) fn read_another(
        &self,
        buf: &mut [u8],
        at: u64,
        is_right: &dyn Fn(&[u8]) -> bool,
        what: &dyn Fn() -> String,
    ) -> Result<()> {
        self.sums.wrong.fetch_add(1, Relaxed);
        let mut copy = AlignedBuf::zeroed(buf.len());
        match self.device.read_right(&mut copy, at, is_right) {
            Ok(Copies::Right { healed }) => {
                buf.copy_from_slice(&copy);
                if healed {
                    self.sums.healed.fetch_add(1, Relaxed);
                }
                let then = if healed { "the wrong one was written over" } else { "read again" };
                let what = what();
                tracing::warn!(
                    event = "data_healed",
                    "{what} is not what was written; another copy is: {then}"
                );
                Ok(())
            }
            Ok(Copies::NoneRight) => {
                self.sums.lost.fetch_add(1, Relaxed);
                let message = format!(
                    "{} is not what was written, and no copy is: restore it from a backup, or \
                     write it anew",
                    what()
                );
                // The caller tells the error: as a message it would stand in the log twice.
                tracing::info!(event = "data_lost", severity = "error", "{message}");
                Err(Error::new(ErrorKind::Io, message))
            }
            Err(error) => {
                self.sums.lost.fetch_add(1, Relaxed);
                Err(error.into())
            }
        }
    }

    /// Returns what was counted.
    pub(crate) fn integrity_counts(&self) -> IntegrityCounts {
        let SumCounters { verified, tree, wrong, healed, lost } = &self.sums;
        let pages = self.meta.region().counts();
        IntegrityCounts {
            verified_blocks: verified.load(Relaxed),
            tree_lookups: tree.load(Relaxed),
            wrong_blocks: wrong.load(Relaxed),
            healed_blocks: healed.load(Relaxed),
            lost_blocks: lost.load(Relaxed),
            verified_pages: pages.verified,
            healed_pages: pages.healed,
            lost_pages: pages.lost,
        }
    }
}
