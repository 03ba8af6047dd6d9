//! The control protocol: what a command asks of a file system, whether it has it open itself or a
//! daemon serves it on a mount.
//!
//! ```text
//!   command ── Request, one line of JSON ──► the socket of the mount (place.rs) ──► the daemon ── answer.rs ──► FileSystem
//!           ◄── Answer, one line of JSON ──                                             └── Request::Group ──► the group of devices
//! ```
//!
//! Each mount has one socket, in a directory that only its owner and root may use, under the number
//! by which the kernel knows the mount. A connection carries one request and its answer. Both are
//! bounded and hostile until checked ([`wire`]). What concerns a single file (its mode, its untorn
//! unit, its counters) is an extended attribute of it, so that the permissions of the file decide.

mod answer;
mod group;
mod place;
mod request;
mod threads;
pub mod wire;

pub(crate) use answer::json;
pub use answer::{Held, Listed, answer, held};
pub use group::{GroupHandle, GroupRequest, Newcomer, RelayoutRequest, RelayoutTarget};
pub(crate) use place::{Bound, bind};
pub use place::{ask, process};
pub use request::{
    Answer, Changed, Changes, LogRequest, PlaceRequest, Request, Serving, ShrinkRequest, path_of,
};
pub use threads::{ThreadActivity, ThreadReport};
