//! Placement: on which members of the group below the volume a file is to lie.
//!
//! ```text
//!   attribute: the members' identities ─► the volume's ranges by member ─► blocks that lie on them alone
//!                                                                           │ new blocks: from there, else from anywhere, counted
//!                                                                           └ blocks elsewhere: moved there, a step at a time (`evacuate.rs`)
//! ```
//!
//! It is kept in the extended attribute [`ATTRIBUTE`], which files get from the directory they are
//! made in. Where the members' ranges are is asked of the device again whenever it says that they
//! changed. A member that is full, or has left, never fails a write: what was reserved for pages in
//! the cache has to be found.

use std::ops::ControlFlow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::DataPath;
use super::members::{PlacementMember, told_id};
use crate::engine::Engine;
use crate::inode::{Inode, Places};
use crate::{InodeNo, Reason, Result};
use bedplate_block::MemberMap;
use bedplate_store::{
    AllocRequest, Elsewhere, Mapped, Piece, PlacedRuns, PlantedBug, Run, Table, planted,
};

/// The extended attribute that holds the identities of the members, 16 bytes each.
pub(crate) const ATTRIBUTE: &[u8] = b"user.bedplate.place";

/// The bytes of an identity.
const ID_BYTES: usize = 16;
/// No placement names more members: a group has no more.
const MEMBERS_MAX: usize = 128;

/// What one step of a move to the members that a file was placed on did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceStep {
    /// The file offset in bytes at which the next step goes on; `None`: the end was reached, or
    /// nothing more has room there.
    pub next: Option<u64>,
    /// Bytes that were moved.
    pub moved_bytes: u64,
    /// The members have no room for what lies elsewhere.
    pub is_full: bool,
}

/// How a placement stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlacementState {
    /// None was asked for.
    Anywhere,
    /// New blocks come from the members.
    Placed,
    /// A relayout moves the volume's addresses: new blocks come from anywhere until it ends.
    Moving,
    /// The volume has no part any more that lies on the members alone: new blocks come from
    /// anywhere.
    NoPart,
}

/// The bytes of a file that a member holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberBytes {
    /// The member's identity.
    pub id: String,
    /// Where it is.
    pub path: String,
    /// Bytes of the file; of a copy on each of several members, or of rows over them, as many for
    /// each.
    pub bytes: u64,
}

/// Where a file is to lie, and where it lies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePlacement {
    /// How the placement stands.
    pub state: PlacementState,
    /// The members that were asked for.
    pub members: Vec<PlacementMember>,
    /// Where the file's bytes lie now, by member; nothing for a directory, and on a volume of one
    /// device.
    pub on: Vec<MemberBytes>,
    /// Bytes that lie elsewhere than asked for.
    pub misplaced_bytes: u64,
    /// Of these, bytes that checkpoints or other files need too.
    pub shared_bytes: u64,
}

/// Reads what the attribute holds; nothing where that is no list of identities.
fn decode(stored: &[u8]) -> Option<Vec<[u8; ID_BYTES]>> {
    let (ids, rest) = stored.as_chunks::<ID_BYTES>();
    let is_list = rest.is_empty() && (1..=MEMBERS_MAX).contains(&ids.len());
    is_list.then(|| ids.to_vec())
}

/// Writes what the attribute holds.
pub(crate) fn encode(members: &[[u8; ID_BYTES]]) -> Vec<u8> {
    debug_assert!(
        (1..=MEMBERS_MAX).contains(&members.len()),
        "a placement names members: {}",
        members.len()
    );
    members.concat()
}

impl Engine {
    /// Returns the members that a file or directory is placed on. What does not decode places it
    /// nowhere.
    pub(crate) fn wanted_members(&self, ino: InodeNo) -> Result<Option<Vec<[u8; ID_BYTES]>>> {
        if planted(PlantedBug::PlacementNotRead) {
            return Ok(None);
        }
        let stored = self.row_of(Table::Xattr, ino, ATTRIBUTE)?;
        Ok(stored.as_deref().and_then(decode))
    }

    /// Returns where a file or directory is to lie, and where the file lies.
    pub(crate) fn placement(&self, inode: &Arc<Inode>) -> Result<FilePlacement> {
        let places = self.wanted_members(inode.ino)?.map(|wanted| self.places_on(wanted));
        let map = self.member_map();
        let named = |id: &[u8; ID_BYTES]| PlacementMember {
            id: told_id(id),
            path: map.members.iter().find(|one| one.id == *id).map(|one| one.path.clone()),
        };
        let wanted = places.iter().flat_map(|places| &places.wanted);
        let held = DataPath::new(self, inode).held_by_member(&map, places.as_ref())?;
        let on = map.members.iter().zip(held.by_member).filter(|(_, bytes)| *bytes > 0);
        Ok(FilePlacement {
            state: match &places {
                None => PlacementState::Anywhere,
                Some(_) if map.is_moving => PlacementState::Moving,
                Some(places) if places.runs.is_empty() => PlacementState::NoPart,
                Some(_) => PlacementState::Placed,
            },
            members: wanted.map(named).collect(),
            on: on
                .map(|(one, bytes)| MemberBytes {
                    id: told_id(&one.id),
                    path: one.path.clone(),
                    bytes,
                })
                .collect(),
            misplaced_bytes: held.misplaced,
            shared_bytes: held.shared,
        })
    }
}

/// Bytes of a file, by where they lie.
struct HeldBytes {
    /// By the index of the member.
    by_member: Vec<u64>,
    misplaced: u64,
    shared: u64,
}

impl DataPath<'_> {
    /// Looks up where the file is to lie; part of finding its copy-on-write epoch.
    pub(super) fn find_placement(self) {
        // What cannot be read places it nowhere.
        let wanted = self.fs.wanted_members(self.inode.ino).unwrap_or(None);
        self.state().placed.set(wanted.map(|wanted| self.fs.places_on(wanted)));
    }

    /// Returns where the file's blocks are to lie, where they are to lie anywhere in particular and
    /// can.
    #[inline]
    pub(super) fn places(self) -> Option<Arc<Places>> {
        self.cow_epoch();
        let places = self.state().placed.get()?;
        self.current(places)
    }

    /// Asks again where the members' ranges are, where they changed.
    fn current(self, mut places: Arc<Places>) -> Option<Arc<Places>> {
        if places.version != self.fs.member_map_version() {
            self.state().placed.set(Some(self.fs.places_on(places.wanted.clone())));
            places = self.state().placed.get()?;
        }
        Some(places).filter(|places| !places.runs.is_empty())
    }

    /// Allocates blocks where the file is to lie, as far as there is room; counts what lies
    /// elsewhere.
    pub(super) fn allocate_placed(self, want: AllocRequest) -> Result<Vec<Run>> {
        let Some(places) = self.places() else {
            return self.fs.with_freed_blocks(want.blocks, || self.fs.allocate(want));
        };
        let PlacedRuns { runs, elsewhere_blocks } =
            self.fs.with_freed_blocks(want.blocks, || {
                self.fs.allocate_within(want, &places.runs, Elsewhere::Allowed)
            })?;
        if elsewhere_blocks > 0 {
            self.inode.counters.reason(Reason::Elsewhere);
        }
        Ok(runs)
    }

    /// Returns how many bytes of the file each member holds.
    fn held_by_member(self, map: &MemberMap, places: Option<&Places>) -> Result<HeldBytes> {
        let mut held = HeldBytes { by_member: vec![0; map.members.len()], misplaced: 0, shared: 0 };
        if map.members.is_empty() || self.inode.kind != crate::FileKind::File {
            return Ok(held);
        }
        let grid = self.fs.grid();
        let _held = self.state().lock.shared(self.fs);
        self.walk(0..u64::MAX, |extents, stretch| -> ControlFlow<()> {
            for (piece, is_shared) in self.pieces_by_sharing(extents, stretch) {
                let Some(mapped) = piece.mapped else { continue };
                let blocks = mapped.start.0..mapped.start.0 + piece.blocks;
                for (member, bytes) in map.bytes_by_member(&grid.bytes(&blocks)) {
                    held.by_member[member] += bytes;
                }
                let Some(places) = places.filter(|places| !places.runs.is_empty()) else {
                    continue;
                };
                let away = grid.start_of(blocks_outside(piece, mapped, &places.runs));
                held.misplaced += away;
                held.shared += if is_shared { away } else { 0 };
            }
            ControlFlow::Continue(())
        })?;
        Ok(held)
    }
}

/// How many blocks of a piece lie outside of runs.
fn blocks_outside(piece: Piece, mapped: Mapped, runs: &[Run]) -> u64 {
    let (mut count, mut from) = (0, 0);
    while let Some(part) = outside(piece, mapped, runs, from) {
        count += part.blocks;
        from = part.file_block + part.blocks;
    }
    count
}

/// The first part of a piece, at `from` or behind it in the file, that lies outside of runs, which
/// are in order and apart.
pub(super) fn outside(piece: Piece, mapped: Mapped, runs: &[Run], from: u64) -> Option<Piece> {
    let end = mapped.start.0 + piece.blocks;
    let mut at = mapped.start.0 + from.saturating_sub(piece.file_block);
    let mut next = runs.partition_point(|run| run.end() <= at);
    if let Some(run) = runs.get(next).filter(|run| run.start.0 <= at) {
        at = run.end();
        next += 1;
    }
    let to = runs.get(next).map_or(end, |run| run.start.0.min(end));
    let skip = at - mapped.start.0;
    (at < to).then(|| Piece {
        file_block: piece.file_block + skip,
        blocks: to - at,
        mapped: Some(Mapped { start: crate::BlockNo(at), ..mapped }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockNo, Epoch};
    use bedplate_store::ExtentState;

    #[test]
    fn what_lies_outside_of_runs_is_found_part_by_part() {
        let mapped = Mapped { start: BlockNo(90), state: ExtentState::Written, birth: Epoch(1) };
        let piece = Piece { file_block: 5, blocks: 40, mapped: Some(mapped) };
        let run = |start, blocks| Run { start: BlockNo(start), blocks };
        let part = |runs: &[Run], from| {
            let part = outside(piece, mapped, runs, from)?;
            Some((part.file_block, part.blocks, part.mapped?.start.0))
        };
        assert_eq!(part(&[], 0), Some((5, 40, 90)));
        assert_eq!(part(&[run(0, 200)], 0), None);
        let runs = [run(80, 15), run(100, 10), run(125, 100)];
        assert_eq!(part(&runs, 0), Some((10, 5, 95)));
        assert_eq!(part(&runs, 12), Some((12, 3, 97)));
        assert_eq!(part(&runs, 15), Some((25, 15, 110)));
        assert_eq!(part(&runs, 40), None);
        assert_eq!(blocks_outside(piece, mapped, &runs), 20);
        assert_eq!(blocks_outside(piece, mapped, &[run(0, 90), run(130, 9)]), 40);
    }

    /// S-620: what is stored is hostile until it decodes.
    #[test]
    fn s_620_what_is_no_list_of_identities_places_nothing() {
        let ids = vec![[3; 16], [9; 16]];
        assert_eq!(decode(&encode(&ids)), Some(ids));
        let wrong = [&[][..], &[1; 15], &[1; 17], &[0; 16 * 129]];
        assert!(wrong.iter().all(|stored| decode(stored).is_none()));
    }
}
