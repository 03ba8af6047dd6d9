//! Opening and closing: which opens a file has, and how it is served because of them.
//!
//! ```text
//!   open, close, change of the file's mode ──► table of opens ──► service
//!                                                                   │ another path?
//!                         order lock, exclusive ◄───────────────────┘
//!                         flush and forget the library cache ──► inode lock, exclusive ──► switch
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::DataPath;
use crate::Result;
use crate::engine::{Engine, Listed};
use crate::inode::Inode;
use crate::mode::{OpenClass, OpenTable, Service};
use crate::statistics::Counters;

/// Takes over a changed I/O mode of the file on its live opens.
pub(crate) fn mode_changed(fs: &Engine, inode: &Arc<Inode>) -> Result<()> {
    DataPath::new(fs, inode).change_opens(|_| {})
}

impl DataPath<'_> {
    /// Returns how the file is served now. Stable while a hold of the inode lock lasts.
    #[inline]
    pub(crate) fn service(self) -> Service {
        Service::of_word(self.state().steady.service_word())
    }

    /// As [`service`](Self::service), also of a file that was never open.
    pub(crate) fn service_if_any(self) -> Option<Service> {
        Some(self.state().steady.service_word()).filter(|word| *word != 0).map(Service::of_word)
    }

    /// Begins an open: pins the inode, counts the open and serves the file as its opens then ask.
    pub(crate) fn open(self, class: OpenClass) -> Result<()> {
        self.inode.pin()?;
        if let Err(error) = self.change_opens(|table| table.add(class)) {
            self.change_table(&mut self.state().opens.lock(), |table| table.remove(class));
            self.fs.unpin(self.inode, 1);
            return Err(error);
        }
        Ok(())
    }

    /// Ends an open.
    pub(crate) fn close(self, class: OpenClass) {
        // While the open counts, so that a freeze waits for it (I-CHG-1). What has no name goes with
        // its file.
        if self.waits_for_close()
            && self.state().opens.lock().len() == 1
            && self.inode.attr_lock().row.nlink > 0
            && let Err(error) = self.write_if_delayed()
        {
            tracing::warn!(
                "inode {}: what was written to it did not reach the device yet: {error}",
                self.inode.ino.0
            );
        }
        if let Err(error) = self.change_opens(|table| table.remove(class)) {
            tracing::warn!(
                "inode {}: what was written to the cache did not reach the device: {error}",
                self.inode.ino.0
            );
        }
        if self.state().opens.lock().len() == 0 {
            self.state().synced.store(false, Ordering::Relaxed);
            // A file with an extent size gets large extents also when every append is an open of
            // its own.
            if !self.state().extent_size.is_wanted() {
                self.fs.drop_ahead(self.inode.ino);
            }
            self.state().held_sectors.clear();
            self.state().read_windows.clear();
            self.retract_lease(&self.state().opens.lock());
            self.unload_map();
        }
        self.fs.unpin(self.inode, 1);
    }

    /// Returns whether what was written is to reach the device at the last close: it is delayed, or what
    /// a process made the file grow by.
    fn waits_for_close(self) -> bool {
        self.state().delayed.any() || self.state().lease().is_some_and(|file| file.is_tail_filled())
    }

    /// Changes the table of opens, and the list of open files with it.
    fn change_table(self, opens: &mut OpenTable, change: impl FnOnce(&mut OpenTable)) {
        let before = opens.len();
        change(opens);
        match (before, opens.len()) {
            (0, 1..) => self.fs.list(Listed::Open, self.inode),
            (1.., 0) => self.fs.unlist(Listed::Open, self.inode.ino, &Arc::downgrade(self.inode)),
            _ => {}
        }
    }

    /// Changes the table of opens and serves the file as it then asks.
    fn change_opens(self, change: impl FnOnce(&mut OpenTable)) -> Result<()> {
        let mut opens = self.state().opens.lock();
        self.change_table(&mut opens, change);
        if opens.len() == 0 {
            // Served as before until the next open says otherwise: nothing to gain from a switch
            // now.
            return Ok(());
        }
        let next = opens.service(self.fs.file_mode(self.inode), self.fs.tuning().mode());
        let now = self.service_if_any();
        if now == Some(next) {
            return Ok(());
        }
        if now.is_some_and(Service::is_mixed) != next.is_mixed() {
            Counters::add(&self.inode.counters.mode_transitions, 1);
        }
        self.switch(now, next)
    }

    /// Serves the file another way: I/O that went the old way is over before the first goes the new
    /// one.
    fn switch(self, now: Option<Service>, next: Service) -> Result<()> {
        let _order = self.state().order.exclusive(self.fs);
        if let Some(cached) =
            self.cached_if_any().filter(|_| now.is_none_or(|now| now.path() != next.path()))
        {
            if let Err(error) = cached.write_dirty() {
                // S-33: what can never be written any more stays in the cache, and reads go on
                // there.
                return if self.fs.has_failed() { Ok(()) } else { Err(error) };
            }
            cached.pause();
        }
        let held = self.state().lock.exclusive(self.fs);
        if let Err(error) = self.write_held_write(&held) {
            return if self.fs.has_failed() { Ok(()) } else { Err(error) };
        }
        self.state().steady.serve(next);
        drop(held);
        if let Some(cached) = self.cached_if_any().filter(|_| next.uses_library_cache()) {
            cached.resume();
        }
        Ok(())
    }
}
