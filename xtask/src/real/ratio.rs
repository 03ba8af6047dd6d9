//! PostgreSQL's transactions a second on Bedplate as a ratio to XFS, on the same loop device over a fully written file, interleaved.

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
    let image = bed.path("disk.img");
    let bytes = (1 << 30) + u64::from(options.scale) * (48 << 20);
    fill(&image, bytes)?;
    let device = LoopDevice::attach(&image, &["--direct-io=on"])?;
    let targets = ["xfs", "cached", "concurrent", "concurrent+cache"];
    let mut results: Vec<Vec<f64>> = vec![Vec::new(); targets.len()];
    for round in 0..options.rounds {
        for (target, result) in targets.iter().zip(&mut results) {
            let tps = if *target == "xfs" { on_xfs(bed, &device.path, options)? } else { on_bedplate(bed, &device.path, target, options)? };
            println!("    round {}: {target:<17} {tps:>8.0} transactions/s", round + 1);
            result.push(tps);
        }
    }
    let base = median(&mut results[0]);
    println!("    pgbench, scale {}, 8 clients, {} s, median of {} rounds", options.scale, options.seconds, options.rounds);
    for (target, result) in targets.iter().zip(&mut results) {
        let tps = median(result);
        println!("    {target:<17} {tps:>8.0} transactions/s  {:>5.2} of XFS", tps / base);
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
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

fn on_xfs(bed: &Bed, device: &Path, options: &Options) -> Result<f64> {
    sh::output(Command::new("mkfs.xfs").args(["-q", "-f"]).arg(device), LIMIT)?;
    let directory = bed.make_directory("xfs")?;
    sh::output(Command::new("mount").args(["-t", "xfs"]).arg(device).arg(&directory), LIMIT)?;
    let place = directory.clone();
    let mounted = Guard::new(move || detach(&place));
    let result = measure(bed, &directory, options);
    sh::output(Command::new("umount").arg(&directory), LIMIT)?;
    mounted.done();
    result
}

fn on_bedplate(bed: &Bed, device: &Path, mode: &str, options: &Options) -> Result<f64> {
    // What XFS left must not look like a file system in use.
    sh::output(Command::new("wipefs").args(["-q", "-a"]).arg(device), LIMIT)?;
    bed.succeeds([OsStr::new("format"), device.as_os_str(), OsStr::new("--force")])?;
    let mounted = bed.mount(device, &mount_options(mode))?;
    let result = measure(bed, &mounted.directory, options);
    mounted.unmount(bed)?;
    result
}

/// Makes a cluster, loads it and returns what pgbench measured.
fn measure(bed: &Bed, directory: &Path, options: &Options) -> Result<f64> {
    let cluster = Cluster::new(bed, directory)?;
    cluster.initialise(16)?;
    let server = cluster.start(&["shared_buffers=128MB", "max_wal_size=512MB"])?;
    cluster.fill(options.scale)?;
    cluster.sql("CHECKPOINT")?;
    let printed = cluster.run("pgbench", ["-n", "-c", "8", "-j", "2", "-T", &options.seconds.to_string()])?;
    server.stop()?;
    let line = printed.lines().find_map(|line| line.strip_prefix("tps = ")).context("pgbench printed no tps")?;
    line.split(' ').next().context("no number")?.parse().context("no number")
}
