//! What all opens of a file in one client share: the modes that they ask for, the locks that these
//! need, and writes that the server may still lose.
//!
//! ```text
//!   a write ── mode direct: `lock`, exclusive ── `gate`, shared ── WRITE ── answer ─► kept
//!   a sync  ── COMMIT ── the same verifier: kept no longer
//!                     └─ another: `gate`, exclusive ── what is kept is written again, stable
//! ```
//! - I-NFC-1: what an answered write brought is kept until it is durable: a commit that began after the
//!   answer tells the verifier that the write told, or a stable write or the end of the file lies over
//!   it.
//! - I-NFC-2: no write is in flight while what is kept is written again, so nothing older lands over
//!   what is newer.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bedplate_cache::MapChange;
use parking_lot::{Condvar, Mutex};

use crate::handle::Handle;
use crate::link::{Bytes, Failed};
use crate::records::Records;
use crate::session::Guard;
use crate::wire::attr::Attr;
use crate::wire::rpc::User;
use crate::{Error, Result};

/// How an open file moves its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Through pages in the memory of this client, read ahead and written behind; close-to-open among
    /// clients.
    Cached,
    /// Past every cache of this client; one writer at a time in a file, and no reader meanwhile.
    Direct,
    /// Past every cache of this client; reads and writes run side by side, and what orders them is
    /// the program's.
    Concurrent,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Cached, Self::Direct, Self::Concurrent];

    fn name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Direct => "direct",
            Self::Concurrent => "concurrent",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| {
            Error::usage(format!(
                "'{text}' is no mode of a file over NFS: cached, direct or concurrent"
            ))
        })
    }
}

/// A lock of many readers or one writer that belongs to no thread. One that waits to be alone goes
/// before readers that come after it.
#[derive(Debug, Default)]
pub struct InodeLock {
    state: Mutex<LockState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LockState {
    shared: usize,
    exclusive: bool,
    waiting: usize,
}

/// The hold of a lock, until it is dropped.
#[derive(Debug)]
pub struct Hold {
    lock: Arc<InodeLock>,
    is_exclusive: bool,
}

impl InodeLock {
    /// Takes the lock; `None` where it is not free and is not to be waited for.
    pub fn take(self: &Arc<Self>, is_exclusive: bool, waits: bool) -> Option<Hold> {
        let mut state = self.state.lock();
        state.waiting += usize::from(is_exclusive);
        while !state.is_free(is_exclusive) {
            if !waits {
                state.waiting -= usize::from(is_exclusive);
                return None;
            }
            self.changed.wait(&mut state);
        }
        state.waiting -= usize::from(is_exclusive);
        if is_exclusive {
            state.exclusive = true;
        } else {
            state.shared += 1;
        }
        Some(Hold { lock: Arc::clone(self), is_exclusive })
    }

    /// Waits for the lock.
    pub fn wait(self: &Arc<Self>, is_exclusive: bool) -> Hold {
        self.take(is_exclusive, true).expect("it was waited for")
    }
}

impl Hold {
    pub fn is_exclusive(&self) -> bool {
        self.is_exclusive
    }
}

impl LockState {
    fn is_free(&self, is_exclusive: bool) -> bool {
        if is_exclusive {
            !self.exclusive && self.shared == 0
        } else {
            !self.exclusive && self.waiting == 0
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.lock.state.lock();
        if self.is_exclusive {
            state.exclusive = false;
        } else {
            state.shared -= 1;
        }
        drop(state);
        self.lock.changed.notify_all();
    }
}

/// A part of an answered write.
#[derive(Debug, Clone)]
pub struct Piece {
    pub bytes: Bytes,
    pub part: Range<usize>,
    verifier: u64,
    order: u64,
}

/// Answered writes that may be lost, by their place; none of them overlap.
#[derive(Debug, Default)]
pub struct Kept {
    pieces: BTreeMap<u64, Piece>,
    bytes: u64,
    order: u64,
}

impl Kept {
    /// Keeps what a write brought, over what was there.
    pub fn keep(&mut self, offset: u64, bytes: Bytes, part: Range<usize>, verifier: u64) {
        self.forget(offset, part.len() as u64);
        let end = offset + part.len() as u64;
        let before = self.pieces.range(..end).next_back();
        assert!(
            before.is_none_or(|(at, piece)| at + piece.part.len() as u64 <= offset),
            "I-NFC-1: of each byte the newest is kept"
        );
        self.order += 1;
        self.bytes += part.len() as u64;
        self.pieces.insert(offset, Piece { bytes, part, verifier, order: self.order });
    }

    /// Forgets a range: it is durable otherwise, or the file has it no longer.
    pub fn forget(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        if len == 0 {
            return;
        }
        let before = self.pieces.range(..offset).next_back().map(|(at, _)| *at);
        let over: Vec<u64> =
            before.into_iter().chain(self.pieces.range(offset..end).map(|(at, _)| *at)).collect();
        for at in over {
            let piece = self.pieces.remove(&at).expect("it was just found");
            self.bytes -= piece.part.len() as u64;
            let piece_end = at + piece.part.len() as u64;
            for (from, to) in [(at, piece_end.min(offset)), (at.max(end), piece_end)] {
                if from < to {
                    let part = piece.part.start + (from - at) as usize;
                    let part = part..part + (to - from) as usize;
                    self.bytes += part.len() as u64;
                    self.pieces.insert(from, Piece { part, ..piece.clone() });
                }
            }
        }
    }

    /// Returns what tells the writes of before from those that come.
    pub fn mark(&self) -> u64 {
        self.order
    }

    /// Forgets what a commit that began at a mark made durable. Returns whether nothing of before it
    /// is left: what is may be lost.
    pub fn settle(&mut self, verifier: u64, mark: u64) -> bool {
        let mut all = true;
        self.pieces.retain(|_, piece| {
            let is_durable = piece.verifier == verifier && piece.order <= mark;
            all &= is_durable || piece.order > mark;
            self.bytes -= if is_durable { piece.part.len() as u64 } else { 0 };
            !is_durable
        });
        all
    }

    /// Returns what was written under another verifier, with its place.
    pub fn lost(&self, verifier: u64) -> Vec<(u64, Piece)> {
        let lost = self.pieces.iter().filter(|(_, piece)| piece.verifier != verifier);
        lost.map(|(at, piece)| (*at, piece.clone())).collect()
    }

    /// Returns what lies in a range, with its place.
    pub fn over(&self, range: Range<u64>) -> Vec<(u64, Piece)> {
        let before = self.pieces.range(..range.start).next_back();
        let reaches = |(at, piece): &(&u64, &Piece)| **at + piece.part.len() as u64 > range.start;
        let inside = self.pieces.range(range.clone());
        let all = before.filter(reaches).into_iter().chain(inside);
        all.map(|(at, piece)| (*at, piece.clone())).collect()
    }

    /// Returns up to where the file reaches at least; 0 where nothing is kept.
    pub fn end(&self) -> u64 {
        self.pieces.last_key_value().map_or(0, |(at, piece)| at + piece.part.len() as u64)
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
}

/// Pages of a file in the memory of the client.
pub trait CachedPages: Send + Sync + fmt::Debug {
    /// Forgets all where others changed the file since the last look. The caller is alone, and
    /// nothing is dirty.
    fn compare(&self, attr: &Attr) -> Result<()>;
    /// Forgets all. The caller is alone, and nothing is dirty.
    fn forget(&self, attr: &Attr) -> Result<()>;
    /// Returns the size with what is dirty.
    fn size(&self) -> u64;
    /// Reads as far as the file goes. The caller has the lock.
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize>;
    /// Writes all of it. The caller is alone.
    fn write(&self, buf: &[u8], offset: u64) -> Result<()>;
    /// Writes what is dirty to the server.
    fn flush(&self) -> Result<()>;
    /// Announces another end of the file; nothing enters while the answer is held. The caller is
    /// alone.
    fn begin_cut(&self, size: u64) -> MapChange;
    /// Says that the server has moved the end.
    fn end_cut(&self, size: u64);
}

/// A file that is open.
#[derive(Debug)]
pub struct Inode {
    pub handle: Handle,
    /// Of the modes `cached` and `direct`.
    pub lock: Arc<InodeLock>,
    /// Shared by writes that are in flight.
    pub gate: Arc<InodeLock>,
    pub kept: Mutex<Kept>,
    /// Locks where the server has none.
    pub records: Records,
    /// Whether locks of the server's were lost.
    pub guard: Arc<Guard>,
    /// There where the mode is `cached`; changed by what has `lock` alone.
    pub pages: Mutex<Option<Arc<dyn CachedPages>>>,
    /// What a close in that mode could not write; told by the next sync of another open.
    pub failure: Mutex<Option<Error>>,
    /// How many opens ask for each mode.
    opens: Mutex<[usize; Mode::ALL.len()]>,
    /// Numbers of opens.
    owners: AtomicU64,
    /// As which user is written what no open writes itself: the last that opened it to write.
    writer: Mutex<Arc<User>>,
}

/// The right to an access, held as long as any call of it is in flight.
#[derive(Debug, Clone)]
pub struct Turn {
    _order: Option<Arc<Hold>>,
    _gate: Option<Arc<Hold>>,
    /// What it goes through instead of the server.
    pub pages: Option<Arc<dyn CachedPages>>,
}

impl Inode {
    pub fn new(handle: Handle, user: &Arc<User>) -> Self {
        Self {
            handle,
            lock: Arc::default(),
            gate: Arc::default(),
            kept: Mutex::default(),
            records: Records::default(),
            guard: Arc::default(),
            pages: Mutex::default(),
            failure: Mutex::default(),
            opens: Mutex::default(),
            owners: AtomicU64::new(0),
            writer: Mutex::new(Arc::clone(user)),
        }
    }

    /// Refuses what stands under locks that were lost.
    pub fn check_locks(&self) -> Result<()> {
        if self.guard.is_lost() { Err(Failed::LockLost.error("use the file")) } else { Ok(()) }
    }

    /// Forgets what was written under locks that were lost, and what was read: others had the file
    /// meanwhile. The next sync tells it.
    pub fn discard(&self, attributes: impl FnOnce() -> Result<Attr>) {
        let _alone = self.lock.wait(true);
        let _gate = self.gate.wait(true);
        let pages = self.pages.lock().clone();
        let is_clean = pages.is_none() && self.kept.lock().is_empty();
        self.kept.lock().forget(0, u64::MAX);
        let forgotten = pages.map_or(Ok(()), |pages| {
            drop(pages.begin_cut(0));
            pages.forget(&attributes()?)
        });
        if !is_clean || forgotten.is_err() {
            *self.failure.lock() = Some(Failed::LockLost.error("keep what was written"));
        }
    }

    /// Notes a user that may write.
    pub fn written_by(&self, user: &Arc<User>) {
        *self.writer.lock() = Arc::clone(user);
    }

    /// Returns as which user is written what no open writes itself.
    pub fn writer(&self) -> Arc<User> {
        Arc::clone(&self.writer.lock())
    }

    /// Notes an open; returns a number of its own.
    pub fn open(&self, mode: Mode) -> u64 {
        self.opens.lock()[mode as usize] += 1;
        self.owners.fetch_add(1, Relaxed)
    }

    /// Notes the end of an open.
    pub fn close(&self, mode: Mode) {
        self.opens.lock()[mode as usize] -= 1;
    }

    /// Returns whether one open alone asks for a mode.
    pub fn is_last(&self, mode: Mode) -> bool {
        self.opens.lock()[mode as usize] == 1
    }

    /// Returns as what the file is served while its opens disagree: as the strictest of them.
    pub fn mode(&self) -> Mode {
        let opens = self.opens.lock();
        let asked = |mode: &Mode| opens[*mode as usize] > 0;
        Mode::ALL.into_iter().find(asked).unwrap_or(Mode::Concurrent)
    }

    /// Takes the lock that an access needs; `None` where it needs none. `Err` where the lock is not
    /// free and is not to be waited for.
    pub fn order(&self, writes: bool, waits: bool) -> Result<Option<Hold>, Busy> {
        match self.mode() {
            Mode::Concurrent => Ok(None),
            Mode::Cached | Mode::Direct => self.lock.take(writes, waits).map(Some).ok_or(Busy),
        }
    }

    /// Takes the turn of an access; `None` where another has it and it is not to be waited for.
    pub fn turn(&self, writes: bool, waits: bool) -> Option<Turn> {
        loop {
            let order = self.order(writes, waits).ok()?;
            let pages = order.as_ref().and_then(|_| self.pages.lock().clone());
            let gate = match writes && pages.is_none() {
                true => Some(self.gate.take(false, waits)?),
                false => None,
            };
            // An open may have made the mode stricter meanwhile.
            if order.is_some() || self.mode() == Mode::Concurrent {
                let (order, gate) = (order.map(Arc::new), gate.map(Arc::new));
                return Some(Turn { _order: order, _gate: gate, pages });
            }
        }
    }

    /// Returns the turn of what the cache reads, for an access that has its own.
    pub fn no_turn(&self) -> Turn {
        Turn { _order: None, _gate: None, pages: None }
    }

    /// Takes the turn of what the cache writes; likewise.
    pub fn write_back_turn(&self) -> Turn {
        Turn { _gate: Some(Arc::new(self.gate.wait(false))), ..self.no_turn() }
    }
}

/// A lock is held by another.
#[derive(Debug)]
pub struct Busy;

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(kept: &Kept) -> Vec<(u64, Vec<u8>)> {
        let told: usize = kept.pieces.values().map(|piece| piece.part.len()).sum();
        assert_eq!(told as u64, kept.bytes());
        kept.pieces
            .iter()
            .map(|(at, piece)| (*at, piece.bytes[piece.part.clone()].to_vec()))
            .collect()
    }

    #[test]
    fn i_nfc_1_what_is_kept_is_the_newest_of_each_byte() {
        let mut all = Kept::default();
        let write = |all: &mut Kept, at: u64, bytes: &[u8], verifier| {
            all.keep(at, bytes.into(), 0..bytes.len(), verifier);
        };
        write(&mut all, 10, b"aaaaaaaaaa", 1);
        write(&mut all, 13, b"bb", 1);
        assert_eq!(
            kept(&all),
            [(10, b"aaa".to_vec()), (13, b"bb".to_vec()), (15, b"aaaaa".to_vec())]
        );
        write(&mut all, 8, b"ccc", 2);
        let mark = all.mark();
        write(&mut all, 18, b"dddd", 1);
        assert_eq!(kept(&all).len(), 5);
        // A stable write lies over it.
        all.forget(14, 2);
        assert_eq!(kept(&all)[2..4], [(13, b"b".to_vec()), (16, b"aa".to_vec())]);
        assert!(!all.settle(1, mark), "what was told under another verifier may be lost");
        assert_eq!(kept(&all), [(8, b"ccc".to_vec()), (18, b"dddd".to_vec())]);
        assert_eq!(all.lost(1).len(), 1);
        assert!(all.settle(2, mark), "what came after the mark is not asked for");
        assert_eq!(kept(&all), [(18, b"dddd".to_vec())]);
        assert_eq!(
            (all.over(0..19).len(), all.over(21..30).len(), all.over(22..30).len()),
            (1, 1, 0)
        );
        assert_eq!((all.over(0..18).len(), all.end()), (0, 22));
        all.forget(0, u64::MAX);
        assert!(all.is_empty() && all.bytes() == 0 && all.end() == 0);
    }

    #[test]
    fn s_575_a_file_is_served_as_the_strictest_of_its_opens_asks() {
        let user = Arc::new(User { uid: 1, gid: 1, groups: Vec::new() });
        let inode = Inode::new(Handle::forged(b"x"), &user);
        inode.open(Mode::Concurrent);
        let beside = [inode.order(true, false).unwrap(), inode.order(true, false).unwrap()];
        assert!(beside.iter().all(Option::is_none), "no lock in concurrent mode");
        inode.open(Mode::Direct);
        let writer = inode.order(true, false).unwrap();
        assert!(inode.order(false, false).is_err() && inode.order(true, false).is_err());
        drop(writer);
        let readers = [inode.order(false, false).unwrap(), inode.order(false, false).unwrap()];
        assert!(inode.order(true, false).is_err());
        drop(readers);
        inode.open(Mode::Cached);
        inode.close(Mode::Direct);
        assert!(inode.mode() == Mode::Cached && inode.is_last(Mode::Cached));
        inode.close(Mode::Cached);
        assert_eq!(inode.mode(), Mode::Concurrent);
    }
}
