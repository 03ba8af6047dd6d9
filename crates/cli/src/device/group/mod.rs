//! Groups of devices: found, opened, and asked whether a process has one open.

mod find;
pub mod holder;
mod import;

pub use find::{Located, all, label_of, named, of_member, resolve, source_of, volume_of};
pub use import::{forget, open, take_label_off, why_not};
