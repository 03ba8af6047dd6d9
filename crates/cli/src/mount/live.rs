//! A live mount: the file system of it is asked over its socket ([`bedplate_serve::control`]), its
//! files through the extended attributes that the mount answers itself.
//!
//! | attribute | on | value |
//! | --- | --- | --- |
//! | `user.bedplate.mode` | file, directory | the mode set on it; may be set and removed |
//! | `user.bedplate.effective_mode` | file | the mode it is served in now |
//! | `user.bedplate.untorn` | file, directory | how much is written untorn, in bytes, and by whom; may be set (bytes) and removed |
//! | `user.bedplate.integrity` | file, directory | `on` where what is written gets checksums; may be set and removed |
//! | `user.bedplate.summed_bytes` | file | how many bytes of it have checksums |
//! | `user.bedplate.extsize` | file, directory | how much is wanted in one run, in bytes; may be set and removed |
//! | `user.bedplate.release_behind` | file, directory | which pages leave the caches behind a sequential read or write; may be set and removed |
//! | `user.bedplate.counters` | file | its counters, JSON |
//! | `user.bedplate.extent_count` | file | in how many extents it lies |
//! | `user.bedplate.extents.OFFSET` | file | its extents from that offset on, JSON |
//! | `user.bedplate.activity` | file | its counters and latencies, JSON |
//! | `user.bedplate.trial_mode` | file | the mode it is on trial in; set again and again as long as the trial goes on |
//! | `user.bedplate.trial` | file | what became of the last trial of another mode, JSON; may be set |
//! | `user.bedplate.opens` | file | its opens, with their programs, JSON |
//! | `user.bedplate.reset` | file | setting it lets counters and latencies begin again |
//! | `user.bedplate.info` | root | what `info` tells of the file system, JSON: for where the socket is not reached |
//! | `user.bedplate.pid` | root | the daemon's process |

use std::path::Path;

use bedplate_serve::control::{self, Answer, Request};
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::mount;

/// The mode set on a file or directory.
pub const MODE: &str = "user.bedplate.mode";
/// The mode a file is served in.
pub const EFFECTIVE_MODE: &str = "user.bedplate.effective_mode";
/// A file's counters.
pub const COUNTERS: &str = "user.bedplate.counters";
/// In how many extents a file lies.
const EXTENT_COUNT: &str = "user.bedplate.extent_count";
/// A file's extents; the offset of the first follows.
const EXTENTS: &str = "user.bedplate.extents.";
/// A file's counters and latencies.
pub const ACTIVITY: &str = "user.bedplate.activity";
/// What became of the last trial of another mode.
pub const TRIAL: &str = "user.bedplate.trial";
/// The mode that a file is on trial in.
pub const TRIAL_MODE: &str = "user.bedplate.trial_mode";
/// The opens of a file.
pub const OPENS: &str = "user.bedplate.opens";
/// The trigger to count from zero.
pub const RESET: &str = "user.bedplate.reset";
/// Everything the file system tells of itself.
const INFO: &str = "user.bedplate.info";
/// The process that serves the mount.
pub const PID: &str = "user.bedplate.pid";
/// How much of a file is written untorn, and by whom.
pub const UNTORN: &str = "user.bedplate.untorn";
/// Whether what is written to a file gets checksums.
pub const INTEGRITY: &str = "user.bedplate.integrity";
/// How many bytes of a file have checksums.
pub const SUMMED_BYTES: &str = "user.bedplate.summed_bytes";
/// How much of a file is wanted in one run of the volume.
pub const EXTENT_SIZE: &str = "user.bedplate.extsize";
/// Which pages of a file leave the caches.
pub const RELEASE_BEHIND: &str = "user.bedplate.release_behind";

/// Asks the daemon of a mount.
pub fn ask<T: DeserializeOwned>(mount: &mount::Mount, request: &Request) -> Result<T> {
    match control::ask(&mount.dir, request) {
        Ok(answer) => understood(answer),
        Err(_) if bedplate_serve::fuse::is_dead(&mount.dir) => Err(stale(&mount.dir)),
        Err(error) => Err(error.into()),
    }
}

/// Takes an answer for what it means.
pub fn understood<T: DeserializeOwned>(answer: Answer) -> Result<T> {
    let odd = |e| {
        Failure::new(
            "io",
            format!("the daemon's answer makes no sense ({e}); is it of another version?"),
        )
    };
    match answer {
        Answer::Done(value) => serde_json::from_value(value).map_err(odd),
        Answer::Failed(kind, message) if kind == "usage" => Err(Failure::usage(message)),
        Answer::Failed(kind, message) => Err(Failure::new(&kind, message)),
    }
}

/// Returns the process of a mount's daemon; `None` where it has none of its own. A mount without
/// extended attributes is asked through its socket.
pub fn process(mount: &mount::Mount) -> Result<Option<i32>> {
    match getxattr(&mount.dir, PID, &mut [0_u8; 0][..]) {
        Err(Errno::OPNOTSUPP) => Ok(Some(control::process(&mount.dir)?)),
        _ => Ok(get(&mount.dir, PID)?.and_then(|pid| pid.trim().parse().ok())),
    }
}

/// Returns what the file system of a mount tells of itself, also where its socket is not reached:
/// by another user, or in another container.
pub fn info(mount: &mount::Mount) -> Result<Value> {
    match ask(mount, &Request::Info) {
        Err(failure) if is_unreached(&failure) => get_json(&mount.dir, INFO)?.ok_or(failure),
        told => told,
    }
}

/// Returns whether the daemon of a mount could not be asked, by this user or from here.
pub fn is_unreached(failure: &Failure) -> bool {
    failure.kind == "not_permitted" || failure.kind == "unavailable"
}

/// Refuses a path that does not lie on one of our mounts, and one whose daemon died.
pub fn require_mount(path: &Path) -> Result<mount::Mount> {
    if let Err(error) = std::fs::symlink_metadata(path) {
        return Err(if mount::is_stale(&error) {
            stale(path)
        } else {
            Failure::system("look at", path, &error)
        });
    }
    let canonical = mount::canonical(path)?;
    let mount = mount::above(&canonical)?.ok_or_else(|| {
        let what = "does not lie on a Bedplate mount: name a file of a mounted volume, or \
                    VOLUME:/PATH of one that is not mounted";
        Failure::new("not_a_mount", format!("{} {what}", path.display()))
    })?;
    refuse_aside(&mount, path)?;
    Ok(mount)
}

/// Refuses a checkpoint that the daemon of its volume shows beside it: that daemon answers on the
/// volume's own mount.
fn refuse_aside(mount: &mount::Mount, path: &Path) -> Result<()> {
    let source = mount.source.to_string_lossy();
    let Some((volume, checkpoint)) =
        source.rsplit_once('#').filter(|_| matches!(get(&mount.dir, PID), Ok(None)))
    else {
        return Ok(());
    };
    let shown = mount::ours()?
        .into_iter()
        .find(|other| other.source == Path::new(volume))
        .map(|other| other.dir);
    let there = shown.map_or_else(
        || "the mount of its volume".to_owned(),
        |dir| format!("{}", dir.join(".checkpoints").join(checkpoint).display()),
    );
    let path = path.display();
    Err(Failure::new(
        "not_a_mount",
        format!(
            "{path} lies on a checkpoint that is mounted beside its volume, to be read only: ask \
             about {there}"
        ),
    ))
}

/// Returns the failure of a mount whose daemon died.
pub fn stale(path: &Path) -> Failure {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mount =
        mount::above(&absolute).ok().flatten().map_or_else(|| absolute.clone(), |mount| mount.dir);
    let (path, mount) = (path.display(), mount.display());
    Failure::new(
        "stale_mount",
        format!(
            "{path} is left over from a mount whose daemon died: run 'bedplate unmount {mount}', \
             then mount it again"
        ),
    )
}

/// Returns an attribute's value; `None` where it is not set.
pub fn get(path: &Path, name: &str) -> Result<Option<String>> {
    Ok(get_bytes(path, name)?.map(|value| String::from_utf8_lossy(&value).into_owned()))
}

/// Returns an attribute's value as it is; `None` where it is not set.
pub fn get_bytes(path: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let mut value = vec![0; 4096];
    loop {
        match getxattr(path, name, &mut value[..]) {
            Ok(len) => {
                value.truncate(len);
                return Ok(Some(value));
            }
            Err(Errno::RANGE) if value.len() < 64 << 20 => value.resize(value.len() * 4, 0),
            Err(Errno::NODATA) => return Ok(None),
            Err(error) => return Err(refused("read", name, path, error)),
        }
    }
}

/// Returns an attribute's value as JSON; `None` where it is not set.
pub fn get_json(path: &Path, name: &str) -> Result<Option<Value>> {
    let Some(text) = get(path, name)? else { return Ok(None) };
    let explain = |e| {
        Failure::new(
            "io",
            format!(
                "{}: the daemon answered {name} with something that is no JSON ({e}); is it of \
                 another version?",
                path.display()
            ),
        )
    };
    serde_json::from_str(&text).map(Some).map_err(explain)
}

/// Returns an attribute's value as what it means; `None` where it is not set.
pub fn get_as<T: DeserializeOwned>(path: &Path, name: &str) -> Result<Option<T>> {
    let explain = |e| {
        Failure::new(
            "io",
            format!(
                "{}: the daemon answered {name} in a form not known here ({e}); is it of another \
                 version?",
                path.display()
            ),
        )
    };
    get_json(path, name)?.map(|value| serde_json::from_value(value).map_err(explain)).transpose()
}

/// Returns in how many extents a file lies.
pub fn extent_count(path: &Path) -> Result<usize> {
    Ok(get_as(path, EXTENT_COUNT)?.unwrap_or_default())
}

/// Returns a file's extents, however many.
pub fn extents(path: &Path) -> Result<Vec<Value>> {
    let mut found: Vec<Value> = Vec::new();
    let mut from = 0;
    loop {
        let page: Vec<Value> = get_as(path, &format!("{EXTENTS}{from}"))?.unwrap_or_default();
        let last = page.last().and_then(|extent| extent.get("file_offset")?.as_u64());
        found.extend(page);
        // A daemon that does not come to an end is not followed for ever.
        match last.and_then(|last| last.checked_add(1)).filter(|next| *next > from) {
            Some(next) => from = next,
            None => return Ok(found),
        }
    }
}

/// Sets an attribute.
pub fn set(path: &Path, name: &str, value: &str) -> Result<()> {
    setxattr(path, name, value.as_bytes(), XattrFlags::empty()).map_err(|error| match error {
        Errno::INVAL => Failure::new(
            "invalid",
            format!("{name} of {} does not take this value", path.display()),
        ),
        error => refused("set", name, path, error),
    })
}

/// Removes an attribute; one that is not set is no failure.
pub fn remove(path: &Path, name: &str) -> Result<()> {
    match removexattr(path, name) {
        Ok(()) | Err(Errno::NODATA) => Ok(()),
        Err(error) => Err(refused("remove", name, path, error)),
    }
}

/// Returns the failure of an attribute that the system refused.
pub fn refused(doing: &str, name: &str, path: &Path, error: Errno) -> Failure {
    if mount::is_stale(&error.into()) {
        return stale(path);
    }
    match error {
        Errno::ROFS => {
            let why = "lies on a mount that is read-only, or turned so after a failed write \
                       ('bedplate info' tells): nothing of it can be changed";
            Failure::new("read_only", format!("{} {why}", path.display()))
        }
        _ => Failure::system(&format!("{doing} {name} of"), path, &error.into()),
    }
}
