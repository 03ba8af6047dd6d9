//! Exports: a file of a volume, or any file or block device, as a disk of other programs and
//! machines; a directory as a file system of theirs. Front ends that translate a protocol and hold
//! no data of their own.
#![forbid(unsafe_code)]

mod accepting;
mod bound;
mod buffers;
mod disk;
mod error;
mod lane;
pub mod nbd;
pub mod nfs;
mod socket;
pub mod vhost;

pub use disk::{Allocation, DeviceDisk, Disk, DiskQueue, Done, FileDisk, Run, Zeroing};
pub use error::{Error, Result};
