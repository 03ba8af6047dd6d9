//! `bedplate status [DIR…]`

use std::fmt;
use std::path::{Path, PathBuf};

use bedplate_serve::control::{Request, Serving};
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use crate::daemon::control;
use crate::daemon::status::SPLIT;
use crate::device::host::{self, HostRoom};
use crate::failure::{Exit, Result};
use crate::mount::{self, Mount, live};
use crate::render::output::Output;
use crate::render::text;

/// Tell which mounted volumes need attention; one line where none does
///
/// Ends with exit code 0 where all are whole, 1 where a group is degraded or being rebuilt or the
/// file system below an image is nearly full, 4 where a volume is broken, read-only after a
/// failure, or its daemon died.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Where volumes are mounted; every mount of this machine when none is named
    dirs: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    mounts: Vec<State>,
}

/// How one mount is.
#[derive(Serialize)]
struct State {
    mounted_at: PathBuf,
    volume: PathBuf,
    /// `whole`, `split`, `host filling`, `rebuilding`, `degraded`, `broken`, `read-only` or `dead`.
    state: &'static str,
    /// What is wrong, each in a sentence.
    problems: Vec<String>,
    #[serde(skip)]
    exit: Exit,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let mut mounts: Vec<Mount> = match &arguments.dirs[..] {
        [] => mount::ours()?,
        dirs => dirs.iter().map(|dir| of_dir(dir)).collect::<Result<_>>()?,
    };
    let mut seen = std::collections::BTreeSet::new();
    mounts.retain(|mount| seen.insert(mount.device.clone()));
    let mounts = mounts
        .into_iter()
        .filter_map(|mount| look(mount).transpose())
        .collect::<Result<Vec<State>>>()?;
    let worst = Exit::worst(mounts.iter().map(|mount| mount.exit));
    output.show(&Report { mounts })?;
    Ok(worst)
}

/// Returns the mount at or above a path, also one whose daemon died.
fn of_dir(dir: &Path) -> Result<Mount> {
    match mount::at(&mount::canonical(dir)?)? {
        Some(mount) if mount.is_ours() => Ok(mount),
        _ => live::require_mount(dir),
    }
}

/// Looks at a mount; `None` for a checkpoint beside its volume, and for one whose daemon this user
/// cannot ask.
fn look(mount: Mount) -> Result<Option<State>> {
    if bedplate_serve::fuse::is_dead(&mount.dir) {
        let problems = vec![live::stale(&mount.dir).message];
        let (mounted_at, volume) = (mount.dir, mount.source);
        let state = "dead";
        return Ok(Some(State { mounted_at, volume, state, problems, exit: Exit::Broken }));
    }
    let info = match live::info(&mount) {
        Err(failure) if live::is_unreached(&failure) => {
            if failure.kind == "not_permitted" {
                tracing::warn!("{}", failure.message);
            }
            return Ok(None);
        }
        info => info?,
    };
    let short: Vec<String> =
        host_of(&mount).iter().filter(|host| host.is_short()).map(HostRoom::warning).collect();
    let mut state = health(mount, &info)?;
    if let Some(state) = state.as_mut().filter(|_| !short.is_empty()) {
        if state.exit == Exit::Done {
            (state.state, state.exit) = ("host filling", Exit::Failed);
        }
        state.problems.extend(short);
    }
    Ok(state)
}

/// Returns how a mount is whose file system told `info` of itself, for a command that tells more;
/// `None` where this user cannot ask.
pub fn health_of(mount: &Mount, info: &Value) -> Result<Option<(&'static str, Exit)>> {
    Ok(health(mount.clone(), info)?.map(|state| (state.state, state.exit)))
}

/// Returns the file systems below the image files of a mount, as far as this user can ask which
/// they are.
pub fn host_of(mount: &Mount) -> Vec<HostRoom> {
    let members = control::status(mount).map(|group| group.members).unwrap_or_default();
    let paths = members.iter().map(|member| Path::new(&member.path));
    host::rooms_in_time(paths.chain([mount.source.as_path()]))
}

fn health(mount: Mount, info: &Value) -> Result<Option<State>> {
    let state = |mount: Mount, state, exit, problems| {
        Ok(Some(State { mounted_at: mount.dir, volume: mount.source, state, problems, exit }))
    };
    if let Some(reason) = info.get("failed").and_then(Value::as_str) {
        let problem = format!("read-only since a failure: {reason}");
        return state(mount, "read-only", Exit::Broken, vec![problem]);
    }
    let serving: Serving = match live::ask(&mount, &Request::Serving) {
        Err(failure) if live::is_unreached(&failure) => {
            tracing::warn!("{}", failure.message);
            return Ok(None);
        }
        serving => serving?,
    };
    if serving.group.is_none() {
        return state(mount, "whole", Exit::Done, Vec::new());
    }
    let group = control::status(&mount)?;
    let (health, exit) = (group.health(), group.exit());
    let mut problems: Vec<String> =
        if exit == Exit::Done { Vec::new() } else { group.notes.clone() };
    problems.extend(
        group
            .members
            .iter()
            .filter(|member| member.has_data && !matches!(&*member.state, "active" | SPLIT))
            .map(|member| format!("{} is {}", member.path, member.state)),
    );
    state(mount, health, exit, problems)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ill: Vec<&State> =
            self.mounts.iter().filter(|mount| mount.exit != Exit::Done).collect();
        if ill.is_empty() {
            return write!(
                f,
                "{}, all whole",
                text::count(self.mounts.len() as u64, "mounted volume")
            );
        }
        for (number, mount) in ill.into_iter().enumerate() {
            let line_end = if number == 0 { "" } else { "\n" };
            write!(
                f,
                "{line_end}{} ({}): {}",
                text::name(&mount.mounted_at),
                text::name(&mount.volume),
                mount.state
            )?;
            mount
                .problems
                .iter()
                .try_for_each(|problem| write!(f, "\n  {}", text::one_line(problem)))?;
        }
        Ok(())
    }
}
