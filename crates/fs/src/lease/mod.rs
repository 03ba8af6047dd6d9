//! Leases: processes that read and write the blocks of a file on the device by themselves.
//!
//! A file in `concurrent` mode may be *published*: an entry in memory that other processes map says
//! where its written blocks lie. The protocol over that memory is `bedplate-lease`'s; what may be
//! published, and when it must be taken back, is decided here.
//!
//! ```text
//!   File::lease() ─► published ◄──────────────────────── map, size and marks written anew (readmit)
//!                       │  ▲                                       ▲
//!     exclusive lock ───┘  └── changes that only add: not at once  │ the lock is released, and nothing
//!     (recall): odd, waits for all slots ──► revoked ──────────────┘ keeps the file on the mount
//!                                               │
//!                                               └─► suspended: another mode, held bytes, pages of the kernel
//! ```
//!
//! A client's I/O is I/O under the shared inode lock: it begins only while the entry is even, and
//! the exclusive lock waits for it. So what the exclusive lock protects needs no other rule, and
//! what happens under the shared one needs these:
//!
//! - I-LEA-1: a map holds written blocks of the file. Changes that only add leave an older map
//!   right, so they write it anew later; blocks that leave the file under the shared lock become
//!   free only after the exclusive lock was taken once (I-IO-7), and so after all slots.
//! - I-LEA-2: writing is allowed only in blocks that nothing else needs, as of the generation of
//!   checkpoints that the entry names; a change of the set takes it off all files with one store,
//!   before the freeze lets anything go on.
//! - I-LEA-3: bytes that a checksum in the log vouches for are written by no client: the entry
//!   names the last such record of what its map holds.
//! - I-LEA-4: while bytes of a file are held in memory the file is revoked; no copy of a sector
//!   outlives the lock under which it was made (I-HLD-1 asks for both).
//! - I-LEA-5: a file that was served otherwise in between is handed out again only when asked for
//!   anew, by a caller that has made sure that no other cache keeps bytes of it.
//! - I-LEA-7: while a client has the right to odd writes of a file, the daemon writes to the file's
//!   blocks only under the exclusive lock, and so beside no such write. An aligned write through
//!   the mount ends the right.
//!
//! - I-LEA-11: of a file whose pages processes read in the library cache the entry names nothing on the
//!   device; it changes, from one kind to the other too, only while it is taken back. What is in the
//!   cache is the cache's to publish (I-CACHE-10).
//!
//! Asynchronous requests, which no slot stands for, have a rule of their own: I-LEA-8 in `requests`;
//! so have files that rest on the mount, I-LEA-10 in `rest`, and what is appended to those, I-LEA-12 in
//! `appends`.

mod appends;
mod client;
mod file;
mod report;
mod requests;
mod rest;
mod tail;

pub use client::{LeaseClient, LeaseProcess};
pub(crate) use file::{Entry, LeaseSource, LeasedFile, MAP_EXTENTS_MAX, joined};
use report::Refusals;
pub use report::{LeaseCounts, LeaseReport, LeaseWait, LeasedBy, LeasedInode, RefusedInode};
pub use requests::LeaseRequests;
pub(crate) use tail::Tail;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bedplate_block::sync::{Mutex, rank};
use bedplate_block::{SharedMemory, Sharing};
use bedplate_lease::{
    ClientSlots, Control, Counters, EntryRef, Geometry, Holder, Publisher, Reason, State,
};
use bedplate_store::{LogWatch, PlantedBug, planted};

use crate::{Error, ErrorKind, InodeNo, Lsn, Result};

/// How many files can be published at once.
const FILES_MAX: usize = 4096;
/// How many extents all maps together have at most; the memory is taken where it is used.
const EXTENTS_MAX: usize = 1 << 20;
/// How many clients there can be.
const CLIENTS_MAX: usize = 4096;

/// How long a wait for a client spins, and how long it sleeps at most between two looks.
const SPIN: Duration = Duration::from_micros(50);
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// How often a wait completes I/O in flight of this process.
const HELP_EVERY: Duration = Duration::from_millis(2);
/// How often a wait asks whether the thread that it waits for has ended.
const ASK_EVERY: Duration = Duration::from_millis(10);
/// After how long a wait is told of.
const TELL_AFTER: Duration = Duration::from_millis(100);

/// What a mount knows of its leases.
#[derive(Debug)]
pub(crate) struct Leases {
    memory: SharedMemory,
    control: Control<SharedMemory>,
    /// Leaf: which entries are in use.
    table: Mutex<Publisher<SharedMemory>, { rank::LEASE_TABLE }>,
    /// Leaf.
    clients: Mutex<Clients, { rank::LEASE_LISTS }>,
    /// Leaf: requests that got no lease.
    refusals: Mutex<Refusals, { rank::LEASE_LISTS }>,
    /// After how many seconds of a wait the process is ended; 0: never.
    kill_after_s: AtomicU64,
    /// Leaf: files that clients wrote to, for a front end that keeps their attributes.
    touched: Mutex<BTreeSet<InodeNo>, { rank::LEASE_LISTS }>,
    /// Leaf: waits that take long.
    waits: Mutex<Vec<LeaseWait>, { rank::LEASE_LISTS }>,
    revocations: AtomicU64,
    long_waits: AtomicU64,
    killed: AtomicU64,
    /// Revocations that waited for asynchronous requests.
    request_waits: AtomicU64,
    /// How often a client got a tail.
    tails: AtomicU64,
    /// And a buffer for what it appends.
    buffers: AtomicU64,
}

/// The processes that have leases, and what those that had ended did.
#[derive(Debug, Default)]
struct Clients {
    all: Arc<Vec<Arc<LeaseClient>>>,
    /// The number of the last one.
    last: u64,
    /// Together with the list, so that the sum of both never goes back.
    ended: Counters,
}

impl Leases {
    /// Makes the memory; nothing is published.
    pub(crate) fn new(mount: u64, alignment_bytes: u64, device_bytes: u64) -> Result<Self> {
        let geometry = Geometry {
            mount,
            alignment_bytes,
            entries: FILES_MAX,
            extents: EXTENTS_MAX,
            device_bytes,
        };
        let failed = |why: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Io, format!("no memory can be shared for leases: {why}"))
        };
        let memory = SharedMemory::new("bedplate-leases", geometry.words(), Sharing::ReadOnly)
            .map_err(|error| failed(&error))?;
        let table = Publisher::create(memory.clone(), geometry).map_err(|error| failed(&error))?;
        Ok(Self {
            memory,
            control: table.control().clone(),
            table: Mutex::new(table),
            clients: Mutex::default(),
            refusals: Mutex::default(),
            kill_after_s: AtomicU64::new(0),
            touched: Mutex::default(),
            waits: Mutex::default(),
            revocations: AtomicU64::new(0),
            long_waits: AtomicU64::new(0),
            killed: AtomicU64::new(0),
            request_waits: AtomicU64::new(0),
            tails: AtomicU64::new(0),
            buffers: AtomicU64::new(0),
        })
    }

    pub(crate) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Hands out from now on what is published.
    pub(crate) fn serve(&self) {
        self.control.set_state(State::Serving);
    }

    /// Returns whether anything is handed out.
    pub(crate) fn is_serving(&self) -> bool {
        self.control.state() == State::Serving
    }

    /// Takes everything back at once, without waiting.
    pub(crate) fn stop(&self) {
        self.control.set_state(State::Stopped);
    }

    /// Waits until no client does I/O. Nothing is handed out.
    pub(crate) fn drain_all(&self) {
        let clients = self.clients();
        let mut wait = Wait::new(self, None);
        while let Some((client, holder)) = wait.ended.first_holder(&clients, |_| true) {
            wait.step(client, &holder, &mut || {});
        }
        self.drain_requests(&clients, None, &mut wait, &mut || {});
    }

    /// The set of checkpoints changed: no file is written before its map was made anew (I-LEA-2).
    pub(crate) fn sharing_changed(&self) {
        if planted(PlantedBug::LeaseOutlivesCheckpoint) {
            return;
        }
        // One at a time.
        let _table = self.table.lock();
        self.control.change_sharing();
    }

    /// Takes in a client.
    pub(crate) fn attach(
        &self,
        pid: u32,
        uid: u32,
        process: Box<dyn LeaseProcess>,
    ) -> Result<Arc<LeaseClient>> {
        let mut clients = self.clients.lock();
        if clients.all.len() >= CLIENTS_MAX {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("{CLIENTS_MAX} processes have leases: no more can"),
            ));
        }
        clients.last += 1;
        let client = Arc::new(LeaseClient::new(pid, uid, clients.last, FILES_MAX, process)?);
        // Before the client gets the memory: whatever it begins is waited for.
        Arc::make_mut(&mut clients.all).push(Arc::clone(&client));
        Ok(client)
    }

    /// Lets go of a client that has ended.
    pub(crate) fn detach(&self, client: &Arc<LeaseClient>) {
        client.set_gone();
        let mut clients = self.clients.lock();
        let before = clients.all.len();
        Arc::make_mut(&mut clients.all).retain(|other| !Arc::ptr_eq(other, client));
        if clients.all.len() < before {
            clients.ended.add(&client.counters());
        }
    }

    /// Returns whether a client of this number is there.
    pub(crate) fn has_client(&self, number: u64) -> bool {
        self.client(number).is_some()
    }

    /// Returns the client of a number.
    pub(crate) fn client(&self, number: u64) -> Option<Arc<LeaseClient>> {
        self.clients().iter().find(|client| client.number == number).cloned()
    }

    fn clients(&self) -> Arc<Vec<Arc<LeaseClient>>> {
        Arc::clone(&self.clients.lock().all)
    }

    /// Ends processes that are waited for so long; `None`: waits however long it takes.
    pub(crate) fn set_kill_after(&self, after: Option<Duration>) {
        self.kill_after_s.store(after.map_or(0, |after| after.as_secs().max(1)), Ordering::Relaxed);
    }

    fn kill_after(&self) -> Option<Duration> {
        match self.kill_after_s.load(Ordering::Relaxed) {
            0 => None,
            seconds => Some(Duration::from_secs(seconds)),
        }
    }

    /// Takes note of a request for a file that got no lease.
    pub(crate) fn refused(&self, ino: Option<InodeNo>, reason: Reason) {
        self.refusals.lock().note(ino, reason);
    }

    /// Waits until no slot holds a file that is revoked, and no request on it is in flight.
    fn drain(&self, ino: InodeNo, entry: EntryRef, help: &mut dyn FnMut()) {
        self.revocations.fetch_add(1, Ordering::Relaxed);
        if planted(PlantedBug::LeaseNotDrained) {
            return;
        }
        let clients = self.clients();
        let found = RefCell::new(None);
        let mut wait = Wait::new(self, Some(ino));
        let ended = Rc::clone(&wait.ended);
        let look = |entry: u32| {
            let (client, holder) = ended.first_holder(&clients, |it| it.entry == entry)?;
            found.replace(Some(client));
            Some(holder)
        };
        self.control.drain(entry, look, |holder| {
            if let Some(client) = *found.borrow() {
                wait.step(client, holder, help);
            }
        });
        self.drain_requests(&clients, Some(entry.index), &mut wait, help);
    }

    /// Returns whether a client wrote to a file since this was last asked.
    fn take_touched(&self, ino: InodeNo, entry: EntryRef) -> bool {
        let clients = self.clients();
        let mut touched = false;
        for client in clients.iter() {
            touched |= client.slots.take_touched(entry.index);
        }
        if touched {
            self.touched.lock().insert(ino);
        }
        touched
    }

    /// Returns the files that were written to since this was last asked, as far as that was
    /// noticed.
    pub(crate) fn take_touched_inodes(&self) -> BTreeSet<InodeNo> {
        std::mem::take(&mut *self.touched.lock())
    }
}

impl LogWatch for Leases {
    fn progressed(&self, durable: Lsn, sealed: Lsn) {
        self.control.set_durable(durable.0);
        self.control.set_sealed(sealed.0);
    }

    fn failed(&self) {
        self.stop();
    }
}

/// A wait for clients.
struct Wait<'a> {
    leases: &'a Leases,
    ino: Option<InodeNo>,
    began: Instant,
    helped: Instant,
    sleep: Duration,
    told: bool,
    /// The process that was last asked to end.
    killed: Option<u32>,
    ended: Rc<EndedThreads>,
    /// When it was last asked whether a thread has ended.
    asked: Instant,
}

/// Threads that had set a slot and ended without clearing it, as of one wait: what any thread
/// begins after the wait began, under whatever number, is refused.
///
/// A process that is killed ends thread by thread. One of its threads may be in a request to the
/// mount that needs the file alone, and so waits here: the process cannot end before this wait
/// does.
#[derive(Debug, Default)]
struct EndedThreads {
    /// Process and thread.
    all: RefCell<Vec<(u32, u32)>>,
}

impl EndedThreads {
    fn first_holder<'a>(
        &self,
        clients: &'a [Arc<LeaseClient>],
        is_meant: impl Fn(&Holder) -> bool,
    ) -> Option<(&'a LeaseClient, Holder)> {
        let all = self.all.borrow();
        clients.iter().find_map(|client| {
            let has_ended = |it: &Holder| all.contains(&(client.pid, it.thread));
            let holder = client.holder(|it| is_meant(it) && !has_ended(it))?;
            Some((&**client, holder))
        })
    }
}

impl<'a> Wait<'a> {
    fn new(leases: &'a Leases, ino: Option<InodeNo>) -> Self {
        let now = Instant::now();
        Self {
            leases,
            ino,
            began: now,
            helped: now,
            sleep: SPIN,
            told: false,
            killed: None,
            ended: Rc::default(),
            asked: now,
        }
    }

    /// Passes some time.
    fn step(&mut self, client: &LeaseClient, holder: &Holder, help: &mut dyn FnMut()) {
        let waited = self.began.elapsed();
        if waited < SPIN {
            std::hint::spin_loop();
            return;
        }
        client.look_whether_alive();
        if self.asked.elapsed() >= ASK_EVERY {
            if client.has_thread_ended(holder.thread) {
                self.ended.all.borrow_mut().push((client.pid, holder.thread));
            }
            self.asked = Instant::now();
        }
        if self.helped.elapsed() >= HELP_EVERY {
            help();
            self.helped = Instant::now();
        }
        if waited >= TELL_AFTER && !self.told {
            self.told = true;
            self.tell(client, holder);
        }
        if self.leases.kill_after().is_some_and(|after| waited >= after)
            && self.killed != Some(client.pid)
        {
            self.killed = Some(client.pid);
            self.kill(client, waited);
        }
        std::thread::sleep(self.sleep);
        self.sleep = (self.sleep * 2).min(SLEEP_MAX);
    }

    /// Ends a process (`lease-kill=`). The wait goes on: I/O ends with the process, and only that
    /// is believed (S-211).
    #[cold]
    fn kill(&self, client: &LeaseClient, waited: Duration) {
        let what = client::describe(client.pid);
        match client.kill() {
            Ok(()) => {
                self.leases.killed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    "process {} ({what}) held a file under its lease for {waited:.1?}: it was \
                     ended, as lease-kill= says",
                    client.pid
                );
            }
            Err(error) => tracing::error!(
                "process {} ({what}) holds a file under its lease for {waited:.1?}, and cannot be \
                 ended: {error}",
                client.pid
            ),
        }
    }

    fn tell(&self, client: &LeaseClient, holder: &Holder) {
        let wait = LeaseWait {
            pid: client.pid,
            process: client::describe(client.pid),
            inode: self.ino,
            writes: holder.writes,
        };
        tracing::warn!("{wait}");
        self.leases.long_waits.fetch_add(1, Ordering::Relaxed);
        self.leases.waits.lock().push(wait);
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.told {
            let mut waits = self.leases.waits.lock();
            if let Some(at) = waits.iter().position(|wait| wait.inode == self.ino) {
                waits.remove(at);
            }
            drop(waits);
            tracing::warn!(
                "the wait for a process with a lease ended after {:.1?}",
                self.began.elapsed()
            );
        }
    }
}

/// The daemon's view of the slots of a client.
type Slots = ClientSlots<SharedMemory>;
