//! Locks of byte ranges that clients hold, in the one lock table that there is: the kernel's.
//!
//! ```text
//!   owner of a client, file ── Holder: an open file of its own ── F_OFD_SETLK, flock ── the kernel
//!   programs on the server ──────────────────────────────────── fcntl, flock ───────────┘
//! ```
//! So locks of clients exclude those of programs on the mount and the other way round, and a server that
//! dies leaves none. What is kept here beside the kernel says whose locks they are.
//!
//! ```text
//!   join ── connections ── leave: none is left ── `courtesy` ── out of the note ── its locks are free
//!     ▲                          │
//!     └── it comes back ─────────┘                    start with clients in the note ── `grace`
//! ```
//! - I-NLM-1: of the locks that two owners have of one file none excludes the other.
//! - I-NLM-2: a client holds locks only while the note names it.

mod note;

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use bedplate_block::{FileHandle, find_record, try_lock_record, unlock_record};
use bedplate_nfs::wire::locks::{self as wire, Stat};
use bedplate_nfs::{Ranges, WHOLE_FILE};
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

pub use note::SessionId;
use note::{CLIENTS_MAX, Note};

/// Ranges that one client may have, and all of them.
const CLIENT_RANGES_MAX: usize = 4096;
const RANGES_MAX: usize = 65_536;
/// Owners with locks of files: an open file each.
const HOLDERS_MAX: usize = 4096;

/// How long clients have.
#[derive(Debug, Clone, Copy)]
pub struct LockTimes {
    /// To take their locks back after a start, while no other lock is given.
    pub grace: Duration,
    /// To come back once their last connection has ended, before their locks are free.
    pub courtesy: Duration,
}

impl Default for LockTimes {
    fn default() -> Self {
        Self { grace: Duration::from_secs(30), courtesy: Duration::from_secs(10) }
    }
}

/// Whose lock it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub session: SessionId,
    /// What tells the client's owners apart.
    pub name: Vec<u8>,
    pub process: u32,
}

/// A lock that is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    pub owner: &'a Owner,
    pub file: &'a FileHandle,
    pub range: &'a Range<u64>,
    pub is_exclusive: bool,
}

/// The locks of the clients of one export.
#[derive(Debug)]
pub struct Locks {
    table: Mutex<Table>,
    courtesy: Duration,
}

#[derive(Debug)]
struct Table {
    sessions: HashMap<SessionId, Session>,
    files: HashMap<FileHandle, Vec<Holder>>,
    holders: usize,
    ranges: usize,
    grace: Option<Grace>,
    note: Note,
}

/// A client, as long as it is here or has locks.
#[derive(Debug)]
struct Session {
    /// Another one each time that the client begins without locks.
    state: u32,
    connections: usize,
    /// Since when there is no connection.
    left: Option<Instant>,
    ranges: usize,
    is_noted: bool,
}

/// What one owner has of one file.
#[derive(Debug)]
struct Holder {
    owner: Owner,
    /// Its locks are this open's.
    file: File,
    ranges: Ranges,
}

/// The time after a start.
#[derive(Debug)]
struct Grace {
    until: Instant,
    /// Which clients may take locks back.
    allowed: BTreeSet<SessionId>,
}

impl Locks {
    /// Begins with no locks. Where clients may have had some, they have time to take them back.
    pub fn open(dir: OwnedFd, times: LockTimes) -> io::Result<Self> {
        let note = Note::read(dir)?;
        let allowed = note.clients().clone();
        let grace = (!allowed.is_empty()).then(|| {
            tracing::info!(
                clients = allowed.len(),
                "clients have {} s to take their locks back; no other lock is given meanwhile",
                times.grace.as_secs()
            );
            Grace { until: Instant::now() + times.grace, allowed }
        });
        let table = Table {
            sessions: HashMap::new(),
            files: HashMap::new(),
            holders: 0,
            ranges: 0,
            grace,
            note,
        };
        Ok(Self { table: Mutex::new(table), courtesy: times.courtesy })
    }

    /// Notes a connection of a client. Returns the client's state: as long as it is the same, the
    /// client has all locks that it had.
    pub fn join(&self, client: SessionId) -> io::Result<u32> {
        let new_state = getrandom::u32().map_err(io::Error::other)? | 1;
        let mut table = self.table.lock();
        let session = table.sessions.entry(client).or_insert(Session {
            state: new_state,
            connections: 0,
            left: None,
            ranges: 0,
            is_noted: false,
        });
        session.connections += 1;
        session.left = None;
        Ok(session.state)
    }

    /// Notes the end of a connection: none of its requests is under way any more.
    pub fn leave(&self, client: SessionId) {
        let mut table = self.table.lock();
        let Some(session) = table.sessions.get_mut(&client) else { return };
        session.connections -= 1;
        if session.connections > 0 {
            return;
        }
        session.left = Some(Instant::now());
        if !session.is_noted {
            table.sessions.remove(&client);
        }
    }

    /// Gives a lock; `open` opens the file for an owner that has none of it.
    pub fn lock(
        &self,
        asked: Asked<'_>,
        is_reclaim: bool,
        open: impl FnOnce() -> io::Result<File>,
    ) -> Stat {
        let mut table = self.table.lock();
        table.end_grace();
        if let Some(stat) = table.refusal(asked, is_reclaim) {
            return stat;
        }
        let had_holder = table.holder(asked).is_some();
        let stat = match table.take(asked, open) {
            Ok(true) => Stat::Granted,
            Ok(false) => Stat::Denied,
            Err(error) => stat_of(&error),
        };
        if !had_holder && stat != Stat::Granted {
            table.drop_idle(asked.file);
        }
        stat
    }

    /// Takes the lock of a range back, as far as the owner has it.
    pub fn unlock(&self, owner: &Owner, file: &FileHandle, range: &Range<u64>) -> Stat {
        let mut table = self.table.lock();
        let asked = Asked { owner, file, range, is_exclusive: false };
        let Some(holder) = table.holder(asked) else { return Stat::Granted };
        let before = holder.ranges.len();
        if let Err(error) = free_range(&holder.file, range) {
            return stat_of(&error);
        }
        holder.ranges.unlock(range);
        let after = holder.ranges.len();
        table.count(owner.session, before, after);
        table.drop_idle(file);
        Stat::Granted
    }

    /// Returns the lock that keeps an owner from another one. `open` opens the file to ask the
    /// system with.
    pub fn find(
        &self,
        asked: Asked<'_>,
        open: impl FnOnce() -> io::Result<File>,
    ) -> Result<Option<wire::Holder>, Stat> {
        let mut table = self.table.lock();
        let holders = table.files.get(asked.file).map_or(&[][..], Vec::as_slice);
        let others = holders.iter().filter(|holder| holder.owner != *asked.owner);
        let excluding = others.filter_map(|holder| {
            let locked = holder.ranges.excluding(asked.range, asked.is_exclusive)?;
            Some(wire::Holder {
                is_exclusive: locked.is_exclusive,
                process: holder.owner.process,
                owner: holder.owner.name.clone(),
                range: locked.range.clone(),
            })
        });
        if let Some(found) = excluding.min_by_key(|holder| holder.range.start) {
            return Ok(Some(found));
        }
        if *asked.range == WHOLE_FILE {
            // Of `flock` the system tells none.
            return Ok(None);
        }
        let opened;
        let file = match table.holder(asked) {
            Some(holder) => &holder.file,
            None => {
                opened = open().map_err(|error| stat_of(&error))?;
                &opened
            }
        };
        let found = find_record(file, asked.range.clone(), asked.is_exclusive);
        Ok(found.map_err(|error| stat_of(&error))?.map(|held| wire::Holder {
            is_exclusive: held.exclusive,
            process: held.process.unwrap_or(0),
            owner: Vec::new(),
            range: held.bytes,
        }))
    }

    /// Takes all locks of a client back.
    pub fn free_all(&self, client: SessionId) {
        self.table.lock().free_all(client);
    }

    /// Ends what has no more time.
    pub fn keep_house(&self) {
        let mut table = self.table.lock();
        table.end_grace();
        let is_over =
            |session: &Session| session.left.is_some_and(|left| left.elapsed() >= self.courtesy);
        let over = table.sessions.iter().filter(|(_, session)| is_over(session));
        let over: Vec<SessionId> = over.map(|(client, _)| *client).collect();
        over.into_iter().for_each(|client| table.end(client));
    }
}

impl Table {
    /// Says why a lock is not given before the system is asked; a lock that is taken back and is
    /// there is granted.
    fn refusal(&mut self, asked: Asked<'_>, is_reclaim: bool) -> Option<Stat> {
        let client = asked.owner.session;
        let is_held = self
            .holder(asked)
            .is_some_and(|holder| holder.ranges.covers(asked.range, asked.is_exclusive));
        let Some(session) = self.sessions.get(&client) else { return Some(Stat::NoLocks) };
        if is_reclaim && is_held {
            return Some(Stat::Granted);
        }
        match &self.grace {
            Some(grace) if !is_reclaim || !grace.allowed.contains(&client) => {
                return Some(Stat::Grace);
            }
            None if is_reclaim => return Some(Stat::Grace),
            _ => {}
        }
        // One more lock is two more ranges at most.
        let is_full = session.ranges + 2 > CLIENT_RANGES_MAX || self.ranges + 2 > RANGES_MAX;
        is_full.then_some(Stat::NoLocks)
    }

    /// Takes a lock. Returns whether nothing excludes it.
    fn take(
        &mut self,
        asked: Asked<'_>,
        open: impl FnOnce() -> io::Result<File>,
    ) -> io::Result<bool> {
        self.name(asked.owner.session)?;
        if self.holder(asked).is_none() {
            if self.holders == HOLDERS_MAX {
                return Err(Errno::NOLCK.into());
            }
            let holder =
                Holder { owner: asked.owner.clone(), file: open()?, ranges: Ranges::default() };
            self.files.entry(asked.file.clone()).or_default().push(holder);
            self.holders += 1;
        }
        let holder = self.holder(asked).expect("it is there or was just made");
        let before = holder.ranges.len();
        let is_taken = take_range(holder, asked)?;
        let after = holder.ranges.len();
        self.count(asked.owner.session, before, after);
        if is_taken {
            let mut others = self.files[asked.file].iter();
            assert!(
                others.all(|other| other.owner == *asked.owner
                    || other.ranges.excluding(asked.range, asked.is_exclusive).is_none()),
                "I-NLM-1: no other owner's lock excludes it"
            );
            let session = &self.sessions[&asked.owner.session];
            assert!(session.is_noted, "I-NLM-2: the note names the client");
        }
        Ok(is_taken)
    }

    /// Has the note name a client before it gets a lock.
    fn name(&mut self, client: SessionId) -> io::Result<()> {
        let session = self.sessions.get(&client).ok_or(Errno::NOLCK)?;
        if session.is_noted {
            return Ok(());
        }
        let mut named = self.named();
        named.insert(client);
        if named.len() > CLIENTS_MAX {
            return Err(Errno::NOLCK.into());
        }
        self.note.write(named)?;
        self.sessions.get_mut(&client).expect("it was just there").is_noted = true;
        Ok(())
    }

    /// Returns the clients that the note is to name.
    fn named(&self) -> BTreeSet<SessionId> {
        let noted = self.sessions.iter().filter(|(_, session)| session.is_noted);
        let noted = noted.map(|(client, _)| *client);
        let allowed = self.grace.iter().flat_map(|grace| grace.allowed.iter().copied());
        noted.chain(allowed).collect()
    }

    fn holder(&mut self, asked: Asked<'_>) -> Option<&mut Holder> {
        let holders = self.files.get_mut(asked.file)?;
        holders.iter_mut().find(|holder| holder.owner == *asked.owner)
    }

    fn count(&mut self, client: SessionId, before: usize, after: usize) {
        self.ranges = self.ranges - before + after;
        if let Some(session) = self.sessions.get_mut(&client) {
            session.ranges = session.ranges - before + after;
        }
    }

    /// Closes what an owner without locks of a file has open.
    fn drop_idle(&mut self, file: &FileHandle) {
        let Some(holders) = self.files.get_mut(file) else { return };
        let before = holders.len();
        holders.retain(|holder| !holder.ranges.is_empty());
        self.holders -= before - holders.len();
        if holders.is_empty() {
            self.files.remove(file);
        }
    }

    fn free_all(&mut self, client: SessionId) {
        let mut freed = 0;
        for holders in self.files.values_mut() {
            holders.retain(|holder| {
                let is_own = holder.owner.session == client;
                freed += if is_own { holder.ranges.len() } else { 0 };
                self.holders -= usize::from(is_own);
                !is_own
            });
        }
        self.files.retain(|_, holders| !holders.is_empty());
        self.count(client, freed, 0);
    }

    /// Ends the time after a start, once the note no longer names what did not come back.
    fn end_grace(&mut self) {
        let Some(grace) = self.grace.take_if(|grace| Instant::now() >= grace.until) else {
            return;
        };
        if let Err(error) = self.note.write(self.named()) {
            tracing::warn!("the time for clients to take locks back goes on: {error}");
            self.grace = Some(grace);
        }
    }

    /// Ends a client that did not come back: first it is out of the note.
    fn end(&mut self, client: SessionId) {
        let mut named = self.named();
        named.remove(&client);
        if let Err(error) = self.note.write(named) {
            tracing::warn!("the locks of a client that is gone stay: {error}");
            return;
        }
        let had = self.sessions.get(&client).is_some_and(|session| session.ranges > 0);
        self.free_all(client);
        self.sessions.remove(&client);
        if let Some(grace) = &mut self.grace {
            grace.allowed.remove(&client);
        }
        if had {
            tracing::warn!("a client that did not come back has lost its locks");
        }
    }
}

impl Drop for Table {
    /// An end in order leaves clients in the note that have locks, and no others.
    fn drop(&mut self) {
        self.sessions.retain(|_, session| session.ranges > 0);
        if let Err(error) = self.note.write(self.named()) {
            tracing::debug!("the note of locks stays as it is: {error}");
        }
    }
}

/// Has the system take a range for a holder. Returns whether nothing excludes it.
fn take_range(holder: &mut Holder, asked: Asked<'_>) -> io::Result<bool> {
    let (range, is_exclusive) = (asked.range, asked.is_exclusive);
    let is_taken = if *range == WHOLE_FILE {
        take_whole(&holder.file, is_exclusive)?
    } else {
        try_lock_record(&holder.file, range.clone(), is_exclusive)?
    };
    if is_taken {
        holder.ranges.lock(range.clone(), is_exclusive);
    } else if *range == WHOLE_FILE && holder.ranges.covers(range, !is_exclusive) {
        // The system gives the old kind up before it looks at the new one.
        if !take_whole(&holder.file, !is_exclusive)? {
            holder.ranges.unlock(range);
        }
    }
    Ok(is_taken)
}

fn take_whole(file: &File, is_exclusive: bool) -> io::Result<bool> {
    let operation = match is_exclusive {
        true => FlockOperation::NonBlockingLockExclusive,
        false => FlockOperation::NonBlockingLockShared,
    };
    match flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn free_range(file: &File, range: &Range<u64>) -> io::Result<()> {
    if *range == WHOLE_FILE {
        return Ok(flock(file, FlockOperation::Unlock)?);
    }
    unlock_record(file, range.clone())
}

/// Makes the protocol's status of a failure.
fn stat_of(error: &io::Error) -> Stat {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOLCK | Errno::MFILE | Errno::NFILE | Errno::NOMEM) => Stat::NoLocks,
        Some(Errno::STALE | Errno::NOENT) => Stat::Stale,
        Some(Errno::ROFS | Errno::BADF) => Stat::ReadOnly,
        Some(Errno::INVAL | Errno::OVERFLOW) => Stat::TooLarge,
        _ => Stat::Failed,
    }
}
