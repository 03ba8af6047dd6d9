//! Files of live mounts as `iostat`, `top` and `explain` show them: which, what they did, and in
//! which order.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use bedplate::{FileActivity, LatencySnapshot, Reason};
use bedplate_serve::control::Request;
use clap::ValueEnum;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::failure::{Failure, Result};
use crate::mount::{self, Mount, live, waits};
use crate::render::text;
pub use crate::render::text::short;

/// What is watched: single files, and whole directories of mounts.
#[derive(Debug)]
pub struct Scope {
    files: Vec<PathBuf>,
    /// The mount, and the directory below which files count, as the mount knows it.
    below: Vec<(Mount, PathBuf)>,
}

/// What files did, by path.
pub type Seen = BTreeMap<PathBuf, FileActivity>;

/// A file as the daemon tells of it.
#[derive(Deserialize)]
struct Named {
    path: Option<String>,
    #[serde(default)]
    path_bytes: Option<Vec<u8>>,
    #[serde(flatten)]
    activity: FileActivity,
}

impl Scope {
    /// Takes files and directories on mounts; none: every mount of this machine.
    pub fn new(paths: &[PathBuf]) -> Result<Self> {
        let mut scope = Self { files: Vec::new(), below: Vec::new() };
        if paths.is_empty() {
            // A checkpoint that is mounted beside its volume has no process of its own to ask.
            for mount in mount::ours()? {
                match live::get(&mount.dir, live::PID) {
                    Ok(None) => {}
                    // One that is dead or of another user hides no other.
                    Err(failure)
                        if failure.kind == "stale_mount" || failure.kind == "not_permitted" =>
                    {
                        tracing::warn!("{}", failure.message);
                    }
                    _ => {
                        let inside = mount.path.clone();
                        scope.below.push((mount, inside));
                    }
                }
            }
            if scope.below.is_empty() {
                return Err(Failure::new(
                    "not_a_mount",
                    "no volume is mounted here: mount one with 'bedplate mount', or name a file of \
                     a mount",
                ));
            }
        }
        for path in paths {
            let mount = live::require_mount(path)?;
            let canonical = mount::canonical(path)?;
            if canonical.is_dir() {
                let inside = mount.inside(&canonical);
                scope.below.push((mount, inside));
            } else if canonical.is_file() {
                scope.files.push(path.clone());
            } else {
                return Err(Failure::new(
                    "invalid",
                    format!(
                        "{} is neither a file nor a directory: name one of these",
                        path.display()
                    ),
                ));
            }
        }
        Ok(scope)
    }

    /// Returns the mounts in which something is watched, each once.
    pub fn mounts(&self) -> Result<Vec<Mount>> {
        let mut found: Vec<Mount> = self.below.iter().map(|(mount, _)| mount.clone()).collect();
        for file in &self.files {
            found.push(live::require_mount(file)?);
        }
        found.sort_by(|a, b| a.dir.cmp(&b.dir));
        found.dedup_by(|a, b| a.dir == b.dir);
        Ok(found)
    }

    /// Returns what the files did so far; of directories those that did anything.
    pub fn look(&self) -> Result<Seen> {
        let mut seen = Seen::new();
        for file in &self.files {
            let activity = live::get_as(file, live::ACTIVITY)?;
            seen.extend(activity.map(|activity| (file.clone(), activity)));
        }
        for (mount, dir) in &self.below {
            for Named { path, path_bytes, activity } in
                live::ask::<Vec<Named>>(mount, &Request::Activities)?
            {
                let name = match path_bytes
                    .or_else(|| path.map(String::into_bytes))
                    .map(|path| PathBuf::from(OsString::from_vec(path)))
                {
                    Some(path) if !path.starts_with(dir) => continue,
                    Some(path) => mount.outside(&path).unwrap_or(path),
                    None if dir == Path::new("/") => {
                        let mut name = mount.dir.clone().into_os_string();
                        name.push(format!(": inode {}, no name left", activity.ino.0));
                        name.into()
                    }
                    None => continue,
                };
                seen.insert(name, activity);
            }
        }
        Ok(seen)
    }

    /// Sets counters to zero: of the files named, and of the mounts whose directories were named.
    pub fn reset(&self) -> Result<()> {
        for file in &self.files {
            live::set(file, live::RESET, "1")?;
        }
        for (mount, dir) in &self.below {
            if dir == Path::new("/") {
                live::ask::<Value>(mount, &Request::ResetStatistics)?;
            } else {
                let of_directory =
                    Self { files: Vec::new(), below: vec![(mount.clone(), dir.clone())] };
                for path in of_directory.look()?.keys() {
                    match live::set(path, live::RESET, "1") {
                        // It was removed meanwhile.
                        Err(failure) if failure.kind == "not_found" => {}
                        set => set?,
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns what came between two looks. Files that did nothing are left out, unless they were
/// named.
pub fn between(earlier: &Seen, now: &Seen) -> Vec<Row> {
    let since = |(path, activity): (&PathBuf, &FileActivity)| {
        // Another file may have the name by now.
        let before = earlier.get(path).filter(|before| before.ino == activity.ino);
        let Some(before) = before else {
            return Row { path: path.clone(), activity: activity.clone() };
        };
        let (counters, latencies) = (
            activity.counters.since(&before.counters),
            activity.latencies.since(&before.latencies),
        );
        let waits = activity.waits.since(&before.waits);
        Row {
            path: path.clone(),
            activity: FileActivity { counters, latencies, waits, ..activity.clone() },
        }
    };
    now.iter().map(since).collect()
}

/// What one file did in a time.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its path in the system.
    pub path: PathBuf,
    /// What it did.
    pub activity: FileActivity,
}

/// By what a table is sorted; the largest comes first, names in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SortKey {
    /// Reads and writes
    Ops,
    Reads,
    Writes,
    /// Bytes read and written
    Bytes,
    ReadAvg,
    ReadP99,
    WriteAvg,
    WriteP99,
    /// Hit ratio of the library cache
    Hit,
    Misaligned,
    Syncs,
    /// Time spent in syncs
    SyncWait,
    /// Time waited for locks of the file
    LockWait,
    Name,
}

impl Row {
    fn rank(&self, key: SortKey) -> u64 {
        let (counters, latencies) = (&self.activity.counters, &self.activity.latencies);
        match key {
            SortKey::Ops => counters.reads + counters.writes,
            SortKey::Reads => counters.reads,
            SortKey::Writes => counters.writes,
            SortKey::Bytes => counters.read_bytes + counters.written_bytes,
            SortKey::ReadAvg => latencies.read.average_ns().unwrap_or(0),
            SortKey::ReadP99 => latencies.read.percentile_ns(0.99).unwrap_or(0),
            SortKey::WriteAvg => latencies.write.average_ns().unwrap_or(0),
            SortKey::WriteP99 => latencies.write.percentile_ns(0.99).unwrap_or(0),
            SortKey::Hit => self.hit_ratio().map_or(0, |ratio| (ratio * 1e6) as u64),
            SortKey::Misaligned => counters.misaligned,
            SortKey::Syncs => counters.syncs,
            SortKey::SyncWait => counters.sync_wait_ns,
            SortKey::LockWait => self.activity.waits.lock_ns(),
            SortKey::Name => 0,
        }
    }

    /// Returns whether the file did anything.
    pub fn is_active(&self) -> bool {
        let counters = &self.activity.counters;
        counters.reads + counters.writes + counters.syncs > 0
    }

    /// Share of the reads that went through the library cache and were answered by it; `None` when
    /// none went through it.
    pub fn hit_ratio(&self) -> Option<f64> {
        let counters = &self.activity.counters;
        let through = counters.cache_hits + counters.cache_misses;
        (through > 0).then(|| counters.cache_hits as f64 / through as f64)
    }

    /// Returns the average time of a sync in nanoseconds.
    pub fn sync_average_ns(&self) -> Option<u64> {
        self.activity.counters.sync_wait_ns.checked_div(self.activity.counters.syncs)
    }

    /// Returns the row as a program reads it.
    pub fn document(&self) -> Value {
        let FileActivity {
            ino,
            size_bytes,
            file_mode,
            effective_mode,
            mixed,
            opens,
            counters,
            latencies,
            waits,
        } = &self.activity;
        json!({
            "path": bedplate::readable_name(self.path.as_os_str().as_bytes()), "ino": ino.0,
                "size_bytes": size_bytes,
                "mode": file_mode,
                "effective_mode": effective_mode,
                "mixed": mixed,
            "opens": opens, "reads": counters.reads, "read_bytes": counters.read_bytes, "writes": counters.writes,
            "written_bytes": counters.written_bytes, "direct": counters.direct, "misaligned": counters.misaligned, "delayed": counters.delayed, "window_hits": counters.window_hits, "large": counters.large,
            "cached_reads": counters.cache_hits, "physical_reads": counters.reads - counters.cache_hits.min(counters.reads),
            "hit_ratio": self.hit_ratio(), "syncs": counters.syncs, "sync_wait_ns": counters.sync_wait_ns,
            "sync_pages_ns": counters.sync_pages_ns, "mode_transitions": counters.mode_transitions,
                "reasons": reasons(&counters.reasons), "waits": waits,
            "latency": { "read": latency(&latencies.read), "write": latency(&latencies.write),
                "sync": latency(&latencies.sync) },
        })
    }
}

/// Names the counts in the order of [`Reason::ALL`].
pub fn reasons(counts: &[u64]) -> Map<String, Value> {
    Reason::ALL
        .iter()
        .zip(counts)
        .map(|(reason, count)| (reason.name().to_owned(), json!(count)))
        .collect()
}

/// Returns a histogram's summary as a program reads it.
pub fn latency(snapshot: &LatencySnapshot) -> Value {
    let at = |share| snapshot.percentile_ns(share);
    json!({ "timed": snapshot.timed, "average_ns": snapshot.average_ns(), "p50_ns": at(0.5),
        "p99_ns": at(0.99),
        "ns_max": snapshot.ns_max })
}

/// Sorts by a key and keeps the first `top`.
pub fn sorted(mut rows: Vec<Row>, key: SortKey, top: Option<usize>) -> Vec<Row> {
    rows.sort_by(|a, b| b.rank(key).cmp(&a.rank(key)).then_with(|| a.path.cmp(&b.path)));
    rows.truncate(top.unwrap_or(usize::MAX));
    rows
}

/// How a table is laid out.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// All columns, and the reasons below each file.
    pub long: bool,
    /// What counts are divided by: the seconds of an interval, or 1.
    pub per: f64,
    /// Block size by which bytes are counted.
    pub block_size: u64,
    /// Room for names, which then come first, so that a narrow screen cuts off numbers and not
    /// them; `None`: last, and whole.
    pub name_columns: Option<usize>,
}

/// Lays out rows as a table.
pub fn table(rows: &[Row], layout: Layout) -> String {
    let Layout { long, .. } = layout;
    let mut head = vec!["reads", "writes", "rblk", "wblk", "r-avg"];
    head.extend(long.then_some("r-p50"));
    head.extend(["r-p99", "w-avg"]);
    head.extend(long.then_some("w-p50"));
    head.push("w-p99");
    head.extend(if long { &["cached", "phys"][..] } else { &[] });
    head.extend(["hit%", "misal", "syncs", "s-avg", "l-wait"]);
    head.extend(if long { &["s-p99", "mode"][..] } else { &[] });
    head.push("file");
    let numbers = head.len() - if long { 2 } else { 1 };
    let head: Vec<String> = head.into_iter().map(str::to_owned).collect();
    let mut lines: Vec<Vec<String>> =
        std::iter::once(head).chain(rows.iter().map(|row| cells(row, layout))).collect();
    if let Some(columns) = layout.name_columns {
        lines.iter_mut().for_each(|line| line.rotate_right(1));
        lines.iter_mut().for_each(|line| line[0] = end_of(&line[0], columns));
    }
    let first = usize::from(layout.name_columns.is_some());
    let body = text::table(&lines, &(first..first + numbers).collect::<Vec<_>>());
    if !long {
        return body;
    }
    let mut lines = body.lines();
    let mut told = lines.next().unwrap_or_default().to_owned() + "\n";
    for (line, row) in lines.zip(rows) {
        told.push_str(line);
        told.push('\n');
        let why: Vec<String> = row
            .why_not_direct()
            .map(|(reason, count)| format!("{} {count}", reason.name()))
            .collect();
        if !why.is_empty() {
            told.push_str(&format!("    not as its mode asks: {}\n", why.join(", ")));
        }
        if let Some(waits) = waits::line(&row.activity.waits) {
            told.push_str(&format!("    waited: {waits}\n"));
        }
    }
    told
}

/// Returns the end of a name, which tells files apart, in so many columns.
fn end_of(name: &str, columns: usize) -> String {
    let letters = name.chars().count();
    if letters <= columns {
        name.to_owned()
    } else {
        std::iter::once('…').chain(name.chars().skip(letters + 1 - columns.max(1))).collect()
    }
}

impl Row {
    /// Returns the reasons that were counted, with how often.
    pub fn why_not_direct(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.into_iter().zip(self.activity.counters.reasons).filter(|(_, count)| *count > 0)
    }
}

fn cells(row: &Row, Layout { long, per, block_size, .. }: Layout) -> Vec<String> {
    let (counters, latencies) = (&row.activity.counters, &row.activity.latencies);
    let n = |count: u64| {
        if (per - 1.0).abs() < f64::EPSILON {
            count.to_string()
        } else {
            format!("{:.0}", count as f64 / per)
        }
    };
    let blocks = |bytes: u64| n(bytes.div_ceil(block_size.max(1)));
    let (read, write) = (&latencies.read, &latencies.write);
    let mut cells = vec![
        n(counters.reads),
        n(counters.writes),
        blocks(counters.read_bytes),
        blocks(counters.written_bytes),
        short(read.average_ns()),
    ];
    cells.extend(long.then(|| short(read.percentile_ns(0.5))));
    cells.extend([short(read.percentile_ns(0.99)), short(write.average_ns())]);
    cells.extend(long.then(|| short(write.percentile_ns(0.5))));
    cells.push(short(write.percentile_ns(0.99)));
    if long {
        cells.extend([
            n(counters.cache_hits),
            n(counters.reads.saturating_sub(counters.cache_hits)),
        ]);
    }
    let hit =
        row.hit_ratio().map_or_else(|| "-".to_owned(), |ratio| format!("{:.0}", ratio * 100.0));
    cells.extend([hit, n(counters.misaligned), n(counters.syncs), short(row.sync_average_ns())]);
    let waits = &row.activity.waits;
    cells.push(short((waits.lock_count() > 0).then(|| (waits.lock_ns() as f64 / per) as u64)));
    if long {
        cells.push(short(latencies.sync.percentile_ns(0.99)));
        cells.push(
            row.activity.effective_mode.map_or_else(|| "-".to_owned(), |mode| mode.to_string()),
        );
    }
    cells.push(text::name(&row.path));
    cells
}

#[cfg(test)]
mod tests {
    use bedplate::{CounterSnapshot, InodeNo, Latencies, WaitTime, Waits};

    use super::*;

    fn row(path: &str, reads: u64, hits: u64) -> Row {
        let counters = CounterSnapshot {
            reads,
            cache_hits: hits,
            cache_misses: reads - hits,
            ..CounterSnapshot::default()
        };
        let latencies = Latencies::default();
        let activity = FileActivity {
            ino: InodeNo(reads),
            size_bytes: 0,
            file_mode: None,
            effective_mode: None,
            mixed: false,
            opens: 0,
            counters,
            latencies,
            waits: Waits::default(),
        };
        Row { path: path.into(), activity }
    }

    #[test]
    fn the_busiest_come_first_and_only_so_many() {
        let rows = vec![row("a", 5, 0), row("c", 9, 0), row("b", 9, 9)];
        let names = |key, top| {
            sorted(rows.clone(), key, top)
                .into_iter()
                .map(|row| row.path.display().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(SortKey::Ops, None), ["b", "c", "a"]);
        assert_eq!(names(SortKey::Name, None), ["a", "b", "c"]);
        assert_eq!(names(SortKey::Hit, Some(1)), ["b"]);
    }

    #[test]
    fn an_interval_counts_what_came_and_takes_another_file_of_the_name_whole() {
        let seen = |rows: &[Row]| {
            rows.iter().map(|row| (row.path.clone(), row.activity.clone())).collect::<Seen>()
        };
        let mut later = row("a", 7, 0);
        later.activity.ino = InodeNo(5);
        let rows =
            between(&seen(&[row("a", 5, 0), row("b", 3, 0)]), &seen(&[later, row("b", 4, 0)]));
        assert_eq!(rows.iter().map(|row| row.activity.counters.reads).collect::<Vec<_>>(), [2, 4]);
    }

    #[test]
    fn a_table_has_as_many_cells_as_heads_and_names_the_reasons() {
        let mut one = row("file", 10, 5);
        one.activity.counters.reasons[Reason::Hole as usize] = 3;
        one.activity.waits.byte_range = WaitTime { count: 2, ns: 3_000_000, ns_max: 2_000_000 };
        for long in [false, true] {
            let told = table(
                &[one.clone()],
                Layout { long, per: 1.0, block_size: 4096, name_columns: None },
            );
            let lines: Vec<_> = told.lines().collect();
            assert_eq!(
                lines[0].split_whitespace().count(),
                lines[1].split_whitespace().count(),
                "{told}"
            );
            assert!(lines[1].contains(" 50 ") && lines[1].ends_with("file"), "{told}");
            assert_eq!(told.contains("hole 3"), long);
            // S-502
            assert!(lines[1].contains("3.00ms"), "{told}");
            assert_eq!(told.contains("waited: byte range 2 times, 3.00ms"), long, "{told}");
        }
    }

    #[test]
    fn on_a_screen_names_come_first_and_keep_their_end() {
        let told = table(
            &[row("/mnt/db/base/orders.ibd", 10, 5)],
            Layout { long: true, per: 1.0, block_size: 4096, name_columns: Some(11) },
        );
        let lines: Vec<_> = told.lines().collect();
        assert!(
            lines[0].starts_with("file         reads")
                && lines[1].starts_with("…orders.ibd     10"),
            "{told}"
        );
        assert_eq!(
            (end_of("short", 5).as_str(), end_of("shorter", 5).as_str()),
            ("short", "…rter")
        );
    }
}
