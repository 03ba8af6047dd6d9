//! Where frames lie: in memory of this process's own, or in such that other processes read too.

use std::ops::{Deref, DerefMut};

use bedplate_block::{AlignedBuf, ArenaPiece, SharedArena, SharedMemory};
use bedplate_lease::PageShard;

/// Frames whose memory is allocated together.
pub(super) const SLAB_FRAMES: usize = 64;

/// Memory of some frames: this process's own, or what others read too.
#[derive(Debug)]
pub(super) enum Slab {
    Own(AlignedBuf),
    Shared(ArenaPiece),
}

impl Slab {
    pub(super) fn own(bytes: usize) -> Self {
        Self::Own(AlignedBuf::zeroed(bytes))
    }

    /// Gives its memory back to the system.
    pub(super) fn give_back(self) {
        if let Self::Shared(mut piece) = self {
            piece.give_back(0);
        }
    }
}

impl Deref for Slab {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(memory) => memory,
            Self::Shared(piece) => piece,
        }
    }
}

impl DerefMut for Slab {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Own(memory) => memory,
            Self::Shared(piece) => piece,
        }
    }
}

/// What a process needs to read pages of the cache.
#[derive(Debug, Clone)]
pub struct SharedCache {
    /// The bytes of all frames.
    pub frames: SharedArena,
    /// What lies in which frame; to be read.
    pub directory: SharedMemory,
    /// What was used; to be written.
    pub uses: SharedMemory,
}

/// A shard's part.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) pages: PageShard<SharedMemory>,
    pub(super) arena: SharedArena,
    /// The arena's piece of the first slab.
    pub(super) first: usize,
}

impl Shared {
    /// Returns the memory of a slab that other processes read; of the last slabs of a cache that
    /// became very large there is none.
    pub(super) fn slab(&self, slab: usize) -> Option<Slab> {
        let is_there = (slab + 1) * SLAB_FRAMES <= self.pages.frames();
        let piece = is_there.then(|| self.arena.take(self.first + slab)).flatten();
        piece.map(Slab::Shared)
    }

    /// Returns whether the bytes of a frame lie where other processes read them.
    pub(super) fn holds(&self, at: u32) -> bool {
        (at as usize / SLAB_FRAMES + 1) * SLAB_FRAMES <= self.pages.frames()
    }
}
