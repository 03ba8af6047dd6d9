//! `bedplate iostat [FILE|DIR …] [-i INTERVAL] [-c COUNT]`

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bedplate::parse_duration;
use clap::Args;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::failure::{Failure, Result};
use crate::mount::defragmenter::{self, Looked, Moved};
use crate::mount::leases::{self, Leased};
use crate::mount::live;
use crate::mount::threads::{self, Served};
use crate::mount::watch::{self, Layout, Row, Scope, SortKey};
use crate::render::output::Output;
use crate::render::text;

/// Tell what files of live mounts do: reads, writes, latencies, hit ratio, what was not aligned,
/// syncs
///
/// The first report counts from the mount (or the last --reset), each further one from the report
/// before it, as iostat(1) does. Latencies come from a sample: see the mount option
/// 'latency-sample'. Blocks are those of the file system.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Files, or directories below which to look, on mounts; none: all mounts of this machine
    paths: Vec<PathBuf>,
    /// Report again and again, this long apart
    #[arg(short, long, value_name = "DURATION", value_parser = interval)]
    interval: Option<Duration>,
    /// End after this many reports
    #[arg(short, long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Let the counters begin anew after the first report
    #[arg(long)]
    reset: bool,
    /// Sort by this; the largest comes first
    #[arg(long, value_name = "KEY", value_enum, default_value = "ops")]
    sort: SortKey,
    /// Tell of so many files only
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// More columns: medians, cached and physical reads, modes; why I/O was not served as its mode
    /// asks, and what it waited for
    #[arg(short, long)]
    long: bool,
}

/// Reads an interval: a duration, or a number of seconds.
pub fn interval(text: &str) -> std::result::Result<Duration, String> {
    let parsed = text.parse::<u64>().map(Duration::from_secs).or_else(|_| parse_duration(text))?;
    if parsed < Duration::from_millis(10) {
        Err("an interval below 10ms would watch itself".to_owned())
    } else {
        Ok(parsed)
    }
}

/// One report.
pub struct Report {
    /// Length of the interval in seconds; `None` when it counts from the mount.
    pub seconds: Option<f64>,
    /// The files.
    pub rows: Vec<Row>,
    /// What background defragmentation did.
    pub moved: Vec<Moved>,
    /// What programs did on the device by themselves.
    pub leased: Vec<Leased>,
    /// What the threads that serve did.
    pub served: Vec<Served>,
    /// Layout of the table.
    pub layout: Layout,
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let files: Vec<Value> = self.rows.iter().map(Row::document).collect();
        json!({
            "seconds": self.seconds,
            "files": files,
            "defragmentation": self.moved,
            "leases": self.leased,
            "threads": self.served,
        })
        .serialize(serializer)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.seconds {
            None => {
                writeln!(f, "since the mount, {}", text::count(self.rows.len() as u64, "file"))?;
            }
            Some(seconds) => {
                writeln!(f, "in {seconds:.2} s, {}", text::count(self.rows.len() as u64, "file"))?;
            }
        }
        f.write_str(&watch::table(&self.rows, self.layout))?;
        self.moved.iter().try_for_each(|moved| writeln!(f, "{moved}"))?;
        self.leased.iter().try_for_each(|leased| writeln!(f, "{leased}"))?;
        self.served.iter().try_for_each(|served| writeln!(f, "{served}"))
    }
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let count = arguments.count.unwrap_or(if arguments.interval.is_some() { u64::MAX } else { 1 });
    if count > 1 && arguments.interval.is_none() {
        return Err(Failure::usage(
            "several reports need a time between them: give --interval too",
        ));
    }
    let scope = Scope::new(&arguments.paths)?;
    let layout = Layout {
        long: arguments.long,
        per: 1.0,
        block_size: block_size(&scope)?,
        name_columns: None,
    };
    let mut before = Looks::default();
    for number in 0..count {
        if output.reader_is_gone() {
            break;
        }
        if number > 0 {
            std::thread::sleep(arguments.interval.unwrap_or_default());
        }
        let now = Looks::take(&scope)?;
        let report = arguments.report(&before, &now, layout, number == 0);
        show(&report, arguments.interval.is_some(), output)?;
        before = now;
        if arguments.reset && number == 0 {
            scope.reset()?;
            before.files.clear();
        }
    }
    Ok(())
}

/// What was to be seen at one moment.
#[derive(Default)]
struct Looks {
    files: watch::Seen,
    moved: Looked,
    leased: leases::Looked,
    served: threads::Looked,
    at: Option<Instant>,
}

impl Looks {
    fn take(scope: &Scope) -> Result<Self> {
        let mounts = scope.mounts()?;
        Ok(Self {
            files: scope.look()?,
            moved: defragmenter::look(&mounts)?,
            leased: leases::look(&mounts)?,
            served: threads::look(&mounts)?,
            at: Some(Instant::now()),
        })
    }
}

impl Arguments {
    /// Returns what came between two looks, of which the first report has none.
    fn report(&self, before: &Looks, now: &Looks, layout: Layout, is_first: bool) -> Report {
        let seconds = now.at.zip(before.at).map(|(at, then)| (at - then).as_secs_f64());
        let active = watch::between(&before.files, &now.files)
            .into_iter()
            .filter(|row| !self.paths.is_empty() && is_first || row.is_active())
            .collect();
        Report {
            seconds,
            rows: watch::sorted(active, self.sort, self.top),
            moved: defragmenter::between(&before.moved, &now.moved, seconds),
            leased: leases::between(&before.leased, &now.leased, seconds),
            served: threads::between(&before.served, &now.served),
            layout,
        }
    }
}

/// Shows a report: one of many as one line of JSON, so that a program can read them as they come.
fn show(report: &Report, many: bool, output: &Output) -> Result<()> {
    if many && output.is_json() {
        output.line(report)
    } else {
        output.show(report).and_then(|()| if many { output.gap() } else { Ok(()) })
    }
}

/// Returns the block size of what is watched, the smallest where they differ.
pub fn block_size(scope: &Scope) -> Result<u64> {
    let mut sizes = Vec::new();
    for mount in scope.mounts()? {
        let info = live::info(&mount)?;
        sizes.extend(info.get("block_size").and_then(Value::as_u64));
    }
    Ok(sizes.into_iter().min().unwrap_or(4096))
}
