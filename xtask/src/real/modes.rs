//! `bedplate mode database` on servers that run on a mount.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Options;
use super::bed::Bed;
use super::mariadb::MariaDb;
use super::needs::postgres_programs;
use super::postgres::{Cluster, leave, mount_options};
use crate::sh;

const LIMIT: Duration = Duration::from_secs(60);

/// Runs the command with PostgreSQL's client at hand, and returns its document.
fn told(bed: &Bed, words: &[&str]) -> Result<Value> {
    let mut command: Command = bed.bedplate(["--json", "mode", "database"].iter().chain(words));
    let others = std::env::var_os("PATH").unwrap_or_default();
    let programs = postgres_programs().into_iter().chain(std::env::split_paths(&others));
    command.env("PATH", std::env::join_paths(programs)?);
    let done = sh::finish(&mut command, LIMIT)?;
    ensure!(done.status.success(), "{}", done.text());
    serde_json::from_str(&done.stdout).with_context(|| done.text())
}

fn mode_of(bed: &Bed, path: &Path) -> Result<Value> {
    Ok(bed.json(["mode".as_ref(), path.as_os_str()])?["mode"].clone())
}

/// S-506: tables, indexes and log of a server that runs are found in its directories and set, those that
/// are created then follow, and all have the mode again that they had.
pub fn postgres(bed: &mut Bed, options: &Options) -> Result<()> {
    let image = bed.format("volume.img", "1G")?;
    let mounted = bed.mount(&image, &mount_options("cached"))?;
    let cluster = Cluster::new(bed, &mounted.directory)?;
    cluster.initialise(16)?;
    let server = cluster.start(&[])?;
    cluster.fill(options.scale)?;
    let address =
        format!("postgresql:///postgres?host={}&user=postgres", bed.path("postgres").display());
    let list = bed.path("list.json").display().to_string();
    let set = told(bed, &["--postgres", &address, "concurrent", "--list", &list])?;
    let (files, count) = (set["files"].as_array().map_or(0, Vec::len), &set["set"]);
    ensure!(
        files > 300 && count.as_u64() == Some(files as u64) && set["elsewhere"] == 0,
        "{set:#}"
    );

    let data = cluster.sql("SHOW data_directory")?;
    let path_of = |table: &str| -> Result<_> {
        let path = cluster.sql(&format!("SELECT pg_relation_filepath('{table}')"))?;
        Ok(Path::new(data.trim()).join(path.trim()))
    };
    cluster.sql("CREATE TABLE later(n int); INSERT INTO later SELECT generate_series(1, 1000)")?;
    for table in ["pgbench_accounts", "pgbench_accounts_pkey", "later", "pg_database"] {
        let mode = mode_of(bed, &path_of(table)?)?;
        ensure!(mode == "concurrent", "{table} has the mode {mode}");
    }
    let bench = cluster.bench(2)?;
    bench.finish()?;

    let back = told(bed, &["--undo", &list])?;
    ensure!(back["created_since"].as_u64() >= Some(1) && back["changed_since"] == 0, "{back:#}");
    for table in ["pgbench_accounts", "later", "pg_database"] {
        let mode = mode_of(bed, &path_of(table)?)?;
        ensure!(mode.is_null(), "{table} has the mode {mode}, and had none");
    }
    cluster.verify_sums()?;
    println!("    {files} files and directories set, and put back");
    server.stop()?;
    leave(mounted, bed, &image)
}

/// S-506: the same of InnoDB's files, the log apart.
pub fn mariadb(bed: &mut Bed, _: &Options) -> Result<()> {
    let image = bed.format("volume.img", "1G")?;
    let mounted = bed.mount(&image, "mode=cached")?;
    let data = mounted.path("data");
    let mut server = MariaDb::install(bed, data.clone())?;
    server.start(&[])?;
    server.sql("CREATE DATABASE app; CREATE TABLE app.t(n int PRIMARY KEY) ENGINE=InnoDB")?;
    let address = format!("mysql://root@?socket={}", server.socket());
    let list = bed.path("list.json").display().to_string();
    let words = ["--mysql", &address, "direct", "--only", "data", "--list", &list];
    let set = told(bed, &words)?;
    for (file, mode) in [("app/t.ibd", "direct"), ("ibdata1", "direct"), ("ib_logfile0", "")] {
        let now = mode_of(bed, &data.join(file))?;
        ensure!(now.as_str().unwrap_or_default() == mode, "{file} has the mode {now}: {set:#}");
    }
    server.sql("INSERT INTO app.t VALUES (1), (2)")?;
    let back = told(bed, &["--undo", &list])?;
    ensure!(back["changed_since"] == 0 && back["gone"] == 0, "{back:#}");
    ensure!(mode_of(bed, &data.join("ibdata1"))?.is_null(), "it is put back");
    server.stop()?;
    leave(mounted, bed, &image)
}
