//! The file system through its public interface, on devices in memory.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod acls;
mod checkpoints;
mod clones;
mod common;
mod copies;
mod cost;
mod cut;
mod cut_deletions;
mod data;
mod defrag;
mod delayed;
mod deletion;
mod differences;
mod integrity;
mod interrupted;
mod keeping;
mod leases;
mod mounting;
mod names;
mod naming;
mod odd;
mod ordering;
mod parallel;
mod placement;
mod preallocated;
mod promises;
mod redirect;
mod release;
mod renewed;
mod rollbacks;
mod room;
mod schedules;
mod several;
mod shared_in_part;
mod sharing;
mod sized;
mod streams;
mod support;
mod trim;
mod tuning;
mod untorn;
mod waits;
mod watching;
mod windows;
