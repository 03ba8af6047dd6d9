//! Volumes: one linear address space over devices. With one device it is the identity and costs nothing.
//!
//! A volume *is* a block device: who stands on it sees [`BlockDevice`](block::BlockDevice) and not how many devices there are.
#![forbid(unsafe_code)]

mod volume;

pub use volume::{Volume, VolumeOptions};
