//! The daemon's half: entries and maps, and taking them back.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use crate::layout::{
    DURABLE, EXTENT_WORDS, Geometry, LayoutError, SEALED, SHARING, STATE, State, WRITABLE, entry,
    first_bucket, flag,
};
use crate::map_space::{MapSpace, Place};
use crate::planted::{Mistake, planted};
use crate::slots::Holder;
use crate::words::Words;

/// A published file, as the daemon knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EntryRef {
    /// The entry's number, which slots name.
    pub index: u32,
    /// Which use of the entry this is.
    pub generation: u64,
}

/// A run of written blocks of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The place in the file, in bytes.
    pub logical: u64,
    /// The place on the device, in bytes.
    pub device: u64,
    /// The length in bytes.
    pub len: u64,
    /// Whether it may be overwritten in place.
    pub is_writable: bool,
}

/// Blocks behind the end of a file that one client fills by itself. They stand in the map behind
/// those of the file; what the client has written of them stands in its slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    /// The client.
    pub owner: u64,
    /// Where the blocks end, in bytes of the file.
    pub end_bytes: u64,
    /// A number that no other tail of the mount has: what a client has in hand of one is of no other.
    pub number: u64,
}

/// What an entry says of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLease<'a> {
    /// Whether it may be read.
    pub may_read: bool,
    /// Whether it may be written, where extents allow it.
    pub may_write: bool,
    /// Whether a flush of the device may stand for a data sync.
    pub may_sync: bool,
    /// The size that the log knows, in bytes: nothing beyond is leased.
    pub size_bytes: u64,
    /// The last record that names blocks of the file; until it is sealed nothing is written.
    pub unsealed_last: u64,
    /// The last record with a change of the file that a data sync has to make durable.
    pub data_lsn: u64,
    /// The generation of the set of checkpoints for which `is_writable` was found.
    pub sharing: u64,
    /// The written extents, sorted, without overlaps; behind them those of the tail.
    pub extents: &'a [Extent],
    /// The tail; it begins at the size.
    pub tail: Option<Tail>,
    /// The number by which the daemon's cache knows the file, of one whose pages are read there; 0:
    /// none.
    pub cache_file: u64,
}

/// How much of a map found room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coverage {
    /// All extents.
    Whole,
    /// The first ones; the rest goes through the mount.
    Part {
        /// How many.
        extents: usize,
    },
}

/// Why a file is not published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishError {
    /// All entries are in use.
    Full,
    /// The file is published already.
    Published,
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "no more files can be published: all entries are in use",
            Self::Published => "the file is published already",
        })
    }
}

impl std::error::Error for PublishError {}

/// What the daemon does to the control memory without a lock: each call is one store, or belongs to
/// the holder of one file's exclusive lock.
#[derive(Debug, Clone)]
pub struct Control<W> {
    words: W,
    geometry: Geometry,
}

impl<W: Words> Control<W> {
    /// Returns how large the parts of the memory are.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Says what the mount as a whole allows. Where that is less than before, the caller drains
    /// all slots before it relies on it.
    pub fn set_state(&self, state: State) {
        self.words.swap(STATE, state as u64);
        self.words.fence();
    }

    /// Returns what the mount as a whole allows.
    pub fn state(&self) -> State {
        State::of(self.words.load(STATE, SeqCst))
    }

    /// Records up to `lsn` are sealed: no replay looks at what they name. Never goes back.
    pub fn set_sealed(&self, lsn: u64) {
        self.words.store(SEALED, lsn, Release);
    }

    /// Records up to `lsn` are durable. Never goes back.
    pub fn set_durable(&self, lsn: u64) {
        self.words.store(DURABLE, lsn, Release);
    }

    /// Takes the write flags off every file: a checkpoint comes or goes. The caller drains the
    /// slots that write before it relies on that. Returns the new generation, with which maps are
    /// made from now on. One caller at a time.
    pub fn change_sharing(&self) -> u64 {
        let sharing = self.words.load(SHARING, Relaxed) + 1;
        self.words.swap(SHARING, sharing);
        self.words.fence();
        sharing
    }

    /// Returns the generation of the set of checkpoints.
    pub fn sharing(&self) -> u64 {
        self.words.load(SHARING, SeqCst)
    }

    /// A change of the file is in the log that a data sync has to make durable; to be called before
    /// the change is acknowledged, by one caller at a time, while the file stays published.
    pub fn set_data_lsn(&self, of: EntryRef, lsn: u64) {
        self.words.store(self.at(of) + entry::DATA_LSN, lsn, SeqCst);
    }

    /// Gives the right to write parts of sectors to a client, or takes it from all (0). While one
    /// has it no other client writes to the file, and the daemon only with the lease taken back.
    /// The file is revoked and drained (I-LSE-5).
    pub fn set_odd_owner(&self, of: EntryRef, client: u64) {
        assert!(
            self.is_revoked(of),
            "I-LSE-5: the right to odd writes of entry {} changes while it is leased",
            of.index
        );
        self.words.store(self.at(of) + entry::ODD_OWNER, client, Relaxed);
    }

    /// Tells whether the file is being changed.
    pub fn is_revoked(&self, of: EntryRef) -> bool {
        !self.words.load(self.at(of) + entry::SEQ, SeqCst).is_multiple_of(2)
    }

    /// Takes the lease back: no I/O begins from now on. What began goes on until
    /// [`drain`](Self::drain) returns; an operation that only adds to the map needs not wait.
    /// The holder of the file's exclusive lock calls this once before [`restore`](Self::restore).
    pub fn revoke(&self, of: EntryRef) {
        let at = self.at(of) + entry::SEQ;
        let seq = self.words.load(at, Relaxed);
        assert!(seq.is_multiple_of(2), "I-LSE-2: entry {} is revoked twice", of.index);
        self.words.swap(at, seq + 1);
        self.words.fence();
    }

    /// Waits until no slot holds the file: `look` returns one that does, of any client that lives,
    /// and `wait` passes the time.
    pub fn drain(
        &self,
        of: EntryRef,
        mut look: impl FnMut(u32) -> Option<Holder>,
        mut wait: impl FnMut(&Holder),
    ) {
        while let Some(holder) = look(of.index) {
            if planted(Mistake::NotDrained) {
                return;
            }
            wait(&holder);
        }
        self.words.fence();
    }

    /// Hands the lease out again, with what the entry says now.
    pub fn restore(&self, of: EntryRef) {
        let at = self.at(of) + entry::SEQ;
        let seq = self.words.load(at, Relaxed);
        assert!(!seq.is_multiple_of(2), "I-LSE-2: entry {} is not revoked", of.index);
        self.words.store(at, seq + 1, SeqCst);
    }

    /// A word of the memory, to make damaged copies of it.
    #[cfg(test)]
    pub(crate) fn word(&self, at: usize) -> u64 {
        self.words.load(at, Relaxed)
    }

    fn at(&self, of: EntryRef) -> usize {
        assert!((of.index as usize) < self.geometry.entries, "I-LSE-3: no entry {}", of.index);
        let at = self.geometry.entry_at(of.index as usize);
        let generation = self.words.load(at + entry::GENERATION, Relaxed);
        assert!(generation == of.generation, "I-LSE-3: entry {} is another file's", of.index);
        at
    }
}

/// Which entries, buckets and places of maps are in use: what the daemon changes under one lock of
/// its own. It believes its own notes and reads nothing back.
#[derive(Debug)]
pub struct Publisher<W> {
    control: Control<W>,
    entries: Vec<Option<Published>>,
    free: Vec<u32>,
    by_inode: HashMap<u64, u32>,
    space: MapSpace,
}

#[derive(Debug)]
struct Published {
    inode: u64,
    generation: u64,
    place: Place,
}

impl<W: Words + Clone> Publisher<W> {
    /// Makes the control memory in `words`, fresh and all zeros. Its state is
    /// [`State::Stopped`].
    pub fn create(words: W, geometry: Geometry) -> Result<Self, LayoutError> {
        for i in 0..geometry.entries {
            let at = geometry.entry_at(i) + entry::SEQ;
            if at >= words.count() {
                return Err(LayoutError::TooSmall);
            }
            words.store(at, 1, Relaxed);
        }
        geometry.write(&words)?;
        Ok(Self {
            control: Control { words, geometry },
            entries: (0..geometry.entries).map(|_| None).collect(),
            free: (0..geometry.entries as u32).rev().collect(),
            by_inode: HashMap::new(),
            space: MapSpace::new(geometry.extents),
        })
    }

    /// Returns the part that needs no lock, which can be cloned.
    pub fn control(&self) -> &Control<W> {
        &self.control
    }

    /// Returns a published file.
    pub fn find(&self, inode: u64) -> Option<EntryRef> {
        let index = *self.by_inode.get(&inode)?;
        let generation = self.entries[index as usize].as_ref()?.generation;
        Some(EntryRef { index, generation })
    }

    /// Publishes a file, revoked: [`Control::restore`] hands it out.
    pub fn publish(&mut self, inode: u64, file: &FileLease) -> Result<EntryRef, PublishError> {
        if self.by_inode.contains_key(&inode) {
            return Err(PublishError::Published);
        }
        let index = self.free.pop().ok_or(PublishError::Full)?;
        let at = self.control.geometry.entry_at(index as usize);
        let words = &self.control.words;
        let generation = words.load(at + entry::GENERATION, Relaxed) + 1;
        words.store(at + entry::GENERATION, generation, Relaxed);
        words.store(at + entry::INODE, inode, Relaxed);
        words.store(at + entry::ODD_OWNER, 0, Relaxed);
        let place = self.space.take(file.extents.len());
        self.entries[index as usize] = Some(Published { inode, generation, place });
        self.by_inode.insert(inode, index);
        let of = EntryRef { index, generation };
        self.write(of, file);
        self.link(inode, index);
        Ok(of)
    }

    /// Writes anew what the entry says. The file is revoked meanwhile.
    pub fn rewrite(&mut self, of: EntryRef, file: &FileLease) -> Coverage {
        assert!(
            self.control.is_revoked(of) || planted(Mistake::RewrittenInTheOpen),
            "I-LSE-2: entry {} is rewritten while it is leased",
            of.index
        );
        let published = self.entries[of.index as usize].as_mut();
        let published = published.expect("I-LSE-3: an entry that is rewritten is published");
        if published.place.capacity < file.extents.len() {
            self.space.give(published.place);
            published.place = self.space.take(file.extents.len());
        }
        self.write(of, file)
    }

    fn write(&self, of: EntryRef, file: &FileLease) -> Coverage {
        let Control { words, geometry } = &self.control;
        let place = self.entries[of.index as usize].as_ref().map_or(Place::default(), |e| e.place);
        debug_assert!(
            file.extents.is_sorted_by(|a, b| a.logical + a.len <= b.logical),
            "a map is sorted and without overlaps, as readers search it: {:?}",
            file.extents
        );
        debug_assert!(
            file.extents
                .iter()
                .all(|extent| (extent.len | extent.device | extent.logical) & 511 == 0),
            "an extent is of whole sectors, whose last bit is free for the right to write: {:?}",
            file.extents
        );
        let count = file.extents.len().min(place.capacity);
        for (i, extent) in file.extents[..count].iter().enumerate() {
            let at = geometry.map_at() + (place.at + i) * EXTENT_WORDS;
            let writable = if extent.is_writable { WRITABLE } else { 0 };
            for (word, value) in
                [extent.logical, extent.device, extent.len | writable].into_iter().enumerate()
            {
                words.store(at + word, value, Relaxed);
            }
        }
        let at = geometry.entry_at(of.index as usize);
        let flags = [(file.may_read, flag::READ), (file.may_write, flag::WRITE)];
        let flags = flags.into_iter().chain([(file.may_sync, flag::SYNC)]);
        for (word, value) in [
            (entry::FLAGS, flags.map(|(may, flag)| if may { flag } else { 0 }).sum()),
            (entry::SIZE, file.size_bytes),
            (entry::UNSEALED, file.unsealed_last),
            (entry::DATA_LSN, file.data_lsn),
            (entry::SHARING, file.sharing),
            (entry::TAIL_OWNER, file.tail.map_or(0, |tail| tail.owner)),
            (entry::TAIL_END, file.tail.map_or(0, |tail| tail.end_bytes)),
            (entry::TAIL_NUMBER, file.tail.map_or(0, |tail| tail.number)),
            (entry::CACHE_FILE, file.cache_file),
            (entry::MAP_AT, place.at as u64),
            (entry::MAP_COUNT, count as u64),
        ] {
            words.store(at + word, value, Relaxed);
        }
        if count == file.extents.len() {
            Coverage::Whole
        } else {
            Coverage::Part { extents: count }
        }
    }

    /// Publishes a file no more. It is revoked, and stays so until the entry is used again; the
    /// caller has drained it.
    pub fn retract(&mut self, of: EntryRef) {
        assert!(
            self.control.is_revoked(of),
            "I-LSE-2: entry {} is retracted while it is leased",
            of.index
        );
        let published = self.entries[of.index as usize].take();
        let published = published.expect("I-LSE-3: an entry that is retracted is published");
        self.unlink(published.inode);
        self.by_inode.remove(&published.inode);
        self.space.give(published.place);
        self.free.push(of.index);
        debug_assert_eq!(
            self.free.len() + self.by_inode.len(),
            self.entries.len(),
            "I-LSE-3: an entry is free or a file's"
        );
    }

    /// Puts the entry into the first free bucket.
    fn link(&self, inode: u64, index: u32) {
        let bucket = (0..)
            .map(|i| self.bucket(inode, i))
            .find(|&at| self.control.words.load(at, Relaxed) == 0)
            .expect("I-LSE-3: there are twice as many buckets as entries");
        self.control.words.store(bucket, u64::from(index) + 1, Release);
    }

    fn bucket(&self, inode: u64, i: usize) -> usize {
        self.control.geometry.bucket_at(first_bucket(inode).wrapping_add(i))
    }

    /// Empties the bucket and puts anew what lies behind it up to the next free one. A client that
    /// looks meanwhile may miss a file, and asks the daemon.
    fn unlink(&self, inode: u64) {
        let words = &self.control.words;
        let index = u64::from(self.by_inode[&inode]) + 1;
        let mut i = 0;
        while words.load(self.bucket(inode, i), Relaxed) != index {
            i += 1;
        }
        words.store(self.bucket(inode, i), 0, Release);
        loop {
            i += 1;
            let at = self.bucket(inode, i);
            let Some(moved) = words.load(at, Acquire).checked_sub(1) else { return };
            words.store(at, 0, Release);
            if let Some(published) = &self.entries[moved as usize] {
                self.link(published.inode, moved as u32);
            }
        }
    }
}
