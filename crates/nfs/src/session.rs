//! What ties the locks of a client to its connections.
//!
//! ```text
//!   a socket ── MON ─► state: the same ─► ready: calls are sent
//!                        └─ another: the server has none of our locks
//!                             └─ each is asked for again (reclaim) ─┬─ granted
//!                                                                   └─ refused: lost, the file's guard
//! ```
//! The server takes locks from a client only once all its connections have ended. So a client that says
//! first, on each new connection, which client it is, learns of it before anything is read or written
//! there under a lock that it has no longer. No clock takes part in that.
//!
//! - I-NLM-3: no read or write of a file is sent while a lock of the file is lost.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::handle::Handle;
use crate::ranges::Ranges;
use crate::wire::locks::{self as wire, Monitored, SECRET_BYTES, Stat, Target, place_of};
use crate::wire::record::{Incoming, LAST};
use crate::wire::rpc::{Calling, ReplyHead, User};
use crate::wire::xdr::{Garbage, Reader, Writer};

/// The longest reply to any of this.
const REPLY_BYTES_MAX: usize = 4096;
/// How often it is looked whether the client ends.
const LOOK: Duration = Duration::from_millis(50);

/// Whether locks of a file were lost.
#[derive(Debug, Default)]
pub struct Guard(AtomicBool);

impl Guard {
    pub fn is_lost(&self) -> bool {
        self.0.load(SeqCst)
    }
}

/// Whose lock it is, in one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockOwner {
    /// What tells owners apart.
    pub number: u64,
    /// The process, as others are told.
    pub process: u32,
}

/// What one owner has of a file.
#[derive(Debug)]
struct Held {
    ranges: Ranges,
    /// What the server did not give back.
    lost: Ranges,
    owner: LockOwner,
    user: Arc<User>,
}

#[derive(Debug)]
struct HeldFile {
    owners: Vec<Held>,
    guard: Arc<Guard>,
}

impl HeldFile {
    fn is_lost(&self) -> bool {
        self.owners.iter().any(|held| !held.lost.is_empty())
    }
}

/// What becomes of a range that is given back.
#[derive(Debug, PartialEq, Eq)]
pub enum Released {
    /// The owner had nothing of it.
    Nothing,
    /// The server has to be told.
    Held,
    /// It was lost, and nothing of the file is lost any more.
    LastLost,
}

/// A client, as the server knows it by its locks.
pub struct Session {
    name: Vec<u8>,
    secret: [u8; SECRET_BYTES],
    /// What the server told last. Held while locks are taken back.
    state: Mutex<Option<u32>>,
    /// How often locks had to be taken back.
    epoch: AtomicU64,
    held: Mutex<HashMap<Handle, HeldFile>>,
    xids: AtomicU32,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Session {
    pub fn new() -> io::Result<Self> {
        let mut secret = [0; SECRET_BYTES];
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        let number = getrandom::u64().map_err(io::Error::other)?;
        Ok(Self {
            name: format!("bedplate-{}-{number:016x}", std::process::id()).into_bytes(),
            secret,
            state: Mutex::default(),
            epoch: AtomicU64::new(0),
            held: Mutex::default(),
            xids: AtomicU32::new(number as u32),
        })
    }

    /// Returns what tells whether locks were taken back since.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(SeqCst)
    }

    /// Returns whether there is any lock, for the sake of which a connection is kept.
    pub fn has_locks(&self) -> bool {
        !self.held.lock().is_empty()
    }

    /// Notes a lock that was granted in an epoch; `false` where the server may have lost it since.
    pub fn hold(
        &self,
        epoch: u64,
        (handle, guard): (&Handle, &Arc<Guard>),
        (owner, user): (LockOwner, &Arc<User>),
        range: Range<u64>,
        is_exclusive: bool,
    ) -> bool {
        let mut held = self.held.lock();
        if self.epoch() != epoch {
            return false;
        }
        let file = held
            .entry(handle.clone())
            .or_insert_with(|| HeldFile { owners: Vec::new(), guard: Arc::clone(guard) });
        let known = file.owners.iter_mut().find(|held| held.owner.number == owner.number);
        match known {
            Some(known) => known.ranges.lock(range, is_exclusive),
            None => {
                let mut ranges = Ranges::default();
                ranges.lock(range, is_exclusive);
                let (lost, user) = (Ranges::default(), Arc::clone(user));
                file.owners.push(Held { ranges, lost, owner, user });
            }
        }
        true
    }

    /// Returns the owner as the server knows it: with the process that locked first.
    pub fn known_owner(&self, handle: &Handle, owner: LockOwner) -> LockOwner {
        let held = self.held.lock();
        let owners = held.get(handle).map_or(&[][..], |file| &file.owners[..]);
        let known = owners.iter().find(|held| held.owner.number == owner.number);
        known.map_or(owner, |held| held.owner)
    }

    /// Returns whether an owner has something of a range.
    pub fn holds(&self, handle: &Handle, owner: LockOwner, range: &Range<u64>) -> bool {
        let held = self.held.lock();
        let owners = held.get(handle).map_or(&[][..], |file| &file.owners[..]);
        owners.iter().any(|held| {
            held.owner.number == owner.number && held.ranges.excluding(range, true).is_some()
        })
    }

    /// Notes that an owner gives a range back.
    pub fn release(&self, handle: &Handle, owner: LockOwner, range: &Range<u64>) -> Released {
        let mut all = self.held.lock();
        let Some(file) = all.get_mut(handle) else { return Released::Nothing };
        let (mut was_held, mut was_lost) = (false, false);
        for held in file.owners.iter_mut().filter(|held| held.owner.number == owner.number) {
            was_held |= held.ranges.unlock(range);
            was_lost |= held.lost.unlock(range);
        }
        file.owners.retain(|held| !held.ranges.is_empty() || !held.lost.is_empty());
        let is_lost = file.is_lost();
        if file.owners.is_empty() {
            all.remove(handle);
        }
        match (was_held, was_lost && !is_lost) {
            (_, true) => Released::LastLost,
            (true, false) => Released::Held,
            (false, false) => Released::Nothing,
        }
    }

    /// Lets reads and writes of a file go on, where nothing of it is lost any more.
    pub fn settle(&self, handle: &Handle, guard: &Guard) {
        let all = self.held.lock();
        guard.0.store(all.get(handle).is_some_and(HeldFile::is_lost), SeqCst);
    }

    /// Makes a socket ready: the server knows whose it is, and has given back or refused each lock.
    pub fn greet(&self, socket: &TcpStream, place: u32, patience: Duration) -> Result<(), String> {
        let until = Instant::now() + patience;
        let mut state = loop {
            if let Some(state) = self.state.try_lock_for(LOOK) {
                break state;
            }
            if Instant::now() >= until || socket.peer_addr().is_err() {
                return Err("another connection takes locks back".to_owned());
            }
        };
        let mut talk = Talk { socket, xids: &self.xids, until };
        let told = talk.monitor(&Monitored { name: &self.name, place, secret: self.secret })?;
        if state.is_some_and(|state| state != told) {
            *state = None;
            // From here on, what was granted before is not noted any more.
            self.epoch.fetch_add(1, SeqCst);
            self.take_back(&mut talk)?;
        }
        *state = Some(told);
        Ok(())
    }

    /// Asks for each lock again.
    fn take_back(&self, talk: &mut Talk<'_>) -> Result<(), String> {
        let mut all = Vec::new();
        for (handle, file) in self.held.lock().iter() {
            for held in &file.owners {
                let ranges = held.ranges.clone();
                all.push((handle.clone(), held.owner, Arc::clone(&held.user), ranges));
            }
        }
        for (handle, owner, user, ranges) in all {
            for locked in ranges.iter() {
                let mut arguments = Writer::default();
                let asked = (owner, &locked.range, locked.is_exclusive);
                self.write_lock(&mut arguments, &handle, asked, true);
                match talk.lock(&user, &arguments)? {
                    Stat::Granted => {}
                    Stat::NoLocks => return Err("it has no room for locks to be taken back".into()),
                    stat => self.lose(&handle, owner, &locked.range, stat),
                }
            }
        }
        Ok(())
    }

    /// Writes the arguments of LOCK.
    pub fn write_lock(
        &self,
        out: &mut Writer,
        handle: &Handle,
        (owner, range, is_exclusive): (LockOwner, &Range<u64>, bool),
        is_reclaim: bool,
    ) {
        out.opaque(b"");
        out.bool(false);
        out.bool(is_exclusive);
        self.write_target(out, handle, owner, range);
        out.bool(is_reclaim);
        out.u32(0);
    }

    /// Writes which range of which file, and whose.
    pub fn write_target(
        &self,
        out: &mut Writer,
        handle: &Handle,
        owner: LockOwner,
        range: &Range<u64>,
    ) {
        let (offset, len) = place_of(range);
        let target = Target {
            caller: &self.name,
            handle: handle.bytes(),
            owner: &owner.number.to_be_bytes(),
            process: owner.process,
            offset,
            len,
        };
        target.write(out);
    }

    fn lose(&self, handle: &Handle, owner: LockOwner, range: &Range<u64>, stat: Stat) {
        let mut all = self.held.lock();
        let Some(file) = all.get_mut(handle) else { return };
        for held in file.owners.iter_mut().filter(|held| held.owner.number == owner.number) {
            // It may have been given back meanwhile.
            if held.ranges.unlock(range) {
                held.lost.lock(range.clone(), true);
                file.guard.0.store(true, SeqCst);
                tracing::error!(
                    "a lock was lost, and the server does not give it back ({stat:?}): reads and \
                     writes of the file fail until the program unlocks it"
                );
            }
        }
        assert!(
            file.guard.is_lost() || !file.is_lost(),
            "I-NLM-3: the guard of a file with a lost lock says so"
        );
    }
}

/// Calls over a socket that nothing else uses yet.
struct Talk<'a> {
    socket: &'a TcpStream,
    xids: &'a AtomicU32,
    until: Instant,
}

impl Talk<'_> {
    fn monitor(&mut self, monitored: &Monitored<'_>) -> Result<u32, String> {
        let mut arguments = Writer::default();
        monitored.write(&mut arguments);
        let (program, version, procedure) = (wire::NSM, wire::NSM_VERSION, wire::MON);
        let call = Calling { program, version, procedure, user: None };
        let (failed, state) =
            self.call(&call, &arguments, |from| Ok((from.u32()?, from.u32()?)))?;
        if failed == 0 { Ok(state) } else { Err("it does not serve locks at the moment".into()) }
    }

    fn lock(&mut self, user: &User, arguments: &Writer) -> Result<Stat, String> {
        let (program, version, procedure) = (wire::NLM, wire::NLM_VERSION, wire::LOCK);
        let call = Calling { program, version, procedure, user: Some(user) };
        self.call(&call, arguments, |from| {
            from.opaque(wire::COOKIE_BYTES_MAX)?;
            Stat::read(from)
        })
    }

    fn call<T>(
        &mut self,
        call: &Calling<'_>,
        arguments: &Writer,
        read: impl FnOnce(&mut Reader<'_>) -> Result<T, Garbage>,
    ) -> Result<T, String> {
        let xid = self.xids.fetch_add(1, SeqCst);
        let mut out = Writer::default();
        out.u32(0);
        call.write(&mut out, xid);
        out.0.extend_from_slice(&arguments.0);
        let mark = LAST | (out.0.len() - 4) as u32;
        out.0[..4].copy_from_slice(&mark.to_be_bytes());
        let mut socket = self.socket;
        socket.write_all(&out.0).map_err(|error| format!("the connection broke ({error})"))?;
        let reply = self.receive()?;
        let mut from = Reader::new(&reply);
        let unreadable = |_| "it answered what cannot be read".to_owned();
        let head = ReplyHead::read(&mut from).map_err(unreadable)?;
        if head.xid != xid || head.outcome.is_err() {
            return Err(format!("it refuses what locks need ({:?})", head.outcome));
        }
        read(&mut from).map_err(unreadable)
    }

    fn receive(&mut self) -> Result<Vec<u8>, String> {
        let mut incoming = Incoming::new(REPLY_BYTES_MAX);
        let mut bytes = [0; REPLY_BYTES_MAX];
        loop {
            let mut socket = self.socket;
            let count = match socket.read(&mut bytes) {
                Ok(0) => return Err("it ended the connection".to_owned()),
                Ok(count) => count,
                Err(error) if is_silence(&error) && Instant::now() < self.until => continue,
                Err(error) => return Err(format!("it does not say whose locks it has ({error})")),
            };
            let too_long = |Garbage| "it sent a message that is too long".to_owned();
            let (taken, message) = incoming.take(&bytes[..count]).map_err(too_long)?;
            match message {
                Some(message) if taken == count => return Ok(message),
                Some(_) => return Err("it sent what was not asked for".to_owned()),
                None => {}
            }
        }
    }
}

fn is_silence(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}
