//! Groups with many volumes: found, their table claimed, and each of their volumes found.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate::{
    BlockDevice, DeviceOptions, GroupError, Id, TABLE_BYTES, TableLock, TableVolume, VolumePart,
    VolumeTable,
};
use bedplate_block::Part;

use super::find::{
    FoundTable, Located, PREFIX, by_name, everything, is_block_device, name_a_volume, share_bytes,
    table_of, tables_beside,
};
use crate::device::{explain_busy, place};
use crate::failure::{Failure, Result};

/// A group with many volumes that was found.
#[derive(Debug, Clone)]
pub struct Divided {
    /// The newest table.
    pub table: VolumeTable,
    /// The members that were found, and where.
    pub members: Vec<(Id, PathBuf)>,
    /// Devices with a table of the group that have no place in it.
    pub outdated: Vec<PathBuf>,
}

/// Finds the group with many volumes that is named, by a member's path or as `group:NAME`; `None`
/// where the name is that of something else.
///
/// # Errors
/// `ambiguous` where two groups have the name; those of a table.
pub fn divided(name: &Path) -> Result<Option<Divided>> {
    if let Some(name) = name.to_str().and_then(|text| text.strip_prefix(PREFIX)) {
        let (_, mut tables) = everything(&[PathBuf::from(".")]);
        tables.retain(|(_, _, table)| table.name == name);
        let Some(id) = tables.first().map(|(_, _, table)| table.id) else { return Ok(None) };
        if let Some((path, _, _)) = tables.iter().find(|(_, _, table)| table.id != id) {
            let path = path.display();
            let message = format!(
                "there is more than one group {name}, one of them with {path}: name a member's path"
            );
            return Err(Failure::new("ambiguous", message));
        }
        return found(tables, id).map(Some);
    }
    if place::is_remote(name) || place::file_of(name) != name || !name.exists() || name.is_dir() {
        return Ok(None);
    }
    // What is no such member is told by what it is taken for.
    let Ok((_, table)) = table_of(name) else { return Ok(None) };
    let id = table.id;
    found(tables_beside(name)?, id).map(Some)
}

fn found(tables: Vec<FoundTable>, id: Id) -> Result<Divided> {
    let own: Vec<FoundTable> = tables.into_iter().filter(|(_, _, table)| table.id == id).collect();
    let table = VolumeTable::newest(own.iter().map(|(_, _, table)| table))?;
    let (mut members, mut outdated): (Vec<(Id, PathBuf)>, Vec<PathBuf>) = Default::default();
    for (path, member, _) in own {
        if table.member(member).is_none() {
            outdated.push(path);
            continue;
        }
        // An image and the loop device over it are one member, used through the loop device.
        let is_same = |(id, other): &(Id, PathBuf)| *id == member && share_bytes(&path, other);
        match members.iter().position(is_same) {
            Some(at) if is_block_device(&path) => members[at].1 = path,
            Some(_) => {}
            None => members.push((member, path)),
        }
    }
    let place = |id: &Id| table.members.iter().position(|member| member.id == *id);
    members.sort_by_key(|(id, _)| place(id));
    Ok(Divided { table, members, outdated })
}

impl Divided {
    /// Says how the volumes are named, where one is needed.
    pub fn name_a_volume(&self) -> Failure {
        name_a_volume(&self.table)
    }

    /// Returns where a member is, if it was found.
    pub fn path_of(&self, member: Id) -> Option<&Path> {
        self.members.iter().find(|(id, _)| *id == member).map(|(_, path)| path.as_path())
    }

    /// Returns the path of what a volume has of a member, if that was found.
    pub fn part_path(&self, part: &VolumePart) -> Option<PathBuf> {
        let device = self.path_of(part.member)?.to_owned();
        Some(Part { device, pieces: part.pieces.clone() }.path())
    }

    /// Returns the member that is named by its path.
    ///
    /// # Errors
    /// `not_found`, with the members that there are.
    pub fn member_at(&self, name: &Path) -> Result<Id> {
        let path = place::whole(name).or_else(|_| std::path::absolute(name));
        let path = path.unwrap_or_else(|_| name.to_owned());
        let here = self.members.iter().find(|(_, found)| *found == path).map(|(id, _)| *id);
        let known = self.table.members.iter().filter(|member| self.path_of(member.id).is_none());
        let was = || known.clone().find(|member| Path::new(&member.path) == path);
        here.or_else(|| was().map(|member| member.id)).ok_or_else(|| {
            let names: Vec<&str> =
                self.table.members.iter().map(|member| member.path.as_str()).collect();
            let (group, name, names) = (&self.table.name, name.display(), names.join(", "));
            let message = format!("group {group} has no member {name}: its members are {names}");
            Failure::new("not_found", message)
        })
    }

    /// Claims the table on all members that were found. What a power cut left of a change is brought
    /// to its end.
    ///
    /// # Errors
    /// `busy` where another command changes the group, and those of the table.
    pub fn lock(&self) -> Result<TableLock> {
        for path in &self.outdated {
            let (path, group) = (path.display(), &self.table.name);
            tracing::warn!("{path} was replaced in the group {group}; it is left alone");
        }
        let head = |(_, path): &(Id, PathBuf)| open_pieces(path, &[TABLE_BYTES]);
        let heads = self.members.iter().map(head).collect::<Result<Vec<_>>>()?;
        Ok(TableLock::open(heads)?)
    }

    /// Claims pieces of a member.
    ///
    /// # Errors
    /// `Missing` where the member was not found, those of the device.
    pub fn open(
        &self,
        member: Id,
        pieces: &[Range<u64>],
    ) -> std::result::Result<Arc<dyn BlockDevice>, GroupError> {
        let path = self.path_of(member).ok_or_else(|| {
            let known = self.table.member(member).map_or("a member", |member| &member.path);
            let message = format!("group {}: {known} was not found", self.table.name);
            GroupError { kind: bedplate::GroupErrorKind::Missing, message, source: None }
        })?;
        let part = Part { device: path.to_owned(), pieces: pieces.to_vec() };
        Ok(bedplate_block::open(part.path(), &DeviceOptions::default())?)
    }

    /// Finds one of its volumes.
    ///
    /// # Errors
    /// `not_found` where none of its parts has a label that can be read.
    pub fn volume(&self, volume: &TableVolume) -> Result<Located> {
        let paths = volume.parts.iter().filter_map(|part| self.part_path(part));
        let found = paths.filter_map(|path| super::of_member(&path).ok().flatten()).next();
        let name = self.table.whole_name(&volume.name);
        found.map_or_else(|| by_name(&name), Ok)
    }
}

/// Claims pieces of a device for writing.
pub fn open_pieces(path: &Path, pieces: &[Range<u64>]) -> Result<Arc<dyn BlockDevice>> {
    let part = Part { device: path.to_owned(), pieces: pieces.to_vec() };
    let options = DeviceOptions::default();
    bedplate_block::open(part.path(), &options).map_err(|error| explain_busy(path, error.into()))
}
