//! Volumes on simulated devices: what they hold, what they survive, whom they refuse.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use ::bedplate_volume as tested;

mod crash;
mod data;
mod death;
mod divided;
mod fixture;
mod leaving;
mod members;
mod membership;
mod overwriting;
mod overwritten;
mod parity;
mod parity_queue;
mod refusals;
mod relocation;
mod renew;
mod replacing;
mod scrub;
mod seams;
mod split;
mod split_cuts;
mod split_rest;
mod statistics;
mod throttle;
mod write_hole;
