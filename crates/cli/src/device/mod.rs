//! Devices: opened by path, found as members of groups, recognized by what lies on them.

mod access;
pub mod group;
pub mod homes;
pub mod host;
pub mod made;
mod mounted;
pub mod newcomer;
mod open;
pub mod place;
pub mod renewed;
pub mod signature;

pub use access::Access;
pub use mounted::{explain_busy, of_volume};
pub use open::{Opened, close, open, open_parts, open_plain, open_to_look, open_with_log};
