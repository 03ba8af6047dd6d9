//! Branches of a cluster that runs: servers of their own, made, written to, renewed and removed
//! beside it.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::Options;
use super::backups::{cluster_on_a_volume, history, under_load};
use super::bed::{Bed, LoopDevice};
use super::postgres::{Cluster, leave, mount_options};
use super::ratio::{fill, on_bedplate, on_xfs};

/// Runs SQL on the server of a branch.
fn sql(cluster: &Cluster, port: u64, sql: &str) -> Result<String> {
    let port = port.to_string();
    let words = ["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-p", &port, "-c", sql];
    Ok(cluster.run("psql", words)?.trim().to_owned())
}

fn branch<'a>(verb: &'a str, paths: &[&'a Path]) -> Vec<&'a OsStr> {
    let words = [OsStr::new("branch"), OsStr::new(verb)];
    words.into_iter().chain(paths.iter().map(|path| path.as_os_str())).collect()
}

/// S-320, S-321: a branch of a cluster under load answers as a server of its own; neither sees
/// anything of the other, a table space that is dropped in one stays in the other, and a branch that
/// was renewed is what the cluster is now.
pub fn of_a_live_cluster(bed: &mut Bed, _: &Options) -> Result<()> {
    let (image, mounted, cluster) = cluster_on_a_volume(bed)?;
    let (server, bench) = under_load(&cluster)?;
    let space = mounted.path("space");
    std::fs::create_dir(&space)?;
    cluster.give(&space)?;
    cluster.sql(&format!("CREATE TABLESPACE aside LOCATION '{}'", space.display()))?;
    cluster.sql("CREATE TABLE kept TABLESPACE aside AS SELECT generate_series(1, 1000) AS n")?;
    let before = history(&cluster)?;

    let (of, review) = (mounted.path("cluster"), mounted.path("review"));
    let start = Instant::now();
    let told = bed.json(branch("create", &[&of, &review]))?;
    let made = start.elapsed();
    let port = told["port"].as_u64().unwrap_or_default();
    ensure!(told["running"] == true && port > 0 && told["notes"].is_null(), "{told}");
    let found: u64 = sql(&cluster, port, "SELECT count(*) FROM pgbench_history")?.parse()?;
    ensure!(found >= before, "the branch has {found} of {before} transactions");
    ensure!(sql(&cluster, port, "SHOW archive_mode")? == "off", "the branch archives nothing");

    sql(&cluster, port, "DROP TABLE kept; DROP TABLE pgbench_history; CREATE TABLE own(n int)")?;
    sql(&cluster, port, "DROP TABLESPACE aside")?;
    ensure!(cluster.sql("SELECT count(*) FROM kept")? == "1000", "the cluster lost its table");
    let acknowledged: u64 = bench.succeed()?.into_values().sum();
    let after = history(&cluster)?;
    ensure!(after >= acknowledged, "{after} of {acknowledged} transactions are in the cluster");

    let start = Instant::now();
    let told = bed.json(branch("reset", &[&review]))?;
    let reset = start.elapsed();
    ensure!(told["running"] == true && told["port"].as_u64() == Some(port), "{told}");
    let found: u64 = sql(&cluster, port, "SELECT count(*) FROM pgbench_history")?.parse()?;
    ensure!(found == after, "the renewed branch has {found} of {after} transactions");
    ensure!(sql(&cluster, port, "SELECT count(*) FROM kept")? == "1000", "nor the branch");
    println!(
        "    branched under load in {:.1} s, renewed in {:.1} s, {after} transactions",
        made.as_secs_f64(),
        reset.as_secs_f64()
    );

    let all = bed.json(branch("list", &[&mounted.directory]))?;
    ensure!(all["branches"].as_array().is_some_and(|all| all.len() == 1), "{all}");
    bed.succeeds(branch("drop", &[&review]))?;
    let left: Vec<_> = std::fs::read_dir(&mounted.directory)?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<std::io::Result<_>>()?;
    ensure!(left.len() == 2, "beside the cluster and its table space there are {left:?}");
    cluster.verify_sums()?;
    cluster.verify_structure()?;
    server.stop()?;
    cluster.verify_checksums()?;
    leave(mounted, bed, &image)
}

/// How a copy of a running cluster is made without a branch: the option of `cp`.
#[derive(Debug, Clone, Copy)]
enum Copying {
    Bytes,
    Reflink,
}

/// Copies a running cluster as its manual says, between the start and the stop of a backup, and
/// starts a server on the copy; returns the seconds until it answers.
fn copied(bed: &Bed, of: &Cluster, name: &str, how: Copying) -> Result<f64> {
    let parent = of.data.parent().context("a cluster lies in a directory")?.join(name);
    std::fs::create_dir(&parent)?;
    of.give(&parent)?;
    let (from, copy) = (of.data.display(), parent.join("copy"));
    let option = match how {
        Copying::Bytes => "--reflink=never",
        Copying::Reflink => "--reflink=always",
    };
    let (to, script) = (copy.display(), parent.join("copy.sql"));
    std::fs::write(
        &script,
        format!(
            "SELECT pg_backup_start('copy', true);\n\
             \\! cp -a {option} {from} {to}\n\
             SELECT labelfile FROM pg_backup_stop() \\g {to}/backup_label\n\
             \\! cp -a {option} {from}/pg_wal/. {to}/pg_wal/\n\
             \\! rm {to}/postmaster.pid\n"
        ),
    )?;
    let start = Instant::now();
    let words = ["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-f"].map(OsStr::new);
    of.run("psql", words.into_iter().chain([script.as_os_str()]))?;
    let copy = Cluster::at(bed, copy, name)?;
    let server = copy.start(&[])?;
    let seconds = start.elapsed().as_secs_f64();
    ensure!(history(&copy)? == history(of)?, "the copy has other transactions");
    server.stop()?;
    std::fs::remove_dir_all(&parent)?;
    Ok(seconds)
}

/// Makes a cluster of some size and starts it.
fn of_size(bed: &Bed, directory: &Path, scale: u32) -> Result<Cluster> {
    let cluster = Cluster::new(bed, directory)?;
    cluster.initialise(16)?;
    let server = cluster.start(&["max_wal_size=256MB"])?;
    cluster.fill(scale)?;
    server.stop()?;
    Ok(cluster)
}

/// Seconds until a writable copy of a running cluster answers: a branch, a copy on the same mount,
/// and on XFS a copy and one that shares its blocks. `--scale` says how large the cluster is,
/// `--rounds` how often each is made.
pub fn against_copies(bed: &mut Bed, options: &Options) -> Result<()> {
    let image = bed.path("disk.img");
    fill(&image, (1 << 30) + u64::from(options.scale) * (64 << 20))?;
    let device = LoopDevice::attach(&image, &["--direct-io=on"])?;
    for mode in ["cached", "concurrent"] {
        on_bedplate(bed, &device.path, &mount_options(mode), |directory| {
            let cluster = of_size(bed, directory, options.scale)?;
            let server = cluster.start(&["max_wal_size=256MB"])?;
            for round in 1..=options.rounds {
                let review = directory.join("review");
                let start = Instant::now();
                let told = bed.json(branch("create", &[&cluster.data, &review]))?;
                let branched = start.elapsed().as_secs_f64();
                ensure!(told["running"] == true, "{told}");
                bed.succeeds(branch("drop", &[&review]))?;
                let name = format!("{mode}{round}");
                let copied = copied(bed, &cluster, &name, Copying::Bytes)?;
                println!("    round {round}: {mode}: branch {branched:.2} s, cp -a {copied:.2} s");
            }
            server.stop()
        })?;
    }
    on_xfs(bed, &device.path, |directory| {
        let cluster = of_size(bed, directory, options.scale)?;
        let server = cluster.start(&["max_wal_size=256MB"])?;
        for round in 1..=options.rounds {
            let shared = copied(bed, &cluster, &format!("xfs{round}"), Copying::Reflink)?;
            let copied = copied(bed, &cluster, &format!("xfscopy{round}"), Copying::Bytes)?;
            println!("    round {round}: xfs: cp --reflink {shared:.2} s, cp -a {copied:.2} s");
        }
        server.stop()
    })
}
