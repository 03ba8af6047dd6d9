//! Moves a directory to another place while a database works in it.
//!
//! ```text
//! Copying ─ passes until one is short ─► Stopped ─ last pass, comparison ─► Switching
//!    ▲                                      │                                  │ one exchange of names
//!    └────────── a failure: started again ──┘             Started ◄─ Switched ◄┘
//! ```
//!
//! Each step is noted in the [journal](Journal) before it is taken, so that a conversion that was
//! killed is gone on with ([`run`]) or given up ([`abandon`]).
//!
//! | module | holds |
//! | --- | --- |
//! | `begin` | what is looked at before anything is made |
//! | `mirror` | passes and comparison |
//! | `scan` | what a directory holds; what shows that a file changed |
//! | `writers` | processes that may still write |
//! | `journal` | what was done, durable |
//! | `switch` | the change of names |
//! | `run` | the steps in order |
//!
//! Until the names are exchanged the source is only read. They are exchanged only when every file
//! was compared with its copy since it changed last, and nothing had one open for writing before and
//! after.

mod begin;
mod journal;
mod mirror;
mod run;
mod scan;
mod switch;
#[cfg(test)]
mod tests;
mod writers;

pub use begin::{How, Prepared, limited, name_of, prepare, prepare_back};
pub use journal::{Journal, Phase, Place, Stopping, Switch, Verify};
pub use mirror::{Parts, Pass, Plain, Source};
pub use run::{Converted, Operator, Pace, abandon, run};
pub use scan::Amount;
