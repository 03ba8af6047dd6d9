//! Copy-on-write: blocks that a checkpoint, a clone or an untorn unit protects are not written in
//! place, but to new blocks, which a record maps in their place.
//!
//! ```text
//!   birth of the extent > the file's copy-on-write epoch?  yes ─► in place: nothing else to look at
//!        │ no
//!        ├ written, and a checkpoint holds the file ─► a hole to the writer: new blocks, remapped with the data
//!        └ else ─► each block: needed by a row elsewhere? yes ─► a hole too
//!                                                          no  ─► in place
//! ```
//!
//! The *copy-on-write epoch* is that of the newest checkpoint that holds the file, or up to which
//! the file shares blocks with clones. It is kept beside the file's map and looked up again when
//! the set of checkpoints has changed, so making a checkpoint touches no file.
//!
//! - I-IO-6: a block that an image or another file may need is written only after it left this
//!   file's map.
//! - I-IO-7: a block that leaves a map under the shared inode lock becomes free only after all that
//!   held that lock have let go.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Alone, DataPath};
use crate::engine::Engine;
use crate::inode::Inode;
use crate::{Epoch, Lsn, Result};
use bedplate_cache::MapChange;
use bedplate_store::{Exposure, ExtentMap, InodeRow, Mapped, Piece, PlantedBug, Run, planted};

/// Makes the library cache forget a file, and keep nothing of it until the answer is dropped.
pub(crate) fn forget_pages(fs: &Engine, inode: &Arc<Inode>) -> Result<Option<MapChange>> {
    DataPath::new(fs, inode)
        .cached_if_any()
        .map(|cached| cached.begin_map_change(0, u64::MAX))
        .transpose()
}

/// Takes over a row and extents that changed below the inode. If it is open, its inode lock is
/// held, exclusive.
pub(crate) fn read_again(fs: &Engine, inode: &Arc<Inode>, row: InodeRow) {
    let io = DataPath::new(fs, inode);
    io.forget_reserved(&(0..u64::MAX));
    io.state().recent.clear();
    io.state().held_sectors.clear();
    io.state().read_windows.clear();
    let size = row.size;
    // Before the map: one that is loaded from here on takes its size from the row.
    inode.replace_row(row);
    io.state().forget_map();
    io.state().set_logged_size(size);
    if let Some(lease) = io.state().lease() {
        lease.map_changed(false);
    }
}

/// Forgets where the blocks of a file are, which changed below the inode; what is in them did not.
/// If it is open, its inode lock is held, exclusive.
pub(crate) fn forget_places(fs: &Engine, inode: &Arc<Inode>) {
    let io = DataPath::new(fs, inode);
    io.state().recent.clear();
    io.state().held_sectors.clear();
    io.state().read_windows.clear();
    io.state().forget_map();
    if let Some(lease) = io.state().lease() {
        lease.map_changed(false);
    }
}

impl DataPath<'_> {
    /// Returns the epoch up to which extents of this file may be needed elsewhere.
    #[inline]
    pub(super) fn cow_epoch(self) -> Epoch {
        let generation = self.fs.epoch_generation();
        self.state().cow_epoch.get(generation).unwrap_or_else(|| self.find_cow_epoch(generation))
    }

    #[cold]
    fn find_cow_epoch(self, generation: u32) -> Epoch {
        let floors = self.fs.reading(|rows| {
            let held = rows.checkpoint_set.held(self.inode.ino);
            let cloned = rows.checkpoint_set.cloned.contains(&self.inode.ino);
            Ok((held, if cloned { rows.checkpoint_set.cloned_upto } else { Epoch(0) }))
        });
        let (held, cloned) = floors.expect("nothing is read from the device");
        self.state().cow_epoch.set_parts(held, cloned);
        // What cannot be read is kept from tearing to be safe.
        let untorn = self.fs.untorn_bytes(self.inode.ino).unwrap_or(u32::MAX);
        self.state().untorn.set(untorn);
        let gives_sums =
            self.fs.may_have_sums() && self.fs.has_integrity(self.inode.ino).unwrap_or(true);
        self.state().gives_sums.store(gives_sums, Ordering::Relaxed);
        self.find_extent_size();
        self.find_placement();
        let epoch = if untorn > 0 || gives_sums { Epoch(u32::MAX) } else { held.max(cloned) };
        self.state().cow_epoch.set(generation, epoch);
        epoch
    }

    /// The newest checkpoint that holds the file, and the epoch up to which it may share blocks
    /// with other files. Stable under the inode lock of an open file.
    pub(super) fn cow_epochs(self) -> (Epoch, Epoch) {
        self.cow_epoch();
        self.state().cow_epoch.parts()
    }

    /// Returns the pieces of a range of file blocks as a writer may use them: what is needed
    /// elsewhere is a hole (I-IO-6). Also whether there was any. Of a file that is written untorn,
    /// so is every written block, but not to a write of parts of blocks; what has checksums is one
    /// to every write (I-SUM-2).
    pub(super) fn pieces_to_write(self, map: &ExtentMap, blocks: Range<u64>) -> (Vec<Piece>, bool) {
        let (mut pieces, mut any) = self.pieces_to_change(map, blocks);
        let all = self.redirects_all();
        for piece in &mut pieces {
            if piece.is_summed() || (all && piece.written().is_some()) {
                (piece.mapped, any) = (None, true);
            }
        }
        (pieces, any)
    }

    /// As [`pieces_to_write`](Self::pieces_to_write), for a write of parts of blocks, in place once
    /// they are the file's own.
    pub(super) fn pieces_to_change(
        self,
        map: &ExtentMap,
        blocks: Range<u64>,
    ) -> (Vec<Piece>, bool) {
        let mut any = false;
        let pieces = self
            .pieces_by_sharing(map, blocks)
            .into_iter()
            .map(|(piece, shared)| {
                any |= shared;
                Piece { mapped: piece.mapped.filter(|_| !shared), ..piece }
            })
            .collect();
        (pieces, any)
    }

    /// Returns the pieces of a range of file blocks, each with whether it is needed elsewhere. Of one
    /// extent, some blocks may be and others not.
    pub(super) fn pieces_by_sharing(
        self,
        map: &ExtentMap,
        blocks: Range<u64>,
    ) -> Vec<(Piece, bool)> {
        let epoch = self.cow_epoch();
        let mut pieces: Vec<(Piece, bool)> =
            map.pieces(blocks).map(|piece| (piece, false)).collect();
        let may_be =
            |(piece, _): &(Piece, bool)| piece.mapped.is_some_and(|mapped| mapped.birth <= epoch);
        if pieces.iter().any(may_be) {
            let floors = self.cow_epochs();
            pieces =
                pieces.into_iter().flat_map(|(piece, _)| self.by_sharing(piece, floors)).collect();
        }
        pieces
    }

    /// Returns a piece in parts, each with whether it is needed elsewhere, given the epochs up to
    /// which checkpoints and clones may need it.
    pub(super) fn by_sharing(
        self,
        piece: Piece,
        (held, cloned): (Epoch, Epoch),
    ) -> Vec<(Piece, bool)> {
        let Some(Mapped { start, state, birth }) = piece.mapped else {
            return vec![(piece, false)];
        };
        let by_checkpoint = state.has_data() && birth <= held;
        if birth > held.max(cloned) || by_checkpoint {
            return vec![(piece, by_checkpoint)];
        }
        let run = Run { start, blocks: piece.blocks };
        let parts = self.fs.reading(|rows| Ok(rows.checkpoint_set.sharing(run)));
        let parts = parts.expect("nothing is read from the device").into_iter();
        parts
            .map(|(part, shared, left)| {
                // What cannot be sealed is left as it is: new blocks are asked for, and that call
                // reports what failed.
                let left = left.filter(|_| !planted(PlantedBug::WriteBeforeUnshared));
                let shared = shared || left.is_some_and(|lsn| self.fs.seal_to(lsn).is_err());
                let mapped = Some(Mapped { start: part.start, state, birth });
                let file_block = piece.file_block + (part.start.0 - start.0);
                (Piece { file_block, blocks: part.blocks, mapped }, shared)
            })
            .collect()
    }

    /// Gives the file copies of its own of written blocks that are needed elsewhere, so that parts
    /// of them can be written in place. Returns whether it had to.
    pub(super) fn unshare(self, held: &Alone<'_>, bytes: &Range<u64>) -> Result<bool> {
        let mut any = false;
        if bytes.is_empty() {
            return Ok(any);
        }
        loop {
            let blocks = self.fs.grid().blocks(bytes);
            let map = self.map(blocks.clone())?;
            let copied = self
                .pieces_by_sharing(&map, blocks)
                .into_iter()
                .find_map(|(piece, shared)| piece.written().filter(|_| shared).map(|_| piece));
            let Some(piece) = copied else { return Ok(any) };
            drop(map);
            self.copy_piece(held, piece)?;
            any = true;
        }
    }

    /// As [`unshare`](Self::unshare), for the blocks that a byte range covers only in part.
    pub(super) fn unshare_edges(self, held: &Alone<'_>, bytes: &Range<u64>) -> Result<bool> {
        let grid = self.fs.grid();
        let mut any = false;
        if !grid.on_block(bytes.start) {
            any |= self.unshare(held, &(bytes.start..bytes.start + 1))?;
        }
        if !grid.on_block(bytes.end) {
            any |= self.unshare(held, &(bytes.end - 1..bytes.end))?;
        }
        Ok(any)
    }

    /// Copies the beginning of a written piece, as much as one record covers, to new blocks and
    /// maps them in its place.
    fn copy_piece(self, held: &Alone<'_>, piece: Piece) -> Result<()> {
        debug_assert!(
            piece.blocks > 0 && piece.written().is_some(),
            "only blocks with data are copied before they are written: {piece:?}"
        );
        let piece = Piece {
            blocks: piece.blocks.min((Exposure::BYTES_MAX / self.fs.grid().block).max(1)),
            ..piece
        };
        let range = piece.file_block..piece.file_block + piece.blocks;
        let map = self.map(ExtentMap::around(&range))?;
        let fresh = self.allocate_holes(map, &[Piece { mapped: None, ..piece }], false)?;
        self.move_pieces(held, &[piece], fresh)
    }

    /// Keeps blocks that left the file under the shared inode lock (I-IO-7).
    pub(super) fn defer_free(self, lsn: Lsn, runs: Vec<Run>) {
        if !runs.is_empty() {
            self.fs.defer_free(self.inode, lsn, runs);
        }
    }
}
