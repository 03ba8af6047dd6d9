//! PostgreSQL's load of tables, transactions and reads a second, on the same loop device over a
//! fully written file, interleaved: on Bedplate, with and without leases, as a ratio to XFS, and with
//! untorn pages as a ratio to without.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Options;
use super::bed::{Bed, LoopDevice, detach};
use super::leased::Leased;
use super::needs::is_root;
use super::peer::pattern;
use super::postgres::{Cluster, mount_options};
use crate::cleanup::Guard;
use crate::sh;

const LIMIT: Duration = Duration::from_secs(300);

/// A cache as large as the page cache of a machine would be.
pub const CACHE: &str = "cache=2G";

/// Where a cluster is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// The kernel's file system.
    Xfs,
    /// A mount in this I/O mode.
    Mount(&'static str),
    /// A mount in `concurrent` mode, and a server with leases.
    Leased,
    /// A mount in `concurrent+cache` mode whose cache has room for all data.
    Cache,
    /// The same, and a server that reads in the cache.
    LeasedCache,
    /// Data in `cached` mode, the write-ahead log in `concurrent`, and a server with leases.
    LeasedLog,
    /// `concurrent` with untorn pages, and PostgreSQL without `full_page_writes`.
    Untorn,
    /// The same with leases.
    LeasedUntorn,
    /// The same with leases for the write-ahead log only, and data in `cached` mode.
    LeasedLogUntorn,
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Self::Xfs => "xfs",
            Self::Mount(mode) => mode,
            Self::Leased => "leased",
            Self::Cache => "concurrent+cache",
            Self::LeasedCache => "cache leased",
            Self::LeasedLog => "cached, log leased",
            Self::Untorn => "untorn",
            Self::LeasedUntorn => "untorn leased",
            Self::LeasedLogUntorn => "untorn cached, log leased",
        }
    }

    fn is_untorn(self) -> bool {
        matches!(self, Self::Untorn | Self::LeasedUntorn | Self::LeasedLogUntorn)
    }

    fn is_leased(self) -> bool {
        match self {
            Self::Leased | Self::LeasedCache | Self::LeasedLog => true,
            Self::LeasedUntorn | Self::LeasedLogUntorn => true,
            Self::Xfs | Self::Mount(_) | Self::Cache | Self::Untorn => false,
        }
    }

    fn mount_options(self) -> String {
        let leases = if is_root() { "lease=postgres" } else { "lease=owner" };
        match self {
            Self::Xfs => String::new(),
            Self::Mount(mode) => mount_options(mode),
            Self::Untorn => mount_options("concurrent"),
            Self::Leased | Self::LeasedUntorn => {
                format!("{},{leases}", mount_options("concurrent"))
            }
            Self::Cache => format!("{},{CACHE}", mount_options("concurrent+cache")),
            Self::LeasedCache => format!("{},{CACHE},{leases}", mount_options("concurrent+cache")),
            Self::LeasedLog | Self::LeasedLogUntorn => {
                format!("{},{leases}", mount_options("cached"))
            }
        }
    }
}

/// Measures every mode beside XFS and prints a table.
pub fn postgres(bed: &mut Bed, options: &Options) -> Result<()> {
    let modes = ["cached", "concurrent", "concurrent+cache"].map(Target::Mount);
    compare(bed, options, &[&[Target::Xfs][..], &modes].concat())
}

/// Measures a server with leases beside one without, and beside XFS, and prints a table.
pub fn leased_postgres(bed: &mut Bed, options: &Options) -> Result<()> {
    bed.use_copy_of_program()?;
    let modes = ["cached", "concurrent"].map(Target::Mount);
    let leased = [Target::Leased, Target::Cache, Target::LeasedCache, Target::LeasedLog];
    compare(bed, options, &[&[Target::Xfs][..], &modes, &leased].concat())
}

/// Measures PostgreSQL that relies on untorn pages instead of logging whole ones beside one as it is,
/// and beside XFS, and prints a table.
pub fn untorn_postgres(bed: &mut Bed, options: &Options) -> Result<()> {
    bed.use_copy_of_program()?;
    let untorn = [Target::Untorn, Target::LeasedUntorn, Target::LeasedLogUntorn];
    compare(bed, options, &[&[Target::Xfs, Target::Mount("concurrent")][..], &untorn].concat())
}

/// What pgbench measured.
#[derive(Clone, Copy)]
struct Measured {
    /// Seconds that it took to make and fill the tables.
    load_s: f64,
    transactions_per_second: f64,
    /// Transactions that only read.
    selects_per_second: f64,
    /// Bytes that PostgreSQL logged for a transaction.
    log_bytes: f64,
}

impl Measured {
    /// Returns the median of each part.
    fn median(of: &[Self]) -> Self {
        let part = |part: fn(&Self) -> f64| median(&mut of.iter().map(part).collect::<Vec<_>>());
        Self {
            load_s: part(|m| m.load_s),
            transactions_per_second: part(|m| m.transactions_per_second),
            selects_per_second: part(|m| m.selects_per_second),
            log_bytes: part(|m| m.log_bytes),
        }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>8.0} transactions/s, {:>6.0} bytes of log each, {:>8.0} selects/s, load {:>6.2} s",
            self.transactions_per_second, self.log_bytes, self.selects_per_second, self.load_s
        )
    }
}

/// Measures the targets in turn, and prints each as a ratio to the first.
fn compare(bed: &Bed, options: &Options, all: &[Target]) -> Result<()> {
    let wanted = |target: &Target| {
        *target == all[0]
            || options.targets.is_empty()
            || options.targets.iter().any(|name| name == target.name())
    };
    let targets: Vec<Target> = all.iter().copied().filter(wanted).collect();
    let image = bed.path("disk.img");
    let bytes = (1 << 30) + u64::from(options.scale) * (48 << 20);
    fill(&image, bytes)?;
    let device = LoopDevice::attach(&image, &["--direct-io=on"])?;
    let mut results: Vec<Vec<Measured>> = vec![Vec::new(); targets.len()];
    for round in 0..options.rounds {
        for (target, result) in targets.iter().zip(&mut results) {
            let work = |directory: &Path| measure(bed, directory, options, *target);
            let measured = if *target == Target::Xfs {
                on_xfs(bed, &device.path, work)?
            } else {
                on_bedplate(bed, &device.path, &target.mount_options(), work)?
            };
            println!("    round {}: {:<18} {measured}", round + 1, target.name());
            result.push(measured);
        }
    }
    println!(
        "    pgbench, scale {}, 8 clients, {} s, median of {} rounds",
        options.scale, options.seconds, options.rounds
    );
    let medians: Vec<_> = results.iter().map(|results| Measured::median(results)).collect();
    let base = medians[0];
    for (target, here) in targets.iter().zip(&medians) {
        println!(
            "    {:<18} {here}: {:>5.2}, {:>5.2}, {:>5.2} and {:>5.2} of {}",
            target.name(),
            here.transactions_per_second / base.transactions_per_second,
            here.log_bytes / base.log_bytes,
            here.selects_per_second / base.selects_per_second,
            here.load_s / base.load_s,
            targets[0].name()
        );
    }
    Ok(())
}

/// Writes a file whose blocks are all there and do not compress.
///
/// # Errors
/// When it cannot be written.
pub fn fill(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path)?;
    for part in 0..bytes >> 20 {
        file.write_all(&pattern(part, 1 << 20))?;
    }
    file.sync_all().context("filling the disk image")
}

/// Returns the median, of an even number the middle of the middle two.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        f64::midpoint(values[middle - 1], values[middle])
    }
}

/// Does something on a new XFS on a device.
///
/// # Errors
/// When that fails, or XFS cannot be made or mounted.
pub fn on_xfs<T>(bed: &Bed, device: &Path, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    sh::output(Command::new("mkfs.xfs").args(["-q", "-f"]).arg(device), LIMIT)?;
    on_same_xfs(bed, device, work)
}

/// Does something on the XFS that a device has.
///
/// # Errors
/// When that fails, or it cannot be mounted.
pub fn on_same_xfs<T>(
    bed: &Bed,
    device: &Path,
    work: impl FnOnce(&Path) -> Result<T>,
) -> Result<T> {
    let directory = bed.make_directory("xfs")?;
    sh::output(Command::new("mount").args(["-t", "xfs"]).arg(device).arg(&directory), LIMIT)?;
    let place = directory.clone();
    let mounted = Guard::new(move || detach(&place));
    let result = work(&directory);
    sh::output(Command::new("umount").arg(&directory), LIMIT)?;
    mounted.done();
    result
}

/// Does something on a mount of a device, and tells what went by leases where any were given.
///
/// # Errors
/// When that fails, or the volume cannot be made or mounted.
pub fn on_bedplate<T>(
    bed: &Bed,
    device: &Path,
    options: &str,
    work: impl FnOnce(&Path) -> Result<T>,
) -> Result<T> {
    // What XFS left must not look like a file system in use.
    sh::output(Command::new("wipefs").args(["-q", "-a"]).arg(device), LIMIT)?;
    bed.succeeds([OsStr::new("format"), device.as_os_str(), OsStr::new("--force")])?;
    let mounted = bed.mount(device, options)?;
    let result = work(&mounted.directory);
    if options.contains("lease=") {
        println!("    {}", Leased::of(bed, &mounted.directory)?);
    }
    mounted.unmount(bed)?;
    result
}

/// Makes a cluster and sets its files as the target wants them; returns it with the settings of its
/// server.
fn set_up(bed: &Bed, directory: &Path, target: Target) -> Result<(Cluster, Vec<&'static str>)> {
    let mut cluster = Cluster::new(bed, directory)?;
    if target.is_leased() {
        cluster = cluster.with_leases_of(&bed.program);
    }
    cluster.initialise(16)?;
    let data = directory.join("cluster");
    let mut settings = vec!["max_wal_size=512MB"];
    if target.is_untorn() {
        for part in ["base", "global"] {
            let place = data.join(part);
            let words = ["untorn".as_ref(), "-R".as_ref(), place.as_os_str(), "8k".as_ref()];
            bed.succeeds(words)?;
        }
        settings.push("full_page_writes=off");
    }
    if matches!(target, Target::LeasedLog | Target::LeasedLogUntorn) {
        let place = data.join("pg_wal");
        bed.succeeds(["mode".as_ref(), "-R".as_ref(), place.as_os_str(), "concurrent".as_ref()])?;
    }
    Ok((cluster, settings))
}

/// Makes a cluster, loads it and returns what pgbench measured.
fn measure(bed: &Bed, directory: &Path, options: &Options, target: Target) -> Result<Measured> {
    let (cluster, mut settings) = set_up(bed, directory, target)?;
    let buffers = format!("shared_buffers={}", options.buffers);
    settings.push(&buffers);
    let server = cluster.start(&settings)?;
    let begun = Instant::now();
    cluster.fill(options.scale)?;
    let load_s = begun.elapsed().as_secs_f64();
    cluster.sql("CHECKPOINT")?;
    let seconds = options.seconds.to_string();
    let common = ["-n", "-c", "8", "-j", "2", "-T", &seconds];
    let selects = cluster.run("pgbench", common.iter().chain(&["-S"]))?;
    let start = cluster.sql("SELECT pg_current_wal_lsn()")?;
    let printed = cluster.run("pgbench", common)?;
    let logged: f64 = cluster
        .sql(&format!("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '{start}')"))?
        .parse()
        .context("no number of bytes")?;
    server.stop()?;
    let transactions = number(&printed, "number of transactions actually processed: ")?;
    Ok(Measured {
        load_s,
        transactions_per_second: number(&printed, "tps = ")?,
        selects_per_second: number(&selects, "tps = ")?,
        log_bytes: logged / transactions,
    })
}

/// Returns the number behind `before` at the beginning of a line.
fn number(printed: &str, before: &str) -> Result<f64> {
    let line = printed
        .lines()
        .find_map(|line| line.strip_prefix(before))
        .with_context(|| format!("pgbench printed no line with '{before}'"))?;
    let digits = line.split([' ', '/']).next().context("no number")?;
    digits.parse().context("no number")
}
