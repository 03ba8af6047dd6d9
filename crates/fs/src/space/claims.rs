//! Collects at mount what is in use; the rest is free.

use std::fmt;

use super::Space;
use crate::checkpoint::Shares;
use crate::extent::Run;
use crate::{BlockNo, Epoch, Error, FileBlock, InodeNo, Result};

/// Who claims blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A part of the volume itself.
    Region(&'static str),
    /// The extent of an inode that begins at a file block.
    Extent(InodeNo, FileBlock),
    /// What such an extent was in a checkpoint.
    Image(Epoch, InodeNo, FileBlock),
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Region(name) => f.write_str(name),
            Self::Extent(ino, at) => write!(f, "the extent of inode {} at file block {}", ino.0, at.0),
            Self::Image(epoch, ino, at) => write!(f, "the extent of inode {} at file block {} in checkpoint {}", ino.0, at.0, epoch.0),
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

    fn run(&self) -> Run {
        Run { start: BlockNo(self.start), blocks: self.blocks }
    }

    fn is_image(&self) -> bool {
        matches!(self.owner, Owner::Image(..))
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

    /// Calls `found` for every claim that reaches into another one and may not, with the one that came first on the volume and the shared run.
    /// Extents and what they were in checkpoints may share blocks; two files, or a file and the volume itself, may not.
    pub(crate) fn overlaps(&mut self, mut found: impl FnMut(Claim, Claim, Run)) {
        self.claims.sort_unstable_by_key(|claim| (claim.start, claim.blocks));
        let region = |claim: &&Claim| matches!(claim.owner, Owner::Region(_));
        clashes(self.claims.iter().filter(|claim| !claim.is_image()), &mut found);
        clashes(self.claims.iter().filter(|claim| region(claim) || claim.is_image()), |a, b, run| {
            if region(&&a) || region(&&b) {
                found(a, b, run);
            }
        });
    }

    /// Returns the blocks that several extents and images share.
    pub(crate) fn shares(&self) -> Shares {
        if !self.claims.iter().any(Claim::is_image) {
            return Shares::default();
        }
        Shares::build(self.claims.iter().filter(|claim| !matches!(claim.owner, Owner::Region(_))).map(Claim::run).collect())
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
        let mut end = 0;
        let last = Claim::new(BlockNo(self.blocks), 0, Owner::Region("the end"));
        let gaps = self.claims.iter().chain(std::iter::once(&last)).filter_map(|claim| {
            let gap = end..claim.start;
            end = end.max(claim.end());
            (!gap.is_empty()).then(|| Run { start: BlockNo(gap.start), blocks: gap.end - gap.start })
        });
        Ok(Space::new(self.block_size, self.blocks, gaps))
    }
}

/// Calls `found` for every claim that reaches into one before it; they come in order of their starts.
fn clashes<'a>(claims: impl Iterator<Item = &'a Claim>, mut found: impl FnMut(Claim, Claim, Run)) {
    let mut furthest: Option<Claim> = None;
    for claim in claims {
        if let Some(before) = furthest.filter(|before| before.end() > claim.start) {
            found(before, *claim, Run { start: BlockNo(claim.start), blocks: before.end().min(claim.end()) - claim.start });
        }
        furthest = furthest.filter(|before| before.end() >= claim.end()).or(Some(*claim));
    }
}
