//! PostgreSQL on a directory that `bedplate run --nfs` shows it, while the server is killed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::Options;
use super::bed::{Bed, kill};
use super::exported::Exported;
use super::needs::postgres_programs;
use super::postgres::Cluster;
use crate::cleanup::Guard;
use crate::sh;

const LIMIT: Duration = Duration::from_secs(120);
/// Commits of each client between two kills of the server.
const COMMITS: u64 = 40;

/// What is served, where programs find it, and from where.
struct Site<'a> {
    bed: &'a Bed,
    served: PathBuf,
    dir: PathBuf,
    port: String,
}

impl Site<'_> {
    fn serve(&self) -> Result<Exported> {
        let served = self.served.display().to_string();
        Exported::start(self.bed, "nfs", [&served, "--listen", &self.port, "--squash", "none"])
    }

    /// Starts PostgreSQL on what is served, and waits until it takes connections.
    fn start(&self, cluster: &Cluster) -> Result<Running> {
        let (served, dir, port) = (self.served.display(), self.dir.display(), &self.port);
        let place = format!("127.0.0.1:{served}?nfsport={port}&mountport={port}&nconnect=2={dir}");
        let programs = postgres_programs().context("PostgreSQL is not installed")?;
        let mut command = self.bed.bedplate(["run", "--nfs", &place, "--"]);
        command.args(["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]);
        command.arg(programs.join("postgres")).arg("-D").arg(&cluster.data);
        command.arg("-k").arg(self.bed.path("remote"));
        command.args(["-c", "listen_addresses=", "-c", "checkpoint_timeout=30s"]);
        let log = std::fs::File::options().create(true).append(true).open(cluster.log_path())?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).current_dir("/");
        let child = command.spawn().context("cannot start bedplate run")?;
        let pid = child.id();
        let mut running = Running { child, process: Guard::new(move || kill(pid)) };
        let begun = Instant::now();
        let ready = || sh::passes(cluster.program("pg_isready").arg("-q"), LIMIT);
        while !ready()? {
            let has_ended = running.child.try_wait()?.is_some() || begun.elapsed() > LIMIT;
            ensure!(!has_ended, "postgres does not start: {}", cluster.log_end());
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(running)
    }

    /// Returns PostgreSQL's own process.
    fn postmaster(&self) -> Result<u32> {
        let text = std::fs::read_to_string(self.served.join("cluster/postmaster.pid"))?;
        text.lines().next().unwrap_or_default().parse().context("postmaster.pid has a number")
    }
}

/// A run of PostgreSQL. Dropped, it is killed; PostgreSQL ends without its files.
struct Running {
    child: Child,
    process: Guard,
}

impl Running {
    fn wait(mut self) -> Result<()> {
        let status = sh::wait(&mut self.child, LIMIT)?;
        self.process.done();
        ensure!(status.success(), "bedplate run ended with {status}");
        Ok(())
    }
}

fn signal(pid: u32, signal: Signal) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("a process has a number")?;
    Ok(kill_process(pid, signal)?)
}

/// S-526, S-535: PostgreSQL on a server that is killed again and again; no client sees an error, and
/// nothing that was acknowledged is missing, also after the program and its files are cut off.
///
/// # Errors
/// When a client is told of an error, or something is missing or broken.
pub fn postgres(bed: &mut Bed, options: &Options) -> Result<()> {
    let (served, dir) = (bed.make_directory("served")?, bed.make_directory("dir")?);
    let mut site = Site { bed, served, dir, port: "0".to_owned() };
    let mut server = site.serve()?;
    site.port = super::nfs::port_of(&server)?;
    let local = Cluster::at(bed, site.served.join("cluster"), "local")?;
    local.initialise(16)?;
    let cluster = Cluster::at(bed, site.dir.join("cluster"), "remote")?;
    let running = site.start(&cluster)?;
    cluster.make_ledger()?;
    cluster.fill(options.scale)?;
    let bench = cluster.bench(options.seconds.max(4))?;
    let clients = (1..=3).map(|n| cluster.client(n * 2_000_000)).collect::<Result<Vec<_>>>()?;
    for round in 1..=u64::from(options.kills) {
        clients.iter().try_for_each(|client| client.wait_for(round * COMMITS))?;
        server.crash()?;
        server = site.serve()?;
    }
    clients
        .iter()
        .try_for_each(|client| client.wait_for((u64::from(options.kills) + 1) * COMMITS))?;
    let acknowledged: u64 = bench.succeed()?.into_values().sum();
    let told: Vec<_> = clients.into_iter().map(super::ledger::Client::finish).collect();
    let verify = |cluster: &Cluster| -> Result<()> {
        cluster.verify_ledger(&told)?;
        let history = cluster.sql("SELECT count(*) FROM pgbench_history")?;
        ensure!(
            history == acknowledged.to_string(),
            "{acknowledged} acknowledged, {history} there"
        );
        cluster.verify_sums()?;
        cluster.verify_structure()
    };
    verify(&cluster)?;
    println!(
        "    {} kills of the server: {acknowledged} transactions of pgbench and {} commits",
        options.kills,
        told.iter().map(|told| told.count).sum::<u64>()
    );
    // The machine of the programs dies.
    drop(running);
    kill_all(site.postmaster()?)?;
    let running = site.start(&cluster)?;
    verify(&cluster)?;
    let over_nfs = tps(&cluster, options)?;
    signal(site.postmaster()?, Signal::INT)?;
    running.wait()?;
    ensure!(std::fs::read_dir(&site.dir)?.next().is_none(), "something stays mounted");
    local.verify_checksums()?;
    let own = local.start(&[])?;
    verify_same(&local, &told)?;
    let locally = tps(&local, options)?;
    own.stop()?;
    println!("    tps through run --nfs {over_nfs}, on the served directory itself {locally}");
    server.end()
}

/// The same is there without NFS.
fn verify_same(cluster: &Cluster, told: &[super::ledger::Acknowledged]) -> Result<()> {
    cluster.verify_ledger(told)?;
    cluster.verify_structure()
}

/// Returns pgbench's transactions per second.
fn tps(cluster: &Cluster, options: &Options) -> Result<u64> {
    let seconds = options.seconds.clamp(1, 5);
    Ok(cluster.bench(seconds)?.succeed()?.into_values().sum::<u64>() / seconds)
}

/// Kills PostgreSQL with all that it started, and waits for their end.
fn kill_all(postmaster: u32) -> Result<()> {
    let children = sh::output(Command::new("pgrep").args(["-P", &postmaster.to_string()]), LIMIT)?;
    let all = children.lines().filter_map(|pid| pid.parse().ok()).chain([postmaster]);
    let begun = Instant::now();
    for pid in all.collect::<Vec<u32>>() {
        kill(pid);
        while Path::new(&format!("/proc/{pid}")).exists() {
            ensure!(begun.elapsed() < LIMIT, "process {pid} stays");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}
