//! The client's half: may this I/O go to the device, and where?

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use crate::direction::Direction;
use crate::layout::{
    DURABLE, EXTENT_WORDS, Geometry, LayoutError, SEALED, SHARING, STATE, State, WRITABLE, entry,
    first_bucket, flag,
};
use crate::planted::{Mistake, planted};
use crate::reason::Fallback;
use crate::slots::Slots;
use crate::words::Words;

/// A file as a client knows it: its entry, and which use of the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The entry's number.
    pub entry: u32,
    /// What its generation has to be.
    pub generation: u64,
}

/// A read or a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Io {
    /// [`Direction::Read`] or [`Direction::Write`].
    pub direction: Direction,
    /// The place in the file, in bytes.
    pub offset: u64,
    /// The length in bytes.
    pub len: u64,
}

/// I/O may go to the device, until the slot is cleared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Permit {
    /// The place on the device, in bytes, of the sector in which the I/O begins.
    pub device_offset: u64,
    /// How many bytes of the file follow there in a row, at least the I/O's sectors.
    pub room: u64,
    /// The entry's sequence: as long as it stays, only this client writes to the file if it has the
    /// right to odd writes.
    pub seq: u64,
    /// This client has the right to odd writes: its threads take turns.
    pub is_odd_owner: bool,
    /// Where the file ends once the write is on the device, and what lies before it; 0: where it ends
    /// now.
    pub fills_to: u64,
    /// The tail that the write fills.
    pub tail: TailName,
    /// What lies before the write in the tail was not there when it was permitted: it is noted in the
    /// [`Order`](crate::Order) of those, and ends with them.
    pub is_ahead: bool,
}

/// A tail, as no other was or will be named.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TailName {
    /// The mount's number.
    pub mount: u64,
    /// The tail's number there; 0: none.
    pub number: u64,
}

/// What a write behind the end of a file fills of a tail.
#[derive(Debug, Clone, Copy, Default)]
struct Filling {
    to: u64,
    tail: TailName,
    is_ahead: bool,
}

/// A file whose pages may be read in the daemon's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedFile {
    /// The number by which the cache knows it.
    pub file: u64,
    /// The entry's sequence.
    seq: u64,
}

impl Permit {
    /// Refuses what makes the file grow.
    fn within_size(self) -> Result<Self, Fallback> {
        if self.fills_to == 0 { Ok(self) } else { Err(Fallback::BeyondSize) }
    }
}

impl Io {
    /// Tells whether it covers a sector in part.
    #[inline]
    pub fn is_odd(&self, alignment_bytes: u64) -> bool {
        (self.offset | self.len) & (alignment_bytes - 1) != 0
    }

    /// Returns the whole sectors around it.
    #[inline]
    pub fn sectors(&self, alignment_bytes: u64) -> Option<Self> {
        let mask = alignment_bytes - 1;
        let offset = self.offset & !mask;
        let end = self.offset.checked_add(self.len)?.checked_add(mask)? & !mask;
        Some(Self { offset, len: end - offset, ..*self })
    }
}

/// The client's view of the control memory. It believes nothing there that passes the memory or
/// the device.
#[derive(Debug, Clone)]
pub struct Reader<W> {
    words: W,
    geometry: Geometry,
}

impl<W: Words> Reader<W> {
    /// Looks at memory that the daemon made.
    pub fn open(words: W) -> Result<Self, LayoutError> {
        let geometry = Geometry::read(&words)?;
        Ok(Self { words, geometry })
    }

    /// Returns what the header says.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns what the mount as a whole allows now.
    pub fn state(&self) -> State {
        State::of(self.words.load(STATE, SeqCst))
    }

    /// Looks an inode up. Nothing where it is not published, or being changed right now.
    pub fn find(&self, inode: u64) -> Option<Lease> {
        let first = first_bucket(inode);
        for i in 0..self.geometry.buckets() {
            let bucket = self.geometry.bucket_at(first.wrapping_add(i));
            let index = self.words.load(bucket, Acquire).checked_sub(1)?;
            if index < self.geometry.entries as u64
                && let Some(lease) = self.lease_of(index as u32, inode)
            {
                return Some(lease);
            }
        }
        None
    }

    /// The inode and the generation have to be of one moment.
    fn lease_of(&self, index: u32, inode: u64) -> Option<Lease> {
        let at = self.geometry.entry_at(index as usize);
        let seq = self.words.load(at + entry::SEQ, Acquire);
        let is_meant = self.words.load(at + entry::INODE, Acquire) == inode;
        let generation = self.words.load(at + entry::GENERATION, Acquire);
        let is_still = self.words.load(at + entry::SEQ, Relaxed) == seq;
        (seq.is_multiple_of(2) && is_meant && is_still)
            .then_some(Lease { entry: index, generation })
    }

    /// Tells whether the pages of a file may be read in the daemon's cache. Nothing waits for such a
    /// read, and no slot is set for it: what was read is used if the file
    /// [`is_still_cached`](Self::is_still_cached) then. A page that is there lies within the file.
    #[inline]
    pub fn cached_file(&self, lease: Lease) -> Option<CachedFile> {
        let (at, seq) = self.enter(lease).ok()?;
        let file = self.words.load(at + entry::CACHE_FILE, Acquire);
        let cached = CachedFile { file, seq };
        (file != 0 && self.is_still_cached(lease, &cached)).then_some(cached)
    }

    /// Tells whether what was read of a file in the daemon's cache, since that was found to be
    /// allowed, may be used.
    #[inline]
    pub fn is_still_cached(&self, lease: Lease, cached: &CachedFile) -> bool {
        let at = self.geometry.entry_at(lease.entry as usize);
        self.words.acquire();
        self.words.load(at + entry::SEQ, Relaxed) == cached.seq
            && State::of(self.words.load(STATE, Acquire)) != State::Stopped
    }

    /// Sets the slot and asks whether the I/O may go to the device. The caller does it and clears
    /// the slot with [`Slots::leave`]; where the answer is no, the slot is clear and the call is
    /// counted. A write of parts of sectors is permitted to the client that has the right to it:
    /// it writes the whole sectors around, with what it read of them while the slot was set.
    #[inline]
    pub fn begin_io<S: Words>(
        &self,
        slots: &Slots<S>,
        slot: usize,
        lease: Lease,
        io: Io,
    ) -> Result<Permit, Fallback> {
        slots.enter(slot, lease.entry, io.direction);
        let asked = self.permit(slots, lease, io, 0).and_then(Permit::within_size);
        self.finish(slots, slot, asked)
    }

    /// As [`begin_io`](Self::begin_io), for a caller that tells with [`Slots::wrote`] what a write
    /// behind the file's size has filled of a tail, before it clears the slot. The write may begin up to
    /// `ahead_bytes` behind what is filled: then it is noted instead, as the permit says. An answer that
    /// is no is not counted: the caller sees to what it lacks and asks again, or counts it.
    #[inline]
    pub fn begin_growth<S: Words>(
        &self,
        slots: &Slots<S>,
        slot: usize,
        lease: Lease,
        io: Io,
        ahead_bytes: u64,
    ) -> Result<Permit, Fallback> {
        slots.enter(slot, lease.entry, io.direction);
        let asked = self.permit(slots, lease, io, ahead_bytes);
        if let (Ok(permit), true) = (&asked, planted(Mistake::FilledTooEarly)) {
            slots.wrote(lease.entry, permit.fills_to);
        }
        asked.inspect_err(|_| slots.leave(slot))
    }

    /// Asks for one more I/O on the same file and in the same direction while the slot is set. Where
    /// the answer is no the slot stays set, and nothing is counted.
    pub fn also_io<S: Words>(
        &self,
        slots: &Slots<S>,
        lease: Lease,
        io: Io,
    ) -> Result<Permit, Fallback> {
        self.permit(slots, lease, io, 0).and_then(Permit::within_size)
    }

    /// Sets the slot and asks whether a flush of the device is all that a data sync of the file
    /// takes, as [`begin_io`](Self::begin_io) does.
    pub fn begin_sync<S: Words>(
        &self,
        slots: &Slots<S>,
        slot: usize,
        lease: Lease,
    ) -> Result<(), Fallback> {
        slots.enter(slot, lease.entry, Direction::Sync);
        let asked = self.may_sync(slots, lease);
        self.finish(slots, slot, asked)
    }

    fn finish<S: Words, T>(
        &self,
        slots: &Slots<S>,
        slot: usize,
        asked: Result<T, Fallback>,
    ) -> Result<T, Fallback> {
        asked.inspect_err(|fallback| {
            slots.leave(slot);
            slots.count_fallback(slot, *fallback);
        })
    }

    #[inline]
    fn permit<S: Words>(
        &self,
        slots: &Slots<S>,
        lease: Lease,
        io: Io,
        ahead_bytes: u64,
    ) -> Result<Permit, Fallback> {
        debug_assert!(
            self.geometry.alignment_bytes.is_power_of_two(),
            "a header was checked before it is believed: {:?}",
            self.geometry
        );
        let writes = io.direction == Direction::Write;
        let is_odd = io.is_odd(self.geometry.alignment_bytes);
        if io.len == 0 || (is_odd && !writes) {
            return Err(Fallback::Unaligned);
        }
        let (at, seq) = self.enter(lease)?;
        let get = |word| self.words.load(at + word, Acquire);
        let io = io.sectors(self.geometry.alignment_bytes).ok_or(Fallback::BeyondSize)?;
        let state = State::of(self.words.load(STATE, SeqCst));
        if state == State::Stopped || (state == State::ReadOnly && writes) {
            return Err(Fallback::State);
        }
        if get(entry::FLAGS) & if writes { flag::WRITE } else { flag::READ } == 0 {
            return Err(self.forbidden(at));
        }
        let end = io.offset.checked_add(io.len).ok_or(Fallback::BeyondSize)?;
        let size = get(entry::SIZE);
        let mut filling = Filling::default();
        if end > size {
            if is_odd {
                return Err(Fallback::BeyondSize);
            }
            filling = self.in_tail(slots, lease, io, ahead_bytes)?;
        }
        let mut is_odd_owner = false;
        if writes {
            let owner = get(entry::ODD_OWNER);
            is_odd_owner = owner != 0 && owner == slots.client();
            if !is_odd_owner && !is_odd && owner != 0 && !planted(Mistake::OddOwnerIgnored) {
                return Err(Fallback::Forbidden);
            }
            // Blocks of a tail no record names, and no checkpoint has.
            if io.offset < size {
                self.may_write(at)?;
            }
        }
        let (device_offset, room) = self.find_extent(at, io)?;
        self.still(at, seq)?;
        // Last: the right is all that the write lacks.
        if is_odd && !is_odd_owner {
            return Err(Fallback::Unaligned);
        }
        let Filling { to: fills_to, tail, is_ahead } = filling;
        Ok(Permit { device_offset, room, seq, is_odd_owner, fills_to, tail, is_ahead })
    }

    /// Permits I/O behind the file's size in the client's own tail: a read of what is filled, a
    /// write there, where that ends, or so many bytes behind.
    #[cold]
    fn in_tail<S: Words>(
        &self,
        slots: &Slots<S>,
        lease: Lease,
        io: Io,
        ahead_bytes: u64,
    ) -> Result<Filling, Fallback> {
        let (filled, tail_end) = self.tail(slots, lease).ok_or(Fallback::BeyondSize)?;
        let end = io.offset + io.len;
        let writes = io.direction == Direction::Write;
        let (limit, ahead) = if writes { (tail_end, ahead_bytes) } else { (filled, 0) };
        if io.offset.saturating_sub(filled) > ahead || end > limit {
            return Err(Fallback::BeyondSize);
        }
        let tail = self.tail_name(lease);
        let is_ahead = io.offset > filled;
        Ok(Filling { to: if writes && end > filled { end } else { 0 }, tail, is_ahead })
    }

    /// Names the tail of a file; to be believed once the sequence was found to be still the same.
    fn tail_name(&self, lease: Lease) -> TailName {
        let at = self.geometry.entry_at(lease.entry as usize);
        let number = self.words.load(at + entry::TAIL_NUMBER, Acquire);
        TailName { mount: self.geometry.mount, number }
    }

    /// Tells whether a tail is the client's no more; while the file is being changed it may be.
    pub fn is_tail_over<S: Words>(&self, slots: &Slots<S>, lease: Lease, tail: TailName) -> bool {
        let Ok((at, seq)) = self.enter(lease) else { return self.is_retracted(lease) };
        let is_it = self.tail(slots, lease).is_some() && self.tail_name(lease) == tail;
        self.still(at, seq).is_ok() && !is_it
    }

    /// Tells whether the entry is not the file's any more.
    fn is_retracted(&self, lease: Lease) -> bool {
        if lease.entry as usize >= self.geometry.entries {
            return true;
        }
        let at = self.geometry.entry_at(lease.entry as usize);
        self.words.load(at + entry::GENERATION, Acquire) != lease.generation
    }

    /// Returns how far the client has filled its tail, and where that ends; nothing where it has
    /// none. To be believed once the sequence was found to be still the same.
    fn tail<S: Words>(&self, slots: &Slots<S>, lease: Lease) -> Option<(u64, u64)> {
        let at = self.geometry.entry_at(lease.entry as usize);
        let get = |word| self.words.load(at + word, Acquire);
        let owner = get(entry::TAIL_OWNER);
        let is_owner =
            owner != 0 && (owner == slots.client() || planted(Mistake::TailOwnerIgnored));
        is_owner.then(|| (slots.filled(lease.entry).max(get(entry::SIZE)), get(entry::TAIL_END)))
    }

    /// Returns where the file ends, where this client alone can move that: it has the tail.
    pub fn own_end<S: Words>(&self, slots: &Slots<S>, lease: Lease) -> Option<u64> {
        let (at, seq) = self.enter(lease).ok()?;
        let is_serving = State::of(self.words.load(STATE, SeqCst)) == State::Serving;
        let (filled, _) = self.tail(slots, lease).filter(|_| is_serving)?;
        self.still(at, seq).ok().map(|()| filled)
    }

    /// Tells whether a write may go on where the file ends, and nothing but a tail lacks for it to
    /// go to the device. The size of a file that has just grown through the mount only the daemon
    /// knows.
    pub fn lacks_tail<S: Words>(&self, slots: &Slots<S>, lease: Lease, io: Io) -> bool {
        let Ok((at, seq)) = self.enter(lease) else { return false };
        let get = |word| self.words.load(at + word, Acquire);
        let is_at_end = match self.tail(slots, lease) {
            Some((filled, _)) => io.offset == filled,
            None => get(entry::TAIL_OWNER) == 0 && io.offset >= get(entry::SIZE),
        };
        let lacks = io.direction == Direction::Write
            && is_at_end
            && !io.is_odd(self.geometry.alignment_bytes)
            && get(entry::FLAGS) & flag::WRITE != 0
            && get(entry::ODD_OWNER) == 0
            && State::of(self.words.load(STATE, SeqCst)) == State::Serving;
        lacks && self.still(at, seq).is_ok()
    }

    /// Returns where the entry lies, and its sequence.
    fn enter(&self, lease: Lease) -> Result<(usize, u64), Fallback> {
        if lease.entry as usize >= self.geometry.entries {
            return Err(Fallback::Other);
        }
        let at = self.geometry.entry_at(lease.entry as usize);
        let seq = self.words.load(at + entry::SEQ, SeqCst);
        let is_meant = planted(Mistake::GenerationIgnored)
            || self.words.load(at + entry::GENERATION, Acquire) == lease.generation;
        if seq.is_multiple_of(2) && is_meant { Ok((at, seq)) } else { Err(Fallback::Revoked) }
    }

    /// Says why a file is not read, written or synced on the device.
    #[cold]
    fn forbidden(&self, at: usize) -> Fallback {
        match self.words.load(at + entry::CACHE_FILE, Acquire) {
            0 => Fallback::Forbidden,
            _ => Fallback::Uncached,
        }
    }

    /// What was read since [`enter`](Self::enter) belongs together: all loads between were
    /// acquiring, so this one comes after them.
    fn still(&self, at: usize, seq: u64) -> Result<(), Fallback> {
        if self.words.load(at + entry::SEQ, Relaxed) == seq || planted(Mistake::SequenceReadOnce) {
            return Ok(());
        }
        Err(Fallback::Revoked)
    }

    /// No replay looks at the blocks, and no checkpoint came since the map was made.
    fn may_write(&self, at: usize) -> Result<(), Fallback> {
        let get = |word| self.words.load(at + word, Acquire);
        let sealed = self.words.load(SEALED, Acquire);
        if get(entry::UNSEALED) > sealed && !planted(Mistake::UnsealedWritten) {
            return Err(Fallback::Unsealed);
        }
        let sharing = self.words.load(SHARING, SeqCst);
        if get(entry::SHARING) != sharing && !planted(Mistake::SharingIgnored) {
            return Err(Fallback::Shared);
        }
        Ok(())
    }

    /// Looks for the one extent that covers the range, and how much of it follows.
    fn find_extent(&self, at: usize, io: Io) -> Result<(u64, u64), Fallback> {
        let place = self.words.load(at + entry::MAP_AT, Acquire);
        let count = self.words.load(at + entry::MAP_COUNT, Acquire);
        let all = self.geometry.extents as u64;
        if place > all || count > all - place {
            return Err(Fallback::Other);
        }
        let word = |extent: u64, word: usize| {
            let at = self.geometry.map_at() + (place + extent) as usize * EXTENT_WORDS + word;
            self.words.load(at, Acquire)
        };
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            if word(middle, 0) <= io.offset { low = middle + 1 } else { high = middle }
        }
        let extent = low.checked_sub(1).ok_or(Fallback::Unmapped)?;
        let (logical, device, bytes) = (word(extent, 0), word(extent, 1), word(extent, 2));
        // A map that changes meanwhile may be anything: no sum may overflow.
        let into = io.offset.checked_sub(logical).ok_or(Fallback::Unmapped)?;
        let end = into.checked_add(io.len).ok_or(Fallback::Unmapped)?;
        if end > bytes & !WRITABLE {
            return Err(Fallback::Unmapped);
        }
        if io.direction == Direction::Write && bytes & WRITABLE == 0 {
            return Err(Fallback::Forbidden);
        }
        let room = (bytes & !WRITABLE) - into;
        let at = self.on_device(device.checked_add(into), io.len).ok_or(Fallback::Other)?;
        Ok((at, room.min(self.geometry.device_bytes - at)))
    }

    fn on_device(&self, offset: Option<u64>, len: u64) -> Option<u64> {
        let offset = offset?;
        let is_inside = offset.checked_add(len)? <= self.geometry.device_bytes;
        (is_inside && offset & (self.geometry.alignment_bytes - 1) == 0).then_some(offset)
    }

    fn may_sync<S: Words>(&self, slots: &Slots<S>, lease: Lease) -> Result<(), Fallback> {
        let (at, seq) = self.enter(lease)?;
        let get = |word| self.words.load(at + word, Acquire);
        if State::of(self.words.load(STATE, SeqCst)) != State::Serving {
            return Err(Fallback::State);
        }
        if get(entry::FLAGS) & flag::SYNC == 0 {
            return Err(self.forbidden(at));
        }
        if get(entry::DATA_LSN) > self.words.load(DURABLE, Acquire) {
            return Err(Fallback::Unsynced);
        }
        // What fills a tail becomes the file's with a record, which the mount makes. How far
        // another client has come only the mount knows.
        let is_filled = get(entry::TAIL_OWNER) != 0
            && self.tail(slots, lease).is_none_or(|(filled, _)| filled > get(entry::SIZE));
        if is_filled && !planted(Mistake::TailNotReported) {
            return Err(Fallback::Unsynced);
        }
        self.still(at, seq)
    }
}
