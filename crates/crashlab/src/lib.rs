//! The crash lab: power cuts under a program on a mounted volume, and a checker that judges what
//! recovery makes of each.
//!
//! ```text
//! record ─ fresh volume, or an image that is only read ─► setup ─► command, its device writes and acknowledgements recorded
//! try_states ─ sample (seed) ─► for each state: the device a cut leaves ─► mount, which recovers ─► checker ─► verdict
//! Report ─ JSON, and with write: crashlab.html and crashlab.json
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | `lab` | what all parts need: the checker, the mount options, progress, the wish to stop |
//! | `record` | runs the setup and the command on a recorded device |
//! | `recorded`, `stored` | a recording, and its form in a directory |
//! | `acknowledged` | the lines a program acknowledged, and how far the device was then |
//! | `sample` | which states are tried |
//! | `replay` | makes, mounts and checks states, several at once |
//! | `layout` | which file a device write belongs to |
//! | `report`, `html`, `write` | what was found |
//! | `program`, `workplace` | processes and mounts, with nothing left behind |
#![forbid(unsafe_code)]

mod acknowledged;
mod error;
mod html;
mod lab;
mod layout;
mod program;
mod record;
mod recorded;
mod replay;
mod report;
mod sample;
mod stored;
mod workplace;
mod write;

pub use error::{Error, ErrorKind, Result};
pub use lab::{Lab, Stage};
pub use record::{Run, record};
pub use recorded::{Circumstances, Image, Recorded};
pub use replay::{Selection, Verdict};
pub use report::{
    Counts, Missing, Report, StateResult, Work, pattern_words, try_states, verdict_line,
};
pub use sample::Pattern;
pub use stored::load;
pub use workplace::Workplace;
pub use write::write;
