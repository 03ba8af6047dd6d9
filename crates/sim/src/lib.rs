//! The crash judge: a seed makes a workload, the workload runs on the simulated device, the power is cut at any of its operations, and what
//! recovery makes of the remains is held against what was promised.
//!
//! ```text
//! seed ─► workload::generate ─► run::record ─► history (what the file system showed after each step, and the device's log)
//!                                                   │
//!                          judge::judge(cut, choice) ─► recover, check, compare, go on, cut again during recovery
//! ```
//!
//! The judge trusts the *live* file system (other tests compare that with a model) and asks only whether a crash keeps its promises:
//! after a cut the names must be those of one step between the last sync and the cut, every byte of every file must be a value it had since its last
//! sync, and `check` must find nothing.
#![forbid(unsafe_code)]

mod judge;
mod run;
mod sample;
mod shrink;
mod workload;

pub use judge::{Cut, Violation, judge};
pub use run::{History, record};
pub use sample::{CrashState, Pattern, Sampling, sample};
pub use shrink::shrink;
pub use workload::{Change, RenameKind, Setup, Step, generate};

use block::CrashChoice;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

/// How much to try with one seed.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Steps of the workload.
    pub steps: usize,
    /// Power cuts tried.
    pub cuts: usize,
    /// Every how many-th cut is followed by a second one during its recovery; 0: none.
    pub second_cut_every: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self { steps: 40, cuts: 60, second_cut_every: 4 }
    }
}

/// What one seed showed.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub struct Tally {
    /// Crash states recovered and compared.
    pub states: u64,
    /// Of these, cuts during a recovery.
    pub second_cuts: u64,
    /// Device operations that the workload made.
    pub operations: u64,
}

/// Runs one seed.
///
/// # Errors
/// The first violation, with everything that reproduces it.
pub fn try_seed(seed: u64, effort: &Effort) -> Result<Tally, Box<Violation>> {
    let (setup, steps) = generate(seed, effort.steps);
    try_steps(seed, &setup, &steps, effort)
}

/// Runs given steps under the cuts that a seed chooses.
///
/// # Errors
/// The first violation.
pub fn try_steps(seed: u64, setup: &Setup, steps: &[Step], effort: &Effort) -> Result<Tally, Box<Violation>> {
    let history = record(setup, steps);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x9e37_79b9_7f4a_7c15);
    let mut tally = Tally { operations: history.operations() as u64, ..Tally::default() };
    for number in 0..effort.cuts {
        let after = rng.random_range(history.first_operation()..=history.operations());
        let choice = match rng.random_range(0..6) {
            0 => CrashChoice::LoseAll,
            1 => CrashChoice::KeepAll,
            _ => CrashChoice::Seeded(rng.random()),
        };
        let again = (effort.second_cut_every > 0 && number % effort.second_cut_every == 0).then(|| rng.random());
        tally.second_cuts += u64::from(again.is_some());
        tally.states += 1 + u64::from(again.is_some());
        judge(&history, &Cut { after, choice, again }).map_err(|what| Violation::new(seed, setup, steps, what))?;
    }
    Ok(tally)
}
