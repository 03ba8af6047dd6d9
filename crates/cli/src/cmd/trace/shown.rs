//! What a trace says, for people and as a document.

use std::fmt;
use std::time::Duration;

use bedplate::{format_duration, format_size};
use bedplate_trace::{FileSummary, Moves, Summary};
use serde::Serialize;

use crate::render::text::{count, table};

/// A summary with its text.
#[derive(Serialize)]
pub struct Shown {
    #[serde(flatten)]
    pub summary: Summary,
    /// Where the trace ends too soon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    #[serde(skip)]
    pub top: usize,
}

fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{:.1}µs", ns as f64 / 1e3),
        10_000..1_000_000 => format!("{}µs", ns / 1_000),
        _ => format_duration(Duration::from_nanos(ns / 10_000 * 10_000)),
    }
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        self.moves(f)?;
        self.syncs(f)?;
        self.failures(f)?;
        self.devices(f)?;
        self.unseen(f)
    }
}

impl Shown {
    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = &self.summary.about;
        let processes = match self.summary.processes.len() {
            1 => "1 process".to_owned(),
            many => format!("{many} processes"),
        };
        writeln!(
            f,
            "{}: {} of {processes} in {}, exit code {}",
            about.command.join(" "),
            count(self.summary.calls, "call"),
            time(about.took_ns),
            about.exit_code
        )
    }

    fn moves(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = [
            "file", "", "calls", "bytes", "size", "in order", "aligned", "mean", "longest",
            "depth", "opened",
        ];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        for file in self.summary.files.iter().take(self.top) {
            let kinds = [("read", &file.reads), ("write", &file.writes)];
            let used = kinds.into_iter().filter(|(_, moves)| moves.calls > 0);
            for (at, (kind, moves)) in used.enumerate() {
                rows.push(row(file, kind, moves, at == 0));
            }
        }
        if rows.len() > 1 {
            write!(f, "\n{}", table(&rows, &[2, 3, 4, 5, 6, 7, 8, 9]))?;
        }
        let more = self.summary.files.len().saturating_sub(self.top);
        if more > 0 {
            writeln!(f, "and {}: see --top", count(more as u64, "file"))?;
        }
        Ok(())
    }

    fn syncs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = [
            "syncs of",
            "calls",
            "median",
            "99 %",
            "longest",
            "together",
            "each waited for",
            "idle",
        ];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        let synced = self.summary.files.iter().filter(|file| file.syncs.calls > 0);
        for file in synced.take(self.top) {
            let syncs = &file.syncs;
            let each = |of: u64| of / syncs.calls.max(1);
            let waited = format!(
                "{} in {}",
                format_size(each(syncs.waited_bytes)),
                count(each(syncs.waited_writes), "write")
            );
            rows.push(vec![
                file.path.clone(),
                syncs.calls.to_string(),
                time(syncs.took_ns_p50),
                time(syncs.took_ns_p99),
                time(syncs.took_ns_max),
                time(syncs.took_ns),
                waited,
                syncs.idle.to_string(),
            ]);
        }
        if rows.len() == 1 {
            return Ok(());
        }
        write!(f, "\n{}", table(&rows, &[1, 2, 3, 4, 5, 6, 7]))
    }

    fn failures(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.summary.failures.is_empty() {
            return Ok(());
        }
        let mut rows =
            vec![["failed", "error", "times", "file", "flags"].map(str::to_owned).to_vec()];
        for failed in self.summary.failures.iter().take(self.top) {
            rows.push(vec![
                failed.call.to_owned(),
                failed.errno.clone(),
                failed.count.to_string(),
                failed.path.clone(),
                failed.flags.join(" "),
            ]);
        }
        write!(f, "\n{}", table(&rows, &[2]))?;
        let more = self.summary.failures.len().saturating_sub(self.top);
        if more > 0 { writeln!(f, "and {more} more: see --top") } else { Ok(()) }
    }

    fn devices(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = &self.summary.about;
        if about.devices.is_empty() {
            return Ok(());
        }
        let heads = ["device", "reads", "bytes", "writes", "bytes", "flushes"];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        rows.extend(about.devices.iter().map(|device| {
            vec![
                device.name.clone(),
                device.reads.to_string(),
                format_size(device.read_bytes),
                device.writes.to_string(),
                format_size(device.written_bytes),
                device.flushes.to_string(),
            ]
        }));
        write!(f, "\n{}", table(&rows, &[1, 2, 3, 4, 5]))?;
        let settled = if about.settled { ", settled before and after" } else { "; see --settle" };
        writeln!(f, "of all programs meanwhile{settled}")
    }

    /// What is not in the trace.
    fn unseen(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let summary = &self.summary;
        let mut told = Vec::new();
        if summary.maps > 0 {
            let maps = count(summary.maps, "mapping");
            told.push(format!("not seen: what was read and written through {maps} of files"));
        }
        if summary.rings > 0 {
            let rings = count(summary.rings, "ring");
            told.push(format!("not seen: what went through {rings} of io_uring"));
        }
        if summary.unfinished > 0 {
            let requests = count(summary.unfinished, "request");
            told.push(format!("not seen: the end of {requests} that the program did not collect"));
        }
        if summary.about.lost > 0 {
            let lost = count(summary.about.lost, "record");
            told.push(format!("{lost} lost, for want of room: record with a larger --limit"));
        }
        told.extend(self.cut.clone());
        if told.is_empty() { Ok(()) } else { write!(f, "\n{}", told.join("\n")) }
    }
}

fn row(file: &FileSummary, kind: &str, moves: &Moves, is_first: bool) -> Vec<String> {
    let first = |text: String| if is_first { text } else { String::new() };
    vec![
        first(file.path.clone()),
        kind.to_owned(),
        moves.calls.to_string(),
        format_size(moves.bytes),
        moves.usual_size().map_or_else(String::new, format_size),
        percent(moves.part(moves.sequential)),
        percent(moves.part(moves.aligned_4096)),
        time(moves.took_ns / moves.calls.max(1)),
        time(moves.took_ns_max),
        first(format!("{:.1}, {}", file.depth_mean, file.depth_max)),
        first(file.flags.join(" ")),
    ]
}
