//! What the data path says of a file to processes with leases, and to the lease of the file.

use std::sync::{Arc, Weak};

use bedplate_block::sync::MappedRwLockReadGuard;
use bedplate_lease::{Extent, Lease, Reason};
use bedplate_store::{ExtentMap, ExtentState, PlantedBug, planted};

use super::write::Payload;
use super::{Alone, DataPath};
use crate::Result as FsResult;
use crate::engine::{Engine, Listed};
use crate::inode::Inode;
use crate::lease::{Entry, LeaseSource, LeasedFile, Leases, MAP_EXTENTS_MAX, joined};
use crate::mode::OpenTable;
use crate::{FileBlock, Lsn};

/// The file that a lease is of; the lease keeps neither it nor the file system in memory.
struct Source {
    fs: Weak<Engine>,
    inode: Weak<Inode>,
}

impl LeaseSource for Source {
    fn readmit(&self, file: &LeasedFile) {
        if let (Some(fs), Some(inode)) = (self.fs.upgrade(), self.inode.upgrade()) {
            DataPath::new(&fs, &inode).hand_out(file);
        }
    }
}

impl DataPath<'_> {
    /// Publishes the file, and returns what a client needs to find it; or why it stays on the
    /// mount. The caller has made sure that no cache of its own keeps bytes of the file.
    pub(crate) fn lease(self) -> Result<Lease, Reason> {
        let leases = self.fs.leases().ok_or(Reason::Off)?;
        if self.fs.is_past(self.inode.ino) {
            return Err(Reason::Kind);
        }
        if self.fs.is_read_only() || self.fs.has_failed() || !leases.is_serving() {
            return Err(Reason::State);
        }
        let file = self.lease_of(leases);
        if let Some(lease) = file.lease() {
            return Ok(lease);
        }
        // Before the inode lock, which the cache takes to read; the lease looks again under it.
        let cache_file = self.share_pages()?;
        let held = self.state().lock.exclusive(self.fs);
        if !self.is_leased_as(cache_file) {
            return Err(Reason::Mode);
        }
        // Its processes read and write the device, and not what the log has for it.
        self.fs.write_homes().map_err(|_| Reason::State)?;
        if cache_file == 0 {
            self.may_lend_blocks(&held)?;
        } else {
            self.end_odd_writes(&held);
        }
        // No thread closes the last open meanwhile and misses that it is to be retracted: the
        // caller has one.
        file.publish(self.inode.data_lsn(), cache_file)?;
        self.fs.list(Listed::Leased, self.inode);
        drop(held);
        file.lease().ok_or(Reason::Suspended)
    }

    /// Has the pages of a file published that processes read in the cache, and returns the number by
    /// which they find them; 0 of one whose blocks they read.
    fn share_pages(self) -> Result<u64, Reason> {
        let path = self.service().path();
        if !path.may_share_cache() {
            return if path.may_be_leased() { Ok(0) } else { Err(Reason::Mode) };
        }
        self.fs.cache().shared().ok_or(Reason::Cache)?;
        let cached = self.cached();
        cached.set_shared(true);
        Ok(cached.number())
    }

    /// Returns whether the file is served such that processes may have what they were given: the
    /// pages of the cache under this number, or the blocks (0).
    pub(super) fn is_leased_as(self, cache_file: u64) -> bool {
        let service = self.service();
        let path = service.path();
        let is_so = if cache_file == 0 { path.may_be_leased() } else { path.may_share_cache() };
        is_so && !service.is_mixed()
    }

    /// Returns why processes may not have the blocks of the file. Nothing of it waits in memory
    /// then.
    fn may_lend_blocks(self, held: &Alone<'_>) -> Result<(), Reason> {
        if self.gives_sums() || self.has_sums().unwrap_or(false) {
            return Err(Reason::Integrity);
        }
        if self.redirects_all() {
            return Err(Reason::Untorn);
        }
        self.write_held_write(held).map_err(|_| Reason::HeldBytes)
    }

    /// Gives a client the right to odd writes of the file, which is published; nothing of it waits
    /// in memory then.
    pub(crate) fn give_odd_writes(self, client: u64) -> Result<(), Reason> {
        let leases = self.fs.leases().ok_or(Reason::Off)?;
        if !leases.is_serving() {
            return Err(Reason::State);
        }
        if !leases.has_client(client) {
            return Err(Reason::Request);
        }
        let file = self.state().lease().filter(|file| file.lease().is_some());
        let file = file.ok_or(Reason::Suspended)?;
        file.end_rest();
        let held = self.state().lock.exclusive(self.fs);
        if !self.is_leased_as(0) {
            return Err(Reason::Mode);
        }
        self.write_held_write(&held).map_err(|_| Reason::HeldBytes)?;
        if file.set_odd_owner(client) { Ok(()) } else { Err(Reason::Suspended) }
    }

    /// Returns whether no client does I/O on the file, now and as long as the inode lock is held: it
    /// has no lease, or rests.
    #[inline]
    pub(super) fn is_on_mount(self) -> bool {
        self.state().lease().is_none_or(|file| file.rests())
    }

    /// Returns how many writes of the file waited, and reads were read ahead.
    pub(super) fn streamed(self) -> u64 {
        let counters = self.inode.counters.snapshot();
        counters.delayed + counters.window_hits
    }

    /// A process is about to make the file grow by a write of `len` bytes at its end; returns whether
    /// the file is being loaded, and rests on the mount from now on.
    pub(super) fn rests_for_load(self, _held: &Alone<'_>, file: &LeasedFile, len: u64) -> bool {
        file.begins_load(self.state().logged_size(), len, self.streamed())
    }

    /// Notes, of a file with a lease, that a write makes it grow by parts of sectors.
    #[inline]
    pub(super) fn rests_for_odd_growth(self, _held: &Alone<'_>, data: &Payload<'_>) {
        let (grid, len) = (self.fs.grid(), data.bytes.len() as u64);
        if !(grid.on_sector(data.offset) && grid.on_sector(len))
            && data.end() > self.state().logged_size()
            && let Some(file) = self.state().lease()
        {
            file.grows_odd();
        }
    }

    /// Returns whether a client has the right to odd writes: what is written under the shared inode
    /// lock could come between its reading of a sector and its writing.
    #[inline]
    pub(super) fn meets_odd_writes(self) -> bool {
        self.state().lease().is_some_and(|file| file.has_odd_owner())
            && !planted(PlantedBug::WriteBesideOddOwner)
    }

    /// Takes the right to odd writes from the client that has it: others write to the file.
    pub(super) fn end_odd_writes(self, _alone: &Alone<'_>) {
        if let Some(file) = self.state().lease().filter(|file| file.has_odd_owner()) {
            file.set_odd_owner(0);
        }
    }

    /// Keeps the file on the mount until all its opens have ended; no client does I/O any more when
    /// this returns.
    pub(crate) fn suspend_lease(self) {
        let Some(leases) = self.fs.leases() else { return };
        let file = self.lease_of(leases);
        if !file.is_quiet() {
            file.suspend();
            self.end_tail_or_warn(&self.state().lock.exclusive(self.fs));
            file.set_quiet();
        }
    }

    /// Publishes the file no more: its last open has ended. With the table of opens locked, so that
    /// what a new open asks for comes after it.
    pub(super) fn retract_lease(self, opens: &OpenTable) {
        let Some(file) = self.state().lease().filter(|_| opens.len() == 0) else { return };
        // What was in flight at the close has ended under the lock.
        let held = self.state().lock.exclusive(self.fs);
        self.inode.absorb_leased_writes();
        if self.inode.has_lazy_times() {
            self.fs.list_lazy(self.inode);
        }
        // What has no name goes with its file.
        if self.inode.names() > 0 {
            self.end_tail_or_warn(&held);
        }
        self.drop_tail(&held);
        if let Some(cached) = self.cached_if_any() {
            cached.set_shared(false);
        }
        file.retract();
        self.fs.unlist(Listed::Leased, self.inode.ino, &Arc::downgrade(self.inode));
        drop(held);
    }

    /// Follows, in the lease, what changed in the map or in the set of checkpoints. The inode lock
    /// is held, shared.
    #[inline]
    pub(super) fn refresh_lease(self) {
        if let Some(file) = self.state().lease() {
            self.refresh_lease_of(file);
        }
    }

    #[inline(never)]
    fn refresh_lease_of(self, file: &LeasedFile) {
        let (unsealed_last, sealed) = (self.state().unsealed.last(), self.fs.sealed_lsn().0);
        if file.due(unsealed_last, sealed).is_some()
            && let Ok(map) = self.map_to_lease()
        {
            self.rewrite_lease(file, &map);
        }
    }

    /// Writes the entry of the file anew where that is of use, in the midst of a change of the map
    /// too. The inode lock is held, shared or exclusive, and the map's.
    pub(super) fn rewrite_lease(self, file: &LeasedFile, map: &ExtentMap) {
        let (unsealed_last, sealed) = (self.state().unsealed.last(), self.fs.sealed_lsn().0);
        // The extents are looked up before the lock of the lease: that may ask the tables.
        if let Some(sharing) = file.due(unsealed_last, sealed) {
            let (tail, tail_extents) = file.tail_to_lease();
            let extents = self.leased_extents(map, tail_extents, MAP_EXTENTS_MAX);
            debug_assert!(
                extents.len() <= MAP_EXTENTS_MAX,
                "a map has {} extents, which is too long to be made under a lock",
                extents.len()
            );
            let size_bytes = self.state().logged_size();
            let data_lsn = self.inode.data_lsn();
            let entry = Entry { size_bytes, unsealed_last, sealed, data_lsn, tail };
            file.rewrite(sharing, entry, &extents);
        }
    }

    /// Hands the file out again where nothing keeps it on the mount. The exclusive lock is held.
    fn hand_out(self, file: &LeasedFile) {
        let cache_file = file.cache_file();
        if !file.may_come_back(self.is_leased_as(cache_file)) {
            return;
        }
        if cache_file != 0 {
            file.rewrite_cached();
            return file.restore();
        }
        // I-LEA-4: what is held is written under the lock again, and then this comes back.
        if self.state().waits_in_memory() && !planted(PlantedBug::LeasedWhileHeld) {
            return;
        }
        self.state().held_sectors.clear();
        self.state().read_windows.clear();
        let Ok(map) = self.map_to_lease() else { return };
        self.rewrite_lease(file, &map);
        drop(map);
        file.restore();
    }

    /// Returns where the written blocks of the file that are in memory lie, in bytes, and which of
    /// them may be written in place (I-IO-6); behind them those of the tail.
    fn leased_extents(self, map: &ExtentMap, tail: Vec<Extent>, max: usize) -> Vec<Extent> {
        let grid = self.fs.grid();
        let epoch = self.cow_epoch();
        let run = |(at, extent): (FileBlock, bedplate_store::Extent)| Extent {
            logical: grid.start_of(at.0),
            device: grid.start_of(extent.start.0),
            len: grid.start_of(extent.blocks.into()),
            is_writable: extent.birth > epoch,
        };
        // What is to be compared with its checksum is read on the mount.
        let written = map.from(0).filter(|(_, extent)| extent.state == ExtentState::Written);
        joined(written.map(run).chain(tail), max)
    }
}

impl<'a> DataPath<'a> {
    /// Locks the map to read it, with as many extents in memory as an entry has room for.
    fn map_to_lease(self) -> FsResult<MappedRwLockReadGuard<'a, ExtentMap>> {
        let mut range = 0..1;
        loop {
            let map = self.map(range.clone())?;
            match map.first_absent(&(0..u64::MAX)) {
                Some(block) if map.from(0).count() <= MAP_EXTENTS_MAX => range.end = block + 1,
                _ => return Ok(map),
            }
        }
    }

    /// Returns the lease of the file; makes one, which hands out nothing.
    fn lease_of(self, leases: &Arc<Leases>) -> &'a Arc<LeasedFile> {
        let make = || {
            let source = Source { fs: self.fs.weak(), inode: Arc::downgrade(self.inode) };
            Arc::new(LeasedFile::new(self.inode.ino, Arc::clone(leases), Box::new(source)))
        };
        self.inode.data.lease_or(make)
    }
}

impl Engine {
    /// Has the published files follow what was added to them since: what vouches for new blocks is
    /// sealed first, because the entry of a file says one thing of all its blocks.
    pub(crate) fn refresh_leases(&self) -> FsResult<()> {
        let files = self.listed(Listed::Leased);
        for inode in &files {
            let io = DataPath::new(self, inode);
            // One that rests is in no process's hands, so that only this one's I/O is waited for.
            if inode.data.lease().is_some_and(|file| file.look_whether_rested(io.streamed())) {
                let held = inode.data.lock.exclusive(self);
                // Where that fails the file stays on the mount, and the next sync tells why.
                if let Err(error) = io.write_held_write(&held) {
                    tracing::debug!("inode {} stays on the mount: {error}", inode.ino.0);
                }
            }
        }
        for inode in
            files.iter().filter(|inode| inode.data.lease().is_some_and(|it| it.is_behind()))
        {
            self.seal_to(Lsn(inode.data.unsealed.last()))?;
            let io = DataPath::new(self, inode);
            // Not waited for: what holds the file alone may wait for a process that was stopped.
            if io.state().lock.try_acquire_shared() {
                io.refresh_lease();
                io.state().lock.release_shared();
            }
        }
        Ok(())
    }
}
