//! SQLite's commits, fio's direct reads and writes, and appends of many committers to one file, on
//! the same loop device over a fully written file, interleaved: on Bedplate, with and without leases,
//! as a ratio to XFS.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Options;
use super::bed::Bed;
use super::ratio_programs::{Measured, compare};
use crate::sh;

const LIMIT: Duration = Duration::from_secs(600);
const MIB: u64 = 1 << 20;

/// A program in front of whose calls the library of leases stands, or does not.
fn program(bed: &Bed, name: &Path, leased: bool) -> Command {
    if !leased {
        return Command::new(name);
    }
    let mut command = Command::new(&bed.program);
    command.args(["run", "--"]).arg(name);
    command
}

/// Measures SQLite's commits with `synchronous=FULL`: write-ahead log and rollback journal.
pub fn sqlite(bed: &mut Bed, options: &Options) -> Result<()> {
    bed.use_copy_of_program()?;
    compare(bed, options, &["commits/s (WAL)", "commits/s (rollback)"], commits)
}

fn commits(bed: &Bed, options: &Options, place: &Path, leased: bool) -> Result<Measured> {
    let count = 300 * options.seconds;
    let rate = |journal: &str| {
        let script = bed.path("commits.sql");
        let mut text = format!(
            "PRAGMA journal_mode={journal}; PRAGMA synchronous=FULL;
             CREATE TABLE t(n INTEGER PRIMARY KEY, payload BLOB);\n"
        );
        for number in 0..count {
            text += &format!("INSERT INTO t VALUES({number}, randomblob(100));\n");
        }
        std::fs::write(&script, text)?;
        let database = place.join(format!("{journal}.sqlite"));
        let begun = Instant::now();
        let mut command = program(bed, "sqlite3".as_ref(), leased);
        sh::output(command.arg(&database).arg(format!(".read {}", script.display())), LIMIT)?;
        let rate = count as f64 / begun.elapsed().as_secs_f64();
        let mut command = Command::new("sqlite3");
        let rows = sh::output(command.arg(&database).arg("SELECT count(*) FROM t"), LIMIT)?;
        ensure!(rows.trim() == count.to_string(), "{count} rows were committed, {rows} are there");
        Ok(rate)
    };
    ["WAL", "DELETE"].into_iter().map(rate).collect()
}

/// Threads of fio's jobs.
const JOBS: [u32; 3] = [1, 16, 64];

/// Measures fio's reads and writes of 8 KiB past all caches by 1, 16 and 64 threads.
pub fn fio(bed: &mut Bed, options: &Options) -> Result<()> {
    bed.use_copy_of_program()?;
    let what = ["reads/s (1)", "(16)", "(64)", "writes/s (1)", "(16)", "(64)"];
    compare(bed, options, &what, direct_requests)
}

fn direct_requests(bed: &Bed, options: &Options, place: &Path, leased: bool) -> Result<Measured> {
    let file = place.join("data");
    let size = 256 * MIB;
    std::fs::write(&file, super::peer::pattern(1, size as usize))?;
    File::open(&file)?.sync_all()?;
    // What rests after a load is leased once it was left alone.
    std::thread::sleep(Duration::from_secs(2));
    let mut rates = Measured::new();
    for kind in ["randread", "randwrite"] {
        for jobs in JOBS {
            let mut command = program(bed, "fio".as_ref(), leased);
            command
                .args(["--name=x", "--bs=8k", "--direct=1", "--ioengine=psync", "--thread"])
                .args(["--group_reporting", "--minimal", "--time_based", "--randrepeat=0"])
                .arg(format!("--filename={}", file.display()))
                .arg(format!("--size={size}"))
                .arg(format!("--rw={kind}"))
                .arg(format!("--numjobs={jobs}"))
                .arg(format!("--runtime={}", options.seconds));
            rates.push(fio_rate(&mut command, kind)?);
        }
    }
    Ok(rates)
}

/// Runs fio with terse output and returns its operations a second; `kind` is `randread` or
/// `randwrite`.
///
/// # Errors
/// When it fails, or prints no rate.
pub fn fio_rate(fio: &mut Command, kind: &str) -> Result<f64> {
    let printed = sh::output(fio, LIMIT)?;
    // Operations a second of reads and of writes in the third format of terse output.
    let at = if kind == "randread" { 7 } else { 48 };
    let field = printed.lines().find_map(|line| line.split(';').nth(at)?.parse().ok());
    field.with_context(|| format!("fio printed no rate: {printed}"))
}

/// Measures 8 threads that append 4 KiB to one file, each durably before its next.
pub fn appends(bed: &mut Bed, options: &Options) -> Result<()> {
    bed.use_copy_of_program()?;
    compare(bed, options, &["appends/s (1)", "appends/s (8)"], durable_appends)
}

fn durable_appends(bed: &Bed, options: &Options, place: &Path, leased: bool) -> Result<Measured> {
    let this = std::env::current_exe()?;
    let rate = |threads: &str| {
        let mut command = program(bed, &this, leased);
        command.arg("append").arg(place.join(format!("log-{threads}"))).arg(threads);
        let printed = sh::output(command.arg(options.seconds.to_string()), LIMIT)?;
        printed.trim().parse().with_context(|| format!("no rate: {printed}"))
    };
    ["1", "8"].into_iter().map(rate).collect()
}

/// Appends pages to a file by several threads for some seconds, each durably before its next, and
/// prints how many a second.
///
/// # Errors
/// When a write or sync fails.
pub fn append(file: &Path, threads: u64, seconds: u64) -> Result<()> {
    const PAGE: usize = 4096;
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(file)?;
    let (end, begun) = (AtomicU64::new(0), Instant::now());
    let time = Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        let work = || {
            while begun.elapsed() < time {
                let at = end.fetch_add(PAGE as u64, Ordering::Relaxed);
                file.write_all_at(&[1; PAGE], at)?;
                file.sync_data()?;
            }
            Ok(())
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })
    .map_err(|error: std::io::Error| error)?;
    let count = end.load(Ordering::Relaxed) / PAGE as u64;
    println!("{:.1}", count as f64 / begun.elapsed().as_secs_f64());
    Ok(())
}
