//! The tail of a file: blocks behind its end that one process fills by itself.
//!
//! ```text
//!   file   ──── written ────┤ end of the file
//!   tail                    ├──── filled ────┤──── free to be filled ────┤
//!                           │                │                           │
//!                         first        the process says          blocks in no record
//! ```
//!
//! The blocks are allocated in memory only, so that a crash leaves them free. How far the process
//! has come stands in its slots, and is looked at by everything that asks for the size. *Collecting*
//! makes the filled blocks the file's, with one record that waits for the device, while the process
//! goes on behind them; *ending* gives back the others too.
//!
//! - I-LEA-9: while there is a tail, nothing else moves the end of the file or maps blocks behind it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bedplate_lease::Extent;
use bedplate_store::{Grid, Run};

use super::appends::Appends;
use super::file::LeasedFile;
use super::{EntryRef, LeaseClient};

/// The blocks of a tail, and the process that fills them.
#[derive(Debug)]
pub(crate) struct Tail {
    client: Arc<LeaseClient>,
    grid: Grid,
    /// Where the file ends, in bytes.
    size: u64,
    /// The file block behind that.
    first: u64,
    runs: Vec<Run>,
    /// A number that no other tail of the mount has.
    number: u64,
}

/// What of a tail a process has filled.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Filled {
    /// The first file block.
    pub(crate) first: u64,
    /// The blocks for it and those behind it.
    pub(crate) runs: Vec<Run>,
    /// Where the file ends with it.
    pub(crate) size_bytes: u64,
}

impl Filled {
    /// Returns how many blocks these are.
    pub(crate) fn blocks(&self) -> u64 {
        self.runs.iter().map(|run| run.blocks).sum()
    }
}

impl Tail {
    pub(crate) fn new(client: Arc<LeaseClient>, grid: Grid, first: u64, runs: Vec<Run>) -> Self {
        Self { client, grid, size: grid.start_of(first), first, runs, number: 0 }
    }

    fn end(&self) -> u64 {
        self.first + self.runs.iter().map(|run| run.blocks).sum::<u64>()
    }

    /// Returns up to which byte of the file it is filled, by what the process says and no further
    /// than it has blocks.
    fn filled_to(&self, entry: EntryRef) -> u64 {
        let end = self.grid.start_of(self.end()).max(self.size);
        self.grid.sector_floor(self.client.filled(entry)).clamp(self.size, end)
    }

    /// Returns the runs of the first `count` blocks, and of the others.
    fn split(&self, count: u64) -> (Vec<Run>, Vec<Run>) {
        let (mut before, mut behind, mut left) = (Vec::new(), Vec::new(), count);
        for run in &self.runs {
            let taken = run.blocks.min(left);
            left -= taken;
            let rest = Run {
                start: bedplate_store::BlockNo(run.start.0 + taken),
                blocks: run.blocks - taken,
            };
            before.extend((taken > 0).then_some(Run { blocks: taken, ..*run }));
            behind.extend((rest.blocks > 0).then_some(rest));
        }
        (before, behind)
    }
}

impl LeasedFile {
    /// Returns whether a process makes the file grow by itself: it has a tail, or a buffer for what it
    /// appends. Under the inode lock that stays so.
    #[inline]
    pub(crate) fn has_tail(&self) -> bool {
        self.has_tail.load(Ordering::Acquire)
    }

    /// Returns whether the size of the file moves, or has moved, without a request: what was told
    /// of it is not to be kept.
    pub(crate) fn moves_size(&self) -> bool {
        self.moves_size.load(Ordering::Acquire)
    }

    /// As [`moves_size`](Self::moves_size), where that is over; then it is so no more.
    pub(crate) fn stopped_moving(&self) -> bool {
        if !self.moves_size() {
            return false;
        }
        let state = self.state.lock();
        state.tail.is_none()
            && state.appends.is_none()
            && self.moves_size.swap(false, Ordering::AcqRel)
    }

    /// Returns whether a process has a tail or a buffer, this one where one is named.
    pub(crate) fn has_tail_of(&self, client: Option<&Arc<LeaseClient>>) -> bool {
        self.has_tail()
            && client.is_none_or(|client| {
                let state = self.state.lock();
                state.tail.as_ref().is_some_and(|tail| Arc::ptr_eq(&tail.client, client))
                    || state.appends.as_ref().is_some_and(|appends| appends.is_of(client))
            })
    }

    /// Returns where the file ends with what a process has filled of its tail, or appended, without
    /// waiting for it.
    #[inline]
    pub(crate) fn tail_end(&self) -> Option<u64> {
        if self.has_tail() { self.looked_up_end() } else { None }
    }

    #[cold]
    fn looked_up_end(&self) -> Option<u64> {
        let state = self.state.lock();
        let appended = state.appends.as_ref().map(Appends::end);
        appended.or_else(|| Some(state.tail.as_ref()?.filled_to(state.entry?)))
    }

    /// Returns whether a process has filled something of its tail, or appended something.
    pub(crate) fn is_tail_filled(&self) -> bool {
        let is_appended = || self.state.lock().appends.as_ref().is_some_and(Appends::is_filled);
        self.has_tail() && (is_appended() || self.tail_filled().is_some())
    }

    /// Returns what a process has filled of its tail; with the exclusive lock held that is all. There
    /// may be no block in it, where the file ended within one.
    pub(crate) fn tail_filled(&self) -> Option<Filled> {
        if !self.has_tail() {
            return None;
        }
        let state = self.state.lock();
        let tail = state.tail.as_ref()?;
        let (first, size_bytes) = (tail.first, tail.filled_to(state.entry?));
        let blocks = tail.grid.block_after(size_bytes) - first;
        let is_filled = size_bytes > tail.size;
        is_filled.then(|| Filled { first, runs: tail.split(blocks).0, size_bytes })
    }

    /// Gives a process a tail; returns whether the size begins to move. The exclusive lock is held;
    /// the file is published, and had none.
    pub(crate) fn give_tail(&self, mut tail: Tail) -> bool {
        let mut state = self.state.lock();
        let has_none = state.tail.is_none() && state.appends.is_none();
        let entry = state.entry.filter(|_| state.revoked && has_none);
        let entry = entry.expect("I-LEA-9: a file that is taken back gets one tail");
        tail.client.set_filled(entry, tail.grid.start_of(tail.first));
        tail.number = self.leases.tails.fetch_add(1, Ordering::Relaxed) + 1;
        (state.tail, state.wrong) = (Some(tail), true);
        self.has_tail.store(true, Ordering::Release);
        !self.moves_size.swap(true, Ordering::AcqRel)
    }

    /// The first blocks of the tail, up to one, are the file's now, which ends at `size`. The map's
    /// lock is held.
    pub(crate) fn tail_collected(&self, blocks_end: u64, size: u64) {
        let mut state = self.state.lock();
        state.wrong = true;
        let tail = state.tail.as_mut().expect("I-LEA-9: what is collected is a tail's");
        tail.runs = tail.split(blocks_end - tail.first).1;
        (tail.first, tail.size) = (blocks_end, size);
    }

    /// Takes the tail from the process that has it; returns the blocks that are not the file's. The
    /// exclusive lock is held.
    pub(crate) fn take_tail(&self) -> Vec<Run> {
        let mut state = self.state.lock();
        let Some(tail) = state.tail.take() else { return Vec::new() };
        assert!(state.revoked, "I-LEA-9: a tail ends while nothing fills it");
        state.wrong = true;
        self.has_tail.store(false, Ordering::Release);
        drop(state);
        self.leases.touched.lock().insert(self.ino);
        tail.runs
    }

    /// Returns whether a change of these file blocks, with which the file ends at `size` or later,
    /// leaves the tail alone, or what a process appends.
    pub(crate) fn spares_tail(&self, blocks_end: u64, size: Option<u64>) -> bool {
        if !self.has_tail() {
            return true;
        }
        let state = self.state.lock();
        let of_tail = state.tail.as_ref().is_none_or(|tail| {
            blocks_end <= tail.first && size.is_none_or(|size| size <= tail.size)
        });
        let is_taken = |appends: &Appends| size.is_none_or(|size| size <= appends.end());
        of_tail && state.appends.as_ref().is_none_or(is_taken)
    }

    /// Returns what the entry says of the tail, and where it lies.
    pub(crate) fn tail_to_lease(&self) -> (Option<bedplate_lease::Tail>, Vec<Extent>) {
        let state = self.state.lock();
        let Some(tail) = &state.tail else { return (None, Vec::new()) };
        let (grid, mut at) = (tail.grid, tail.first);
        let extents = tail.runs.iter().map(|run| {
            let logical = grid.start_of(at);
            at += run.blocks;
            let (device, len) = (grid.start_of(run.start.0), grid.start_of(run.blocks));
            Extent { logical, device, len, is_writable: true }
        });
        let extents = extents.collect();
        let end_bytes = grid.start_of(tail.end());
        let (owner, number) = (tail.client.number, tail.number);
        (Some(bedplate_lease::Tail { owner, end_bytes, number }), extents)
    }
}
