//! Fuzzers of everything that reads bytes that come from outside.
//!
//! Each target is a plain function of bytes. `cargo xtask fuzz TARGET` drives it with coverage
//! guidance; an ordinary test replays the inputs that are kept in `corpus/`, so that what was found
//! once stays mended.
//!
//! A panic is a finding wherever it happens, also in a thread or where it is caught: only what the
//! metadata tree's library throws over damaged pages, and the guard around it turns into an error,
//! is not.
#![forbid(unsafe_code)]

mod base;
mod checked;
mod exercise;
mod input;
mod targets;

use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::{Mutex, Once, PoisonError};

pub use targets::{TARGETS, Target};

/// The most memory in bytes that one input may cost, all caches and threads included.
pub const MEMORY_MAX: usize = 768 << 20;

/// Panics of our own code since the last run.
static OURS: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl Target {
    /// Returns the target of that name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Runs one input.
    ///
    /// # Errors
    /// Every panic of our own code, and every one that was not caught, with its place.
    pub fn try_run(&self, data: &[u8]) -> Result<(), String> {
        install_hook();
        take_ours();
        let escaped = catch_unwind(AssertUnwindSafe(|| (self.run)(data))).is_err();
        let ours = take_ours();
        if !ours.is_empty() {
            return Err(ours.join("\n"));
        }
        if escaped {
            Err("a panic of a library that was not turned into an error".to_owned())
        } else {
            Ok(())
        }
    }
}

fn take_ours() -> Vec<String> {
    std::mem::take(&mut *OURS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Notes panics of our own code instead of printing all of them.
fn install_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(note)));
}

fn note(panic: &PanicHookInfo<'_>) {
    let ours = panic.location().is_none_or(|place| {
        place.file().starts_with("crates/") || place.file().starts_with("fuzz/")
    });
    if ours {
        OURS.lock().unwrap_or_else(PoisonError::into_inner).push(panic.to_string());
    }
}
