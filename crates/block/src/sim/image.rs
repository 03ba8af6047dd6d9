//! What a power cut leaves: a plan that says which unflushed writes reached the medium, and the
//! image that follows from it.

use std::ops::Range;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::log::Log;
use super::trace::{Trace, Traced};
use crate::{Geometry, Snapshot};

/// Says what becomes of the writes that no flush had made durable when the power went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CrashChoice {
    /// All are lost.
    LoseAll,
    /// All arrive whole.
    KeepAll,
    /// Exactly these arrive, whole, in this order. The numbers are those of
    /// [`SimulatedDevice::unflushed`](crate::SimulatedDevice::unflushed).
    Keep(Vec<usize>),
    /// From the seed: any subset, any of it torn at the sectors that the device's untorn unit
    /// allows.
    Seeded(u64),
    /// They arrive in the order in which they were made. All are there but the last, which was on
    /// its way: of it what the seed says.
    InOrder(u64),
    /// Exactly this.
    Steps(Vec<CrashStep>),
}

/// One unflushed operation of which something reaches the medium.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrashStep {
    /// The operation's number in the log.
    pub operation: usize,
    /// The parts that arrive, in bytes from the operation's start, ascending.
    pub parts: Vec<Range<u64>>,
}

/// Turns a choice into the steps it stands for; a pure function, so that a failed test can print
/// them.
pub(super) fn plan<O: Traced>(
    log: &Trace<O>,
    geometry: &Geometry,
    after: usize,
    choice: &CrashChoice,
) -> Vec<CrashStep> {
    let unflushed = unflushed(log, geometry, after);
    match choice {
        CrashChoice::LoseAll => Vec::new(),
        CrashChoice::KeepAll => unflushed.iter().map(|operation| whole(log, *operation)).collect(),
        CrashChoice::Keep(kept) => {
            assert_unflushed(&unflushed, kept.iter());
            kept.iter().map(|operation| whole(log, *operation)).collect()
        }
        CrashChoice::Seeded(seed) => seeded(log, geometry, &unflushed, *seed),
        CrashChoice::InOrder(seed) => in_order(log, geometry, &unflushed, *seed),
        CrashChoice::Steps(steps) => {
            assert_unflushed(&unflushed, steps.iter().map(|step| &step.operation));
            steps.clone()
        }
    }
}

/// Returns what a power cut may take back: with a volatile cache what no flush covers, without one
/// the write that was on its way.
pub(super) fn unflushed<O: Traced>(
    log: &Trace<O>,
    geometry: &Geometry,
    after: usize,
) -> Vec<usize> {
    if geometry.volatile_cache {
        return log.unflushed(after);
    }
    assert!(after <= log.len(), "the log holds {} operations, fewer than {after}", log.len());
    log.operations()
        .get(after)
        .filter(|next| next.is_volatile())
        .map(|_| after)
        .into_iter()
        .collect()
}

/// Builds the content that a power cut leaves.
pub(super) fn build(log: &Log, geometry: &Geometry, after: usize, steps: &[CrashStep]) -> Snapshot {
    let (from, mut content) = log.content_before(first_uncertain(log.trace(), geometry, after));
    replay(log.trace(), geometry, from..after, steps, |operation, part| {
        operation.apply_part(&mut content, &part);
    });
    content
}

/// Returns the operation before which all is certain at a power cut after the first `after`
/// operations.
pub(super) fn first_uncertain<O: Traced>(
    log: &Trace<O>,
    geometry: &Geometry,
    after: usize,
) -> usize {
    unflushed(log, geometry, after).first().copied().unwrap_or(after).min(after)
}

/// Carries out what reached the medium from an operation before which all is certain up to a power
/// cut: each part, in bytes from its operation's start.
pub(super) fn replay<O: Traced>(
    log: &Trace<O>,
    geometry: &Geometry,
    operations: Range<usize>,
    steps: &[CrashStep],
    mut apply: impl FnMut(&O, Range<u64>),
) {
    let unflushed = unflushed(log, geometry, operations.end);
    let in_log_order = steps.windows(2).all(|pair| pair[0].operation < pair[1].operation);
    let mut steps = steps.iter().peekable();
    for number in operations {
        if unflushed.binary_search(&number).is_err() {
            let operation = &log.operations()[number];
            apply(operation, 0..operation.len());
        } else if in_log_order && let Some(step) = steps.next_if(|step| step.operation == number) {
            apply_step(log, step, &mut apply);
        }
    }
    // What is left is out of order, or was on its way when the power went.
    for step in steps {
        apply_step(log, step, &mut apply);
    }
}

fn apply_step<O: Traced>(log: &Trace<O>, step: &CrashStep, apply: &mut impl FnMut(&O, Range<u64>)) {
    step.parts.iter().for_each(|part| apply(&log.operations()[step.operation], part.clone()));
}

fn assert_unflushed<'a>(unflushed: &[usize], chosen: impl Iterator<Item = &'a usize>) {
    for operation in chosen {
        assert!(
            unflushed.binary_search(operation).is_ok(),
            "operation {operation} is not among the unflushed writes {unflushed:?}"
        );
    }
}

fn whole<O: Traced>(log: &Trace<O>, operation: usize) -> CrashStep {
    CrashStep { operation, parts: std::iter::once(0..log.operations()[operation].len()).collect() }
}

fn in_order<O: Traced>(
    log: &Trace<O>,
    geometry: &Geometry,
    unflushed: &[usize],
    seed: u64,
) -> Vec<CrashStep> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut steps: Vec<CrashStep> =
        unflushed.iter().map(|operation| whole(log, *operation)).collect();
    if let Some(last) = steps.pop() {
        let operation = &log.operations()[last.operation];
        if tears(geometry, operation) {
            steps
                .push(CrashStep { parts: torn_parts(&mut rng, geometry, operation.len()), ..last });
        } else if rng.random_bool(0.5) {
            steps.push(last);
        }
    }
    steps
}

/// Chooses by a style first, because independent coins alone hardly ever give "all but one" or "a
/// prefix" of many writes.
fn seeded<O: Traced>(
    log: &Trace<O>,
    geometry: &Geometry,
    unflushed: &[usize],
    seed: u64,
) -> Vec<CrashStep> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let keep_percent = [0, 5, 30, 50, 70, 95, 100][rng.random_range(0..7_usize)];
    let torn_percent = [0, 0, 10, 50, 100][rng.random_range(0..5_usize)];
    let prefix = rng.random_bool(0.25).then(|| rng.random_range(0..=unflushed.len()));
    let mut steps = Vec::new();
    for (index, operation) in unflushed.iter().enumerate() {
        let kept =
            prefix.map_or_else(|| rng.random_range(0..100) < keep_percent, |len| index < len);
        let torn = if prefix == Some(index + 1) {
            rng.random_bool(0.5)
        } else {
            rng.random_range(0..100) < torn_percent
        };
        let recorded = &log.operations()[*operation];
        if kept && torn && tears(geometry, recorded) {
            steps.push(CrashStep {
                operation: *operation,
                parts: torn_parts(&mut rng, geometry, recorded.len()),
            });
        } else if kept {
            steps.push(whole(log, *operation));
        }
    }
    steps
}

/// A write within one aligned untorn unit is never torn.
fn tears(geometry: &Geometry, operation: &impl Traced) -> bool {
    let unit = u64::from(geometry.untorn_unit);
    operation.range().is_some_and(|range| range.start / unit != (range.end - 1) / unit)
}

/// Picks up to four runs of sectors out of an operation.
fn torn_parts(rng: &mut Xoshiro256PlusPlus, geometry: &Geometry, len: u64) -> Vec<Range<u64>> {
    let sector = u64::from(geometry.logical_block_size);
    let mut cuts: Vec<u64> = (0..rng.random_range(1..=7_usize))
        .map(|_| rng.random_range(0..=len / sector) * sector)
        .collect();
    cuts.extend([0, len]);
    cuts.sort_unstable();
    cuts.dedup();
    let odd = usize::from(rng.random_bool(0.5));
    cuts.windows(2).skip(odd).step_by(2).map(|cut| cut[0]..cut[1]).collect()
}
