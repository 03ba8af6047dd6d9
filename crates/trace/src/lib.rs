//! What I/O a program does: recorded in memory that processes share, kept in one file, told as a
//! summary.
//!
//! ```text
//!  traced processes ── arena ──► collected() ──► Trace ◄──► file       (save, load)
//!                                                  └──────► summarized()
//! ```
//!
//! The recording half runs within the traced program: it allocates nothing, takes no lock and does
//! not panic.
#![forbid(unsafe_code)]

mod analysis;
mod arena;
mod collect;
mod error;
mod file;
mod kernel;
mod slot;
mod trace;

pub use analysis::{
    CachePoint, Failures, FileSummary, LayoutHint, Mix, Moves, ReuseCurve, Summary, SyncWait,
    Syncs, Waits, is_log, layout_hints, mix, reuse_curve, summarized, waits,
};
pub use arena::{Arena, CHUNK_SLOTS, Chunk, HEADER_BYTES, MAGIC_WORD, SLOT_BYTES, Who};
pub use collect::{Collected, collected};
pub use error::{Error, Result};
#[cfg(feature = "forge")]
pub use file::forged;
pub use file::{Cut, Loaded};
pub use kernel::{
    Descriptor, Descriptors, Edge, Follower, KernelLine, Kind as KernelCall, LeadsTo, Numbers,
    Task, kernel_line,
};
pub use slot::{Call, Identity, NO_FILE, Slot, how};
pub use trace::{About, DeviceCount, Event, Process, Trace, TracedFile, errno_name};
