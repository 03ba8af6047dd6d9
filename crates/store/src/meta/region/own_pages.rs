//! Pages of the tree by their place on the volume: what each must hold, and a walk over all of them.

use std::collections::HashSet;

use super::page_sums::Expected;
use super::{ByteRun, Region, plan_runs, usize_from};
use crate::Result;

/// What a page of the tree must hold.
#[derive(Debug)]
pub(in crate::meta) struct OwnPage(Expected);

impl OwnPage {
    pub(in crate::meta) fn is_in(&self, bytes: &[u8]) -> bool {
        self.0.is_met_by(bytes)
    }
}

/// A walk over the pages of the tree, from its header down.
pub(in crate::meta) struct PageWalk {
    /// Places in the tree's file that are still to be read.
    todo: Vec<u64>,
    seen: HashSet<u64>,
}

impl PageWalk {
    pub(in crate::meta) fn is_over(&self) -> bool {
        self.todo.is_empty()
    }

    /// Reads the next page; does nothing at the end. No metadata commit is under way.
    pub(in crate::meta) fn step(&mut self, region: &Region) -> Result<()> {
        let Some(offset) = self.todo.pop() else { return Ok(()) };
        let Some(len) = region.sums.page_at(offset) else { return Ok(()) };
        if !self.seen.insert(offset) {
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
        PageWalk { todo: vec![0], seen: HashSet::new() }
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
        let (start, len, expected) = self.sums.covering(before + (address - chunk.start))?;
        let runs = plan_runs(&superblock.chunks, start, len)?;
        Some((OwnPage(expected), runs))
    }
}
