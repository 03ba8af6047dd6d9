//! Requests to a volume, mounted or not: to the daemon that serves it, or carried out here.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use bedplate::FileSystem;
use bedplate_serve::control::{self, Answer, Request};
use clap::Args;
use serde::de::DeserializeOwned;

use crate::device::{self, Access};
use crate::failure::{Failure, Result};
use crate::mount::{Mount, live};
use crate::render::output::Output;
use crate::session::{Devices, Volume};

/// Whom to ask.
#[derive(Debug, Clone, Args)]
pub struct Target {
    /// Where the volume is mounted, or the volume itself
    volume: PathBuf,
    #[command(flatten)]
    devices: Devices,
}

/// How a volume is reached.
pub enum Reach {
    /// Through the daemon that serves it.
    Mounted(Mount),
    /// By opening it.
    Alone(Volume),
}

impl Target {
    /// Returns what the user named.
    pub fn named(&self) -> &Path {
        &self.volume
    }

    /// Finds out whether it is mounted.
    pub fn reach(&self) -> Result<Reach> {
        let mount = match device::of_volume(&self.volume)? {
            Some(mount) => Some(mount),
            None if self.volume.is_dir() || bedplate_serve::fuse::is_dead(&self.volume) => {
                Some(live::require_mount(&self.volume)?)
            }
            None => None,
        };
        Ok(mount
            .map_or_else(|| Reach::Alone(Volume::new(&self.volume, &self.devices)), Reach::Mounted))
    }
}

impl Reach {
    /// Returns whether a daemon serves it.
    pub fn is_mounted(&self) -> bool {
        matches!(self, Self::Mounted(_))
    }

    /// Returns a path from the volume's root.
    pub fn inside(&self, path: &Path) -> PathBuf {
        let Self::Mounted(mount) = self else { return path.to_owned() };
        let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let real = path.canonicalize().unwrap_or(whole);
        real.strip_prefix(&mount.dir)
            .map_or_else(|_| path.to_owned(), |inside| Path::new("/").join(inside))
    }

    /// As [`inside`](Self::inside), of a path that does not exist yet.
    pub fn inside_new(&self, path: &Path) -> PathBuf {
        match (path.parent().filter(|parent| !parent.as_os_str().is_empty()), path.file_name()) {
            (Some(parent), Some(name)) => self.inside(parent).join(name),
            _ => self.inside(path),
        }
    }

    /// Asks the daemon that serves the volume, or the volume itself.
    pub fn ask<T: DeserializeOwned>(
        &self,
        request: &Request,
        access: Access,
        output: &Output,
    ) -> Result<T> {
        match self {
            Self::Mounted(mount) => ask_mount(mount, request),
            Self::Alone(volume) => volume.with(access, output, |fs| ask_here(fs, request)),
        }
    }

    /// Adds which processes have files open, of all the mount or below a path from the volume's
    /// root.
    pub fn with_holders(&self, mut failure: Failure, inside: Option<&Path>) -> Failure {
        if let Self::Mounted(mount) = self
            && failure.kind == "busy"
        {
            let inside =
                inside.map_or(Path::new(""), |path| path.strip_prefix("/").unwrap_or(path));
            let holders = holders(&mount.dir.join(inside));
            if !holders.is_empty() {
                failure.message = format!("{} (open in {})", failure.message, holders.join(", "));
            }
        }
        failure
    }

    /// Says how paths are taken, where one was not found.
    pub fn with_places(&self, mut failure: Failure) -> Failure {
        if let Self::Mounted(mount) = self
            && failure.kind == "not_found"
            && failure.message.contains("does not exist")
        {
            let dir = mount.dir.display();
            failure.message = format!(
                "{}; paths are those below {dir}, or from the root of the volume",
                failure.message
            );
        }
        failure
    }
}

/// Asks the daemon of a mount.
pub fn ask_mount<T: DeserializeOwned>(mount: &Mount, request: &Request) -> Result<T> {
    understood(ask_daemon(mount, request)?)
}

/// Carries a request out on a volume that this process has open.
pub fn ask_here<T: DeserializeOwned>(fs: &FileSystem, request: &Request) -> Result<T> {
    understood(Answer::of(control::answer(fs, request).map(|(value, _)| value)))
}

fn understood<T: DeserializeOwned>(answer: Answer) -> Result<T> {
    let odd = |e| {
        Failure::new(
            "io",
            format!("the daemon's answer makes no sense ({e}); is it of another version?"),
        )
    };
    match answer {
        Answer::Done(value) => serde_json::from_value(value).map_err(odd),
        Answer::Failed(kind, message) => Err(Failure::new(&snake(&kind), message)),
    }
}

/// Longest name of an attribute in bytes.
const ATTRIBUTE_BYTES_MAX: usize = 255;

/// Asks the daemon of a mount. What only looks is an attribute, which a read-only mount has too.
fn ask_daemon(mount: &Mount, request: &Request) -> Result<Answer> {
    let attribute = match request {
        Request::List { after } => format!("{}{after}", live::CHECKPOINTS),
        Request::Held { epochs } => format!("{}{}", live::HELD, control::write_epochs(epochs)),
        Request::Schedules => live::SCHEDULES.to_owned(),
        _ => return send(mount, request),
    };
    if attribute.len() > ATTRIBUTE_BYTES_MAX {
        return send(mount, request);
    }
    let unknown =
        || Failure::new("io", "the daemon knows no such question; is it of another version?");
    Ok(Answer::Done(live::get_json(&mount.dir, &attribute)?.ok_or_else(unknown)?))
}

/// Sends a request to the daemon of a mount, after the kernel handed over what it holds of cached writes.
fn send(mount: &Mount, request: &Request) -> Result<Answer> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let of_the_present = matches!(
        request,
        Request::Clone { .. } | Request::Diff { to: None, .. } | Request::Changes { to: None, .. }
    );
    if of_the_present
        || matches!(
            request,
            Request::Create { .. } | Request::Rollback { .. } | Request::RunSchedules
        )
    {
        let dir =
            std::fs::File::open(&mount.dir).map_err(|e| Failure::system("open", &mount.dir, &e))?;
        rustix::fs::syncfs(&dir).map_err(|e| Failure::system("sync", &mount.dir, &e.into()))?;
    }
    let name = format!(
        "{}{}.{}",
        live::REQUEST,
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    );
    let text = serde_json::to_string(request)
        .map_err(|e| Failure::new("io", format!("the request cannot be written as JSON: {e}")))?;
    match live::set(&mount.dir, &name, &text) {
        Err(failure) if failure.kind == "read_only" => ask_in_parts(mount, &name, &text)?,
        set => set?,
    }
    let mut answer = Vec::new();
    loop {
        let some = live::get_bytes(&mount.dir, &format!("{name}@{}", answer.len()))?;
        let some =
            some.ok_or_else(|| Failure::new("io", "the daemon lost the request: try again"))?;
        if some.is_empty() {
            break;
        }
        answer.extend(some);
    }
    serde_json::from_slice(&answer).map_err(|e| {
        Failure::new(
            "io",
            format!("the daemon's answer is no JSON ({e}); is it of another version?"),
        )
    })
}

/// Begins a request on a mount that takes no attributes: in the names of some that are read.
fn ask_in_parts(mount: &Mount, name: &str, text: &str) -> Result<()> {
    let mut rest = text;
    for number in 0.. {
        let name = format!("{name}+{number}+");
        let room = ATTRIBUTE_BYTES_MAX - name.len();
        let (part, behind) = rest.split_at(
            (0..=room.min(rest.len())).rev().find(|at| rest.is_char_boundary(*at)).unwrap_or(0),
        );
        live::get(&mount.dir, &format!("{name}{part}"))?;
        rest = behind;
        if rest.is_empty() {
            break;
        }
    }
    live::get(&mount.dir, &format!("{name}=")).map(drop)
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

/// Returns the processes that have files below a directory, or the file itself, open or mapped, as
/// far as this user may see.
fn holders(dir: &Path) -> Vec<String> {
    let is_open = |process: &Path| {
        let Ok(files) = std::fs::read_dir(process.join("fd")) else { return false };
        let is_ours = |target: PathBuf| target.starts_with(dir) && !target.is_dir();
        files.flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(is_ours))
    };
    let is_mapped = |process: &Path| {
        let maps = std::fs::read(process.join("maps")).unwrap_or_default();
        let path_of = |line: &[u8]| {
            line.iter()
                .position(|byte| *byte == b'/')
                .map(|at| PathBuf::from(OsStr::from_bytes(&line[at..])))
        };
        maps.split(|byte| *byte == b'\n').filter_map(path_of).any(|path| path.starts_with(dir))
    };
    let mut found = Vec::new();
    let Ok(processes) = std::fs::read_dir("/proc") else { return found };
    for process in processes.flatten().filter(|entry| {
        entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit())
    }) {
        if is_open(&process.path()) || is_mapped(&process.path()) {
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            if name.trim() != "bedplate" {
                found.push(format!("{} ({})", name.trim(), process.file_name().to_string_lossy()));
            }
        }
    }
    found
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
