//! Volumes: one linear address space over devices. With one device it is the identity and costs
//! nothing.
//!
//! A volume *is* a block device: its users see [`BlockDevice`](bedplate_block::BlockDevice) and not
//! how many devices there are. Several devices form a [`Group`] with a label on every member; a
//! group has a volume for data and, where wanted, one for the intent log.
//!
//! Each module uses those above it in this table, and none below.
//!
//! | module | holds |
//! | --- | --- |
//! | `layout/` | concatenated, striped, mirrored, RAID-5, and a relayout between two: values that say where an address lives, one file each |
//! | `redundancy/` | which regions may differ between copies, in memory and on the members |
//! | `group/` | what a group is, its labels on every member, which devices belong to it and which are refused; the open members and how one leaves |
//! | `io/` | the data path: planning is pure, `volume_io` acts, `queue` is the list interface, `epoch` says where addresses live now; `resync` makes copies agree |
//! | `io/raid5/` | rows of a RAID-5: written, read without a member, the parity log, made to agree |
//! | `scrub/` | comparing copies, and asking a database's page which one is right |
//! | `meter`, `stats`, `watch`, `throttle`, `estimate` | what is going on, and how fast work in the background may be for it |
//! | `runtime/` | what an open group keeps; made, opened, closed; members come, leave and take each other's places |
//! | `relayout/` | moving addresses to another layout while the volume is in use |
//! | `relocate/` | a spare, or free space of others, takes the place of a member that failed |
//! | `background/` | the thread that does what is due: resync, relayout, relocation, scrubs on schedule |
//! | `open_group/` | the handle of an open group that users have |
//! | `divided/` | groups with many volumes: the table that says which parts of the members each has |
#![forbid(unsafe_code)]

mod background;
mod divided;
mod error;
mod estimate;
#[cfg(feature = "forge")]
pub mod forge;
mod group;
mod id;
mod io;
mod layout;
mod meter;
mod open_group;
mod planted;
mod redundancy;
mod relayout;
mod relocate;
mod runtime;
mod scrub;
mod stats;
mod throttle;
mod volume;
mod watch;
mod wire;

pub use divided::{
    NewDivided, NewVolume, OpenPieces, TABLE_BYTES, TableLock, TableMember, TableVolume,
    VolumePart, VolumeTable, add_member, add_volume, begin_replace, create_divided, end_replace,
    grow_volume, remove_member, remove_volume,
};
pub use error::{Error, ErrorKind, Result};
pub use group::{
    Config, FOREGROUND_PERCENT_DEFAULT, FOREGROUND_UNLIMITED, Label, Member, MemberState, Role,
    VolumeConfig, Which,
};
pub use group::{
    FINDINGS_MAX, Piece, RelocatedMember, ScrubFinding, ScrubResult, ScrubRun, ScrubSchedule,
    ScrubTotals, Split,
};
pub use id::Id;
pub use layout::{Arrangement, Direction, Relayout, Shape, UNIT_BYTES_DEFAULT};
pub use layout::{COPIES_MAX, Concat, Copy, Extent, Layout, Mirror, Raid5, Run, Stripe};
pub use open_group::{Foreground, Group, JoinHalf, JoinPlan, SyncProgress, WeakGroup};
#[cfg(feature = "planted-bugs")]
pub use planted::{Mistake, plant};
pub use relayout::{RelayoutProgress, RelayoutState, Target};
pub use runtime::{ArbiterProvider, Arrival, ImportOptions, MEMBER_BYTES_MIN, NewGroup, create};
pub use scrub::{
    Difference, HEAD_BYTES, Innodb, PageArbiter, PageFormat, Postgres, ScrubReport, Sqlite,
    Undecided, page_formats,
};
pub use stats::{MemberStatistics, OperationStatistics, PlexStatistics, VolumeStatistics};
pub use volume::{Volume, VolumeOptions};
