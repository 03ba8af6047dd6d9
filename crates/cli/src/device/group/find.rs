//! Finds the members of a group, wherever they are and whatever they are called.
//!
//! A group is named by any member's path, or as `group:NAME`. Its other members are looked for
//! where they were last, beside that member, on the system's block devices, and in the directories
//! of `BEDPLATE_DEVICES` (divided by colons); `group:NAME` looks in the present directory too. An
//! export of another machine is found only by its URI: as it is named, or as another member knows it.
//! A member of a group with many volumes stands for its parts, as the newest table has them.

use std::collections::HashSet;
use std::fs::Metadata;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use bedplate::{
    DeviceOptions, Engine, GroupConfig, GroupErrorKind, Id, Label, MemberState, VolumeTable,
};
use bedplate_block::{Backing, Part, device_path};

use super::holder::member_of;
use crate::device::place;
use crate::failure::{Failure, Result};
use crate::mount;

/// What the environment variable with more directories is called.
const VARIABLE: &str = "BEDPLATE_DEVICES";
/// What a group's name follows on a command line.
pub(super) const PREFIX: &str = "group:";

/// A group that was found, not opened.
#[derive(Debug, Clone)]
pub struct Located {
    /// The newest configuration among the members.
    pub config: GroupConfig,
    /// The members that were found.
    pub members: Vec<(PathBuf, Label)>,
}

/// How a member is opened that another process may have open.
pub(super) fn to_look() -> DeviceOptions {
    DeviceOptions {
        read_only: true,
        exclusive: false,
        engine: Engine::Threads,
        ..DeviceOptions::default()
    }
}

/// Returns the label of what lies at `path`; `None` where there is none.
pub fn label_of(path: &Path) -> Result<Option<Label>> {
    let device = bedplate_block::open(path, &to_look())?;
    match Label::read(&*device) {
        Ok(label) => Ok(Some(label)),
        Err(error) if error.kind == GroupErrorKind::NotAMember => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns a path that names the volume: itself, or a member's where a group is named.
pub fn resolve(path: &Path) -> Result<PathBuf> {
    let Some(name) = path.to_str().and_then(|text| text.strip_prefix(PREFIX)) else {
        return Ok(path.to_owned());
    };
    Ok(first_path(&by_name(name)?))
}

/// Returns what lists of mounts show for the volume at `path`: the group, whose members come and
/// go, or the path itself.
pub fn source_of(path: &Path) -> Result<String> {
    Ok(of_member(path)?
        .map_or_else(|| path.to_string_lossy().into_owned(), |located| source(&located)))
}

/// Returns what lists of mounts show for a group.
pub(super) fn source(located: &Located) -> String {
    format!("{PREFIX}{}", located.config.name)
}

/// Returns a path by which the volume of a mount can be opened once the mount is gone: a member's,
/// where the list of mounts shows a group or a member that has left it.
pub fn volume_of(mount: &mount::Mount) -> PathBuf {
    let source = mount.source.clone();
    if !source.to_string_lossy().starts_with(PREFIX) && !matches!(label_of(&source), Ok(None)) {
        return source;
    }
    member_of(mount).or_else(|| resolve(&source).ok()).unwrap_or(source)
}

/// Returns the path by which a group is known on this machine: that of its first member that holds
/// what it should.
pub(super) fn first_path(located: &Located) -> PathBuf {
    let active = located.config.members.iter().filter(|member| member.state == MemberState::Active);
    let mut found = active
        .filter_map(|member| located.members.iter().find(|(_, label)| label.member == member.id));
    found.next().or(located.members.first()).map(|(path, _)| path.clone()).unwrap_or_default()
}

/// Finds the group that the device at `path` is a member of; `None` where it is none.
pub fn of_member(path: &Path) -> Result<Option<Located>> {
    let Some(label) = label_of(path)? else { return Ok(None) };
    let path = place::whole(path)?;
    let mut search = Search::default();
    search.add(&path);
    let mut config = label.config.clone();
    let mut members;
    let mut found = Vec::new();
    // One that is outdated knows where the others were, and they know more.
    loop {
        config
            .members
            .iter()
            .filter(|member| !member.is_vacant())
            .for_each(|member| search.add(Path::new(&member.path)));
        found.extend(search.labels());
        members = belonging(&found, &config);
        match members.iter().max_by_key(|(_, label)| label.config.event) {
            Some((_, newest)) if newest.config.event > config.event => {
                config = newest.config.clone();
            }
            _ => break,
        }
    }
    let is_there = |(index, member): (usize, &bedplate::Member)| {
        member.is_vacant()
            || config.is_split_off(index)
            || members.iter().any(|(_, label)| label.member == member.id)
    };
    if !config.members.iter().enumerate().all(is_there) {
        if !place::is_remote(&path) {
            search.add_directory(path.parent().unwrap_or(Path::new("/")));
        }
        search.add_system();
        found.extend(search.labels());
        members = belonging(&found, &config);
    }
    // The other half is kept and takes this one's members in: that is the group from now on.
    if let Some((path, _)) =
        found.iter().find(|(_, other)| label.joined_to(&other.config).is_some())
    {
        return of_member(path);
    }
    if members.is_empty() {
        // Its label went, or could not be read again.
        return Ok(None);
    }
    Ok(Some(located(members)))
}

/// Returns the members of a group among what was found: those that say so, and as its own those of
/// another half that it takes in.
fn belonging(found: &[(PathBuf, Label)], config: &GroupConfig) -> Vec<(PathBuf, Label)> {
    let own = |label: &Label| (label.config.id == config.id).then(|| label.clone());
    let member = |(path, label): &(PathBuf, Label)| {
        Some((path.clone(), own(label).or_else(|| label.joined_to(config))?))
    };
    found.iter().filter_map(member).collect()
}

/// Finds a group by its name.
pub fn by_name(name: &str) -> Result<Located> {
    if name.is_empty() {
        return Err(Failure::usage(format!(
            "'{PREFIX}' is followed by the name of a group: 'bedplate volume list' finds groups"
        )));
    }
    let (all, tables) = everything(&[PathBuf::from(".")]);
    let mut groups: Vec<Located> =
        all.into_iter().filter(|group| group.config.name == name).collect();
    if let (true, Some(table)) =
        (groups.is_empty(), tables.iter().find(|(_, _, table)| table.name == name))
    {
        return Err(name_a_volume(&table.2));
    }
    match (groups.pop(), groups.len()) {
        (Some(group), 0) => Ok(group),
        (Some(group), _) => Err(Failure::new(
            "ambiguous",
            format!(
                "there is more than one group {name}, one of them with {}: name a member's path",
                first_path(&group).display()
            ),
        )),
        (None, _) => mounted_as(name).ok_or_else(|| Failure::new(
            "not_found",
            format!(
                "no group {name} was found on block devices, in the present directory or in those \
                 of {VARIABLE}: name a member's path"
            ),
        )),
    }
}

/// Says how the volumes of a group with many are named.
pub(super) fn name_a_volume(table: &VolumeTable) -> Failure {
    let name = |volume: &bedplate::TableVolume| format!("group:{}", table.whole_name(&volume.name));
    let volumes: Vec<String> = table.volumes.iter().map(name).collect();
    let what = match volumes.is_empty() {
        true => "has no volume yet: 'bedplate volume add-volume' makes one".to_owned(),
        false => format!("has many volumes: name one, {}", volumes.join(" or ")),
    };
    Failure::new("divided", format!("group {} {what}", table.name))
}

/// Finds a group by its name in the list of mounts, wherever its members are.
fn mounted_as(name: &str) -> Option<Located> {
    let source = PathBuf::from(format!("{PREFIX}{name}"));
    let mut found = mount::ours().ok()?;
    found.retain(|mount| mount.source == source);
    // A mount that is bound to a second place is one; two groups of one name are told by a path.
    found.dedup_by(|one, other| one.device == other.device);
    let member = if found.len() == 1 { member_of(&found[0]) } else { None };
    of_member(&member?).ok().flatten()
}

/// Finds the group that is named by a member's path or as `group:NAME`.
pub fn named(name: &Path) -> Result<Located> {
    if let Some(name) = name.to_str().and_then(|text| text.strip_prefix(PREFIX)) {
        return by_name(name);
    }
    // Where it is mounted names it, too.
    let mount = if name.is_dir() {
        mount::above(&mount::canonical(name)?)?
            .filter(|mount| mount::canonical(name).is_ok_and(|dir| dir == mount.dir))
    } else {
        None
    };
    let name = &mount.as_ref().map_or_else(|| name.to_owned(), volume_of);
    let shown = name.display();
    of_member(name)?.ok_or_else(|| {
        Failure::new(
            "not_a_member",
            format!("{shown} carries no label of a group: 'bedplate volume list' finds groups"),
        )
    })
}

/// Finds all groups with members on block devices, in the directories of the environment and in
/// `directories`.
pub fn all(directories: &[PathBuf]) -> Result<Vec<Located>> {
    Ok(everything(directories).0)
}

/// As [`all`], with the tables of groups with many volumes.
pub(super) fn everything(directories: &[PathBuf]) -> (Vec<Located>, Vec<FoundTable>) {
    let mut search = Search::default();
    directories.iter().for_each(|directory| search.add_directory(directory));
    search.add_system();
    let mut members = search.labels();
    let mut groups = Vec::new();
    let joins = |config: &GroupConfig| config.split.as_ref().is_some_and(|split| split.joins);
    while let Some((_, first)) = members
        .iter()
        .filter(|(_, label)| joins(&label.config))
        .max_by_key(|(_, label)| label.config.event)
        .or(members.first())
    {
        let config = first.config.clone();
        let own = belonging(&members, &config);
        members.retain(|(path, _)| !own.iter().any(|(other, _)| other == path));
        groups.push(located(own));
    }
    groups.sort_by(|a, b| a.config.name.cmp(&b.config.name));
    (groups, search.tables)
}

/// Returns the tables of a group that one member of is at `path`: where the table says that the
/// others are, beside it and on block devices.
pub(super) fn tables_beside(path: &Path) -> Result<Vec<FoundTable>> {
    let path = place::whole(path)?;
    let mut search = Search::default();
    search.add(&path);
    search.labels();
    let hints: Vec<String> = search
        .tables
        .iter()
        .flat_map(|(_, _, table)| &table.members)
        .map(|member| member.path.clone())
        .collect();
    hints.iter().for_each(|hint| search.add(Path::new(hint)));
    search.add_directory(path.parent().unwrap_or(Path::new("/")));
    search.add_system();
    search.labels();
    Ok(search.tables)
}

fn located(members: Vec<(PathBuf, Label)>) -> Located {
    let members = without_second_paths(members);
    let newest = members
        .iter()
        .max_by_key(|(_, label)| label.config.event)
        .expect("a group is found by a member");
    Located { config: newest.1.config.clone(), members }
}

/// Leaves one path for each device. An image and the loop device over it are one member and no
/// copies of each other; the group is used through the loop device then, as other programs are.
fn without_second_paths(members: Vec<(PathBuf, Label)>) -> Vec<(PathBuf, Label)> {
    let mut kept: Vec<(PathBuf, Label)> = Vec::new();
    for (path, label) in members {
        let is_same = |(other, of_other): &(PathBuf, Label)| {
            of_other.member == label.member && share_bytes(&path, other)
        };
        match kept.iter().position(is_same) {
            Some(at) if is_block_device(&path) && !is_block_device(&kept[at].0) => {
                kept[at] = (path, label);
            }
            Some(_) => {}
            None => kept.push((path, label)),
        }
    }
    kept
}

pub(super) fn is_block_device(path: &Path) -> bool {
    place::file_of(path).metadata().is_ok_and(|meta| meta.file_type().is_block_device())
}

pub(super) fn share_bytes(one: &Path, other: &Path) -> bool {
    Backing::of(one).zip(Backing::of(other)).is_some_and(|(one, other)| one.overlaps(&other))
}

/// A device with its table: where it is, which member it is.
pub(super) type FoundTable = (PathBuf, Id, VolumeTable);

/// Where members are looked for; nothing is looked at twice.
#[derive(Default)]
struct Search {
    seen: HashSet<PathBuf>,
    waiting: Vec<PathBuf>,
    tables: Vec<FoundTable>,
}

impl Search {
    fn add(&mut self, path: &Path) {
        // Where a part is now the table of its device says.
        let Ok(path) = device_path(&place::file_of(path)) else { return };
        let large_enough = |meta: Metadata| {
            meta.file_type().is_block_device() || meta.is_file() && meta.len() > 4 << 20
        };
        let may_be_one = place::is_remote(&path) || path.metadata().is_ok_and(large_enough);
        if may_be_one && self.seen.insert(path.clone()) {
            self.waiting.push(path);
        }
    }

    fn add_directory(&mut self, directory: &Path) {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file() || kind.is_symlink()))
            .for_each(|entry| self.add(&entry.path()));
    }

    /// Adds the system's block devices and the directories of the environment.
    fn add_system(&mut self) {
        let names = std::fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
        names.for_each(|entry| self.add(&Path::new("/dev").join(entry.file_name())));
        let directories = std::env::var_os(VARIABLE).unwrap_or_default();
        std::env::split_paths(&directories).for_each(|directory| self.add_directory(&directory));
    }

    /// Reads the labels of what was added since the last call, and of the parts of what has a table.
    /// What cannot be read, or not by this user, is no member that could be used.
    fn labels(&mut self) -> Vec<(PathBuf, Label)> {
        let mut labels = Vec::new();
        for path in std::mem::take(&mut self.waiting) {
            match label_of(&path) {
                Ok(label) => labels.extend(label.map(|label| (path, label))),
                Err(failure) if failure.kind == "divided" => self.add_table(&path),
                Err(failure) => tracing::debug!("{}: {failure}", path.display()),
            }
        }
        for path in self.parts() {
            if self.seen.insert(path.clone())
                && let Ok(Some(label)) = label_of(&path)
            {
                labels.push((path, label));
            }
        }
        labels
    }

    fn add_table(&mut self, path: &Path) {
        match table_of(path) {
            Ok((member, table)) => self.tables.push((path.to_owned(), member, table)),
            Err(failure) => tracing::debug!("{}: {failure}", path.display()),
        }
    }

    /// Returns the parts of all volumes, as the newest table of each group has them.
    fn parts(&self) -> Vec<PathBuf> {
        let newest = |(_, _, table): &&FoundTable| {
            let of_group = self.tables.iter().filter(|(_, _, other)| other.id == table.id);
            of_group.map(|(_, _, other)| other).max_by_key(|other| other.event)
        };
        let parts = |found: &FoundTable| {
            let volumes = newest(&found).into_iter().flat_map(|table| &table.volumes);
            let of_device = volumes.filter_map(|volume| volume.part_on(found.1));
            let path = |part: &bedplate::VolumePart| {
                Part { device: found.0.clone(), pieces: part.pieces.clone() }.path()
            };
            of_device.map(path).collect::<Vec<_>>()
        };
        self.tables.iter().flat_map(parts).collect()
    }
}

/// Reads the table of a member of a group with many volumes.
pub(super) fn table_of(path: &Path) -> Result<(Id, VolumeTable)> {
    let device = bedplate_block::open(path, &to_look())?;
    Ok(VolumeTable::read(&*device)?)
}
