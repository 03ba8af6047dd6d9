//! Room in the log while the tree may have no room to grow.
//!
//! The tree doubles its file when it is full. Where the volume has no blocks for that the metadata
//! commit is refused (I-META-5), the log's tail stays, and what the log still takes is shared out:
//!
//! ```text
//!   0                      1/2                 3/4          7/8           1  of the log
//!   ├───────────────────────┼───────────────────┼────────────┼────────────┤
//!          every change          removals only    deletion of    what is
//!                                                 checkpoints   under way
//! ```
//!
//! A removal gives blocks back; once there are as many as the tree asked for, the metadata commit
//! is made, and the log is empty again.
//!
//! Only a metadata commit tells whether the tree asks for blocks, and then it is too late to refuse
//! what was accepted before. So these shares hold from the moment where the free blocks may be too
//! few, and what is buffered is written early: the log holds all that was accepted, and a sync
//! succeeds.
//!
//! - I-META-6: where the tree may find no room to grow, a change begins only while the log has room
//!   for all that is buffered and for half of itself behind it, a removal only while it has room
//!   for a quarter, the deletion of a checkpoint for an eighth.

use std::sync::atomic::Ordering;

use super::pace::ACTIVE_BYTES_MAX;
use super::store::MetaStore;
use crate::log::Record;
use crate::{ErrorKind, Result};

/// What an operation is about to do, for the share of the log that it may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Anything.
    Change,
    /// It frees blocks or names.
    Removal,
    /// It deletes a checkpoint.
    Deletion,
}

impl Purpose {
    /// Sixteenths of the log that are free for others when an operation begins.
    const fn leaves(self) -> u64 {
        match self {
            Self::Change => 8,
            Self::Removal => 4,
            Self::Deletion => 2,
        }
    }
}

const _: () = assert!(
    Purpose::Change.leaves() > Purpose::Removal.leaves()
        && Purpose::Removal.leaves() > Purpose::Deletion.leaves()
        && Purpose::Deletion.leaves() > 0,
    "I-META-6: what makes room ends after what takes it, and what is under way has room then"
);

/// What the volume has, as far as metadata cares.
#[derive(Debug, Clone, Copy)]
pub struct Outlook {
    /// Blocks that metadata may take, with those that are about to become free.
    pub free_blocks: u64,
    /// Size of a block in bytes.
    pub block_bytes: u64,
    /// Blocks for which the cache will log rows.
    pub reserved_blocks: u64,
}

/// The tree asks at most for this many times its size and that of the rows in memory: it is copied
/// as it is written, and its file doubles.
pub(super) const GROWTH_MAX: u64 = 4;
/// Bytes of the log for a block that the cache writes, at most: a record with one extent and the
/// inode.
const ROWS_OF_A_BLOCK_BYTES: u64 = 256;

impl MetaStore {
    /// Holds an operation back while the memtable is too large, and refuses it where what it
    /// changes might not become durable (I-META-6). Called before an operation takes any lock, and
    /// between the records of a long one. The outlook is asked for where what is free at least, in
    /// bytes, may be too little.
    ///
    /// # Errors
    /// `NoSpace` where the region cannot grow and the log has no room: then nothing is changed.
    /// What a metadata commit fails with.
    #[inline]
    pub fn throttle(
        &self,
        purpose: Purpose,
        free_at_least: impl FnOnce() -> u64,
        outlook: impl FnOnce() -> Outlook,
    ) -> Result<()> {
        let (active, log) = (self.active_bytes.load(Ordering::Relaxed) as u64, self.log());
        let outgrown = active > ACTIVE_BYTES_MAX as u64;
        if !outgrown && active + log.used_bytes() <= log.size_bytes() / 4 {
            return Ok(());
        }
        self.throttle_at(purpose, active, outgrown, free_at_least(), outlook)
    }

    #[cold]
    fn throttle_at(
        &self,
        purpose: Purpose,
        active: u64,
        outgrown: bool,
        free_at_least: u64,
        outlook: impl FnOnce() -> Outlook,
    ) -> Result<()> {
        if self.may_be_refused(free_at_least, active) {
            let outlook = outlook();
            if self.may_be_refused(outlook.free_blocks * outlook.block_bytes, active) {
                return self.share_log(purpose, &outlook, outgrown);
            }
        }
        if outgrown { self.metadata_commit() } else { Ok(()) }
    }

    /// Returns how many blocks the tree asked for in vain; 0 where it did not.
    pub fn blocks_wanted(&self) -> u64 {
        self.refusal().map_or(0, |refusal| refusal.blocks_wanted)
    }

    /// Returns whether the log has room for times that are logged later, which no call waits for.
    pub fn has_room_for_times(&self) -> bool {
        !self.is_cramped() || self.log().has_room(Purpose::Removal.leaves(), 0)
    }

    /// Refuses a record that the log has no room for while there can be no metadata commit in its
    /// place: it would be durable nowhere, and so would all after it.
    pub fn need_log_room(&self, record: &Record) -> Result<()> {
        match self.refusal() {
            Some(refusal) if !self.log().holds(record) => Err(refusal),
            _ => Ok(()),
        }
    }

    /// Returns whether the next metadata commit may find no room for the region to grow.
    fn may_be_refused(&self, free_bytes: u64, active: u64) -> bool {
        let asked = GROWTH_MAX * (self.region().metadata_len() + active);
        self.is_cramped() || free_bytes < asked
    }

    #[cold]
    fn share_log(&self, purpose: Purpose, outlook: &Outlook, outgrown: bool) -> Result<()> {
        if self.log().buffers_much() {
            // What it has no room for shows below.
            let _outcome = self.log().sync(self.last_lsn())?;
        }
        let cached = outlook.reserved_blocks * ROWS_OF_A_BLOCK_BYTES;
        if !outgrown && self.log().has_room(Purpose::Change.leaves(), cached) {
            return Ok(());
        }
        let goes_on = purpose != Purpose::Change && self.log().has_room(purpose.leaves(), 0);
        match self.refusal().filter(|refusal| outlook.free_blocks < refusal.blocks_wanted) {
            // The tree would ask in vain again.
            Some(_) if goes_on => Ok(()),
            Some(refusal) if purpose == Purpose::Change => Err(refusal),
            _ => match self.metadata_commit() {
                Err(refusal) if refusal.kind == ErrorKind::NoSpace && goes_on => Ok(()),
                other => other,
            },
        }
    }
}
