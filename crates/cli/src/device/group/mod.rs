//! Groups of devices: found, opened, and asked whether a process has one open.

mod divided;
mod find;
pub mod holder;
mod import;

pub use divided::{Divided, divided};
pub use find::{Located, all, by_name, label_of, named, of_member, resolve, source_of, volume_of};
pub use import::{claimed, forget, open, take_label_off, why_not};
