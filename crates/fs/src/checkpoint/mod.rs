//! Checkpoints: point-in-time images of the file system, made in a time that depends on the number of open files and of names given.
//!
//! ```text
//!            epoch 1          epoch 2          epoch 3 (now)
//!   ────────────────────┬────────────────┬──────────────────▶
//!                 checkpoint 1      checkpoint 2
//!                 images of rows    images of rows            live rows
//!                 changed in 2      changed in 3
//! ```
//!
//! A checkpoint is a row, and the number of the epoch it ends. From then on a commit that changes a row of the past puts the old row into the
//! newest checkpoint that holds it, in the same record ([`capture`]); what a checkpoint shows is read through those images ([`view`]). Blocks that a
//! checkpoint may need are not written in place: the data path sees by an extent's birth epoch that it has to go elsewhere (`io/redirect.rs`).
//! Decision 0008 has the reasons.
//!
//! - I-CKP-1, I-CKP-2, I-CKP-3, I-CKP-7: see [`capture`].
//! - I-CKP-4: a checkpoint is made while nobody writes: no write of an open file is half in it.
//! - I-CKP-5: what a view shows never changes while the checkpoint exists.
//! - I-CKP-6: see [`clone`].

mod capture;
mod changed;
mod clone;
mod create;
mod diff;
mod diff_named;
mod freeze;
mod left;
mod load;
mod pressure;
mod remove;
mod report;
mod rollback;
mod room;
mod row;
mod run;
mod schedule;
mod shares;
mod subtree;
mod view;

pub(crate) use capture::{Capture, Checkpoint, Known, KnownRow};
pub(crate) use clone::{UNFINISHED, remove_passing};
pub(crate) use load::load;
pub(crate) use room::{Keeping, SPACE_POLICY, decode_policy};
#[cfg(any(test, feature = "forge"))]
pub(crate) use row::encode_image;
pub(crate) use row::{
    CheckpointRow, before_key, decode_image, image_extent, is_captured, put_image, scope_key, split_before_key, split_checkpoint_key, split_scope_key,
};
pub(crate) use run::Turns;
pub(crate) use schedule::SCHEDULE_PREFIX;
pub(crate) use shares::{Deltas, Others, Row as CoveringRow, Shares};
pub(crate) use view::Views;

pub use changed::ChangedBlocks;
pub use diff::{CheckpointDifference, DifferenceKind};
pub use pressure::Pressure;
pub use report::{
    ChangedKind, ChangedRange, CheckpointInfo, CheckpointOptions, CheckpointScope, CheckpointSpace, CloneReport, CloneSource, RollbackOptions,
    RollbackReport,
};
pub use room::{CheckpointCounts, SpacePolicy};
pub use run::ScheduleRun;
pub use schedule::{Moment, Schedule};
pub use view::CheckpointHold;
