//! What a group is: its configuration, the labels that say so on every member, which devices belong
//! to it; and of an open one the members and their states.

mod assemble;
mod config;
mod encoding;
mod findings;
mod label;
mod member_handle;
mod relocated;
mod renewed;
mod schedule;
mod split;
mod state;
mod which;
mod written_label;

pub(crate) use assemble::{Assembly, Found, assemble};
pub use config::{
    Config, FOREGROUND_PERCENT_DEFAULT, FOREGROUND_UNLIMITED, Member, MemberState, Role,
    VolumeConfig,
};
pub(crate) use config::{FOREGROUND_PERCENT_MIN, MEMBERS_MAX, REGION_BYTES_MIN, VOLUMES_MAX};
pub(crate) use findings::FINDING_COPIES_MAX;
pub use findings::{FINDINGS_MAX, ScrubFinding};
pub use label::Label;
#[cfg(feature = "forge")]
pub(crate) use label::reseal;
pub(crate) use label::{
    COPIES, DATA_START_MIN, EVENT_MAX, HEAD_BYTES, MAGIC, SLOT_BYTES, TABLE_VERSION,
};
pub(crate) use label::{block_bytes, sealed, slot_of, write_copy};
pub(crate) use member_handle::MemberHandle;
pub use relocated::{Piece, RelocatedMember};
pub(crate) use relocated::{find, pieces_for, window_on};
pub(crate) use renewed::Difference;
pub(crate) use schedule::TimePoint;
pub use schedule::{ScrubResult, ScrubRun, ScrubSchedule, ScrubTotals};
pub use split::Split;
pub(crate) use state::{GroupState, Handles};
pub use which::Which;
