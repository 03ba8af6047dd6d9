//! The tests of the cache, and what they share.

mod behind;
mod flight;
mod model;
mod policy;
mod race;
mod release;
mod resize;
mod sharing;
mod threads;
mod writes;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::{Backing, CacheOptions, CachedFile, PageCache};
use bedplate_store::{Error, ErrorKind, Result};

/// What bytes beyond the end of the file hold on the "device": shows where they leak.
const GARBAGE: u8 = 0xEE;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Read(u64, usize),
    Write(u64, usize),
}

/// A file in memory that behaves as the data path promises, and no better: garbage beyond its size,
/// errors on demand.
#[derive(Debug)]
struct MemoryFile {
    align: u64,
    block_size: u64,
    bytes: Mutex<Vec<u8>>,
    size: AtomicU64,
    reserved: Mutex<Vec<bool>>,
    calls: Mutex<Vec<Call>>,
    /// Writes that succeed before one fails; negative: none fails.
    writes_left: AtomicI64,
    reads_left: AtomicI64,
    reserves_left: AtomicI64,
}

impl MemoryFile {
    fn new(align: u32, block_size: u32, content: &[u8]) -> Arc<Self> {
        let mut bytes = content.to_vec();
        bytes.resize(content.len().next_multiple_of(align as usize), GARBAGE);
        Arc::new(Self {
            align: align.into(),
            block_size: block_size.into(),
            bytes: Mutex::new(bytes),
            size: AtomicU64::new(content.len() as u64),
            reserved: Mutex::default(),
            calls: Mutex::default(),
            writes_left: AtomicI64::new(-1),
            reads_left: AtomicI64::new(-1),
            reserves_left: AtomicI64::new(-1),
        })
    }

    fn content(&self) -> Vec<u8> {
        let mut bytes = self.bytes.lock().clone();
        bytes.resize(usize::try_from(self.size()).expect("a small file"), 0);
        bytes
    }

    fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock())
    }

    fn truncate(&self, size: u64) {
        let mut bytes = self.bytes.lock();
        let old = self.size.swap(size, Ordering::SeqCst);
        let end = (size as usize).min(bytes.len());
        if size > old {
            bytes[(old as usize).min(end)..end].fill(0);
        }
        bytes[end..].fill(GARBAGE);
    }

    fn punch(&self, offset: usize, len: usize) {
        let mut bytes = self.bytes.lock();
        let end = (offset + len).min(bytes.len());
        bytes[offset.min(end)..end].fill(0);
    }

    fn spend(left: &AtomicI64, what: &str) -> Result<()> {
        if left.load(Ordering::SeqCst) >= 0 && left.fetch_sub(1, Ordering::SeqCst) == 0 {
            left.store(-1, Ordering::SeqCst);
            return Err(Error::new(ErrorKind::Io, format!("injected: {what}")));
        }
        Ok(())
    }
}

impl Backing for MemoryFile {
    fn read_direct(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        assert!(
            offset.is_multiple_of(self.align) && (buf.len() as u64).is_multiple_of(self.align),
            "aligned reads only"
        );
        Self::spend(&self.reads_left, "read")?;
        self.calls.lock().push(Call::Read(offset, buf.len()));
        let bytes = self.bytes.lock();
        let start = (offset as usize).min(bytes.len());
        let n = buf.len().min(bytes.len() - start);
        buf[..n].copy_from_slice(&bytes[start..start + n]);
        Ok(n)
    }

    fn write_direct(&self, buf: &[u8], offset: u64, size_after: u64) -> Result<()> {
        assert!(
            offset.is_multiple_of(self.align)
                && (buf.len() as u64).is_multiple_of(self.align)
                && !buf.is_empty(),
            "aligned writes only"
        );
        Self::spend(&self.writes_left, "write")?;
        self.calls.lock().push(Call::Write(offset, buf.len()));
        let (start, end) = (offset as usize, offset as usize + buf.len());
        let reserved = self.reserved.lock();
        let block = self.block_size as usize;
        assert!(
            (start / block..end.div_ceil(block)).all(|b| reserved.get(b) == Some(&true)),
            "every block written was reserved"
        );
        drop(reserved);
        let mut bytes = self.bytes.lock();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        let size = self.size.load(Ordering::SeqCst) as usize;
        if size < start {
            bytes[size..start].fill(0);
        }
        bytes[start..end].copy_from_slice(buf);
        let size = size.max(end.min(size_after as usize));
        bytes[size.min(end)..end].fill(GARBAGE);
        self.size.store(size as u64, Ordering::SeqCst);
        Ok(())
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        assert!(
            offset.is_multiple_of(self.align) && len.is_multiple_of(self.align),
            "whole units only"
        );
        Self::spend(&self.reserves_left, "no space")
            .map_err(|e| Error { kind: ErrorKind::NoSpace, ..e })?;
        let mut reserved = self.reserved.lock();
        let (first, end) = (
            (offset / self.block_size) as usize,
            (offset + len).div_ceil(self.block_size) as usize,
        );
        if reserved.len() < end {
            reserved.resize(end, false);
        }
        reserved[first..end].fill(true);
        Ok(())
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::SeqCst)
    }
}

/// Knows for one block which versions a read that begins now may return: those that no completed
/// write has overtaken. A write overtakes what was complete when it began.
#[derive(Debug)]
struct History {
    started: u64,
    legal: BTreeSet<u64>,
    complete: BTreeSet<u64>,
}

impl History {
    /// Version 0, complete.
    fn fresh() -> Self {
        Self { started: 0, legal: [0].into(), complete: [0].into() }
    }

    fn begin_write(&mut self) -> (u64, BTreeSet<u64>) {
        self.started += 1;
        self.legal.insert(self.started);
        (self.started, self.complete.clone())
    }

    fn end_write(&mut self, version: u64, overtaken: &BTreeSet<u64>) {
        self.complete.insert(version);
        self.complete.retain(|v| !overtaken.contains(v));
        self.legal.retain(|v| !overtaken.contains(v));
    }

    /// What a read that begins now may return: see [`allows`](Self::allows).
    fn begin_read(&self) -> (u64, BTreeSet<u64>) {
        (self.started, self.legal.clone())
    }

    /// Whether a read that began so may return a version: one that was not overtaken then, or one
    /// that began later.
    fn allows((started, legal): &(u64, BTreeSet<u64>), version: u64) -> bool {
        version > *started || legal.contains(&version)
    }
}

/// A small cache that does everything on the caller's thread, in order.
fn options(cap_pages: u64) -> CacheOptions {
    CacheOptions {
        cap_bytes: cap_pages * 4096,
        io_align: 4096,
        block_size: 4096,
        read_ahead_bytes_min: 64 << 10,
        read_ahead_bytes_max: 2 << 20,
        write_behind_percent_start: 25,
        write_behind_percent_max: 50,
        write_behind_clusters: 0,
        write_behind_random: 0,
        read_threads: 0,
        write_threads: 0,
    }
}

struct Setup {
    cache: Arc<PageCache>,
    backing: Arc<MemoryFile>,
    file: CachedFile,
    size: Arc<AtomicU64>,
}

fn setup(options: &CacheOptions, content: &[u8]) -> Setup {
    let cache = PageCache::new(options);
    let backing = MemoryFile::new(options.io_align, options.block_size, content);
    let size = Arc::new(AtomicU64::new(content.len() as u64));
    let weak: Weak<MemoryFile> = Arc::downgrade(&backing);
    let file = cache.file(7, weak, Arc::clone(&size));
    Setup { cache, backing, file, size }
}

/// Forgets the clean pages.
fn drop_clean(file: &CachedFile) {
    file.pause();
    file.resume();
}

/// Bytes that differ from place to place.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 4096 * 31 + i % 251) as u8).collect()
}

/// A small generator of numbers, the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % n
    }
}
