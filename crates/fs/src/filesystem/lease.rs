//! Leases, for a front end that hands them to other processes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bedplate_block::{Lent, SharedMemory, memory_bytes};
use bedplate_cache::SharedCache;
use bedplate_lease::{Lease, Reason};

use super::FileSystem;
use crate::engine::Listed;
use crate::lease::{LeaseClient, LeaseProcess, LeaseReport, LeasedInode, Leases};
use crate::{Error, ErrorKind, File, InodeNo, Result};

impl FileSystem {
    /// Begins to lease files to other processes; `mount` is a number that no other mount has.
    ///
    /// # Errors
    /// `ReadOnly`; `Unsupported` where the volume is not one device that other processes can open;
    /// `Io` when the system gives no memory.
    pub fn lease_start(&self, mount: u64) -> Result<()> {
        let fs = self.state();
        if fs.is_read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, "a read-only mount hands out no leases"));
        }
        self.lease_device(false)?;
        let leases = Arc::new(Leases::new(mount, fs.grid().sector, fs.device_bytes())?);
        // Without it files in `concurrent+cache` stay on the mount.
        if let Err(error) = fs.cache().share(memory_bytes()) {
            tracing::warn!("no process reads in the cache of the mount: {error}");
        }
        if !fs.begin_leases(&leases) {
            return Err(Error::new(ErrorKind::Busy, "the mount hands out leases already"));
        }
        let watching = Arc::clone(&leases);
        fs.watch_epochs(move || watching.sharing_changed());
        leases.serve();
        // Last: a log that failed before stops it at once.
        fs.watch_log(leases);
        Ok(())
    }

    /// Opens the device for another process.
    ///
    /// # Errors
    /// `Unsupported` where the volume is not one device that other processes can open; device
    /// errors.
    pub fn lease_device(&self, read_only: bool) -> Result<Lent> {
        self.state().lend_device(read_only)?.ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                "files are leased only on one device, or one image, that bypasses the kernel's \
                 page cache",
            )
        })
    }

    /// Returns the memory that says where leased files lie, for clients to read; `None` where
    /// nothing is leased.
    #[must_use]
    pub fn lease_memory(&self) -> Option<SharedMemory> {
        self.state().leases().map(|leases| leases.memory().clone())
    }

    /// Returns the memory of the library cache, for clients to read; `None` where they have none.
    #[must_use]
    pub fn lease_cache(&self) -> Option<SharedCache> {
        self.state().cache().shared()
    }

    /// Ends processes that hold a file for so long under a lease while something waits for it;
    /// `None`, as at first: waits however long it takes.
    pub fn lease_kill_after(&self, after: Option<Duration>) {
        if let Some(leases) = self.state().leases() {
            leases.set_kill_after(after);
        }
    }

    /// Takes note of a request of a process that gets no lease, for the report.
    pub fn lease_refused(&self, ino: Option<InodeNo>, reason: Reason) {
        if let Some(leases) = self.state().leases() {
            leases.refused(ino, reason);
        }
    }

    /// Takes in a process; `process` is asked while one is waited for.
    ///
    /// # Errors
    /// `Unsupported` where nothing is leased, `Busy` with too many clients, `Io` without memory.
    pub fn lease_attach(
        &self,
        pid: u32,
        uid: u32,
        process: impl LeaseProcess + 'static,
    ) -> Result<Arc<LeaseClient>> {
        let leases = self
            .state()
            .leases()
            .ok_or_else(|| Error::new(ErrorKind::Unsupported, "the mount hands out no leases"))?;
        leases.attach(pid, uid, Box::new(process))
    }

    /// Lets go of a process that has ended: it does no I/O any more.
    pub fn lease_detach(&self, client: &Arc<LeaseClient>) {
        if let Some(leases) = self.state().leases() {
            self.note_leased_writes();
            leases.detach(client);
            // What it had filled stays; a tail that it asks for from now on it does not get.
            if let Err(error) = self.state().end_tails(Some(client)) {
                tracing::warn!("{client:?} ended, and a file did not take what it wrote: {error}");
            }
        }
    }

    /// Takes note of what processes wrote to under leases, and returns the files: a front end that
    /// keeps attributes asks for those again.
    #[must_use]
    pub fn leased_writes(&self) -> BTreeSet<InodeNo> {
        self.note_leased_writes();
        let mut files =
            self.state().leases().map(|leases| leases.take_touched_inodes()).unwrap_or_default();
        // What was told of their size while it moved by itself may still be on its way.
        let stopped = self.state().listed(Listed::Leased).into_iter();
        let stopped = stopped.filter(|it| it.data.lease().is_some_and(|it| it.stopped_moving()));
        files.extend(stopped.map(|inode| inode.ino));
        files
    }

    fn note_leased_writes(&self) {
        self.state().note_leased_writes();
    }

    /// Takes note of a flush of the device that failed in another process: nothing becomes durable
    /// any more (S-33).
    pub fn lease_flush_failed(&self, errno: i32) {
        let why = std::io::Error::from_raw_os_error(errno);
        let message = format!(
            "a flush of {} failed in a process with a lease: {why}",
            self.state().device_name()
        );
        self.state().stop_leases();
        self.state().fail(Error::new(ErrorKind::Io, message));
    }

    /// Takes all leases back for good, without waiting for what is under way.
    pub fn lease_stop(&self) {
        self.state().stop_leases();
    }

    /// Returns the published files that are not handed out at this moment.
    #[must_use]
    pub fn leases_withheld(&self) -> Vec<InodeNo> {
        let files = self.state().listed(Listed::Leased);
        let withheld = |inode: &Arc<crate::inode::Inode>| {
            inode.data.lease().is_some_and(|lease| !lease.is_handed_out())
        };
        files.into_iter().filter(withheld).map(|inode| inode.ino).collect()
    }

    /// Returns how leases stand; `None` where nothing is leased.
    #[must_use]
    pub fn lease_report(&self) -> Option<LeaseReport> {
        let leased = |inode: &Arc<crate::inode::Inode>| {
            let handed_out = inode.data.lease()?.is_handed_out();
            Some(LeasedInode { inode: inode.ino, handed_out })
        };
        let files = || self.state().listed(Listed::Leased).iter().filter_map(leased).collect();
        self.state().leases().map(|leases| leases.report(files()))
    }
}

impl File {
    /// Publishes the file to processes with leases, and returns what they need to find it. The
    /// caller has made sure that no cache of its own, and of its callers, keeps bytes of the file.
    ///
    /// # Errors
    /// Why the file stays on the mount.
    pub fn lease(&self) -> std::result::Result<Lease, Reason> {
        self.io().lease()
    }

    /// Gives a process with leases, by the number in its memory, the right to write parts of sectors
    /// of this file, which it has under a lease. No other process writes to the file under a lease
    /// while it has it; an aligned write through the mount takes it away again.
    ///
    /// # Errors
    /// Why it does not get it.
    pub fn lease_odd_writes(&self, client: u64) -> std::result::Result<(), Reason> {
        self.io().give_odd_writes(client)
    }

    /// Gives a process with leases, by the number in its memory, blocks behind the end of this file,
    /// which it has under a lease and fills by itself, from where the file ends; `len` bytes are to go
    /// to `offset`, once what lies before them is filled: up to a MiB. One process at a time has any;
    /// what others do with the end of the file takes them away again. Returns whether the size begins
    /// to move by itself: a size that a caller keeps is to be asked for anew.
    ///
    /// # Errors
    /// Why it does not get them.
    pub fn lease_tail(
        &self,
        client: u64,
        offset: u64,
        len: u64,
    ) -> std::result::Result<bool, Reason> {
        self.io().give_tail(client, offset, len)
    }

    /// Gives a process with leases, by the number in its memory, memory there for what it appends to
    /// this file, which rests on the mount and ends at `offset`, so that not each of these writes is a
    /// request; `len` bytes are to go there first. Where `offset` lies before the end the process writes
    /// over what is there, in order, and the file rests from now on; of an open whose writes do not wait
    /// that is refused. What others do with the end of the file takes what was appended into it and ends
    /// that. Returns whether the size begins to move by itself, as
    /// [`lease_tail`](Self::lease_tail) does.
    ///
    /// # Errors
    /// Why it does not get it.
    pub fn lease_appends(
        &self,
        client: u64,
        offset: u64,
        len: u64,
    ) -> std::result::Result<bool, Reason> {
        if !self.delays_writes() && offset < self.size() {
            return Err(Reason::Tail);
        }
        self.io().give_appends(client, offset, len)
    }

    /// Writes what is full of what was taken of a buffer, after [`lease_appends`](Self::lease_appends): the
    /// process need not wait for that. What cannot be written waits, for the next sync to tell.
    pub fn lease_appends_given(&self) {
        self.io().write_full_appends();
    }

    /// Returns whether the size moves without a request, or did until a moment ago: it is not to be
    /// kept by a caller.
    #[must_use]
    pub fn size_moves(&self) -> bool {
        self.io().state().lease().is_some_and(|lease| lease.moves_size())
    }

    /// Keeps the file on the mount until all its opens have ended. When this returns no process
    /// does I/O on it under a lease.
    pub fn suspend_lease(&self) {
        self.io().suspend_lease();
    }
}
