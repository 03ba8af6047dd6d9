//! PostgreSQL on a mirror of whose pages one decays while it works: a scrub on schedule finds it,
//! believes the right plex, mends it and tells of it.

use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

use super::Options;
use super::bed::Bed;
use super::postgres::{Cluster, mount_options};
use super::volumes::{DATA_START, cluster_is_whole, page_address_of, turn_a_bit};

/// How long the next scrub of a schedule of one a minute may take.
const LIMIT: Duration = Duration::from_secs(150);

/// S-64, S-96, S-106: a scheduled scrub finds the page while pgbench runs.
pub fn on_schedule(bed: &mut Bed, options: &Options) -> Result<()> {
    let (left, right) = (bed.path("left.img"), bed.path("right.img"));
    let size = format!("{}M", 256 + options.scale * 40 + u32::try_from(options.seconds)? * 8);
    let words = ["volume", "create", "tank", "--size", &size].map(OsStr::new);
    bed.succeeds(words.into_iter().chain([left.as_os_str(), right.as_os_str()]))?;
    bed.succeeds([OsStr::new("format"), left.as_os_str()])?;
    let mounted = bed.mount(&left, &mount_options("concurrent"))?;
    let cluster = Cluster::new(bed, &mounted.directory)?;
    cluster.initialise(16)?;
    let server = cluster.start(&[])?;
    cluster.fill(options.scale)?;
    cluster.sql(
        "CREATE TABLE still AS SELECT n, repeat('x', 500) FROM generate_series(1, 2000) AS n",
    )?;
    cluster.sql("CHECKPOINT")?;
    let relation = cluster.sql("SELECT pg_relation_filepath('still')")?;
    bed.succeeds([
        "volume".as_ref(),
        "scrub".as_ref(),
        left.as_os_str(),
        "--every".as_ref(),
        "1m".as_ref(),
        "--repair".as_ref(),
    ])?;
    let first = wait(bed, &left, |last| last["ended_s"].is_u64())?;
    ensure!(first["differences"] == 0, "something differs before anything decayed: {first}");

    let bench = cluster.bench(options.seconds)?;
    let file = mounted.path(&format!("cluster/{relation}"));
    let address = page_address_of(bed, &file.display().to_string())?;
    turn_a_bit(&right, DATA_START + address + 5000)?;
    let start = Instant::now();
    let last = wait(bed, &left, |last| last["differences"] == 1)?;
    is_mended(&last, &relation, &left)?;
    let shown = bed.succeeds([OsStr::new("volume"), OsStr::new("show"), left.as_os_str()])?;
    let line = shown.lines().find(|line| line.contains(&relation)).unwrap_or_default().trim();
    ensure!(
        line.contains("left.img is right, the others are mended from it"),
        "'volume show' does not tell: {shown}"
    );
    println!("    {:.0} s after a bit turned: {line}", start.elapsed().as_secs_f64());

    bench.succeed()?;
    cluster.verify_sums()?;
    server.stop()?;
    mounted.unmount(bed)?;
    bed.check(&left)?;
    // What the plex with the page holds is all there is now.
    std::fs::remove_file(&left)?;
    bed.succeeds([
        OsStr::new("volume"),
        OsStr::new("import"),
        OsStr::new("--degraded"),
        right.as_os_str(),
    ])?;
    let mounted = bed.mount(&right, &mount_options("concurrent"))?;
    cluster_is_whole(bed, &mounted.directory)?;
    mounted.unmount(bed)
}

/// Makes sure that a scrub named the page of a relation and mended it from `right`.
fn is_mended(last: &Value, relation: &str, right: &Path) -> Result<()> {
    let found = &last["found"][0];
    let lies = found["file"].as_str().unwrap_or_default();
    ensure!(
        lies.contains(relation) && lies.contains("PostgreSQL page 1"),
        "the page is not named: {last}"
    );
    ensure!(
        found["right"].as_str() == right.to_str() && found["repaired"] == true && last["left"] == 0,
        "not judged, or not mended: {last}"
    );
    Ok(())
}

/// Waits until what the last scrub came to passes, and returns it.
fn wait(bed: &Bed, group: &Path, passes: impl Fn(&Value) -> bool) -> Result<Value> {
    let start = Instant::now();
    loop {
        let told = bed.json([OsStr::new("volume"), OsStr::new("show"), group.as_os_str()])?;
        let last = &told["scrub"]["last"];
        if passes(last) {
            return Ok(last.clone());
        }
        ensure!(
            start.elapsed() < LIMIT,
            "the scrub is not over after {} s: {told}",
            LIMIT.as_secs()
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}
