//! Memory in pieces that this process writes and that others only read, at any time: what a cache
//! keeps, for readers in other processes.
//!
//! ```text
//!   one mapping, as large as it may ever become; it takes room only where it was written
//!   ├ piece 0 ─► taken, as bytes of its owner
//!   ├ piece 1      free
//!   └ …
//! ```
//!
//! Another process has a description that allows only reads. What it reads of a piece while the
//! owner writes is anything: how it tells is the owner's matter. The size is sealed, so that no
//! reader is ever cut short; room that is given back reads as zeros.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fchmod, fcntl_add_seals,
    ftruncate, memfd_create, open,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Memory of a fixed number of pieces; cheap to clone, and unmapped with the last clone and piece.
#[derive(Clone)]
pub struct SharedArena(Arc<Mapping>);

struct Mapping {
    descriptor: OwnedFd,
    start: NonNull<u8>,
    piece_bytes: usize,
    /// Which pieces have an owner.
    taken: Box<[AtomicBool]>,
}

// SAFETY: the mapping belongs to no thread; each piece of it is reached through its one owner.
unsafe impl Send for Mapping {}
// SAFETY: as above: what is shared are the flags, which are atomic.
unsafe impl Sync for Mapping {}

impl SharedArena {
    /// Makes memory of `pieces` pieces of `piece_bytes` bytes each, at least one.
    ///
    /// # Errors
    /// What the system says where it has no memory, descriptor or sealing.
    pub fn new(name: &str, pieces: usize, piece_bytes: usize) -> io::Result<Self> {
        let bytes = pieces
            .checked_mul(piece_bytes)
            .filter(|bytes| *bytes > 0 && isize::try_from(*bytes).is_ok())
            .ok_or(io::ErrorKind::InvalidInput)?;
        let descriptor = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        // A description that allows only reads leads to none that allows more.
        fchmod(&descriptor, Mode::RUSR)?;
        ftruncate(&descriptor, bytes as u64)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&descriptor, seals)?;
        // SAFETY: a new mapping at an address that the kernel chooses aliases nothing of Rust's.
        let mapped = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &descriptor,
                0,
            )
        }?;
        let start = NonNull::new(mapped.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let taken = (0..pieces).map(|_| AtomicBool::new(false)).collect();
        Ok(Self(Arc::new(Mapping { descriptor, start, piece_bytes, taken })))
    }

    /// Takes a piece, with whatever it held before; nothing where there is none of this number, or
    /// it has an owner.
    #[must_use]
    pub fn take(&self, piece: usize) -> Option<ArenaPiece> {
        let taken = self.0.taken.get(piece)?;
        let is_mine = !taken.swap(true, Ordering::AcqRel);
        is_mine.then(|| ArenaPiece { arena: Arc::clone(&self.0), piece })
    }

    /// Returns a description of the memory for another process, which allows only reads.
    ///
    /// # Errors
    /// What the system says where it has no descriptor, or `/proc` is not there.
    pub fn for_readers(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.0.descriptor.as_raw_fd());
        Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }
}

/// A piece of the memory, which is free again when this is dropped.
pub struct ArenaPiece {
    arena: Arc<Mapping>,
    piece: usize,
}

impl ArenaPiece {
    fn at(&self) -> usize {
        self.piece * self.arena.piece_bytes
    }

    /// Gives the room back of all from `from` on; it reads as zeros from then on.
    pub fn give_back(&mut self, from: usize) {
        let len = self.arena.piece_bytes.saturating_sub(from);
        if len == 0 {
            return;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let at = (self.at() + from) as u64;
        if let Err(error) = fallocate(&self.arena.descriptor, flags, at, len as u64) {
            tracing::debug!("{len} bytes of shared memory stay in use: {error}");
        }
    }
}

impl Deref for ArenaPiece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the piece lies in the mapping, which lives as long as `self`, and is reached
        // through `self` alone, so that nothing of this process changes it meanwhile.
        unsafe {
            let start = self.arena.start.as_ptr().add(self.at());
            std::slice::from_raw_parts(start, self.arena.piece_bytes)
        }
    }
}

impl DerefMut for ArenaPiece {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed alone. Other processes cannot write there, and
        // what they read meanwhile is theirs to doubt.
        unsafe {
            let start = self.arena.start.as_ptr().add(self.at());
            std::slice::from_raw_parts_mut(start, self.arena.piece_bytes)
        }
    }
}

impl Drop for ArenaPiece {
    fn drop(&mut self) {
        self.arena.taken[self.piece].store(false, Ordering::Release);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let bytes = self.taken.len() * self.piece_bytes;
        // SAFETY: this is the mapping that `new` made, of this length; pieces keep `self` alive.
        if let Err(error) = unsafe { munmap(self.start.as_ptr().cast(), bytes) } {
            tracing::debug!("shared memory stays mapped: {error}");
        }
    }
}

impl fmt::Debug for SharedArena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedArena({} pieces)", self.0.taken.len())
    }
}

impl fmt::Debug for ArenaPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ArenaPiece({})", self.piece)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_piece_has_one_owner_and_readers_only_read() {
        let arena = SharedArena::new("test", 3, 8192).unwrap();
        let mut piece = arena.take(1).unwrap();
        assert!(arena.take(1).is_none() && arena.take(3).is_none());
        piece[5000] = 7;
        let other = File::from(arena.for_readers().unwrap());
        let mut byte = [0];
        other.read_exact_at(&mut byte, 8192 + 5000).unwrap();
        assert_eq!(byte, [7]);
        assert!(other.write_all_at(&[1], 0).is_err() && other.set_len(0).is_err());
        piece[0] = 9;
        piece.give_back(4096);
        assert_eq!((piece[0], piece[5000]), (9, 0));
        drop((piece, arena.take(0)));
        assert_eq!(arena.take(1).unwrap()[0], 9, "what is there is the next owner's to write over");
        assert!(SharedArena::new("none", 0, 4096).is_err());
    }
}
