//! `bedplate checkpoint
//! create|list|show|delete|keep|rollback|clone|diff|mount|schedule|run-schedule|policy`

pub mod clone;
pub mod database;
pub mod diff;
mod links;
mod schedule;
pub mod show;

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use bedplate_serve::control::Request;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;

use crate::device::Access;
use crate::failure::{Failure, Result};
use crate::mount::live;
use crate::reach::{Reach, Target};
use crate::render::output::Output;
use crate::render::text;
use database::Around;
use show::Checkpoint;

/// Make, list, look at, delete, compare, clone and roll back to checkpoints: images of one moment
///
/// On a mount a checkpoint is read in the directory '.checkpoints/NAME' of its root, which no
/// listing shows, or mounted on a directory of its own.
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
        #[command(flatten)]
        bracket: Around,
    },
    /// List the checkpoints, oldest first
    List {
        #[command(flatten)]
        target: Target,
        /// Tell also what each holds alone, and what all hold together
        #[arg(long)]
        space: bool,
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
        /// Only tell what deleting them together would free
        #[arg(long)]
        would_free: bool,
    },
    /// Mount one on a directory of its own, read-only; where the volume is mounted, its daemon
    /// serves it too
    Mount {
        #[command(flatten)]
        target: Target,
        /// The checkpoint
        name: OsString,
        /// An existing, empty directory
        dir: PathBuf,
    },
    /// Make checkpoints at regular times, and delete the oldest of them; kept in the volume,
    /// carried out by the daemon of its mount
    #[command(subcommand)]
    Schedule(schedule::Action),
    /// Make what is due by schedules, and delete what they keep no longer: for volumes that are not
    /// mounted all the time
    RunSchedule {
        #[command(flatten)]
        target: Target,
    },
    /// Show or set what a full volume does with checkpoints: 'refuse' writes, or 'delete-oldest',
    /// automatic ones only
    Policy {
        #[command(flatten)]
        target: Target,
        /// refuse or delete-oldest
        policy: Option<String>,
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
    /// Make a writable copy that shares its blocks with what it is of, and costs space only for
    /// what is written
    Clone {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        clone: clone::CloneArguments,
    },
    /// Tell what differs between two checkpoints, or a checkpoint and the present: names, or the
    /// blocks of one file
    Diff {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        diff: diff::DiffArguments,
    },
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    match &arguments.action {
        Action::Create { target, name, paths, keep, bracket } => {
            // A wrong address is told before anything is asked.
            let bracketed = bracket.is_given()?;
            let reach = target.reach()?;
            let paths = paths.iter().map(|path| in_bytes(reach.inside(path))).collect();
            if bracketed {
                // Programs that use the database are not made to wait for nothing.
                show::refuse_taken(&reach, name, output)?;
            }
            let request =
                Request::Create { name: bytes(name), paths, keep: *keep, automatic: false };
            let create = || {
                reach
                    .ask::<Checkpoint>(&request, Access::ReadWrite, output)
                    .map_err(|failure| reach.with_places(failure))
            };
            output.show(&bracket.carry_out(create)?)
        }
        Action::List { target, space } => show::list(&target.reach()?, *space, output),
        Action::Show { target, name } => show::one(&target.reach()?, name, output),
        Action::Delete { target, names, would_free: true } => {
            show::would_free(&target.reach()?, names, output)
        }
        Action::Delete { target, names, would_free: false } => {
            delete(&target.reach()?, names, output)
        }
        Action::Mount { target, name, dir } => mount(target, name, dir, output),
        Action::Schedule(action) => schedule::run(action, output),
        Action::RunSchedule { target } => schedule::run_due(target, output),
        Action::Policy { target, policy: wanted } => policy(target, wanted.as_ref(), output),
        Action::Keep { target, name, no } => {
            let request = Request::Keep { name: bytes(name), keep: !no };
            output.show(&target.reach()?.ask::<Checkpoint>(&request, Access::ReadWrite, output)?)
        }
        Action::Rollback { target, name, path, force } => {
            let reach = target.reach()?;
            let inside = path.as_ref().map(|path| reach.inside(path));
            let request = Request::Rollback {
                name: bytes(name),
                path: inside.clone().map(in_bytes),
                force: *force,
            };
            let explained =
                |failure| reach.with_places(reach.with_holders(failure, inside.as_deref()));
            let done =
                reach.ask::<RolledBack>(&request, Access::ReadWrite, output).map_err(explained)?;
            let path = path.as_deref().filter(|_| done.existed);
            output.show(&RolledBack {
                undo_command: Some(undo_command(target, &done.undo, path)),
                ..done
            })
        }
        Action::Diff { target, diff } => diff.run(&target.reach()?, output),
        Action::Clone { target, clone } => clone.run(&target.reach()?, output),
    }
}

fn bytes(name: &OsString) -> Vec<u8> {
    name.clone().into_vec()
}

fn in_bytes(path: PathBuf) -> Vec<u8> {
    path.into_os_string().into_vec()
}

/// Returns what undoes a rollback; of a path that was not there before, only a rollback of
/// everything does.
fn undo_command(target: &Target, undo: &str, path: Option<&Path>) -> String {
    let words = [target.named(), Path::new(undo)].into_iter().chain(path);
    format!(
        "bedplate checkpoint rollback {}",
        words.map(text::quoted).collect::<Vec<_>>().join(" ")
    )
}

#[derive(Serialize)]
struct Deleted {
    deleted: Vec<String>,
}

#[derive(Serialize, serde::Deserialize)]
struct RolledBack {
    undo: String,
    /// What a person types to undo it.
    #[serde(default)]
    undo_command: Option<String>,
    existed: bool,
    rows: u64,
}

#[derive(Serialize)]
struct PolicyShown {
    policy: String,
}

#[derive(Serialize, serde::Deserialize)]
struct Mounted {
    mounted: PathBuf,
}

/// Shows the policy of a full volume, or sets it.
fn policy(target: &Target, policy: Option<&String>, output: &Output) -> Result<()> {
    let reach = target.reach()?;
    if let Some(policy) = policy {
        reach.ask::<Value>(
            &Request::SetPolicy { policy: policy.clone() },
            Access::ReadWrite,
            output,
        )?;
    }
    let told = match &reach {
        Reach::Mounted(mount) => live::info(mount)?,
        Reach::Alone(volume) => volume.with(Access::ReadOnly, output, |fs| {
            Ok(serde_json::to_value(fs.info()).unwrap_or_default())
        })?,
    };
    let policy =
        told.pointer("/checkpoints/policy").and_then(Value::as_str).unwrap_or("-").to_owned();
    output.show(&PolicyShown { policy })
}

/// Mounts a checkpoint: beside the volume's mount by its daemon, or alone where the volume is not
/// mounted.
fn mount(target: &Target, name: &OsString, dir: &Path, output: &Output) -> Result<()> {
    let dir = std::path::absolute(dir).map_err(|error| Failure::system("find", dir, &error))?;
    match target.reach()? {
        reach @ Reach::Mounted(_) => output.show(&reach.ask::<Mounted>(
            &Request::Mount { name: bytes(name), dir },
            Access::ReadOnly,
            output,
        )?),
        Reach::Alone(volume) => {
            crate::cmd::mount::start_checkpoint(&volume, name, &dir)?;
            output.show(&Mounted { mounted: dir })
        }
    }
}

fn delete(reach: &Reach, names: &[OsString], output: &Output) -> Result<()> {
    // One that is not there must not be found out when others are gone.
    let checkpoints = show::all(reach, output)?;
    names.iter().try_for_each(|name| show::find(&checkpoints, name).map(drop))?;
    for name in names {
        reach.ask::<Value>(&Request::Delete { name: bytes(name) }, Access::ReadWrite, output)?;
    }
    output.show(&Deleted {
        deleted: names
            .iter()
            .map(|name| bedplate::readable_name(name.as_encoded_bytes()))
            .collect(),
    })
}

impl fmt::Display for Deleted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "deleted {}", text::one_line(&self.deleted.join(", ")))
    }
}

impl fmt::Display for RolledBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let undo = self.undo_command.as_ref().unwrap_or(&self.undo);
        write!(
            f,
            "rolled back, {} rows of the metadata changed; to undo it: {}",
            self.rows,
            text::one_line(undo)
        )
    }
}

impl fmt::Display for PolicyShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let means = if self.policy == "delete-oldest" {
            "a full volume deletes the oldest automatic checkpoints that are not kept"
        } else {
            "on a full volume writes fail, and every checkpoint stays"
        };
        write!(f, "{}: {means}", self.policy)
    }
}

impl fmt::Display for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mounted on {}, read-only; 'bedplate unmount' ends it", text::name(&self.mounted))
    }
}
