//! `bedplate checkpoint create|list|show|delete|keep|rollback|clone|diff`

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use bedplate::{Timestamp, format_size};
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;
use serve::control::Request;

use super::{checkpoint_clone, checkpoint_diff};
use crate::device::Access;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::reach::{Reach, Target};
use crate::text;

/// Make, list, look at, delete, compare, clone and roll back to checkpoints: images of one moment
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
    /// Make a writable copy that shares its blocks with what it is of, and costs space only for what is written
    Clone {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        clone: checkpoint_clone::CloneArguments,
    },
    /// Tell what differs between two checkpoints, or a checkpoint and the present: names, or the blocks of one file
    Diff {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        diff: checkpoint_diff::DiffArguments,
    },
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
        Action::Diff { target, diff } => diff.run(&target.reach()?, output),
        Action::Clone { target, clone } => clone.run(&target.reach()?, output),
    }
}

fn bytes(name: &OsString) -> Vec<u8> {
    name.clone().into_vec()
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
