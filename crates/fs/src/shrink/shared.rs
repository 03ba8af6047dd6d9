//! Blocks that several rows may have, of the present, of clones and of checkpoints: they move for
//! all of them at once, and stay shared.
//!
//! ```text
//!   frozen ─► the rows of a window, as they are now ─► all that the counts say? ─ no ─► left to the next pass
//!                                                            │ yes
//!             next window ◄─ sealed ◄─ maps forgotten ◄─ one record for all rows ◄─ copied ◄─┘
//! ```
//!
//! The bytes are what they were, so no checkpoint keeps anything of this (I-CKP-9). The record goes
//! out behind the copy and is sealed before anything else may happen, so nothing vouches for the new
//! blocks by then, and the old ones are free.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bedplate_block::AlignedBuf;

use super::rewrite::{Rewrite, Segment};
use crate::engine::{Engine, MovedRow, Window};
use crate::{BlockNo, InodeNo, Lsn, Result};
use bedplate_store::{
    AllocRequest, ExtentRow, ExtentState, PlantedBug, Record, RecordKind, RowChange, Run,
    SpaceClass, crc32c, planted, put_sums,
};

/// How much moves by one record, in bytes.
pub(super) const WINDOW_BYTES: u64 = 4 << 20;
/// How long programs wait for one freeze, besides the window that is under way then.
const FROZEN: Duration = Duration::from_millis(50);

/// The rows of a window as they are now.
struct Found {
    rows: BTreeMap<MovedRow, ExtentRow>,
    /// The parts of the window that they cover, by rising blocks.
    covered: Vec<Run>,
}

impl Found {
    /// Returns how a block is needed: whether a row has data there, and whether with a checksum.
    fn has(&self, run: Run) -> (bool, bool) {
        let meets = |row: &&ExtentRow| {
            row.start.0 < run.end() && row.start.0 + u64::from(row.len) > run.start.0
        };
        self.rows.values().filter(meets).fold((false, false), |(data, sums), row| {
            (data || row.state.has_data(), sums || row.state == ExtentState::Summed)
        })
    }
}

impl Engine {
    /// Moves windows, the last first, for as long as programs may wait; returns how many blocks.
    pub(super) fn move_windows(&self, windows: &mut Vec<Window>) -> Result<u64> {
        // A clone that is not finished has rows that no freeze waits for.
        let _no_clone = self.lock_clones();
        self.frozen(|_| {
            let began = Instant::now();
            let mut blocks = 0;
            while let Some(window) = windows.pop() {
                blocks += self.move_window(&window)?;
                if began.elapsed() > FROZEN {
                    break;
                }
            }
            Ok(blocks)
        })
    }

    /// Moves one window; 0 where not all of its rows are known.
    fn move_window(&self, window: &Window) -> Result<u64> {
        let Some(found) = self.rows_of_window(window)? else { return Ok(0) };
        let blocks: u64 = found.covered.iter().map(|run| run.blocks).sum();
        if blocks == 0 {
            return Ok(0);
        }
        let class = SpaceClass::Data;
        let want = AllocRequest { goal: None, blocks, ahead: None, class, reserved: 0, part: None };
        let fresh = self.with_freed_blocks(blocks, || self.allocate(want))?;
        let lsn = self
            .move_found(&found, &segments(&found.covered, &fresh))
            .inspect_err(|_| self.free_unused(&fresh, 0))?;
        self.seal_to(lsn)?;
        self.release_sealed();
        Ok(blocks)
    }

    /// Reads the rows of a window again. `None`: they are not all that have blocks of it.
    fn rows_of_window(&self, window: &Window) -> Result<Option<Found>> {
        self.reading(|state| {
            let mut rows = BTreeMap::new();
            let mut borders: BTreeMap<u64, i64> = BTreeMap::new();
            for place in &window.rows {
                let Some(row) = Rewrite::kept(state, *place)?.flatten() else { continue };
                let from = row.start.0.max(window.run.start.0);
                let to = (row.start.0 + u64::from(row.len)).min(window.run.end());
                if from < to {
                    *borders.entry(from).or_default() += 1;
                    *borders.entry(to).or_default() -= 1;
                    rows.insert(*place, row);
                }
            }
            let counted = state.checkpoint_set.block_refs.covering(window.run);
            for (run, _) in &counted {
                borders.entry(run.start.0).or_default();
                borders.entry(run.end()).or_default();
            }
            let (mut covered, mut count, mut last): (Vec<Run>, i64, u64) = (Vec::new(), 0, 0);
            for (at, step) in borders {
                let is_counted =
                    counted.iter().find(|(run, _)| run.start.0 <= last && last < run.end());
                let expected = is_counted.map_or(count.min(1), |(_, rows)| i64::from(*rows));
                if at > last && last >= window.run.start.0 && count != expected {
                    return Ok(None);
                }
                if count > 0 && at > last {
                    match covered.last_mut() {
                        Some(run) if run.end() == last => run.blocks += at - last,
                        _ => covered.push(Run { start: BlockNo(last), blocks: at - last }),
                    }
                }
                (count, last) = (count + step, at);
            }
            Ok(Some(Found { rows, covered }))
        })
    }

    fn move_found(&self, found: &Found, segments: &[Segment]) -> Result<Lsn> {
        let sums = self.copy_segments(found, segments)?;
        let mut rows = self.reading(|state| {
            let mut rewrite = Rewrite::new(state, segments);
            found.rows.iter().for_each(|(place, row)| rewrite.add(*place, *row));
            rewrite.finish()
        })?;
        rows.extend(sums);
        let record = Record { kind: RecordKind::Remap, rows, exposes: None, barrier: true };
        let committed = self.commit_moved(record)?;
        let from = || segments.iter().map(|segment| segment.from).collect();
        for run in committed.freed.unwrap_or_else(from) {
            self.release_after(committed.lsn, run);
        }
        let inos: BTreeSet<InodeNo> = found.rows.keys().map(|place| place.ino).collect();
        if !planted(PlantedBug::MovedMapStays) {
            let of_row = |ino: InodeNo| InodeNo(ino.0 & ((1 << InodeNo::BITS) - 1));
            for inode in self.loaded_inodes(|inode| inos.contains(&of_row(inode.ino))) {
                crate::data::forget_places(self, &inode);
            }
        }
        Ok(committed.lsn)
    }

    /// Copies what has data; returns the rows with the checksums of the copies.
    fn copy_segments(&self, found: &Found, segments: &[Segment]) -> Result<Vec<RowChange>> {
        let grid = self.grid();
        let summed = found.rows.values().any(|row| row.state == ExtentState::Summed);
        let mut rows = Vec::new();
        for segment in segments {
            if !found.has(segment.from).0 {
                continue;
            }
            let mut buf = AlignedBuf::zeroed(grid.start_of(segment.from.blocks) as usize);
            let at = grid.start_of(segment.from.start.0);
            self.read_device(&mut buf, at)?;
            if summed {
                rows.extend(self.check_copy(found, segment, &mut buf)?);
            }
            self.write_device(&buf, grid.start_of(segment.to.0))?;
        }
        Ok(rows)
    }
}

impl Engine {
    /// Compares what was read of a segment with the checksums that its blocks have; returns the rows
    /// by which the copies have them too.
    fn check_copy(
        &self,
        found: &Found,
        segment: &Segment,
        buf: &mut [u8],
    ) -> Result<Vec<RowChange>> {
        let block_bytes = self.grid().block as usize;
        let mut sums: Vec<(u64, u32)> = Vec::new();
        for (index, block) in buf.chunks_mut(block_bytes).enumerate() {
            let from = segment.from.start.0 + index as u64;
            if !found.has(Run { start: BlockNo(from), blocks: 1 }).1 {
                continue;
            }
            let mut sum = [0];
            self.sums_of(from, &mut sum)?;
            let [sum] = sum;
            if crc32c(block) != sum {
                let what = || format!("block {from} of {}", self.device_name());
                let place = self.grid().start_of(from);
                self.read_another(block, place, &|bytes| crc32c(bytes) == sum, &what)?;
            }
            sums.push((segment.to.0 + index as u64, sum));
        }
        let runs = sums.chunk_by(|one, two| one.0 + 1 == two.0);
        let row = |run: &[(u64, u32)]| put_sums(BlockNo(run[0].0), run.iter().map(|(_, sum)| *sum));
        Ok(runs.map(row).collect())
    }
}

/// Puts runs into fresh ones of the same size together, in order.
fn segments(covered: &[Run], fresh: &[Run]) -> Vec<Segment> {
    let mut fresh = fresh.iter().copied();
    let mut room = Run { start: BlockNo(0), blocks: 0 };
    let mut segments = Vec::new();
    for run in covered {
        let (mut at, end) = (run.start.0, run.end());
        while at < end {
            if room.blocks == 0 {
                room = fresh.next().expect("as many blocks were allocated as move");
            }
            let blocks = room.blocks.min(end - at);
            segments.push(Segment { from: Run { start: BlockNo(at), blocks }, to: room.start });
            room = Run { start: BlockNo(room.start.0 + blocks), blocks: room.blocks - blocks };
            at += blocks;
        }
    }
    segments
}
