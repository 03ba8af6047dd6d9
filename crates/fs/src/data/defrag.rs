//! Defragmentation: what lies scattered on the volume is copied to where it lies together, a window
//! at a time, while the file is in use.
//!
//! ```text
//!   order lock, exclusive ─► dirty pages written ─► inode lock, exclusive ─► next window of scattered blocks ─► a longer run? ─ no ─► left alone
//!                                                                                                           │ yes
//!               locks released ◄─ one record remaps the window, with the checksum of the copy ◄─ copied ◄───┘
//! ```
//!
//! A window is no longer than a record's checksum covers, so a crash finds it wholly where it was
//! or wholly where it went. Reads and writes go on between two windows. Blocks that checkpoints or
//! other files need are left alone unless asked for: a copy of them would hold space of its own.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use bedplate_block::AlignedBuf;
use serde::{Deserialize, Serialize};

use super::commit_map::{Change, SizeChange};
use super::exposure::Exposing;
use super::fill::{Target, place};
use super::reservation::Fresh;
use super::{Alone, DataPath, write_inode};
use crate::engine::{Engine, Fragmentation};
use crate::inode::Inode;
use crate::{Error, ErrorKind, FileKind, Result};
use bedplate_store::{Exposure, Piece, PlantedBug, RecordKind, planted};

/// How many pieces of a map one window looks at while it holds the locks.
const PIECES_MAX: usize = 1 << 16;

/// What one step of defragmenting a file did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefragStep {
    /// The file offset in bytes at which the next step goes on; `None`: the end was reached.
    pub next: Option<u64>,
    /// Bytes that were copied.
    pub moved_bytes: u64,
    /// Bytes that stay scattered because the free space has no better place for them.
    pub stuck_bytes: u64,
}

/// What a look for the next window found.
enum Found {
    Window(Vec<Piece>),
    /// Nothing up to this file block.
    Nothing(u64),
    End,
}

/// Returns how many runs of the volume hold the pieces.
fn runs(pieces: &[Piece]) -> u64 {
    let mut end = None;
    pieces.iter().filter_map(|piece| Some((piece.mapped?.start.0, piece.blocks))).fold(
        0,
        |runs, (start, blocks)| {
            let joins = end == Some(start);
            end = Some(start + blocks);
            runs + u64::from(!joins)
        },
    )
}

/// Adds a piece to a window; returns whether the window is complete, with what the piece had room
/// for. A piece that is a window by itself needs none.
fn take(window: &mut Vec<Piece>, piece: Piece, blocks_max: u64) -> bool {
    debug_assert!(
        window.iter().map(|piece| piece.blocks).sum::<u64>() <= blocks_max,
        "a window holds no more than {blocks_max} blocks"
    );
    let room = blocks_max - window.iter().map(|piece| piece.blocks).sum::<u64>();
    if piece.blocks >= blocks_max {
        return !window.is_empty();
    }
    window.push(Piece { blocks: piece.blocks.min(room), ..piece });
    piece.blocks >= room
}

/// Goes on with a window by a piece; returns what was found where that ends the look.
fn widen(window: &mut Vec<Piece>, piece: Piece, movable: bool, blocks_max: u64) -> Option<Found> {
    if (!movable || take(window, piece, blocks_max)) && runs(window) > 1 {
        return Some(Found::Window(std::mem::take(window)));
    }
    if !movable || piece.blocks >= blocks_max {
        window.clear();
    } else if window.iter().map(|piece| piece.blocks).sum::<u64>() == blocks_max {
        // One run, full: what is left of the last piece begins the next window.
        let end = window.last().map_or(0, |last| last.file_block + last.blocks);
        return Some(Found::Nothing(end));
    }
    None
}

impl Engine {
    /// Returns how scattered a file is.
    pub(crate) fn fragmentation(&self, inode: &Arc<Inode>) -> Result<Fragmentation> {
        let io = DataPath::new(self, inode);
        let _held = io.state().lock.shared(self);
        let (mut runs, mut shared, mut end) = (0, 0, None);
        io.walk(0..u64::MAX, |map, stretch| -> ControlFlow<()> {
            for (piece, is_shared) in io.pieces_by_sharing(map, stretch) {
                let Some(mapped) = piece.mapped else { continue };
                runs += u64::from(end != Some(mapped.start.0));
                shared += u64::from(is_shared);
                end = Some(mapped.start.0 + piece.blocks);
            }
            ControlFlow::Continue(())
        })?;
        let blocks = io.map(0..0)?.blocks();
        Ok(Fragmentation { runs, bytes: blocks * self.grid().block, shared })
    }

    /// Moves the next scattered window of a file at or after an offset in bytes together.
    pub(crate) fn defragment(
        &self,
        inode: &Arc<Inode>,
        from: u64,
        unshare: bool,
    ) -> Result<DefragStep> {
        self.begin_change()?;
        self.need_live(inode.ino)?;
        if inode.kind != FileKind::File {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "inode {} is not a regular file: only those have blocks to move together",
                    inode.ino.0
                ),
            ));
        }
        // The file need not be open.
        let changing = self.change();
        let inode = &*self.pin(&changing, inode)?;
        let _changing = (!planted(PlantedBug::MoveBesideFreeze)).then_some(changing);
        let io = DataPath::new(self, inode);
        let _order = io.state().order.exclusive(self);
        // Of dirty pages some have blocks reserved for them; those that are written have none.
        if !planted(PlantedBug::MoveLeavesDirty) {
            write_inode(self, inode)?;
        }
        let held = io.state().lock.exclusive(self);
        io.write_held_write(&held)?;
        let step = io.defragment(&held, self.grid().block_of(from), unshare)?;
        if step.next.is_none() && !inode.data.is_open() {
            self.drop_ahead(inode.ino);
        }
        Ok(step)
    }
}

impl DataPath<'_> {
    fn defragment(self, held: &Alone<'_>, from: u64, unshare: bool) -> Result<DefragStep> {
        let grid = self.fs.grid();
        let done = |next: Option<u64>, moved: u64, stuck: u64| DefragStep {
            next: next.map(|block| grid.start_of(block)),
            moved_bytes: grid.start_of(moved),
            stuck_bytes: grid.start_of(stuck),
        };
        let window = match self.find_window(from, unshare)? {
            Found::Window(window) => window,
            Found::Nothing(next) => return Ok(done(Some(next), 0, 0)),
            Found::End => return Ok(done(None, 0, 0)),
        };
        let blocks = window.iter().map(|piece| piece.blocks).sum();
        let next = window[0].file_block + blocks;
        debug_assert!(
            next > from || window[0].file_block >= from,
            "a step of the defragmenter goes forward: {next} after {from}"
        );
        debug_assert!(
            window
                .iter()
                .zip(&window[1..])
                .all(|(one, two)| { one.file_block + one.blocks == two.file_block }),
            "the pieces of a window follow each other in the file"
        );
        let holes: Vec<Piece> =
            window.iter().map(|piece| Piece { mapped: None, ..*piece }).collect();
        // Room behind it is kept for the next window, as for an append.
        let first = window[0].file_block;
        let before = first.saturating_sub(1);
        let fresh = match self.allocate_holes(self.map(before..first + 1)?, &holes, true) {
            Ok(fresh) => fresh,
            Err(error) if error.kind == ErrorKind::NoSpace => {
                return Ok(done(Some(next), 0, blocks));
            }
            Err(error) => return Err(error),
        };
        if fresh.runs.len() as u64 >= runs(&window) && !planted(PlantedBug::MoveToNoBetterPlace) {
            self.give_back(fresh);
            return Ok(done(Some(next), 0, blocks));
        }
        debug_assert_eq!(
            fresh.runs.iter().map(|run| run.blocks).sum::<u64>(),
            blocks,
            "what is moved has as many new blocks as old ones"
        );
        self.move_pieces(held, &window, fresh)?;
        Ok(done(Some(next), blocks, 0))
    }

    /// Looks for written blocks that follow each other in the file and not on the volume, and may
    /// be moved.
    fn find_window(self, from: u64, unshare: bool) -> Result<Found> {
        let blocks_max = (Exposure::BYTES_MAX / self.fs.grid().block).max(1);
        let (mut window, mut count) = (Vec::new(), 0);
        let found = self.walk(from..u64::MAX, |map, stretch| {
            for piece in map.pieces(stretch) {
                count += 1;
                let found = if count > PIECES_MAX {
                    let first = window.first().map_or(piece.file_block, |it: &Piece| it.file_block);
                    Some(Found::Nothing(first))
                } else {
                    let range = piece.file_block..piece.file_block + piece.blocks;
                    let movable = piece.written().is_some()
                        && (unshare
                            || planted(PlantedBug::MoveOfShared)
                            || !self.pieces_to_change(map, range).1);
                    widen(&mut window, piece, movable, blocks_max)
                };
                if let Some(found) = found {
                    return ControlFlow::Break(found);
                }
            }
            ControlFlow::Continue(())
        })?;
        Ok(match found {
            Some(found) => found,
            None if runs(&window) > 1 => Found::Window(window),
            None => Found::End,
        })
    }

    /// Copies written pieces that follow each other in the file to new blocks, and maps these in
    /// their place with one record.
    pub(super) fn move_pieces(
        self,
        _held: &Alone<'_>,
        pieces: &[Piece],
        fresh: Fresh,
    ) -> Result<()> {
        let grid = self.fs.grid();
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return Ok(()) };
        let range = first.file_block..last.file_block + last.blocks;
        let holes: Vec<Piece> =
            pieces.iter().map(|piece| Piece { mapped: None, ..*piece }).collect();
        let targets = joined(place(&holes, &fresh.runs, self.fs.epoch()));
        let exposing = match self.copy(pieces, &targets, &grid.bytes(&range)) {
            Ok(exposing) => exposing,
            Err(error) => {
                self.give_back(fresh);
                return Err(error);
            }
        };
        let extents: Vec<_> =
            targets.iter().flat_map(|target| target.extents(exposing.sums())).collect();
        let change = Change {
            touches: false,
            ..Change::new(RecordKind::Remap, SizeChange::Keep).exposing(exposing)
        };
        self.publish_extents(range, &extents, change).map(drop)
    }

    fn copy(self, pieces: &[Piece], targets: &[Target], bytes: &Range<u64>) -> Result<Exposing> {
        let grid = self.fs.grid();
        let mut buf = AlignedBuf::zeroed((bytes.end - bytes.start) as usize);
        let within = |first: u64, blocks: u64| {
            let part = grid.bytes(&(first..first + blocks));
            (part.start - bytes.start) as usize..(part.end - bytes.start) as usize
        };
        for piece in pieces {
            let start = piece.written().expect("a written piece is copied");
            let (into, at) =
                (&mut buf[within(piece.file_block, piece.blocks)], grid.start_of(start.0));
            if piece.is_summed() {
                self.read_summed(into, at, grid.start_of(piece.file_block))?;
            } else {
                self.fs.read_device(into, at)?;
            }
        }
        let mut exposing = self.begin_exposing(bytes.end - bytes.start);
        if pieces.iter().any(Piece::is_summed) {
            exposing.set_summing(grid.block);
        }
        for target in targets {
            let (part, at) =
                (&buf[within(target.file_block, target.blocks)], grid.start_of(target.start.0));
            self.overwrite(part, at)?;
            if !planted(PlantedBug::MoveWithoutChecksum) {
                exposing.push(at, part);
            }
            exposing.sum(at, part);
        }
        Ok(exposing)
    }
}

/// Joins targets that continue each other in the file and on the volume.
fn joined(targets: Vec<Target>) -> Vec<Target> {
    let mut out: Vec<Target> = Vec::with_capacity(targets.len());
    for target in targets {
        match out.last_mut() {
            Some(last)
                if last.start.0 + last.blocks == target.start.0
                    && last.file_block + last.blocks == target.file_block =>
            {
                last.blocks += target.blocks;
            }
            _ => out.push(target),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockNo, Epoch};
    use bedplate_store::{ExtentState, Mapped};

    fn piece(file_block: u64, blocks: u64, start: u64) -> Piece {
        Piece {
            file_block,
            blocks,
            mapped: Some(Mapped {
                start: BlockNo(start),
                state: ExtentState::Written,
                birth: Epoch(1),
            }),
        }
    }

    #[test]
    fn runs_are_counted_on_the_volume() {
        assert_eq!(runs(&[]), 0);
        assert_eq!(
            runs(&[piece(0, 2, 10), piece(2, 3, 12)]),
            1,
            "of two epochs, say, and yet one run"
        );
        assert_eq!(runs(&[piece(0, 2, 10), piece(2, 3, 13), piece(5, 1, 4)]), 3);
    }

    #[test]
    fn a_window_takes_what_it_has_room_for() {
        let mut window = Vec::new();
        assert!(!take(&mut window, piece(0, 8, 50), 8) && window.is_empty(), "a window by itself");
        assert!(!take(&mut window, piece(0, 3, 50), 8));
        assert!(!take(&mut window, piece(3, 3, 60), 8));
        assert!(take(&mut window, piece(6, 4, 70), 8));
        assert_eq!(window.iter().map(|piece| piece.blocks).collect::<Vec<_>>(), [3, 3, 2]);
        let mut window = vec![piece(0, 3, 50)];
        assert!(take(&mut window, piece(3, 9, 60), 8), "ends before one that needs no move");
        assert_eq!(window.len(), 1);
    }
}
