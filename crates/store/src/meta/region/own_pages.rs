//! Pages of the tree by their place on the volume: what each must hold, and a walk over all of them.

use std::collections::BTreeMap;
use std::ops::Range;

use super::page_sums::Expected;
use super::{ByteRun, PAGE, Region, plan_runs, usize_from};
use crate::Result;

/// What a page of the tree must hold.
#[derive(Debug)]
pub(in crate::meta) struct OwnPage(Content);

#[derive(Debug)]
enum Content {
    Page(Expected),
    /// The header, as it was written where this mount wrote it.
    Header(Option<Box<[u8]>>),
}

impl OwnPage {
    pub(in crate::meta) fn is_in(&self, bytes: &[u8]) -> bool {
        match &self.0 {
            Content::Page(expected) => expected.is_met_by(bytes),
            Content::Header(Some(written)) => bytes.starts_with(written),
            Content::Header(None) => Expected::Header.is_met_by(bytes),
        }
    }

    /// Says whether bytes that pass are those that were written. A header that was not written yet
    /// passes where its present slot is whole, and which slot that is, it says itself.
    pub(in crate::meta) fn is_exact(&self) -> bool {
        !matches!(self.0, Content::Header(None))
    }
}

/// A walk over the pages of the tree, from its header down.
pub(in crate::meta) struct PageWalk {
    /// Places in the tree's file that are still to be read.
    todo: Vec<u64>,
    /// Where those begin that were read, and how long they are.
    seen: BTreeMap<u64, u64>,
}

impl PageWalk {
    pub(in crate::meta) fn is_over(&self) -> bool {
        self.todo.is_empty()
    }

    /// Returns the pages that were read and lie in a range of the tree's file, in whole or in part.
    pub(super) fn pages_in(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let before = self.seen.range(..range.start).next_back();
        let from = range.start;
        before
            .into_iter()
            .chain(self.seen.range(range.clone()))
            .map(|(start, len)| *start..start + len)
            .filter(move |page| page.end > from)
    }

    /// Reads the next page; does nothing at the end. No metadata commit is under way.
    pub(in crate::meta) fn step(&mut self, region: &Region) -> Result<()> {
        let Some(offset) = self.todo.pop() else { return Ok(()) };
        let Some(len) = region.sums.page_at(offset) else { return Ok(()) };
        if self.seen.insert(offset, len).is_some() {
            return Ok(());
        }
        let mut bytes = vec![0; usize_from(len)?];
        region.read_device(offset, &mut bytes)?;
        region.compare(offset, &mut bytes)?;
        self.todo.extend(region.sums.below(offset, &bytes));
        Ok(())
    }
}

impl Region {
    /// Begins a walk over all pages.
    pub(in crate::meta) fn page_walk(&self) -> PageWalk {
        PageWalk { todo: vec![0], seen: BTreeMap::new() }
    }

    /// Returns what the page must hold that lies at an address of the volume, and where all of it
    /// lies; `None` where there is none, or what it holds is not known.
    pub(in crate::meta) fn own_page(&self, address: u64) -> Option<(OwnPage, Vec<ByteRun>)> {
        let superblock = self.superblock.read();
        let mut before = 0;
        let chunk = superblock.chunks.iter().find(|chunk| {
            let is_in = (chunk.start..chunk.end()).contains(&address);
            before += if is_in { 0 } else { chunk.len };
            is_in
        })?;
        let at = before + (address - chunk.start);
        if at < PAGE {
            let runs = plan_runs(&superblock.chunks, 0, PAGE)?;
            return Some((OwnPage(Content::Header(self.sums.header_below())), runs));
        }
        let (start, len, expected) = self.sums.covering(at)?;
        let runs = plan_runs(&superblock.chunks, start, len)?;
        Some((OwnPage(Content::Page(expected)), runs))
    }
}
