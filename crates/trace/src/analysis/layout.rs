//! How a volume should be laid out for what a trace does: each piece of advice with the number that
//! it follows from.

use std::collections::{BTreeMap, BinaryHeap};

use serde::Serialize;

use super::summary::{FileSummary, Summary};
use crate::trace::Trace;

/// One piece of advice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LayoutHint {
    /// What it is about.
    pub about: &'static str,
    /// What to choose.
    pub choose: String,
    /// The number that it follows from.
    pub because: String,
}

/// What the traced calls are, all files together.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Mix {
    /// Reads, and their bytes.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Reads and writes that go on where another ended.
    pub sequential: u64,
    /// Writes that do not, and have fewer bytes than a row of a RAID-5 of four members.
    pub small_writes: u64,
    /// Syncs.
    pub syncs: u64,
    /// Syncs of logs.
    pub log_syncs: u64,
    /// Reads and writes under way at a time on average, when one began.
    pub depth_mean: f64,
    /// 95 of 100 calls that do not go on where another ended have no more bytes.
    pub size_p95: u64,
}

/// The stripe unit that volumes have unless they are told.
const UNIT: u64 = 64 << 10;
/// The largest unit that is proposed.
const UNIT_MAX: u64 = 1 << 20;
/// Bytes of a row of four members, of which one is parity.
const ROW: u64 = 3 * UNIT;

/// Parts of paths under which databases keep logs.
const LOG_NAMES: [&str; 7] =
    ["/pg_wal/", "-wal", "-journal", "/ib_logfile", "/#innodb_redo/", "/binlog.", "/journal/"];

/// Tells whether a file is a log: by its name where that is a known one, or because it is written
/// in order, synced and hardly read.
#[must_use]
pub fn is_log(file: &FileSummary) -> bool {
    let is_named = LOG_NAMES.iter().any(|name| file.path.contains(name));
    let is_synced =
        file.syncs.calls > 0 || file.flags.iter().any(|flag| matches!(*flag, "O_SYNC" | "O_DSYNC"));
    let is_appended = file.writes.part(file.writes.sequential) >= 0.6
        && file.reads.bytes.saturating_mul(10) <= file.writes.bytes;
    file.writes.calls > 0 && (is_named || is_synced && is_appended)
}

/// Sums up the calls of a trace.
#[must_use]
pub fn mix(trace: &Trace, summary: &Summary) -> Mix {
    let mut mix = Mix::default();
    let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
    for file in &summary.files {
        let (reads, writes) = (&file.reads, &file.writes);
        mix.reads += reads.calls;
        mix.writes += writes.calls;
        mix.read_bytes = mix.read_bytes.saturating_add(reads.bytes);
        mix.written_bytes = mix.written_bytes.saturating_add(writes.bytes);
        mix.sequential += reads.sequential + writes.sequential;
        mix.syncs += file.syncs.calls;
        mix.log_syncs += if is_log(file) { file.syncs.calls } else { 0 };
        let small: u64 = writes.sizes.range(..ROW).map(|(_, calls)| calls).sum();
        mix.small_writes += small.saturating_sub(writes.sequential);
        // Calls in order are merged on their way, whatever their size.
        for moves in [reads, writes].iter().filter(|moves| moves.sequential * 2 < moves.calls) {
            for (size, calls) in &moves.sizes {
                *sizes.entry(*size).or_default() += calls;
            }
        }
    }
    mix.size_p95 = quantile(&sizes, 0.95);
    mix.depth_mean = depth(trace);
    mix
}

fn quantile(sizes: &BTreeMap<u64, u64>, part: f64) -> u64 {
    let all: u64 = sizes.values().sum();
    let mut seen = 0;
    let reaches = |(_, calls): &(&u64, &u64)| {
        seen += **calls;
        seen as f64 >= all as f64 * part
    };
    sizes.iter().find(reaches).map_or(0, |(size, _)| *size)
}

/// Reads and writes of all files under way when one began, itself among them, on average.
fn depth(trace: &Trace) -> f64 {
    let mut under_way = BinaryHeap::new();
    let (mut calls, mut sum) = (0_u64, 0_u64);
    for event in trace.events.iter().filter(|event| event.call.is_move() && event.is_done()) {
        while under_way.peek().is_some_and(|end: &std::cmp::Reverse<u64>| end.0 <= event.begin_ns) {
            under_way.pop();
        }
        under_way.push(std::cmp::Reverse(event.end_ns()));
        calls += 1;
        sum += under_way.len() as u64;
    }
    if calls == 0 { 0.0 } else { sum as f64 / calls as f64 }
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

fn kib(bytes: u64) -> String {
    format!("{} KiB", bytes.div_ceil(1024))
}

/// Says how to lay a volume out for a mix.
#[must_use]
pub fn layout_hints(mix: &Mix) -> Vec<LayoutHint> {
    if mix.reads + mix.writes == 0 {
        return Vec::new();
    }
    let mut hints = vec![columns(mix), unit(mix), raid5(mix)];
    hints.extend(log_apart(mix));
    hints
}

fn columns(mix: &Mix) -> LayoutHint {
    let depth = mix.depth_mean;
    let columns = (depth.round() as u64).clamp(1, 16);
    let choose = if columns == 1 {
        "1: more devices would mostly wait".to_owned()
    } else {
        format!("{columns}: as many as are asked at once")
    };
    let because = format!("{depth:.1} reads and writes were under way when one began, on average");
    LayoutHint { about: "columns", choose, because }
}

fn unit(mix: &Mix) -> LayoutHint {
    let moves = mix.reads + mix.writes;
    if mix.size_p95 == 0 {
        return LayoutHint {
            about: "stripe unit",
            choose: kib(UNIT_MAX),
            because: format!(
                "{:.0} % of the calls go on where another ended, so a large unit keeps each device \
                 reading and writing in order",
                percent(mix.sequential, moves)
            ),
        };
    }
    // A call at any place crosses a boundary in one case of four at the most.
    let unit = mix.size_p95.saturating_mul(4).checked_next_power_of_two().unwrap_or(UNIT_MAX);
    LayoutHint {
        about: "stripe unit",
        choose: kib(unit.clamp(UNIT, UNIT_MAX)),
        because: format!(
            "95 % of the calls at random places have at most {}, and one that crosses a unit \
             waits for two devices",
            kib(mix.size_p95)
        ),
    }
}

fn raid5(mix: &Mix) -> LayoutHint {
    let (writes, moves) = (percent(mix.writes, mix.reads + mix.writes), mix.writes);
    let small = percent(mix.small_writes, moves);
    let hurts = writes >= 10.0 && small >= 20.0;
    let because = format!(
        "{writes:.0} % of the calls are writes, and {small:.0} % of these are at random places and \
         less than a row of {} (four members): each reads two blocks and writes two",
        kib(ROW)
    );
    let choose = if hurts {
        "not this load: a mirror writes each block twice and reads none".to_owned()
    } else {
        "bearable: few writes change a part of a row".to_owned()
    };
    LayoutHint { about: "RAID-5", choose, because }
}

fn log_apart(mix: &Mix) -> Option<LayoutHint> {
    let share = percent(mix.log_syncs, mix.syncs);
    (mix.syncs > 0).then(|| {
        let choose = if share >= 50.0 && mix.log_syncs > 10 {
            "on a device of its own: its syncs then wait for nothing else"
        } else {
            "with the data: few syncs are of a log"
        };
        let because = format!(
            "{} of {} syncs ({share:.0} %) are of logs: written in order and hardly read, or called so",
            mix.log_syncs, mix.syncs
        );
        LayoutHint { about: "log", choose: choose.to_owned(), because }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen<'a>(hints: &'a [LayoutHint], about: &str) -> &'a LayoutHint {
        hints.iter().find(|hint| hint.about == about).unwrap()
    }

    #[test]
    fn s_453_each_advice_has_the_number_it_follows_from() {
        let pages = Mix {
            reads: 600,
            writes: 400,
            sequential: 100,
            small_writes: 300,
            syncs: 50,
            log_syncs: 40,
            depth_mean: 3.7,
            size_p95: 8192,
            ..Mix::default()
        };
        let hints = layout_hints(&pages);
        assert!(chosen(&hints, "columns").choose.starts_with("4:"));
        assert_eq!(chosen(&hints, "stripe unit").choose, "64 KiB");
        let raid5 = chosen(&hints, "RAID-5");
        assert!(raid5.choose.starts_with("not this load") && raid5.because.contains("75 %"));
        let log = chosen(&hints, "log");
        assert!(log.choose.contains("its own") && log.because.contains("40 of 50"), "{log:?}");
        assert!(hints.iter().all(|hint| hint.because.contains(|c: char| c.is_ascii_digit())));
    }

    #[test]
    fn s_453_a_scan_asks_for_large_units_and_bears_parity() {
        let scan = Mix { reads: 1000, sequential: 990, depth_mean: 1.0, ..Mix::default() };
        let hints = layout_hints(&scan);
        assert!(chosen(&hints, "columns").choose.starts_with("1:"));
        assert_eq!(chosen(&hints, "stripe unit").choose, "1024 KiB");
        assert!(chosen(&hints, "RAID-5").choose.starts_with("bearable"));
        assert!(hints.iter().all(|hint| hint.about != "log"));
        assert!(layout_hints(&Mix::default()).is_empty());
    }
}
