//! `oltp --database`: the same figures from a real database. Its own server, its files in the
//! target's directory, sessions of its own shell.
//!
//! Tables and transactions are those of TPC-B, as `pgbench` has them: three updates, a read and an
//! insert.

mod postgresql;
mod session;
mod sqlite;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rand::Rng;

use super::{Env, Work, list, scale};
use crate::driver::{Class, Job, Phase, Worker, run};
use crate::results::{Case, Measurement};
use crate::target::{Target, TargetInfo};
use crate::{Error, Result};
use session::Session;

/// Which database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// PostgreSQL: a cluster and a server of its own, found in `PATH` or where distributions put
    /// it.
    Postgresql,
    /// SQLite: one file, and the `sqlite3` shell.
    Sqlite,
}

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Self::Postgresql => "postgresql",
            Self::Sqlite => "sqlite",
        }
    }

    /// What is set unless the user says otherwise, so that it is known and recorded.
    fn settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Postgresql => postgresql::SETTINGS,
            Self::Sqlite => sqlite::SETTINGS,
        }
    }

    fn version(self) -> Result<String> {
        match self {
            Self::Postgresql => postgresql::version(),
            Self::Sqlite => sqlite::version(),
        }
    }
}

/// Options of `oltp --database`.
#[derive(Debug, Clone)]
pub struct Server {
    /// Which database.
    pub engine: Engine,
    /// Size of the tables: 100,000 accounts, some 13 MB, a unit.
    pub scale: u64,
    /// Numbers of clients; each is a case.
    pub clients: Vec<usize>,
    /// Length of the ramp-up and of the ramp-down.
    pub ramp: Duration,
    /// Settings of the database, besides or instead of the ones that are always set.
    pub settings: Vec<(String, String)>,
}

impl Server {
    /// Returns all settings, the user's last and winning.
    fn all_settings(&self) -> BTreeMap<String, String> {
        let own =
            self.engine.settings().iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
        own.chain(self.settings.iter().cloned()).collect()
    }

    fn place(&self, target: &dyn Target) -> Result<PathBuf> {
        let label = &target.info().label;
        let found = target.directory(self.engine.name())?;
        found.ok_or_else(|| {
            Error::target(format!(
                "{label}: a database's server needs a directory: give a mounted file system as \
                 path:DIR"
            ))
        })
    }

    fn start(&self, directory: &Path) -> Result<Box<dyn Running>> {
        let settings = self.all_settings();
        match self.engine {
            Engine::Postgresql => {
                Ok(Box::new(postgresql::start(directory, &settings, self.sessions_max())?))
            }
            Engine::Sqlite => Ok(Box::new(sqlite::start(directory, &settings))),
        }
    }

    fn sessions_max(&self) -> usize {
        self.clients.iter().copied().max().unwrap_or(1) + 10
    }

    /// Makes and fills the tables.
    fn load(&self, running: &dyn Running) -> Result<()> {
        let session = running.session()?;
        let accounts = self.scale * 100_000;
        let filled = |table: &str, rows: u64, row: &str| {
            format!("INSERT INTO {table} SELECT {row} FROM {};", running.series(rows))
        };
        session.run(&[
            "CREATE TABLE branches(bid INTEGER PRIMARY KEY, bbalance INTEGER, filler CHAR(88));"
                .to_owned(),
            "CREATE TABLE tellers(tid INTEGER PRIMARY KEY, bid INTEGER, tbalance INTEGER, filler \
             CHAR(84));"
                .to_owned(),
            "CREATE TABLE accounts(aid INTEGER PRIMARY KEY, bid INTEGER, abalance INTEGER, filler \
             CHAR(84));"
                .to_owned(),
            "CREATE TABLE history(tid INTEGER, bid INTEGER, aid INTEGER, delta INTEGER, mtime \
             TIMESTAMP, filler CHAR(22));"
                .to_owned(),
            filled("branches", self.scale, "i, 0, ''"),
            filled("tellers", self.scale * 10, "i, (i - 1) / 10 + 1, 0, ''"),
            filled(
                "accounts",
                accounts,
                &format!("i, (i - 1) / 100000 + 1, 0, '{}'", " ".repeat(84)),
            ),
        ])
    }
}

/// A database at work in a directory.
trait Running: Send + Sync {
    /// Opens a session.
    fn session(&self) -> Result<Session>;
    /// Returns what to select from to have a column `i` with `1 ..= rows`.
    fn series(&self, rows: u64) -> String;
    /// Returns how a transaction that writes begins.
    fn begin(&self) -> &'static str;
    /// Stops it cleanly.
    fn stop(self: Box<Self>) -> Result<()>;
}

/// Writes one transaction.
fn transaction(begin: &str, rng: &mut impl Rng, size: u64) -> String {
    let mut random = |n: u64| 1 + scale(rng.next_u64(), n);
    let (account, teller, branch, delta) =
        (random(size * 100_000), random(size * 10), random(size), random(10_000) as i64 - 5000);
    format!(
        "{begin};UPDATE accounts SET abalance = abalance + {delta} WHERE aid = {account};SELECT \
         abalance FROM accounts WHERE aid = {account};UPDATE tellers SET tbalance = tbalance + \
         {delta} WHERE tid = {teller};UPDATE branches SET bbalance = bbalance + {delta} WHERE bid \
         = {branch};INSERT INTO history VALUES({teller}, {branch}, {account}, {delta}, \
         CURRENT_TIMESTAMP, '');COMMIT;"
    )
}

impl Work for Server {
    fn name(&self) -> &'static str {
        match self.engine {
            Engine::Postgresql => "oltp-postgresql",
            Engine::Sqlite => "oltp-sqlite",
        }
    }

    fn title(&self) -> &'static str {
        "TPC-B-like transactions of a real database, its files in the target's directory"
    }

    fn unit(&self) -> &'static str {
        "tps"
    }

    fn options(&self) -> BTreeMap<String, String> {
        let mut options = self.all_settings();
        options.insert("clients".into(), list(&self.clients));
        options.insert(
            "database".into(),
            self.engine.version().unwrap_or_else(|_| self.engine.name().into()),
        );
        options.insert("scale".into(), self.scale.to_string());
        options.insert("ramp".into(), bedplate::format_duration(self.ramp));
        options
    }

    fn validate(&self) -> Result<()> {
        if self.scale == 0 || self.scale > 20_000 {
            return Err(Error::usage("--scale is 1 to 20000: each unit is 100,000 accounts"));
        }
        if self.clients.is_empty() || self.clients.iter().any(|&n| n == 0 || n > 1000) {
            return Err(Error::usage("a number of clients is 0 or above 1000"));
        }
        for (name, value) in &self.settings {
            let plain = |text: &str, more: &str| {
                !text.is_empty()
                    && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
            };
            if !plain(name, "_.") || !plain(value, "_.,+-/") {
                return Err(Error::usage(format!(
                    "the setting '{name}={value}' is refused: names and values are letters, digits \
                     and _ . , + - /"
                )));
            }
        }
        self.engine.version().map(drop)
    }

    fn cases(&self) -> Vec<Case> {
        let case = |&clients: &usize| Case {
            name: format!(
                "{}, {clients} client{}",
                self.engine.name(),
                if clients == 1 { "" } else { "s" }
            ),
            curve: self.engine.name().into(),
            axis: "clients".into(),
            x: clients as f64,
        };
        self.clients.iter().map(case).collect()
    }

    fn space_bytes(&self) -> u64 {
        // Tables with what updates leave behind in them, and the write-ahead log.
        self.scale * (24 << 20) + (1 << 30)
    }

    fn refuses(&self, _case: usize, target: &TargetInfo) -> Option<String> {
        (!target.is_path())
            .then(|| "a database's server needs a directory on a mounted file system".into())
    }

    fn prepare(&self, target: &dyn Target) -> Result<()> {
        if self.refuses(0, target.info()).is_some() {
            return Ok(());
        }
        let directory = self.place(target)?;
        if self.engine == Engine::Postgresql {
            postgresql::initialise(&directory)?;
        }
        let running = self.start(&directory)?;
        self.load(&*running)?;
        running.stop()
    }

    fn run(&self, case: usize, target: &dyn Target, env: &Env<'_>) -> Result<Measurement> {
        let clients = self.clients[case];
        let running = self.start(&self.place(target)?)?;
        let job = Job {
            target,
            threads: clients,
            phase: Phase::Timed {
                warm_up: self.ramp.max(env.warm_up),
                time: env.time,
                after: self.ramp,
            },
            classes: &[Class::Transaction],
            rated: &[Class::Transaction],
            sample_every: Some((env.time / 20).max(Duration::from_millis(50))),
            stop: env.stop,
        };
        let measurement = run(&job, |index| {
            let session = running.session()?;
            let (begin, ramp, size) = (running.begin(), self.ramp, self.scale);
            Ok(move |worker: &mut Worker<'_>| {
                // Clients arrive and leave one by one, over the ramps.
                let share = ramp.mul_f64(index as f64 / worker.threads as f64);
                std::thread::sleep((worker.go() + share).saturating_duration_since(Instant::now()));
                let leave = worker.end().checked_sub(share).unwrap_or_else(|| worker.end());
                let mut at = Instant::now();
                while !worker.done(at) && at < leave {
                    let text = transaction(begin, &mut worker.rng, size);
                    at = Instant::now();
                    match session.run(&[text]) {
                        // An interrupt of the run ends the shells too.
                        Err(_) if env.stop.load(Relaxed) => break,
                        result => result?,
                    }
                    let end = Instant::now();
                    worker.record(Class::Transaction, at, end, 0);
                    at = end;
                }
                Ok(())
            })
        });
        let stopped = running.stop();
        let measurement = measurement?;
        stopped.map(|()| measurement)
    }

    fn clean(&self, target: &dyn Target) -> Result<()> {
        if self.refuses(0, target.info()).is_some() {
            return Ok(());
        }
        let directory = self.place(target)?;
        std::fs::remove_dir_all(&directory)
            .map_err(|e| Error::io(directory.display(), "cannot remove the database", e))
    }
}

/// Finds a program in `PATH` or in one of some other directories.
fn find_program(name: &str, places: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(places.iter().cloned())
        .map(|place| place.join(name))
        .find(|file| file.is_file())
}

/// Runs a program to its end; its complaint is the error.
fn output(command: &mut std::process::Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|e| Error::io(&name, "cannot be run", e))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let said =
        String::from_utf8_lossy(if done.stderr.is_empty() { &done.stdout } else { &done.stderr })
            .trim()
            .replace('\n', "; ");
    Err(Error::target(format!("{name} failed: {said}")))
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn transactions_stay_within_the_tables() {
        let mut rng = rand_xoshiro::Xoshiro256PlusPlus::seed_from_u64(1);
        for _ in 0..200 {
            let text = transaction("BEGIN", &mut rng, 1);
            let branch = text
                .split("WHERE bid = ")
                .nth(1)
                .and_then(|rest| rest.split(';').next())
                .map(str::to_owned);
            assert_eq!(branch.as_deref(), Some("1"));
            assert!(
                text.starts_with("BEGIN;") && text.ends_with("COMMIT;") && !text.contains('\n')
            );
        }
    }

    #[test]
    fn settings_that_could_hide_a_command_are_refused() {
        let server = |name: &str, value: &str| Server {
            engine: Engine::Sqlite,
            scale: 1,
            clients: vec![1],
            ramp: Duration::ZERO,
            settings: vec![(name.into(), value.into())],
        };
        for (name, value) in [("a b", "1"), ("a", "1; DROP"), ("a", "$(x)"), ("", "1"), ("a", "")] {
            assert!(server(name, value).validate().unwrap_err().message.contains("is refused"));
        }
        assert_eq!(server("synchronous", "OFF").all_settings()["synchronous"], "OFF");
    }
}
