//! What is tried: the kernel's file system, and a Bedplate mount with each mode for what it suits.
//! Pure functions of what the trace says.

use bedplate::{IoMode, format_size};
use bedplate_trace::{FileSummary, ReuseCurve, Summary, is_log};
use serde::Serialize;

/// A configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub label: String,
    /// The modes on a Bedplate mount; none on the kernel's file system.
    pub modes: Option<Modes>,
    /// The mount's library cache; none where no file uses it.
    pub cache_bytes: Option<u64>,
}

/// Modes by what files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Modes {
    pub data: IoMode,
    pub log: IoMode,
}

/// What a file is to its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileClass {
    /// Written in order, synced, and hardly read.
    Log,
    /// Any other.
    Data,
}

/// Tells what a file is.
pub(crate) fn class_of(file: &FileSummary) -> FileClass {
    if is_log(file) { FileClass::Log } else { FileClass::Data }
}

/// Bounds of the caches that are tried.
const CACHE_MIN: u64 = 16 << 20;
const CACHE_MAX: u64 = 4 << 30;

/// Sizes of a cache that are worth trying: the knee of the curve, and all that is used.
pub(crate) fn cache_sizes(curve: &ReuseCurve) -> Vec<u64> {
    let whole = curve.working_set_bytes.checked_next_power_of_two().unwrap_or(CACHE_MAX);
    let mut sizes: Vec<u64> =
        curve.knee_bytes.into_iter().filter_map(u64::checked_next_power_of_two).collect();
    sizes.push(whole);
    sizes.iter_mut().for_each(|size| *size = (*size).clamp(CACHE_MIN, CACHE_MAX));
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Returns all candidates, the kernel's file system first.
pub(crate) fn candidates(kernel: &str, summary: &Summary, curve: &ReuseCurve) -> Vec<Candidate> {
    let mut all = vec![Candidate { label: kernel.to_owned(), modes: None, cache_bytes: None }];
    let moved = |file: &&FileSummary| file.reads.calls + file.writes.calls > 0;
    let has = |class| summary.files.iter().filter(moved).any(|file| class_of(file) == class);
    let is_mixed = has(FileClass::Log) && has(FileClass::Data);
    let is_read = summary.files.iter().any(|file| file.reads.calls > 0);
    for mode in [IoMode::Cached, IoMode::Direct, IoMode::Concurrent] {
        all.push(candidate(Modes { data: mode, log: mode }, None));
    }
    if is_mixed {
        let (cached, concurrent) = (IoMode::Cached, IoMode::Concurrent);
        all.push(candidate(Modes { data: cached, log: concurrent }, None));
        all.push(candidate(Modes { data: concurrent, log: cached }, None));
    }
    if is_read {
        for size in cache_sizes(curve) {
            let log = if is_mixed { IoMode::Concurrent } else { IoMode::ConcurrentCache };
            all.push(candidate(Modes { data: IoMode::ConcurrentCache, log }, Some(size)));
        }
    }
    all
}

fn candidate(modes: Modes, cache_bytes: Option<u64>) -> Candidate {
    let cache =
        cache_bytes.map_or_else(String::new, |size| format!(", cache {}", format_size(size)));
    let label = if modes.data == modes.log {
        format!("{}{cache}", modes.data)
    } else {
        format!("{}, log {}{cache}", modes.data, modes.log)
    };
    Candidate { label, modes: Some(modes), cache_bytes }
}

#[cfg(test)]
mod tests {
    use bedplate_trace::{CachePoint, Moves};

    use super::*;

    fn file(path: &str, reads: u64, writes: u64, sequential: u64, syncs: u64) -> FileSummary {
        let moves = |calls, sequential| Moves {
            calls,
            sequential,
            bytes: calls * 8192,
            ..Moves::default()
        };
        let mut file = FileSummary {
            path: path.into(),
            reads: moves(reads, 0),
            writes: moves(writes, sequential),
            ..FileSummary::default()
        };
        file.syncs.calls = syncs;
        file
    }

    fn curve(knee: u64, whole: u64) -> ReuseCurve {
        ReuseCurve {
            read_pages: 1,
            working_set_bytes: whole,
            sampled: 1.0,
            points: vec![CachePoint { bytes: whole, hit_rate: 1.0 }],
            knee_bytes: Some(knee),
        }
    }

    #[test]
    fn a_log_is_written_in_order_and_synced_or_has_a_name_that_says_so() {
        assert_eq!(class_of(&file("/d/redo", 0, 100, 90, 10)), FileClass::Log);
        assert_eq!(class_of(&file("/d/redo", 50, 100, 90, 10)), FileClass::Data);
        assert_eq!(class_of(&file("/d/redo", 0, 100, 90, 0)), FileClass::Data);
        assert_eq!(class_of(&file("/d/pg_wal/1", 5, 100, 10, 0)), FileClass::Log);
        assert_eq!(class_of(&file("/d/a.db-wal", 5, 0, 0, 0)), FileClass::Data);
    }

    #[test]
    fn s_448_each_mode_is_tried_and_a_log_apart_where_there_is_one() {
        let mut summary = Summary { files: vec![file("/d", 9, 9, 0, 1)], ..Summary::default() };
        let labels = |summary: &Summary| -> Vec<String> {
            let all = candidates("xfs", summary, &curve(40 << 20, 300 << 20));
            all.into_iter().map(|candidate| candidate.label).collect()
        };
        let plain = labels(&summary);
        assert_eq!(plain[..4], ["xfs", "cached", "direct", "concurrent"]);
        assert_eq!(
            plain[4..],
            ["concurrent+cache, cache 64 MiB", "concurrent+cache, cache 512 MiB"]
        );
        summary.files.push(file("/l", 0, 9, 9, 9));
        let mixed = labels(&summary);
        assert!(mixed.contains(&"cached, log concurrent".to_owned()), "{mixed:?}");
        assert!(mixed.contains(&"concurrent, log cached".to_owned()), "{mixed:?}");
        summary.files.remove(0);
        assert_eq!(labels(&summary).len(), 4, "what is never read needs no cache");
    }
}
