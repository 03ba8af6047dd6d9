//! SQLite on the mount, killed while it commits.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Options;
use super::bed::Bed;
use super::ledger::{Acknowledged, Client};
use crate::sh;

const LIMIT: Duration = Duration::from_secs(60);

/// S-1, S-5, S-42, S-43: write-ahead log, whose index is a shared mapping.
pub fn wal(bed: &mut Bed, options: &Options) -> Result<()> {
    killed(bed, options, "WAL", "mode=cached")
}

/// S-1, S-3, S-5: rollback journal, created and removed with every commit, on the mode for
/// databases.
pub fn rollback(bed: &mut Bed, options: &Options) -> Result<()> {
    killed(bed, options, "DELETE", "mode=concurrent")
}

/// Runs committing clients, kills the server under them, and looks for what was acknowledged; as
/// often as the options say.
pub fn killed(bed: &Bed, options: &Options, journal: &str, mount_options: &str) -> Result<()> {
    let image = bed.format("volume.img", "256M")?;
    let mut told: Vec<Acknowledged> = Vec::new();
    for round in 0..options.kills {
        let mut mounted = bed.mount(&image, mount_options)?;
        let database = mounted.path("ledger.sqlite");
        let setup = format!(
            "PRAGMA journal_mode={journal}; CREATE TABLE IF NOT EXISTS ledger(n INTEGER PRIMARY \
             KEY, payload BLOB);
             CREATE INDEX IF NOT EXISTS by_payload ON ledger(payload);"
        );
        let set = query(&database, &setup)?;
        ensure!(
            set.trim().eq_ignore_ascii_case(journal),
            "the journal mode is {set}, not {journal}"
        );
        let clients: Vec<Client> = (0..2)
            .map(|client| start(&database, 1 + u64::from(round * 2 + client) * 1_000_000))
            .collect::<Result<_>>()?;
        for client in &clients {
            client.wait_for(20)?;
        }
        std::thread::sleep(Duration::from_millis(options.seconds * 500 / u64::from(options.kills)));
        mounted.crash()?;
        told.extend(clients.into_iter().map(Client::finish));
        mounted.clear()?;
        bed.check(&image)?;

        let mounted = bed.mount(&image, mount_options)?;
        verify(&mounted.path("ledger.sqlite"), &told)
            .with_context(|| format!("after kill {}", round + 1))?;
        mounted.unmount(bed)?;
    }
    let sum: u64 = told.iter().map(|client| client.count).sum();
    println!(
        "    {journal}: {} kills, {sum} acknowledged transactions, none missing",
        options.kills
    );
    bed.check(&image)
}

/// Starts a client.
pub fn start(database: &Path, first: u64) -> Result<Client> {
    let mut shell = Command::new("stdbuf");
    // Line by line, or the acknowledgements stay in the shell's buffer. FULL does not sync the
    // directory after the removal of a rollback journal, which is the commit: a crash may then undo
    // the last acknowledged transaction on any file system. EXTRA does, but it takes a directory
    // that cannot be opened for one that needs no sync (unixDelete): a server that dies between the
    // removal and the open of the directory lets it report a commit that is none. So the
    // acknowledgement reads the row again, which a dead server does not answer.
    shell
        .args([
            "-oL",
            "sqlite3",
            "-batch",
            "-bail",
            "-cmd",
            ".timeout 30000",
            "-cmd",
            "PRAGMA synchronous=EXTRA",
        ])
        .arg(database);
    Client::start(&mut shell, first, |n| {
        format!(
            "INSERT INTO ledger VALUES({n}, randomblob(200)); SELECT 'ack {n}' FROM ledger WHERE \
             n={n};"
        )
    })
}

/// Asks the database's shell.
pub fn query(database: &Path, sql: &str) -> Result<String> {
    sh::output(
        Command::new("sqlite3")
            .args(["-batch", "-bail", "-cmd", ".timeout 30000"])
            .arg(database)
            .arg(sql),
        LIMIT,
    )
}

/// The database is sound and holds every acknowledged row, and none that was not begun.
pub fn verify(database: &Path, told: &[Acknowledged]) -> Result<()> {
    let verdict = query(database, "PRAGMA integrity_check;")?;
    ensure!(verdict.trim() == "ok", "the integrity check says: {verdict}");
    for Acknowledged { first, count } in told {
        let found = query(
            database,
            &format!("SELECT count(*) FROM ledger WHERE n >= {first} AND n < {first} + {count};"),
        )?;
        ensure!(
            found.trim() == count.to_string(),
            "{count} transactions from {first} on were acknowledged, {} are there",
            found.trim()
        );
        let more = query(
            database,
            &format!(
                "SELECT count(*) FROM ledger WHERE n > {first} + {count} AND n < {first} + 1000000;"
            ),
        )?;
        ensure!(more.trim() == "0", "{} transactions are there that were never begun", more.trim());
    }
    Ok(())
}
