//! Collects at mount what is in use; the rest is free.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use super::Allocator;
use crate::extent::{ExtentState, Run};
use crate::images::{BlockRefs, Referrer};
use crate::{BlockNo, Epoch, Error, FileBlock, InodeNo, Result};

/// What claims blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// A part of the volume itself.
    Region(&'static str),
    /// The extent of an inode that begins at a file block, born in an epoch.
    Extent(InodeNo, FileBlock, Epoch),
    /// What such an extent was in a checkpoint, and in which state.
    Image(Epoch, InodeNo, FileBlock, ExtentState),
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Region(name) => f.write_str(name),
            Self::Extent(ino, at, _) => {
                write!(f, "the extent of inode {} at file block {}", ino.0, at.0)
            }
            Self::Image(epoch, ino, at, _) => write!(
                f,
                "the extent of inode {} at file block {} in checkpoint {}",
                ino.0, at.0, epoch.0
            ),
        }
    }
}

/// A claimed run. The fields are raw because they come from the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    start: u64,
    blocks: u64,
    owner: Owner,
}

impl Claim {
    /// Makes a claim; nothing about it is trusted.
    pub fn new(start: BlockNo, blocks: u64, owner: Owner) -> Self {
        Self { start: start.0, blocks, owner }
    }

    /// Returns what claims.
    pub fn owner(&self) -> Owner {
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

    fn is_region(&self) -> bool {
        matches!(self.owner, Owner::Region(_))
    }

    /// The row that claims, as far as sharing goes.
    fn row(&self) -> Option<Referrer> {
        match self.owner {
            Owner::Region(_) => None,
            // In either state: a file needs what is its own.
            Owner::Extent(..) => Some(Referrer::Live(ExtentState::Written)),
            Owner::Image(.., state) => Some(Referrer::Image(state)),
        }
    }

    /// Whose extent it is or was, and an epoch up to which it was born; `None` for a part of the
    /// volume itself.
    fn of(&self) -> Option<(InodeNo, Epoch)> {
        match self.owner {
            Owner::Region(_) => None,
            Owner::Extent(ino, _, birth) => Some((ino, birth)),
            Owner::Image(epoch, ino, ..) => Some((ino, epoch)),
        }
    }

    /// The blocks of this claim that one which came before it on the volume reaches into.
    fn met_by(&self, before: &Self) -> Run {
        debug_assert!(
            before.end() > self.start,
            "two claims meet where they are said to: {before:?}, {self:?}"
        );
        Run { start: BlockNo(self.start), blocks: before.end().min(self.end()) - self.start }
    }
}

/// What claims share.
#[derive(Debug, Default)]
pub struct Shared {
    /// The blocks that several extents and images cover.
    pub shares: BlockRefs,
    /// The inodes that share blocks with others, now or in a checkpoint.
    pub files: HashSet<InodeNo>,
    /// No extent that shares blocks was born later.
    pub upto: Epoch,
}

/// All claims of a volume. One sort instead of a tree: a million extents take a fraction of a
/// second.
#[derive(Debug)]
pub struct Claims {
    block_size: u32,
    blocks: u64,
    /// What claims are taken of; they end where it does.
    slice: Range<u64>,
    claims: Vec<Claim>,
}

impl Claims {
    /// Begins with nothing claimed on a volume of `blocks` blocks.
    pub fn new(block_size: u32, blocks: u64) -> Self {
        Self { block_size, blocks, slice: 0..blocks, claims: Vec::new() }
    }

    /// Begins with nothing claimed of a slice of a volume: of other claims the part counts that lies
    /// in it.
    #[must_use]
    pub fn of_slice(block_size: u32, blocks: u64, slice: Range<u64>) -> Self {
        Self { slice, ..Self::new(block_size, blocks) }
    }

    /// Returns the blocks that claims are taken of.
    pub fn slice(&self) -> Range<u64> {
        self.slice.clone()
    }

    /// Marks blocks as used.
    ///
    /// # Errors
    /// `Corrupt` when they lie outside the volume.
    pub fn mark_used(&mut self, claim: Claim) -> Result<()> {
        if claim.blocks == 0
            || claim.start.checked_add(claim.blocks).is_none_or(|end| end > self.blocks)
        {
            let Claim { start, blocks, owner } = claim;
            return Err(Error::corrupt(format!(
                "{owner} claims {blocks} blocks from block {start}; the volume has {} blocks",
                self.blocks
            )));
        }
        let (start, end) = (claim.start.max(self.slice.start), claim.end().min(self.slice.end));
        if start < end {
            self.claims.push(Claim { start, blocks: end - start, ..claim });
        }
        Ok(())
    }

    /// Returns how many claims there are, and how many blocks those have that are not the volume's own.
    #[cfg(any(test, feature = "forge"))]
    #[must_use]
    pub fn counts(&self) -> (usize, u64) {
        let of_files = self.claims.iter().filter(|claim| !claim.is_region());
        (self.claims.len(), of_files.map(|claim| claim.blocks).sum())
    }

    fn sort(&mut self) {
        self.claims.sort_unstable_by_key(|claim| (claim.start, claim.blocks));
    }

    /// Calls `found` for every claim that reaches into another one and may not, with the one that
    /// came first on the volume and the shared run. Extents and what they were in checkpoints may
    /// share blocks, and so may files that were cloned from each other (of one `family`); other
    /// files, or a file and the volume itself, may not.
    pub fn overlaps(
        &mut self,
        family: impl Fn(InodeNo) -> InodeNo,
        mut found: impl FnMut(Claim, Claim, Run),
    ) {
        self.sort();
        clashes(self.claims.iter().filter(|claim| !claim.is_image()), family, &mut found);
        clashes(
            self.claims.iter().filter(|claim| claim.is_region() || claim.is_image()),
            |_| InodeNo(0),
            |a, b, run| {
                if a.is_region() || b.is_region() {
                    found(a, b, run);
                }
            },
        );
    }

    /// Returns what several extents and images share.
    pub fn shared(&mut self) -> Shared {
        let (mut shared, any) = self.sharing(&HashSet::new());
        if any {
            shared.shares = BlockRefs::build(
                self.claims.iter().filter_map(|claim| Some((claim.run(), claim.row()?))),
            );
        }
        shared
    }

    /// Returns the files that share blocks, without these, and whether there are any; files of
    /// `without` are left out.
    pub(crate) fn sharing(&mut self, without: &HashSet<InodeNo>) -> (Shared, bool) {
        self.sort();
        let mut shared = Shared::default();
        let (mut any, mut furthest) = (false, None::<&Claim>);
        let counts = |claim: &&Claim| claim.of().is_some_and(|(ino, _)| !without.contains(&ino));
        for claim in self.claims.iter().filter(counts) {
            if let Some(before) = furthest.filter(|before| before.end() > claim.start) {
                any = true;
                let pair = [before.of(), claim.of()].map(|of| of.expect("regions are left out"));
                shared.upto = shared.upto.max(pair[0].1).max(pair[1].1);
                // Of all claims over a block some pair of neighbours is of two files, if there are
                // two.
                if pair[0].0 != pair[1].0 {
                    shared.files.extend(pair.map(|(ino, _)| ino));
                }
            }
            furthest = furthest.filter(|before| before.end() >= claim.end()).or(Some(claim));
        }
        (shared, any)
    }

    /// Returns the rows that claim blocks, in the order of these.
    pub(crate) fn rows(&mut self) -> impl Iterator<Item = (Run, Referrer)> {
        self.sort();
        self.claims.iter().filter_map(|claim| Some((claim.run(), claim.row()?)))
    }

    /// Returns the space in which everything not claimed is free.
    ///
    /// # Errors
    /// `Corrupt` naming both owners when two claims overlap.
    pub fn into_allocator(mut self, family: impl Fn(InodeNo) -> InodeNo) -> Result<Allocator> {
        let mut first = None;
        self.overlaps(family, |a, b, run| {
            first.get_or_insert_with(|| {
                Error::corrupt(format!(
                    "{} and {} both claim {} blocks from block {}; run a check",
                    a.owner, b.owner, run.blocks, run.start.0
                ))
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
            (!gap.is_empty())
                .then(|| Run { start: BlockNo(gap.start), blocks: gap.end - gap.start })
        });
        Ok(Allocator::new(self.block_size, self.blocks, gaps))
    }
}

/// Calls `found` for every claim that reaches into one before it and is of another family, or of
/// the same file; they come in order of their starts.
fn clashes<'a>(
    claims: impl Iterator<Item = &'a Claim>,
    family: impl Fn(InodeNo) -> InodeNo,
    mut found: impl FnMut(Claim, Claim, Run),
) {
    let mut families: HashMap<InodeNo, InodeNo> = HashMap::new();
    let mut family = |ino: InodeNo| *families.entry(ino).or_insert_with(|| family(ino));
    let mut furthest: Option<Claim> = None;
    // The furthest claim of each file, of those that reach into one another.
    let mut own: HashMap<InodeNo, Claim> = HashMap::new();
    for claim in claims {
        debug_assert!(
            furthest.is_none_or(|before| before.start <= claim.start),
            "claims are compared in order: {claim:?}"
        );
        if let Some(before) = furthest.filter(|before| before.end() > claim.start) {
            match (before.of(), claim.of()) {
                (Some((other, _)), Some((ino, _))) => {
                    own.insert(other, before);
                    if let Some(own) = own.get(&ino).filter(|own| own.end() > claim.start) {
                        found(*own, *claim, claim.met_by(own));
                    } else if family(other) != family(ino) {
                        found(before, *claim, claim.met_by(&before));
                    }
                    own.entry(ino)
                        .and_modify(|own| {
                            *own = if own.end() < claim.end() { *claim } else { *own }
                        })
                        .or_insert(*claim);
                }
                _ => found(before, *claim, claim.met_by(&before)),
            }
        } else if !own.is_empty() {
            own.clear();
        }
        furthest = furthest.filter(|before| before.end() >= claim.end()).or(Some(*claim));
    }
}
