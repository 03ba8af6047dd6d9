//! The language of workloads: what the judge can make a file system do.

mod clones;
mod crowd;
mod directed;
mod generate;
mod large;
mod lists;
mod logs;
mod mounted;
mod pairs;
mod past;
mod smaller;
mod step;
mod waiting;

pub(crate) use crowd::{SHARED_PAGE_BYTES, SHARED_PAGES, generate_for_thread};
pub use directed::{DIRECTED, Directed};
pub use generate::generate;
pub(crate) use generate::generate_setup;
pub use mounted::generate_mounted;
pub use pairs::{generate_interleaved, pair, pair_count};
pub use step::Step;
pub(crate) use step::{
    AttributeStep, CaptureStep, CheckpointStep, ContentStep, ExtentStep, NameStep, OpenStep,
    StepKind, SyncStep,
};

use bedplate_fs::{AllocateMode, RenameMode};
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
    /// Whether the extent maps of files leave memory as soon as nothing looks at them.
    pub small_maps: bool,
    /// Whether a process with leases does the I/O that it is permitted.
    pub leases: bool,
    /// What the data lie on.
    pub backend: Backend,
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
        small_maps: false,
        leases: false,
        backend: Backend::One,
    };
    /// The same, where the extent maps of files leave memory at once.
    pub const SMALL_MAPS: Self = Self { small_maps: true, ..Self::DISK };
    /// The same, and another one for the log.
    pub const TWO_DISKS: Self = Self { separate_log: true, ..Self::DISK };
    /// A disk with blocks of 512 bytes, on which ten extents take three records.
    pub const SMALL: Self = Self { block_size: 512, per_record: 4, ..Self::DISK };
}

/// How names of automatic checkpoints begin.
pub(crate) const AUTOMATIC_PREFIX: char = 'a';

/// What a volume lies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Backend {
    /// One device.
    One,
    /// A mirror of two members.
    Mirror,
    /// A RAID-5 of three members.
    Raid5,
}

impl Backend {
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
    /// A bit turns in the so-manieth block of files that has a checksum, and stays so until something
    /// mends it.
    Decays(u16),
    /// The same of the so-manieth block of the volume's own: superblocks, log and metadata tree.
    OwnDecays(u16),
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
