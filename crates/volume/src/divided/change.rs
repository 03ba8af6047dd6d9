//! Making groups with many volumes, and changing which volumes there are.

use std::ops::Range;
use std::sync::Arc;

use bedplate_block::{BlockDevice, Window, WindowPiece};

use super::{PIECE_UNIT_BYTES, TABLE_BYTES, TableMember, TableVolume, VolumePart, VolumeTable};
use crate::group::COPIES;
use crate::planted::{Mistake, is_planted};
use crate::runtime::{self, NewGroup};
use crate::{Arrangement, Config, Error, ErrorKind, Id, Label, MEMBER_BYTES_MIN, Result};

/// A volume that is to be made.
#[derive(Debug, Clone)]
pub struct NewVolume {
    /// Its name in the group: letters, digits, `-`, `_` and `.`, 1 to 64 of them.
    pub name: String,
    /// How it lies on its members. Of a plain mirror for which no members are named, `plexes` says
    /// how many it has.
    pub arrangement: Arrangement,
    /// How many bytes it has at least; `None`: all that is free on its members.
    pub size_bytes: Option<u64>,
    /// The members in the order of their places; none: all, of a mirror those with the most room.
    pub members: Vec<Id>,
}

/// What a new group with many volumes is made of. The devices are open for writing and claimed.
#[derive(Debug, Clone)]
pub struct NewDivided {
    /// Its name: letters, digits, `-`, `_` and `.`, 1 to 64 of them.
    pub name: String,
    /// The members.
    pub members: Vec<Arc<dyn BlockDevice>>,
    /// The volumes, at least one. They get their room in this order.
    pub volumes: Vec<NewVolume>,
    /// Makes members of devices that are members of a group already.
    pub force: bool,
}

/// Opens ranges of bytes of a member for writing, claimed: what they are of a member with an identity.
pub type OpenPieces<'a> = &'a dyn Fn(Id, &[Range<u64>]) -> Result<Arc<dyn BlockDevice>>;

/// The table of a group whose table areas are claimed: it may be changed.
#[derive(Debug)]
pub struct TableLock {
    heads: Vec<(Id, Arc<dyn BlockDevice>)>,
    table: VolumeTable,
}

impl TableLock {
    /// Takes the table of a group on the areas of its members ([`TABLE_BYTES`]), in any order, claimed
    /// for writing. A change that a power cut interrupted is brought to its end: all get the newest.
    ///
    /// # Errors
    /// As [`VolumeTable::read`] and [`VolumeTable::newest`]; `Foreign`, `Outdated`, `Duplicated` for
    /// a member that has no place, `Device`.
    pub fn open(devices: Vec<Arc<dyn BlockDevice>>) -> Result<Self> {
        let mut found = Vec::new();
        for device in devices {
            let (member, table) = VolumeTable::read(&*device)?;
            found.push((member, table, device));
        }
        let newest = VolumeTable::newest(found.iter().map(|(_, table, _)| table))?;
        let group = &newest.name;
        let mut heads: Vec<(Id, Arc<dyn BlockDevice>)> = Vec::new();
        let mut behind = false;
        for (member, table, device) in found {
            let name = device.name();
            if table.id != newest.id {
                let message =
                    format!("{name} belongs to the group {} and not to {group}", table.name);
                return Err(Error::new(ErrorKind::Foreign, message));
            }
            if newest.member(member).is_none() {
                let message = format!("{name} is outdated: it was replaced in the group {group}");
                return Err(Error::new(ErrorKind::Outdated, message));
            }
            if let Some((_, other)) = heads.iter().find(|(other, _)| *other == member) {
                let message = format!(
                    "{} and {name} are the same member of the group {group}: one is a copy of the \
                     other",
                    other.name()
                );
                return Err(Error::new(ErrorKind::Duplicated, message));
            }
            behind |= table.event != newest.event;
            heads.push((member, device));
        }
        let lock = Self { heads, table: newest };
        if behind {
            lock.write(&lock.table)?;
        }
        Ok(lock)
    }

    /// Returns the table.
    #[must_use]
    pub fn table(&self) -> &VolumeTable {
        &self.table
    }

    /// Changes the table durably on all members; `new` are the areas of members that come.
    ///
    /// # Errors
    /// `Missing` where a member is not there that stays, `Invalid` for a table that cannot be,
    /// `Device`: then some members may have the new table, and the next [`open`](Self::open) says
    /// which one counts.
    pub fn change(
        &mut self,
        new: &[(Id, Arc<dyn BlockDevice>)],
        change: impl FnOnce(&mut VolumeTable) -> Result<()>,
    ) -> Result<()> {
        let mut table = self.table.clone();
        table.event += 1;
        change(&mut table)?;
        if let Some(what) = table.fault() {
            return Err(Error::invalid(format!("group {}: {what}", table.name)));
        }
        self.heads.extend(new.iter().cloned());
        self.heads.retain(|(id, _)| table.member(*id).is_some());
        self.refuse_missing(&table)?;
        self.write(&table)?;
        assert!(
            self.missing(&table).is_empty() || is_planted(Mistake::TableWithoutMember),
            "I-TAB-2: every member that stays has the table"
        );
        self.table = table;
        Ok(())
    }

    /// Refuses to change the table where a member that stays is not there.
    pub(super) fn refuse_incomplete(&self) -> Result<()> {
        self.refuse_missing(&self.table)
    }

    /// Returns the area of a member, where it is there.
    pub(super) fn head(&self, member: Id) -> Option<Arc<dyn BlockDevice>> {
        self.heads.iter().find(|(id, _)| *id == member).map(|(_, device)| Arc::clone(device))
    }

    /// Returns where the members of a table are that stay and are not there.
    fn missing(&self, table: &VolumeTable) -> Vec<String> {
        let has = |id: Id| self.heads.iter().any(|(head, _)| *head == id);
        let missing =
            table.members.iter().filter(|member| !has(member.id) && !table.leaves(member.id));
        missing.map(|member| member.path.clone()).collect()
    }

    /// Refuses a change that a member would miss which stays (I-TAB-2).
    fn refuse_missing(&self, table: &VolumeTable) -> Result<()> {
        let missing = self.missing(table);
        if missing.is_empty() || is_planted(Mistake::TableWithoutMember) {
            return Ok(());
        }
        let (group, missing) = (&table.name, missing.join(", "));
        let message = format!(
            "group {group}: {missing} is not there and would miss the change: connect it, or put \
             another device in its place with 'bedplate volume replace' first"
        );
        Err(Error::new(ErrorKind::Missing, message))
    }

    fn write(&self, table: &VolumeTable) -> Result<()> {
        assert!(table.fault().is_none(), "I-TAB-1: no byte of a member belongs to two volumes");
        for copy in 0..COPIES.len() {
            for (member, device) in &self.heads {
                table.write_copy(copy, *member, &**device)?;
            }
        }
        Ok(())
    }

    /// Returns the largest block of the members in bytes.
    fn block_bytes(&self) -> u64 {
        block_of(self.heads.iter().map(|(_, device)| device))
    }
}

fn block_of<'a>(devices: impl Iterator<Item = &'a Arc<dyn BlockDevice>>) -> u64 {
    devices.map(|device| u64::from(device.geometry().logical_block_size)).max().unwrap_or(512)
}

/// Makes a group with many volumes and returns its table. What the devices held is gone; of what is
/// refused nothing was written.
///
/// # Errors
/// `Invalid` when members or volumes do not fit together, `Foreign` when a device belongs to a group
/// already, `Device`.
pub fn create_divided(new: &NewDivided) -> Result<VolumeTable> {
    let mut table = VolumeTable {
        id: Id::random(),
        name: new.name.clone(),
        event: 1,
        members: Vec::new(),
        volumes: Vec::new(),
    };
    for device in &new.members {
        table.members.push(member_of(device, new.force)?);
    }
    let heads: Vec<_> =
        table.members.iter().map(|member| member.id).zip(new.members.clone()).collect();
    let fault =
        |table: &VolumeTable| table.fault().map_or(Ok(()), |what| Err(Error::invalid(what)));
    fault(&table)?;
    let block = block_of(new.members.iter());
    for volume in &new.volumes {
        let parts = table.lay_out(volume, block)?;
        table.volumes.push(TableVolume { id: Id::random(), name: volume.name.clone(), parts });
    }
    fault(&table)?;
    for device in &new.members {
        Label::erase(&**device)?;
    }
    let open = |member: Id, pieces: &[Range<u64>]| {
        let device = heads.iter().find(|(id, _)| *id == member).map(|(_, device)| device);
        Ok(window(device.expect("a part lies on a member"), pieces))
    };
    for (at, volume) in new.volumes.iter().enumerate() {
        let parts = table.volumes[at].parts.clone();
        table.volumes[at].id = make(&table, volume, &parts, &open)?.id;
    }
    let lock = TableLock { heads, table };
    lock.write(&lock.table)?;
    Ok(lock.table)
}

/// Returns the entry of a device that becomes a member.
///
/// # Errors
/// `Invalid` where it is read-only or too small, `Foreign` where it is another group's and not
/// forced.
pub(super) fn member_of(device: &Arc<dyn BlockDevice>, force: bool) -> Result<TableMember> {
    let name = device.name();
    if device.geometry().read_only {
        return Err(Error::invalid(format!("{name} is read-only and cannot be a member")));
    }
    if !force {
        runtime::refuse_foreign(device, None)?;
    }
    let size_bytes = device.size_bytes() - device.size_bytes() % PIECE_UNIT_BYTES;
    let least = TABLE_BYTES.end + MEMBER_BYTES_MIN;
    if size_bytes < least {
        return Err(Error::invalid(format!(
            "{name} has {} MiB, and a member of a group with many volumes at least {}",
            size_bytes >> 20,
            least >> 20
        )));
    }
    Ok(TableMember { id: Id::random(), path: name.to_owned(), size_bytes, replaces: None })
}

fn window(device: &Arc<dyn BlockDevice>, pieces: &[Range<u64>]) -> Arc<dyn BlockDevice> {
    let piece = |piece: &Range<u64>| WindowPiece {
        device: Arc::clone(device),
        start: piece.start,
        len: piece.end - piece.start,
    };
    let part = bedplate_block::Part { device: device.name().into(), pieces: pieces.to_vec() };
    let name = part.path().display().to_string();
    Window::open(name, pieces.iter().map(piece).collect())
}

/// Makes the group that a volume is, on parts that no table names yet.
fn make(
    table: &VolumeTable,
    new: &NewVolume,
    parts: &[VolumePart],
    open: OpenPieces<'_>,
) -> Result<Config> {
    let members =
        parts.iter().map(|part| open(part.member, &part.pieces)).collect::<Result<Vec<_>>>()?;
    runtime::create_named(&NewGroup {
        name: table.whole_name(&new.name),
        data: new.arrangement,
        members,
        log_members: Vec::new(),
        spares: Vec::new(),
        region_bytes: None,
        reserve_bytes: 0,
        // What was a volume's before it was removed may still look like one.
        force: true,
    })
}

/// Adds a volume in free space of the members, and returns the configuration of the group that it is.
///
/// # Errors
/// `Invalid` when it does not fit, `Missing` when a member of the group is not there, `Device`.
pub fn add_volume(lock: &mut TableLock, new: &NewVolume, open: OpenPieces<'_>) -> Result<Config> {
    let parts = lock.table.lay_out(new, lock.block_bytes())?;
    let name = new.name.clone();
    let volume = TableVolume { id: Id::random(), name, parts };
    let mut planned = lock.table.clone();
    planned.volumes.push(volume.clone());
    if let Some(what) = planned.fault() {
        return Err(Error::invalid(format!("group {}: {what}", planned.name)));
    }
    lock.refuse_missing(&planned)?;
    if is_planted(Mistake::TableBeforeVolume) {
        lock.change(&[], |table| {
            table.volumes.push(volume.clone());
            Ok(())
        })?;
        return make(&lock.table, new, &volume.parts, open);
    }
    let config = make(&lock.table, new, &volume.parts, open)?;
    lock.change(&[], |table| {
        table.volumes.push(TableVolume { id: config.id, ..volume });
        Ok(())
    })?;
    Ok(config)
}

/// Takes a volume out of the table; what it held is gone, and its room is free.
///
/// # Errors
/// `NotFound`, those of `open` where a part is in use, `Missing` when a member of the group is not
/// there, `Device`.
pub fn remove_volume(lock: &mut TableLock, name: &str, open: OpenPieces<'_>) -> Result<()> {
    let volume = lock.table.volume(name).cloned().ok_or_else(|| {
        let group = &lock.table.name;
        Error::new(ErrorKind::NotFound, format!("group {group} has no volume {name}"))
    })?;
    lock.refuse_incomplete()?;
    // Nothing else has them from here on.
    let parts = volume
        .parts
        .iter()
        .filter(|part| lock.head(part.member).is_some())
        .map(|part| open(part.member, &part.pieces))
        .collect::<Result<Vec<_>>>()?;
    lock.change(&[], |table| {
        table.volumes.retain(|other| other.name != name);
        Ok(())
    })?;
    for part in parts {
        // No table names it any more, so a label that stays is found by nothing.
        if let Err(error) = Label::erase(&*part) {
            tracing::warn!(volume = name, part = part.name(), %error,
                "the label of a volume that was removed stays in free space");
        }
    }
    Ok(())
}

/// Makes the parts of a volume larger, by so many bytes on members; the volume itself grows into them
/// with [`Group::grow`](crate::Group::grow) when it is opened on them next.
///
/// # Errors
/// `Invalid` when there is not the room, `NotFound`, those of `open` where a part is in use,
/// `Missing` when a member of the group is not there, `Device`.
pub fn grow_volume(
    lock: &mut TableLock,
    name: &str,
    more: &[(Id, u64)],
    open: OpenPieces<'_>,
) -> Result<()> {
    let group = &lock.table.name;
    let volume = lock.table.volume(name).ok_or_else(|| {
        Error::new(ErrorKind::NotFound, format!("group {group} has no volume {name}"))
    })?;
    let _claimed = volume
        .parts
        .iter()
        .map(|part| open(part.member, &part.pieces))
        .collect::<Result<Vec<_>>>()?;
    lock.change(&[], |table| {
        more.iter().filter(|(_, bytes)| *bytes > 0).try_for_each(|(member, bytes)| {
            let whole = bytes.checked_next_multiple_of(PIECE_UNIT_BYTES).unwrap_or(u64::MAX);
            table.extend(name, *member, whole)
        })
    })
}
