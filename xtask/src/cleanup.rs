//! What has to be undone however a test ends: a mount, a loop device, a process.
//!
//! Every undoing is held in one list. A guard that is dropped takes its own off the list and runs
//! it; a signal or a test that passed its budget runs all of them, newest first. Each runs at most
//! once.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The longest that a signal waits for what other threads undo.
const UNDO_LIMIT: Duration = Duration::from_secs(60);

type Undo = Box<dyn FnOnce() + Send>;

static LIST: Mutex<Vec<(u64, Undo)>> = Mutex::new(Vec::new());
static NEXT: AtomicU64 = AtomicU64::new(0);
/// A signal came: nothing may be started any more that would have to be undone.
static STOPPING: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread is undoing something, for which it may start programs.
    static UNDOES: Cell<bool> = const { Cell::new(false) };
}

/// How many threads are undoing something.
static UNDOING: AtomicU64 = AtomicU64::new(0);

fn run(undo: Undo) {
    UNDOING.fetch_add(1, Ordering::SeqCst);
    let outer = UNDOES.replace(true);
    undo();
    UNDOES.set(outer);
    UNDOING.fetch_sub(1, Ordering::SeqCst);
}

fn list() -> MutexGuard<'static, Vec<(u64, Undo)>> {
    // A panic elsewhere must not keep the rest from being undone.
    LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Undoes something when dropped.
#[must_use = "dropping the guard undoes the thing at once"]
pub struct Guard(u64);

impl Guard {
    /// Promises that `undo` runs once: when the guard is dropped, on a signal, or when the test's
    /// budget is spent.
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
            run(undo);
        }
    }
}

fn take(id: u64) -> Option<Undo> {
    let mut list = list();
    let at = list.iter().position(|(other, _)| *other == id)?;
    Some(list.remove(at).1)
}

/// Returns whether a signal came, after which no program is started but by what undoes.
pub fn is_stopping() -> bool {
    STOPPING.load(Ordering::SeqCst) && !UNDOES.get()
}

/// Where a signal came, waits for the thread that undoes everything: it ends the program.
pub fn leave_to_signal() {
    while is_stopping() {
        std::thread::park();
    }
}

/// Undoes everything, newest first.
pub fn run_all() {
    loop {
        let Some((_, undo)) = list().pop() else { return };
        run(undo);
    }
}

/// Waits until nothing is left that another thread undoes, or begins to: what was to be undone is
/// on no list while that runs.
fn wait_for_others() {
    let start = Instant::now();
    while start.elapsed() < UNDO_LIMIT && (UNDOING.load(Ordering::SeqCst) > 0 || !list().is_empty())
    {
        run_all();
        std::thread::sleep(Duration::from_millis(20));
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
            STOPPING.store(true, Ordering::SeqCst);
            run_all();
            wait_for_others();
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}
