//! What has to be undone however a test ends: a mount, a loop device, a process.
//!
//! Every undoing is held in one list. A guard that is dropped takes its own off the list and runs it; a signal or a test that passed its
//! budget runs all of them, newest first. Each runs at most once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

type Undo = Box<dyn FnOnce() + Send>;

static LIST: Mutex<Vec<(u64, Undo)>> = Mutex::new(Vec::new());
static NEXT: AtomicU64 = AtomicU64::new(0);

fn list() -> MutexGuard<'static, Vec<(u64, Undo)>> {
    // A panic elsewhere must not keep the rest from being undone.
    LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Undoes something when dropped.
#[must_use = "dropping the guard undoes the thing at once"]
pub struct Guard(u64);

impl Guard {
    /// Promises that `undo` runs once: when the guard is dropped, on a signal, or when the test's budget is spent.
    pub fn new(undo: impl FnOnce() + Send + 'static) -> Self {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        list().push((id, Box::new(undo)));
        Self(id)
    }

    /// Forgets the promise: the thing is undone already.
    pub fn done(self) {
        drop(take(self.0));
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(undo) = take(self.0) {
            undo();
        }
    }
}

fn take(id: u64) -> Option<Undo> {
    let mut list = list();
    let at = list.iter().position(|(other, _)| *other == id)?;
    Some(list.remove(at).1)
}

/// Undoes everything, newest first.
pub fn run_all() {
    loop {
        let Some((_, undo)) = list().pop() else { return };
        undo();
    }
}

/// From now on a signal that ends this program undoes everything first.
///
/// # Errors
/// When the signals cannot be caught.
pub fn on_signals() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot catch signals")?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            eprintln!("xtask: stopped by signal {signal}, cleaning up");
            run_all();
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}
