//! PostgreSQL's transactions a second, on the same loop device over a fully written file,
//! interleaved: on Bedplate as a ratio to XFS, and with untorn pages as a ratio to without.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Options;
use super::bed::{Bed, LoopDevice, detach};
use super::peer::pattern;
use super::postgres::{Cluster, mount_options};
use crate::cleanup::Guard;
use crate::sh;

const LIMIT: Duration = Duration::from_secs(300);

/// Measures every mode beside XFS and prints a table.
pub fn postgres(bed: &mut Bed, options: &Options) -> Result<()> {
    compare(bed, options, &["xfs", "cached", "concurrent", "concurrent+cache"])
}

/// Measures PostgreSQL as it is beside one that relies on untorn pages instead of logging whole
/// ones, and prints a table.
pub fn untorn_postgres(bed: &mut Bed, options: &Options) -> Result<()> {
    compare(bed, options, &["concurrent", UNTORN])
}

/// `concurrent` with untorn pages, and PostgreSQL without `full_page_writes`.
const UNTORN: &str = "untorn";

/// What pgbench measured.
#[derive(Clone, Copy)]
struct Measured {
    transactions_per_second: f64,
    /// Bytes that PostgreSQL logged for a transaction.
    log_bytes: f64,
}

/// Measures the targets in turn, and prints each as a ratio to the first.
fn compare(bed: &Bed, options: &Options, targets: &[&str]) -> Result<()> {
    let image = bed.path("disk.img");
    let bytes = (1 << 30) + u64::from(options.scale) * (48 << 20);
    fill(&image, bytes)?;
    let device = LoopDevice::attach(&image, &["--direct-io=on"])?;
    let mut results: Vec<Vec<Measured>> = vec![Vec::new(); targets.len()];
    for round in 0..options.rounds {
        for (target, result) in targets.iter().zip(&mut results) {
            let measured = if *target == "xfs" {
                on_xfs(bed, &device.path, options)?
            } else {
                on_bedplate(bed, &device.path, target, options)?
            };
            let Measured { transactions_per_second, log_bytes } = measured;
            println!(
                "    round {}: {target:<17} {transactions_per_second:>8.0} transactions/s, \
                 {log_bytes:>6.0} bytes of log each",
                round + 1
            );
            result.push(measured);
        }
    }
    println!(
        "    pgbench, scale {}, 8 clients, {} s, median of {} rounds",
        options.scale, options.seconds, options.rounds
    );
    let medians = results.iter().map(|results| {
        let of =
            |part: fn(&Measured) -> f64| median(&mut results.iter().map(part).collect::<Vec<_>>());
        Measured {
            transactions_per_second: of(|m| m.transactions_per_second),
            log_bytes: of(|m| m.log_bytes),
        }
    });
    let medians: Vec<_> = medians.collect();
    let base = medians[0];
    for (target, Measured { transactions_per_second, log_bytes }) in targets.iter().zip(medians) {
        let (tps, log) =
            (transactions_per_second / base.transactions_per_second, log_bytes / base.log_bytes);
        println!(
            "    {target:<17} {transactions_per_second:>8.0} transactions/s, {log_bytes:>6.0} \
             bytes of log each: {tps:>5.2} and {log:>5.2} of {}",
            targets[0]
        );
    }
    Ok(())
}

/// Writes a file whose blocks are all there and do not compress.
fn fill(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path)?;
    for part in 0..bytes >> 20 {
        file.write_all(&pattern(part, 1 << 20))?;
    }
    file.sync_all().context("filling the disk image")
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        f64::midpoint(values[middle - 1], values[middle])
    }
}

fn on_xfs(bed: &Bed, device: &Path, options: &Options) -> Result<Measured> {
    sh::output(Command::new("mkfs.xfs").args(["-q", "-f"]).arg(device), LIMIT)?;
    let directory = bed.make_directory("xfs")?;
    sh::output(Command::new("mount").args(["-t", "xfs"]).arg(device).arg(&directory), LIMIT)?;
    let place = directory.clone();
    let mounted = Guard::new(move || detach(&place));
    let result = measure(bed, &directory, options, None);
    sh::output(Command::new("umount").arg(&directory), LIMIT)?;
    mounted.done();
    result
}

fn on_bedplate(bed: &Bed, device: &Path, target: &str, options: &Options) -> Result<Measured> {
    // What XFS left must not look like a file system in use.
    sh::output(Command::new("wipefs").args(["-q", "-a"]).arg(device), LIMIT)?;
    bed.succeeds([OsStr::new("format"), device.as_os_str(), OsStr::new("--force")])?;
    let untorn = target == UNTORN;
    let mounted = bed.mount(device, &mount_options(if untorn { "concurrent" } else { target }))?;
    let result = measure(bed, &mounted.directory, options, untorn.then_some(bed));
    mounted.unmount(bed)?;
    result
}

/// Makes a cluster, loads it and returns what pgbench measured; `untorn`: with pages that are
/// written untorn instead of logged whole.
fn measure(
    bed: &Bed,
    directory: &Path,
    options: &Options,
    untorn: Option<&Bed>,
) -> Result<Measured> {
    let cluster = Cluster::new(bed, directory)?;
    cluster.initialise(16)?;
    let mut settings = vec!["shared_buffers=128MB", "max_wal_size=512MB"];
    if let Some(bed) = untorn {
        for part in ["base", "global"] {
            bed.succeeds([
                OsStr::new("untorn"),
                OsStr::new("-R"),
                directory.join("cluster").join(part).as_os_str(),
                OsStr::new("8k"),
            ])?;
        }
        settings.push("full_page_writes=off");
    }
    let server = cluster.start(&settings)?;
    cluster.fill(options.scale)?;
    cluster.sql("CHECKPOINT")?;
    let start = cluster.sql("SELECT pg_current_wal_lsn()")?;
    let printed =
        cluster.run("pgbench", ["-n", "-c", "8", "-j", "2", "-T", &options.seconds.to_string()])?;
    let logged: f64 = cluster
        .sql(&format!("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '{start}')"))?
        .parse()
        .context("no number of bytes")?;
    server.stop()?;
    let number = |before: &str| -> Result<f64> {
        let line = printed
            .lines()
            .find_map(|line| line.strip_prefix(before))
            .with_context(|| format!("pgbench printed no line with '{before}'"))?;
        let digits = line.split([' ', '/']).next().context("no number")?;
        digits.parse().context("no number")
    };
    let transactions = number("number of transactions actually processed: ")?;
    Ok(Measured { transactions_per_second: number("tps = ")?, log_bytes: logged / transactions })
}
