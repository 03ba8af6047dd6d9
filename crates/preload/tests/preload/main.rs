//! The library preloaded into a real program, in front of a mount whose daemon is made up: reads
//! through the mount see `M`, reads of the device `D`.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod cached;
mod daemon;
mod device;
mod filesystem;
mod stage;

mod descriptors;
mod io;
mod requests;
mod traced;
mod trouble;
mod uncached;
