//! The schedule: every round measures every case on every target, one target right after the other.
//!
//! What drifts in a machine drifts for neighbours in time alike, so ratios are taken within a round
//! and case, and targets take turns in going first. A round that was not finished for all targets
//! of a case is not kept for that case.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use crate::results::{Count, Measurement, Record, Results, Skipped, WorkloadResults};
use crate::target::Targets;
use crate::workload::{Env, Work, Workload};
use crate::{Error, ErrorKind, Result};

/// How often and how long.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    /// Rounds that count.
    pub rounds: usize,
    /// Length of one measurement of a timed workload.
    pub time: Duration,
    /// What a timed workload runs before it counts.
    pub warm_up: Duration,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { rounds: 5, time: Duration::from_secs(2), warm_up: Duration::from_millis(300) }
    }
}

/// Where a run stands.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// Measurements made, out of `total`.
    pub done: usize,
    /// Measurements to make.
    pub total: usize,
    /// What comes next.
    pub workload: &'a str,
    /// The case.
    pub case: &'a str,
    /// The target.
    pub target: &'a str,
}

/// Runs one workload on all targets and appends what it found to `results`. Sets
/// `results.interrupted` when `stop` ended it early.
///
/// # Errors
/// `Usage` for options that make no sense, `Target` for a target too small or unable, `Io` when a
/// measurement failed. What was measured before the failure is in `results`.
pub fn run_workload(
    workload: &Workload,
    targets: &Targets,
    schedule: &Schedule,
    results: &mut Results,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(Progress<'_>),
) -> Result<()> {
    let work = workload.work();
    work.validate()?;
    if schedule.rounds == 0 || schedule.time.is_zero() {
        return Err(Error::usage("a run needs at least one round and a time above zero"));
    }
    let mut found = WorkloadResults {
        name: work.name().into(),
        title: work.title().into(),
        unit: work.unit().into(),
        options: work.options(),
        rounds: schedule.rounds,
        targets: targets.describe(),
        cases: work.cases(),
        records: Vec::new(),
        counts: Vec::new(),
        skipped: Vec::new(),
    };
    found.options.insert("time".into(), bedplate::format_duration(schedule.time));
    let outcome = measure_all(work, targets, schedule, &mut found, stop, watch);
    keep_whole_rounds(&mut found);
    let cleaned = targets.0.iter().try_for_each(|target| work.clean(&**target));
    if !found.records.is_empty() {
        results.workloads.push(found);
    }
    match outcome {
        Err(e) if e.kind == ErrorKind::Interrupted => {
            results.interrupted = true;
            Ok(())
        }
        outcome => outcome.and(cleaned),
    }
}

fn measure_all(
    work: &dyn Work,
    targets: &Targets,
    schedule: &Schedule,
    found: &mut WorkloadResults,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(Progress<'_>),
) -> Result<()> {
    let plan = plan(work, targets, schedule.rounds, &mut found.skipped)?;
    for target in &targets.0 {
        check_stop(stop)?;
        let info = target.info();
        watch(Progress {
            done: 0,
            total: plan.len(),
            workload: work.name(),
            case: "filling",
            target: &info.label,
        });
        work.prepare(&**target)?;
    }
    if work.counts_requests() {
        count_requests(work, targets, found, stop)?;
    }
    let warm = Env {
        warm_up: Duration::ZERO,
        time: schedule.warm_up.max(Duration::from_millis(10)),
        stop,
    };
    let env = Env { warm_up: schedule.warm_up, time: schedule.time, stop };
    for (done, step) in plan.iter().enumerate() {
        check_stop(stop)?;
        let target = &*targets.0[step.target];
        debug_assert!(
            step.case < found.cases.len() && step.target < targets.0.len(),
            "a plan names cases and targets that there are: {} and {}",
            step.case,
            step.target
        );
        let case = &found.cases[step.case].name;
        watch(Progress {
            done,
            total: plan.len(),
            workload: work.name(),
            case,
            target: &target.info().label,
        });
        let measurement =
            work.run(step.case, target, if step.round.is_some() { &env } else { &warm })?;
        target.quiesce()?;
        found.records.extend(step.round.map(|round| Record {
            case: step.case,
            target: step.target,
            round,
            measurement,
        }));
    }
    Ok(())
}

/// Long enough for some thousand operations, short enough for the kernel's buffer.
const COUNTING: Duration = Duration::from_millis(60);

/// Counts device operations one by one, which would disturb what is timed, so nothing is.
fn count_requests(
    work: &dyn Work,
    targets: &Targets,
    found: &mut WorkloadResults,
    stop: &AtomicBool,
) -> Result<()> {
    let env = Env { warm_up: Duration::ZERO, time: COUNTING, stop };
    for (at, target) in targets.0.iter().enumerate() {
        for case in
            (0..found.cases.len()).filter(|&case| work.refuses(case, target.info()).is_none())
        {
            check_stop(stop)?;
            target.quiesce()?;
            let running = target.count_requests(true);
            let measured =
                if running { work.run(case, &**target, &env).map(Some) } else { Ok(None) };
            target.count_requests(false);
            found.counts.extend(measured?.and_then(|m| count(case, at, &m)));
        }
    }
    Ok(())
}

fn count(case: usize, target: usize, m: &Measurement) -> Option<Count> {
    let (reads, writes, flushes) =
        (m.per_op(|d| d.reads)?, m.per_op(|d| d.writes)?, m.per_op(|d| d.flushes)?);
    // Zeros are a count that ran over.
    (reads + writes + flushes > 0.0).then_some(Count {
        case,
        target,
        reads,
        writes,
        written_bytes: m.per_op(|d| d.written_bytes)?,
        flushes,
    })
}

pub(crate) fn check_stop(stop: &AtomicBool) -> Result<()> {
    if stop.load(Relaxed) { Err(Error::interrupted()) } else { Ok(()) }
}

/// One measurement to make; without a round it only warms up.
struct Step {
    round: Option<usize>,
    case: usize,
    target: usize,
}

/// Lists all measurements: a first pass to warm up one case on every target, then the rounds.
fn plan(
    work: &dyn Work,
    targets: &Targets,
    rounds: usize,
    skipped: &mut Vec<Skipped>,
) -> Result<Vec<Step>> {
    let cases = work.cases().len();
    let mut steps = Vec::new();
    let mut served = vec![Vec::new(); cases];
    for (case, served) in served.iter_mut().enumerate() {
        for (target, opened) in targets.0.iter().enumerate() {
            match work.refuses(case, opened.info()) {
                Some(reason) => skipped.push(Skipped { case, target, reason }),
                None => served.push(target),
            }
        }
    }
    if served.iter().all(Vec::is_empty) {
        let reason = skipped.first().map_or("there is no case", |s| s.reason.as_str());
        return Err(Error::target(format!(
            "no target can serve any case of {}: {reason}",
            work.name()
        )));
    }
    for (target, opened) in targets.0.iter().enumerate() {
        let (has, needs) = (opened.capacity_bytes()?, work.space_bytes());
        if has < needs {
            let (has, needs) = (bedplate::format_size(has), bedplate::format_size(needs));
            let label = &opened.info().label;
            return Err(Error::target(format!(
                "{label}: it holds {has} and {} needs {needs}: give a larger target or a smaller \
                 --size",
                work.name()
            )));
        }
        steps.extend((0..cases).find(|&case| served[case].contains(&target)).map(|case| Step {
            round: None,
            case,
            target,
        }));
    }
    for round in 0..rounds {
        for (case, served) in served.iter().enumerate() {
            for turn in 0..served.len() {
                steps.push(Step {
                    round: Some(round),
                    case,
                    target: served[(turn + round) % served.len()],
                });
            }
        }
    }
    debug_assert!(
        steps.iter().all(|step| served[step.case].contains(&step.target)),
        "a case runs on targets that serve it"
    );
    Ok(steps)
}

/// Drops the records of rounds that did not reach all targets of their case.
pub(crate) fn keep_whole_rounds(found: &mut WorkloadResults) {
    let skipped = &found.skipped;
    let targets = found.targets.len();
    let expected = |case: usize| targets - skipped.iter().filter(|s| s.case == case).count();
    let mut counts = std::collections::HashMap::new();
    for record in &found.records {
        *counts.entry((record.case, record.round)).or_insert(0usize) += 1;
    }
    debug_assert!(
        counts.iter().all(|(&(case, _), &count)| count <= expected(case)),
        "a round measures each target of a case once"
    );
    found.records.retain(|record| counts[&(record.case, record.round)] == expected(record.case));
}
