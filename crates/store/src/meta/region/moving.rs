//! Parts of the region that move to other places of the volume.
//!
//! ```text
//!   parts beyond the limit ─► blocks before it ─► compared, copied ─► flush ─► lists ─► flush ─► superblocks ─► the old blocks are free
//! ```
//!
//! - I-REG-3: nothing is written to the region meanwhile: no metadata commit is under way. What
//!   reads it holds the superblock, so none is on its way to the old place when that is given back.

use std::ops::Range;

use bedplate_block::AlignedBuf;

use super::own_pages::PageWalk;
use super::{Region, usize_from};
use crate::planted::{PlantedBug, planted};
use crate::superblock::{ByteRun, Superblock};
use crate::{Error, Result};

/// How much is copied at once, in bytes.
const COPY_BYTES_MAX: u64 = 1 << 20;

/// Finds so many bytes for a part of the region, in runs of whole blocks.
pub(in crate::meta) type PlaceRegion<'a> = &'a dyn Fn(u64) -> Result<Vec<ByteRun>>;

/// What became of a region that was moved.
#[derive(Debug, Default)]
pub struct MovedRegion {
    /// How much was copied, in bytes.
    pub moved_bytes: u64,
    /// What it does not have any more.
    pub left: Vec<ByteRun>,
}

/// A plan of a move.
#[derive(Debug, Default)]
struct Plan {
    chunks: Vec<ByteRun>,
    copies: Vec<ChunkCopy>,
}

/// A part of the region that moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ChunkCopy {
    /// Where it begins in the tree's file.
    offset: u64,
    from: ByteRun,
    to: u64,
}

/// Puts what of the chunks lies beyond `limit` into `fresh` runs, in order.
fn plan(chunks: &[ByteRun], limit: u64, fresh: &[ByteRun]) -> Plan {
    let mut plan = Plan::default();
    let mut fresh = fresh.iter().copied();
    let mut room = ByteRun { start: 0, len: 0 };
    let mut before = 0;
    for chunk in chunks {
        let below = limit.saturating_sub(chunk.start).min(chunk.len);
        if below > 0 {
            plan.chunks.push(ByteRun { len: below, ..*chunk });
        }
        let mut at = chunk.start + below;
        while at < chunk.end() {
            if room.len == 0 {
                room = fresh.next().expect("as much was found as moves");
            }
            let len = room.len.min(chunk.end() - at);
            plan.chunks.push(ByteRun { start: room.start, len });
            let (offset, from) = (before + (at - chunk.start), ByteRun { start: at, len });
            plan.copies.push(ChunkCopy { offset, from, to: room.start });
            room = ByteRun { start: room.start + len, len: room.len - len };
            at += len;
        }
        before += chunk.len;
    }
    plan
}

/// Returns the parts of runs that lie beyond `limit`.
fn beyond(runs: &[ByteRun], limit: u64) -> Vec<ByteRun> {
    let part = |run: &ByteRun| {
        let start = run.start.max(limit);
        (start < run.end()).then(|| ByteRun { start, len: run.end() - start })
    };
    runs.iter().filter_map(part).collect()
}

impl Superblock {
    /// Returns how many bytes of the metadata, and of the lists of their chunks, lie beyond `limit`.
    pub fn metadata_beyond(&self, limit: u64) -> u64 {
        let all: Vec<ByteRun> = self.chunks.iter().copied().chain(self.list_runs()).collect();
        beyond(&all, limit).iter().map(|run| run.len).sum()
    }

    /// Returns how many bytes of the log, where it lies on the volume, lie beyond `limit`.
    pub fn log_beyond(&self, limit: u64) -> u64 {
        let log: &[ByteRun] = if self.log_separate { &[] } else { &[self.log] };
        beyond(log, limit).iter().map(|run| run.len).sum()
    }
}

impl Region {
    /// Moves what of the region lies beyond `limit` to where `place` says.
    ///
    /// # Errors
    /// Those of `place` and of reads, and nothing has changed; others latch.
    pub(in crate::meta) fn move_chunks(
        &self,
        limit: u64,
        place: PlaceRegion<'_>,
        give_back: &dyn Fn(&[ByteRun]),
    ) -> Result<MovedRegion> {
        self.check()?;
        let mut next = self.superblock();
        if next.metadata_beyond(limit) == 0 {
            return Ok(MovedRegion::default());
        }
        let mut left = beyond(&next.chunks, limit);
        let moved_bytes = left.iter().map(|run| run.len).sum();
        let fresh = if moved_bytes > 0 { place(moved_bytes)? } else { Vec::new() };
        let plan = plan(&next.chunks, limit, &fresh);
        let block = u64::from(next.block_size);
        left.extend(next.list_runs());
        next.forget_chunks();
        let lists = match next.lists_for(&plan.chunks) {
            0 => Ok(Vec::new()),
            lists => place(lists * block),
        };
        let lists = lists.inspect_err(|_| give_back(&fresh))?;
        let moved = self.copy_chunks(&plan).and_then(|()| {
            let step = usize_from(block)?;
            let places: Vec<u64> =
                lists.iter().flat_map(|run| (run.start..run.end()).step_by(step)).collect();
            let written = next.extend(&plan.chunks, places.into_iter());
            self.latch(
                written.iter().try_for_each(|list| list.write(&self.device, next.block_size)),
            )?;
            self.latch(self.device.flush().map_err(Error::from))
        });
        moved.inspect_err(|_| {
            give_back(&fresh);
            give_back(&lists);
        })?;
        self.update_superblock(|superblock| {
            assert!(
                superblock.metadata_len == next.metadata_len,
                "I-REG-3: the region stays as it is while it moves"
            );
            superblock.chunks = next.chunks;
            superblock.lists = next.lists;
        })?;
        Ok(MovedRegion { moved_bytes, left })
    }

    fn copy_chunks(&self, plan: &Plan) -> Result<()> {
        let mut walk = self.page_walk();
        while !walk.is_over() {
            walk.step(self)?;
        }
        for ChunkCopy { offset, from, to } in &plan.copies {
            let mut done = 0;
            while done < from.len {
                let len = COPY_BYTES_MAX.min(from.len - done);
                let mut buf = AlignedBuf::zeroed(usize_from(len)?);
                self.device.read_at(&mut buf, from.start + done)?;
                self.make_pages_right(&walk, offset + done, &mut buf)?;
                if !planted(PlantedBug::RegionMovedWithoutCopy) {
                    self.latch(self.device.write_at(&buf, to + done).map_err(Error::from))?;
                }
                done += len;
            }
        }
        Ok(())
    }

    /// Compares the pages in use in a part of the tree's file that was read for a copy: of one that is
    /// not what was written another copy goes on, which would be lost else (I-REG-4).
    fn make_pages_right(&self, walk: &PageWalk, offset: u64, buf: &mut [u8]) -> Result<()> {
        if planted(PlantedBug::MovedPageNotCompared) {
            return Ok(());
        }
        let part = offset..offset + buf.len() as u64;
        for page in walk.pages_in(&part) {
            let (start, end) = (page.start.max(part.start), page.end.min(part.end));
            let into = |range: Range<u64>, base: u64| -> Result<Range<usize>> {
                Ok(usize_from(range.start - base)?..usize_from(range.end - base)?)
            };
            if (start..end) == page {
                self.compare(start, &mut buf[into(page, offset)?])?;
                continue;
            }
            let mut bytes = vec![0; usize_from(page.end - page.start)?];
            self.read_device(page.start, &mut bytes)?;
            self.compare(page.start, &mut bytes)?;
            buf[into(start..end, offset)?].copy_from_slice(&bytes[into(start..end, page.start)?]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, len: u64) -> ByteRun {
        ByteRun { start, len }
    }

    #[test]
    fn what_lies_beyond_the_limit_is_put_in_the_fresh_runs_in_order() {
        let chunks = [run(10, 10), run(90, 20), run(40, 5), run(200, 7)];
        let plan = plan(&chunks, 100, &[run(60, 4), run(70, 13)]);
        assert_eq!(
            plan.chunks,
            [run(10, 10), run(90, 10), run(60, 4), run(70, 6), run(40, 5), run(76, 7)]
        );
        let copy = |offset, from, to| ChunkCopy { offset, from, to };
        assert_eq!(
            plan.copies,
            [copy(20, run(100, 4), 60), copy(24, run(104, 6), 70), copy(35, run(200, 7), 76)]
        );
        assert_eq!(beyond(&chunks, 100), [run(100, 10), run(200, 7)]);
    }
}
