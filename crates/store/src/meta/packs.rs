//! Changes of extents where the tree keeps them in packs.
//!
//! ```text
//!   rows of the tree      [pack      ]  row  [pack  ]            the rows of one inode, by block
//!   changes                  ×  ×        ×
//!   a window              └───────────────┘                      the row that has the first change, small neighbours
//!   what it is then       [pack     ][pack    ]                  cut where it is too long, or has a wide hole
//! ```
//!
//! A window is read, changed and written as a whole, in the transaction of the commit; what is
//! equal to what was there is not written. Two rows that are next to each other become one pack
//! where one of them is small and both have room in it; a pack that has no room is two.
//!
//! - I-PCK-2: after a commit every extent of the tree stands in one row, at its place in the order
//!   of blocks: no pack reaches beyond the row behind it.

use std::ops::Bound;

use redb::{ReadableTable, Table as TreeTable};

use super::extents::{Bounds, TreeRow, above, last_upto};
use super::guard::guarded;
use super::tree::tree_error;
use crate::pack::{self, Patch, Placed, may_be_packed};
use crate::planted::{PlantedBug, planted};
use crate::row::{extent_key, split_extent_key};
use crate::space::SpaceChanges;
use crate::{Error, ExtentRow, FileBlock, InodeNo, Result};

const CONTEXT: &str = "a metadata commit failed";

/// A hole of so many blocks ends a pack: what lies behind it would make all gaps of the pack wide.
const HOLE_BLOCKS_MAX: u64 = 4096;

/// A change of a row: its key, and the new value.
pub(super) type Change<'a> = (&'a [u8], Option<&'a [u8]>);

/// A row at an extent's key.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Row {
    Extent(ExtentRow),
    /// What no extent decodes from, or none that a pack may have: it stays a row of its own.
    Raw(Vec<u8>),
}

type Entry = (FileBlock, Row);
/// What is to be at a block.
type Wanted = (FileBlock, Option<Row>);

impl Row {
    fn of(at: FileBlock, value: &[u8]) -> Self {
        match ExtentRow::decode(value) {
            Ok(row) if may_be_packed(&(at, row)) => Self::Extent(row),
            _ => Self::Raw(value.to_vec()),
        }
    }

    fn value(&self) -> Vec<u8> {
        match self {
            Self::Extent(row) => row.encode().to_vec(),
            Self::Raw(value) => value.clone(),
        }
    }
}

/// The entries that a row of the tree stands for; `None` where it cannot be read, or is no row of
/// an extent.
fn entries((key, value): &TreeRow) -> Option<Vec<Entry>> {
    if pack::split_pack_key(key).is_some() {
        let extents = pack::decode(key, value).ok()?;
        return Some(extents.into_iter().map(|(at, row)| (at, Row::Extent(row))).collect());
    }
    let (_, at) = split_extent_key(key).ok()?;
    Some(vec![(at, Row::of(at, value))])
}

/// The hole between two entries, where a pack may have both.
fn gap(left: Option<&Entry>, right: Option<&Entry>) -> Option<u64> {
    let (Some((a, Row::Extent(left))), Some((b, Row::Extent(right)))) = (left, right) else {
        return None;
    };
    pack::gap(&(*a, *left), &(*b, *right)).filter(|gap| *gap < HOLE_BLOCKS_MAX)
}

/// The table of extents while a commit changes it.
pub(super) struct Packing<'t, 'txn> {
    pub(super) table: &'t mut TreeTable<'txn, &'static [u8], &'static [u8]>,
    /// The most extents of a pack.
    pub(super) limit: usize,
    /// What the changes make of the free space, where that is asked for.
    pub(super) space: Option<&'t mut Result<SpaceChanges>>,
}

/// The rows of one inode that one change replaces.
#[derive(Default)]
struct Window {
    /// As they stand in the tree.
    before: Vec<TreeRow>,
    /// What is to be there.
    after: Vec<Entry>,
}

impl Packing<'_, '_> {
    /// Carries out changes, of which the last one counts where several have the same key.
    pub(super) fn apply(&mut self, mut changes: Vec<Change<'_>>) -> Result<()> {
        changes.sort_by_key(|(key, _)| *key);
        let mut of_inode: Vec<Wanted> = Vec::new();
        let mut inode = InodeNo(0);
        for (key, value) in changes {
            let Ok((ino, at)) = split_extent_key(key) else {
                self.note(|_| Err(Error::corrupt("a row of extents has the key of none")));
                self.put_row(key, value)?;
                continue;
            };
            if ino != inode {
                self.change(inode, &of_inode)?;
                of_inode.clear();
                inode = ino;
            }
            if of_inode.last().is_some_and(|(last, _)| *last == at) {
                of_inode.pop();
            }
            of_inode.push((at, value.map(|value| Row::of(at, value))));
        }
        self.change(inode, &of_inode)
    }

    /// Carries out the changes of an inode, in the order of blocks.
    fn change(&mut self, ino: InodeNo, mut rest: &[Wanted]) -> Result<()> {
        while let Some((first, _)) = rest.first() {
            let row = last_upto(self.table, &extent_key(ino, *first))?;
            let patched = row.as_ref().map_or(Ok(None), |row| self.patch(row, rest))?;
            rest = match patched {
                Some(taken) => &rest[taken..],
                None => self.change_window(ino, row, rest)?,
            };
        }
        Ok(())
    }

    /// Gives extents of a pack other values, where that is all that the changes ask of it; returns
    /// how many of them these are.
    fn patch(&mut self, (key, value): &TreeRow, changes: &[Wanted]) -> Result<Option<usize>> {
        let may = |patch: &Patch<'_>| (self.small() + 1..=self.limit).contains(&patch.count());
        let patch = Patch::open(key, value, HOLE_BLOCKS_MAX).filter(may);
        let Some(mut patch) = patch else { return Ok(None) };
        let last = patch.last_block();
        let of_pack = changes.iter().take_while(|(at, _)| *at <= last);
        let mut noted = Vec::new();
        for (at, row) in of_pack {
            let Some(Row::Extent(row)) = row else { return Ok(None) };
            let Some(old) = patch.set(*at, *row) else { return Ok(None) };
            noted.push((old, *row));
        }
        if noted.is_empty() {
            return Ok(None);
        }
        for (old, new) in noted.iter().filter(|(old, new)| old != new) {
            self.note(|space| space.note_extent(Some(*old), Some(*new)));
        }
        if let Some(value) = patch.finish() {
            self.put_row(key, Some(&value))?;
        }
        Ok(Some(noted.len()))
    }

    /// Replaces rows from the one that has the first change on; returns the changes that are left.
    fn change_window<'c>(
        &mut self,
        ino: InodeNo,
        row: Option<TreeRow>,
        mut rest: &'c [Wanted],
    ) -> Result<&'c [Wanted]> {
        let first = rest[0].0;
        let mut window = Window::default();
        let mut taken = self.around(ino, row, &mut window)?;
        let mut behind = match window.before.last() {
            Some((key, _)) => key.clone(),
            None => above(&extent_key(ino, first)),
        };
        loop {
            let next = self.next_row(ino, &behind)?;
            let upto = next.as_ref().and_then(|(key, _)| block_of(key));
            let is_before = |at: FileBlock| at == first || upto.is_none_or(|upto| at < upto);
            let (now, left) =
                rest.split_at(rest.iter().take_while(|(at, _)| is_before(*at)).count());
            self.merge(taken, now, &mut window.after);
            rest = left;
            let Some(next) = next else { break };
            let Some(found) = self.joins(&window.after, &next) else { break };
            behind.clone_from(&next.0);
            window.before.push(next);
            taken = found;
        }
        self.write(ino, window)?;
        Ok(rest)
    }

    /// Takes the row that has the first change among its own into a window, and a small one before
    /// it; returns the entries of the first.
    fn around(
        &mut self,
        ino: InodeNo,
        row: Option<TreeRow>,
        window: &mut Window,
    ) -> Result<Vec<Entry>> {
        let Some(row) = row else { return Ok(Vec::new()) };
        let Some(found) = entries(&row) else {
            self.note(|_| Err(Error::corrupt("a pack cannot be read")));
            return Ok(Vec::new());
        };
        if found.len() <= self.small()
            && let Some(before) = self.row_before(ino, &row.0)?
            && let Some(mut left) = entries(&before)
            && left.len() + found.len() <= self.limit
            && gap(left.last(), found.first()).is_some()
        {
            if planted(PlantedBug::PackTailLostAtJoin) {
                left.pop();
            }
            window.before.push(before);
            window.after = left;
        }
        window.before.push(row);
        Ok(found)
    }

    /// Returns the entries of the next row where they may join those of a window, which has little.
    fn joins(&self, after: &[Entry], next: &TreeRow) -> Option<Vec<Entry>> {
        let small = after.len() <= self.small() && !after.is_empty();
        let found = if small { entries(next) } else { None };
        found.filter(|found| {
            after.len() + found.len() <= self.limit && gap(after.last(), found.first()).is_some()
        })
    }

    /// So many extents are few.
    fn small(&self) -> usize {
        self.limit / 3
    }

    /// Adds entries as changes leave them.
    fn merge(&mut self, entries: Vec<Entry>, changes: &[Wanted], after: &mut Vec<Entry>) {
        let mut entries = entries.into_iter().peekable();
        for (at, row) in changes {
            while let Some(entry) = entries.next_if(|(before, _)| before < at) {
                after.push(entry);
            }
            let old = entries.next_if(|(same, _)| same == at).map(|(_, row)| row);
            if old != *row {
                self.note(|space| {
                    let extent = |row: Option<&Row>| match row {
                        Some(Row::Raw(value)) => ExtentRow::decode(value).map(Some),
                        Some(Row::Extent(row)) => Ok(Some(*row)),
                        None => Ok(None),
                    };
                    space.note_extent(extent(old.as_ref())?, extent(row.as_ref())?)
                });
            }
            after.extend(row.clone().map(|row| (*at, row)));
        }
        after.extend(entries);
    }

    /// Writes a window: what it is to have, in as many rows as that takes.
    fn write(&mut self, ino: InodeNo, window: Window) -> Result<()> {
        let Window { before, after } = window;
        assert!(
            after.windows(2).all(|pair| pair[0].0 < pair[1].0),
            "I-PCK-2: the extents of inode {} are written in the order of their blocks",
            ino.0
        );
        let mut rows = Vec::new();
        let mut rest = after.as_slice();
        while !rest.is_empty() {
            let together =
                1 + rest.windows(2).take_while(|p| gap(p.first(), p.last()).is_some()).count();
            let (run, behind) = rest.split_at(together);
            rest = behind;
            let pieces = self.pieces(run.len());
            for piece in 0..pieces {
                let part = &run[run.len() * piece / pieces..run.len() * (piece + 1) / pieces];
                rows.push(encode(ino, part));
            }
        }
        for (key, _) in &before {
            let stays = rows.iter().any(|(new, _)| new == key);
            if !stays && !planted(PlantedBug::RepackedRowStays) {
                self.put_row(key, None)?;
            }
        }
        for row in rows.iter().filter(|row| !before.contains(row)) {
            self.put_row(&row.0, Some(&row.1))?;
        }
        Ok(())
    }

    /// Into how many rows so many extents go: one, or so many that each has room for more.
    fn pieces(&self, count: usize) -> usize {
        if count <= self.limit { 1 } else { count.div_ceil(self.limit - self.limit / 4) }
    }

    fn note(&mut self, change: impl FnOnce(&mut SpaceChanges) -> Result<()>) {
        if let Some(space) = self.space.as_deref_mut()
            && let Ok(known) = space
            && let Err(error) = change(known)
        {
            *space = Err(error);
        }
    }

    fn put_row(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        match value {
            Some(value) => self.table.insert(key, value).map(drop),
            None => self.table.remove(key).map(drop),
        }
        .map_err(|e| tree_error(CONTEXT, e))
    }

    /// Returns the first row of an inode behind a key.
    fn next_row(&self, ino: InodeNo, behind: &[u8]) -> Result<Option<TreeRow>> {
        let end = ino.0.checked_add(1).map(u64::to_be_bytes);
        let end = end.as_ref().map_or(Bound::Unbounded, |end| Bound::Excluded(end.as_slice()));
        self.one((Bound::Excluded(behind), end), false)
    }

    /// Returns the last row of an inode before a key.
    fn row_before(&self, ino: InodeNo, key: &[u8]) -> Result<Option<TreeRow>> {
        let first = ino.0.to_be_bytes();
        self.one((Bound::Included(first.as_slice()), Bound::Excluded(key)), true)
    }

    /// Returns the first row of a range, or its last one.
    fn one(&self, range: Bounds<'_>, last: bool) -> Result<Option<TreeRow>> {
        guarded(|| {
            let mut rows = self.table.range::<&[u8]>(range).map_err(|e| tree_error(CONTEXT, e))?;
            let row = if last { rows.next_back() } else { rows.next() };
            let row = row.transpose().map_err(|e| tree_error(CONTEXT, e))?;
            Ok(row.map(|(key, value)| (key.value().to_vec(), value.value().to_vec())))
        })
    }
}

/// The block that a row of extents begins with.
fn block_of(key: &[u8]) -> Option<FileBlock> {
    let block = key.get(8..16)?;
    Some(FileBlock(u64::from_be_bytes(block.try_into().ok()?)))
}

/// Encodes entries that stand together as a row of the tree.
fn encode(ino: InodeNo, entries: &[Entry]) -> TreeRow {
    if let [(at, row)] = entries {
        return (extent_key(ino, *at).to_vec(), row.value());
    }
    let extents: Vec<Placed> = entries
        .iter()
        .map(|(at, row)| match row {
            Row::Extent(row) => (*at, *row),
            Row::Raw(_) => unreachable!("a row that no pack may have stands alone"),
        })
        .collect();
    (pack::pack_key(ino, extents[0].0).to_vec(), pack::encode(ino, &extents))
}

#[cfg(test)]
mod tests;
