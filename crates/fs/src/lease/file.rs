//! The lease of one file: published, taken back, handed out again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bedplate_block::sync::{Mutex, rank};
use bedplate_lease::{EntryRef, Extent, FileLease, Lease, PublishError, Reason};
use bedplate_store::{PlantedBug, planted};

use super::Leases;
use super::appends::Appends;
use super::rest::Rest;
use super::tail::Tail;
use crate::lock::Outside;
use crate::{InodeNo, Lsn};

/// How many extents of a file are published at most; what lies behind goes through the mount.
pub(crate) const MAP_EXTENTS_MAX: usize = 1 << 14;

/// The file that a lease is of, as far as the lease asks for it.
pub(crate) trait LeaseSource: Send + Sync {
    /// The exclusive lock, which is still held, is about to be released: hands the file out again
    /// where nothing keeps it on the mount.
    fn readmit(&self, file: &LeasedFile);
}

/// What the entry of a file says besides its extents.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) size_bytes: u64,
    /// The last record that vouches for bytes of the file.
    pub(crate) unsealed_last: u64,
    /// Up to which record the log is sealed.
    pub(crate) sealed: u64,
    pub(crate) data_lsn: Lsn,
    pub(crate) tail: Option<bedplate_lease::Tail>,
}

/// The lease of a file, known to its inode lock.
pub(crate) struct LeasedFile {
    pub(super) ino: InodeNo,
    source: Box<dyn LeaseSource>,
    pub(super) leases: Arc<Leases>,
    /// A client has the right to odd writes. Changes under the exclusive inode lock only.
    has_odd_owner: AtomicBool,
    /// A client has a tail, or a buffer for what it appends. Changes under the exclusive inode lock
    /// only.
    pub(super) has_tail: AtomicBool,
    /// It had one since the last look.
    pub(super) moves_size: AtomicBool,
    /// It rests on the mount (`rest`). Begins under the exclusive inode lock only.
    pub(super) rests: AtomicBool,
    /// Rank 4.1.
    pub(super) state: Mutex<State, { rank::FILE_LEASE }>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) entry: Option<EntryRef>,
    /// The entry is odd.
    pub(super) revoked: bool,
    /// The entry is older than the map, and still right: blocks were only added.
    behind: bool,
    /// The entry is wrong: it has to be written anew before it is handed out.
    pub(super) wrong: bool,
    /// Blocks behind the end of the file, for one client.
    pub(super) tail: Option<Tail>,
    /// What one client appends while the file rests.
    pub(super) appends: Option<Appends>,
    /// It was served another way since it was asked for (I-LEA-5).
    served_otherwise: bool,
    pub(super) rest: Rest,
    /// The file stays on the mount until all its opens have ended.
    pub(super) suspended: bool,
    /// No client does I/O on it any more since.
    pub(super) quiet: bool,
    /// Of the entry.
    data_lsn: u64,
    sharing: u64,
    /// The number by which processes find the file's pages in the cache, which is all that they
    /// have of it; 0: they have its blocks.
    cache_file: u64,
}

impl State {
    /// Returns whether processes read the file's pages in the cache, and nothing on the device.
    pub(super) fn reads_pages(&self) -> bool {
        self.cache_file != 0
    }
}

impl LeasedFile {
    /// Makes the lease of a file, which hands out nothing.
    pub(crate) fn new(ino: InodeNo, leases: Arc<Leases>, source: Box<dyn LeaseSource>) -> Self {
        let [has_odd_owner, has_tail, moves_size] = [const { AtomicBool::new(false) }; 3];
        let (rests, state) = (AtomicBool::new(true), Mutex::default());
        Self { ino, source, leases, has_odd_owner, has_tail, moves_size, rests, state }
    }

    /// Publishes the file, and asks for it to be handed out when the exclusive lock, which the
    /// caller holds, is released.
    pub(crate) fn publish(&self, data_lsn: Lsn, cache_file: u64) -> Result<(), Reason> {
        let mut state = self.state.lock();
        if state.suspended {
            return Err(Reason::Suspended);
        }
        if state.entry.is_none() {
            let nothing = Self::of_pages(data_lsn.0, 0);
            let published = self.leases.table.lock().publish(self.ino.0, &nothing);
            let entry = published.map_err(|error| match error {
                PublishError::Full => Reason::TooManyFiles,
                // Another inode of this number was loaded before and has not gone yet.
                PublishError::Published => Reason::Failed,
            })?;
            let rest = std::mem::take(&mut state.rest).after_a_close(Instant::now());
            *state = State { entry: Some(entry), revoked: true, rest, ..State::default() };
            self.note_rest(&state);
        }
        (state.wrong, state.served_otherwise) = (true, false);
        state.cache_file = cache_file;
        if state.reads_pages() {
            state.rest = Rest::default();
        }
        self.note_rest(&state);
        Ok(())
    }

    /// What an entry says where nothing is done on the device.
    fn of_pages(data_lsn: u64, cache_file: u64) -> FileLease<'static> {
        FileLease {
            may_read: false,
            may_write: false,
            may_sync: false,
            size_bytes: 0,
            unsealed_last: 0,
            data_lsn,
            sharing: 0,
            extents: &[],
            tail: None,
            cache_file,
        }
    }

    /// Returns the number by which processes find the file's pages in the cache; 0 where they have
    /// its blocks, or nothing.
    pub(crate) fn cache_file(&self) -> u64 {
        self.state.lock().cache_file
    }

    /// Writes the entry of a file again whose pages processes read in the cache. The exclusive lock is
    /// held.
    pub(crate) fn rewrite_cached(&self) {
        let mut state = self.state.lock();
        let Some(entry) = state.entry.filter(|_| state.wrong && state.reads_pages()) else {
            return;
        };
        assert!(
            state.revoked && state.tail.is_none() && state.appends.is_none(),
            "I-LEA-11: what processes have of a file changes while they have nothing of it"
        );
        let file = Self::of_pages(state.data_lsn, state.cache_file);
        self.leases.table.lock().rewrite(entry, &file);
        (state.wrong, state.behind) = (false, false);
    }

    /// Returns what a client needs to find the file, where it is published; it may be taken back at
    /// this moment, and comes back by itself.
    pub(crate) fn lease(&self) -> Option<Lease> {
        let state = self.state.lock();
        let entry = state.entry.filter(|_| !state.suspended && !state.served_otherwise)?;
        Some(Lease { entry: entry.index, generation: entry.generation })
    }

    pub(crate) fn is_handed_out(&self) -> bool {
        let state = self.state.lock();
        state.entry.is_some() && !state.revoked
    }

    /// Returns whether the entry says less than it could.
    pub(crate) fn is_behind(&self) -> bool {
        let state = self.state.lock();
        state.entry.is_some()
            && !state.revoked
            && !state.reads_pages()
            && (state.behind || state.sharing != self.leases.control.sharing())
    }

    /// Keeps the file on the mount until all its opens have ended. The caller takes the exclusive
    /// lock once before it relies on that.
    pub(crate) fn suspend(&self) {
        let mut state = self.state.lock();
        state.suspended = true;
        self.note_rest(&state);
    }

    /// The exclusive lock was taken since.
    pub(crate) fn set_quiet(&self) {
        let mut state = self.state.lock();
        state.quiet = state.suspended;
        self.note_rest(&state);
    }

    /// Returns whether the file stays on the mount, and no client does I/O on it any more.
    pub(crate) fn is_quiet(&self) -> bool {
        self.state.lock().quiet
    }

    /// Gives the right to odd writes to a client, or takes it from all (0); returns whether the file
    /// is published. The exclusive lock is held.
    pub(crate) fn set_odd_owner(&self, client: u64) -> bool {
        let state = self.state.lock();
        let Some(entry) = state.entry else { return false };
        assert!(state.revoked, "I-LEA-7: the right changes while nothing writes");
        self.leases.control.set_odd_owner(entry, client);
        self.has_odd_owner.store(client != 0, Ordering::Release);
        true
    }

    /// Returns whether a client has the right to odd writes; under the inode lock that stays so.
    #[inline]
    pub(crate) fn has_odd_owner(&self) -> bool {
        self.has_odd_owner.load(Ordering::Acquire)
    }

    /// Publishes the file no more. The exclusive lock is held.
    pub(crate) fn retract(&self) {
        let mut state = self.state.lock();
        let entry = state.entry;
        assert!(entry.is_none() || state.revoked, "I-LEA-1: what is retracted was taken back");
        assert!(state.tail.is_none(), "I-LEA-9: a tail ends before its file is retracted");
        assert!(state.appends.is_none(), "I-LEA-12: a buffer ends before its file is retracted");
        *state = State { rest: std::mem::take(&mut state.rest), ..State::default() };
        self.has_odd_owner.store(false, Ordering::Release);
        self.moves_size.store(false, Ordering::Release);
        self.note_rest(&state);
        if let Some(entry) = entry {
            self.leases.table.lock().retract(entry);
        }
    }

    /// The map changed, under its lock; `only_adds`: what the entry says is still right.
    pub(crate) fn map_changed(&self, only_adds: bool) {
        let mut state = self.state.lock();
        if state.reads_pages() {
            // The cache follows by itself.
        } else if only_adds {
            state.behind = true;
        } else if !planted(PlantedBug::LeaseMapNotRewritten) {
            state.wrong = true;
        }
    }

    /// A record that a data sync of the file needs is in the log.
    pub(crate) fn note_data(&self, lsn: Lsn) {
        let mut state = self.state.lock();
        let Some(entry) = state.entry.filter(|_| lsn.0 > state.data_lsn) else { return };
        state.data_lsn = lsn.0;
        self.leases.control.set_data_lsn(entry, lsn.0);
    }

    /// Returns whether clients wrote to the file since this was last asked.
    pub(crate) fn take_touched(&self) -> bool {
        let entry = self.state.lock().entry;
        entry.is_some_and(|entry| self.leases.take_touched(self.ino, entry))
    }

    /// Returns the set of checkpoints that the entry is to be written for, where writing it anew is
    /// of use.
    pub(crate) fn due(&self, unsealed_last: u64, sealed: u64) -> Option<u64> {
        let sharing = self.leases.control.sharing();
        Self::is_due(&self.state.lock(), sharing, unsealed_last <= sealed).then_some(sharing)
    }

    fn is_due(state: &State, sharing: u64, all_sealed: bool) -> bool {
        let old = state.sharing != sharing || state.behind;
        state.entry.is_some() && !state.reads_pages() && (state.wrong || (old && all_sealed))
    }

    /// Writes the entry anew where that is still of use; the inode lock is held, shared or
    /// exclusive, and the map's, so that it stays. The extents were found for `sharing`: a change
    /// of the set of checkpoints since makes the entry old at once.
    pub(crate) fn rewrite(&self, sharing: u64, with: Entry, extents: &[Extent]) {
        let mut state = self.state.lock();
        let all_sealed = with.unsealed_last <= with.sealed;
        let Some(entry) = state.entry.filter(|_| Self::is_due(&state, sharing, all_sealed)) else {
            return;
        };
        if !state.revoked {
            self.leases.control.revoke(entry);
        }
        state.data_lsn = state.data_lsn.max(with.data_lsn.0);
        let file = FileLease {
            may_read: true,
            may_write: true,
            may_sync: true,
            size_bytes: with.size_bytes,
            unsealed_last: with.unsealed_last,
            data_lsn: state.data_lsn,
            sharing,
            extents,
            tail: with.tail,
            cache_file: 0,
        };
        self.leases.table.lock().rewrite(entry, &file);
        (state.wrong, state.behind, state.sharing) = (false, false, sharing);
        if !state.revoked {
            self.leases.control.restore(entry);
        }
    }

    /// Returns whether the entry must be written anew now: blocks left the map while the entry is
    /// handed out.
    pub(crate) fn is_wrong_in_use(&self) -> bool {
        let state = self.state.lock();
        state.wrong && !state.revoked
    }

    /// Returns whether the file may be handed out again, as it is served now; asked at each release
    /// of the exclusive lock. One that is taken back again and again, as by a log that grows in odd
    /// pieces, rests on the mount: handing it out costs each time, and is of no use.
    pub(crate) fn may_come_back(&self, served: bool) -> bool {
        let mut state = self.state.lock();
        if state.entry.is_none() {
            return false;
        }
        state.served_otherwise |= !served;
        if state.rest.passes() {
            self.note_rest(&state);
            return false;
        }
        // I-LEA-12: a file for which a client has a buffer rests until that has ended.
        !state.served_otherwise && !state.suspended && state.appends.is_none()
    }

    /// Hands the file out again, unless its entry is wrong.
    pub(crate) fn restore(&self) {
        let mut state = self.state.lock();
        if let Some(entry) = state.entry.filter(|_| state.revoked && !state.wrong) {
            assert!(state.rest.is_over(), "I-LEA-10: what rests is not handed out");
            state.revoked = false;
            self.leases.control.restore(entry);
        }
    }
}

impl Outside for LeasedFile {
    fn recall(&self, help: &mut dyn FnMut()) {
        let (entry, rests) = {
            let mut state = self.state.lock();
            let Some(entry) = state.entry.filter(|_| !state.revoked) else { return };
            state.revoked = true;
            self.leases.control.revoke(entry);
            // Reads of pages end by themselves, and their file comes back at once.
            (entry, !state.reads_pages() && state.rest.taken_back())
        };
        self.leases.drain(self.ino, entry, help);
        // I-LEA-10: what clients had begun has ended.
        if rests {
            self.note_rest(&self.state.lock());
        }
    }

    fn readmit(&self) {
        if std::thread::panicking() {
            return;
        }
        self.source.readmit(self);
    }
}

impl std::fmt::Debug for LeasedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LeasedFile(inode {})", self.ino.0)
    }
}

/// Joins runs that continue each other in the file and on the device.
pub(crate) fn joined(runs: impl Iterator<Item = Extent>, max: usize) -> Vec<Extent> {
    let mut out: Vec<Extent> = Vec::new();
    for run in runs {
        let full = out.len() == max;
        match out.last_mut() {
            Some(last)
                if last.logical + last.len == run.logical
                    && last.device + last.len == run.device
                    && last.is_writable == run.is_writable =>
            {
                last.len += run.len;
            }
            _ if full => break,
            _ => out.push(run),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_joined_where_nothing_sets_them_apart() {
        let run = |logical, device, len, is_writable| Extent { logical, device, len, is_writable };
        let runs = [run(0, 100, 10, true), run(10, 110, 5, true), run(15, 115, 5, false)];
        let more = [run(20, 120, 5, false), run(30, 130, 1, false), run(31, 200, 1, false)];
        let all = || runs.into_iter().chain(more);
        let expected = [
            run(0, 100, 15, true),
            run(15, 115, 10, false),
            run(30, 130, 1, false),
            run(31, 200, 1, false),
        ];
        assert_eq!(joined(all(), 10), expected);
        assert_eq!(joined(all(), 2), expected[..2]);
    }
}
