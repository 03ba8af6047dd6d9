//! `bedplate replay TRACE --target TARGET`

use std::fmt;
use std::path::PathBuf;

use bedplate::format_size;
use bedplate_bench::{
    DeviceOps, LatencySummary, Pace, ReplayOptions, Replayed, ReplayedCalls, Targets, replay,
};
use bedplate_trace::Trace;
use clap::Args;
use serde::Serialize;

use super::bench::{Consent, parse};
use super::trace::cut_told;
use crate::failure::Result;
use crate::render::output::Output;
use crate::render::text::table;

const EXAMPLES: &str = "\
Examples:
  bedplate replay load.trace -t /mnt/xfs,buffered
  bedplate replay load.trace --timed -t xfs=/mnt/xfs,buffered -t memory:4G
  bedplate replay load.trace -t volume:/dev/sdx,mode=concurrent --destroy=/dev/sdx";

/// Make the reads, writes and syncs of a trace again, on a device, a directory or a volume
///
/// Files of the same sizes are made first, with other content, and removed afterwards. Each thread
/// of the trace is a thread of the replay. What failed in the trace is left out, and so are calls
/// that set the size of files; both are counted.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The trace
    trace: PathBuf,
    /// Where: [LABEL=]raw:DEVICE, [LABEL=]path:DIR[,buffered][,mode=MODE] or
    /// [LABEL=]volume:DEVICE[,mode=MODE]; memory:SIZE stands for a device. Again for each further
    /// target
    #[arg(short, long = "target", value_name = "TARGET", required = true)]
    targets: Vec<String>,
    /// Make each call when the trace had it, instead of as soon as its thread can
    #[arg(long)]
    timed: bool,
    /// So many times as fast as the trace
    #[arg(long, value_name = "TIMES", requires = "timed", default_value = "1")]
    speed: f64,
    /// Leave in caches what the making of the files put there
    #[arg(long)]
    warm: bool,
    #[command(flatten)]
    consent: Consent,
}

/// All targets.
#[derive(Serialize)]
struct Told {
    targets: Vec<Replayed>,
    /// Where the trace ends too soon.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<String>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let loaded = Trace::load(&arguments.trace)?;
    let specs = parse(&arguments.targets)?;
    let targets = Targets::open(&specs, &mut |path| arguments.consent.given(path))?;
    let pace = if arguments.timed { Pace::Timed { speed: arguments.speed } } else { Pace::Fast };
    let options = ReplayOptions { pace, is_warm: arguments.warm };
    let targets = replay(&loaded.trace, &targets, &options)?;
    output.show(&Told { targets, cut: loaded.cut.as_ref().map(cut_told) })
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, target) in self.targets.iter().enumerate() {
            if at > 0 {
                writeln!(f)?;
            }
            one(target, f)?;
        }
        match &self.cut {
            Some(cut) => write!(f, "\n{cut}"),
            None => Ok(()),
        }
    }
}

fn one(target: &Replayed, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(
        f,
        "{}: {} threads on {} files, {:.2} s, {:.0} calls/s; the trace {:.2} s, {:.0} calls/s",
        target.target,
        target.threads,
        target.files,
        target.seconds,
        target.calls_per_second,
        target.traced_seconds,
        target.traced_calls_per_second
    )?;
    let heads = ["", "calls", "bytes", "median", "99 %", "longest", "median", "99 %", "longest"];
    let mut rows = vec![
        ["", "", "", "here", "", "", "traced", "", ""].map(str::to_owned).to_vec(),
        heads.map(str::to_owned).to_vec(),
    ];
    rows.push(row("reads", &target.reads));
    rows.push(row("writes", &target.writes));
    rows.push(row("syncs", &target.syncs));
    f.write_str(&table(&rows, &[1, 2, 3, 4, 5, 6, 7, 8]))?;
    devices(target, f)?;
    remarks(target, f)
}

fn row(name: &str, calls: &ReplayedCalls) -> Vec<String> {
    let times = |latency: &Option<LatencySummary>| {
        let shown =
            |us: f64| if us < 1e3 { format!("{us:.0}µs") } else { format!("{:.1}ms", us / 1e3) };
        latency.as_ref().map_or([const { String::new() }; 3], |latency| {
            [latency.p50_us, latency.p99_us, latency.max_us].map(shown)
        })
    };
    let mut row = vec![name.to_owned(), calls.calls.to_string(), format_size(calls.bytes)];
    row.extend(times(&calls.latency));
    row.extend(times(&calls.traced_latency));
    row
}

fn devices(target: &Replayed, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Some(here) = target.device else {
        return writeln!(f, "what reached the device is not counted here");
    };
    let heads = ["device", "reads", "bytes", "writes", "bytes", "flushes"];
    let mut rows = vec![heads.map(str::to_owned).to_vec(), device_row("here", here)];
    let name = target.traced_device_name.as_deref().unwrap_or_default();
    let name = format!("traced on {name}");
    rows.extend(target.traced_device.map(|traced| device_row(&name, traced)));
    f.write_str(&table(&rows, &[1, 2, 3, 4, 5]))?;
    if target.traced_device.is_some() && !target.traced_settled {
        writeln!(f, "the trace was not settled: writes that came later are missing there")?;
    }
    Ok(())
}

fn device_row(name: &str, ops: DeviceOps) -> Vec<String> {
    vec![
        name.to_owned(),
        ops.reads.to_string(),
        format_size(ops.read_bytes),
        ops.writes.to_string(),
        format_size(ops.written_bytes),
        ops.flushes.to_string(),
    ]
}

fn remarks(target: &Replayed, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let left_out = &target.left_out;
    let all = [
        (target.late, format!("calls began late, by {:.1} ms at the most", target.late_ms_max)),
        (target.rounded, "calls were made of the whole blocks around them".to_owned()),
        (left_out.failed, "calls were left out that failed in the trace".to_owned()),
        (left_out.sized, "calls were left out that set a size, or copied".to_owned()),
        (left_out.empty, "calls were left out that moved nothing".to_owned()),
        (left_out.early, "reads were left out that came before their writes".to_owned()),
    ];
    for (count, what) in all.iter().filter(|(count, _)| *count > 0) {
        writeln!(f, "{count} {what}")?;
    }
    Ok(())
}
