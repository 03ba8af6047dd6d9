//! `bedplate checkpoint create|list|show|delete|keep|rollback`

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use bedplate::{Timestamp, format_size};
use clap::{Args, Subcommand};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serve::control::{self, Answer, Request};

use crate::device::Access;
use crate::failure::{Failure, Result};
use crate::live;
use crate::mounts::{self, Mount};
use crate::output::Output;
use crate::session::{Devices, Volume};
use crate::text;

/// Make, list, look at, delete and roll back to checkpoints: images of one moment
///
/// On a mount a checkpoint is read in the directory '.checkpoints/NAME' of its root, which no listing shows; alone it is mounted with
/// 'bedplate mount VOLUME DIR -o checkpoint=NAME'.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a checkpoint of everything, or of named files and directories: one moment for all
    Create {
        #[command(flatten)]
        target: Target,
        /// Its name: what a file may be called
        name: OsString,
        /// Files and directories on the mount, or paths from the volume's root; none: everything
        paths: Vec<PathBuf>,
        /// Nothing but 'delete' removes it
        #[arg(long)]
        keep: bool,
    },
    /// List the checkpoints, oldest first
    List {
        #[command(flatten)]
        target: Target,
    },
    /// Show one, and what deleting it would free
    Show {
        #[command(flatten)]
        target: Target,
        /// The checkpoint
        name: OsString,
    },
    /// Delete checkpoints; others and the files themselves lose nothing
    Delete {
        #[command(flatten)]
        target: Target,
        /// The checkpoints
        #[arg(required = true)]
        names: Vec<OsString>,
    },
    /// Protect a checkpoint from whatever removes old ones, or no longer
    Keep {
        #[command(flatten)]
        target: Target,
        /// The checkpoint
        name: OsString,
        /// No longer
        #[arg(long)]
        no: bool,
    },
    /// Put everything, a directory or a file back to what it was; copies no data, and can be undone
    Rollback {
        #[command(flatten)]
        target: Target,
        /// The checkpoint
        name: OsString,
        /// The file or directory, on the mount or from the volume's root; without it: everything
        path: Option<PathBuf>,
        /// Also what is open: programs go on with the content that comes back
        #[arg(long)]
        force: bool,
    },
}

/// Whose checkpoints.
#[derive(Debug, Clone, Args)]
struct Target {
    /// Where the volume is mounted, or the volume itself
    volume: PathBuf,
    #[command(flatten)]
    devices: Devices,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    match &arguments.action {
        Action::Create { target, name, paths, keep } => {
            let reach = target.reach()?;
            let paths = paths.iter().map(|path| reach.inside(path)).collect();
            let request = Request::Create { name: bytes(name), paths, keep: *keep, automatic: false };
            output.show(&reach.ask::<Checkpoint>(&request, Access::ReadWrite, output)?)
        }
        Action::List { target } => output.show(&list(&target.reach()?, output)?),
        Action::Show { target, name } => show(&target.reach()?, name, output),
        Action::Delete { target, names } => {
            let reach = target.reach()?;
            for name in names {
                reach.ask::<Value>(&Request::Delete { name: bytes(name) }, Access::ReadWrite, output)?;
            }
            output.show(&Deleted { deleted: names.iter().map(|name| name.to_string_lossy().into_owned()).collect() })
        }
        Action::Keep { target, name, no } => {
            let request = Request::Keep { name: bytes(name), keep: !no };
            output.show(&target.reach()?.ask::<Checkpoint>(&request, Access::ReadWrite, output)?)
        }
        Action::Rollback { target, name, path, force } => {
            let reach = target.reach()?;
            let path = path.as_ref().map(|path| reach.inside(path));
            let request = Request::Rollback { name: bytes(name), path, force: *force };
            let done = reach.ask::<RolledBack>(&request, Access::ReadWrite, output).map_err(|failure| reach.with_holders(failure))?;
            output.show(&done)
        }
    }
}

fn bytes(name: &OsString) -> Vec<u8> {
    name.clone().into_vec()
}

/// How a volume's checkpoints are reached.
enum Reach {
    /// Through the daemon that serves it.
    Mounted(Mount),
    /// By opening it.
    Alone(Volume),
}

impl Target {
    fn reach(&self) -> Result<Reach> {
        let mount = match mounts::of_volume(&self.volume)? {
            Some(mount) => Some(mount),
            None if self.volume.is_dir() || live::is_stale(&self.volume) => Some(live::require_mount(&self.volume)?),
            None => None,
        };
        Ok(mount.map_or_else(|| Reach::Alone(Volume::new(&self.volume, &self.devices)), Reach::Mounted))
    }
}

impl Reach {
    /// Returns a path from the volume's root.
    fn inside(&self, path: &Path) -> PathBuf {
        let Self::Mounted(mount) = self else { return path.to_owned() };
        let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let real = path.canonicalize().unwrap_or(whole);
        real.strip_prefix(&mount.dir).map_or_else(|_| path.to_owned(), |inside| Path::new("/").join(inside))
    }

    fn ask<T: DeserializeOwned>(&self, request: &Request, access: Access, output: &Output) -> Result<T> {
        let answer = match self {
            Self::Mounted(mount) => ask_daemon(mount, request)?,
            Self::Alone(volume) => volume.with(access, output, |fs| Ok(Answer::of(control::answer(fs, request).map(|(value, _)| value))))?,
        };
        let odd = |e| Failure::new("io", format!("the daemon's answer makes no sense ({e}); is it of another version?"));
        match answer {
            Answer::Done(value) => serde_json::from_value(value).map_err(odd),
            Answer::Failed(kind, message) => Err(Failure::new(&snake(&kind), message)),
        }
    }

    /// Adds who has files of the mount open.
    fn with_holders(&self, mut failure: Failure) -> Failure {
        if let Self::Mounted(mount) = self
            && failure.kind == "busy"
        {
            let holders = holders(&mount.dir);
            if !holders.is_empty() {
                failure.message = format!("{} (files of the mount are open in {})", failure.message, holders.join(", "));
            }
        }
        failure
    }
}

/// Sends a request to the daemon of a mount, after the kernel handed over what it holds of cached writes.
fn ask_daemon(mount: &Mount, request: &Request) -> Result<Answer> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    if matches!(request, Request::Create { .. } | Request::Rollback { .. }) {
        let dir = std::fs::File::open(&mount.dir).map_err(|e| Failure::system("open", &mount.dir, &e))?;
        rustix::fs::syncfs(&dir).map_err(|e| Failure::system("sync", &mount.dir, &e.into()))?;
    }
    let name = format!("{}{}.{}", live::REQUEST, std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let text = serde_json::to_string(request).map_err(|e| Failure::new("io", format!("the request cannot be written as JSON: {e}")))?;
    live::set(&mount.dir, &name, &text)?;
    let answer = live::get(&mount.dir, &name)?.ok_or_else(|| Failure::new("io", "the daemon lost the request: try again"))?;
    serde_json::from_str(&answer).map_err(|e| Failure::new("io", format!("the daemon's answer is no JSON ({e}); is it of another version?")))
}

/// Returns the kind of a failure as commands tell it: `NotFound` becomes `not_found`.
fn snake(kind: &str) -> String {
    let mut text = String::with_capacity(kind.len() + 4);
    for letter in kind.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

/// Returns the processes that have files below a directory open, as far as this user may see.
fn holders(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let Ok(processes) = std::fs::read_dir("/proc") else { return found };
    for process in processes.flatten().filter(|entry| entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit())) {
        let Ok(files) = std::fs::read_dir(process.path().join("fd")) else { continue };
        if files.flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(|target| target.starts_with(dir))) {
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            if name.trim() != "bedplate" {
                found.push(format!("{} ({})", name.trim(), process.file_name().to_string_lossy()));
            }
        }
    }
    found
}

fn list(reach: &Reach, output: &Output) -> Result<Listing> {
    let mut checkpoints: Vec<Checkpoint> = Vec::new();
    loop {
        let after = checkpoints.last().map_or(0, |last| last.epoch);
        let more: Vec<Checkpoint> = reach.ask(&Request::List { after }, Access::ReadOnly, output)?;
        if more.is_empty() {
            return Ok(Listing { checkpoints });
        }
        checkpoints.extend(more);
    }
}

fn show(reach: &Reach, name: &OsString, output: &Output) -> Result<()> {
    let space: Space = reach.ask(&Request::Space { name: bytes(name) }, Access::ReadOnly, output)?;
    let shown = name.to_string_lossy();
    let missing = || Failure::new("not_found", format!("there is no checkpoint '{shown}'"));
    let checkpoint = list(reach, output)?.checkpoints.into_iter().find(|checkpoint| checkpoint.name == shown).ok_or_else(missing)?;
    output.show(&Shown { checkpoint, space })
}

#[derive(Debug, Serialize, serde::Deserialize)]
struct Checkpoint {
    name: String,
    epoch: u32,
    /// Nanoseconds since 1970.
    created: i64,
    automatic: bool,
    kept: bool,
    paths: Vec<String>,
}

#[derive(Debug, Serialize, serde::Deserialize)]
struct Space {
    rows: u64,
    alone_bytes: u64,
}

#[derive(Serialize)]
struct Listing {
    checkpoints: Vec<Checkpoint>,
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    checkpoint: Checkpoint,
    #[serde(flatten)]
    space: Space,
}

#[derive(Serialize)]
struct Deleted {
    deleted: Vec<String>,
}

#[derive(Serialize, serde::Deserialize)]
struct RolledBack {
    undo: String,
    rows: u64,
}

impl fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = match (self.kept, self.automatic) {
            (true, true) => " (kept, automatic)",
            (true, false) => " (kept)",
            (false, true) => " (automatic)",
            (false, false) => "",
        };
        let of = if self.paths.is_empty() { "everything".to_owned() } else { self.paths.join(", ") };
        write!(f, "{}: {}, of {of}{flags}", self.name.escape_debug(), text::time(Timestamp(self.created)))
    }
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.checkpoints.is_empty() {
            return f.write_str("no checkpoints");
        }
        self.checkpoints.iter().try_for_each(|checkpoint| writeln!(f, "{checkpoint}"))
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Space { rows, alone_bytes } = self.space;
        write!(f, "{}\n{rows} rows of the metadata changed since; deleting it frees {}", self.checkpoint, format_size(alone_bytes))
    }
}

impl fmt::Display for Deleted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "deleted {}", self.deleted.join(", "))
    }
}

impl fmt::Display for RolledBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rolled back, {} rows of the metadata changed; to undo it, roll back to {}", self.rows, self.undo)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_as_everywhere() {
        assert_eq!(snake("NotFound"), "not_found");
        assert_eq!(snake("Busy"), "busy");
    }
}
