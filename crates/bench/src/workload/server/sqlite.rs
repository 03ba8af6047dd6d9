//! SQLite: a file in the directory, and a `sqlite3` for every session.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::session::Session;
use super::{Running, find_program, output};
use crate::{Error, Result};

/// A commit is durable, the log is checkpointed at the usual length, and the cache of a session
/// holds 64 MiB.
pub(super) const SETTINGS: &[(&str, &str)] = &[
    ("journal_mode", "WAL"),
    ("synchronous", "FULL"),
    ("cache_size", "-65536"),
    ("wal_autocheckpoint", "1000"),
    ("mmap_size", "0"),
];

fn program() -> Result<PathBuf> {
    find_program("sqlite3", &[]).ok_or_else(|| {
        Error::target(
            "sqlite3 is not installed: install SQLite's shell (package sqlite3 or sqlite)",
        )
    })
}

pub(super) fn version() -> Result<String> {
    let text = output(Command::new(program()?).arg("--version"))?;
    Ok(format!("SQLite {}", text.split(' ').next().unwrap_or_default()))
}

pub(super) struct Database {
    file: PathBuf,
    settings: String,
}

pub(super) fn start(directory: &Path, settings: &BTreeMap<String, String>) -> Database {
    let settings = settings.iter().map(|(name, value)| format!("PRAGMA {name}={value};")).collect();
    Database { file: directory.join("bench.sqlite"), settings }
}

impl Running for Database {
    fn session(&self) -> Result<Session> {
        let mut command = Command::new("stdbuf");
        command
            .arg("-oL")
            .arg(program()?)
            .args(["-batch", "-bail", "-cmd", ".timeout 60000", "-cmd", &self.settings])
            .arg(&self.file);
        Session::open(&mut command, "\nSELECT 'bedplate-bench-done';\n")
    }

    fn series(&self, rows: u64) -> String {
        format!(
            "(WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {rows}) \
             SELECT i FROM s)"
        )
    }

    fn begin(&self) -> &'static str {
        // Two readers that both want to write cannot both wait.
        "BEGIN IMMEDIATE"
    }

    fn stop(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
