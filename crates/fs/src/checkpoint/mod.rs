//! Checkpoints: point-in-time images of the file system, made in a time that depends on the number
//! of open files and of names given.
//!
//! ```text
//!            epoch 1          epoch 2          epoch 3 (now)
//!   ────────────────────┬────────────────┬──────────────────▶
//!                 checkpoint 1      checkpoint 2
//!                 images of rows    images of rows            live rows
//!                 changed in 2      changed in 3
//! ```
//!
//! A checkpoint is a row, and the number of the epoch it ends. From then on a commit that changes a
//! row of the past puts the old row into the newest checkpoint that holds it, in the same record
//! (`images/before_image.rs`); what a checkpoint shows is read through those images
//! (`engine/views.rs`). Blocks that a checkpoint may need are not written in place: the data path
//! sees by an extent's birth epoch that it has to go elsewhere (`data/cow.rs`). Decision 0008 has
//! the reasons.
//!
//! - I-CKP-1, I-CKP-2, I-CKP-3, I-CKP-7: see `images/before_image.rs`.
//! - I-CKP-4: a checkpoint is made while nothing is written: no write of an open file is half in
//!   it.
//! - I-CKP-5: what a view shows never changes while the checkpoint exists.
//! - Checkpoints are deleted in steps: `images/before_image.rs` states it (I-CKP-10).
//! - Files of one family share blocks: [`clone`] states it (I-CKP-6).

mod changed;
mod clone;
mod create;
mod deletion;
mod diff;
mod diff_named;
mod freeze;
mod hold;
mod pressure;
mod remove;
mod report;
mod rollback;
mod room;
mod run;
mod subtree;

pub(crate) use clone::{UNFINISHED, remove_passing};

pub use changed::ChangedBlocks;
pub use diff::{CheckpointDifference, DifferenceKind};
pub use hold::CheckpointHold;
pub use pressure::Pressure;
pub use report::{
    ChangedKind, ChangedRange, CheckpointInfo, CheckpointOptions, CheckpointScope, CheckpointSpace,
    CloneReport, CloneSource, RollbackOptions, RollbackReport,
};
pub use run::ScheduleRun;
