//! Growth under the lease: blocks behind the end of a file that a process fills by itself
//! (`lease/tail.rs`).
//!
//! ```text
//!   give ─► allocated, in no record ─► filled by the process ─► collect ─► the file's, with one record
//!                    │                                              ▲
//!                    └───────────── end: the rest is free ◄─────────┘
//! ```
//!
//! Everything that writes what waits in memory collects (`delayed.rs`) or ends (`held.rs`) a tail
//! too: it is one more write that has returned and is in no record.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bedplate_lease::Reason;
use bedplate_lease::wire::TAIL_GAP_BYTES_MAX;
use bedplate_store::{Piece, PlantedBug, RecordKind, planted};

use super::commit_map::{Change, SizeChange};
use super::exposure::Exposing;
use super::fill::{Before, Target};
use super::{Alone, DataPath};
use crate::Result as FsResult;
use crate::engine::{Engine, Listed};
use crate::inode::Inode;
use crate::lease::{LeaseClient, LeasedFile, Tail};
use crate::lock::Sharing;
use bedplate_store::Grid;

/// A tail is as long as the file, between these bounds, in bytes.
const TAIL_BYTES_MIN: u64 = 256 << 10;
const TAIL_BYTES_MAX: u64 = 8 << 20;

/// Or so many of the writes that go there, which are at most so long.
const TAIL_WRITES: u64 = 8;
const WRITE_BYTES_MAX: u64 = 4 << 20;

/// In how many parts the blocks of a tail lie at most: one record makes them the file's.
const TAIL_RUNS_MAX: usize = 64;

/// What has to be free beside a tail: so many times its length.
const ROOM_TIMES: u64 = 16;

impl<'a> DataPath<'a> {
    /// Gives a client a tail of the file, which is published, long enough for a write of `len` bytes at
    /// `offset`, where it ends or a little behind; another's tail ends. Returns whether the size begins
    /// to move by itself.
    pub(crate) fn give_tail(self, client: u64, offset: u64, len: u64) -> Result<bool, Reason> {
        let (client, file) = self.asked_to_grow(client)?;
        if file.is_loaded() {
            return Err(Reason::Tail);
        }
        file.end_rest();
        let held = self.state().lock.exclusive(self.fs);
        self.write_held_write(&held).map_err(|_| Reason::HeldBytes)?;
        self.may_grow_by(&held, file, &client)?;
        // Another write may have let it rest since, and what rests grows on the mount (I-LEA-10).
        if file.rests() || self.rests_for_load(&held, file, len) {
            return Err(Reason::Tail);
        }
        Ok(file.give_tail(self.new_tail(
            &held,
            file,
            client,
            offset..offset.saturating_add(len),
        )?))
    }

    /// Returns the client of a number, which asks for a way to make the file grow by itself, and the
    /// file, which is published.
    pub(super) fn asked_to_grow(
        self,
        client: u64,
    ) -> Result<(Arc<LeaseClient>, &'a Arc<LeasedFile>), Reason> {
        let leases = self.fs.leases().ok_or(Reason::Off)?;
        if !leases.is_serving() || self.fs.begin_change().is_err() {
            return Err(Reason::State);
        }
        let client = leases.client(client).ok_or(Reason::Request)?;
        let file = self.state().lease().filter(|file| file.lease().is_some());
        file.map(|file| (client, file)).ok_or(Reason::Suspended)
    }

    /// Returns why the client may not, now that nothing else uses the file.
    pub(super) fn may_grow_by(
        self,
        _held: &Alone<'_>,
        file: &LeasedFile,
        client: &LeaseClient,
    ) -> Result<(), Reason> {
        if !self.is_leased_as(0) {
            return Err(Reason::Mode);
        }
        if file.lease().is_none() {
            return Err(Reason::Suspended);
        }
        // A client that is gone is not looked after any more.
        if client.is_gone() { Err(Reason::Request) } else { Ok(()) }
    }

    /// Allocates a tail.
    fn new_tail(
        self,
        _held: &Alone<'_>,
        file: &LeasedFile,
        client: Arc<LeaseClient>,
        write: Range<u64>,
    ) -> Result<Tail, Reason> {
        let len = write.end - write.start;
        let grid = *self.fs.grid();
        let failed = |_| Reason::Failed;
        drop(self.map(0..0).map_err(failed)?);
        let size = self.state().logged_size();
        let bytes = size.next_power_of_two().clamp(TAIL_BYTES_MIN, TAIL_BYTES_MAX);
        let gap = write.start.saturating_sub(size).min(TAIL_GAP_BYTES_MAX);
        let blocks = grid.block_after(bytes.max(len.saturating_mul(TAIL_WRITES)) + gap);
        let is_fit = len <= WRITE_BYTES_MAX
            && grid.on_block(size)
            && (size..=size + TAIL_GAP_BYTES_MAX).contains(&write.start)
            && size < Grid::FILE_BYTES_MAX / 2
            && !file.has_odd_owner()
            && !self.redirects_all()
            && !self.gives_sums();
        let totals = self.fs.space_totals();
        let room = totals.free.saturating_sub(totals.reserve);
        if !is_fit || room < blocks.saturating_mul(ROOM_TIMES) {
            return Err(Reason::Tail);
        }
        let first = grid.block_of(size);
        let map = self.map(first.saturating_sub(1)..u64::MAX).map_err(failed)?;
        if map.end() > first {
            return Err(Reason::Tail);
        }
        let hole = Piece { file_block: first, blocks, mapped: None };
        let fresh = self.allocate_holes(map, &[hole], true).map_err(|_| Reason::Tail)?;
        if fresh.runs.len() > TAIL_RUNS_MAX {
            self.give_back(fresh);
            return Err(Reason::Tail);
        }
        Ok(Tail::new(client, grid, first, fresh.runs))
    }

    /// Returns whether a client has a tail of the file, or a buffer for it.
    #[inline]
    pub(super) fn has_tail(self) -> bool {
        self.state().lease().is_some_and(|file| file.has_tail())
    }

    fn tailed(self) -> Option<&'a Arc<LeasedFile>> {
        self.state().lease().filter(|file| file.has_tail())
    }

    /// Makes what a client has filled of its tail the file's; the client keeps the rest, and may be
    /// filling it. The inode lock is held, exclusive or shared.
    ///
    /// What moves the end under the shared lock begins and ends on blocks (I-IO-5) or, as here, leaves
    /// no gap behind the old end.
    fn collect_tail(self) -> FsResult<()> {
        let Some(file) = self.tailed() else { return Ok(()) };
        // One at a time. No block has this number, and no writer claims it.
        let growth = u64::MAX - 1..u64::MAX;
        let _claim = self.state().fill_claims.lock(growth, Sharing::Exclusive, self.fs);
        let Some(filled) = file.tail_filled() else { return Ok(()) };
        let (end, epoch) = (filled.first + filled.blocks(), self.fs.epoch());
        let mut at = filled.first;
        let targets = filled.runs.iter().map(|run| {
            let file_block = at;
            at += run.blocks;
            let (blocks, start) = (run.blocks, run.start);
            Target { file_block, blocks, start, birth: epoch, was: Before::Free }
        });
        let extents: Vec<_> = targets.flat_map(|target| target.extents(false)).collect();
        // What the blocks hold only the client knows, so the record waits for the device.
        let exposing = (!planted(PlantedBug::TailWithoutBarrier)).then(|| Exposing::new(u64::MAX));
        let size = SizeChange::Filled(filled.size_bytes);
        let change = Change { exposing, ..Change::adding(RecordKind::Extend, size) };
        self.publish_extents(filled.first..end, &extents, change).map(drop)
    }

    /// As [`collect_tail`](Self::collect_tail), with no lock of the file held; of a buffer, too. Does
    /// not wait for the client.
    pub(super) fn collect_tail_if_filled(self) -> FsResult<()> {
        let Some(file) = self.tailed().filter(|file| file.is_tail_filled()) else { return Ok(()) };
        let held = self.state().lock.shared(self.fs);
        if !file.has_appends() {
            return self.collect_tail();
        }
        if self.take_appended(file, &held)? {
            return Ok(());
        }
        drop(held);
        self.take_appended_alone(file, &self.state().lock.exclusive(self.fs))
    }

    /// As [`collect_tail_if_filled`](Self::collect_tail_if_filled), where nothing has the file alone:
    /// that may be waiting for a process that was stopped.
    fn collect_tail_if_free(self) -> FsResult<()> {
        let lock = &self.state().lock;
        let Some(file) = self.tailed().filter(|file| file.is_tail_filled()) else { return Ok(()) };
        let Some(held) = lock.try_shared() else { return Ok(()) };
        if file.has_appends() {
            return self.take_appended(file, &held).map(drop);
        }
        self.collect_tail()
    }

    /// As [`collect_tail_if_filled`](Self::collect_tail_if_filled), for a reader of bytes up to
    /// `end`.
    #[cold]
    pub(super) fn collect_tail_before(self, end: u64) -> FsResult<()> {
        // The size that readers go by: it is raised last.
        let size = self.inode.size.load(Ordering::Acquire);
        if end > size { self.collect_tail_if_filled() } else { self.take_overwrites() }
    }

    /// Makes what a client has filled of its tail the file's, and takes the rest from it.
    pub(super) fn end_tail(self, held: &Alone<'_>) -> FsResult<()> {
        match self.tailed() {
            Some(file) if file.has_appends() => self.end_appends(file, held)?,
            Some(_) => {
                self.collect_tail()?;
                self.drop_tail(held);
            }
            None => {}
        }
        Ok(())
    }

    /// As [`end_tail`](Self::end_tail), where nothing is left to tell of an error.
    pub(super) fn end_tail_or_warn(self, held: &Alone<'_>) {
        if let Err(error) = self.end_tail(held) {
            tracing::warn!(
                "inode {}: what a process wrote behind its end is not in the file: {error}",
                self.inode.ino.0
            );
        }
    }

    /// Takes a tail from its client, and what it had filled with it.
    pub(super) fn drop_tail(self, _held: &Alone<'_>) {
        if let Some(file) = self.tailed() {
            self.drop_appends(file);
            self.fs.free_unused(&file.take_tail(), 0);
        }
    }
}

/// Ends a tail of a file, or a buffer for it, with no lock of it held; I/O on the file has ended once
/// when this returns. What was in it does not wait in memory.
pub(crate) fn end_tail_of(fs: &Engine, inode: &Arc<Inode>) -> FsResult<()> {
    let (io, held) = (DataPath::new(fs, inode), inode.data.lock.exclusive(fs));
    let had_appends = io.tailed().is_some_and(|file| file.has_appends());
    io.end_tail(&held)?;
    if had_appends { io.write_delayed(&held) } else { Ok(()) }
}

impl Engine {
    /// Makes what clients have filled of their tails the files'; tries all of them. `waits`: also
    /// where something has a file alone.
    pub(crate) fn collect_tails(&self, waits: bool) -> FsResult<()> {
        let files = self.listed(Listed::Leased);
        let collect = |inode| match DataPath::new(self, inode) {
            io if waits => io.collect_tail_if_filled(),
            io => io.collect_tail_if_free(),
        };
        files.iter().map(collect).collect::<Vec<_>>().into_iter().collect()
    }

    /// Ends the tails of all files, or those of one client; tries all of them. Returns whether there
    /// were any, or the first error.
    pub(crate) fn end_tails(&self, client: Option<&Arc<LeaseClient>>) -> FsResult<bool> {
        let mut files = self.listed(Listed::Leased);
        files.retain(|inode| inode.data.lease().is_some_and(|file| file.has_tail_of(client)));
        let ended: Vec<_> = files.iter().map(|inode| end_tail_of(self, inode)).collect();
        ended.into_iter().collect::<FsResult<Vec<()>>>().map(|ended| !ended.is_empty())
    }
}
