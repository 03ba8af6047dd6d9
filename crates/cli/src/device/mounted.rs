//! Where a volume is mounted.

use std::path::Path;

use crate::device::group;
use crate::failure::{Failure, Result};
use crate::mount::{self, Mount, live};

/// Returns where the volume at `path` is mounted; a group is listed under one of its members, and
/// found by any.
pub fn of_volume(path: &Path) -> Result<Option<Mount>> {
    let Ok(path) = path.canonicalize() else { return Ok(None) };
    let mounts: Vec<Mount> = mount::ours()?;
    let of = |path: &Path| mounts.iter().rfind(|mount| mount.source == path).cloned();
    if mounts.is_empty() || path.is_dir() {
        return Ok(None);
    }
    if let Some(mount) = of(&path) {
        return Ok(Some(mount));
    }
    // What cannot be read as a member is none, or opening it tells its own failure.
    let Some(located) = group::of_member(&path).ok().flatten() else { return Ok(None) };
    let by_member = located.members.iter().find_map(|(member, _)| of(member));
    Ok(by_member.or_else(|| of_daemon(mounts, group::holder::daemon_of(located.config.id)?)))
}

/// Returns the mount that a process serves: the member under which it is listed may have left the group since.
fn of_daemon(mounts: Vec<Mount>, pid: i32) -> Option<Mount> {
    let served_by = |mount: &Mount| live::get(&mount.dir, live::PID).ok()??.parse::<i32>().ok();
    mounts.into_iter().rfind(|mount| served_by(mount) == Some(pid))
}

/// Says what to do about a volume that is busy because it is mounted.
pub fn explain_busy(path: &Path, failure: Failure) -> Failure {
    if failure.kind != "busy" {
        return failure;
    }
    match of_volume(path) {
        Ok(Some(mount)) => {
            let (path, dir) = (path.display(), mount.dir.display());
            Failure::new(
                "busy",
                format!(
                    "{path} is mounted at {dir}: use its files there, or run 'bedplate unmount {dir}' first"
                ),
            )
        }
        _ => failure,
    }
}
