//! The file system through its public interface, on devices in memory.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod checkpoints;
mod clones;
mod common;
mod cost;
mod cut;
mod data;
mod defrag;
mod differences;
mod keeping;
mod mounting;
mod names;
mod ordering;
mod parallel;
mod placement;
mod preallocated;
mod promises;
mod redirect;
mod room;
mod several;
mod sharing;
mod support;
mod tuning;
mod untorn;
mod watching;
