//! The metadata tree's file: a growable run of bytes scattered over chunks of the volume.
//!
//! Invariants:
//! - I-REG-1: a chunk and the new length are durable in both superblocks before the tree may use
//!   them. While a volume is formatted there are no superblocks: [`Region::publish`] writes them
//!   when all that they name is durable.
//! - I-REG-4: a page of which the checksum is known is compared when it is read from the volume, and
//!   no other bytes are returned for it (`region/page_sums.rs`).
//! - I-REG-2: after the first failed write or flush every later one fails (a retried flush may
//!   lie).

mod moving;
mod own_pages;
mod page_sums;
mod renewed;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bedplate_block::{AlignedBuf, BlockDevice};
use parking_lot::{Mutex, RwLock};
use redb::StorageBackend;

use crate::copies::right_of_runs;
use crate::planted::{PlantedBug, planted};
use crate::superblock::{ByteRun, GENERATION_MAX, Superblock};
use crate::{Error, ErrorKind, Lsn, Result};

pub use moving::MovedRegion;
pub(super) use moving::PlaceRegion;
pub(super) use own_pages::OwnPage;
pub use page_sums::MetadataCounts;
use page_sums::{Expected, HEADER_BYTES, PageSums};

/// Finds room for the region to grow, also in what records up to the given one freed, which are
/// sealed: asked for bytes, answers with chunks that sum up to at least that many, and with the
/// blocks that their lists need.
pub type GrowRegion = Box<dyn Fn(u64, Lsn, ListsFor<'_>) -> Result<Growth> + Send + Sync>;

/// Says how many blocks of lists these chunks need.
pub type ListsFor<'a> = &'a dyn Fn(&[ByteRun]) -> u64;

/// What the region grows by.
pub struct Growth {
    /// The chunks that are added.
    pub chunks: Vec<ByteRun>,
    /// Where their lists stand.
    pub lists: Vec<ByteRun>,
}

/// The region, shared by the tree's backend and the file system.
pub struct Region {
    device: Arc<dyn BlockDevice>,
    /// Present content of the superblock; the lock also orders its updates.
    superblock: RwLock<Superblock>,
    grow: Mutex<Option<GrowRegion>>,
    /// Records up to this one are sealed.
    sealed: AtomicU64,
    /// Why the region did not grow when it was last asked to.
    refusal: Mutex<Option<Error>>,
    failed: OnceLock<Error>,
    /// Whether the volume has superblocks.
    published: AtomicBool,
    /// The tree was told of a failure, and serves nothing any more.
    lost: Arc<AtomicBool>,
    /// Writes of a read-only mount stay here.
    overlay: Option<Mutex<Overlay>>,
    sums: PageSums,
}

/// Pages that a read-only mount would have written.
#[derive(Default)]
struct Overlay {
    pages: BTreeMap<u64, Box<[u8]>>,
    len: u64,
}

const PAGE: u64 = 4096;

impl Region {
    /// Opens the region that a superblock describes.
    pub fn new(device: Arc<dyn BlockDevice>, superblock: Superblock, read_only: bool) -> Self {
        let overlay = read_only
            .then(|| Mutex::new(Overlay { len: superblock.metadata_len, ..Overlay::default() }));
        Self {
            device,
            superblock: RwLock::new(superblock),
            grow: Mutex::new(None),
            sealed: AtomicU64::new(0),
            refusal: Mutex::new(None),
            failed: OnceLock::new(),
            published: AtomicBool::new(true),
            lost: Arc::default(),
            overlay,
            sums: PageSums::default(),
        }
    }

    /// Returns the region of a volume that is being formatted.
    pub fn unpublished(device: Arc<dyn BlockDevice>, superblock: Superblock) -> Self {
        Self { published: AtomicBool::new(false), ..Self::new(device, superblock, false) }
    }

    /// Makes a volume of it: from here on a mount finds it (S-98).
    pub fn publish(&self) -> Result<()> {
        self.check()?;
        self.latch(self.device.flush().map_err(Error::from))?;
        self.published.store(true, Ordering::Release);
        self.update_superblock(|_| {})
    }

    /// Returns a region that reads the same bytes and keeps in memory what is written to it.
    pub(super) fn shadow(&self) -> Self {
        Self {
            lost: Arc::clone(&self.lost),
            ..Self::new(Arc::clone(&self.device), self.superblock(), true)
        }
    }

    /// Returns whether the tree was told of a failure.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    pub(super) fn set_lost(&self, lost: bool) {
        self.lost.store(lost, Ordering::Release);
    }

    /// Lets the region grow; before this call it is fixed.
    pub fn set_grow(&self, grow: GrowRegion) {
        *self.grow.lock() = Some(grow);
    }

    /// Returns why the region did not grow, if it did not since the last call.
    pub(super) fn take_refusal(&self) -> Option<Error> {
        self.refusal.lock().take()
    }

    /// Takes note that records up to this one are sealed: the region may grow into what they freed.
    pub(super) fn note_sealed(&self, lsn: Lsn) {
        debug_assert!(
            lsn.0 >= self.sealed.load(Ordering::Relaxed),
            "I-LOG-5: what is sealed stays sealed: {lsn:?} comes later"
        );
        self.sealed.store(lsn.0, Ordering::Relaxed);
    }

    /// Returns the superblock as it is now.
    pub fn superblock(&self) -> Superblock {
        self.superblock.read().clone()
    }

    /// Returns how many bytes the tree's file has.
    pub(super) fn metadata_len(&self) -> u64 {
        self.superblock.read().metadata_len
    }

    /// Changes the superblock and makes both copies durable, if there are any yet.
    pub fn update_superblock(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let mut guard = self.superblock.write();
        self.check()?;
        let mut next = guard.clone();
        change(&mut next);
        next.generation = (next.generation + u64::from(!planted(PlantedBug::GenerationStays)))
            .min(GENERATION_MAX);
        if (self.published.load(Ordering::Acquire) && !planted(PlantedBug::SuperblockNotWritten))
            || planted(PlantedBug::PublishedWhileFormatting)
        {
            self.latch(next.write(&self.device))?;
        }
        debug_assert!(
            next.generation >= guard.generation,
            "I-SB-1: the newer copy has the larger generation: {} after {}",
            next.generation,
            guard.generation
        );
        debug_assert!(
            capacity(&next) >= capacity(&guard),
            "I-REG-1: the region keeps its chunks: {:?} after {:?}",
            next.chunks,
            guard.chunks
        );
        *guard = next;
        Ok(())
    }

    fn latch<T>(&self, result: Result<T>) -> Result<T> {
        let result = result.map_err(|error| error.latching("the metadata"));
        if let Err(e) = &result {
            self.failed.get_or_init(|| e.clone());
        }
        assert!(
            result.is_err() || self.failed.get().is_none(),
            "I-REG-2: nothing succeeds after a failure"
        );
        result
    }

    /// Returns whether a write or flush has failed.
    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.failed.get().is_some()
    }

    /// The first failure of a write or flush, if there was one.
    pub fn failed(&self) -> Option<Error> {
        self.failed.get().cloned()
    }

    fn check(&self) -> Result<()> {
        self.failed().map_or(Ok(()), Err)
    }

    /// Reads bytes of the tree's file from the volume, past every overlay.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.read_device(offset, out)
    }

    /// Returns what was compared with checksums, and what came of it.
    pub fn counts(&self) -> MetadataCounts {
        self.sums.counts()
    }

    /// Compares what was read of the tree's file with its checksum, where that is known, and takes
    /// another copy where it differs (I-REG-4).
    fn compare(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let Some(expected) = self.sums.expected(offset, out.len()) else { return Ok(()) };
        if !expected.is_met_by(out) && !planted(PlantedBug::PageNotCompared) {
            let runs = plan(&self.superblock.read(), offset, out.len() as u64)?;
            let places: Vec<(u64, u64)> = runs.iter().map(|run| (run.start, run.len)).collect();
            match right_of_runs(&self.device, &places, &|bytes| expected.is_met_by(bytes))? {
                Some(right) => {
                    out.copy_from_slice(&right);
                    self.sums.healed.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(
                        event = "metadata_healed",
                        "{}: a page of the metadata at byte {} is not what was written; another \
                         copy is, and counts",
                        self.device.name(),
                        runs.first().map_or(0, |run| run.start)
                    );
                }
                // Neither slot may be in use yet, or redb takes the other one.
                None if matches!(expected, Expected::Header) => return Ok(()),
                None => return Err(self.lost_page(&runs)),
            }
        }
        debug_assert!(
            expected.is_met_by(out) || planted(PlantedBug::PageNotCompared),
            "I-REG-4: what is returned of a page has its checksum: byte {offset}"
        );
        self.sums.note_read(offset, out, expected);
        Ok(())
    }

    #[cold]
    fn lost_page(&self, runs: &[ByteRun]) -> Error {
        self.sums.lost.fetch_add(1, Ordering::Relaxed);
        let (name, at) = (self.device.name(), runs.first().map_or(0, |run| run.start));
        let message = format!(
            "{name}: the metadata tree is damaged: its page at byte {at} is not what was written, \
             and no copy is"
        );
        tracing::info!(event = "metadata_lost", severity = "error", "{message}");
        Error::corrupt(message)
    }

    fn read_device(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let sector = u64::from(self.device.geometry().logical_block_size);
        let mut done = 0;
        // Held until the end: the chunks stay where they are (I-REG-3).
        let superblock = self.superblock.read();
        for run in plan(&superblock, offset, out.len() as u64)? {
            let (start, end) = (run.start / sector * sector, run.end().next_multiple_of(sector));
            let mut buf = AlignedBuf::zeroed(usize_from(end - start)?);
            self.device.read_at(&mut buf, start)?;
            let skip = usize_from(run.start - start)?;
            let len = usize_from(run.len)?;
            out[done..done + len].copy_from_slice(&buf[skip..skip + len]);
            done += len;
        }
        debug_assert_eq!(done, out.len(), "a read of the region fills its buffer");
        Ok(())
    }

    fn write_device(&self, offset: u64, data: &[u8]) -> Result<()> {
        debug_assert!(self.overlay.is_none(), "a read-only mount writes nothing to the region");
        self.check()?;
        let sector = u64::from(self.device.geometry().logical_block_size);
        let mut done = 0;
        let superblock = self.superblock.read();
        for run in plan(&superblock, offset, data.len() as u64)? {
            let (start, end) = (run.start / sector * sector, run.end().next_multiple_of(sector));
            let len = usize_from(run.len)?;
            let mut buf = AlignedBuf::zeroed(usize_from(end - start)?);
            if (start, end) != (run.start, run.end()) {
                self.device.read_at(&mut buf, start)?;
            }
            let skip = usize_from(run.start - start)?;
            buf[skip..skip + len].copy_from_slice(&data[done..done + len]);
            self.latch(self.device.write_at(&buf, start).map_err(Error::from))?;
            done += len;
        }
        debug_assert_eq!(done, data.len(), "a write of the region takes all of its buffer");
        Ok(())
    }

    /// Gives the region another length.
    pub fn resize(&self, len: u64) -> Result<()> {
        self.check()?;
        let (old_len, capacity) = {
            let superblock = self.superblock.read();
            (superblock.metadata_len, superblock.chunks.iter().map(|chunk| chunk.len).sum::<u64>())
        };
        let mut next = self.superblock();
        let mut lists = Vec::new();
        if len > capacity {
            let grow = self.grow.lock();
            let grow = grow.as_ref().ok_or_else(|| {
                Error::new(
                    ErrorKind::NoSpace,
                    "the metadata region cannot grow before the volume is mounted",
                )
            })?;
            let growth = grow(len - capacity, Lsn(self.sealed.load(Ordering::Relaxed)), &|runs| {
                next.lists_for(runs)
            })
            .inspect_err(|e| *self.refusal.lock() = Some(e.clone()))?;
            let block_bytes = usize_from(u64::from(next.block_size))?;
            let places: Vec<u64> = growth
                .lists
                .iter()
                .flat_map(|run| (run.start..run.end()).step_by(block_bytes))
                .collect();
            lists = next.extend(&growth.chunks, places.into_iter());
        }
        assert!(
            next.chunks.iter().map(|chunk| chunk.len).sum::<u64>() >= len,
            "I-REG-1: the chunks hold the new length before it is used"
        );
        if len > old_len {
            for run in plan_runs(&next.chunks, old_len, len - old_len)
                .expect("the capacity was just provided")
            {
                if !planted(PlantedBug::RegionNotZeroed) {
                    self.zero(run)?;
                }
            }
            self.latch(
                lists.iter().try_for_each(|list| list.write(&self.device, next.block_size)),
            )?;
            if !planted(PlantedBug::RegionGrowthWithoutFlush) {
                self.latch(self.device.flush().map_err(Error::from))?;
            }
        }
        self.update_superblock(|superblock| {
            superblock.chunks = next.chunks;
            superblock.lists = next.lists;
            superblock.metadata_len = len;
        })
    }

    /// Zeroes a run whose ends need not be aligned to sectors; what shares its last sector is not
    /// in use yet.
    fn zero(&self, run: ByteRun) -> Result<()> {
        let sector = u64::from(self.device.geometry().logical_block_size);
        assert!(run.start.is_multiple_of(sector), "the tree's file grows in pages");
        self.latch(
            self.device
                .write_zeroes(run.start, run.len.next_multiple_of(sector))
                .map_err(Error::from),
        )
    }
}

fn capacity(superblock: &Superblock) -> u64 {
    superblock.chunks.iter().map(|chunk| chunk.len).sum()
}

/// Splits a run of the tree's file into runs of the volume.
fn plan(superblock: &Superblock, offset: u64, len: u64) -> Result<Vec<ByteRun>> {
    plan_runs(&superblock.chunks, offset, len).ok_or_else(|| {
        Error::corrupt(format!(
            "the metadata tree reaches for bytes {offset}+{len}, beyond its region"
        ))
    })
}

fn plan_runs(chunks: &[ByteRun], offset: u64, len: u64) -> Option<Vec<ByteRun>> {
    let mut runs = Vec::with_capacity(1);
    let (mut skip, mut left) = (offset, len);
    for chunk in chunks {
        if left == 0 {
            break;
        }
        if skip >= chunk.len {
            skip -= chunk.len;
            continue;
        }
        let take = left.min(chunk.len - skip);
        runs.push(ByteRun { start: chunk.start + skip, len: take });
        (skip, left) = (0, left - take);
    }
    debug_assert!(
        left > 0 || runs.iter().map(|run| run.len).sum::<u64>() == len,
        "the runs of a range are as long as it: {len} bytes at {offset}"
    );
    (left == 0).then_some(runs)
}

fn usize_from(n: u64) -> Result<usize> {
    usize::try_from(n).map_err(|_| {
        Error::new(ErrorKind::TooLarge, format!("{n} bytes do not fit the address space"))
    })
}

/// The region as the tree's storage backend.
pub(super) struct Backend(pub(super) Arc<Region>);

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "metadata region on {}", self.0.device.name())
    }
}

fn io_error(error: Error) -> io::Error {
    io::Error::other(error)
}

impl Backend {
    /// Hands a result to the tree, which gives up at the first failure.
    fn told<T>(&self, result: Result<T>) -> io::Result<T> {
        result.map_err(|error| {
            self.0.set_lost(true);
            io_error(error)
        })
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(match &self.0.overlay {
            Some(overlay) => overlay.lock().len,
            None => self.0.superblock.read().metadata_len,
        })
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.saturating_add(out.len() as u64);
        if end < HEADER_BYTES as u64 && self.len()? >= HEADER_BYTES as u64 {
            // A part of the header has no checksum.
            let mut header = [0; HEADER_BYTES];
            self.read(0, &mut header)?;
            out.copy_from_slice(&header[offset as usize..end as usize]);
            return Ok(());
        }
        let read = match &self.0.overlay {
            Some(overlay) => overlay.lock().read(&self.0, offset, out),
            None => self.0.read_device(offset, out),
        };
        self.told(read.and_then(|()| self.0.compare(offset, out)))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        match &self.0.overlay {
            Some(overlay) => overlay.lock().len = len,
            None => self.told(self.0.resize(len))?,
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.0.overlay.is_some() || planted(PlantedBug::MetadataCommitWithoutFlush) {
            return Ok(());
        }
        self.told(
            self.0.check().and_then(|()| self.0.latch(self.0.device.flush().map_err(Error::from))),
        )
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.sums.forget(offset, data.len());
        let written = match &self.0.overlay {
            Some(overlay) => overlay.lock().write(&self.0, offset, data),
            None => {
                self.0.sums.note_header_below(offset, data);
                self.0.write_device(offset, data)
            }
        };
        self.told(written)?;
        self.0.sums.note_written(offset, data);
        Ok(())
    }
}

impl Overlay {
    fn read(&self, region: &Region, offset: u64, out: &mut [u8]) -> Result<()> {
        for (page, at, range) in pages(offset, out.len()) {
            match self.pages.get(&page) {
                Some(bytes) => out[range.clone()].copy_from_slice(&bytes[at..at + range.len()]),
                None => Self::read_below(region, page * PAGE + at as u64, &mut out[range])?,
            }
        }
        Ok(())
    }

    /// Reads from the volume; what lies beyond the region there is zero.
    fn read_below(region: &Region, offset: u64, out: &mut [u8]) -> Result<()> {
        let below = region.superblock.read().metadata_len;
        let have = usize_from(below.saturating_sub(offset))?.min(out.len());
        out[have..].fill(0);
        if have == 0 { Ok(()) } else { region.read_device(offset, &mut out[..have]) }
    }

    fn write(&mut self, region: &Region, offset: u64, data: &[u8]) -> Result<()> {
        for (page, at, range) in pages(offset, data.len()) {
            let bytes = match self.pages.entry(page) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    let mut bytes = vec![0; usize_from(PAGE)?].into_boxed_slice();
                    Self::read_below(region, page * PAGE, &mut bytes)?;
                    entry.insert(bytes)
                }
            };
            bytes[at..at + range.len()].copy_from_slice(&data[range]);
        }
        Ok(())
    }
}

/// Splits a run of bytes at page borders: (page, offset in the page, range in the caller's bytes).
fn pages(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let page_size = usize::try_from(PAGE).expect("4096 fits");
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let position = offset + done as u64;
        let at = usize::try_from(position % PAGE).expect("below 4096");
        let take = (page_size - at).min(len - done);
        done += take;
        debug_assert!(take > 0 && at + take <= page_size, "a part of a page lies in it");
        Some((position / PAGE, at, done - take..done))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_split_at_chunk_borders() {
        let chunks = [ByteRun { start: 100, len: 10 }, ByteRun { start: 200, len: 20 }];
        assert_eq!(
            plan_runs(&chunks, 5, 10),
            Some(vec![ByteRun { start: 105, len: 5 }, ByteRun { start: 200, len: 5 }])
        );
        assert_eq!(plan_runs(&chunks, 10, 20), Some(vec![ByteRun { start: 200, len: 20 }]));
        assert_eq!(plan_runs(&chunks, 20, 11), None);
        assert_eq!(plan_runs(&chunks, 0, 0), Some(vec![]));
    }

    #[test]
    fn pages_split_at_page_borders() {
        let all: Vec<_> = pages(4090, 10).collect();
        assert_eq!(all, vec![(0, 4090, 0..6), (1, 0, 6..10)]);
    }
}
