//! MariaDB under sysbench and RocksDB under its own benchmark, on the same loop device over a fully
//! written file, interleaved: on Bedplate, with and without leases, as a ratio to XFS.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Options;
use super::bed::{Bed, LoopDevice};
use super::mariadb::MariaDb;
use super::ratio::{fill, median, on_bedplate, on_xfs};
use crate::sh;

const LIMIT: Duration = Duration::from_secs(600);

/// Where a program is measured, and the options of the mount.
const TARGETS: [(&str, &str); 4] = [
    ("xfs", ""),
    ("cached", "mode=cached"),
    ("concurrent", "mode=concurrent"),
    ("leased", "mode=concurrent,lease=owner"),
];

/// What a program measured: more is better.
pub type Measured = Vec<f64>;

/// Measures a program in a directory, with leases or not.
pub type Measure = fn(&Bed, &Options, &Path, bool) -> Result<Measured>;

/// Measures the targets in turn, and prints each as a ratio to XFS.
///
/// # Errors
/// When a target or the program fails.
pub fn compare(bed: &Bed, options: &Options, what: &[&str], measure: Measure) -> Result<()> {
    let is_wanted = |(name, _): &(&str, &str)| {
        *name == "xfs" || options.targets.is_empty() || options.targets.iter().any(|it| it == name)
    };
    let targets: Vec<_> = TARGETS.into_iter().filter(is_wanted).collect();
    let image = bed.path("disk.img");
    fill(&image, (1 << 30) + u64::from(options.scale) * (48 << 20))?;
    let device = LoopDevice::attach(&image, &["--direct-io=on"])?;
    let mut results: Vec<Vec<Measured>> = vec![Vec::new(); targets.len()];
    for round in 0..options.rounds {
        // Each comes first once: what runs beside changes in the course of a round.
        for turn in 0..targets.len() {
            let at = (turn + round as usize) % targets.len();
            let ((name, mount), result) = (&targets[at], &mut results[at]);
            let work = |place: &Path| measure(bed, options, place, *name == "leased");
            let measured = if mount.is_empty() {
                on_xfs(bed, &device.path, work)?
            } else {
                on_bedplate(bed, &device.path, mount, work)?
            };
            println!("    round {}: {name:<12} {}", round + 1, told(what, &measured));
            result.push(measured);
        }
    }
    let part = |results: &[Measured], at: usize| {
        median(&mut results.iter().map(|measured| measured[at]).collect::<Vec<_>>())
    };
    println!("    scale {}, medians of {} rounds", options.scale, options.rounds);
    for ((name, _), here) in targets.iter().zip(&results) {
        let medians: Measured = (0..what.len()).map(|at| part(here, at)).collect();
        let ratios = medians.iter().enumerate().map(|(at, value)| value / part(&results[0], at));
        let ratios: Vec<String> = ratios.map(|ratio| format!("{ratio:.2}")).collect();
        println!("    {name:<12} {}: {} of xfs", told(what, &medians), ratios.join(", "));
    }
    Ok(())
}

fn told(what: &[&str], measured: &[f64]) -> String {
    let parts = what.iter().zip(measured).map(|(what, value)| format!("{value:>9.1} {what}"));
    parts.collect::<Vec<_>>().join(", ")
}

/// Measures MariaDB with asynchronous requests by libaio.
pub fn mariadb(bed: &mut Bed, options: &Options) -> Result<()> {
    bed.use_copy_of_program()?;
    compare(bed, options, &["transactions/s", "rows loaded/s"], oltp)
}

const TABLES: u32 = 4;

/// sysbench's `oltp_read_write`, on tables of several times the buffers.
fn oltp(bed: &Bed, options: &Options, place: &Path, leased: bool) -> Result<Measured> {
    let mut server = MariaDb::install(bed, place.join("data"))?;
    if leased {
        server = server.with_leases_of(&bed.program);
    }
    server.start(&[
        "--innodb-use-native-aio=ON",
        "--loose-innodb-linux-aio=aio",
        "--innodb-flush-method=O_DIRECT",
        "--innodb-buffer-pool-size=32M",
        // Small enough to be written over: its first blocks are preallocated, and the mount's.
        "--innodb-log-file-size=16M",
    ])?;
    server.sql("CREATE DATABASE sbtest")?;
    let rows = 50_000 * options.scale / TABLES;
    let sysbench = |what: &str| {
        let mut command = Command::new("sysbench");
        command
            .args(["oltp_read_write", "--db-driver=mysql", "--mysql-user=root", "--threads=8"])
            .arg(format!("--mysql-socket={}", server.socket()))
            .arg(format!("--tables={TABLES}"))
            .arg(format!("--table-size={rows}"))
            .arg(format!("--time={}", options.seconds))
            .arg(what);
        sh::output(&mut command, LIMIT)
    };
    let begun = Instant::now();
    sysbench("prepare")?;
    let loaded = f64::from(rows * TABLES) / begun.elapsed().as_secs_f64();
    let printed = sysbench("run")?;
    server.stop()?;
    let line = printed.lines().find(|line| line.trim_start().starts_with("transactions:"));
    let rate = line.and_then(|line| line.split('(').nth(1)?.split(' ').next()?.parse().ok());
    Ok(vec![rate.with_context(|| format!("sysbench printed no rate: {printed}"))?, loaded])
}

/// Measures RocksDB: synced writes, writes over what is there, and reads past the page cache.
pub fn rocksdb(bed: &mut Bed, options: &Options) -> Result<()> {
    bed.use_copy_of_program()?;
    let what = ["fillsync/s", "overwrite/s", "readrandom/s"];
    compare(bed, options, &what, db_bench)
}

fn db_bench(bed: &Bed, options: &Options, place: &Path, leased: bool) -> Result<Measured> {
    let run = |benchmarks: &str, count: u64| {
        let mut command = Command::new(if leased { &bed.program } else { Path::new("db_bench") });
        if leased {
            command.args(["run", "--", "db_bench"]);
        }
        command
            .arg(format!("--db={}", place.join("rocks").display()))
            .arg(format!("--benchmarks={benchmarks}"))
            .arg(format!("--num={count}"))
            .args(["--value_size=400", "--compression_type=none", "--cache_size=8388608"])
            .args(["--use_direct_reads=true", "--use_direct_io_for_flush_and_compaction=true"]);
        sh::output(&mut command, LIMIT)
    };
    let keys = 50_000 * u64::from(options.scale);
    let printed = run("fillsync", 500 * options.seconds)?
        + &run("fillrandom,overwrite,waitforcompaction,readrandom", keys)?;
    ["fillsync", "overwrite", "readrandom"].into_iter().map(|it| rate(&printed, it)).collect()
}

/// Returns the operations a second of a line like `overwrite : 3.2 micros/op 310000 ops/sec …`.
fn rate(printed: &str, what: &str) -> Result<f64> {
    let line = printed.lines().find(|line| line.starts_with(what));
    let words: Vec<&str> = line.map(|line| line.split_whitespace().collect()).unwrap_or_default();
    let at = words.iter().position(|word| word.starts_with("ops/sec"));
    at.and_then(|at| words.get(at.checked_sub(1)?)?.parse().ok())
        .with_context(|| format!("db_bench printed no rate of {what}: {printed}"))
}
