//! `all`: every workload with the targets it compares, sized for minutes or for a thorough night.

use std::time::Duration;

use crate::bed::Part;
use crate::run::Schedule;
use crate::workload::{
    Cached, Checkpoint, Copy, Images, Increments, LogState, Mixed, Oltp, Pipe, Redo, Scan,
    Sequential, Sio, Workload, Writers,
};

/// How thorough a suite is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Within ten minutes on two processors.
    Quick,
    /// As long as it takes to be sure.
    Full,
}

/// One workload of a suite.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The workload with its options.
    pub workload: Workload,
    /// The targets it compares; the first is the reference.
    pub parts: &'static [Part],
    /// How often and how long.
    pub schedule: Schedule,
}

use Part::{
    Cached as CachedMode, Concurrent, ConcurrentCache, Direct, KernelBuffered, KernelDirect, Mount,
    Raw, Whole,
};

/// Returns all workloads for files of about `size_bytes` together.
#[must_use]
pub fn suite(extent: Extent, size_bytes: u64) -> Vec<Entry> {
    let quick = extent == Extent::Quick;
    let schedule = |quick_ms, full_s| schedule(quick, quick_ms, full_s);
    let short = schedule(500, 2);
    let whole = |bytes: u64| (bytes / (64 << 20)).max(1) * (64 << 20);
    let (file, small) = (whole(size_bytes / 2), whole(size_bytes / 8));
    let entry = |workload, parts, schedule| Entry { workload, parts, schedule };
    let mut entries = vec![
        entry(
            Workload::Increments(increments(quick, small)),
            &[Raw, KernelBuffered, KernelDirect, CachedMode, Direct, Mount],
            short,
        ),
        entry(
            Workload::Oltp(oltp(quick, file)),
            &[Raw, Concurrent, Whole, Direct, KernelDirect, Mount],
            schedule(1500, 10),
        ),
        entry(
            Workload::Oltp(pages(quick, file)),
            &[Raw, Concurrent, KernelBuffered],
            schedule(700, 10),
        ),
        entry(
            Workload::Writers(writers(quick, small)),
            &[Raw, Concurrent, Whole, CachedMode, KernelDirect, KernelBuffered],
            short,
        ),
        entry(
            Workload::Mixed(mixed(quick, file)),
            &[Raw, Concurrent, Whole, KernelDirect, KernelBuffered, Mount],
            schedule(350, 3),
        ),
        entry(
            Workload::Sio(sio(quick, file)),
            &[Raw, Concurrent, Whole, KernelDirect, KernelBuffered, Mount],
            schedule(300, 3),
        ),
        entry(
            Workload::Sequential(sequential(small)),
            &[Raw, Direct, CachedMode, KernelDirect, KernelBuffered],
            short,
        ),
        entry(
            Workload::Cached(cached(quick, file)),
            &[Raw, Concurrent, ConcurrentCache, CachedMode, KernelDirect, KernelBuffered],
            schedule(1000, 10),
        ),
        entry(
            Workload::Scan(scan(quick, file)),
            &[Raw, ConcurrentCache, CachedMode, KernelBuffered],
            schedule(700, 5),
        ),
    ];
    entries.extend(logs_and_copies(quick, small));
    entries
}

/// Logs, copies of files, and images of them.
fn logs_and_copies(quick: bool, small: u64) -> Vec<Entry> {
    let schedule = |quick_ms, full_s| schedule(quick, quick_ms, full_s);
    let short = schedule(500, 2);
    let entry = |workload, parts, schedule| Entry { workload, parts, schedule };
    vec![
        entry(
            Workload::Redo(redo(quick, small)),
            &[Raw, Concurrent, KernelDirect],
            schedule(300, 3),
        ),
        entry(
            Workload::Copy(copy(small)),
            &[KernelBuffered, KernelDirect, Concurrent, CachedMode],
            short,
        ),
        entry(
            Workload::Pipe(pipe(quick, small)),
            &[KernelBuffered, KernelDirect, Concurrent, CachedMode],
            short,
        ),
        entry(Workload::Checkpoint(checkpoint(small)), &[Concurrent, KernelDirect], short),
        entry(Workload::Images(images(quick, small)), &[Concurrent, KernelBuffered], short),
    ]
}

fn schedule(quick: bool, quick_ms: u64, full_s: u64) -> Schedule {
    Schedule {
        rounds: if quick { 3 } else { 7 },
        time: if quick { Duration::from_millis(quick_ms) } else { Duration::from_secs(full_s) },
        warm_up: if quick { Duration::from_millis(150) } else { Duration::from_millis(500) },
    }
}

fn images(quick: bool, size_bytes: u64) -> Images {
    let extents = if quick { 8000 } else { 16_000 };
    Images {
        sizes_bytes: vec![size_bytes / 4, size_bytes, 4 * size_bytes],
        pieces: 64,
        extents,
        many: if quick { 100 } else { 1000 },
    }
}

fn checkpoint(size_bytes: u64) -> Checkpoint {
    Checkpoint { size_bytes, ..Checkpoint::default() }
}

fn increments(quick: bool, size_bytes: u64) -> Increments {
    let large = size_bytes / (10 << 20) * (10 << 20);
    let (byte_wise, pages) = if quick { (64 << 10, size_bytes / 4) } else { (1 << 20, size_bytes) };
    Increments { size_bytes, steps: vec![(1, byte_wise), (4096, pages), (10 << 20, large)] }
}

fn oltp(quick: bool, data_bytes: u64) -> Oltp {
    let ramp = if quick { Duration::from_millis(300) } else { Duration::from_secs(3) };
    Oltp { data_bytes, log_bytes: 64 << 20, clients: vec![16, 64], ramp, ..Oltp::default() }
}

/// The same with pages of several sizes, which a table of its own compares.
fn pages(quick: bool, data_bytes: u64) -> Oltp {
    Oltp { page_bytes: vec![2048, 4096, 8192], clients: vec![16], ..oltp(quick, data_bytes) }
}

fn sio(quick: bool, size_bytes: u64) -> Sio {
    let defaults = Sio::default();
    if quick {
        let (block_bytes, reads_percent) = (vec![2048, 8192], vec![50, 0]);
        return Sio { size_bytes, block_bytes, reads_percent, ..defaults };
    }
    Sio { size_bytes, ..defaults }
}

fn pipe(quick: bool, size_bytes: u64) -> Pipe {
    let defaults = Pipe::default();
    let request_bytes = if quick { vec![4096, 8 << 20] } else { defaults.request_bytes.clone() };
    Pipe { size_bytes: size_bytes / 2, request_bytes, ..defaults }
}

fn writers(quick: bool, size_bytes: u64) -> Writers {
    Writers {
        size_bytes,
        threads: if quick { vec![1, 16, 64] } else { vec![1, 4, 16, 64, 256] },
        ..Writers::default()
    }
}

fn mixed(quick: bool, size_bytes: u64) -> Mixed {
    let threads = if quick { vec![1, 16, 64] } else { vec![1, 4, 16, 64, 256] };
    Mixed { size_bytes, threads, ..Mixed::default() }
}

fn sequential(size_bytes: u64) -> Sequential {
    Sequential { size_bytes: size_bytes / 2, streams: vec![1, 2, 4], ..Sequential::default() }
}

fn cached(quick: bool, data_bytes: u64) -> Cached {
    let defaults = Cached::default();
    let ramp = if quick { Duration::from_millis(400) } else { Duration::from_secs(3) };
    let database =
        Oltp { data_bytes: data_bytes / 2, log_bytes: 64 << 20, ramp, ..defaults.database };
    Cached {
        database,
        cache_percents: if quick { vec![50.0, 20.0, 5.0] } else { defaults.cache_percents },
        ..defaults
    }
}

fn scan(quick: bool, size_bytes: u64) -> Scan {
    let defaults = Scan::default();
    let ramp = if quick { Duration::from_millis(800) } else { Duration::from_secs(3) };
    // A cache of 30 % and a scan of eight times that: three and a half times the data in all, and
    // the log.
    let database =
        Oltp { data_bytes: size_bytes / 2, log_bytes: 64 << 20, ramp, ..defaults.database };
    Scan { database, cache_percent: 30.0, ..defaults }
}

fn redo(quick: bool, size_bytes: u64) -> Redo {
    let append_bytes = if quick { vec![512, 4096] } else { vec![512, 4096, 16_384] };
    Redo {
        append_bytes,
        size_bytes,
        states: vec![LogState::Extending, LogState::Unwritten, LogState::Written],
        ..Redo::default()
    }
}

fn copy(size_bytes: u64) -> Copy {
    Copy { size_bytes, ..Copy::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_is_valid_and_fits() {
        for extent in [Extent::Quick, Extent::Full] {
            let size = 1 << 30;
            let entries = suite(extent, size);
            assert_eq!(entries.len(), 14);
            for entry in entries {
                let work = entry.workload.work();
                work.validate().unwrap_or_else(|e| panic!("{}: {e}", work.name()));
                assert!(work.space_bytes() <= size, "{} needs {}", work.name(), work.space_bytes());
                assert!(!work.cases().is_empty() && entry.parts.len() >= 2);
            }
        }
    }
}
