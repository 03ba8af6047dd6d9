//! The crash judge: a seed makes a workload, the workload runs on the simulated device, the power
//! is cut at any of its operations, and what recovery makes of the remains is held against what was
//! promised.
//!
//! ```text
//! seed ─► workload::generate ─► run::record ◄──► model (every step of the live file system is held against it)
//!                                   │
//!                                   ▼ history: what the model showed after each step, what each promised, and the device's log
//!                    judge::judge(cut, choice) ─► recover, check, compare, go on, cut again during recovery
//!                                   │
//!                                   └─► a second life: the rest of the workload on what was recovered, and its own cuts
//! ```
//!
//! The log may have a device of its own; a cut is one moment of both. After a cut the names must be
//! those of one step between the last sync and the cut, every byte of every file must be a value it
//! had since its last sync (every unit of an untorn write wholly so), and `check` must find
//! nothing.
//!
//! Two modes beside it: [`try_failures`] lets calls fail instead of cutting the power, and
//! [`try_threads`] cuts it under many threads.
//!
//! **To add an operation to the language:** a variant of [`Step`]; what it does, in `act.rs`
//! (`carry_out`), with the promise it makes and the inodes whose names or attributes it touches;
//! what it means, in `model/apply.rs` (an `Err` is a refusal that the file system must share); its
//! weight among the random ones, in `workload/generate.rs`; and a directed workload in
//! `workload/directed.rs` that uses it where it hurts. What a user sees of it must be in `view.rs`:
//! whatever is there is judged after every cut. An operation that mounts or needs the device is the
//! recorder's (`run.rs`).
#![forbid(unsafe_code)]

mod acl;
mod act;
mod bed;
mod failing;
mod history;
mod interleave;
mod judge;
mod kept;
mod leased;
mod live;
mod logs;
mod lost;
mod model;
mod mounted;
mod node;
mod outcome;
mod pair;
mod run;
mod shrink;
mod threads;
mod units;
mod view;
mod workload;

pub use bed::{Bed, Remains};
pub use failing::{Failure, FailureTally, try_failures, try_format_cuts, try_format_failures};
pub use history::{Done, History};
pub use judge::{Cut, Violation, judge};
pub use lost::{LostTally, try_lost_flushes};
pub use mounted::why_no_mount;
pub use outcome::{Promise, Wrote};
pub use run::record;
pub use shrink::shrink;
pub use threads::{ThreadsViolation, try_threads};
pub use view::View;
pub use workload::{
    Ailment, Back, Backend, Change, DIRECTED, Directed, On, RenameKind, Setup, Step, generate,
    generate_interleaved, generate_mounted, pair, pair_count,
};

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use bedplate_block::CrashChoice;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

/// Where the power is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cuts {
    /// So many times, anywhere.
    Random(usize),
    /// So many times, two in three where most is at stake: a pair of steps is under way, a process
    /// that died is followed by a mount, a superblock is written; the others anywhere.
    Around(usize),
    /// After every operation of the device, in so many ways: all unflushed writes lost, all kept,
    /// and seeded ones.
    Every(usize),
}

/// How much to try with one seed.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Steps of the workload.
    pub steps: usize,
    /// Power cuts tried.
    pub cuts: Cuts,
    /// Every how many-th cut is followed by a second one during its recovery; 0: none.
    pub second_cut_every: usize,
    /// Every how many-th cut is followed by a second life, with so many cuts of its own; 0: none.
    pub second_life_every: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self { steps: 40, cuts: Cuts::Random(60), second_cut_every: 4, second_life_every: 20 }
    }
}

/// Cuts of a second life.
const SECOND_LIFE_CUTS: usize = 6;

/// What one seed showed.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub struct Tally {
    /// Distinct crash states recovered and compared.
    pub states: u64,
    /// Of these, cuts during a recovery.
    pub second_cuts: u64,
    /// Of these, cuts of a second life.
    pub second_lives: u64,
    /// Cuts that left a state which had been judged against the same promises.
    pub repeated: u64,
    /// Of the states, those of a cut while one step was in the middle of another, or after that.
    pub interleaved: u64,
    /// Of the states, those of a group of devices.
    pub grouped: u64,
    /// Reads, writes and syncs that a process made under leases.
    pub leased: u64,
    /// Device operations that the workload made.
    pub operations: u64,
}

impl Tally {
    /// Adds another.
    pub fn add(&mut self, other: &Self) {
        self.states += other.states;
        self.second_cuts += other.second_cuts;
        self.second_lives += other.second_lives;
        self.repeated += other.repeated;
        self.interleaved += other.interleaved;
        self.grouped += other.grouped;
        self.leased += other.leased;
        self.operations += other.operations;
    }
}

/// Runs one seed.
///
/// # Errors
/// The first violation, with everything that reproduces it.
pub fn try_seed(seed: u64, effort: &Effort) -> Result<Tally, Box<Violation>> {
    let (setup, steps) = generate(seed, effort.steps);
    try_steps(seed, &setup, &steps, effort)
}

/// Runs one seed of the language in which one step comes in the middle of another, on one of these
/// backends.
///
/// # Errors
/// The first violation.
pub fn try_interleaved(
    seed: u64,
    backends: &[Backend],
    effort: &Effort,
) -> Result<Tally, Box<Violation>> {
    let (setup, steps) = generate_interleaved(seed, effort.steps, backends);
    try_steps(seed, &setup, &steps, effort)
}

/// Runs one seed on a real mount of the simulated devices.
///
/// # Errors
/// The first violation.
pub fn try_mounted(seed: u64, effort: &Effort) -> Result<Tally, Box<Violation>> {
    let (setup, steps) = generate_mounted(seed, effort.steps);
    let violation =
        |what| Box::new(Violation { seed, setup, steps: steps.clone(), what, states: 0 });
    let history = mounted::record_mounted(&setup, seed, &steps).map_err(violation)?;
    try_history(seed, &setup, &steps, &history, &Effort { second_life_every: 0, ..*effort })
}

/// Runs a pair of steps with the second at every so many-th pause of the first, which a seed
/// places.
///
/// # Errors
/// The first violation.
pub fn try_pair(
    seed: u64,
    number: usize,
    setup: &Setup,
    stride: u16,
    effort: &Effort,
) -> Result<Tally, Box<Violation>> {
    let stride = stride.max(1);
    let (mut total, mut at) =
        (Tally::default(), 1 + u16::try_from(seed % u64::from(stride)).expect("below it"));
    loop {
        let steps = pair(number, &[at]);
        let (tally, pauses) =
            try_recorded(seed, setup, &steps, effort).map_err(|mut violation| {
                violation.states += total.states;
                violation
            })?;
        total.add(&tally);
        if u64::from(at) >= pauses {
            return Ok(total);
        }
        at += stride;
    }
}

/// Runs given steps under the cuts that a seed chooses.
///
/// # Errors
/// The first violation.
pub fn try_steps(
    seed: u64,
    setup: &Setup,
    steps: &[Step],
    effort: &Effort,
) -> Result<Tally, Box<Violation>> {
    try_recorded(seed, setup, steps, effort).map(|(tally, _)| tally)
}

/// As [`try_steps`]; returns also how many pauses the first step of a pair came to.
fn try_recorded(
    seed: u64,
    setup: &Setup,
    steps: &[Step],
    effort: &Effort,
) -> Result<(Tally, u64), Box<Violation>> {
    let broken =
        |what| Box::new(Violation { seed, setup: *setup, steps: steps.to_vec(), what, states: 0 });
    let history = record(setup, steps).map_err(broken)?;
    let pauses = history.pairs.first().map_or(0, |pair| pair.pauses[0]);
    try_history(seed, setup, steps, &history, effort).map(|tally| (tally, pauses))
}

/// Cuts a recorded workload.
fn try_history(
    seed: u64,
    setup: &Setup,
    steps: &[Step],
    history: &History,
    effort: &Effort,
) -> Result<Tally, Box<Violation>> {
    let violation = |what, states| {
        Box::new(Violation { seed, setup: *setup, steps: steps.to_vec(), what, states })
    };
    let mut trial = Trial { history, seen: HashSet::new(), tally: Tally::default() };
    trial.tally.operations = history.operations() as u64;
    trial.tally.leased = history.bed.leased();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x9e37_79b9_7f4a_7c15);
    for (number, (after, choice)) in cuts(history, effort.cuts, &mut rng).into_iter().enumerate() {
        let again = (effort.second_cut_every > 0 && number % effort.second_cut_every == 0)
            .then(|| rng.random());
        let cut = Cut { after, choice, again };
        let lives = effort.second_life_every > 0
            && number % effort.second_life_every == effort.second_life_every - 1;
        let judged = trial.cut(&cut).and_then(|new| {
            if new && lives { trial.second_life(&cut, setup, steps, rng.random()) } else { Ok(()) }
        });
        judged.map_err(|what| violation(what, trial.tally.states))?;
    }
    Ok(trial.tally)
}

fn cuts(history: &History, cuts: Cuts, rng: &mut Xoshiro256PlusPlus) -> Vec<(usize, CrashChoice)> {
    let moments = history.first_operation()..=history.operations();
    let random = |rng: &mut Xoshiro256PlusPlus| match rng.random_range(0..6) {
        0 => CrashChoice::LoseAll,
        1 => CrashChoice::KeepAll,
        _ => CrashChoice::Seeded(rng.random()),
    };
    let chosen: Vec<(usize, CrashChoice)> = match cuts {
        Cuts::Random(count) => {
            (0..count).map(|_| (rng.random_range(moments.clone()), random(rng))).collect()
        }
        Cuts::Around(count) => {
            let spans = history.spans();
            (0..count).map(|number| (around(&spans, history, number, rng), random(rng))).collect()
        }
        Cuts::Every(ways) => {
            let way = |number: usize, rng: &mut Xoshiro256PlusPlus| match number {
                0 => CrashChoice::LoseAll,
                1 => CrashChoice::KeepAll,
                _ => CrashChoice::Seeded(rng.random()),
            };
            moments
                .flat_map(|after| (0..ways).map(move |number| (after, number)))
                .map(|(after, number)| (after, way(number, rng)))
                .collect()
        }
    };
    chosen.into_iter().map(|(after, choice)| (history.sound(after), choice)).collect()
}

/// Where the power is cut for the so-manieth time.
fn around(
    spans: &[Range<usize>],
    history: &History,
    number: usize,
    rng: &mut Xoshiro256PlusPlus,
) -> usize {
    match spans.get(rng.random_range(0..spans.len().max(1))) {
        Some(span) if !number.is_multiple_of(3) => rng.random_range(span.start..=span.end),
        _ => rng.random_range(history.first_operation()..=history.operations()),
    }
}

/// The cuts of one history.
struct Trial<'a> {
    history: &'a History,
    /// What was judged: a content, and the promises that held when the power went.
    seen: HashSet<u64>,
    tally: Tally,
}

impl Trial<'_> {
    /// Judges a cut unless it leaves what had been judged; returns whether it did.
    fn cut(&mut self, cut: &Cut) -> Result<bool, String> {
        let mut hasher = DefaultHasher::new();
        let bed = &self.history.bed;
        // The content is what is durable, and what of the rest arrived.
        (
            cut.after - bed.unflushed(cut.after),
            self.history.done.partition_point(|done| done.end <= cut.after),
        )
            .hash(&mut hasher);
        for (device, steps) in bed.crash_steps(cut.after, &cut.choice).into_iter().enumerate() {
            for step in steps {
                (device, step.operation, step.parts).hash(&mut hasher);
            }
        }
        if cut.again.is_none() && !self.seen.insert(hasher.finish()) {
            self.tally.repeated += 1;
            return Ok(false);
        }
        judge(self.history, cut)?;
        let states = 1 + u64::from(cut.again.is_some());
        self.tally.states += states;
        self.tally.grouped += if bed.backend() == Backend::One { 0 } else { states };
        let met = |pair: &history::Pair| {
            pair.pauses.iter().all(|pauses| *pauses > 0) && pair.operations.start <= cut.after
        };
        self.tally.interleaved += if self.history.pairs.iter().any(met) { states } else { 0 };
        self.tally.second_cuts += u64::from(cut.again.is_some());
        Ok(true)
    }

    /// Goes on with the workload on what the cut left, and cuts again. The step that the cut
    /// interrupted is carried out once more, or never: then what came of it stays.
    fn second_life(
        &mut self,
        cut: &Cut,
        setup: &Setup,
        steps: &[Step],
        seed: u64,
    ) -> Result<(), String> {
        let context = |what: String| {
            format!("second life after operation {} ({:?}): {what}", cut.after, cut.choice)
        };
        let bed = Bed::again(&self.history.bed.cut(cut.after, &cut.choice), seed);
        let over = self.history.steps_over(cut.after);
        let done = if seed.is_multiple_of(2) { over } else { (over + 1).min(steps.len()) };
        let history = run::record_on(
            bed,
            setup.block_size,
            Some(kept::used_numbers(self.history, cut.after)),
            &steps[done..],
        )
        .map_err(context)?;
        let mut trial = Trial { history: &history, seen: HashSet::new(), tally: Tally::default() };
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        for (after, choice) in cuts(&history, Cuts::Random(SECOND_LIFE_CUTS), &mut rng) {
            trial.cut(&Cut { after, choice, again: None }).map_err(context)?;
        }
        self.tally.second_lives += trial.tally.states;
        self.tally.interleaved += trial.tally.interleaved;
        self.tally.grouped += trial.tally.grouped;
        self.tally.states += trial.tally.states;
        Ok(())
    }
}
