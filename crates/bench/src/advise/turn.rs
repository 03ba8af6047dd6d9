//! One replay on one candidate.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};

use bedplate::IoMode;
use bedplate_trace::Summary;

use super::candidates::{Candidate, FileClass, class_of};
use crate::bed::Bed;
use crate::measure::DeviceOps;
use crate::replay::plan::{Plan, PlannedFile};
use crate::replay::play::{Opened, Played, play};
use crate::replay::{ReplayOptions, spec};
use crate::target::{Target, TargetSpec, Targets};
use crate::{Error, Result};

/// How a file is opened: in which mode of a mount, past the page cache or not.
type Way = (Option<IoMode>, bool);

/// All that turns have in common.
pub(super) struct Stage<'a> {
    bed: &'a Bed,
    program: &'a Path,
    plan: &'a Plan,
    candidates: &'a [Candidate],
    options: ReplayOptions,
    /// What each file of the plan is, and whether its program goes past the page cache.
    uses: Vec<(FileClass, bool)>,
    targets: Targets,
    ways: BTreeMap<String, usize>,
}

/// What came of one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Turn {
    pub waited_s: f64,
    pub rounded: u64,
    pub early: u64,
    pub device: Option<DeviceOps>,
}

impl<'a> Stage<'a> {
    pub(super) fn new(
        bed: &'a Bed,
        program: &'a Path,
        plan: &'a Plan,
        summary: &Summary,
        candidates: &'a [Candidate],
        options: ReplayOptions,
    ) -> Result<Self> {
        let uses: Vec<(FileClass, bool)> = plan
            .files
            .iter()
            .map(|planned| {
                let file = summary.files.iter().find(|file| file.number == planned.number);
                file.map_or((FileClass::Data, false), |file| {
                    (class_of(file), file.flags.contains(&"O_DIRECT"))
                })
            })
            .collect();
        let mut specs: Vec<TargetSpec> = Vec::new();
        let mut ways = BTreeMap::new();
        for way in candidates.iter().flat_map(|one| uses.iter().map(|used| way(one, *used))) {
            if let Entry::Vacant(entry) = ways.entry(name(way)) {
                specs.push(described(bed, way, entry.key())?);
                entry.insert(specs.len() - 1);
            }
        }
        // All of it is the bed's own.
        let targets = Targets::open(&specs, &mut |_| true)?;
        Ok(Self { bed, program, plan, candidates, options, uses, targets, ways })
    }

    pub(super) fn label(&self, candidate: usize) -> &str {
        &self.candidates[candidate].label
    }

    /// Replays the plan on a candidate.
    pub(super) fn play(&self, candidate: usize, stop: &AtomicBool) -> Result<Turn> {
        let candidate = &self.candidates[candidate];
        let targets: Vec<&dyn Target> = self
            .uses
            .iter()
            .map(|used| &*self.targets.0[self.place(way(candidate, *used))])
            .collect();
        let files = || self.plan.files.iter().zip(&targets);
        let needed: u64 = self.plan.files.iter().map(|file| file.end_bytes).sum();
        let has = targets[0].capacity_bytes()?;
        if needed > has {
            let (needed, has) = (bedplate::format_size(needed), bedplate::format_size(has));
            return Err(Error::target(format!(
                "the files of the trace need {needed}, and {} has {has}: give a larger place \
                 with --on",
                candidate.label
            )));
        }
        files().try_for_each(|(file, target)| target.create(&spec(*target, file)))?;
        // Many files are opened in few ways; what concerns all files of a way is done once.
        let places: BTreeSet<usize> =
            self.uses.iter().map(|used| self.place(way(candidate, *used))).collect();
        let places: Vec<&dyn Target> = places.iter().map(|at| &*self.targets.0[*at]).collect();
        self.settle(candidate, &places)?;
        let open = |(file, target): (&PlannedFile, &&dyn Target)| {
            let written = AtomicU64::new(file.before_bytes);
            Ok(Opened { file: target.open(&file.name)?, written })
        };
        let opened = files().map(open).collect::<Result<Vec<_>>>()?;
        // Both kinds of files of a candidate lie on the same device.
        let before = targets[0].device_ops();
        let played = play(self.plan, &opened, &self.options, stop);
        drop(opened);
        places.iter().try_for_each(|target| target.quiesce())?;
        let after = targets[0].device_ops();
        self.remove_grown(&targets)?;
        Ok(told(&played?, after.zip(before).map(|(after, before)| after.since(&before))))
    }

    fn place(&self, way: Way) -> usize {
        let at = self.ways.get(&name(way)).copied();
        at.expect("each way of each candidate was opened with the stage")
    }

    /// Brings caches to where they are at the start of each turn.
    fn settle(&self, candidate: &Candidate, targets: &[&dyn Target]) -> Result<()> {
        let settle = |target: &&dyn Target| {
            if self.options.is_warm { target.quiesce() } else { target.make_cold() }
        };
        targets.iter().try_for_each(settle)?;
        if let Some(size) = candidate.cache_bytes {
            // A cache without room forgets what it holds.
            self.bed.tune(self.program, "cache=0")?;
            self.bed.tune(self.program, &format!("cache={size}"))?;
        }
        Ok(())
    }

    /// Removes files that a turn made longer; the others serve the next turn as they are.
    fn remove_grown(&self, targets: &[&dyn Target]) -> Result<()> {
        let grown = |file: &&PlannedFile| file.end_bytes > file.before_bytes;
        let files = self.plan.files.iter().zip(targets);
        files
            .filter(|(file, _)| grown(file))
            .try_for_each(|(file, target)| target.remove(&file.name))
    }
}

fn way(candidate: &Candidate, (class, is_direct): (FileClass, bool)) -> Way {
    let mode = candidate.modes.map(|modes| match class {
        FileClass::Log => modes.log,
        FileClass::Data => modes.data,
    });
    (mode, is_direct)
}

fn name((mode, is_direct): Way) -> String {
    let mode = mode.map_or_else(|| "kernel".to_owned(), |mode| mode.to_string());
    format!("{mode}{}", if is_direct { " past the page cache" } else { "" })
}

fn described(bed: &Bed, (mode, is_direct): Way, label: &str) -> Result<TargetSpec> {
    let caching = if is_direct { "direct" } else { "buffered" };
    let at = match mode {
        Some(_) => bed.mount(),
        None => bed.kernel().map(|(at, _)| at),
    };
    let at = at.ok_or_else(|| Error::target("the place to try on was not made"))?.display();
    let mode = mode.map_or_else(String::new, |mode| format!(",mode={mode}"));
    format!("{label}=path:{at},{caching}{mode}").parse()
}

fn told(played: &Played, device: Option<DeviceOps>) -> Turn {
    Turn {
        waited_s: played.waited.as_secs_f64(),
        rounded: played.rounded,
        early: played.early,
        device,
    }
}

/// Returns the median of each count.
pub(super) fn middle(turns: &[Turn]) -> Option<DeviceOps> {
    let all: Vec<DeviceOps> = turns.iter().filter_map(|turn| turn.device).collect();
    let of = |get: fn(&DeviceOps) -> u64| {
        let mut counts: Vec<u64> = all.iter().map(get).collect();
        counts.sort_unstable();
        counts.get(counts.len() / 2).copied()
    };
    Some(DeviceOps {
        reads: of(|ops| ops.reads)?,
        read_bytes: of(|ops| ops.read_bytes)?,
        writes: of(|ops| ops.writes)?,
        written_bytes: of(|ops| ops.written_bytes)?,
        flushes: of(|ops| ops.flushes)?,
    })
}
