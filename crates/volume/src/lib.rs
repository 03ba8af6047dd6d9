//! Volumes: one linear address space over devices. With one device it is the identity and costs nothing.
//!
//! A volume *is* a block device: who stands on it sees [`BlockDevice`](block::BlockDevice) and not how many devices there are. Several devices
//! form a [`Group`] with a label on every member; a group has a volume for data and, where wanted, one for the intent log.
//!
//! | file | holds |
//! | --- | --- |
//! | `layout/` | concatenated, striped, mirrored, RAID-5: values that say where an address lives, one file each |
//! | `config`, `label`, `assemble`, `create` | what a group is, its bytes on every member, who belongs to it and who is refused |
//! | `shape` | from what a user asks for to a layout |
//! | `plan`, `core`, `parallel`, `queue`, `device`, `buffers` | the data path: planning is pure, `core` acts, `queue` is the list interface |
//! | `parity/` | rows of a RAID-5: written, read without a member, the parity log, made to agree |
//! | `regions`, `drl`, `sync` | which regions may differ between copies, in memory and on the members, and making them agree |
//! | `scrub`, `pages/` | comparing copies, and asking a database's page which one is right |
//! | `schedule`, `patrol` | comparing them by themselves at regular times |
//! | `shared`, `membership`, `group`, `background` | members leave, come, take each other's places; import and close |
//! | `written_label`, `member_check` | members that something else wrote over while the group is open |
//! | `guest`, `window` | a member that failed moves into free space of the others |
//! | `meter`, `stats`, `estimate`, `throttle` | what is going on, and how fast work in the background may be for it |
//! | `space`, `relayout/` | where addresses live at a moment, and moving them to another layout while the volume is in use |
#![forbid(unsafe_code)]

mod arrival;
mod assemble;
mod background;
mod buffers;
mod config;
mod core;
mod create;
mod device;
mod drl;
mod error;
mod estimate;
mod findings;
#[cfg(feature = "forge")]
pub mod forge;
mod group;
mod guest;
mod id;
mod label;
mod layout;
mod live;
mod member_check;
mod membership;
mod meter;
mod pages;
mod parallel;
mod parity;
mod patrol;
mod plan;
mod planted;
mod queue;
mod regions;
mod relayout;
mod schedule;
mod scrub;
mod shape;
mod shared;
mod space;
mod stats;
mod sync;
mod throttle;
mod volume;
mod window;
mod wire;
mod written_label;

pub use arrival::Arrival;
pub use config::{Config, Member, MemberState, Role, VolumeConfig};
pub use create::{MEMBER_BYTES_MIN, NewGroup, create};
pub use error::{Error, ErrorKind, Result};
pub use findings::{FINDINGS_MAX, ScrubFinding};
pub use group::{Foreground, Group, ImportOptions, SyncProgress, WeakGroup};
pub use guest::{Guest, Piece};
pub use id::Id;
pub use label::Label;
pub use layout::{COPIES_MAX, Concat, Copy, Extent, Layout, Mirror, Raid5, Run, Stripe};
pub use membership::Which;
pub use pages::{HEAD_BYTES, Innodb, PageFormat, Postgres, Sqlite, page_formats};
pub use patrol::Judges;
pub use relayout::{Direction, Relayout, RelayoutProgress, RelayoutState, Target};
pub use schedule::{ScrubResult, ScrubRun, ScrubSchedule, ScrubTotals};
pub use scrub::{Difference, Judge, ScrubReport, Undecided};
pub use shape::{Arrangement, Shape, UNIT_BYTES_DEFAULT};
pub use stats::{MemberStatistics, OperationStatistics, PlexStatistics, VolumeStatistics};
pub use throttle::{FOREGROUND_PERCENT_DEFAULT, FOREGROUND_UNLIMITED};
pub use volume::{Volume, VolumeOptions};
