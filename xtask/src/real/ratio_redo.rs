//! How long PostgreSQL's redo takes after a crash, on the same loop device over a fully written file: of
//! one crash image, cold, on Bedplate in each mode, with and without leases, as a ratio to XFS.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Options;
use super::bed::{Bed, LoopDevice};
use super::leased::Leased;
use super::needs::is_root;
use super::postgres::{Cluster, mount_options};
use super::ratio::{CACHE, fill, median, on_same_xfs, on_xfs};
use crate::sh;

const LIMIT: Duration = Duration::from_secs(600);

/// No checkpoint shortens the redo.
const SETTINGS: [&str; 3] = ["checkpoint_timeout=1d", "max_wal_size=16GB", "log_checkpoints=on"];

/// Where the redo is measured.
struct Target {
    name: &'static str,
    /// The options of the mount; `None`: XFS.
    options: Option<String>,
    is_leased: bool,
}

fn targets(options: &Options) -> Vec<Target> {
    let mount = |name, mode: &str, is_leased| {
        let leases = if is_root() { "postgres" } else { "owner" };
        let lease = if is_leased { format!(",lease={leases}") } else { String::new() };
        let cache = if mode.ends_with("cache") { format!(",{CACHE}") } else { String::new() };
        Target { name, options: Some(format!("{}{cache}{lease}", mount_options(mode))), is_leased }
    };
    let all = [
        Target { name: "xfs", options: None, is_leased: false },
        mount("cached", "cached", false),
        mount("concurrent", "concurrent", false),
        mount("concurrent+cache", "concurrent+cache", false),
        mount("leased", "concurrent", true),
        mount("cache leased", "concurrent+cache", true),
    ];
    let is_wanted = |target: &Target| {
        target.options.is_none()
            || options.targets.is_empty()
            || options.targets.iter().any(|name| name == target.name)
    };
    all.into_iter().filter(is_wanted).collect()
}

/// Measures how long the redo takes on each target, in turn, and prints a table.
pub fn redo(bed: &mut Bed, options: &Options) -> Result<()> {
    bed.use_copy_of_program()?;
    let targets = targets(options);
    let image = bed.path("disk.img");
    fill(&image, (2 << 30) + u64::from(options.scale) * (48 << 20))?;
    let device = LoopDevice::attach(&image, &["--direct-io=on"])?;
    let crashed = bed.path("crashed");
    let transactions = on_xfs(bed, &device.path, |place| crash(bed, place, options, &crashed))?;
    let mut results: Vec<Vec<f64>> = vec![Vec::new(); targets.len()];
    for round in 0..options.rounds {
        for (target, result) in targets.iter().zip(&mut results) {
            let seconds = measure(bed, &device.path, target, &crashed)?;
            println!("    round {}: {:<18} {seconds:>7.2} s", round + 1, target.name);
            result.push(seconds);
        }
    }
    println!(
        "    redo of {transactions} transactions at scale {}, cold, median of {} rounds",
        options.scale, options.rounds
    );
    let medians: Vec<f64> = results.iter_mut().map(|seconds| median(seconds)).collect();
    for (target, seconds) in targets.iter().zip(&medians) {
        let ratio = seconds / medians[0];
        println!("    {:<18} {seconds:>7.2} s: {ratio:>5.2} of xfs's time", target.name);
    }
    Ok(())
}

/// Loads a cluster, kills its server under no load, and copies what it left to `crashed`; returns how
/// many transactions are to be done again.
fn crash(bed: &Bed, place: &Path, options: &Options, crashed: &Path) -> Result<u64> {
    let cluster = Cluster::new(bed, place)?;
    cluster.initialise(16)?;
    let server = cluster.start(&SETTINGS)?;
    cluster.fill(options.scale)?;
    cluster.sql("CHECKPOINT")?;
    let each = 500 * options.seconds;
    let each_text = each.to_string();
    cluster.run("pgbench", ["-n", "-c", "8", "-j", "2", "-t", &each_text])?;
    server.kill()?;
    copy(&cluster.data, crashed)?;
    Ok(8 * each)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    sh::output(Command::new("cp").arg("-a").arg(from).arg(to), LIMIT)?;
    rustix::fs::sync();
    Ok(())
}

/// Puts the crash image on a target, forgets what is in memory, and starts the server on it.
fn measure(bed: &Bed, device: &Path, target: &Target, crashed: &Path) -> Result<f64> {
    let with = |work: &mut dyn FnMut(&Path) -> Result<f64>| match &target.options {
        None => on_same_xfs(bed, device, work),
        Some(options) => {
            let mounted = bed.mount(device, options)?;
            let result = work(&mounted.directory);
            mounted.unmount(bed)?;
            result
        }
    };
    sh::output(Command::new("wipefs").args(["-q", "-a"]).arg(device), LIMIT)?;
    if target.options.is_none() {
        sh::output(Command::new("mkfs.xfs").args(["-q", "-f"]).arg(device), LIMIT)?;
    } else {
        bed.succeeds([OsStr::new("format"), device.as_os_str(), OsStr::new("--force")])?;
    }
    with(&mut |place| copy(crashed, &place.join("cluster")).map(|()| 0.0))?;
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop the page cache")?;
    with(&mut |place| {
        let mut cluster = Cluster::new(bed, place)?;
        if target.is_leased {
            cluster = cluster.with_leases_of(&bed.program);
        }
        let server = cluster.start(&SETTINGS)?;
        if target.is_leased {
            println!("    {}", Leased::of(bed, place)?);
        }
        cluster.verify_sums()?;
        server.stop()?;
        redo_seconds(&cluster.log_path())
    })
}

/// Returns how long the last redo took, as PostgreSQL's log has it.
fn redo_seconds(log: &Path) -> Result<f64> {
    let text = std::fs::read_to_string(log)?;
    let done = text.lines().rfind(|line| line.contains("redo done at"));
    let done = done.context("the server made no redo")?;
    let (_, seconds) = done.split_once("elapsed: ").context("the log tells no time of the redo")?;
    seconds.trim_end_matches(" s").parse().context("the time of the redo is no number")
}
