//! The command as scripts and people meet it: the built binary, its output, its exit codes.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod backups;
mod bad_input;
mod bench;
mod buckets;
mod checkpoints;
mod crashlab;
mod damage;
mod defrag;
mod forms;
mod harness;
mod inside;
mod interrupted;
mod json;
mod loops;
mod metrics;
mod mounted;
mod odd_names;
mod quickstart;
mod restricted;
mod sentences;
mod trials;
mod tuning;
mod user;
mod volume_input;
mod volume_live;
mod volumes;
mod watching;
