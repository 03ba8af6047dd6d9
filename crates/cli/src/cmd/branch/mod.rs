//! `bedplate branch create|list|reset|drop`
//!
//! ```text
//!   create   CHECKPOINT if the server runs ─► clone of the directory and its table spaces
//!                     ─► made its own: port, no archive, no standby ─► started, answering
//!   reset    stopped ─► put aside ─► created again ─► what was put aside is removed
//!   drop     stopped ─► removed
//! ```
//!
//! A file in the branch says what it is a branch of, and whether it was made to the end; nothing
//! else is remembered. What a reset that was cut short left is settled by the next one ([`reset`]).

mod postgres;
mod record;
mod reset;

use std::cell::Cell;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use bedplate::format_time;
use clap::{Args, Subcommand};
use serde::Serialize;

use super::checkpoint::clone::clone_present;
use crate::failure::{Failure, Result};
use crate::mount::{self, live};
use crate::render::output::Output;
use crate::render::text;
use postgres::Cluster;
use record::{Kind, Record};

/// Make, list, renew and remove writable copies of a database directory, for tests and reviews
///
/// A branch shares the blocks of what it is a branch of until one of them writes, so it takes no
/// time to copy and hardly any space. Of a PostgreSQL cluster the branch is a server of its own,
/// started and answering: on another port, without archiving, not a standby, with table spaces of
/// its own. Any other directory, of SQLite files for instance, is branched as it is at one moment.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a branch of a directory on a mount; of a PostgreSQL cluster it is started
    Create {
        /// The directory: a PostgreSQL cluster, running or not, or any other
        source: PathBuf,
        /// The branch's path on the same mount; nothing is there yet
        branch: PathBuf,
        /// The port of the branch's server; none given: the next that is free
        #[arg(long)]
        port: Option<u16>,
        /// Do not start the server
        #[arg(long)]
        no_start: bool,
    },
    /// List the branches below a directory
    List {
        /// The directory
        dir: PathBuf,
    },
    /// Make a branch again what its source is now; what was written to it is gone
    Reset {
        /// The branch
        branch: PathBuf,
    },
    /// Stop and remove a branch
    Drop {
        /// The branch
        branch: PathBuf,
    },
}

/// A branch as it stands.
#[derive(Debug, Serialize)]
struct Branch {
    #[serde(serialize_with = "text::readable")]
    path: PathBuf,
    #[serde(flatten)]
    record: Record,
    running: bool,
    /// What could not be done, and did no harm.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
struct Branches {
    branches: Vec<Branch>,
    /// Why directories that call themselves branches cannot be told of, and which resets were cut
    /// short.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Dropped {
    #[serde(serialize_with = "text::readable")]
    dropped: PathBuf,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    match &arguments.action {
        Action::Create { source, branch, port, no_start } => {
            let (source, branch) = (mount::canonical(source)?, absolute(branch)?);
            if reset::aside(&branch).exists() {
                return Err(reset::was_cut(&branch));
            }
            output.show(&create(&source, &branch, *port, !no_start, output)?)
        }
        Action::List { dir } => output.show(&below(&mount::canonical(dir)?)?),
        Action::Reset { branch } => {
            let branch = reset::named(branch)?;
            let _alone = reset::alone(&branch)?;
            reset::settle(&branch)?;
            output.show(&reset::reset(&branch, output)?)
        }
        Action::Drop { branch } => {
            let branch = reset::named(branch)?;
            let _alone = reset::alone(&branch)?;
            reset::settle(&branch)?;
            let record = Record::of(&branch)?;
            stop(&branch)?;
            remove(&branch, &record)?;
            output.show(&Dropped { dropped: branch })
        }
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let name = path
        .file_name()
        .ok_or_else(|| Failure::usage(format!("{} has no name of its own", path.display())))?;
    Ok(mount::canonical(parent.unwrap_or(Path::new(".")))?.join(name))
}

fn create(
    source: &Path,
    branch: &Path,
    port: Option<u16>,
    starts: bool,
    output: &Output,
) -> Result<Branch> {
    if branch.starts_with(source) {
        return Err(Failure::usage(format!(
            "{} lies in {}: a branch stands beside what it is a branch of",
            branch.display(),
            source.display()
        )));
    }
    let mount = live::require_mount(source)?;
    let cluster = Cluster::at(source)?;
    let (mut notes, mut record) = (Vec::new(), Record::new(source, Kind::Files, None));
    if let Some(cluster) = &cluster {
        postgres::require_quotable(branch)?;
        record.kind = Kind::Postgresql;
        record.port = Some(postgres::free_port(port)?);
        if let Some(Err(why)) = cluster.checkpoint() {
            notes.push(format!(
                "the server of {} made no CHECKPOINT ({why}), so the branch recovers longer",
                source.display()
            ));
        }
    }
    // Under the branch's name there is never a copy that does not say that it is none yet.
    let found = Cell::new(Vec::new());
    let dress = |clone: &Path| {
        let mut parts = postgres::links(clone);
        parts.retain(|path| is_space(branch, path));
        debug_assert!(parts.iter().all(|part| part.is_dir()), "each was cloned: {parts:?}");
        found.set(parts.clone());
        Record { incomplete: true, parts, ..record.clone() }.write(clone)
    };
    clone_present(&mount, source, branch, &dress, output)?;
    record.parts = found.take();
    let own = || {
        match (&cluster, record.port) {
            (Some(cluster), Some(port)) => cluster.make_own(branch, port)?,
            _ => remove_shared_memory(branch)?,
        }
        record.write(branch)?;
        match record.port {
            Some(port) if starts => postgres::start(branch, port),
            _ => Ok(()),
        }
    };
    if let Err(mut failure) = own() {
        // Nothing of it is left.
        if let Err(left) = stop(branch).and_then(|()| remove(branch, &record)) {
            failure.message = format!("{}; {}", failure.message, left.message);
        }
        return Err(failure);
    }
    let running = postgres::is_running(branch);
    Ok(Branch { path: branch.to_owned(), record, running, notes })
}

/// SQLite's index of its write-ahead log belongs to the processes that have the original open.
fn remove_shared_memory(branch: &Path) -> Result<()> {
    for entry in entries(branch)? {
        if entry.as_os_str().as_encoded_bytes().ends_with(b"-shm") {
            std::fs::remove_file(&entry).map_err(|e| Failure::system("remove", &entry, &e))?;
        }
    }
    Ok(())
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let failed = |e: std::io::Error| Failure::system("list", dir, &e);
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        all.push(entry.map_err(failed)?.path());
    }
    all.sort_unstable();
    Ok(all)
}

/// Puts a file into a branch, in the place of what had its name, wholly or not at all. The branch
/// belongs to the user of its server, and that user may have put a link there.
fn put(branch: &Path, name: &str, content: &[u8]) -> Result<()> {
    let (path, new) = (branch.join(name), branch.join(format!("{name}.new")));
    let written = || -> std::io::Result<()> {
        match std::fs::remove_file(&new) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(content)?;
        if rustix::process::geteuid().is_root() {
            let owner = branch.metadata()?;
            fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
        }
        file.sync_all()?;
        std::fs::rename(&new, &path)
    };
    written().map_err(|e| Failure::system("write", &path, &e))
}

/// Reads a file of a branch that is no link, and not large; `None`: there is none.
fn get(branch: &Path, name: &str) -> Result<Option<String>> {
    const BYTES_MAX: u64 = 1 << 20;
    let path = branch.join(name);
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = flags.bits().cast_signed();
    let text = OpenOptions::new().read(true).custom_flags(flags).open(&path).and_then(|file| {
        let mut text = String::new();
        file.take(BYTES_MAX).read_to_string(&mut text).map(|_| text)
    });
    match text {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some).map_err(|e| Failure::system("read", &path, &e)),
    }
}

/// How deep below a directory branches are looked for.
const DEPTH_MAX: usize = 4;

/// Finds the branches below a directory. Nothing is looked for within a branch or a cluster.
fn below(dir: &Path) -> Result<Branches> {
    let (mut found, mut todo) = (Branches::default(), vec![(dir.to_owned(), 0)]);
    while let Some((at, depth)) = todo.pop() {
        if let Some(branch) = reset::put_aside(&at) {
            // A table space that was put aside is told of with its branch.
            if Record::path(&at).symlink_metadata().is_ok() {
                found.unreadable.push(reset::was_cut(&branch).message);
            }
        } else if Record::path(&at).symlink_metadata().is_ok() {
            match Record::of(&at) {
                Ok(record) => {
                    let only_parts = !reset::aside(&at).exists();
                    if only_parts && reset::has_parts_aside(&at, &record) {
                        found.unreadable.push(reset::was_cut(&at).message);
                    }
                    let running = postgres::is_running(&at);
                    found.branches.push(Branch { path: at, record, running, notes: Vec::new() });
                }
                Err(failure) => found.unreadable.push(failure.message),
            }
        } else if depth < DEPTH_MAX && !at.join("PG_VERSION").exists() {
            let within = entries(&at)?
                .into_iter()
                .filter(|path| path.symlink_metadata().is_ok_and(|meta| meta.is_dir()));
            todo.extend(within.map(|path| (path, depth + 1)));
        }
    }
    found.branches.sort_by(|one, other| one.path.cmp(&other.path));
    found.unreadable.sort_unstable();
    Ok(found)
}

fn stop(branch: &Path) -> Result<()> {
    if postgres::is_running(branch) { postgres::stop(branch) } else { Ok(()) }
}

/// Whether a path can be a table space of a branch: it stands beside it, under its name and a
/// number.
fn is_space(branch: &Path, path: &Path) -> bool {
    let name = branch.file_name().unwrap_or_default().as_encoded_bytes();
    let number = path
        .file_name()
        .and_then(|part| part.as_encoded_bytes().strip_prefix(name)?.strip_prefix(b"."));
    let is_number = |number: &[u8]| {
        number == b"pg_wal" || (!number.is_empty() && number.iter().all(u8::is_ascii_digit))
    };
    path.parent() == branch.parent() && number.is_some_and(is_number)
}

/// The parts of a branch that are there: its table spaces, and itself. The user of its server may
/// have written anything into its record.
fn parts(branch: &Path, record: &Record) -> Vec<PathBuf> {
    let parts = record.parts.iter().filter(|part| is_space(branch, part) && part.is_dir());
    parts.cloned().chain([branch.to_owned()]).collect()
}

/// The branch itself goes last, and its record says until then what the rest is.
fn remove(branch: &Path, record: &Record) -> Result<()> {
    for part in parts(branch, record) {
        std::fs::remove_dir_all(&part).map_err(|e| Failure::system("remove", &part, &e))?;
    }
    Ok(())
}

impl fmt::Display for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Record { source, kind, port, made, .. } = &self.record;
        write!(
            f,
            "{}: branch of {}, made {}",
            text::name(&self.path),
            text::name(source),
            format_time(*made)
        )?;
        match (kind, port) {
            (Kind::Postgresql, Some(port)) if self.running => {
                write!(f, "; PostgreSQL answers on port {port}")?;
            }
            (Kind::Postgresql, Some(port)) => {
                write!(f, "; PostgreSQL for port {port} is not running")?;
            }
            _ => {}
        }
        if self.record.incomplete {
            write!(f, "; it was cut short while it was made: reset it, or drop it")?;
        }
        self.notes.iter().try_for_each(|note| write!(f, "\nnote: {note}"))
    }
}

impl fmt::Display for Branches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.branches.is_empty() && self.unreadable.is_empty() {
            return write!(f, "no branches");
        }
        let lines: Vec<String> = self
            .branches
            .iter()
            .map(ToString::to_string)
            .chain(self.unreadable.iter().cloned())
            .collect();
        write!(f, "{}", lines.join("\n"))
    }
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: dropped", text::name(&self.dropped))
    }
}
