//! The command as scripts and people meet it: the built binary, its output, its exit codes.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod advise;
mod arrivals;
mod backup_increments;
mod backup_runs;
mod backups;
mod bad_input;
mod bench;
mod brackets;
mod branches;
mod buckets;
mod checkpoints;
mod clones;
mod converting;
mod crashlab;
mod damage;
mod database_modes;
mod defrag;
mod direct_tools;
mod doctor;
mod encrypted;
mod exports;
mod forms;
mod fstab;
/// The guest that the tests of the server are.
#[path = "../../../export/tests/vhost/guest.rs"]
#[allow(dead_code, reason = "the tests of the command need less of it")]
mod guest;
mod guest_disks;
mod halves;
mod harness;
mod health;
mod identity;
mod in_place;
mod inside;
mod integrity;
mod interrupted;
mod json;
mod log;
mod loops;
mod many_volumes;
mod messages;
mod metrics;
mod mounted;
/// The client that the tests of the server use.
#[path = "../../../export/tests/nbd/client.rs"]
#[allow(dead_code, reason = "the tests of the command need less of it")]
mod nbd_client;
mod network_devices;
mod network_exports;
#[path = "../../../export/tests/nfs/client.rs"]
#[allow(dead_code, reason = "the tests of the command need less of it")]
mod nfs_client;
mod nfs_files;
#[allow(dead_code, reason = "other tests stop it for a while")]
mod nfs_server;
mod odd_names;
mod parts;
mod placed;
mod quickstart;
mod reached;
mod release_behind;
mod restricted;
mod saturation;
mod sentences;
mod shrink;
mod traces;
mod trials;
mod trim;
mod tuning;
mod user;
mod volume_copies;
mod volume_input;
mod volume_live;
mod volume_scrubs;
mod volumes;
mod watching;
mod ways;
