//! The volume runs full in the middle of PostgreSQL's load.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{FallocateFlags, fallocate, statvfs};

use super::Options;
use super::bed::Bed;
use super::ledger::Client;
use super::postgres::{Cluster, leave, mount_options};
use crate::sh;

/// The log is recycled in a fixed amount, so that data is what runs out.
const SETTINGS: [&str; 2] = ["max_wal_size=24MB", "min_wal_size=24MB"];
/// What is left for the load, in bytes.
const LEFT: u64 = 40 << 20;

/// S-34: PostgreSQL reports no space, the volume stays sound, freeing makes it work again, and no
/// acknowledged transaction is missing.
pub fn postgres_runs_out(bed: &mut Bed, _: &Options) -> Result<()> {
    let image = bed.format("volume.img", "320M")?;
    let mounted = bed.mount(&image, &mount_options("concurrent"))?;
    let cluster = Cluster::new(bed, &mounted.directory)?;
    cluster.initialise(1)?;
    let mut server = cluster.start(&SETTINGS)?;
    cluster.make_ledger()?;
    cluster.fill(1)?;
    cluster.sql("CREATE TABLE filler(n bigint, payload text)")?;
    cluster.sql("CHECKPOINT")?;
    let ballast = mounted.path("ballast");
    let free = statvfs(&mounted.directory)?;
    let free = free.f_bavail * free.f_frsize;
    ensure!(
        (LEFT..1 << 30).contains(&free),
        "{free} bytes are free before the test begins: this is not the volume that was made"
    );
    fallocate(File::create(&ballast)?, FallocateFlags::empty(), 0, free - LEFT)
        .context("preallocating the ballast")?;

    let client = cluster.client(1)?;
    let bench = cluster.bench(120)?;
    let error = fill(&cluster)?;
    println!("    PostgreSQL reports: {}", error.lines().next().unwrap_or_default());
    ensure!(
        error.contains("No space left on device") || cluster.log_names("No space left on device"),
        "PostgreSQL failed without naming the space: {error}; {}",
        cluster.log_end()
    );
    let mut told = vec![Client::finish(client)];
    std::fs::remove_file(&ballast).context("removing a file from the full volume")?;
    if server.has_ended()? || cluster.sql("TRUNCATE filler").is_err() {
        // A server that had no space for its log stops to protect itself; it comes back with its
        // own recovery.
        server.kill()?;
        server = cluster.start(&SETTINGS)?;
        cluster.sql("TRUNCATE filler")?;
    }
    let client = cluster.client(5_000_001)?;
    client.wait_for(50).context("after space was freed")?;
    told.push(client.finish());
    stop_bench(bench)?;
    cluster.verify_ledger(&told)?;
    cluster.verify_sums()?;
    cluster.verify_structure()?;
    server.stop()?;
    cluster.verify_checksums()?;
    leave(mounted, bed, &image)
}

/// pgbench ended when its transactions failed, or is stopped now.
fn stop_bench(bench: super::postgres::Bench) -> Result<()> {
    bench.stop();
    bench.finish().map(drop)
}

/// Inserts until PostgreSQL says why it cannot, and returns that.
fn fill(cluster: &Cluster) -> Result<String> {
    let start = Instant::now();
    loop {
        let sql = "INSERT INTO filler SELECT g, repeat('x', 900) FROM generate_series(1, 2000) g";
        let done = sh::finish(
            cluster.program("psql").args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-c", sql]),
            Duration::from_secs(120),
        )?;
        if !done.status.success() {
            return Ok(done.stderr);
        }
        ensure!(start.elapsed() < Duration::from_secs(120), "the volume does not run full");
    }
}
