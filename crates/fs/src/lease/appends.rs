//! What a process appends to a file that rests on the mount, in memory that both of them share
//! (`bedplate_lease`, I-LSE-12).
//!
//! ```text
//!   file     ──── the mount's, in memory too ────┤ end of the file, as readers know it
//!   buffer                       base ├── taken ─┼── appended ──┤────── room ──────┤
//!                                                          the process says so
//! ```
//!
//! Each write would be a request, of which the mount makes one copy in memory. Here the process makes
//! that copy by itself. What it says to have appended counts for the size at once; whatever needs the
//! bytes *takes* them, as if they were written through the mount at that moment, and waits for no
//! process. *Closing* ends it: an append that comes too late fails, and is made through the mount.
//!
//! A load writes over what it has appended, once, in order, and a log over what was there before. In
//! the same buffer the process puts such *overwrites*, each with its place, within a range whose blocks
//! are the file's own and written: taken, they change nothing but bytes.
//!
//! - I-LEA-12: while a process has a buffer for a file, that rests, and nothing else moves its end.
//!   Blocks are reserved for all that fits in.
//! - I-LEA-13: what reads or writes the file takes the overwrites that were made before it began, and
//!   finds or follows them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bedplate_lease::{APPEND_BYTES, APPENDS_PER_CLIENT, Lease, Overwrite, Reason};

use super::LeaseClient;
use super::file::{LeasedFile, State};

/// The buffer of a process for a file.
#[derive(Debug)]
pub(super) struct Appends {
    client: Arc<LeaseClient>,
    buffer: usize,
    number: u32,
    lease: Lease,
    /// Where in the file the buffer begins, in bytes.
    base: u64,
    /// How much of it the file has.
    taken: u64,
    /// Where overwrites may lie, in bytes of the file.
    over: Range<u64>,
    /// How much of the overwrites the file has, in bytes of the buffer, and where the last one ends.
    over_taken: u64,
    over_at: u64,
    /// What was in it when it was closed: appended, and overwritten.
    closed: Option<(u64, u64)>,
}

impl Appends {
    /// Returns how many bytes were appended so far.
    fn appended(&self) -> u64 {
        let says = || self.client.slots.appended(self.buffer);
        self.closed.map_or_else(says, |(appended, _)| appended).max(self.taken)
    }

    /// Returns how much of the buffer is full of overwrites.
    fn overwritten(&self) -> u64 {
        let says = || self.client.slots.overwritten(self.buffer);
        self.closed.map_or_else(says, |(_, overwritten)| overwritten)
    }

    /// Returns the first overwrite that the file has not yet.
    fn overwrite(&self) -> Option<Overwrite> {
        let full = self.overwritten();
        let copy =
            || self.client.slots.copy_overwrite(self.buffer, self.over_taken, full, &self.over);
        (full > self.over_taken).then(copy)?
    }

    /// Returns where the file ends with what was appended.
    pub(super) fn end(&self) -> u64 {
        self.base + self.appended()
    }

    /// Returns whether something was appended that the file has not yet.
    pub(super) fn is_filled(&self) -> bool {
        self.appended() > self.taken || self.is_overwritten()
    }

    /// Returns whether something was written over that the file has not yet.
    fn is_overwritten(&self) -> bool {
        self.overwritten() > self.over_taken
    }

    pub(super) fn is_of(&self, client: &Arc<LeaseClient>) -> bool {
        Arc::ptr_eq(&self.client, client)
    }

    /// Lets the process append no more.
    fn close(&mut self) {
        if self.closed.is_none() {
            let left = self.client.slots.close_append(self.buffer, self.lease.entry, self.number);
            self.closed = Some((left.0.max(self.taken), left.1.max(self.over_taken)));
        }
    }
}

impl LeaseClient {
    /// Takes one of the process's buffers, where not all are in use.
    fn take_buffer(&self) -> Option<usize> {
        let mut free = None;
        let take = |used: u64| {
            free = (0..APPENDS_PER_CLIENT).find(|buffer| used & 1 << buffer == 0);
            free.map(|buffer| used | 1 << buffer)
        };
        self.buffers.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).ok()?;
        free
    }

    fn end_buffer(&self, buffer: usize) {
        self.buffers.fetch_and(!(1 << buffer), Ordering::AcqRel);
    }
}

impl LeasedFile {
    /// Returns whether a process has a buffer for the file. Under the inode lock that stays so.
    pub(crate) fn has_appends(&self) -> bool {
        self.has_tail() && self.state.lock().appends.is_some()
    }

    /// Gives a process a buffer for what it appends from `base` on, where the file ends, and writes over
    /// its bytes `over`; returns whether the size begins to move. The exclusive lock is held; the file
    /// rests, and there is neither another buffer nor a tail.
    pub(crate) fn give_appends(
        &self,
        client: &Arc<LeaseClient>,
        base: u64,
        over: Range<u64>,
    ) -> Result<bool, Reason> {
        let mut state = self.state.lock();
        let State { entry: Some(entry), revoked: true, tail: None, appends: None, .. } = *state
        else {
            return Err(Reason::Tail);
        };
        let buffer = client.take_buffer().ok_or(Reason::Tail)?;
        let lease = Lease { entry: entry.index, generation: entry.generation };
        // Of as many bits as it has in the process's memory.
        let number = self.leases.buffers.fetch_add(1, Ordering::Relaxed) as u32;
        client.slots.open_append(buffer, lease, base, &over, number);
        let client = Arc::clone(client);
        state.appends = Some(Appends {
            client,
            buffer,
            number,
            lease,
            base,
            taken: 0,
            over_at: over.start,
            over,
            over_taken: 0,
            closed: None,
        });
        self.has_tail.store(true, Ordering::Release);
        Ok(!self.moves_size.swap(true, Ordering::AcqRel))
    }

    /// Copies what was appended and the file has not yet, with its place in the file.
    pub(crate) fn appended(&self) -> Option<(u64, Vec<u8>)> {
        let state = self.state.lock();
        let appends = state.appends.as_ref()?;
        let (from, to) = (appends.taken, appends.appended());
        if from == to {
            return None;
        }
        Some((appends.base + from, appends.client.slots.copy_appended(appends.buffer, from, to)))
    }

    /// Returns whether a process wrote over something that the file has not yet.
    #[inline]
    pub(crate) fn is_overwritten(&self) -> bool {
        let looks = || self.state.lock().appends.as_ref().is_some_and(Appends::is_overwritten);
        self.has_tail() && looks()
    }

    /// Returns where in the file a process went on to write over bytes, as far as the file has them.
    pub(crate) fn overwrites_at(&self) -> Option<u64> {
        let state = self.state.lock();
        state.appends.as_ref().filter(|appends| !appends.over.is_empty()).map(|it| it.over_at)
    }

    /// Copies the first overwrite that the file has not yet.
    pub(crate) fn overwrite(&self) -> Option<Overwrite> {
        self.state.lock().appends.as_ref()?.overwrite()
    }

    /// The file has an overwrite, the first that it had not.
    pub(crate) fn overwrite_taken(&self, overwrite: &Overwrite) {
        let mut state = self.state.lock();
        let appends = state.appends.as_mut().expect("I-LEA-13: what is taken is a buffer's");
        appends.over_taken = overwrite.next;
        appends.over_at = overwrite.place + overwrite.bytes.len() as u64;
    }

    /// The file has the next `len` bytes of what was appended.
    pub(crate) fn append_taken(&self, len: u64) {
        let mut state = self.state.lock();
        let appends = state.appends.as_mut().expect("I-LEA-12: what is taken is a buffer's");
        appends.taken += len;
    }

    /// Lets the process append no more to its buffer, in which the rest stays. The exclusive lock is
    /// held.
    pub(crate) fn close_appends(&self) {
        if let Some(appends) = &mut self.state.lock().appends {
            appends.close();
        }
    }

    /// Ends the buffer, of which what the file has not yet is gone; returns the bytes of the file that
    /// were not appended. The exclusive lock is held.
    pub(crate) fn end_appends(&self) -> Option<std::ops::Range<u64>> {
        let mut state = self.state.lock();
        let mut appends = state.appends.take()?;
        appends.close();
        appends.client.end_buffer(appends.buffer);
        self.has_tail.store(false, Ordering::Release);
        drop(state);
        self.leases.touched.lock().insert(self.ino);
        Some(appends.base + appends.taken..appends.base + APPEND_BYTES)
    }
}
