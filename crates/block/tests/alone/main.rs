//! Tests that start programs, and tests that look at what the whole process has open: one at a
//! time.
//!
//! A program that is being started holds a copy of every descriptor for a moment, with its locks. A
//! test beside it, in the same process, would see a device in use that it has just closed. So every
//! test here holds [`alone`], and no other test of this crate starts programs.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod claims;
#[path = "../it/conformance.rs"]
mod conformance;
#[path = "../it/image.rs"]
mod image;
mod inherit;
mod loops;
mod machine;

use std::sync::{Mutex, MutexGuard, PoisonError};

static ALONE: Mutex<()> = Mutex::new(());

/// Waits until no other test of this process runs, and keeps others out.
fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
