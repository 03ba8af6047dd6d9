//! Every engine keeps the promises of the traits; the simulated device breaks them only as told.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod conformance;
mod engines;
mod forbidden;
mod image;
mod recording;
mod simulated;
