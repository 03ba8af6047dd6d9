//! Branches of a cluster that runs: servers of their own, made, written to, renewed and removed
//! beside it.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::Options;
use super::backups::{cluster_on_a_volume, history, under_load};
use super::bed::Bed;
use super::postgres::{Cluster, leave};

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
