//! Random operations on a file through a very small cache, beside a vector of bytes.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::*;

const FILE_MAX: usize = 300 << 10;

struct Model {
    setup: Setup,
    expected: Vec<u8>,
    cap_bytes: u64,
    seed: u64,
    /// Bytes to write.
    source: Vec<u8>,
}

impl Model {
    fn read(&self, offset: usize, len: usize) {
        let mut buf = vec![0; len];
        let Ok((n, _)) = self.setup.file.read_at(&mut buf, offset as u64) else {
            assert!(
                self.setup.backing.reads_left.load(Ordering::SeqCst) < 0,
                "a read fails by an injected error only"
            );
            return;
        };
        let start = offset.min(self.expected.len());
        let end = (offset + len).min(self.expected.len());
        assert_eq!(n, end - start, "seed {}: length at {offset}", self.seed);
        if buf[..n] != self.expected[start..end] {
            let at = (0..n).find(|&i| buf[i] != self.expected[start + i]).expect("they differ");
            panic!(
                "seed {}: byte {} reads {:#x}, expected {:#x}",
                self.seed,
                start + at,
                buf[at],
                self.expected[start + at]
            );
        }
    }

    fn write(&mut self, offset: usize, data: &[u8]) {
        let mut done = 0;
        let mut failures = 0;
        while done < data.len() {
            match self.setup.file.write_at(&data[done..], (offset + done) as u64) {
                Ok(n) => {
                    if self.expected.len() < offset + done + n {
                        self.expected.resize(offset + done + n, 0);
                    }
                    self.expected[offset + done..offset + done + n]
                        .copy_from_slice(&data[done..done + n]);
                    done += n;
                }
                Err(_) => failures += 1,
            }
            assert!(failures < 4, "seed {}: one injected error at a time", self.seed);
        }
    }

    fn truncate(&mut self, size: usize) {
        let change = self.setup.file.begin_truncate(size as u64);
        self.setup.backing.truncate(size as u64);
        drop(change);
        self.expected.resize(size, 0);
    }

    fn punch(&mut self, offset: usize, len: usize) {
        let Ok(change) = self.setup.file.begin_map_change(offset as u64, len as u64) else {
            return;
        };
        self.setup.backing.punch(offset, len);
        drop(change);
        let end = (offset + len).min(self.expected.len());
        self.expected[offset.min(end)..end].fill(0);
    }

    fn flush(&self) {
        // An injected error is told once; the data is still there, so the next flush succeeds.
        if self.setup.file.flush().is_err() {
            self.setup
                .file
                .flush()
                .unwrap_or_else(|e| panic!("seed {}: told twice: {e}", self.seed));
        }
        assert_eq!(self.setup.file.dirty_bytes(), 0);
        assert!(
            self.setup.backing.content() == self.expected,
            "seed {}: the backing differs after a flush",
            self.seed
        );
    }

    fn step(&mut self, random: &mut Random, faults: bool) {
        let offset = random.below(FILE_MAX as u64) as usize;
        let len_max = [10, 5000, 70_000][random.below(3) as usize];
        let len = 1 + random.below(len_max) as usize;
        match random.below(24) {
            0..8 => self.read(offset, len),
            8..17 => {
                let at = if random.below(3) == 0 { self.expected.len() } else { offset }
                    .min(FILE_MAX - len);
                let from = random.below(256) as usize;
                let data = &self.source[from..from + len].to_vec();
                self.write(at, data);
            }
            17 => self.truncate(offset),
            18 => self.punch(offset, len),
            19 => self.flush(),
            20 => drop(self.setup.file.flush_range(offset as u64, len as u64)),
            21 => drop_clean(&self.setup.file),
            22 => drop(self.setup.cache.flush_aged(Instant::now())),
            _ if faults => {
                let backing = &self.setup.backing;
                let left = [&backing.writes_left, &backing.reads_left, &backing.reserves_left]
                    [random.below(3) as usize];
                left.store(random.below(4) as i64, Ordering::SeqCst);
            }
            _ => self.read(0, FILE_MAX),
        }
        let counters = self.setup.cache.counters();
        assert!(
            counters.resident_bytes <= self.cap_bytes,
            "I-CACHE-6: {} bytes in memory, cap {}",
            counters.resident_bytes,
            self.cap_bytes
        );
    }
}

fn run(seed: u64, options: &CacheOptions, faults: bool, steps: u32) {
    let mut random = Random(seed);
    let expected = pattern(random.below(200_000) as usize);
    let setup = setup(options, &expected);
    let mut model = Model {
        setup,
        expected,
        cap_bytes: options.cap_bytes,
        seed,
        source: (0..80_000).map(|i| i as u8).collect(),
    };
    for _ in 0..steps {
        model.step(&mut random, faults);
    }
    let backing = &model.setup.backing;
    for left in [&backing.writes_left, &backing.reads_left, &backing.reserves_left] {
        left.store(-1, Ordering::SeqCst);
    }
    model.read(0, FILE_MAX);
    model.flush();
    drop_clean(&model.setup.file);
    model.read(0, FILE_MAX);
}

#[test]
fn a_cached_file_reads_as_it_was_written() {
    for seed in 0..40 {
        let align = if seed % 2 == 0 { 4096 } else { 512 };
        let block_size = if seed % 3 == 0 { 512.max(align) } else { 4096 };
        run(
            seed,
            &CacheOptions { io_align: align, block_size, ..options(16 + seed % 5 * 16) },
            false,
            250,
        );
    }
}

#[test]
fn a_cached_file_survives_failing_reads_writes_and_reservations() {
    for seed in 100..140 {
        let align = if seed % 2 == 0 { 4096 } else { 512 };
        run(seed, &CacheOptions { io_align: align, ..options(16 + seed % 5 * 16) }, true, 250);
    }
}

#[test]
fn a_cached_file_reads_as_it_was_written_with_threads_in_the_background() {
    for seed in 200..224 {
        let threads =
            CacheOptions { read_threads: 2, write_threads: 2, ..options(32 + seed % 3 * 32) };
        run(seed, &threads, seed % 2 == 0, 250);
    }
}

#[test]
fn pages_larger_than_four_kibibytes_work() {
    for seed in 300..310 {
        let large = CacheOptions {
            io_align: 16384,
            block_size: 16384,
            cap_bytes: 16 * 16384,
            ..options(0)
        };
        run(seed, &large, false, 150);
    }
}
