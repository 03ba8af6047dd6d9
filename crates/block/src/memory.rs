//! A device in memory: sparse, and as parallel as its chunks.
//!
//! ```text
//!   root ─► mid (16 GiB) ─► leaf (16 MiB) ─► chunk (16 KiB, behind its own lock)
//! ```
//! A table or a chunk comes into being when it is first written; a hole reads as zeros. So a device
//! of 100 TiB costs what is stored on it. A device may start from a [`Snapshot`], of which it
//! copies a chunk when it first writes there. Two transfers meet only in the lock of a chunk they
//! share; one that spans chunks is atomic chunk by chunk, as on a disk.

use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;

use crate::check::{Limits, assert_geometry};
use crate::counters::LiveCounters;
use crate::inline::{InlineQueue, Positioned};
use crate::{
    BlockDevice, DeviceCounters, DeviceQueue, EngineReport, Geometry, Operation, QueueOptions,
    Request, Result, Snapshot,
};

const CHUNK_BYTES: usize = 16 << 10;
const FAN_OUT: usize = 1024;
const LEAF_BYTES: u64 = (CHUNK_BYTES * FAN_OUT) as u64;
const MID_BYTES: u64 = LEAF_BYTES * FAN_OUT as u64;
const _: () = assert!(
    CHUNK_BYTES.is_power_of_two() && CHUNK_BYTES >= crate::AlignedBuf::ALIGN,
    "a chunk begins where a buffer may"
);

/// `None` once discarded: reads as zeros.
type Chunk = RwLock<Option<Box<[u8]>>>;
type Table<T> = Box<[OnceLock<T>]>;

fn table<T>(len: usize) -> Table<T> {
    (0..len).map(|_| OnceLock::new()).collect()
}

/// A sparse device in memory. Nothing survives the process; a flush only counts.
#[derive(Debug)]
pub struct MemoryDevice {
    shared: Arc<Memory>,
}

struct Memory {
    geometry: Geometry,
    size_bytes: u64,
    root: Table<Table<Table<Chunk>>>,
    /// What chunks that do not exist read as; `None`: zeros. Held shared while a chunk is made and
    /// exclusive while a range is cleared, so that no chunk is made from bytes that were just
    /// cleared. Taken before a chunk's lock.
    base: Option<RwLock<Snapshot>>,
    counters: LiveCounters,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({} bytes)", self.size_bytes)
    }
}

impl MemoryDevice {
    /// The geometry of [`MemoryDevice::new`]: as strict as a disk with 512-byte sectors, so that
    /// code tested on memory runs on a disk.
    pub const GEOMETRY: Geometry = Geometry {
        logical_block_size: 512,
        physical_block_size: 4096,
        buffer_align: 512,
        untorn_unit: 512,
        row_bytes: 0,
        volatile_cache: false,
        read_only: false,
    };

    /// Makes a device of `size_bytes` that reads as zeros; memory is taken as it is written. The
    /// size is rounded down to a whole sector.
    #[must_use]
    pub fn new(size_bytes: u64) -> Arc<Self> {
        Self::with_geometry(size_bytes, Self::GEOMETRY)
    }

    /// Makes a device that states and enforces `geometry`.
    ///
    /// # Panics
    /// When the geometry breaks its own rules (sizes are powers of two, a physical block holds a
    /// logical one).
    #[must_use]
    pub fn with_geometry(size_bytes: u64, geometry: Geometry) -> Arc<Self> {
        Self::build(size_bytes, geometry, None)
    }

    /// Makes a device that starts with the content of `snapshot` and states `geometry`. Takes
    /// constant time.
    ///
    /// # Panics
    /// As [`with_geometry`](Self::with_geometry).
    #[must_use]
    pub fn from_snapshot(snapshot: &Snapshot, geometry: Geometry) -> Arc<Self> {
        Self::build(snapshot.size_bytes(), geometry, Some(RwLock::new(snapshot.clone())))
    }

    fn build(size_bytes: u64, geometry: Geometry, base: Option<RwLock<Snapshot>>) -> Arc<Self> {
        assert_geometry(&geometry);
        let size_bytes = size_bytes - size_bytes % u64::from(geometry.logical_block_size);
        let mids = usize::try_from(size_bytes.div_ceil(MID_BYTES))
            .expect("a device's table fits the address space");
        Arc::new(Self {
            shared: Arc::new(Memory {
                geometry,
                size_bytes,
                root: table(mids),
                base,
                counters: LiveCounters::default(),
            }),
        })
    }

    /// Returns the content; takes time in proportion to what was written. Writes that run meanwhile
    /// may be in it or not, chunk by chunk.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.shared.snapshot()
    }
}

/// Where a device offset lives.
struct Place {
    mid: usize,
    leaf: usize,
    chunk: usize,
    byte: usize,
}

impl Place {
    fn offset(&self) -> u64 {
        self.mid as u64 * MID_BYTES
            + self.leaf as u64 * LEAF_BYTES
            + (self.chunk * CHUNK_BYTES + self.byte) as u64
    }

    /// Copies the chunk of this place out of `base`; beyond its end there are zeros.
    fn copy_chunk(&self, base: &Snapshot) -> Box<[u8]> {
        let start = self.offset() - self.byte as u64;
        debug_assert!(
            start.is_multiple_of(CHUNK_BYTES as u64) && start < base.size_bytes(),
            "a chunk that is copied lies in the snapshot: byte {start}"
        );
        let len = (CHUNK_BYTES as u64).min(base.size_bytes() - start);
        let mut bytes = vec![0; CHUNK_BYTES].into_boxed_slice();
        base.read(&mut bytes[..len as usize], start);
        bytes
    }
}

fn place(offset: u64) -> Place {
    Place {
        mid: (offset / MID_BYTES) as usize,
        leaf: (offset % MID_BYTES / LEAF_BYTES) as usize,
        chunk: (offset % LEAF_BYTES) as usize / CHUNK_BYTES,
        byte: offset as usize % CHUNK_BYTES,
    }
}

/// Splits a range into pieces that each lie within one chunk: device offset, and length.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize)> {
    let end = offset + len;
    std::iter::successors(Some(offset), |at| {
        Some((at / CHUNK_BYTES as u64 + 1) * CHUNK_BYTES as u64)
    })
    .take_while(move |at| *at < end)
    .map(move |at| (at, (end - at).min(CHUNK_BYTES as u64 - at % CHUNK_BYTES as u64) as usize))
}

impl Memory {
    fn limits(&self) -> Limits<'_> {
        Limits { geometry: &self.geometry, size_bytes: self.size_bytes }
    }

    fn chunk(&self, at: &Place) -> Option<&Chunk> {
        self.root[at.mid].get()?[at.leaf].get()?[at.chunk].get()
    }

    fn chunk_or_new(&self, at: &Place) -> &Chunk {
        let mid = self.root[at.mid].get_or_init(|| table(FAN_OUT));
        let chunk = &mid[at.leaf].get_or_init(|| table(FAN_OUT))[at.chunk];
        if let Some(chunk) = chunk.get() {
            return chunk;
        }
        let base = self.base.as_ref().map(RwLock::read);
        chunk.get_or_init(|| RwLock::new(base.map(|base| at.copy_chunk(&base))))
    }

    fn read_pieces(&self, mut buf: &mut [u8], offset: u64) {
        for (at, len) in pieces(offset, buf.len() as u64) {
            let (part, rest) = buf.split_at_mut(len);
            let at = place(at);
            match self.chunk(&at).map(|chunk| chunk.read()).as_deref() {
                Some(Some(bytes)) => part.copy_from_slice(&bytes[at.byte..at.byte + len]),
                Some(None) => part.fill(0),
                None => self.read_base(part, at.offset()),
            }
            buf = rest;
        }
    }

    fn read_base(&self, part: &mut [u8], offset: u64) {
        match &self.base {
            Some(base) => base.read().read(part, offset),
            None => part.fill(0),
        }
    }

    fn snapshot(&self) -> Snapshot {
        let mut content = self
            .base
            .as_ref()
            .map_or_else(|| Snapshot::empty(self.size_bytes), |base| base.read().clone());
        let mids =
            self.root.iter().enumerate().filter_map(|(mid, table)| Some((mid, table.get()?)));
        let leaves = mids.flat_map(|(mid, table)| {
            table
                .iter()
                .enumerate()
                .filter_map(move |(leaf, table)| Some((mid, leaf, table.get()?)))
        });
        for (mid, leaf, table) in leaves {
            for (chunk, bytes) in
                table.iter().enumerate().filter_map(|(chunk, bytes)| Some((chunk, bytes.get()?)))
            {
                let start = Place { mid, leaf, chunk, byte: 0 }.offset();
                let len = (CHUNK_BYTES as u64).min(self.size_bytes - start);
                match &*bytes.read() {
                    Some(bytes) => content.write(&bytes[..len as usize], start),
                    None => content.clear(start, len),
                }
            }
        }
        content
    }

    fn write_pieces(&self, mut buf: &[u8], offset: u64) {
        for (at, len) in pieces(offset, buf.len() as u64) {
            let (part, rest) = buf.split_at(len);
            let at = place(at);
            let mut chunk = self.chunk_or_new(&at).write();
            let bytes = chunk.get_or_insert_with(|| vec![0; CHUNK_BYTES].into_boxed_slice());
            bytes[at.byte..at.byte + len].copy_from_slice(part);
            buf = rest;
        }
    }

    /// Zeroes a range and gives whole chunks back. Skips holes table by table, so a whole sparse
    /// device is quick.
    fn clear(&self, offset: u64, len: u64) {
        let mut base = self.base.as_ref().map(RwLock::write);
        if let Some(base) = &mut base {
            base.clear(offset, len);
        }
        let end = offset + len;
        let mut next = offset;
        while next < end {
            let at = place(next);
            let Some(mid) = self.root[at.mid].get() else {
                next = (next / MID_BYTES + 1) * MID_BYTES;
                continue;
            };
            let Some(leaf) = mid[at.leaf].get() else {
                next = (next / LEAF_BYTES + 1) * LEAF_BYTES;
                continue;
            };
            let stop = end.min((next / CHUNK_BYTES as u64 + 1) * CHUNK_BYTES as u64);
            if let Some(chunk) = leaf[at.chunk].get() {
                clear_chunk(chunk, at.byte, (stop - next) as usize);
            }
            next = stop;
        }
    }
}

fn clear_chunk(chunk: &Chunk, byte: usize, len: usize) {
    let mut chunk = chunk.write();
    if len == CHUNK_BYTES {
        *chunk = None;
    } else if let Some(bytes) = &mut *chunk {
        bytes[byte..byte + len].fill(0);
    }
}

const NAME: &str = "memory";

impl Positioned for Memory {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let checked =
            self.limits().transfer(NAME, Operation::Read, offset, buf.len(), buf.as_ptr() as usize);
        self.counters.count(Operation::Read, buf.len() as u64, checked)?;
        self.read_pieces(buf, offset);
        Ok(())
    }

    fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
        let checked = self.limits().transfer(
            NAME,
            Operation::Write,
            offset,
            buf.len(),
            buf.as_ptr() as usize,
        );
        self.counters.count(Operation::Write, buf.len() as u64, checked)?;
        self.write_pieces(buf, offset);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.counters.count(Operation::Flush, 0, Ok(()))
    }

    fn check(&self, request: &Request) -> Result<()> {
        self.counters.count(Operation::Queue, 0, self.limits().request(NAME, request))
    }
}

impl BlockDevice for MemoryDevice {
    fn name(&self) -> &str {
        NAME
    }

    fn geometry(&self) -> Geometry {
        self.shared.geometry
    }

    fn size_bytes(&self) -> u64 {
        self.shared.size_bytes
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.shared.read(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.shared.write(buf, offset)
    }

    fn flush(&self) -> Result<()> {
        self.shared.flush()
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        let checked = self.shared.limits().range(NAME, offset, len);
        self.shared.counters.count(Operation::Write, len, checked)?;
        self.shared.clear(offset, len);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<bool> {
        self.shared.limits().range(NAME, offset, len)?;
        self.shared.clear(offset, len);
        Ok(true)
    }

    fn discard_to_zeros(&self, offset: u64, len: u64) -> Result<bool> {
        self.discard(offset, len)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn DeviceQueue>> {
        Ok(Box::new(InlineQueue::new(Arc::clone(&self.shared), options)))
    }

    fn engine(&self) -> EngineReport {
        EngineReport { name: "memory", fallback: None, threads: None }
    }

    fn counters(&self) -> DeviceCounters {
        self.shared.counters.snapshot()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AlignedBuf;

    #[test]
    fn a_hundred_tebibytes_cost_what_is_stored() {
        let device = MemoryDevice::new(100 << 40);
        let page = AlignedBuf::from_slice(&[7; 4096]);
        for offset in [0, 1 << 30, 50 << 40, (100 << 40) - 4096] {
            device.write_at(&page, offset).unwrap();
        }
        let mut back = AlignedBuf::zeroed(8192);
        device.read_at(&mut back, (100 << 40) - 8192).unwrap();
        assert!(back[..4096].iter().all(|b| *b == 0) && back[4096..].iter().all(|b| *b == 7));
        assert!(device.discard(0, 100 << 40).unwrap());
        device.read_at(&mut back[..4096], 50 << 40).unwrap();
        assert!(back[..4096].iter().all(|b| *b == 0));
    }

    #[test]
    fn a_device_made_from_a_snapshot_changes_without_changing_it() {
        let first = MemoryDevice::new(1 << 20);
        first.write_at(&AlignedBuf::from_slice(&[1; 65536]), 8192).unwrap();
        let snapshot = first.snapshot();
        let second = MemoryDevice::from_snapshot(&snapshot, MemoryDevice::GEOMETRY);
        second.write_at(&AlignedBuf::from_slice(&[2; 512]), 8192).unwrap();
        second.write_zeroes(16384, 20000 / 512 * 512).unwrap();
        let mut expected = snapshot.clone();
        expected.write(&[2; 512], 8192);
        expected.clear(16384, 20000 / 512 * 512);
        assert_eq!(second.snapshot().first_difference(&expected), None);
        assert_eq!(first.snapshot().first_difference(&snapshot), None);
        let mut back = AlignedBuf::zeroed(65536);
        second.read_at(&mut back, 8192).unwrap();
        let mut bytes = vec![0; 65536];
        expected.read(&mut bytes, 8192);
        assert!(back[..] == bytes[..]);
    }

    #[test]
    fn pieces_cover_a_range_once() {
        let got: Vec<_> = pieces(512, 2 * CHUNK_BYTES as u64).collect();
        assert_eq!(
            got,
            vec![
                (512, CHUNK_BYTES - 512),
                (CHUNK_BYTES as u64, CHUNK_BYTES),
                (2 * CHUNK_BYTES as u64, 512)
            ]
        );
        assert_eq!(pieces(512, 0).count(), 0);
    }
}
