//! Copies of a cluster that runs: clones of checkpoints, and backups, each started as a server of
//! its own.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::Options;
use super::bed::{Bed, Mounted};
use super::postgres::{Bench, Cluster, Server, leave, mount_options};

/// Seconds of load.
const SECONDS: u64 = 6;

/// Starts what was copied out of a running cluster as a server of its own, and looks at all of it.
///
/// # Errors
/// When it does not start, is damaged, or holds less than `history_min` transactions of pgbench.
fn verify_copy(bed: &Bed, data: &Path, name: &str, history_min: u64) -> Result<u64> {
    let copy = Cluster::at(bed, data.to_path_buf(), name)?;
    // That server runs elsewhere, or not at all.
    let pid = data.join("postmaster.pid");
    if pid.exists() {
        std::fs::remove_file(pid)?;
    }
    let server = copy.start(&[]).with_context(|| format!("starting {name}"))?;
    copy.verify_sums()?;
    let history = history(&copy)?;
    ensure!(
        history >= history_min,
        "{name}: {history_min} transactions had been acknowledged, {history} are there"
    );
    copy.verify_structure().with_context(|| name.to_owned())?;
    // It is a server: it takes transactions of its own.
    copy.sql("INSERT INTO pgbench_history VALUES (1, 1, 1, 0, now())")?;
    server.stop()?;
    copy.verify_checksums().with_context(|| name.to_owned())?;
    Ok(history)
}

pub fn history(cluster: &Cluster) -> Result<u64> {
    cluster.sql("SELECT count(*) FROM pgbench_history")?.parse().context("psql prints a number")
}

pub fn cluster_on_a_volume(bed: &mut Bed) -> Result<(PathBuf, Mounted, Cluster)> {
    let image = bed.format("volume.img", "512M")?;
    let mounted = bed.mount(&image, &mount_options("concurrent"))?;
    let cluster = Cluster::new(bed, &mounted.directory)?;
    cluster.initialise(1)?;
    Ok((image, mounted, cluster))
}

pub fn under_load(cluster: &Cluster) -> Result<(Server<'_>, Bench)> {
    let server = cluster.start(&["max_wal_size=24MB", "min_wal_size=8MB"])?;
    cluster.fill(1)?;
    Ok((server, cluster.bench(SECONDS)?))
}

/// S-50, S-75, S-76: a clone of a checkpoint of a cluster under load starts beside it as a server
/// of its own; neither sees anything of the other.
pub fn clone_of_a_live_cluster(bed: &mut Bed, _: &Options) -> Result<()> {
    let (image, mounted, cluster) = cluster_on_a_volume(bed)?;
    let (server, bench) = under_load(&cluster)?;
    std::thread::sleep(std::time::Duration::from_secs(SECONDS / 2));
    let before = history(&cluster)?;
    bed.succeeds([
        OsStr::new("checkpoint"),
        OsStr::new("create"),
        mounted.directory.as_os_str(),
        OsStr::new("busy"),
    ])?;
    let clone = mounted.path("clone");
    bed.succeeds([
        OsStr::new("checkpoint"),
        "clone".as_ref(),
        mounted.directory.as_os_str(),
        "busy:/cluster".as_ref(),
        clone.as_os_str(),
    ])?;
    let found = verify_copy(bed, &clone, "clone", before)?;
    let done: u64 = bench.succeed()?.into_values().sum();
    let after = history(&cluster)?;
    println!(
        "    checkpoint after {before} transactions, {found} in the clone, {after} in the cluster, \
         {done} of them acknowledged since the load began"
    );
    ensure!(
        after >= done && found <= after + 1,
        "the clone has {found} transactions, the cluster {after}"
    );
    cluster.verify_sums()?;
    cluster.verify_structure()?;
    server.stop()?;
    cluster.verify_checksums()?;
    leave(mounted, bed, &image)
}

/// S-78: backups of a cluster under load, in full and of what changed, restore to servers that
/// start and are sound.
pub fn backups_of_a_live_cluster(bed: &mut Bed, _: &Options) -> Result<()> {
    let (image, mounted, cluster) = cluster_on_a_volume(bed)?;
    let (server, bench) = under_load(&cluster)?;
    let repository = bed.path("backups");
    let mut made = Vec::new();
    for name in ["full", "later"] {
        std::thread::sleep(std::time::Duration::from_secs(1));
        let before = history(&cluster)?;
        bed.succeeds([
            OsStr::new("checkpoint"),
            "create".as_ref(),
            mounted.directory.as_os_str(),
            name.as_ref(),
        ])?;
        let told = bed.json([
            OsStr::new("backup"),
            "create".as_ref(),
            mounted.directory.as_os_str(),
            name.as_ref(),
            repository.as_os_str(),
        ])?;
        println!(
            "    backup {name}: {} bytes, {} read, {} stored",
            told["bytes"], told["read_bytes"], told["stored_bytes"]
        );
        ensure!(
            told["base"].is_null() == (name == "full"),
            "the second backup is made against the first: {told}"
        );
        ensure!(
            name == "full" || told["read_bytes"].as_u64() < told["bytes"].as_u64(),
            "only what changed is read: {told}"
        );
        made.push((name, before));
    }
    bench.succeed()?;
    bed.succeeds([OsStr::new("backup"), "verify".as_ref(), repository.as_os_str()])?;
    server.stop()?;
    for (name, before) in made {
        let place = bed.make_directory(&format!("restored-{name}"))?;
        bed.succeeds([
            OsStr::new("restore"),
            repository.as_os_str(),
            name.as_ref(),
            place.as_os_str(),
        ])?;
        let found = verify_copy(bed, &place.join("cluster"), name, before)?;
        println!("    restored {name}: {before} transactions acknowledged before, {found} there");
    }
    leave(mounted, bed, &image)
}
