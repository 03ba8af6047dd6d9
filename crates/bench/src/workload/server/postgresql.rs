//! PostgreSQL: a cluster in the directory, a server on a socket of its own, and a `psql` for every
//! session.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::session::Session;
use super::{Running, find_program, output};
use crate::{Error, Result};

/// PostgreSQL's own defaults, but a smaller log, so that a run of some minutes has its checkpoints.
pub(super) const SETTINGS: &[(&str, &str)] = &[
    ("shared_buffers", "128MB"),
    ("full_page_writes", "on"),
    ("checkpoint_timeout", "5min"),
    ("max_wal_size", "512MB"),
    ("synchronous_commit", "on"),
    ("wal_sync_method", "fdatasync"),
    ("fsync", "on"),
];

/// Distributions keep the server's programs out of `PATH`; the newest version first.
fn program(name: &str) -> Result<PathBuf> {
    let versions = |root: &str, prefix: &str| -> Vec<(u32, PathBuf)> {
        let entries = fs::read_dir(root).into_iter().flatten().flatten();
        let version = |entry: fs::DirEntry| {
            Some((
                entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()?,
                entry.path().join("bin"),
            ))
        };
        entries.filter_map(version).collect()
    };
    let mut places = versions("/usr/lib/postgresql", "");
    places.extend(versions("/usr", "pgsql-"));
    places.sort();
    let places: Vec<PathBuf> = places.into_iter().rev().map(|(_, place)| place).collect();
    find_program(name, &places).ok_or_else(|| {
        Error::target(format!(
            "PostgreSQL's {name} is not installed, or not in PATH: install the server's package \
             (postgresql)"
        ))
    })
}

pub(super) fn version() -> Result<String> {
    let text = output(Command::new(program("postgres")?).arg("--version"))?;
    Ok(text.trim().replace("postgres (PostgreSQL)", "PostgreSQL"))
}

/// The account that the server runs as: it refuses to be root.
fn account() -> Result<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let text = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.first() == Some(&"postgres"))
            .then(|| Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?)))?
    });
    found.map(Some).ok_or_else(|| Error::target(
        "PostgreSQL refuses to run as root and there is no user 'postgres': run this as another \
         user"))
}

fn command(name: &str) -> Result<Command> {
    as_account(Command::new(program(name)?))
}

fn as_account(mut command: Command) -> Result<Command> {
    if let Some((uid, gid)) = account()? {
        command.uid(uid).gid(gid);
    }
    Ok(command)
}

/// Gives a directory to the account alone.
fn give_to_server(directory: &Path) -> Result<()> {
    let failed = |e| Error::io(directory.display(), "cannot be given to the server's account", e);
    if let Some((uid, gid)) = account()? {
        chown(directory, Some(uid), Some(gid)).map_err(failed)?;
    }
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).map_err(failed)
}

/// Makes a cluster in an empty directory.
pub(super) fn initialise(directory: &Path) -> Result<()> {
    give_to_server(directory)?;
    let mut initdb = command("initdb")?;
    output(initdb.arg("-D").arg(directory).args([
        "-A",
        "trust",
        "-U",
        "bench",
        "-E",
        "UTF8",
        "--locale=C",
        "--no-sync",
    ]))
    .map(drop)
}

/// A running server; a server that is dropped is stopped the hard way.
pub(super) struct Server {
    data: PathBuf,
    /// Where its socket and its log are: paths of sockets must be short.
    sockets: PathBuf,
    running: bool,
}

pub(super) fn start(
    directory: &Path,
    settings: &BTreeMap<String, String>,
    sessions_max: usize,
) -> Result<Server> {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let sockets = std::env::temp_dir().join(format!(
        "bedplate-bench-{}-socket-{}",
        std::process::id(),
        STARTED.fetch_add(1, Relaxed)
    ));
    fs::create_dir_all(&sockets).map_err(|e| Error::io(sockets.display(), "cannot be made", e))?;
    give_to_server(&sockets)?;
    let mut server = Server { data: directory.to_owned(), sockets, running: false };
    let given: String =
        settings.iter().map(|(name, value)| format!(" -c {name}={value}")).collect();
    let options = format!(
        "-k {} -c listen_addresses= -c max_connections={sessions_max}{given}",
        server.sockets.display()
    );
    let mut pg_ctl = command("pg_ctl")?;
    pg_ctl
        .arg("-D")
        .arg(directory)
        .args(["-w", "-t", "120", "-s", "-l"])
        .arg(server.log())
        .args(["-o", &options, "start"]);
    // The server inherits what is open: a pipe would never end.
    let status = pg_ctl
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .status();
    let status = status.map_err(|e| Error::io("pg_ctl", "cannot be run", e))?;
    if !status.success() {
        let said = fs::read_to_string(server.log()).unwrap_or_default();
        let last = said
            .lines()
            .rev()
            .find(|line| line.contains("FATAL"))
            .unwrap_or("its log says nothing");
        return Err(Error::target(format!(
            "{}: PostgreSQL does not start: {last}",
            directory.display()
        )));
    }
    server.running = true;
    Ok(server)
}

impl Server {
    fn log(&self) -> PathBuf {
        self.sockets.join("log")
    }

    fn stop_now(&mut self, how: &str) -> Result<()> {
        self.running = false;
        let mut pg_ctl = command("pg_ctl")?;
        output(pg_ctl.arg("-D").arg(&self.data).args(["-w", "-t", "120", "-s", "-m", how, "stop"]))
            .map(drop)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.running {
            // The run has failed already; its error is the one to tell.
            let _stopped = self.stop_now("immediate");
        }
        let _removed = fs::remove_dir_all(&self.sockets);
    }
}

impl Running for Server {
    fn session(&self) -> Result<Session> {
        let mut shell = Command::new("stdbuf");
        shell.arg("-oL").arg(program("psql")?).args([
            "-X",
            "-A",
            "-t",
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
            "-U",
            "bench",
            "-d",
            "postgres",
            "-h",
        ]);
        Session::open(as_account(shell)?.arg(&self.sockets), "\n\\echo bedplate-bench-done\n")
    }

    fn series(&self, rows: u64) -> String {
        format!("generate_series(1, {rows}) AS s(i)")
    }

    fn begin(&self) -> &'static str {
        "BEGIN"
    }

    fn stop(mut self: Box<Self>) -> Result<()> {
        self.stop_now("fast")
    }
}
