//! PostgreSQL on the mount: a cluster to start, load, kill and verify.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::Options;
use super::bed::{Bed, Mounted, kill};
use super::ledger::{Acknowledged, Client};
use super::needs::{is_root, postgres_programs};
use crate::cleanup::Guard;
use crate::sh;

const LIMIT: Duration = Duration::from_secs(300);

/// Where a cluster lives and whose it is. PostgreSQL refuses to be root, so as root everything runs
/// as its own user.
pub struct Cluster {
    programs: PathBuf,
    pub data: PathBuf,
    /// Outside the volume: sockets, the server's log, the clients' logs.
    outside: PathBuf,
    owner: Option<(u32, u32)>,
    /// The `bedplate` whose `run` starts the server, for leases.
    runner: Option<PathBuf>,
}

/// The options that let PostgreSQL's user see a mount of root's.
pub fn mount_options(mode: &str) -> String {
    if is_root() {
        format!("mode={mode},allow_other,default_permissions")
    } else {
        format!("mode={mode}")
    }
}

fn user_number(flag: &str) -> Result<u32> {
    let text = sh::output(Command::new("id").args([flag, "postgres"]), LIMIT)
        .context("there is no user postgres")?;
    text.trim().parse().context("id prints a number")
}

impl Cluster {
    /// Describes the cluster on `mounted`; nothing is made yet.
    ///
    /// # Errors
    /// When PostgreSQL or its user is missing.
    pub fn new(bed: &Bed, mounted: &Path) -> Result<Self> {
        Self::at(bed, mounted.join("cluster"), "postgres")
    }

    /// Describes the cluster in the directory `data`, which may exist; its sockets and logs lie in
    /// the bed under a name of its own.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn at(bed: &Bed, data: PathBuf, outside: &str) -> Result<Self> {
        let programs = postgres_programs().context("PostgreSQL is not installed")?;
        let owner = if is_root() { Some((user_number("-u")?, user_number("-g")?)) } else { None };
        let cluster =
            Self { programs, data, outside: bed.make_directory(outside)?, owner, runner: None };
        cluster.give(&cluster.outside)?;
        Ok(cluster)
    }

    /// The same cluster, with a server that `bedplate run` starts.
    pub fn with_leases_of(self, bedplate: &Path) -> Self {
        Self { runner: Some(bedplate.to_owned()), ..self }
    }

    /// Gives a file or directory to the cluster's user.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn give(&self, path: &Path) -> Result<()> {
        if let Some((user, group)) = self.owner {
            chown(path, Some(user), Some(group))
                .with_context(|| format!("cannot give {} to postgres", path.display()))?;
        }
        Ok(())
    }

    /// Returns one of PostgreSQL's programs, run by its user, with the cluster's sockets for what
    /// connects.
    pub fn program(&self, name: &str) -> Command {
        self.program_after(&[], name)
    }

    /// As [`program`](Self::program), started by the command `starter`.
    fn program_after(&self, starter: &[&OsStr], name: &str) -> Command {
        let mut words: Vec<OsString> = Vec::new();
        if let Some((user, group)) = self.owner {
            words.extend([
                "setpriv".into(),
                format!("--reuid={user}").into(),
                format!("--regid={group}").into(),
                "--clear-groups".into(),
            ]);
        }
        words.extend(starter.iter().map(OsString::from));
        words.push(self.programs.join(name).into());
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .current_dir("/")
            .env("LC_ALL", "C")
            .env("PGHOST", &self.outside)
            .env("PGDATABASE", "postgres");
        command.env("PGUSER", "postgres").env("HOME", &self.outside);
        command
    }

    /// Runs one of PostgreSQL's programs, which has to succeed, and returns what it printed.
    ///
    /// # Errors
    /// When it fails.
    pub fn run<A: AsRef<OsStr>>(
        &self,
        name: &str,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<String> {
        sh::output(self.program(name).args(arguments), LIMIT)
    }

    /// Makes the cluster, with page checksums and small segments of log.
    ///
    /// # Errors
    /// When `initdb` fails.
    pub fn initialise(&self, segment_mb: u32) -> Result<()> {
        std::fs::create_dir(&self.data)?;
        self.give(&self.data)?;
        let segment = format!("--wal-segsize={segment_mb}");
        let data = self.data.as_os_str();
        let words =
            ["-k", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", &segment, "-D"]
                .map(OsStr::new);
        self.run("initdb", words.into_iter().chain([data])).map(drop)
    }

    /// Starts the server and waits until it takes connections, which is after its own recovery.
    ///
    /// # Errors
    /// When it ends or takes too long; with the end of its log.
    pub fn start(&self, settings: &[&str]) -> Result<Server<'_>> {
        let log = self.log_path();
        let output = std::fs::OpenOptions::new().create(true).append(true).open(&log)?;
        let starter: Vec<&OsStr> = self
            .runner
            .iter()
            .flat_map(|bedplate| [bedplate.as_os_str(), OsStr::new("run"), OsStr::new("--")])
            .collect();
        let mut command = self.program_after(&starter, "postgres");
        command.arg("-D").arg(&self.data).arg("-k").arg(&self.outside).args([
            "-c",
            "listen_addresses=",
            "-c",
            "checkpoint_timeout=30s",
        ]);
        for setting in settings {
            command.args(["-c", setting]);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("cannot start postgres")?;
        let pid = child.id();
        let process = Some(Guard::new(move || kill_family(pid)));
        let mut server = Server { child, cluster: self, process };
        server.wait_until_ready()?;
        Ok(server)
    }

    /// Returns where the server's log lies.
    pub fn log_path(&self) -> PathBuf {
        self.outside.join("server.log")
    }

    /// Returns the last lines of the server's log.
    pub fn log_end(&self) -> String {
        let text = std::fs::read_to_string(self.log_path()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(12)..].join(" | ")
    }

    /// Tells whether the server's log names `words` anywhere.
    pub fn log_names(&self, words: &str) -> bool {
        std::fs::read_to_string(self.log_path()).is_ok_and(|text| text.contains(words))
    }

    /// Runs SQL and returns the bare rows.
    ///
    /// # Errors
    /// When it fails.
    pub fn sql(&self, sql: &str) -> Result<String> {
        Ok(self
            .run("psql", ["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-c", sql])?
            .trim()
            .to_owned())
    }

    /// Fills pgbench's tables.
    ///
    /// # Errors
    /// When it fails.
    pub fn fill(&self, scale: u32) -> Result<()> {
        self.run("pgbench", ["-i", "-q", "-s", &scale.to_string()]).map(drop)
    }

    /// Starts pgbench with 8 clients and a log of what was acknowledged.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn bench(&self, seconds: u64) -> Result<Bench> {
        let prefix = self.outside.join("pgbench_log");
        let mut command = self.program("pgbench");
        command
            .args(["-n", "-c", "8", "-j", "2", "-l", "-T", &seconds.to_string()])
            .arg(format!("--log-prefix={}", prefix.display()));
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start pgbench")?;
        let pid = child.id();
        Ok(Bench { child, process: Guard::new(move || kill(pid)), logs: self.outside.clone() })
    }

    /// Starts a client that logs its commits.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn client(&self, first: u64) -> Result<Client> {
        let mut shell = self.program("psql");
        shell.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1"]).stderr(Stdio::null());
        Client::start(&mut shell, first, |n| {
            format!("INSERT INTO ledger VALUES ({n}, repeat(md5('{n}'), 6)) RETURNING 'ack ' || n;")
        })
    }

    /// Makes the table for [`client`](Self::client)s.
    ///
    /// # Errors
    /// When it fails.
    pub fn make_ledger(&self) -> Result<()> {
        self.sql("CREATE TABLE ledger(n bigint PRIMARY KEY, payload text)").map(drop)
    }

    /// Every acknowledged row is there, and none that was not begun.
    ///
    /// # Errors
    /// When one is missing or too many.
    pub fn verify_ledger(&self, told: &[Acknowledged]) -> Result<()> {
        for Acknowledged { first, count } in told {
            let end = first + count;
            let found = self.sql(&format!(
                "SELECT count(*) FROM ledger WHERE n >= {first} AND n < {end} AND payload = \
                 repeat(md5(n::text), 6)"
            ))?;
            ensure!(
                found == count.to_string(),
                "{count} transactions from {first} on were acknowledged, {found} are there"
            );
            let more = self.sql(&format!(
                "SELECT count(*) FROM ledger WHERE n > {end} AND n < {first} + 1000000"
            ))?;
            ensure!(more == "0", "{more} transactions are there that were never begun");
        }
        Ok(())
    }

    /// pgbench's transactions are whole: each moved the same amount in four tables.
    ///
    /// # Errors
    /// When the sums differ.
    pub fn verify_sums(&self) -> Result<()> {
        let sums = self.sql(
            "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT coalesce(sum(delta), 0) \
             FROM pgbench_history)
                AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT coalesce(sum(delta), 0) \
             FROM pgbench_history)
                AND (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT coalesce(sum(delta), 0) \
             FROM pgbench_history)",
        )?;
        ensure!(sums == "t", "the balances and the history of pgbench disagree");
        Ok(())
    }

    /// Every heap and index of every database is sound.
    ///
    /// # Errors
    /// With what amcheck names.
    pub fn verify_structure(&self) -> Result<()> {
        self.sql("CREATE EXTENSION IF NOT EXISTS amcheck")?;
        self.run("pg_amcheck", ["--all", "--install-missing", "--heapallindexed"]).map(drop)
    }

    /// Every page of the stopped cluster has its checksum.
    ///
    /// # Errors
    /// With the pages that have not.
    pub fn verify_checksums(&self) -> Result<()> {
        self.run("pg_checksums", [OsStr::new("--check"), OsStr::new("-D"), self.data.as_os_str()])
            .map(drop)
    }

    /// A base backup of the running cluster verifies against its manifest.
    ///
    /// # Errors
    /// When it does not.
    pub fn verify_backup(&self) -> Result<()> {
        let backup = self.outside.join("backup");
        self.run(
            "pg_basebackup",
            [OsStr::new("-c"), OsStr::new("fast"), OsStr::new("-D"), backup.as_os_str()],
        )?;
        self.run("pg_verifybackup", [backup.as_os_str()])?;
        std::fs::remove_dir_all(backup)?;
        Ok(())
    }
}

/// A running server. Dropped, it is killed with its family.
pub struct Server<'a> {
    child: Child,
    cluster: &'a Cluster,
    process: Option<Guard>,
}

impl Server<'_> {
    /// Tells whether the server has ended by itself.
    ///
    /// # Errors
    /// When the system does not answer.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits until the server takes connections, which is after its own recovery.
    ///
    /// # Errors
    /// When it ends or takes too long; with the end of its log.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        let cluster = self.cluster;
        let start = Instant::now();
        while !sh::finish(cluster.program("pg_isready").args(["-q", "-t", "5"]), LIMIT)?
            .status
            .success()
        {
            if let Some(status) = self.child.try_wait()? {
                bail!("postgres ended with {status} instead of serving: {}", cluster.log_end());
            }
            ensure!(
                start.elapsed() < LIMIT,
                "postgres takes no connections: {}",
                cluster.log_end()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Returns the processes that the server has started.
    pub fn family(&self) -> Vec<u32> {
        family_of(self.child.id())
    }

    /// Shuts the cluster down cleanly.
    ///
    /// # Errors
    /// When it ends badly; with the end of its log.
    pub fn stop(mut self) -> Result<()> {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            kill_process(pid, Signal::INT).context("cannot stop postgres")?;
        }
        let status = sh::wait(&mut self.child, LIMIT)?;
        self.process.take().into_iter().for_each(Guard::done);
        ensure!(status.success(), "postgres ended with {status}: {}", self.cluster.log_end());
        Ok(())
    }

    /// Kills every process of the server at once.
    ///
    /// # Errors
    /// When the system does not answer.
    pub fn kill(mut self) -> Result<()> {
        drop(self.process.take());
        self.child.wait()?;
        Ok(())
    }
}

/// Kills a process that we started, and those it started.
fn kill_family(parent: u32) {
    let children = family_of(parent);
    kill(parent);
    children.into_iter().for_each(kill);
}

/// Returns the processes that `parent` started.
fn family_of(parent: u32) -> Vec<u32> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| child_of(&entry.path(), parent))
        .collect()
}

/// Returns the number of the process at `path` if `parent` started it.
fn child_of(path: &Path, parent: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(path.join("stat")).ok()?;
    let after_name = stat.rsplit_once(") ")?.1;
    let started_by: u32 = after_name.split(' ').nth(1)?.parse().ok()?;
    if started_by == parent { path.file_name()?.to_str()?.parse().ok() } else { None }
}

/// A running pgbench.
pub struct Bench {
    child: Child,
    process: Guard,
    logs: PathBuf,
}

impl Bench {
    /// Asks it to end now.
    pub fn stop(&self) {
        kill(self.child.id());
    }

    /// Waits for its end, which comes with its time or with its server's death, and returns how
    /// many transactions its log names.
    ///
    /// # Errors
    /// When it does not end.
    pub fn finish(mut self) -> Result<u64> {
        sh::wait(&mut self.child, LIMIT).context("pgbench")?;
        self.process.done();
        Ok(take_logs(&self.logs)?.into_values().sum())
    }

    /// Waits for its end, which has to come with its time and without an error to any client.
    /// Returns how many transactions each second saw.
    ///
    /// # Errors
    /// When a client was told of an error.
    pub fn succeed(mut self) -> Result<BTreeMap<u64, u64>> {
        let status = sh::wait(&mut self.child, LIMIT).context("pgbench")?;
        self.process.done();
        ensure!(status.success(), "pgbench ended with {status}: a client saw an error");
        take_logs(&self.logs)
    }
}

/// Takes pgbench's logs away and returns how many transactions ended in each second since 1970.
fn take_logs(directory: &Path) -> Result<BTreeMap<u64, u64>> {
    let mut seconds = BTreeMap::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path
            .file_name()
            .and_then(OsStr::to_str)
            .is_some_and(|name| name.starts_with("pgbench_log"))
        {
            let text = std::fs::read_to_string(&path)?;
            // A server that was killed may leave half a line; only whole ones were acknowledged.
            for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
                let second =
                    line.split(' ').nth(4).and_then(|field| field.trim().parse().ok()).unwrap_or(0);
                *seconds.entry(second).or_default() += 1;
            }
            std::fs::remove_file(path)?;
        }
    }
    Ok(seconds)
}

/// S-1, S-3, S-5, S-14, S-25: PostgreSQL under load loses its file system, again and again, and
/// never an acknowledged transaction.
pub fn killed(bed: &mut Bed, options: &Options) -> Result<()> {
    let size = format!("{}M", 512 + options.scale * 40 + u32::try_from(options.seconds)? * 8);
    let image = bed.format("volume.img", &size)?;
    let modes = ["concurrent", "cached", "concurrent+cache"];
    let mut mounted = bed.mount(&image, &mount_options(modes[0]))?;
    let cluster = Cluster::new(bed, &mounted.directory)?;
    cluster.initialise(16)?;
    let mut server = cluster.start(&[])?;
    cluster.make_ledger()?;
    cluster.fill(options.scale)?;
    let mut told = Vec::new();
    for round in 0..options.kills {
        let load = Load::run(&cluster, options, round)?;
        mounted.crash()?;
        let (acknowledged, history) = load.finish(&mut told)?;
        server.kill()?;
        mounted.clear()?;
        bed.check(&image)?;

        let mode = modes[(round as usize + 1) % modes.len()];
        mounted = bed.mount(&image, &mount_options(mode))?;
        println!(
            "    kill {}: {acknowledged} transactions of pgbench and {} of the ledger \
             acknowledged; next in mode {mode}",
            round + 1,
            sum(&told)
        );
        server = cluster.start(&[])?;
        verify(&cluster, &told, history + acknowledged)
            .with_context(|| format!("after kill {}", round + 1))?;
    }
    cluster.verify_backup()?;
    server.stop()?;
    cluster.verify_checksums()?;
    leave(mounted, bed, &image)
}

fn sum(told: &[Acknowledged]) -> u64 {
    told.iter().map(|client| client.count).sum()
}

/// Every acknowledged transaction is there, and every structure is sound.
///
/// # Errors
/// With what is missing or damaged.
pub fn verify(cluster: &Cluster, told: &[Acknowledged], history_min: u64) -> Result<()> {
    cluster.verify_ledger(told)?;
    cluster.verify_sums()?;
    let history: u64 = cluster.sql("SELECT count(*) FROM pgbench_history")?.parse()?;
    ensure!(
        history >= history_min,
        "pgbench was told of {history_min} transactions, {history} are there"
    );
    cluster.verify_structure()
}

/// Unmounts and checks.
///
/// # Errors
/// When either finds fault.
pub fn leave(mounted: Mounted, bed: &Bed, image: &Path) -> Result<()> {
    mounted.unmount(bed)?;
    bed.check(image)
}

/// pgbench with its 8 clients, and two that log their commits.
pub struct Load {
    bench: Bench,
    clients: Vec<Client>,
    /// Transactions that were there before.
    history: u64,
}

impl Load {
    /// Starts the load and returns in the middle of it.
    ///
    /// # Errors
    /// When a client cannot be started or gets no answer.
    pub fn run(cluster: &Cluster, options: &Options, round: u32) -> Result<Self> {
        let history = cluster.sql("SELECT count(*) FROM pgbench_history")?.parse()?;
        let clients: Vec<Client> = (0..2)
            .map(|client| cluster.client(1 + u64::from(round * 2 + client) * 1_000_000))
            .collect::<Result<_>>()?;
        let bench = cluster.bench(options.seconds)?;
        std::thread::sleep(Duration::from_millis(options.seconds * 500));
        for client in &clients {
            client.wait_for(20)?;
        }
        Ok(Self { bench, clients, history })
    }

    /// Collects what was acknowledged; returns pgbench's count and the history before it.
    ///
    /// # Errors
    /// When it does not end.
    pub fn finish(self, told: &mut Vec<Acknowledged>) -> Result<(u64, u64)> {
        told.extend(self.clients.into_iter().map(Client::finish));
        Ok((self.bench.finish()?, self.history))
    }
}
