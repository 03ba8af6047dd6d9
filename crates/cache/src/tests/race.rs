//! Threads at once: readers, direct writers and changes of the map on the same blocks.

use std::thread;

use super::*;
use crate::CLUSTER_BYTES;

const BLOCK: usize = 4096;

/// A device that takes its time, so that operations overlap.
#[derive(Debug)]
struct SlowBlocks {
    blocks: Vec<Mutex<u64>>,
}

/// Mostly spins: on a busy machine a thread that yields comes back late.
fn linger(n: u64) {
    (0..n % 8 * 100).for_each(|_| std::hint::spin_loop());
    if n.is_multiple_of(16) {
        thread::yield_now();
    }
}

impl Backing for SlowBlocks {
    fn read_direct(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        for (i, block) in buf.chunks_mut(BLOCK).enumerate() {
            let version = *self.blocks[offset as usize / BLOCK + i].lock();
            linger(version);
            block.chunks_exact_mut(8).for_each(|c| c.copy_from_slice(&version.to_le_bytes()));
        }
        linger(offset / BLOCK as u64 + 3);
        Ok(buf.len())
    }
    fn write_direct(&self, buf: &[u8], offset: u64, _size_after: u64) -> Result<()> {
        let version = version_of(&buf[..BLOCK]);
        linger(version + 1);
        for (i, block) in buf.chunks(BLOCK).enumerate() {
            *self.blocks[offset as usize / BLOCK + i].lock() = version_of(block);
        }
        linger(version);
        Ok(())
    }
    fn reserve(&self, _offset: u64, _len: u64) -> Result<()> {
        Ok(())
    }
    fn size(&self) -> u64 {
        (self.blocks.len() * BLOCK) as u64
    }
}

fn version_of(block: &[u8]) -> u64 {
    let version = u64::from_le_bytes(block[..8].try_into().expect("eight bytes"));
    assert!(block.chunks_exact(8).all(|c| c == version.to_le_bytes()), "a torn block");
    version
}

struct Stage {
    device: Arc<SlowBlocks>,
    cache: Arc<PageCache>,
    file: CachedFile,
    history: Vec<Mutex<History>>,
    hits: AtomicU64,
}

fn stage(blocks: usize, options: &CacheOptions) -> Stage {
    let device = Arc::new(SlowBlocks { blocks: (0..blocks).map(|_| Mutex::new(0)).collect() });
    let cache = PageCache::new(options);
    let weak: Weak<SlowBlocks> = Arc::downgrade(&device);
    let file = cache.file(9, weak, Arc::new(AtomicU64::new((blocks * BLOCK) as u64)));
    let fresh = || Mutex::new(History::fresh());
    Stage {
        device,
        cache,
        file,
        history: (0..blocks).map(|_| fresh()).collect(),
        hits: AtomicU64::new(0),
    }
}

impl Stage {
    fn write(&self, first: usize, count: usize) {
        let begun: Vec<_> =
            (first..first + count).map(|b| self.history[b].lock().begin_write()).collect();
        let data: Vec<u8> =
            begun.iter().flat_map(|(version, _)| version.to_le_bytes().repeat(BLOCK / 8)).collect();
        let offset = (first * BLOCK) as u64;
        let write =
            self.file.begin_direct_write(offset, data.len() as u64).expect("nothing is dirty");
        self.device.write_direct(&data, offset, 0).expect("sound");
        write.refresh(&data);
        for (i, (version, overtaken)) in begun.iter().enumerate() {
            self.history[first + i].lock().end_write(*version, overtaken);
        }
    }

    fn read(&self, first: usize, count: usize) {
        let begun: Vec<_> =
            (first..first + count).map(|b| self.history[b].lock().begin_read()).collect();
        let mut buf = vec![0; count * BLOCK];
        let (_, hit) = self.file.read_at(&mut buf, (first * BLOCK) as u64).expect("sound");
        self.hits.fetch_add(hit.into(), Ordering::Relaxed);
        for (i, begun) in begun.iter().enumerate() {
            let version = version_of(&buf[i * BLOCK..(i + 1) * BLOCK]);
            assert!(
                History::allows(begun, version),
                "block {}: read version {version}, allowed were {begun:?}",
                first + i
            );
        }
    }
}

/// Rounds of threads at once; after each the cache must agree with the device.
fn hammer(stage: &Stage, rounds: u64, steps: u64) {
    (0..rounds).for_each(|round| hammer_once(stage, round, steps));
}

fn hammer_once(stage: &Stage, round: u64, steps: u64) {
    let spread = stage.history.len() as u64;
    thread::scope(|scope| {
        for t in 0..8 {
            scope.spawn(move || {
                let mut random = Random(round * 8 + t);
                for _ in 0..steps {
                    let count = 1 + random.below(3) as usize;
                    let first = random.below(spread - 3) as usize;
                    match random.below(64) {
                        0..16 => stage.write(first, count),
                        16 => drop_clean(&stage.file),
                        17 => drop(
                            stage
                                .file
                                .begin_map_change((first * BLOCK) as u64, (count * BLOCK) as u64),
                        ),
                        _ => stage.read(first, count),
                    }
                }
            });
        }
    });
    for (block, stored) in stage.device.blocks.iter().enumerate() {
        let mut buf = vec![0; BLOCK];
        stage.file.read_at(&mut buf, (block * BLOCK) as u64).expect("sound");
        assert_eq!(
            version_of(&buf),
            *stored.lock(),
            "block {block}: when all is quiet, the cache holds what the device holds"
        );
    }
}

/// I-CACHE-2, I-CACHE-3: reads, direct writes and read-ahead race on a handful of blocks; a read
/// never returns what a completed write had overtaken.
#[test]
fn a_read_never_returns_what_a_completed_direct_write_has_overtaken() {
    let stage = stage(24, &CacheOptions { read_threads: 2, ..options(16) });
    hammer(&stage, 100, 30);
    assert!(
        stage.hits.load(Ordering::Relaxed) > 0 && stage.cache.counters().misses > 0,
        "both paths ran"
    );
}

#[test]
fn a_read_never_returns_what_was_overtaken_in_a_larger_file_with_eviction() {
    let stage = stage(400, &CacheOptions { read_threads: 2, ..options(64) });
    hammer(&stage, 20, 100);
    assert!(stage.cache.counters().evictions > 0, "the cache was too small");
}

/// A failed direct write leaves unknown bytes on the device: the cached copy goes, and the next
/// read finds what is there.
#[test]
fn a_failed_direct_write_leaves_no_copy() {
    let stage = stage(16, &options(16));
    stage.read(3, 1);
    let write =
        stage.file.begin_direct_write(3 * BLOCK as u64, BLOCK as u64).expect("nothing is dirty");
    *stage.device.blocks[3].lock() = 77;
    drop(write);
    let mut buf = vec![0; BLOCK];
    stage.file.read_at(&mut buf, 3 * BLOCK as u64).expect("sound");
    assert_eq!(version_of(&buf), 77);
}

/// I-CACHE-4: writers into one cached file, each in its own part, while the file is flushed, aged
/// and evicted: every byte reaches the backing.
#[test]
fn cached_writers_and_flushers_at_once_lose_nothing() {
    let t = setup_for_writers();
    write_at_once(&t, |t| (0..200).for_each(|_| drop_clean(&t.file)));
}

/// I-CACHE-6: so it is while the cap goes up and down.
#[test]
fn cached_writers_lose_nothing_while_the_cap_changes() {
    let t = setup_for_writers();
    write_at_once(&t, |t| {
        let mut before = writers_options();
        for cap_pages in [16, 200, 17, 64, 63, 65, 16, 130].into_iter().cycle().take(160) {
            let options = CacheOptions { cap_bytes: cap_pages * 4096, ..writers_options() };
            t.cache.retune(&before, &options).expect("sound");
            assert_eq!(t.cache.cap_bytes(), options.cap_bytes);
            assert!(t.cache.counters().resident_bytes <= options.cap_bytes);
            before = options;
        }
    });
}

fn writers_options() -> CacheOptions {
    CacheOptions { read_threads: 2, write_threads: 2, ..options(64) }
}

const PART: usize = 100 << 10;
const WRITERS: usize = 4;

fn setup_for_writers() -> Setup {
    setup(&writers_options(), &vec![0; PART * WRITERS])
}

fn write_at_once(t: &Setup, disturb: impl FnOnce(&Setup) + Send) {
    // What the ordering lock does for writers; reads go without, each writer reads what no other
    // thread writes.
    let order = Mutex::new(());
    let mut parts: Vec<Vec<u8>> = vec![vec![0; PART]; WRITERS];
    thread::scope(|scope| {
        for (w, part) in parts.iter_mut().enumerate() {
            let order = &order;
            scope.spawn(move || {
                let mut random = Random(w as u64 + 50);
                for step in 0..1500_u64 {
                    let at = random.below(PART as u64 - 6000) as usize;
                    let len = 1 + random.below(6000) as usize;
                    let offset = (w * PART + at) as u64;
                    if step % 3 == 0 {
                        let mut buf = vec![0; len];
                        t.file.read_at(&mut buf, offset).expect("sound");
                        assert!(buf == part[at..at + len], "writer {w} reads what it wrote");
                    } else {
                        let data = vec![step as u8; len];
                        let _order = order.lock();
                        assert_eq!(t.file.write_at(&data, offset).expect("room"), len);
                        part[at..at + len].copy_from_slice(&data);
                    }
                }
            });
        }
        scope.spawn(|| (0..200).for_each(|_| t.file.flush().expect("sound")));
        scope.spawn(|| {
            (0..200).for_each(|_| t.cache.flush_aged(std::time::Instant::now()).expect("sound"));
        });
        scope.spawn(|| disturb(t));
    });
    t.file.flush().expect("sound");
    assert!(t.backing.content() == parts.concat(), "every byte reached the backing");
}

/// I-CACHE-4: a file is dropped while its pages are on their way: one run is being written, and
/// another was taken and is not copied out yet. Its pages were forgotten then, and the thread that
/// wrote them found none.
#[test]
fn i_cache_4_a_file_may_be_dropped_in_the_middle_of_its_write_behind() {
    let options = CacheOptions { write_behind_clusters: 1, write_threads: 2, ..options(512) };
    let pages = 4 * (CLUSTER_BYTES as usize / BLOCK) + 1;
    let bytes = vec![0; pages * BLOCK];
    for round in 0..400 {
        let Stage { device, cache, file, .. } = stage(pages, &options);
        file.write_at(&bytes, 0).expect("there is room");
        linger(round);
        drop(file);
        drop(device);
        for _ in 0..10_000 {
            if cache.pinned_pages() == 0 {
                break;
            }
            thread::sleep(std::time::Duration::from_micros(200));
        }
        assert_eq!(cache.pinned_pages(), 0, "round {round}: nothing of it stays");
    }
}
