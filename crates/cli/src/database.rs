//! A database that a command is about: a server of PostgreSQL, asked by psql, one of MariaDB or MySQL,
//! asked by mariadb or mysql, or a file of SQLite.

pub mod postgres;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use bedplate_doctor::{Database, Mysql, Postgres};

use self::postgres::{Address, PASSWORD};
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

/// Where a server of MariaDB or MySQL is: `mysql://[USER@][HOST[:PORT]][?socket=PATH]`, as it was
/// given. It has no password, because every user can read command lines.
#[derive(Debug, Clone)]
pub struct MysqlDsn(std::result::Result<Vec<String>, &'static str>);

impl std::str::FromStr for MysqlDsn {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        Ok(Self(options(text)))
    }
}

/// Returns an address as options of the client.
fn options(text: &str) -> std::result::Result<Vec<String>, &'static str> {
    let Some(("mysql" | "mariadb", rest)) = text.split_once("://") else {
        return Err("what is given is no mysql://[USER@][HOST[:PORT]][?socket=PATH]");
    };
    let (place, parameters) = rest.split_once('?').map_or((rest, None), |(p, q)| (p, Some(q)));
    let (user, place) = place.rsplit_once('@').map_or((None, place), |(u, p)| (Some(u), p));
    if user.is_some_and(|user| user.contains(':')) {
        return Err(
            "its address has a password, which every user could read: give it in MYSQL_PWD",
        );
    }
    let mut options: Vec<String> = user.iter().map(|user| format!("--user={user}")).collect();
    let (host, port) = place.trim_end_matches('/').split_once(':').unwrap_or((place, ""));
    let host = host.trim_end_matches('/');
    if host.contains('/') {
        return Err("its address names a database, and the server is asked for all of them");
    }
    if !host.is_empty() {
        options.push(format!("--host={host}"));
    }
    if !port.is_empty() {
        options.push(format!("--port={port}"));
    }
    match parameters.map(|parameters| parameters.split_once('=')) {
        None => {}
        Some(Some(("socket", path))) => options.push(format!("--socket={path}")),
        Some(_) => return Err("its address has a parameter that is not socket=PATH"),
    }
    Ok(options)
}

/// How the arguments of a command name a database.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    pub postgres: Option<&'a Dsn>,
    pub mysql: Option<&'a MysqlDsn>,
    pub sqlite: Option<&'a Path>,
}

/// Asks the database that is named, if one is.
pub fn of(named: Named<'_>) -> Result<Option<Database>> {
    if let Some(dsn) = named.postgres {
        let address = dsn.0.as_ref().map_err(|why| Failure::usage(format!("--postgres: {why}")))?;
        address.hide()?;
        let server = Postgres::ask(&|sql| psql(address, sql))
            .map_err(|why| Failure::new("database", format!("PostgreSQL: {why}")))?;
        return Ok(Some(Database::Postgres(Box::new(server))));
    }
    if let Some(dsn) = named.mysql {
        let server = dsn.0.as_ref().map_err(|why| Failure::usage(format!("--mysql: {why}")))?;
        let server = Mysql::ask(&|sql| mysql(server, sql))
            .map_err(|why| Failure::new("database", format!("MariaDB or MySQL: {why}")))?;
        return Ok(Some(Database::Mysql(Box::new(server))));
    }
    let Some(file) = named.sqlite else { return Ok(None) };
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

/// Returns the directory that a database says its data are in, which has to be one of this machine.
pub fn directory(database: &Database) -> Result<PathBuf> {
    let dir = match database {
        Database::Sqlite(file) => return Ok(file.clone()),
        Database::Postgres(server) => server.data_directory(),
        Database::Mysql(server) => server.data_directory(),
    };
    let dir = dir.ok_or_else(|| {
        let why = "the server does not tell its data directory to this user: connect as one that \
                   may see it (PostgreSQL: pg_read_all_settings), or name the directory";
        Failure::new("not_permitted", why)
    })?;
    if !dir.exists() {
        let why = "is where the server says that its data are, and is not on this machine or may \
                   not be looked at: run the command there, as root or as the server's user";
        return Err(Failure::new("not_found", format!("{} {why}", dir.display())));
    }
    Ok(dir.to_owned())
}

/// Runs SQL of MariaDB or MySQL and returns bare rows.
fn mysql(options: &[String], sql: &str) -> std::result::Result<String, String> {
    let run = |client: &str| {
        let mut command = Command::new(client);
        command.args(options).args(["--connect-timeout=10", "-N", "-B", "-e", sql]);
        command.stdin(Stdio::null()).process_group(0).output()
    };
    let done = match run("mariadb") {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => run("mysql"),
        done => done,
    };
    rows("mariadb or mysql", done)
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
    rows("psql", psql.output())
}

/// Returns what a client printed, or what it complained of.
fn rows(client: &str, done: std::io::Result<Output>) -> std::result::Result<String, String> {
    let done = done.map_err(|error| format!("{client} cannot be run: {}", plain(&error)))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        let said: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        return Err(text::one_line(&said.join("; ")));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_mysql_is_options_of_its_client() {
        let told = |text: &str| options(text).map(|options| options.join(" "));
        assert_eq!(told("mysql://"), Ok(String::new()));
        assert_eq!(told("mariadb://me@host:3307/"), Ok("--user=me --host=host --port=3307".into()));
        assert_eq!(told("mysql://me@?socket=/run/s"), Ok("--user=me --socket=/run/s".into()));
        for wrong in ["", "mysql:x", "postgresql://x", "mysql://host/app", "mysql://?ssl=1"] {
            assert!(options(wrong).is_err(), "{wrong}");
        }
        let secret = options("mysql://me:secret@host").unwrap_err();
        assert!(secret.contains("MYSQL_PWD") && !secret.contains("secret"));
    }
}
