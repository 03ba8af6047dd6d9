//! Where a volume is mounted.

use std::path::{Path, PathBuf};

use crate::device::{group, place};
use crate::failure::{Failure, Result};
use crate::mount::{self, Mount};

/// Returns where the volume at `path` is mounted; a group is listed under one of its members, and
/// found by any.
pub fn of_volume(path: &Path) -> Result<Option<Mount>> {
    let Ok(path) = place::whole(path) else { return Ok(None) };
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
    // That of another group with this name is not its mount; that of a daemon that died cannot be
    // asked whose it is.
    let left = || {
        let source = group::source_of(&path).ok().map(PathBuf::from)?;
        of(&source).filter(|mount| bedplate_serve::fuse::is_dead(&mount.dir))
    };
    let by_member = located.members.iter().find_map(|(member, _)| of(member));
    Ok(by_member.or_else(|| group::holder::mount_of(&located)).or_else(left))
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
                    "{path} is mounted at {dir}: use its files there, name '{path}:/' to mount it once \
                     more, or run 'bedplate unmount {dir}' first"
                ),
            )
        }
        _ => failure,
    }
}
