//! Online relayout: a volume's addresses move from one layout to another, step by step, while the
//! volume is in use.
//!
//! ```text
//!   upward                                              downward: the same picture, walked from the other end
//!   0          position    + staged                 span
//!   ├─────────────┼───────────┼───────────────────────┤
//!     next          scratch     layout
//!
//!   step    writes to its range wait ─► operations of older epochs have ended ─► copied ─► flushed ─► labels say so ─► the new place counts
//! ```
//! Both layouts may lie on the same places of the same members. So a step goes in one move where
//! its new places hold nothing that is still needed, and in two, by way of a *scratch* area on the
//! members, where they hold its own old bytes. Before anything begins it is proven that they never
//! hold bytes of another (`layout::walk`): then the order of the walk is chosen, or the request is
//! refused. At every moment each address lives at one place, in one copy set, that the labels name;
//! there is nothing to redo after a crash. To turn back is the same walk the other way.
//!
//! * I-RLY-1: what a copy overwrites is at that time no place of any address of the volume.
//! * I-RLY-2: labels name a new place only when all that lives there is durable, and nothing is
//!   written to it before they do.
//! * I-RLY-3: when labels say that a range left a RAID-5, no record of its parity log names a row
//!   of that range.

mod control;
mod rows;
mod shift;
mod target;

pub use control::{RelayoutProgress, RelayoutState};
pub(crate) use shift::Stepped;
pub use target::Target;

// The fixture of the integration tests serves these, too.
#[cfg(test)]
use crate as tested;
#[cfg(test)]
#[path = "../../tests/it/fixture.rs"]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
