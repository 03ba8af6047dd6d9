//! The ring's book-keeping: where the next batch goes, what is alive, what is durable. Pure; the
//! leader does the I/O.

use std::collections::VecDeque;

use uuid::Uuid;

use super::batch::{HEADER_BYTES, Header, SECTOR};
use super::replay::Kept;
use super::{LogPlace, LogPosition};
use crate::Lsn;
use crate::planted::{PlantedBug, planted};

/// A batch that replay may still need.
#[derive(Debug, Clone, Copy)]
struct Live {
    sequence: u64,
    offset: u64,
    len: u64,
    last: Lsn,
}

/// A batch that replay may still need, to look for it in what a copy of the log holds.
#[derive(Debug)]
pub(crate) struct LiveBatch {
    live: Live,
    incarnation: u64,
}

impl LiveBatch {
    /// Says whether bytes are the batch, to the end of its payload.
    pub(crate) fn is_in(&self, bytes: &[u8], volume: Uuid) -> bool {
        let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else { return false };
        if planted(PlantedBug::LogWriteNotCompared) {
            return true;
        }
        let header = Header::read(head, volume, self.live.offset).filter(|header| {
            (header.sequence, header.incarnation) == (self.live.sequence, self.incarnation)
                && u64::from(header.len) == self.live.len
                && bytes.len() as u64 == self.live.len
        });
        header.is_some_and(|header| header.intact(bytes))
    }
}

/// Where a batch goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) sequence: u64,
    pub(super) offset: u64,
}

/// The state of the ring. Lives under the ring mutex (rank 7).
#[derive(Debug)]
pub(super) struct Ring {
    len: u64,
    incarnation: u64,
    /// Where the next batch goes, unless it does not fit before the end of the ring.
    head: u64,
    next_sequence: u64,
    live: VecDeque<Live>,
    applied: Lsn,
    /// The last record in a batch that was placed.
    placed: Lsn,
    durable: Lsn,
    durable_sequence: u64,
    sealed: Lsn,
    /// The last durable record whose data replay checks, unless sealed.
    exposing: Lsn,
}

impl Ring {
    pub(super) fn new(place: LogPlace, position: LogPosition) -> Self {
        debug_assert!(
            position.sequence > 0 && position.offset <= place.len_bytes,
            "I-LOG-2: a log goes on within its ring of {} bytes: {position:?}",
            place.len_bytes
        );
        Self {
            len: place.len_bytes,
            incarnation: position.incarnation,
            head: position.offset,
            next_sequence: position.sequence,
            live: VecDeque::new(),
            applied: position.applied,
            placed: position.applied,
            durable: position.applied,
            durable_sequence: position.sequence - 1,
            sealed: position.applied,
            exposing: Lsn(0),
        }
    }

    /// Goes on behind a log as replay found it. The first write is to seal what is there.
    pub(super) fn resumed(place: LogPlace, kept: &Kept) -> Self {
        let live = |header: &Header| Live {
            sequence: header.sequence,
            offset: header.offset,
            len: header.len.into(),
            last: header.last(),
        };
        let live: VecDeque<Live> = kept.batches.iter().map(live).collect();
        debug_assert!(
            live.iter()
                .zip(live.iter().skip(1))
                .all(|(one, next)| one.sequence + 1 == next.sequence),
            "I-LOG-1: the log writes that a replay kept follow each other"
        );
        let mut ring = Self::new(place, kept.position);
        if let Some(last) = live.back().copied() {
            (ring.head, ring.next_sequence, ring.durable_sequence) =
                (last.offset + last.len, last.sequence + 1, last.sequence);
            ring.placed = last.last.max(ring.applied);
            (ring.durable, ring.exposing) = (ring.placed, ring.placed);
            ring.sealed = kept.sealed.min(ring.placed);
        }
        ring.live = live;
        ring
    }

    /// The parts of the ring, offset and length, that no live batch is in.
    pub(super) fn free(&self) -> Vec<(u64, u64)> {
        let parts = match self.live.front() {
            None => vec![(0, self.len)],
            Some(tail) if tail.offset < self.head => vec![(self.head, self.len), (0, tail.offset)],
            Some(tail) => vec![(self.head, tail.offset)],
        };
        parts
            .into_iter()
            .filter(|(start, end)| start < end)
            .map(|(start, end)| (start, end - start))
            .collect()
    }

    /// Returns what lies at a place: where it begins, its length, and the batch, if one is alive
    /// there.
    pub(super) fn lies_at(&self, offset: u64) -> Option<(u64, u64, Option<LiveBatch>)> {
        let is_in = |start: u64, len: u64| start <= offset && offset - start < len;
        if let Some(live) = self.live.iter().find(|live| is_in(live.offset, live.len)) {
            let batch = LiveBatch { live: *live, incarnation: self.incarnation };
            return Some((live.offset, live.len, Some(batch)));
        }
        let free = self.free().into_iter().find(|(start, len)| is_in(*start, *len));
        // Else it is behind the last batch that fits before the end of the ring.
        let (start, len) = free.unwrap_or((offset / SECTOR * SECTOR, SECTOR));
        (offset < self.len).then_some((start, len, None))
    }

    /// Finds room for a batch of `len` bytes behind a head, given the oldest live byte.
    fn find(&self, head: u64, tail: Option<u64>, len: u64) -> Option<u64> {
        match tail {
            Some(tail) if head <= tail => (head + len <= tail).then_some(head),
            _ if head + len <= self.len => Some(head),
            Some(tail) => (len <= tail).then_some(0),
            None => (len <= self.len).then_some(0),
        }
    }

    /// Whether batches of these lengths all fit.
    pub(super) fn fits(&self, lengths: impl Iterator<Item = u64>) -> bool {
        let mut head = self.head;
        let mut tail = self.live.front().map(|live| live.offset);
        for len in lengths {
            let Some(offset) = self.find(head, tail, len) else { return false };
            head = offset + len;
            tail = tail.or(Some(offset));
        }
        true
    }

    /// Places the next batch; [`fits`](Self::fits) said that there is room. `last` is the last
    /// record in it or before it.
    pub(super) fn place(&mut self, len: u64, last: Lsn) -> Slot {
        debug_assert!(
            len > 0 && len <= self.len,
            "I-LOG-2: {len} bytes are placed in a ring of {}",
            self.len
        );
        debug_assert!(
            self.live.back().is_none_or(|live| live.sequence + 1 == self.next_sequence),
            "I-LOG-1: log write {} follows the last that is live",
            self.next_sequence
        );
        let tail = self.live.front().map(|live| live.offset);
        let offset = self
            .find(self.head, tail, len)
            .expect("I-LOG-2: a batch is placed only where there is room");
        let clear = |live: &Live| offset + len <= live.offset || live.offset + live.len <= offset;
        assert!(
            self.live.front().is_none_or(clear) && self.live.back().is_none_or(clear),
            "I-LOG-2: a log write would hit a live one"
        );
        let slot = Slot { sequence: self.next_sequence, offset };
        self.live.push_back(Live { sequence: slot.sequence, offset, len, last });
        self.head = offset + len;
        self.next_sequence += 1;
        self.placed = self.placed.max(last);
        slot
    }

    /// Takes note that everything placed is durable; `evidence` is the sealed lsn in its headers,
    /// `exposing` the last record in it to be checked.
    pub(super) fn complete(&mut self, evidence: Lsn, exposing: Lsn) {
        debug_assert!(
            self.durable_sequence < self.next_sequence,
            "I-LOG-3: what is durable was placed: {} before {}",
            self.durable_sequence,
            self.next_sequence
        );
        self.durable = self.durable.max(self.placed);
        self.durable_sequence = self.next_sequence - 1;
        self.exposing = self.exposing.max(exposing);
        self.sealed = self.sealed.max(evidence);
        self.seal_unless_exposing();
    }

    /// I-LOG-5: without a record to check above `sealed`, durable is sealed.
    fn seal_unless_exposing(&mut self) {
        if self.exposing <= self.sealed {
            self.sealed = self.durable;
        }
        assert!(self.sealed <= self.durable, "I-LOG-5: only durable records are sealed");
    }

    /// Takes note that a durable metadata commit holds everything up to `lsn`.
    pub(super) fn skip_to(&mut self, lsn: Lsn) {
        self.durable = self.durable.max(lsn);
        self.sealed = self.sealed.max(lsn);
        self.seal_unless_exposing();
    }

    /// Where replay must start when the metadata holds everything up to `lsn`.
    pub(super) fn position_after(&self, lsn: Lsn) -> LogPosition {
        assert!(lsn >= self.applied, "metadata commits go forward");
        let first = self
            .live
            .iter()
            .filter(|live| live.last > lsn)
            .nth(usize::from(planted(PlantedBug::PositionTooFar)));
        let (sequence, offset) =
            first.map_or((self.next_sequence, self.head), |live| (live.sequence, live.offset));
        debug_assert!(
            sequence <= self.next_sequence && offset <= self.len,
            "I-LOG-2: the log goes on at write {sequence}, ring byte {offset} of {}",
            self.len
        );
        LogPosition { incarnation: self.incarnation, sequence, offset, applied: lsn }
    }

    /// Moves the tail.
    pub(super) fn trim(&mut self, position: LogPosition) {
        assert_eq!(position.incarnation, self.incarnation, "a log position of another incarnation");
        assert!(
            position.sequence <= self.next_sequence && position.applied >= self.applied,
            "the tail moves forward, up to the head"
        );
        let dead = self.live.partition_point(|live| live.sequence < position.sequence);
        self.live.drain(..dead);
        self.applied = position.applied;
    }

    /// The first lsn that an empty batch may claim: the one behind what the ring holds.
    pub(super) fn placed(&self) -> Lsn {
        self.placed
    }

    /// Where the next batch goes, if it fits there.
    pub(super) fn head(&self) -> u64 {
        self.head
    }

    pub(super) fn durable(&self) -> Lsn {
        self.durable
    }

    pub(super) fn durable_sequence(&self) -> u64 {
        self.durable_sequence
    }

    pub(super) fn sealed(&self) -> Lsn {
        self.sealed
    }

    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Length of the ring in bytes.
    pub(super) fn len_bytes(&self) -> u64 {
        self.len
    }

    /// Bytes from the tail to the head.
    pub(super) fn used_bytes(&self) -> u64 {
        let used = match self.live.front() {
            None => 0,
            Some(tail) if tail.offset < self.head => self.head - tail.offset,
            Some(tail) => self.len - tail.offset + self.head,
        };
        debug_assert!(
            used <= self.len,
            "I-LOG-2: {used} bytes of a ring of {} are in use",
            self.len
        );
        used
    }
}
