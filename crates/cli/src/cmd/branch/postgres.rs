//! PostgreSQL clusters: what makes the clone of one a server of its own, and its start and stop.

use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::failure::{Failure, Result, plain};

/// Where ports are looked for.
const PORTS: std::ops::Range<u16> = 5433..6433;
/// How long a server may take to answer, which is after its recovery, and to stop.
const SECONDS: &str = "600";
/// What a clone has of the server of its original.
const NOT_ITS_OWN: [&str; 5] =
    ["postmaster.pid", "postmaster.opts", "standby.signal", "recovery.signal", "backup_label.old"];
/// The settings that are a cluster's own; the last line for a setting counts.
const SETTINGS: &str = "postgresql.auto.conf";
/// The server's log, in the branch.
const LOG: &str = "bedplate-branch.log";

/// A cluster that is branched.
#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
    /// The configuration that lies outside of it, as on Debian.
    config: Option<PathBuf>,
}

/// What a running server says of itself in its lock file.
struct Running {
    port: String,
    sockets: String,
}

impl Cluster {
    /// Looks whether a directory is a cluster.
    pub fn at(dir: &Path) -> Result<Option<Self>> {
        if !dir.join("PG_VERSION").exists() {
            return Ok(None);
        }
        let config = started_with(dir).and_then(|words| {
            let value = |word: &String| word.strip_prefix("config_file=").map(PathBuf::from);
            words.iter().find_map(value)
        });
        if config.is_none() && !dir.join("postgresql.conf").exists() {
            return Err(Failure::new(
                "invalid",
                format!(
                    "{} has no postgresql.conf and its server does not run, so it is not known \
                     where its configuration lies: start it once, or put one there",
                    dir.display()
                ),
            ));
        }
        let config = config.filter(|_| !dir.join("postgresql.conf").exists());
        Ok(Some(Self { dir: dir.to_owned(), config }))
    }

    /// Asks the running server for a CHECKPOINT, so that the branch has little to recover. Returns
    /// why it made none; `None`: no server runs.
    pub fn checkpoint(&self) -> Option<std::result::Result<(), String>> {
        let running = Running::of(&self.dir).filter(|_| is_running(&self.dir))?;
        let asked = || -> Result<()> {
            let mut psql = program(&self.dir, &self.dir, "psql")?;
            psql.args(["-X", "-q", "-w", "-d", "postgres", "-h", &running.sockets])
                .args(["-p", &running.port, "-c", "CHECKPOINT"])
                .env("PGCONNECT_TIMEOUT", "10")
                .env("PGOPTIONS", "-c statement_timeout=300s");
            finish(psql, "psql")
        };
        Some(asked().map_err(|failure| failure.message))
    }

    /// Makes the clone of the cluster a server of its own: on a port, without what belongs to the
    /// original's, archiving or replicating nothing.
    pub fn make_own(&self, branch: &Path, port: u16) -> Result<()> {
        for name in NOT_ITS_OWN {
            let path = branch.join(name);
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Failure::system("remove", &path, &e));
                }
                _ => {}
            }
        }
        let sockets = Running::of(&self.dir)
            .map(|running| running.sockets)
            .filter(|sockets| !sockets.is_empty() && !sockets.contains('\''))
            .unwrap_or_else(|| "/tmp".to_owned());
        let mut lines = vec![
            format!("port = {port}"),
            "listen_addresses = 'localhost'".to_owned(),
            format!("unix_socket_directories = '{sockets}'"),
            "archive_mode = 'off'".to_owned(),
            "restore_command = ''".to_owned(),
            "primary_conninfo = ''".to_owned(),
            "primary_slot_name = ''".to_owned(),
            "synchronous_standby_names = ''".to_owned(),
            "logging_collector = 'off'".to_owned(),
            "external_pid_file = ''".to_owned(),
        ];
        if major_version(branch) >= 14 {
            // Before it recovers, a server syncs each of its files by itself: some thousand requests
            // for what is durable already in a clone.
            lines.push("recovery_init_sync_method = 'syncfs'".to_owned());
        }
        if let Some(config) = &self.config {
            lines.push(format!("# bedplate config_file {}", config.display()));
        }
        let mut text = super::get(branch, SETTINGS)?.unwrap_or_default();
        text.push_str("\n# Of this branch, by 'bedplate branch':\n");
        text.push_str(&lines.join("\n"));
        text.push('\n');
        super::put(branch, SETTINGS, text.as_bytes())
    }
}

impl Running {
    fn of(dir: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(dir.join("postmaster.pid")).ok()?;
        let lines: Vec<&str> = text.lines().collect();
        let line = |at: usize| lines.get(at).map(|line| line.trim().to_owned());
        Some(Self { port: line(3)?, sockets: line(4)? })
    }
}

/// Returns whether a server has the cluster open.
pub fn is_running(dir: &Path) -> bool {
    let pid = std::fs::read_to_string(dir.join("postmaster.pid"))
        .ok()
        .and_then(|text| text.lines().next()?.trim().parse::<u32>().ok());
    // A lock file that a crash left may name a process of another program by now.
    pid.is_some_and(|pid| {
        std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == dir)
            || std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| {
                let dir = dir.as_os_str().as_bytes();
                line.split(|byte| *byte == 0).any(|word| word == dir)
            })
    })
}

/// Returns where the links of a cluster lead that belong to it: table spaces and the log.
pub fn links(dir: &Path) -> Vec<PathBuf> {
    let spaces = std::fs::read_dir(dir.join("pg_tblspc")).into_iter().flatten().flatten();
    spaces
        .map(|entry| entry.path())
        .chain([dir.join("pg_wal")])
        .filter_map(|link| std::fs::read_link(link).ok())
        .collect()
}

/// Refuses a path that cannot be given to a server in its options.
pub fn require_quotable(branch: &Path) -> Result<()> {
    let text = branch.to_str().filter(|text| !text.contains(['\'', '\n', '\\']));
    text.map(drop).ok_or_else(|| {
        Failure::usage(format!(
            "{}: the path of a branch of PostgreSQL has no quote, backslash or end of line in it",
            branch.display()
        ))
    })
}

/// Returns the port that was asked for, or the next that is free.
pub fn free_port(asked: Option<u16>) -> Result<u16> {
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    match asked {
        Some(port) if is_free(&port) => Ok(port),
        Some(port) => Err(Failure::new(
            "busy",
            format!("port {port} is in use: name another with --port, or none"),
        )),
        None => PORTS.into_iter().find(is_free).ok_or_else(|| {
            let (first, end) = (PORTS.start, PORTS.end - 1);
            Failure::new("busy", format!("no port from {first} to {end} is free: name one"))
        }),
    }
}

/// Returns the first number of a cluster's version; 0 where it cannot be read.
fn major_version(dir: &Path) -> u32 {
    let text = std::fs::read_to_string(dir.join("PG_VERSION")).unwrap_or_default();
    text.trim().split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0)
}

/// Starts the server of a branch; returns once it answers.
pub fn start(branch: &Path, port: u16) -> Result<()> {
    let mut options = format!("-p {port}");
    if let Some(config) = config_of(branch)? {
        options.push_str(&format!(
            " -c config_file='{}' -c data_directory='{}' -c external_pid_file=''",
            config.display(),
            branch.display()
        ));
    }
    let mut pg_ctl = program(branch, branch, "pg_ctl")?;
    pg_ctl
        .arg("-D")
        .arg(branch)
        .args(["-w", "-s", "-t", SECONDS, "-l"])
        .arg(branch.join(LOG))
        .args(["-o", &options, "start"]);
    finish(pg_ctl, "pg_ctl start").map_err(|mut failure| {
        let log = super::get(branch, LOG).ok().flatten().unwrap_or_default();
        if let Some(last) = log.lines().rev().find(|line| !line.trim().is_empty()) {
            failure.message = format!("{}; its log ends with: {last}", failure.message);
        }
        failure
    })
}

/// Stops the server of a branch.
pub fn stop(branch: &Path) -> Result<()> {
    let mut pg_ctl = program(branch, branch, "pg_ctl")?;
    pg_ctl.arg("-D").arg(branch).args(["-w", "-s", "-t", SECONDS, "-m", "immediate", "stop"]);
    finish(pg_ctl, "pg_ctl stop")
}

/// The configuration outside of the branch that it was given.
fn config_of(branch: &Path) -> Result<Option<PathBuf>> {
    let text = super::get(branch, SETTINGS)?.unwrap_or_default();
    let config = |line: &str| line.strip_prefix("# bedplate config_file ").map(PathBuf::from);
    Ok(text.lines().rev().find_map(config))
}

/// The words with which the server of a cluster was started last.
fn started_with(dir: &Path) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(dir.join("postmaster.opts")).ok()?;
    let (program, rest) = text.trim_end().split_once(' ').unwrap_or((text.trim_end(), ""));
    let words = rest.split('"').skip(1).step_by(2).map(str::to_owned);
    Some(std::iter::once(program.to_owned()).chain(words).collect())
}

/// Returns one of PostgreSQL's programs, of the version of a cluster, run by the cluster's owner.
fn program(cluster: &Path, owned: &Path, name: &str) -> Result<Command> {
    let beside = |server: &str| Path::new(server).parent().map(|dir| dir.join(name));
    let version = std::fs::read_to_string(cluster.join("PG_VERSION")).unwrap_or_default();
    let path = started_with(cluster)
        .and_then(|words| beside(words.first()?))
        .into_iter()
        .chain([PathBuf::from(format!("/usr/lib/postgresql/{}/bin/{name}", version.trim()))])
        .chain(
            std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
                .map(|dir| dir.join(name)),
        )
        .find(|path| path.is_file())
        .ok_or_else(|| {
            Failure::new(
                "not_found",
                format!(
                    "{name} of PostgreSQL {} is not found: put its directory into PATH",
                    version.trim()
                ),
            )
        })?;
    let meta = owned.metadata().map_err(|e| Failure::system("look at", owned, &e))?;
    let mut command = Command::new(path);
    command.current_dir("/").stdin(Stdio::null());
    if rustix::process::geteuid().is_root() {
        command.uid(meta.uid()).gid(meta.gid());
    }
    Ok(command)
}

/// Runs a program that has to succeed. A server that it starts writes to a log of its own, so the
/// program's output ends with it.
fn finish(mut command: Command, what: &str) -> Result<()> {
    let failed = |why: String| Failure::new("unavailable", format!("{what} failed: {why}"));
    let done = command.output().map_err(|e| failed(plain(&e)))?;
    if done.status.success() {
        return Ok(());
    }
    let said = [done.stderr, done.stdout].concat();
    let words: Vec<String> =
        String::from_utf8_lossy(&said).split_whitespace().map(str::to_owned).collect();
    Err(failed(if words.is_empty() { done.status.to_string() } else { words.join(" ") }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_server_are_read_from_its_options() {
        let dir = tempfile::tempdir().unwrap();
        let line = "/usr/lib/postgresql/15/bin/postgres \"-D\" \"/db/a b\" \"-c\" \
                    \"config_file=/etc/postgresql/15/main/postgresql.conf\"\n";
        std::fs::write(dir.path().join("postmaster.opts"), line).unwrap();
        let words = started_with(dir.path()).unwrap();
        assert_eq!(words[0], "/usr/lib/postgresql/15/bin/postgres");
        assert_eq!(words[2], "/db/a b");
        std::fs::write(dir.path().join("PG_VERSION"), "15\n").unwrap();
        let cluster = Cluster::at(dir.path()).unwrap().unwrap();
        assert_eq!(
            cluster.config.as_deref(),
            Some(Path::new("/etc/postgresql/15/main/postgresql.conf"))
        );
        assert!(cluster.checkpoint().is_none() && !is_running(dir.path()));
    }

    /// A server of an older version refuses the setting.
    #[test]
    fn only_a_server_that_knows_it_syncs_once_before_it_recovers() {
        for (version, expected) in [("15\n", true), ("14", true), ("13\n", false), ("9.6\n", false)]
        {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("PG_VERSION"), version).unwrap();
            std::fs::write(dir.path().join("postgresql.conf"), "").unwrap();
            let cluster = Cluster::at(dir.path()).unwrap().unwrap();
            cluster.make_own(dir.path(), 5433).unwrap();
            let settings = std::fs::read_to_string(dir.path().join(SETTINGS)).unwrap();
            assert_eq!(settings.contains("recovery_init_sync_method"), expected, "{version}");
        }
    }

    #[test]
    fn a_port_in_use_is_refused_and_passed_over() {
        let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        assert_eq!(free_port(Some(port)).unwrap_err().kind, "busy");
        assert!(PORTS.contains(&free_port(None).unwrap()));
    }
}
