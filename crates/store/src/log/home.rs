//! Writes that the log has instead of their place on the device.
//!
//! A record may carry the data that it exposes ([`LoggedData`]). Then one write of the log and one
//! flush make both durable, and the data goes to its place, its *home*, some time later, together
//! with its neighbours: data journaling, for what is small. Until then reads of the device are
//! overlaid with it, and replay writes it home.
//!
//! ```text
//!   append ─► waiting ─► writing ─► gone: the device has it
//!                ▲           │
//!                └───────────┘ the write failed
//! ```
//!
//! - I-HOM-1: no record is sealed before a flush of the data device that began when what it carries
//!   was at home. So as long as replay may write data home, nothing else was written there: what is
//!   overwritten in place is permitted by a seal, and what is freed goes to others once the record
//!   that freed it is sealed.
//! - I-HOM-2: a write of the device that meets one of these in its sectors comes after it
//!   ([`HomeWrites::settle`]).
//! - I-HOM-3: what is waiting is newer than what is being written, and a read shows it above that.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_block::sync::{Mutex, rank};
use bedplate_block::{AlignedBuf, BlockDevice};

use super::ReplayReport;
use crate::planted::{PlantedBug, planted};
use crate::{Lsn, Result};

/// The longest single write home, in bytes.
const WRITE_BYTES_MAX: usize = 256 << 10;

/// Data that a record carries, beside what it exposes of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoggedData {
    /// The bytes that become readable, in the order of the exposure's segments.
    pub bytes: Vec<u8>,
    /// The writes of the device that are not made: offset in bytes, and whole sectors. Not in the
    /// log: replay makes them of the bytes above and of what the device has around them.
    pub writes: Vec<(u64, Vec<u8>)>,
}

/// Writes by where they go; none overlaps another one, and such as continue each other are joined.
#[derive(Debug, Default)]
struct Writes {
    by_offset: BTreeMap<u64, Vec<u8>>,
    bytes: u64,
    /// A record before the first that carries some of it, or that one.
    first: Option<Lsn>,
}

#[derive(Debug, Default)]
struct State {
    waiting: Writes,
    writing: Writes,
}

/// All of them. Any number of threads.
#[derive(Debug, Default)]
pub struct HomeWrites {
    /// Bytes in `waiting` and `writing`: 0 says that there are none.
    bytes: AtomicU64,
    /// Rank 5b: one thread writes.
    writer: Mutex<(), { rank::HOME_WRITER }>,
    /// Rank 6.5.
    state: Mutex<State, { rank::HOME_WRITES }>,
}

/// Copies of what lies in a range of the device.
#[derive(Debug)]
pub struct HomeOverlay(Vec<(u64, Vec<u8>)>);

impl HomeOverlay {
    /// Puts them over what was read at a device offset.
    pub fn apply(&self, buf: &mut [u8], at: u64) {
        for (start, bytes) in &self.0 {
            let from = in_memory(start - at);
            buf[from..from + bytes.len()].copy_from_slice(bytes);
        }
    }
}

impl Writes {
    /// Returns those that overlap a range.
    fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, &[u8])> {
        let start = range.start;
        let before = self.by_offset.range(..start).next_back();
        let before = before.filter(|(at, bytes)| end_of(**at, bytes) > start);
        let all = before.into_iter().chain(self.by_offset.range(range.clone()));
        all.map(|(at, bytes)| (*at, &bytes[..]))
    }

    fn take(&mut self, at: u64) -> Vec<u8> {
        let bytes = self.by_offset.remove(&at).expect("it was found there");
        self.bytes -= bytes.len() as u64;
        bytes
    }

    /// Adds a write over what is there.
    fn put(&mut self, start: u64, bytes: &[u8], lsn: Lsn) {
        self.first = Some(self.first.map_or(lsn, |first| first.min(lsn)));
        let before = self.by_offset.range(..=start).next_back();
        let joined = before.and_then(|(at, met)| {
            let from = in_memory(start - at);
            let overlaps = from < met.len();
            let continues = from == met.len() && from + bytes.len() <= WRITE_BYTES_MAX;
            (overlaps || continues).then_some((*at, from))
        });
        let (at, mut all) = match joined {
            None => (start, bytes.to_vec()),
            Some((at, from)) => {
                let mut all = self.take(at);
                all.resize(all.len().max(from + bytes.len()), 0);
                all[from..from + bytes.len()].copy_from_slice(bytes);
                (at, all)
            }
        };
        // Of what begins within it the rest stays.
        let next =
            |writes: &Self, end: u64| writes.by_offset.range(at..end).next().map(|(at, _)| *at);
        while let Some(met) = next(self, end_of(at, &all)) {
            let rest = self.take(met);
            let known = in_memory(end_of(at, &all) - met);
            all.extend_from_slice(rest.get(known..).unwrap_or_default());
        }
        self.bytes += all.len() as u64;
        self.by_offset.insert(at, all);
    }
}

impl State {
    fn bytes(&self) -> u64 {
        self.waiting.bytes + self.writing.bytes
    }

    /// Lets what could not be written wait again, below what came meanwhile (I-HOM-3).
    fn take_back(&mut self) {
        let newer = std::mem::replace(&mut self.waiting, std::mem::take(&mut self.writing));
        if let Some(first) = newer.first {
            newer.by_offset.iter().for_each(|(at, bytes)| self.waiting.put(*at, bytes, first));
        }
    }
}

fn end_of(start: u64, bytes: &[u8]) -> u64 {
    start + bytes.len() as u64
}

fn in_memory(bytes: u64) -> usize {
    usize::try_from(bytes).expect("no more than is in memory")
}

impl HomeWrites {
    /// So many bytes are worth a write of their own.
    pub(crate) const BYTES_DUE: u64 = WRITE_BYTES_MAX as u64;
    /// More than so many bytes do not wait: records carry nothing then.
    pub(crate) const BYTES_MAX: u64 = 4 * Self::BYTES_DUE;

    /// Returns what a replay found that the device may not have.
    pub fn of(replayed: &ReplayReport) -> Self {
        let homes = Self::default();
        homes.add(replayed.last, &replayed.homes);
        homes
    }

    /// Adds the writes of a record.
    pub(crate) fn add(&self, lsn: Lsn, writes: &[(u64, Vec<u8>)]) {
        if writes.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        for (at, bytes) in writes {
            state.waiting.put(*at, bytes, lsn);
        }
        self.bytes.store(state.bytes(), Ordering::Release);
    }

    /// Returns how many bytes are not at home.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Returns the first record that carries data which is not at home.
    pub(crate) fn first(&self) -> Option<Lsn> {
        if self.bytes() == 0 || planted(PlantedBug::SealedBeforeHome) {
            return None;
        }
        let state = self.state.lock();
        [state.writing.first, state.waiting.first].into_iter().flatten().min()
    }

    /// Returns whether some of a range of the device is not at home.
    #[inline]
    pub fn meets(&self, range: &Range<u64>) -> bool {
        self.bytes() > 0 && self.finds(range)
    }

    #[cold]
    fn finds(&self, range: &Range<u64>) -> bool {
        let state = self.state.lock();
        [&state.waiting, &state.writing].iter().any(|of| of.overlapping(range).next().is_some())
    }

    /// Copies what of a range is not at home, before the device is read: what goes home in between
    /// is in the copy. `None`: nothing.
    #[inline]
    pub fn overlay(&self, range: &Range<u64>) -> Option<HomeOverlay> {
        if self.bytes() == 0 || planted(PlantedBug::HomeNotRead) { None } else { self.copy(range) }
    }

    #[cold]
    fn copy(&self, range: &Range<u64>) -> Option<HomeOverlay> {
        let state = self.state.lock();
        let parts =
            [&state.writing, &state.waiting].into_iter().flat_map(|of| of.overlapping(range));
        let all: Vec<_> = parts
            .map(|(at, bytes)| {
                let (start, end) = (at.max(range.start), end_of(at, bytes).min(range.end));
                (start, bytes[in_memory(start - at)..in_memory(end - at)].to_vec())
            })
            .collect();
        Some(HomeOverlay(all)).filter(|overlay| !overlay.0.is_empty())
    }

    /// Writes all of them, as of the call, home. No flush.
    ///
    /// # Errors
    /// The device's; what was not written waits for the next call.
    pub fn write(&self, device: &dyn BlockDevice) -> Result<()> {
        if self.bytes() == 0 {
            return Ok(());
        }
        let _one = self.writer.lock();
        if planted(PlantedBug::HomeNotWritten) {
            *self.state.lock() = State::default();
            self.bytes.store(0, Ordering::Release);
            return Ok(());
        }
        let mut state = self.state.lock();
        debug_assert!(state.writing.by_offset.is_empty(), "I-HOM-3: one thread writes");
        state.writing = std::mem::take(&mut state.waiting);
        let writes = state.writing.by_offset.clone();
        drop(state);
        let written = writes.iter().try_for_each(|(at, bytes)| write_at(device, *at, bytes));
        let mut state = self.state.lock();
        if written.is_ok() {
            state.writing = Writes::default();
        } else {
            state.take_back();
        }
        self.bytes.store(state.bytes(), Ordering::Release);
        written
    }

    /// Makes the writes that a write of the device must come after, because they have sectors in
    /// common (I-HOM-2).
    ///
    /// # Errors
    /// As [`write`](Self::write).
    #[inline]
    pub fn settle(&self, range: &Range<u64>, device: &dyn BlockDevice) -> Result<()> {
        while self.meets(range) && !planted(PlantedBug::HomeOverNewer) {
            self.write(device)?;
        }
        debug_assert!(
            !self.meets(range) || planted(PlantedBug::HomeOverNewer),
            "I-HOM-2: nothing is written later to {range:?} than what comes now"
        );
        Ok(())
    }
}

/// Writes bytes at an offset; where they begin or end within a sector the device keeps what is
/// around them.
fn write_at(device: &dyn BlockDevice, at: u64, bytes: &[u8]) -> Result<()> {
    let sector = u64::from(device.geometry().logical_block_size);
    let (start, end) = (at / sector * sector, end_of(at, bytes).next_multiple_of(sector));
    let mut buf = AlignedBuf::zeroed(in_memory(end - start));
    if start < at {
        device.read_at(&mut buf[..in_memory(sector)], start)?;
    }
    if end_of(at, bytes) < end {
        let last = buf.len() - in_memory(sector);
        device.read_at(&mut buf[last..], end - sector)?;
    }
    buf[in_memory(at - start)..][..bytes.len()].copy_from_slice(bytes);
    for (index, part) in buf.chunks(WRITE_BYTES_MAX).enumerate() {
        device.write_at(part, start + (index * WRITE_BYTES_MAX) as u64)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bedplate_block::{BlockDevice, MemoryDevice};

    use super::*;

    fn shown(homes: &HomeWrites, device: &dyn BlockDevice, at: u64, len: usize) -> Vec<u8> {
        let range = at..at + len as u64;
        let overlay = homes.overlay(&range);
        let mut buf = AlignedBuf::zeroed(len);
        device.read_at(&mut buf, at).expect("memory reads");
        overlay.iter().for_each(|overlay| overlay.apply(&mut buf, at));
        buf.to_vec()
    }

    #[test]
    fn i_hom_2_i_hom_3_what_is_not_at_home_is_read_and_the_newest_of_each_byte_goes_there() {
        let device = MemoryDevice::new(64 << 10);
        let homes = HomeWrites::default();
        assert!(homes.first().is_none() && homes.overlay(&(0..4096)).is_none());
        homes.add(Lsn(7), &[(1024, vec![1; 1024]), (8192, vec![2; 512])]);
        homes.add(Lsn(9), &[(1536, vec![3; 1024])]);
        homes.add(Lsn(10), &[(512, vec![4; 512]), (7680, vec![5; 1024])]);
        assert_eq!((homes.first(), homes.bytes()), (Some(Lsn(7)), 2048 + 1024));
        let expected =
            [vec![0; 512], vec![4; 512], vec![1; 512], vec![3; 1024], vec![0; 512]].concat();
        assert_eq!(shown(&homes, &*device, 0, 3072), expected);
        assert_eq!(shown(&homes, &*device, 1536, 512), [3; 512]);
        assert_eq!(shown(&homes, &*device, 7680, 1024), [5; 1024]);
        assert!(homes.meets(&(0..513)) && !homes.meets(&(2560..7680)) && !homes.meets(&(0..512)));
        homes.settle(&(2560..7680), &*device).expect("nothing is written");
        assert_eq!(homes.bytes(), 3072);
        homes.settle(&(0..513), &*device).expect("memory takes it");
        assert_eq!((homes.first(), homes.bytes()), (None, 0));
        assert_eq!(shown(&homes, &*device, 0, 3072), expected);
    }

    #[test]
    fn what_could_not_be_written_waits_below_what_came_since() {
        let homes = HomeWrites::default();
        homes.add(Lsn(3), &[(0, vec![1; 2048])]);
        let mut state = homes.state.lock();
        state.writing = std::mem::take(&mut state.waiting);
        drop(state);
        homes.add(Lsn(5), &[(512, vec![2; 512]), (4096, vec![3; 512])]);
        homes.state.lock().take_back();
        assert_eq!(homes.first(), Some(Lsn(3)));
        let device = MemoryDevice::new(64 << 10);
        homes.write(&*device).expect("memory takes it");
        assert_eq!(
            shown(&homes, &*device, 0, 2048),
            [vec![1; 512], vec![2; 512], vec![1; 1024]].concat()
        );
        assert_eq!(shown(&homes, &*device, 4096, 512), [3; 512]);
    }

    #[test]
    fn what_surrounds_a_part_of_a_sector_stays() {
        let device = MemoryDevice::new(64 << 10);
        device.write_at(&AlignedBuf::from_slice(&[9; 2048]), 0).expect("memory takes it");
        let homes = HomeWrites::default();
        homes.add(Lsn(1), &[(700, vec![1; 700])]);
        homes.write(&*device).expect("memory takes it");
        let expected = [vec![9; 700], vec![1; 700], vec![9; 648]].concat();
        assert_eq!(shown(&homes, &*device, 0, 2048), expected);
    }

    #[test]
    fn neighbours_go_home_in_one_write_of_bounded_length() {
        let homes = HomeWrites::default();
        let count = 2 * WRITE_BYTES_MAX as u64 / 512;
        (0..count).for_each(|at| homes.add(Lsn(at + 1), &[(at * 512, vec![1; 512])]));
        assert_eq!(homes.state.lock().waiting.by_offset.len(), 2);
        assert_eq!(homes.bytes(), count * 512);
    }
}
