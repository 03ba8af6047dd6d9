//! The language of workloads: what the judge can make a file system do.

mod clones;
mod crowd;
mod directed;
mod generate;
mod mounted;
mod pairs;
mod past;

pub(crate) use crowd::{SHARED_PAGE_BYTES, SHARED_PAGES, generate_for_thread};
pub use directed::{DIRECTED, Directed};
pub use generate::generate;
pub(crate) use generate::generate_setup;
pub use mounted::generate_mounted;
pub use pairs::{generate_interleaved, pair, pair_count};

use bedplate_fs::{AllocateMode, IoMode, RenameMode};
use bedplate_volume::{Arrangement, Shape};
use serde::Serialize;

/// The volume a workload runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Setup {
    /// Sector of the simulated device in bytes.
    pub sector: u32,
    /// Block size of the file system in bytes.
    pub block_size: u32,
    /// What the device writes untorn by itself, in bytes; at least a sector.
    pub untorn_unit: u32,
    /// Whether the device has a volatile cache.
    pub volatile_cache: bool,
    /// Whether the log has a device of its own.
    pub separate_log: bool,
    /// How many extents or names one record of a long change takes; 0: as many as in the product.
    pub per_record: u16,
    /// What the data lie on.
    pub ground: Ground,
}

impl Setup {
    /// A disk with 512-byte sectors and a volatile cache under blocks of 4 KiB.
    pub const DISK: Self = Self {
        sector: 512,
        block_size: 4096,
        untorn_unit: 512,
        volatile_cache: true,
        separate_log: false,
        per_record: 0,
        ground: Ground::One,
    };
    /// The same, and another one for the log.
    pub const TWO_DISKS: Self = Self { separate_log: true, ..Self::DISK };
    /// A disk with blocks of 512 bytes, on which ten extents take three records.
    pub const SMALL: Self = Self { block_size: 512, per_record: 4, ..Self::DISK };
}

/// How names of automatic checkpoints begin.
pub(crate) const AUTOMATIC_PREFIX: char = 'a';

/// What a volume lies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Ground {
    /// One device.
    One,
    /// A mirror of two members.
    Mirror,
    /// A RAID-5 of three members.
    Raid5,
}

impl Ground {
    /// What interleaved workloads run on: two in five of them on groups.
    pub const MIXED: [Self; 5] = [Self::One, Self::One, Self::One, Self::Mirror, Self::Raid5];
    /// All that have several members.
    pub const GROUPS: [Self; 2] = [Self::Mirror, Self::Raid5];

    /// How many devices hold data.
    pub(crate) fn members(self) -> usize {
        match self {
            Self::One => 1,
            Self::Mirror => 2,
            Self::Raid5 => 3,
        }
    }

    /// Size of a member in bytes: a group is compared as a whole now and then, so it has hardly
    /// more than the smallest volume needs.
    pub(crate) fn member_bytes(self) -> u64 {
        match self {
            Self::One | Self::Mirror => 36 << 20,
            Self::Raid5 => 20 << 20,
        }
    }

    /// How they are arranged, where there are several.
    pub(crate) fn arrangement(self) -> Option<Arrangement> {
        let shape = match self {
            Self::One => return None,
            Self::Mirror => Shape::Mirror,
            Self::Raid5 => Shape::Raid5,
        };
        Some(Arrangement { shape, unit_bytes: 16 << 10, plexes: 2 })
    }
}

/// What an operation on a file works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// The file slot in the directory slot, opened for this step.
    Name(u8, u8),
    /// What a [`Step::Hold`] keeps open in this slot, perhaps without a name by now.
    Held(u8),
}

/// One step. Files, directories and held opens are numbered slots, so that any subset of steps can
/// run: what cannot be carried out is refused by the file system and by the model alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Makes file slot, in directory slot.
    Create(u8, u8),
    /// Makes a symbolic link to a path of this many bytes.
    Symlink(u8, u8, u16),
    /// Makes a directory.
    MakeDirectory(u8),
    /// Removes a file's name.
    Unlink(u8, u8),
    /// Removes a directory.
    RemoveDirectory(u8),
    /// Renames file slot in directory to another file slot in another directory.
    Rename(u8, u8, u8, u8, RenameKind),
    /// Renames a directory, over another if that is empty.
    RenameDirectory(u8, u8),
    /// Gives a file another name.
    Link(u8, u8, u8, u8),
    /// Sets permission bits, and an owner that follows from them.
    SetMode(u8, u8, u32),
    /// Sets or clears the I/O mode of a file, also while it is open.
    SetIoMode(u8, u8, Option<IoMode>),
    /// Sets one of a file's attributes to so many bytes.
    SetAttribute(u8, u8, u8, u16),
    /// Removes one of a file's attributes.
    RemoveAttribute(u8, u8, u8),
    /// Opens a file in a mode and keeps it open in a slot, instead of what that kept.
    Hold(u8, u8, u8, IoMode),
    /// Closes what a slot keeps open.
    Release(u8),
    /// Writes in a mode (a held file in its own): offset, length, fill; `O_DSYNC` when the last is
    /// set.
    Write(On, IoMode, u64, u32, u8, bool),
    /// Appends in a mode: length, fill; `O_DSYNC` when the last is set.
    Append(u8, u8, IoMode, u32, u8, bool),
    /// Appends to what a slot holds open: length, fill.
    AppendHeld(u8, u32, u8),
    /// Reads in a mode, and compares: offset, length.
    Read(On, IoMode, u64, u32),
    /// Sets the size.
    SetSize(On, u64),
    /// Sets the size of a file by its path, which nothing need have open.
    Truncate(u8, u8, u64),
    /// Remembers, in a slot, an inode that a name leads to, as a kernel does that looked it up: it
    /// lives on without names until it is forgotten.
    Retain(u8, u8, u8),
    /// Forgets what a slot remembers.
    Forget(u8),
    /// `fallocate`.
    Allocate(On, Change, u64, u64),
    /// `sync_data`.
    SyncData(On),
    /// `sync_all`.
    SyncAll(On),
    /// Syncs a directory.
    SyncDirectory(u8),
    /// Makes checkpoint slot: of everything, or of a directory slot.
    Checkpoint(u8, Option<u8>),
    /// Makes automatic checkpoint slot, of everything; one that is kept where the last is set. The
    /// others go when the volume is full, if that is the policy.
    Automatic(u8, bool),
    /// Sets the policy of a full volume: `delete-oldest` where it is set, otherwise `refuse`.
    Policy(bool),
    /// Compares a checkpoint of everything with the present.
    Diff(u8),
    /// Deletes a checkpoint.
    DeleteCheckpoint(u8),
    /// Rolls back to a checkpoint; what is open too, when the last is set.
    Rollback(u8, Back, bool),
    /// Lets a file slot in a directory slot, or the directory slot itself, be written untorn in
    /// units of so many bytes, or no longer.
    SetUntorn(Option<u8>, u8, Option<u32>),
    /// Moves what is scattered of a file together; what checkpoints need too, when the last is set.
    Defragment(On, bool),
    /// Clones file slot of directory slot, of a checkpoint or of the present, to a file slot of the
    /// root.
    Clone(Option<u8>, u8, u8, u8),
    /// Clones a directory slot, of a checkpoint or of the present, to another.
    CloneDirectory(Option<u8>, u8, u8),
    /// Syncs everything.
    Sync,
    /// The device grows by so many MiB, and the file system takes them over.
    Grow(u8),
    /// Unmounts and mounts.
    Remount,
    /// The process dies and the volume is mounted again; the device keeps what it was told.
    Kill,
    /// The process dies in the middle of a step, after so many calls of devices, or right after it,
    /// and the volume is mounted again.
    Die(Box<Step>, u16),
    /// A member of the group answers no more, if all others hold everything.
    Vanish(u8),
    /// The member that answers no more is there again, as it was, from the next mount on.
    Return,
    /// Something else writes over a member of the group with what that held when the group was
    /// made, or with zeros, if all hold everything; the group notices it. The member does not come
    /// back.
    Overwrite(u8, bool),
    /// Something ails a member of the group, if all others hold everything.
    Ail(u8, Ailment),
    /// The group compares its copies, and what could not be read is good again.
    Scrub,
    /// Carries out a step in the middle of another, each on a thread of its own of which only one
    /// runs at a time: the first begins, and the turn goes over after so many points at which it
    /// may, and back after so many, until the numbers are used up.
    During(Box<Step>, Box<Step>, Vec<u16>),
}

impl Step {
    /// Whether it mounts or changes devices, which the recorder does, or is made of other steps.
    pub(crate) fn is_recorders(&self) -> bool {
        let of_members = matches!(
            self,
            Self::Vanish(_) | Self::Return | Self::Overwrite(..) | Self::Ail(..) | Self::Scrub
        );
        let of_devices = of_members || matches!(self, Self::Grow(_));
        of_devices || matches!(self, Self::Remount | Self::Kill | Self::Die(..) | Self::During(..))
    }

    /// The file that it finds by a path, before it does anything to it: file slot, directory slot,
    /// and whether it opens it.
    pub(crate) fn reaches(&self) -> Option<(u8, u8, bool)> {
        match *self {
            Self::Write(On::Name(file, dir), ..)
            | Self::Read(On::Name(file, dir), ..)
            | Self::SetSize(On::Name(file, dir), _) => Some((file, dir, true)),
            Self::Allocate(On::Name(file, dir), ..)
            | Self::Defragment(On::Name(file, dir), _)
            | Self::Append(file, dir, ..) => Some((file, dir, true)),
            Self::SyncData(On::Name(file, dir))
            | Self::SyncAll(On::Name(file, dir))
            | Self::Hold(_, file, dir, _) => Some((file, dir, true)),
            Self::SetMode(file, dir, _)
            | Self::SetIoMode(file, dir, _)
            | Self::Truncate(file, dir, _) => Some((file, dir, false)),
            Self::Retain(_, file, dir) | Self::Link(file, dir, ..) => Some((file, dir, false)),
            Self::SetAttribute(file, dir, ..)
            | Self::RemoveAttribute(file, dir, _)
            | Self::SetUntorn(Some(file), dir, _) => Some((file, dir, false)),
            _ => None,
        }
    }

    /// Whether what it makes gets a number or a line that is not known beforehand.
    pub(crate) fn makes(&self) -> bool {
        let made = matches!(
            self,
            Self::Create(..)
                | Self::Symlink(..)
                | Self::MakeDirectory(_)
                | Self::Clone(..)
                | Self::CloneDirectory(..)
        );
        made || matches!(self, Self::Checkpoint(..) | Self::Automatic(..) | Self::Diff(_))
    }
}

/// What ails a member of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ailment {
    /// It answers no more after so many further calls: in the middle of a step.
    Dies(u16),
    /// So many pages of it cannot be read, from the so-manieth on of those that were written, until
    /// something is written there.
    Unreadable(u16, u8),
    /// A bit turns in one of the copies of its label.
    LabelRots(u8),
    /// A bit turns in its dirty region log.
    RegionLogRots(u16),
    /// A bit turns in the so-manieth page of those that were written. The group compares its
    /// copies.
    Rots(u16),
    /// It goes, and the group goes on without it. When it returns it holds what it held when the
    /// group was made, or nothing.
    Exchanged(bool),
}

/// What is rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Back {
    /// Everything.
    Everything,
    /// File slot in directory slot.
    File(u8, u8),
    /// A directory slot with all that is in it.
    Directory(u8),
}

impl Back {
    /// The path of what is rolled back; `None`: everything.
    pub(crate) fn path(self) -> Option<String> {
        match self {
            Self::Everything | Self::Directory(0) => None,
            Self::File(file, dir) => Some(file_path(file, dir)),
            Self::Directory(dir) => Some(dir_path(dir)),
        }
    }
}

/// What a rename does with its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameKind {
    /// Replaces it.
    Replace,
    /// Swaps with it.
    Exchange,
}

impl From<RenameKind> for RenameMode {
    fn from(kind: RenameKind) -> Self {
        match kind {
            RenameKind::Replace => Self::Replace,
            RenameKind::Exchange => Self::Exchange,
        }
    }
}

/// A change of allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Preallocates and extends.
    Preallocate,
    /// Preallocates behind the end.
    PreallocateKeep,
    /// Punches a hole.
    Punch,
    /// Zeroes and extends.
    Zero,
    /// Removes a range.
    Collapse,
    /// Inserts a hole.
    Insert,
}

impl From<Change> for AllocateMode {
    fn from(change: Change) -> Self {
        match change {
            Change::Preallocate => Self::Preallocate { keep_size: false },
            Change::PreallocateKeep => Self::Preallocate { keep_size: true },
            Change::Punch => Self::PunchHole,
            Change::Zero => Self::ZeroRange { keep_size: false },
            Change::Collapse => Self::CollapseRange,
            Change::Insert => Self::InsertRange,
        }
    }
}

/// Steps that fill a volume of the judge's size but for some hundred KiB, with a file that nothing
/// else has: what is written over the blocks of a checkpoint then finds no room.
fn fill(filler: On) -> Vec<Step> {
    let On::Name(file, dir) = filler else { unreachable!("it is made here") };
    let mut steps = vec![Step::Create(file, dir)];
    let mut at = 0;
    // What does not fit is refused.
    for kib in (6..16).rev().map(|power| 1_u64 << power) {
        steps.push(Step::Allocate(filler, Change::PreallocateKeep, at, kib << 10));
        at += kib << 10;
    }
    steps.extend([Step::Allocate(filler, Change::Punch, 0, FREE_BYTES), Step::Sync]);
    steps
}

/// Room that is left on a volume that was filled, roughly.
const FREE_BYTES: u64 = 320 << 10;

/// Bytes that tell which write and which place they came from.
pub(crate) fn pattern(offset: u64, len: u32, fill: u8) -> Vec<u8> {
    let byte =
        |at: u64| fill.wrapping_add(u8::try_from((at / 512) % 251).expect("below 251")).max(1);
    (offset..offset + u64::from(len)).map(byte).collect()
}

/// The path of a directory slot.
pub(crate) fn dir_path(dir: u8) -> String {
    if dir == 0 { "/".into() } else { format!("/d{dir}") }
}

/// The path of a file slot.
pub(crate) fn file_path(file: u8, dir: u8) -> String {
    if dir == 0 { format!("/f{file}") } else { format!("/d{dir}/f{file}") }
}
