//! The turns: first every way once, which shows whether it can be gone and leaves its area; then
//! rounds, in which each way reads the areas of all and is measured in every case.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use super::client::{Load, measured, options};
use super::guest::GuestSetup;
use super::place::{Opened, Place, Wanted};
use super::{Areas, Way, Ways};
use crate::results::{Measurement, Record, Results, Skipped, WorkloadResults};
use crate::run::{Progress, Schedule, check_stop, keep_whole_rounds};
use crate::target::{Confirm, Target, TargetInfo, Targets};
use crate::workload::{Env, Work};
use crate::{Error, ErrorKind, Result};

/// Measures every way, and appends what it found to `results`. Sets `results.interrupted` when `stop`
/// ended it early; then the rounds that were finished are there.
///
/// # Errors
/// `Usage` for options that make no sense, `NotConfirmed`, `Target` for a volume that is too small or
/// in use, `Io` when a measurement failed or one way did not read what another wrote. What was
/// measured before is in `results`.
pub fn run_ways(
    ways: &Ways,
    schedule: &Schedule,
    results: &mut Results,
    stop: &AtomicBool,
    confirm: &mut Confirm<'_>,
    watch: &mut dyn FnMut(Progress<'_>),
) -> Result<()> {
    ways.validate()?;
    if schedule.rounds == 0 || schedule.time.is_zero() {
        return Err(Error::usage("a run needs at least one round and a time above zero"));
    }
    let areas = areas_of(ways);
    // All leave is asked for before anything is written.
    let references = References::open(ways, confirm)?;
    let place = Place::make(wanted(ways, areas, stop)?, confirm)?;
    references.prepare(&ways.loads()[0])?;
    let mut run = Run {
        loads: ways.loads(),
        ways: ways.chosen(),
        areas,
        place: &place,
        references: &references,
        stop,
        written: Vec::new(),
        compared: BTreeSet::new(),
    };
    let mut found = run.begin(ways, schedule);
    let outcome = run.measure(schedule, &mut found, watch);
    keep_whole_rounds(&mut found);
    let cleaned = references.clean(&run.loads[0]);
    let removed = place.remove();
    if !found.records.is_empty() {
        results.workloads.push(found);
    }
    match outcome {
        Err(e) if e.kind == ErrorKind::Interrupted => {
            results.interrupted = true;
            cleaned.and(removed)
        }
        outcome => outcome.and(cleaned).and(removed),
    }
}

fn areas_of(ways: &Ways) -> Areas {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Areas { start: ways.size_bytes, bytes: ways.block_bytes, seed: since.as_nanos() as u64 }
}

fn wanted<'a>(ways: &'a Ways, areas: Areas, stop: &'a AtomicBool) -> Result<Wanted<'a>> {
    let most = |numbers: &[usize]| numbers.iter().copied().max().unwrap_or(1);
    Ok(Wanted {
        device: ways.volume()?,
        program: &ways.program,
        fio: &ways.fio,
        areas,
        guest: GuestSetup {
            queues: most(&ways.threads),
            depth: most(&ways.depths),
            buffer_bytes: ways.block_bytes as usize,
        },
        stop,
    })
}

/// The raw device and the kernel's file system, as far as they were named.
struct References(Vec<(Way, Targets)>);

impl References {
    fn open(ways: &Ways, confirm: &mut Confirm<'_>) -> Result<Self> {
        let mut opened = Vec::new();
        for way in ways.chosen().into_iter().filter(|way| !way.is_into_volume()) {
            let Some(spec) = ways.reference(way) else { continue };
            let targets = Targets::open(std::slice::from_ref(spec), confirm)?;
            opened.push((way, targets));
        }
        Ok(Self(opened))
    }

    fn get(&self, way: Way) -> Option<&dyn Target> {
        self.0.iter().find(|(found, _)| *found == way).map(|(_, targets)| &*targets.0[0])
    }

    fn prepare(&self, load: &Load) -> Result<()> {
        let work = load.mixed();
        self.0.iter().try_for_each(|(_, targets)| work.prepare(&*targets.0[0]))
    }

    fn clean(&self, load: &Load) -> Result<()> {
        let work = load.mixed();
        self.0.iter().try_for_each(|(_, targets)| work.clean(&*targets.0[0]))
    }
}

/// The option that names the ways that read what each of them had written.
const COMPARED: &str = "read each other's writes";

struct Run<'a> {
    loads: Vec<Load>,
    ways: Vec<Way>,
    areas: Areas,
    place: &'a Place<'a>,
    references: &'a References,
    stop: &'a AtomicBool,
    /// The numbers of ways whose areas are written.
    written: Vec<usize>,
    /// The ways that have read all of those.
    compared: BTreeSet<Way>,
}

impl Run<'_> {
    fn begin(&self, ways: &Ways, schedule: &Schedule) -> WorkloadResults {
        let Ways { size_bytes, block_bytes, threads, depths, .. } = ways;
        WorkloadResults {
            name: "ways".into(),
            title: "what each way in to the bytes of one file costs".into(),
            unit: "IOPS".into(),
            options: options(*size_bytes, *block_bytes, threads, depths, schedule.time),
            rounds: schedule.rounds,
            targets: self.ways.iter().map(|&way| self.info(way)).collect(),
            cases: self.loads.iter().map(Load::case).collect(),
            records: Vec::new(),
            counts: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// Describes a way; a reference as its target does, under its own name here.
    fn info(&self, way: Way) -> TargetInfo {
        match self.references.get(way) {
            Some(target) => TargetInfo { label: way.label().into(), ..target.info().clone() },
            None => self.place.info(way),
        }
    }

    fn measure(
        &mut self,
        schedule: &Schedule,
        found: &mut WorkloadResults,
        watch: &mut dyn FnMut(Progress<'_>),
    ) -> Result<()> {
        let total = self.ways.len() * (1 + schedule.rounds * self.loads.len());
        let mut done = 0;
        let mut say = |case: &str, target: &str| {
            watch(Progress { done, total, workload: "ways", case, target });
            done += 1;
        };
        let mut open = Vec::new();
        for (at, &way) in self.ways.clone().iter().enumerate() {
            check_stop(self.stop)?;
            say("opening", way.label());
            match self.settle(way)? {
                None => open.push(at),
                Some(reason) => found.skipped.extend((0..self.loads.len()).map(|case| Skipped {
                    case,
                    target: at,
                    reason: reason.clone(),
                })),
            }
        }
        self.refuse_cases(&open, found);
        if open.is_empty() {
            return Err(Error::target("none of the ways can be gone here: see the reasons"));
        }
        let env = Env { warm_up: schedule.warm_up, time: schedule.time, stop: self.stop };
        for round in 0..schedule.rounds {
            for turn in 0..open.len() {
                let target = open[(turn + round) % open.len()];
                self.turn(target, round, &env, found, &mut say)?;
            }
            let names: Vec<&str> = self.compared.iter().map(|way| way.name()).collect();
            found.options.insert(COMPARED.into(), names.join(","));
        }
        Ok(())
    }

    fn refuse_cases(&self, open: &[usize], found: &mut WorkloadResults) {
        for &target in open {
            for (case, load) in self.loads.iter().enumerate() {
                let reason = load.refused_by(self.ways[target], &found.targets[target]);
                found.skipped.extend(reason.map(|reason| Skipped { case, target, reason }));
            }
        }
    }

    /// Opens a way and has it write its area. Returns why it cannot be gone, where it cannot.
    fn settle(&mut self, way: Way) -> Result<Option<String>> {
        if !way.is_into_volume() {
            return Ok(self.references.get(way).is_none().then(|| {
                let word = if way == Way::Raw { "raw:DEVICE" } else { "path:DIR" };
                format!("no reference was named: add -t {word}")
            }));
        }
        match self.place.open(way) {
            Err(e) if e.kind == ErrorKind::Interrupted => Err(e),
            // Ctrl-C at the terminal may have ended what was being started.
            Err(e) => check_stop(self.stop).map(|()| Some(e.message)),
            Ok(opened) => {
                let written = opened.client()?.write(&self.areas, way);
                let closed = opened.close();
                match written {
                    // A program that got no lease says so here.
                    Err(e) if e.kind == ErrorKind::Target => Ok(Some(e.message)),
                    written => {
                        written.and(closed)?;
                        self.written.push(way.number());
                        Ok(None)
                    }
                }
            }
        }
    }

    /// Measures one way in every case.
    fn turn(
        &mut self,
        target: usize,
        round: usize,
        env: &Env<'_>,
        found: &mut WorkloadResults,
        say: &mut dyn FnMut(&str, &str),
    ) -> Result<()> {
        check_stop(self.stop)?;
        let way = self.ways[target];
        let opened = match self.references.get(way) {
            Some(_) => None,
            None => Some(self.place.open(way)?),
        };
        if let Some(opened) = &opened {
            let told = |e: Error| Error::new(e.kind, format!("{}: {}", way.label(), e.message));
            if opened.client()?.check(&self.areas, &self.written).map_err(told)? > 0 {
                self.compared.insert(way);
            }
        }
        for (case, load) in self.loads.iter().enumerate() {
            if found.skipped.iter().any(|s| (s.case, s.target) == (case, target)) {
                continue;
            }
            check_stop(self.stop)?;
            say(&found.cases[case].name, way.label());
            let mut measurement: Measurement = match (&opened, self.references.get(way)) {
                (Some(opened), _) => opened.client()?.measure(load, env)?,
                (None, Some(reference)) => {
                    let measurement = measured(load, reference, env)?;
                    reference.quiesce()?;
                    measurement
                }
                (None, None) => continue,
            };
            add_figures(&mut measurement);
            found.records.push(Record { case, target, round, measurement });
        }
        opened.map_or(Ok(()), Opened::close)
    }
}

/// The figures that tables of every kind show of ways.
fn add_figures(measurement: &mut Measurement) {
    let machine = measurement.machine_us_per_op();
    let figures = &mut measurement.figures;
    figures.extend(measurement.cpu_us_per_op.map(|us| ("CPU µs per operation".to_owned(), us)));
    figures.insert("CPU µs per operation, whole machine".to_owned(), machine);
}
