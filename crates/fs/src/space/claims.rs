//! Collects at mount what is in use; the rest is free.

use std::fmt;

use super::Space;
use crate::extent::Run;
use crate::{BlockNo, Error, FileBlock, InodeNo, Result};

/// Who claims blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A part of the volume itself.
    Region(&'static str),
    /// The extent of an inode that begins at a file block.
    Extent(InodeNo, FileBlock),
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Region(name) => f.write_str(name),
            Self::Extent(ino, at) => write!(f, "the extent of inode {} at file block {}", ino.0, at.0),
        }
    }
}

/// A claimed run. The fields are raw because they come from the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    start: u64,
    blocks: u64,
    owner: Owner,
}

impl Claim {
    /// Makes a claim; nothing about it is trusted.
    pub(crate) fn new(start: BlockNo, blocks: u64, owner: Owner) -> Self {
        Self { start: start.0, blocks, owner }
    }

    /// Returns who claims.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    fn end(&self) -> u64 {
        self.start.saturating_add(self.blocks)
    }
}

/// All claims of a volume. One sort instead of a tree: a million extents take a fraction of a second.
#[derive(Debug)]
pub(crate) struct Claims {
    block_size: u32,
    blocks: u64,
    claims: Vec<Claim>,
}

impl Claims {
    /// Begins with nothing claimed on a volume of `blocks` blocks.
    pub(crate) fn new(block_size: u32, blocks: u64) -> Self {
        Self { block_size, blocks, claims: Vec::new() }
    }

    /// Marks blocks as used.
    ///
    /// # Errors
    /// `Corrupt` when they lie outside the volume.
    pub(crate) fn mark_used(&mut self, claim: Claim) -> Result<()> {
        if claim.blocks == 0 || claim.start.checked_add(claim.blocks).is_none_or(|end| end > self.blocks) {
            let Claim { start, blocks, owner } = claim;
            return Err(Error::corrupt(format!("{owner} claims {blocks} blocks from block {start}; the volume has {} blocks", self.blocks)));
        }
        self.claims.push(claim);
        Ok(())
    }

    /// Calls `found` for every claim that reaches into another one, with the one that came first on the volume and the shared run.
    pub(crate) fn overlaps(&mut self, mut found: impl FnMut(Claim, Claim, Run)) {
        self.claims.sort_unstable_by_key(|claim| (claim.start, claim.blocks));
        let mut furthest: Option<Claim> = None;
        for claim in &self.claims {
            if let Some(before) = furthest.filter(|before| before.end() > claim.start) {
                found(before, *claim, Run { start: BlockNo(claim.start), blocks: before.end().min(claim.end()) - claim.start });
            }
            furthest = furthest.filter(|before| before.end() >= claim.end()).or(Some(*claim));
        }
    }

    /// Returns the space in which everything not claimed is free.
    ///
    /// # Errors
    /// `Corrupt` naming both owners when two claims overlap.
    pub(crate) fn into_space(mut self) -> Result<Space> {
        let mut first = None;
        self.overlaps(|a, b, run| {
            first.get_or_insert_with(|| {
                Error::corrupt(format!("{} and {} both claim {} blocks from block {}; run a check", a.owner, b.owner, run.blocks, run.start.0))
            });
        });
        if let Some(error) = first {
            return Err(error);
        }
        let ends = std::iter::once(0).chain(self.claims.iter().map(Claim::end));
        let starts = self.claims.iter().map(|claim| claim.start).chain(std::iter::once(self.blocks));
        let gaps = ends.zip(starts).filter(|(end, start)| end < start);
        Ok(Space::new(self.block_size, self.blocks, gaps.map(|(end, start)| Run { start: BlockNo(end), blocks: start - end })))
    }
}
