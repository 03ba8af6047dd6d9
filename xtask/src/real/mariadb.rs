//! MariaDB: a server to start, load, kill and verify, and MariaDB on the device by a lease, with
//! asynchronous requests, while it and the daemon are killed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Options;
use super::bed::{Bed, kill};
use super::leased::{Leased, checkpoint_beside_a_stopped};
use super::ledger::{Acknowledged, Client};
use crate::sh;

const LIMIT: Duration = Duration::from_secs(120);

/// A server of MariaDB, its data in a directory. Dropped, it is killed.
pub struct MariaDb {
    data: PathBuf,
    /// Socket and log.
    outside: PathBuf,
    /// The `bedplate` whose `run` starts the server, for leases.
    runner: Option<PathBuf>,
    server: Option<sh::Family>,
}

fn user() -> Result<String> {
    Ok(sh::output(Command::new("id").arg("-un"), LIMIT)?.trim().to_owned())
}

impl MariaDb {
    /// Makes the system tables.
    ///
    /// # Errors
    /// When MariaDB's program fails.
    pub fn install(bed: &Bed, data: PathBuf) -> Result<Self> {
        let mut install = Command::new("mariadb-install-db");
        install
            .args(["--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal"])
            .arg(format!("--user={}", user()?))
            .arg(format!("--datadir={}", data.display()));
        sh::output(&mut install, LIMIT)?;
        Ok(Self { data, outside: bed.make_directory("mariadb")?, runner: None, server: None })
    }

    /// The same, with a server that `bedplate run` starts.
    pub fn with_leases_of(self, bedplate: &Path) -> Self {
        Self { runner: Some(bedplate.to_owned()), ..self }
    }

    /// Returns the server's socket.
    pub fn socket(&self) -> String {
        self.outside.join("socket").display().to_string()
    }

    fn log(&self) -> PathBuf {
        self.outside.join("log")
    }

    /// Starts the server and waits until it takes connections, which is after its own recovery.
    ///
    /// # Errors
    /// When it ends or takes too long; with its log.
    pub fn start(&mut self, settings: &[&str]) -> Result<()> {
        self.server = None;
        let log = File::create(self.log())?;
        let mut command = match &self.runner {
            Some(bedplate) => {
                let mut command = Command::new(bedplate);
                command.args(["run", "--", "mariadbd"]);
                command
            }
            None => Command::new("mariadbd"),
        };
        command
            .args(["--no-defaults", "--skip-networking"])
            .arg(format!("--user={}", user()?))
            .arg(format!("--datadir={}", self.data.display()))
            .arg(format!("--socket={}", self.socket()))
            .args(settings)
            .stdout(log.try_clone()?)
            .stderr(log);
        self.server = Some(sh::Family::start(&mut command)?);
        let start = Instant::now();
        while self.sql("SELECT 1").is_err() {
            ensure!(start.elapsed() < LIMIT, "mariadbd takes no connections: {}", self.said());
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Returns what the server logged since it was started.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Returns the server's process.
    ///
    /// # Errors
    /// When there is none.
    pub fn pid(&self) -> Result<u32> {
        self.server.as_ref().map(|server| server.child.id()).context("no server runs")
    }

    fn shell(&self) -> Command {
        let mut shell = Command::new("mariadb");
        shell.args(["--no-defaults", "--user=root", "-N", "-B"]);
        shell.arg(format!("--socket={}", self.socket()));
        shell
    }

    /// Runs SQL and returns the bare rows.
    ///
    /// # Errors
    /// When it fails.
    pub fn sql(&self, sql: &str) -> Result<String> {
        sh::output(self.shell().args(["-e", sql]), LIMIT)
    }

    /// Shuts the server down.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop(&mut self) -> Result<()> {
        self.sql("SHUTDOWN")?;
        if let Some(mut server) = self.server.take() {
            server.wait(LIMIT)?;
        }
        Ok(())
    }

    /// Kills the server, or waits for its end after something else did.
    fn kill(&mut self) -> Result<()> {
        if let Some(mut server) = self.server.take() {
            kill(server.child.id());
            server.wait(LIMIT)?;
        }
        Ok(())
    }

    /// Starts a client that logs its commits, and changes pages all over a large table with each.
    fn client(&self, first: u64) -> Result<Client> {
        let mut shell = self.shell();
        shell.args(["--unbuffered", "--database=app"]);
        Client::start(&mut shell, first, |n| {
            let part = n * 7 % 100 * 400;
            format!(
                "INSERT INTO ledger VALUES ({n}, REPEAT(MD5({n}), 6)); UPDATE filler SET payload = \
                 REPEAT(MD5({n}), 20) WHERE n BETWEEN {part} AND {part} + 399; SELECT 'ack {n}';"
            )
        })
    }

    /// Every acknowledged row is there, none that was not begun, and every table is sound.
    fn verify(&self, told: &[Acknowledged]) -> Result<()> {
        for Acknowledged { first, count } in told {
            let end = first + count;
            let found = self.sql(&format!(
                "SELECT COUNT(*) FROM app.ledger WHERE n >= {first} AND n < {end} AND payload = \
                 REPEAT(MD5(n), 6)"
            ))?;
            ensure!(
                found.trim() == count.to_string(),
                "{count} rows from {first} on were acknowledged, {} are there",
                found.trim()
            );
            let more = self.sql(&format!(
                "SELECT COUNT(*) FROM app.ledger WHERE n > {end} AND n < {first} + 1000000"
            ))?;
            ensure!(more.trim() == "0", "{} rows are there that were never begun", more.trim());
        }
        let checked = self.sql("CHECK TABLE app.ledger, app.filler EXTENDED")?;
        let is_sound = checked.lines().count() == 2 && checked.lines().all(|it| it.ends_with("OK"));
        ensure!(is_sound, "the tables are damaged: {checked}");
        Ok(())
    }
}

/// Pages are flushed by `io_submit`, and few of them are in memory.
const NATIVE: [&str; 5] = [
    "--innodb-use-native-aio=ON",
    "--loose-innodb-linux-aio=aio",
    "--innodb-flush-method=O_DIRECT",
    "--innodb-buffer-pool-size=8M",
    "--innodb-log-file-size=8M",
];

const MOUNT: &str = "mode=concurrent,lease=owner";

/// What happens to a server in the middle of its load.
#[derive(Debug, Clone, Copy)]
enum Blow {
    Server,
    Daemon,
    /// The server is stopped, a checkpoint of everything is made meanwhile, and it goes on.
    Stop,
    Both,
}

const BLOWS: [Blow; 4] = [Blow::Server, Blow::Stop, Blow::Daemon, Blow::Both];

/// S-1, S-3, S-360, S-362, S-363: MariaDB that makes asynchronous requests under a lease loses its
/// server, its daemon or both, again and again, and never an acknowledged row.
pub fn killed(bed: &mut Bed, options: &Options) -> Result<()> {
    bed.use_copy_of_program()?;
    let image = bed.format("volume.img", "1G")?;
    let mut mounted = bed.mount(&image, MOUNT)?;
    let data = mounted.path("data");
    let mut server = MariaDb::install(bed, data)?.with_leases_of(&bed.program);
    server.start(&NATIVE)?;
    ensure!(server.said().contains("native AIO"), "no native AIO: {}", server.said());
    server.sql(
        "CREATE DATABASE app CHARACTER SET utf8mb4; USE app; CREATE TABLE ledger(n BIGINT PRIMARY KEY, payload TEXT); \
         CREATE TABLE filler(n BIGINT PRIMARY KEY, payload TEXT); INSERT INTO filler SELECT seq, \
         REPEAT('x', 640) FROM seq_1_to_40000",
    )?;
    let mut told: Vec<Acknowledged> = Vec::new();
    for round in 0..options.kills.max(BLOWS.len() as u32) {
        let blow = BLOWS[round as usize % BLOWS.len()];
        let clients: Vec<Client> = (0..2)
            .map(|client| server.client(1 + u64::from(round * 2 + client) * 1_000_000))
            .collect::<Result<_>>()?;
        clients.iter().try_for_each(|client| client.wait_for(5))?;
        std::thread::sleep(Duration::from_millis(options.seconds * 500));
        let leased = Leased::of(bed, &mounted.directory)?;
        ensure!(leased.writes > 0 && leased.reads > 0, "hardly anything went {leased}");
        match blow {
            Blow::Server => server.kill()?,
            Blow::Stop => {
                let pid = server.pid()?;
                checkpoint_beside_a_stopped(bed, &mounted.directory, pid, &format!("c{round}"))?;
            }
            Blow::Daemon => {
                mounted.crash()?;
                server.kill()?;
            }
            Blow::Both => {
                server.kill()?;
                mounted.crash()?;
            }
        }
        let acknowledged: Vec<Acknowledged> = clients.into_iter().map(Client::finish).collect();
        println!(
            "    {blow:?}: {} rows acknowledged, {leased}",
            acknowledged.iter().map(|it| it.count).sum::<u64>()
        );
        told.extend(acknowledged);
        if matches!(blow, Blow::Daemon | Blow::Both) {
            mounted.clear()?;
            bed.check(&image)?;
            mounted = bed.mount(&image, MOUNT)?;
        }
        if !matches!(blow, Blow::Stop) {
            server.start(&NATIVE)?;
        }
        server.verify(&told).with_context(|| format!("{blow:?}, in round {}", round + 1))?;
    }
    server.stop()?;
    mounted.unmount(bed)?;
    bed.check(&image)
}
