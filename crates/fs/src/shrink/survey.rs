//! What lies beyond an end that the file system is to have: one look at all extents, those of the
//! present and those that checkpoints keep.

use std::collections::{BTreeSet, VecDeque};
use std::ops::{Bound, ControlFlow};

use crate::engine::{Engine, MovedRow, Window};
use crate::{BlockNo, InodeNo, Result};
use bedplate_store::{ExtentRow, Run, Table, image_extent, split_before_key, split_extent_key};

/// Rows looked at while the metadata are held.
const ROWS_AT_ONCE: usize = 4096;

/// Extents that reach beyond an end, with their rows.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub(super) found: Vec<(Run, MovedRow)>,
}

impl Survey {
    /// Looks at all extents.
    pub(super) fn of(fs: &Engine, limit: BlockNo) -> Result<Self> {
        let mut survey = Self::default();
        let mut add = |row: ExtentRow, place: MovedRow| {
            let run = Run { start: row.start, blocks: row.len.into() };
            if run.end() > limit.0 {
                survey.found.push((run, place));
            }
        };
        scan(fs, Table::Extent, |key, value| {
            let (ino, at) = split_extent_key(key)?;
            add(ExtentRow::decode(value)?, MovedRow { epoch: None, ino, at });
            Ok(())
        })?;
        scan(fs, Table::Before, |key, value| {
            let (epoch, table, row) = split_before_key(key)?;
            if let Some(extent) = image_extent(table, value)? {
                let (ino, at) = split_extent_key(row)?;
                add(extent, MovedRow { epoch: Some(epoch), ino, at });
            }
            Ok(())
        })?;
        Ok(survey)
    }

    /// The files that have some of them now.
    pub(super) fn files(&self) -> VecDeque<InodeNo> {
        let live = self.found.iter().filter(|(_, row)| row.epoch.is_none());
        live.map(|(_, row)| row.ino).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns how many blocks beyond the end the rows cover that `pick` picks.
    pub(super) fn blocks(&self, limit: BlockNo, pick: impl Fn(&MovedRow) -> bool) -> u64 {
        let picked = self.found.iter().filter(|(_, row)| pick(row));
        let runs = picked.map(|(run, _)| (run.start.0.max(limit.0), run.end())).collect();
        union(runs).iter().map(|(start, end)| end - start).sum()
    }

    /// Puts what lies beyond the end into windows of at most `blocks_max` blocks, by rising blocks.
    pub(super) fn windows(mut self, limit: BlockNo, blocks_max: u64) -> Vec<Window> {
        self.found.sort_unstable_by_key(|(run, row)| (run.start, *row));
        let clipped = self.found.iter().map(|(run, _)| (run.start.0.max(limit.0), run.end()));
        let mut windows = Vec::new();
        let (mut first, found) = (0, &self.found);
        for (start, end) in union(clipped.collect()) {
            let mut at = start;
            while at < end {
                let to = end.min(at + blocks_max);
                // Rows behind `first` may end before the window too; those before it all do.
                while found.get(first).is_some_and(|(run, _)| run.end() <= at) {
                    first += 1;
                }
                let rows = found[first..].iter().take_while(|(run, _)| run.start.0 < to);
                let rows = rows.filter(|(run, _)| run.end() > at).map(|(_, row)| *row).collect();
                let run = Run { start: BlockNo(at), blocks: to - at };
                windows.push(Window { run, rows });
                at = to;
            }
        }
        windows
    }
}

/// Joins ranges that meet.
fn union(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match joined.last_mut() {
            Some(last) if last.1 >= start => last.1 = last.1.max(end),
            _ => joined.push((start, end)),
        }
    }
    joined
}

/// Visits all rows of a table, some at a time.
fn scan(
    fs: &Engine,
    table: Table,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<()> {
    let mut from: Option<Vec<u8>> = None;
    loop {
        let (mut rows, begin) = (0, from.take());
        let bound = begin.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        fs.scan_rows(table, bound, Bound::Unbounded, |key, value| {
            visit(key, value)?;
            rows += 1;
            if rows < ROWS_AT_ONCE {
                return Ok(ControlFlow::Continue(()));
            }
            from = Some(key.to_vec());
            Ok(ControlFlow::Break(()))
        })?;
        if from.is_none() {
            return Ok(());
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileBlock;

    #[test]
    fn windows_have_all_rows_that_reach_into_them() {
        let row = |ino| MovedRow { epoch: None, ino: InodeNo(ino), at: FileBlock(0) };
        let run = |start, blocks| Run { start: BlockNo(start), blocks };
        let survey = Survey {
            found: vec![
                (run(90, 40), row(1)),
                (run(105, 3), row(2)),
                (run(120, 20), row(3)),
                (run(200, 1), row(4)),
            ],
        };
        assert_eq!(survey.blocks(BlockNo(100), |row| row.ino.0 < 3), 30);
        assert_eq!(survey.blocks(BlockNo(100), |_| true), 41);
        let windows = survey.windows(BlockNo(100), 16);
        let seen: Vec<(u64, u64, Vec<u64>)> = windows
            .iter()
            .map(|window| {
                let rows = window.rows.iter().map(|row| row.ino.0).collect();
                (window.run.start.0, window.run.blocks, rows)
            })
            .collect();
        let expected =
            [(100, 16, vec![1, 2]), (116, 16, vec![1, 3]), (132, 8, vec![3]), (200, 1, vec![4])];
        assert_eq!(seen, expected);
    }
}
