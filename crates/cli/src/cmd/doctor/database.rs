//! The database that is looked at: a server of PostgreSQL, asked by psql, or a file of SQLite.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bedplate_doctor::{Database, Postgres};

use super::Arguments;
use crate::cmd::checkpoint::postgres::{Address, PASSWORD};
use crate::failure::{Failure, Result, plain};
use crate::render::text;

/// An address as it was given. A wrong one is refused by the command and not by the parser, which
/// would repeat it, with its password.
#[derive(Debug, Clone)]
pub struct Dsn(std::result::Result<Address, &'static str>);

impl std::str::FromStr for Dsn {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        Ok(Self(match text.split_once("://") {
            Some((scheme @ ("postgresql" | "postgres"), rest)) => Address::parse(scheme, rest),
            _ => Err("what is given is no postgresql://[USER@][HOST][/DATABASE]"),
        }))
    }
}

/// Asks the database that the arguments name.
pub fn of(arguments: &Arguments) -> Result<Option<Database>> {
    if let Some(dsn) = &arguments.postgres {
        let address = dsn.0.as_ref().map_err(|why| Failure::usage(format!("--postgres: {why}")))?;
        address.hide()?;
        let server = Postgres::ask(&|sql| psql(address, sql))
            .map_err(|why| Failure::new("database", format!("PostgreSQL: {why}")))?;
        return Ok(Some(Database::Postgres(Box::new(server))));
    }
    let Some(file) = &arguments.sqlite else { return Ok(None) };
    let refused = |error: std::io::Error| Failure::system("find the database", file, &error);
    let file = file.canonicalize().map_err(refused)?;
    if !is_sqlite(&file)? {
        let why = "is no database of SQLite: it does not begin as one does";
        return Err(Failure::new("invalid", format!("{} {why}", file.display())));
    }
    Ok(Some(Database::Sqlite(file)))
}

fn is_sqlite(file: &Path) -> Result<bool> {
    use std::io::Read;

    let refused = |error: std::io::Error| Failure::system("read", file, &error);
    let mut start = Vec::new();
    std::fs::File::open(file)
        .map_err(refused)?
        .take(16)
        .read_to_end(&mut start)
        .map_err(refused)?;
    Ok(start == b"SQLite format 3\0")
}

/// Returns the data directory of a server, which has to be one of this machine.
pub fn directory(server: &Postgres) -> Result<PathBuf> {
    let dir = server.data_directory().ok_or_else(|| {
        let why = "PostgreSQL does not tell its data directory to this user: connect as one with \
                   pg_read_all_settings, or name the directory";
        Failure::new("not_permitted", why)
    })?;
    if !dir.exists() {
        let why = "is where the server says that its data are, and is not on this machine or may \
                   not be looked at: run the command there, as root or as the server's user";
        return Err(Failure::new("not_found", format!("{} {why}", dir.display())));
    }
    Ok(dir.to_owned())
}

/// Runs SQL and returns bare rows.
fn psql(address: &Address, sql: &str) -> std::result::Result<String, String> {
    let mut psql = Command::new("psql");
    psql.args(["-X", "-A", "-t", "-q", "-w", "-F", "|", "-v", "ON_ERROR_STOP=1"])
        .args(["-d", &address.text, "-c", sql])
        .env("PGCONNECT_TIMEOUT", "10")
        .env("PGOPTIONS", "-c statement_timeout=60s")
        .stdin(Stdio::null())
        .process_group(0);
    if let Some(password) = &address.password {
        psql.env(PASSWORD, password);
    }
    let done = psql.output().map_err(|error| format!("psql cannot be run: {}", plain(&error)))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        let said: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        return Err(text::one_line(&said.join("; ")));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}
