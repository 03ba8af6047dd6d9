//! How many blocks a change of a file needs in all. It asks for them in parts, and by then may have
//! changed something; a full volume must know the sum before it deletes checkpoints for the first
//! part.

use std::collections::BTreeSet;
use std::ops::Range;

use super::DataPath;
use super::fallocate::{edges, inner_blocks};
use super::reservation::count;
use crate::{AllocateMode, Epoch, Error, Result};
use bedplate_store::{Grid, Piece};

/// A change that may need blocks. Ranges are bytes of the file.
#[derive(Debug, Clone)]
pub(crate) enum SpaceDemand {
    /// Bytes are written.
    Write(Range<u64>),
    /// The allocation of a range changes.
    Allocate(AllocateMode, Range<u64>),
    /// The size becomes this.
    SetSize(u64),
}

/// The file blocks that a change touches.
#[derive(Debug, Default, PartialEq, Eq)]
struct Shape {
    /// Their holes are filled.
    filled: Range<u64>,
    /// What is mapped in `filled` is written over.
    writes: bool,
    /// Written blocks that change in part, and keep the rest; with `writes` outside of `filled`.
    parts: BTreeSet<u64>,
}

impl Shape {
    fn new(grid: &Grid, ask: &SpaceDemand, size: u64) -> Self {
        let mut shape = Self::default();
        let end = match ask {
            SpaceDemand::Write(bytes) => {
                (shape.filled, shape.writes) = (grid.blocks(bytes), true);
                bytes.end
            }
            SpaceDemand::Allocate(mode, bytes) => {
                if let AllocateMode::PunchHole | AllocateMode::ZeroRange { .. } = mode {
                    let inner = inner_blocks(grid, bytes, size);
                    shape.parts = edges(grid, bytes, &inner, size)
                        .iter()
                        .flat_map(|edge| grid.blocks(edge))
                        .collect();
                }
                if let AllocateMode::Preallocate { .. } | AllocateMode::ZeroRange { .. } = mode {
                    shape.filled = grid.blocks(bytes);
                }
                let grows = matches!(
                    mode,
                    AllocateMode::Preallocate { keep_size: false }
                        | AllocateMode::ZeroRange { keep_size: false }
                );
                if grows { bytes.end } else { 0 }
            }
            SpaceDemand::SetSize(size) => *size,
        };
        // The old end becomes part of the file, and is zeroed where its block has data.
        if end > size && !grid.on_block(size) {
            shape.parts.insert(grid.block_of(size));
        }
        let Self { filled, writes, .. } = &shape;
        let (filled, writes) = (filled.clone(), *writes);
        shape.parts.retain(|block| !(writes && filled.contains(block)));
        shape
    }
}

impl DataPath<'_> {
    /// Refuses a change in several steps that would not find the blocks of the last: it changes
    /// nothing then. The caller holds no lock of the file.
    pub(crate) fn need_room(self, ask: &SpaceDemand) -> Result<()> {
        if !matches!(
            ask,
            SpaceDemand::Allocate(AllocateMode::PunchHole | AllocateMode::ZeroRange { .. }, _)
        ) {
            return Ok(());
        }
        let blocks = self.demand(ask, &[])?;
        if blocks == 0 || self.fs.would_fit(blocks) {
            return Ok(());
        }
        Err(Error::no_space(blocks, "the volume is full: delete something, or grow it"))
    }

    /// Returns how many blocks a change needs, were the checkpoints of some epochs gone; what was
    /// reserved for the file is not counted again. The caller holds no lock of the file.
    pub(crate) fn demand(self, ask: &SpaceDemand, without: &[Epoch]) -> Result<u64> {
        let _held = self.state().lock.shared(self.fs);
        drop(self.map(0..0)?);
        let grid = self.fs.grid();
        let Shape { filled, writes, parts } = Shape::new(grid, ask, self.state().logged_size());
        let (_, cloned) = self.cow_epochs();
        let held = self
            .fs
            .reading(|rows| Ok(rows.checkpoint_set.held_without(self.inode.ino, without)))?;
        let is_whole = |bytes: &Range<u64>| grid.on_block(bytes.start) && grid.on_block(bytes.end);
        let redirects_all = matches!(ask, SpaceDemand::Write(bytes) if is_whole(bytes) || self.gives_sums())
            && self.redirects_all();
        let is_written = |piece: &Piece| piece.mapped.is_some_and(|mapped| mapped.state.has_data());
        let mut needed: Vec<Piece> = Vec::new();
        let by_sharing = |piece: Piece| self.by_sharing(piece, (held, cloned));
        for block in parts {
            let map = self.map(block..block + 1)?;
            let pieces = map.pieces(block..block + 1).flat_map(by_sharing);
            needed.extend(pieces.filter_map(|(piece, shared)| {
                (is_written(&piece) && (shared || piece.is_summed())).then_some(piece)
            }));
        }
        let map = self.map(filled.clone())?;
        needed.extend(map.pieces(filled).flat_map(by_sharing).filter_map(|(piece, shared)| {
            let goes_elsewhere =
                shared || piece.is_summed() || (redirects_all && is_written(&piece));
            (piece.mapped.is_none() || (writes && goes_elsewhere)).then_some(piece)
        }));
        let reserved = self.state().reserved.lock();
        let missing = |piece: &Piece| {
            count(&reserved.missing(piece.file_block..piece.file_block + piece.blocks))
        };
        Ok(needed.iter().map(missing).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(ask: &SpaceDemand, size: u64) -> (Range<u64>, bool, Vec<u64>) {
        let Shape { filled, writes, parts } = Shape::new(&Grid::new(4096, 512, 1), ask, size);
        (filled, writes, parts.into_iter().collect())
    }

    #[test]
    fn a_change_is_what_it_fills_and_what_it_changes_in_part() {
        let none = Vec::new();
        assert_eq!(shape(&SpaceDemand::Write(100..9000), 50_000), (0..3, true, none.clone()));
        assert_eq!(
            shape(&SpaceDemand::Write(9000..9100), 5000),
            (2..3, true, vec![1]),
            "the old end lies before what is written"
        );
        assert_eq!(shape(&SpaceDemand::Write(5100..9100), 5000), (1..3, true, none.clone()));
        assert_eq!(shape(&SpaceDemand::SetSize(4000), 5000), (0..0, false, none.clone()));
        assert_eq!(shape(&SpaceDemand::SetSize(5001), 5000), (0..0, false, vec![1]));
        assert_eq!(
            shape(&SpaceDemand::SetSize(9000), 8192),
            (0..0, false, none.clone()),
            "nothing lies behind the old end"
        );
        let allocate = |mode, bytes| SpaceDemand::Allocate(mode, bytes);
        assert_eq!(
            shape(&allocate(AllocateMode::PunchHole, 100..9000), 50_000),
            (0..0, false, vec![0, 2])
        );
        assert_eq!(
            shape(&allocate(AllocateMode::PunchHole, 100..200), 50_000),
            (0..0, false, vec![0])
        );
        assert_eq!(
            shape(&allocate(AllocateMode::ZeroRange { keep_size: false }, 100..9000), 8500),
            (0..3, false, vec![0, 2])
        );
        assert_eq!(
            shape(&allocate(AllocateMode::Preallocate { keep_size: false }, 8192..9000), 5000),
            (2..3, false, vec![1])
        );
        assert_eq!(
            shape(&allocate(AllocateMode::Preallocate { keep_size: true }, 8192..9000), 5000),
            (2..3, false, none.clone())
        );
        assert_eq!(
            shape(&allocate(AllocateMode::CollapseRange, 4096..8192), 50_000),
            (0..0, false, none)
        );
    }
}
