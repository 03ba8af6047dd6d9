//! The cache, the very source files, under a checker that runs its threads in every kind of order.
#![expect(
    clippy::duplicate_mod,
    reason = "the model checks the very source that runs, over other locks"
)]
#![allow(dead_code, reason = "the model needs a part of what the source offers")]

use std::sync::{Arc, Weak};
use std::time::Instant;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex as DeviceMutex;
use shuttle::sync::atomic::{AtomicU64 as DeviceSize, Ordering};
use shuttle::thread;

use super::History;
use crate::{Backing, CacheOptions, behind, counters, layout, random, readahead, replace, runs};
use bedplate_store::{Error, ErrorKind, Result};

#[path = "../../change.rs"]
mod change;
#[path = "../../core.rs"]
mod core;
#[path = "../../file.rs"]
mod file;
#[path = "../../fill.rs"]
mod fill;
#[path = "../../flight.rs"]
mod flight;
#[path = "../../forget.rs"]
mod forget;
#[path = "../../pages.rs"]
mod pages;
#[path = "../../release.rs"]
mod release;
#[path = "../../shard.rs"]
mod shard;
#[path = "../../sharing.rs"]
mod sharing;
#[path = "../../slab.rs"]
mod slab;
#[path = "../../staging.rs"]
mod staging;
mod sync;
#[path = "../../writeback.rs"]
mod writeback;

use file::CachedFile;
use pages::PageCache;

const BLOCK: usize = 4096;

/// Blocks that hold one number each.
struct Device {
    blocks: Vec<DeviceMutex<u64>>,
    size: DeviceSize,
    /// Fail the write that finds this at 1.
    fail_in: DeviceSize,
}

/// A device takes its time: the others may get far meanwhile.
fn linger() {
    (0..4).for_each(|_| thread::yield_now());
}

impl Backing for Device {
    fn read_direct(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        linger();
        for (i, block) in buf.chunks_mut(BLOCK).enumerate() {
            let at = offset as usize / BLOCK + i;
            let Some(stored) = self.blocks.get(at) else { return Ok(i * BLOCK) };
            block[..8].copy_from_slice(&stored.lock().unwrap().to_le_bytes());
        }
        linger();
        Ok(buf.len())
    }

    fn write_direct(&self, buf: &[u8], offset: u64, size_after: u64) -> Result<()> {
        if self.fail_in.fetch_sub(1, Ordering::SeqCst) == 1 {
            return Err(Error::new(ErrorKind::Io, "injected"));
        }
        linger();
        for (i, block) in buf.chunks(BLOCK).enumerate() {
            *self.blocks[offset as usize / BLOCK + i].lock().unwrap() = number(block);
        }
        linger();
        self.size.fetch_max((offset + buf.len() as u64).min(size_after), Ordering::SeqCst);
        Ok(())
    }

    fn reserve(&self, _offset: u64, _len: u64) -> Result<()> {
        Ok(())
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::SeqCst)
    }
}

fn number(block: &[u8]) -> u64 {
    u64::from_le_bytes(block[..8].try_into().unwrap())
}

struct Stage {
    device: Arc<Device>,
    cache: Arc<PageCache>,
    file: CachedFile,
    history: Vec<DeviceMutex<History>>,
}

/// A file of `blocks` blocks, all 0, in a cache of 16 pages.
fn stage(blocks: usize) -> Arc<Stage> {
    let options = CacheOptions {
        cap_bytes: 0,
        io_align: 4096,
        block_size: 4096,
        read_ahead_bytes_min: 8192,
        read_ahead_bytes_max: 16384,
        write_behind_percent_start: 25,
        write_behind_percent_max: 50,
        write_behind_clusters: 0,
        write_behind_random: 0,
        read_threads: 0,
        write_threads: 0,
    };
    let size = (blocks * BLOCK) as u64;
    let device = Device {
        blocks: (0..blocks).map(|_| DeviceMutex::new(0)).collect(),
        size: DeviceSize::new(size),
        fail_in: DeviceSize::new(0),
    };
    let device = Arc::new(device);
    let cache = PageCache::new(&options);
    let weak: Weak<Device> = Arc::downgrade(&device);
    let file = cache.file(1, weak, Arc::new(sync::AtomicU64::new(size)));
    Arc::new(Stage {
        device,
        cache,
        file,
        history: (0..blocks).map(|_| DeviceMutex::new(History::fresh())).collect(),
    })
}

impl Stage {
    fn direct_write(&self, first: usize, count: usize) {
        let begun: Vec<_> =
            (first..first + count).map(|b| self.history[b].lock().unwrap().begin_write()).collect();
        let data: Vec<u8> = begun.iter().flat_map(|(version, _)| block_of(*version)).collect();
        let offset = (first * BLOCK) as u64;
        let write = self.file.begin_direct_write(offset, data.len() as u64).unwrap();
        self.device.write_direct(&data, offset, 0).unwrap();
        write.refresh(&data);
        for (i, (version, overtaken)) in begun.iter().enumerate() {
            self.history[first + i].lock().unwrap().end_write(*version, overtaken);
        }
    }

    fn cached_write(&self, block: usize) {
        let (version, overtaken) = self.history[block].lock().unwrap().begin_write();
        assert_eq!(self.file.write_at(&block_of(version), (block * BLOCK) as u64).unwrap(), BLOCK);
        self.history[block].lock().unwrap().end_write(version, &overtaken);
    }

    fn read(&self, first: usize, count: usize) {
        let begun: Vec<_> =
            (first..first + count).map(|b| self.history[b].lock().unwrap().begin_read()).collect();
        let mut buf = vec![0; count * BLOCK];
        self.file.read_at(&mut buf, (first * BLOCK) as u64).unwrap();
        for (i, begun) in begun.iter().enumerate() {
            let version = number(&buf[i * BLOCK..]);
            assert!(
                History::allows(begun, version),
                "block {}: read version {version}, allowed were {begun:?}",
                first + i
            );
        }
    }

    /// When all is quiet, the cache holds what the device holds.
    fn check_agreement(&self) {
        for (at, stored) in self.device.blocks.iter().enumerate() {
            let mut buf = vec![0; BLOCK];
            self.file.read_at(&mut buf, (at * BLOCK) as u64).unwrap();
            assert_eq!(
                number(&buf),
                *stored.lock().unwrap(),
                "block {at}: the cache differs from the device"
            );
        }
    }

    /// Flushes; then what was complete before is on the device, whichever thread carried it there.
    fn flush(&self) {
        let before: Vec<_> = self.history.iter().map(|h| h.lock().unwrap().begin_read()).collect();
        self.file.flush().unwrap();
        for (block, before) in self.device.blocks.iter().zip(&before) {
            let version = *block.lock().unwrap();
            assert!(
                History::allows(before, version),
                "after a flush the device holds version {version}, allowed were {before:?}"
            );
        }
    }

    fn check_flushed(&self) {
        self.flush();
        assert_eq!(self.file.dirty_bytes(), 0);
    }
}

fn drop_clean(file: &CachedFile) {
    file.pause();
    file.resume();
}

fn block_of(version: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    block[..8].copy_from_slice(&version.to_le_bytes());
    block
}

type Act = fn(&Stage);

/// Runs each act on a thread of its own, in many orders, with the file's pages in memory before and
/// without; then `check`.
fn explore<const ACTS: usize>(blocks: usize, acts: [Act; ACTS], check: Act) {
    let run = move |warm: bool| {
        let stage = stage(blocks);
        if warm {
            stage.read(0, blocks);
        }
        let threads: Vec<_> = acts
            .into_iter()
            .map(|act| {
                let stage = Arc::clone(&stage);
                thread::spawn(move || {
                    // A thread that yields lets all others go first; so the device's patience alone
                    // would settle how far each thread is.
                    (0..thread_rng().gen_range(0..20)).for_each(|_| thread::yield_now());
                    act(&stage);
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        check(&stage);
    };
    for warm in [false, true] {
        // Two threads have few orders that matter, each of them rare; more threads have many.
        let orders = if ACTS == 2 { 3000 } else { 500 };
        shuttle::check_random(move || run(warm), 500);
        shuttle::check_pct(move || run(warm), orders, 3);
    }
}

/// I-CACHE-2, I-CACHE-3: two direct writers of overlapping ranges, a reader, and a reader that
/// follows itself.
#[test]
fn i_cache_2_and_3_hold_in_any_order() {
    let writer: Act = |s| {
        s.direct_write(0, 2);
        s.direct_write(1, 1);
    };
    let reader: Act = |s| (0..2).for_each(|b| s.read(b, 1));
    let both: Act = |s| s.read(0, 2);
    explore(3, [writer, writer, reader, both], Stage::check_agreement);
    explore(3, [writer, writer], Stage::check_agreement);
}

/// I-CACHE-5: what was read before a change of the map does not enter after it.
#[test]
fn i_cache_5_holds_in_any_order() {
    let reader: Act = |s| s.read(0, 2);
    let change: Act = |s| {
        let begun: Vec<_> = (0..2).map(|b| s.history[b].lock().unwrap().begin_write()).collect();
        let change = s.file.begin_map_change(0, 2 * BLOCK as u64).unwrap();
        (0..2).for_each(|b| *s.device.blocks[b].lock().unwrap() = begun[b].0);
        drop(change);
        (0..2).for_each(|b| s.history[b].lock().unwrap().end_write(begun[b].0, &begun[b].1));
    };
    explore(3, [reader, change, reader, change], Stage::check_agreement);
    // One page, so that its group is new to the cache.
    let lonely: Act = |s| s.read(1, 1);
    explore(3, [lonely, change], Stage::check_agreement);
}

/// I-CACHE-4: writers into the cache, flushes and evictions at once: all reaches the device, in
/// order.
#[test]
fn i_cache_4_holds_in_any_order() {
    let writer: Act = |s| (0..3).for_each(|_| s.cached_write(1));
    let flusher: Act = |s| {
        s.flush();
        drop_clean(&s.file);
    };
    let daemon: Act = |s| {
        s.cache.flush_aged(Instant::now()).unwrap();
        s.read(1, 1);
    };
    explore(3, [writer, flusher, daemon, flusher], Stage::check_flushed);
    explore(3, [writer, flusher, flusher], Stage::check_flushed);
}

/// I-CACHE-4: a truncation waits for what is being written beyond it; nothing is written there
/// afterwards.
#[test]
fn a_truncation_in_any_order_is_the_last_to_touch_what_it_cuts() {
    const FREED: u64 = 1 << 40;
    let flusher: Act = |s| s.file.flush().unwrap();
    let truncater: Act = |s| {
        s.cached_write(0);
        s.cached_write(1);
        let change = s.file.begin_truncate(BLOCK as u64);
        *s.device.blocks[1].lock().unwrap() = FREED;
        drop(change);
        s.cached_write(0);
    };
    explore(2, [truncater, flusher, flusher], |s| {
        s.file.flush().unwrap();
        assert_eq!(*s.device.blocks[1].lock().unwrap(), FREED, "written after it was cut off");
        assert_eq!(*s.device.blocks[0].lock().unwrap(), 2);
    });
}

/// A cached write that comes while a fill of its page is under way, then is carried out and
/// evicted: the fill does not bring the old page back.
#[test]
fn i_cache_2_holds_for_cached_writes_in_any_order() {
    let writer: Act = |s| {
        s.cached_write(0);
        s.file.flush().unwrap();
        drop_clean(&s.file);
        s.read(0, 1);
    };
    let reader: Act = |s| s.read(0, 1);
    explore(2, [writer, reader, reader], Stage::check_agreement);
}

/// I-CACHE-9: a write of two pages that stops between them, because the second is not dirty yet and
/// needs its block reserved, is not seen half.
#[test]
fn i_cache_9_holds_in_any_order() {
    let writer: Act = |s| {
        for version in 1..4 {
            let both = block_of(version).repeat(2);
            assert_eq!(s.file.write_at(&both, 0).unwrap(), both.len());
            s.file.flush_range(BLOCK as u64, BLOCK as u64).unwrap();
        }
    };
    let reader: Act = |s| {
        for _ in 0..4 {
            let mut both = vec![0; 2 * BLOCK];
            if s.file.read_hit(&mut both, 0).is_some() {
                assert_eq!(number(&both), number(&both[BLOCK..]), "half of a write");
            }
        }
    };
    explore(2, [writer, reader], |_| {});
    explore(2, [writer, reader, reader], |_| {});
}

/// A write-behind that fails leaves its pages dirty, however it meets writers and flushes.
#[test]
fn a_failed_write_loses_nothing_in_any_order() {
    let writer: Act = |s| {
        s.device.fail_in.store(1, Ordering::SeqCst);
        s.cached_write(0);
        s.cached_write(1);
    };
    let flusher: Act = |s| drop(s.file.flush());
    explore(2, [writer, flusher, flusher], |s| {
        // Injected once: a flush tells it, the next has nothing to tell.
        drop(s.file.flush());
        drop(s.file.flush());
        s.check_flushed();
    });
}
