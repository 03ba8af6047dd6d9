//! Devices that are to become members: what they are, where their bytes lie in the end, and what
//! they hold already.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate::{Arrival, BlockDevice, FileSystem, GroupConfig, MemberState};
use bedplate_block::Backing;
use bedplate_serve::control::Newcomer;

use crate::device::group;
use crate::device::place;
use crate::device::signature;
use crate::device::{self, Access};
use crate::failure::{Failure, Result};

/// Names a device; with `force` whatever it holds.
pub fn named(path: &Path, force: bool) -> Result<Newcomer> {
    let path = place::whole(path)?;
    Ok(if force { Newcomer::Forced { force: path } } else { Newcomer::Empty(path) })
}

/// Opens the device for a group. What is in use, a member of this group already, or holds something
/// and is not forced, is refused and left as it is.
pub fn open(new: &Newcomer, config: &GroupConfig) -> Result<Arc<dyn BlockDevice>> {
    let path = new.path();
    signature::refuse_kind(path)?;
    refuse_own(path, config)?;
    let device = device::open_plain(path, Access::ReadWrite)?;
    if matches!(new, Newcomer::Empty(_)) {
        refuse_content(path)?;
        refuse_volume(&device)?;
    }
    Ok(device)
}

/// Returns the opened device as a group takes it in.
pub fn arrival<'a>(new: &Newcomer, device: &'a Arc<dyn BlockDevice>) -> Arrival<'a> {
    Arrival { device, force: matches!(new, Newcomer::Forced { .. }) }
}

/// Refuses a member that the group counts on.
fn refuse_own(path: &Path, config: &GroupConfig) -> Result<()> {
    let Some(label) =
        group::label_of(path).ok().flatten().filter(|label| label.config.id == config.id)
    else {
        return Ok(());
    };
    let counts = config
        .index_of(label.member)
        .is_some_and(|index| config.members[index].state != MemberState::Failed);
    let (shown, group) = (path.display(), &config.name);
    let message = format!(
        "{shown} is a member of the group {group} already: 'bedplate volume remove' lets go of one \
         without data"
    );
    if counts { Err(Failure::new("duplicated_member", message)) } else { Ok(()) }
}

/// Refuses to destroy what other programs left on a device.
pub fn refuse_content(path: &Path) -> Result<()> {
    signature::recognize(path)?.map_or(Ok(()), |what| Err(held(&path.display().to_string(), what)))
}

/// Refuses to destroy a label that cannot be read: its group may still be mended.
pub fn refuse_damaged_label(path: &Path) -> Result<()> {
    match group::label_of(path) {
        Err(failure) if failure.kind == "corrupt" => {
            Err(held(&path.display().to_string(), "a damaged label of a group"))
        }
        _ => Ok(()),
    }
}

/// Refuses to destroy a volume that is no group's.
pub fn refuse_volume(device: &Arc<dyn BlockDevice>) -> Result<()> {
    FileSystem::probe(device).map_or(Ok(()), |_| Err(held(device.name(), "a Bedplate volume")))
}

fn held(shown: &str, what: &str) -> Failure {
    Failure::new("exists", format!("{shown} holds {what}: add --force to destroy it"))
}

/// Refuses devices that share bytes, under whatever names: links, loop devices over one file, a
/// disk and a partition of it.
pub fn refuse_overlaps(paths: &[&PathBuf]) -> Result<()> {
    let backings: Vec<Option<Backing>> = paths.iter().map(|path| Backing::of(path)).collect();
    for (at, backing) in backings.iter().enumerate() {
        let shares = |other: usize| match (backing, &backings[other]) {
            (Some(one), Some(other)) => one.overlaps(other),
            // Files that do not exist yet, and exports of other machines.
            (None, None) => named_whole(paths[at]) == named_whole(paths[other]),
            _ => false,
        };
        if let Some(other) = (0..at).find(|other| shares(*other)) {
            let (first, second) = (paths[other].display(), paths[at].display());
            return Err(Failure::new(
                "duplicated_member",
                format!(
                    "{first} and {second} are the same device, or overlap: a member has one place"
                ),
            ));
        }
    }
    Ok(())
}

/// Returns the one name of something that is no file of the system.
fn named_whole(path: &Path) -> Option<PathBuf> {
    if place::is_remote(path) { place::whole(path).ok() } else { std::path::absolute(path).ok() }
}

/// Returns where the system tells of a block device.
pub fn sysfs_of(meta: &fs::Metadata) -> PathBuf {
    let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(paths: &[&PathBuf]) -> Option<String> {
        refuse_overlaps(paths).err().map(|failure| failure.message)
    }

    #[test]
    fn one_file_under_two_names_is_found_whether_it_exists_or_not() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b, hard, soft, dotted] =
            ["a", "b", "hard", "soft", "./a"].map(|name| dir.path().join(name));
        assert!(
            refusal(&[&a, &dotted]).is_some() && refusal(&[&a, &b]).is_none(),
            "they do not exist yet"
        );
        std::fs::write(&a, b"").unwrap();
        std::fs::write(&b, b"").unwrap();
        std::fs::hard_link(&a, &hard).unwrap();
        std::os::unix::fs::symlink("a", &soft).unwrap();
        assert!(refusal(&[&a, &b]).is_none());
        for other in [&hard, &soft, &dotted, &a] {
            assert!(
                refusal(&[&b, &a, other]).unwrap().contains("same device"),
                "{}",
                other.display()
            );
        }
    }

    #[test]
    fn a_path_travels_as_it_is_and_force_beside_it() {
        let gentle: Newcomer = serde_json::from_str("\"/dev/sda\"").unwrap();
        assert_eq!(gentle, Newcomer::Empty("/dev/sda".into()));
        let forced: Newcomer = serde_json::from_str(
            &serde_json::to_string(&Newcomer::Forced { force: "/dev/sda".into() }).unwrap(),
        )
        .unwrap();
        assert_eq!((forced.path(), forced == gentle), (Path::new("/dev/sda"), false));
    }
}
