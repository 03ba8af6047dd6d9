//! Locks of ranges of an open file: by the server where it has them, and among the opens of this client
//! otherwise.
//!
//! With a lock comes what others wrote before it; with an unlock goes what was written under it, durable.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::client::{Client, unreadable};
use crate::file::File;
use crate::link::{Frame, Reply, Submission, promise};
use crate::ranges::{LOCK_END, WHOLE_FILE};
use crate::session::{LockOwner, Released, Session};
use crate::wire::locks::{self as wire, Holder, Stat};
use crate::wire::rpc::Calling;
use crate::wire::xdr::{Reader, Writer};
use crate::{Error, ErrorKind, Result};

/// How long it takes to ask again for a lock that is not free.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// All that one owner may have locked: bytes, and the file as a whole.
const ALL: [Range<u64>; 2] = [0..LOCK_END, WHOLE_FILE];

impl Client {
    /// Returns whether locks are the server's, which all its clients and programs see.
    #[must_use]
    pub fn locks_on_server(&self) -> bool {
        self.0.session.is_some()
    }

    fn call_locks(&self, doing: &str, procedure: u32, arguments: &Writer) -> Result<Reply> {
        let (program, version) = (wire::NLM, wire::NLM_VERSION);
        let call = Calling { program, version, procedure, user: Some(&self.1) };
        let frame = Frame::new(&call, &arguments.0, None);
        let (promise, answer) = promise();
        let finish = Box::new(move |end| promise.keep(end));
        self.0.link().submit(Submission { frame, finish, guard: None });
        answer.wait().map_err(|failed| failed.error(doing))
    }
}

/// Reads the status that a result has behind its cookie.
fn read_stat(from: &mut Reader<'_>, doing: &str) -> Result<Stat> {
    let skipped = from.opaque(wire::COOKIE_BYTES_MAX);
    skipped.and_then(|_| Stat::read(from)).map_err(|_| unreadable(doing))
}

/// Makes the error of a status; `doing` completes "cannot …".
fn refused(doing: &str, stat: Stat) -> Error {
    let (kind, why) = match stat {
        Stat::NoLocks => (ErrorKind::NoLocks, "the server has no room for more locks"),
        Stat::ReadOnly => (ErrorKind::ReadOnly, "the export is read-only"),
        Stat::Stale => (ErrorKind::Stale, "the file is gone from the server"),
        Stat::TooLarge => (ErrorKind::Invalid, "no file has bytes there"),
        Stat::Failed => (ErrorKind::Permission, "the server does not let this user"),
        _ => (ErrorKind::Protocol, "the server's answer makes no sense"),
    };
    Error::new(kind, format!("cannot {doing}: {why}"))
}

impl File {
    /// Locks a range, shared or exclusively, or with [`WHOLE_FILE`] the file as `flock` does. What the
    /// owner had locked of it takes the new kind. Where another owner is in the way, asks again
    /// until it is free if `waits`. Returns whether it is locked: `false` also once `gives_up` says
    /// so.
    ///
    /// # Errors
    /// `NoLocks`, `Permission`, and others of the server.
    pub fn lock(
        &self,
        owner: LockOwner,
        range: Range<u64>,
        is_exclusive: bool,
        (waits, gives_up): (bool, &dyn Fn() -> bool),
    ) -> Result<bool> {
        self.locked_by(owner);
        let inode = &self.transfer().inode;
        let Some(session) = self.session() else {
            return Ok(inode.records.lock(owner, range, is_exclusive, (waits, gives_up)));
        };
        let owner = session.known_owner(&inode.handle, owner);
        let mut pause = PAUSE_MIN;
        loop {
            inode.check_locks()?;
            let epoch = session.epoch();
            match self.ask_lock(&session, owner, &range, is_exclusive)? {
                Stat::Granted => {
                    let user = &self.transfer().client.1;
                    let file = (&inode.handle, &inode.guard);
                    if session.hold(epoch, file, (owner, user), range.clone(), is_exclusive) {
                        break;
                    }
                    continue;
                }
                Stat::Denied | Stat::Blocked | Stat::Deadlock if !waits => return Ok(false),
                Stat::Denied | Stat::Blocked | Stat::Deadlock | Stat::Grace => {}
                stat => return Err(refused("lock a file", stat)),
            }
            if gives_up() {
                return Ok(false);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
        if let Err(error) = self.look_again() {
            self.give_back(&session, owner, &range)?;
            return Err(error);
        }
        Ok(true)
    }

    fn ask_lock(
        &self,
        session: &Session,
        owner: LockOwner,
        range: &Range<u64>,
        is_exclusive: bool,
    ) -> Result<Stat> {
        let doing = "lock a file";
        let mut arguments = Writer::default();
        let asked = (owner, range, is_exclusive);
        session.write_lock(&mut arguments, self.handle(), asked, false);
        let reply = self.transfer().client.call_locks(doing, wire::LOCK, &arguments);
        let stat = reply.and_then(|reply| read_stat(&mut reply.body(), doing));
        if stat.is_err() {
            // It may have been granted all the same.
            let _given_back = self.tell_unlock(session, owner, range);
        }
        stat
    }

    /// Gives a range back, as far as the owner has it. What was written is durable then.
    ///
    /// # Errors
    /// Those of a sync: the range stays locked then. And the server's.
    pub fn unlock(&self, owner: LockOwner, range: &Range<u64>) -> Result<()> {
        let inode = &self.transfer().inode;
        let Some(session) = self.session() else {
            inode.records.unlock(owner, range);
            return Ok(());
        };
        if session.holds(&inode.handle, owner, range) && !inode.guard.is_lost() {
            // Written again after a start of the server, it would land on what others wrote since.
            self.sync()?;
        }
        self.give_back(&session, owner, range)
    }

    /// Gives back all that an owner has locked, whether what was written is durable or not.
    ///
    /// # Errors
    /// The server's.
    pub fn unlock_all(&self, owner: LockOwner) -> Result<()> {
        let inode = &self.transfer().inode;
        self.locks_no_more(owner);
        let Some(session) = self.session() else {
            ALL.iter().for_each(|range| inode.records.unlock(owner, range));
            return Ok(());
        };
        ALL.iter().try_for_each(|range| self.give_back(&session, owner, range))
    }

    fn give_back(&self, session: &Session, owner: LockOwner, range: &Range<u64>) -> Result<()> {
        let inode = &self.transfer().inode;
        let owner = session.known_owner(&inode.handle, owner);
        match session.release(&inode.handle, owner, range) {
            Released::Nothing => return Ok(()),
            Released::Held => {}
            Released::LastLost => {
                inode.discard(|| self.attributes());
                session.settle(&inode.handle, &inode.guard);
            }
        }
        self.tell_unlock(session, owner, range)
    }

    fn tell_unlock(&self, session: &Session, owner: LockOwner, range: &Range<u64>) -> Result<()> {
        let doing = "unlock a file";
        loop {
            let mut arguments = Writer::default();
            arguments.opaque(b"");
            session.write_target(&mut arguments, self.handle(), owner, range);
            let reply = self.transfer().client.call_locks(doing, wire::UNLOCK, &arguments)?;
            match read_stat(&mut reply.body(), doing)? {
                Stat::Granted | Stat::Stale => return Ok(()),
                Stat::Grace => std::thread::sleep(PAUSE_MAX),
                stat => return Err(refused(doing, stat)),
            }
        }
    }

    /// Returns the lock that keeps an owner from another one; `None` where none does.
    ///
    /// # Errors
    /// The server's.
    pub fn test_lock(
        &self,
        owner: LockOwner,
        range: &Range<u64>,
        is_exclusive: bool,
    ) -> Result<Option<Holder>> {
        let doing = "ask for the locks of a file";
        let inode = &self.transfer().inode;
        let Some(session) = self.session() else {
            return Ok(inode.records.find(owner, range, is_exclusive));
        };
        let owner = session.known_owner(&inode.handle, owner);
        let mut arguments = Writer::default();
        arguments.opaque(b"");
        arguments.bool(is_exclusive);
        session.write_target(&mut arguments, &inode.handle, owner, range);
        let reply = self.transfer().client.call_locks(doing, wire::TEST, &arguments)?;
        let mut from = reply.body();
        match read_stat(&mut from, doing)? {
            Stat::Granted => Ok(None),
            Stat::Denied => Holder::read(&mut from).map(Some).map_err(|_| unreadable(doing)),
            stat => Err(refused(doing, stat)),
        }
    }

    /// Forgets pages of before a lock: others may have changed them.
    fn look_again(&self) -> Result<()> {
        let inode = &self.transfer().inode;
        if inode.pages.lock().is_none() {
            return Ok(());
        }
        let _alone = inode.lock.wait(true);
        drop(inode.gate.wait(true));
        let Some(pages) = inode.pages.lock().clone() else { return Ok(()) };
        pages.flush()?;
        pages.forget(&self.attributes()?)
    }

    fn session(&self) -> Option<Arc<Session>> {
        self.transfer().client.0.session.clone()
    }
}
