//! What a traced program would gain elsewhere, measured: the trace is replayed on the kernel's file
//! system and on a Bedplate mount in its modes, in turns.
//!
//! ```text
//!   trace ──► candidates ──► rounds of turns ──► the best ──► rounds of it and the first ──► ruling
//! ```
//!
//! The best of many is partly luck, so what is claimed comes from rounds of its own.

mod candidates;
mod judge;
mod turn;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use bedplate_trace::{FileSummary, Trace, Waits, reuse_curve, summarized, waits};
use serde::Serialize;

use crate::bed::{Bed, PairOptions};
use crate::measure::{DeviceOps, Spread};
use crate::replay::plan::{Plan, plan};
use crate::replay::{LeftOut, Pace, ReplayOptions};
use crate::target::mount_of;
use crate::{Error, Result};
use candidates::Candidate;
pub use candidates::FileClass;
pub use judge::Ruling;
use judge::faster;
use turn::{Stage, Turn};

/// How a trace is tried.
#[derive(Debug, Clone)]
pub struct AdviseOptions {
    /// A directory for scratch images, or a device whose content is lost.
    pub on: PathBuf,
    /// The `bedplate` program, to make a mount with.
    pub program: PathBuf,
    /// Rounds of all candidates, and again of the best.
    pub rounds: usize,
    /// Threads do not pause between calls as they did in the trace.
    pub is_fast: bool,
    /// What the making of the files left in caches stays there.
    pub is_warm: bool,
}

/// Where a try is.
#[derive(Debug, Clone)]
pub struct Step {
    /// What is replayed now.
    pub label: String,
    /// Turns that are done.
    pub done: usize,
    /// Turns in all, as far as it is known.
    pub turns: usize,
}

/// A configuration and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Standing {
    /// Its name.
    pub label: String,
    /// The mode of data; nothing on the kernel's file system.
    pub data: Option<String>,
    /// The mode of logs.
    pub log: Option<String>,
    /// The mount's library cache.
    pub cache_bytes: Option<u64>,
    /// Seconds in calls, of all threads.
    pub waited_s: Spread,
    /// How many times as fast as the kernel's file system the calls were, round by round.
    pub calls: Spread,
    /// The same of the whole run, predicted.
    pub run: Spread,
    /// What reached the device, in the middle.
    pub device: Option<DeviceOps>,
}

/// A file that counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sorted {
    /// Its path.
    pub path: String,
    /// What it is.
    pub class: FileClass,
}

/// The whole advice.
#[derive(Debug, Clone, Serialize)]
pub struct Advised {
    /// The kernel's file system.
    pub kernel: String,
    /// The file system that most of the traced bytes lay on, where it is known.
    pub traced_on: Option<String>,
    /// How the run waited.
    pub waits: Waits,
    /// The part of the run with a call under way, from which runs are predicted.
    pub waited_share: f64,
    /// The same of a thread on average.
    pub thread_share: f64,
    /// All candidates, the kernel's file system first.
    pub standings: Vec<Standing>,
    /// The best one, from rounds of its own with the kernel's file system; nothing where none was
    /// faster.
    pub best: Option<Standing>,
    /// What can be said.
    pub ruling: Ruling,
    /// Files with the most bytes.
    pub files: Vec<Sorted>,
    /// Rounds.
    pub rounds: usize,
    /// What could not be had, one sentence each.
    pub missing: Vec<String>,
    /// Calls that were not made.
    pub left_out: LeftOut,
    /// Calls that were made of whole blocks.
    pub rounded: u64,
}

/// Files that are told.
const FILES: usize = 12;

/// Replays a trace on candidates and says which is best.
///
/// # Errors
/// `Usage` for a trace that cannot be replayed; `Target` and `Io` where the place cannot be made;
/// `Interrupted` when `stop` was set.
pub fn advise(
    trace: &Trace,
    options: &AdviseOptions,
    stop: &AtomicBool,
    step: &mut dyn FnMut(&Step),
) -> Result<Advised> {
    if options.rounds == 0 {
        return Err(Error::usage("at least one round is needed: give --rounds 3 or more"));
    }
    let plan = plan(trace)?;
    let summary = summarized(trace);
    let traced_on = traced_on(&summary.files);
    let kind = traced_on.clone().unwrap_or_default();
    let image_bytes = image_bytes(&plan, &kind);
    let (on, program) = (options.on.clone(), options.program.clone());
    let bed = Bed::pair(&PairOptions { on, image_bytes, kind, program })?;
    let kernel = kernel_name(&bed)?;
    let candidates = candidates::candidates(&kernel, &summary, &reuse_curve(trace));
    let pace = if options.is_fast { Pace::Fast } else { Pace::Thinking };
    let replay = ReplayOptions { pace, is_warm: options.is_warm };
    let stage = Stage::new(&bed, &options.program, &plan, &summary, &candidates, replay)?;
    let waits = waits(trace);
    let mut rounds = Rounds { stage: &stage, share: waits.any_share(), stop, step, done: 0 };
    let all: Vec<usize> = (0..candidates.len()).collect();
    let first = rounds.play(&all, options.rounds)?;
    let (standings, best, ruling) = rounds.judged(&candidates, &first, options.rounds)?;
    let rounded = first.iter().flatten().map(|turn| turn.rounded).max().unwrap_or(0);
    let early = first.iter().flatten().map(|turn| turn.early).max().unwrap_or(0);
    Ok(Advised {
        kernel,
        traced_on,
        waits,
        waited_share: waits.any_share(),
        thread_share: waits.thread_share(),
        standings,
        best,
        ruling,
        files: sorted(&summary.files),
        rounds: options.rounds,
        missing: bed.missing.clone(),
        left_out: LeftOut { early, ..plan.left_out },
        rounded,
    })
}

/// What the images need: the files, and what file systems keep for themselves.
fn image_bytes(plan: &Plan, kind: &str) -> u64 {
    const UNIT: u64 = 1 << 20;
    // XFS is made on no less than 300 MiB.
    let least = if kind == "ext4" { 96 * UNIT } else { 384 * UNIT };
    let files = plan.files.iter().fold(0, |sum: u64, file| sum.saturating_add(file.end_bytes));
    (files.saturating_add(files / 4) / UNIT).saturating_mul(UNIT).saturating_add(least)
}

fn kernel_name(bed: &Bed) -> Result<String> {
    let (at, name) =
        bed.kernel().ok_or_else(|| Error::target("no kernel's file system was made"))?;
    let is_own = name != "files";
    Ok(if is_own { name.to_owned() } else { mount_of(at).map_or(name.to_owned(), |m| m.kind) })
}

/// The file system of the traced file with the most bytes that still is where it was.
fn traced_on(files: &[FileSummary]) -> Option<String> {
    use std::os::linux::fs::MetadataExt;
    let is_there = |file: &&FileSummary| {
        std::fs::metadata(&file.path).is_ok_and(|meta| meta.st_dev() == file.device)
    };
    let file = files.iter().find(is_there)?;
    mount_of(Path::new(&file.path)).map(|mount| mount.kind)
}

fn sorted(files: &[FileSummary]) -> Vec<Sorted> {
    let moved = |file: &&FileSummary| file.reads.calls + file.writes.calls > 0;
    let one =
        |file: &FileSummary| Sorted { path: file.path.clone(), class: candidates::class_of(file) };
    // Each name once: a file that was made again is several of the trace.
    let mut seen = BTreeSet::new();
    let mut is_new = |file: &&FileSummary| seen.insert(file.path.clone());
    files.iter().filter(moved).filter(|file| is_new(file)).take(FILES).map(one).collect()
}

/// Turns of candidates.
struct Rounds<'a, 'b> {
    stage: &'a Stage<'b>,
    share: f64,
    stop: &'a AtomicBool,
    step: &'a mut dyn FnMut(&Step),
    done: usize,
}

impl Rounds<'_, '_> {
    /// Plays some candidates in turn; returns the turns of each. Each round begins with another
    /// one.
    fn play(&mut self, which: &[usize], rounds: usize) -> Result<Vec<Vec<Turn>>> {
        let turns = self.done + which.len() * rounds;
        let mut all: Vec<Vec<Turn>> = which.iter().map(|_| Vec::new()).collect();
        for round in 0..rounds {
            for place in 0..which.len() {
                let at = (place + round) % which.len();
                let label = self.stage.label(which[at]).to_owned();
                (self.step)(&Step { label, done: self.done, turns });
                all[at].push(self.stage.play(which[at], self.stop)?);
                self.done += 1;
            }
        }
        Ok(all)
    }

    /// Describes all, and looks at the best one again.
    fn judged(
        &mut self,
        candidates: &[Candidate],
        turns: &[Vec<Turn>],
        rounds: usize,
    ) -> Result<(Vec<Standing>, Option<Standing>, Ruling)> {
        let standings: Vec<Standing> = candidates
            .iter()
            .zip(turns)
            .map(|(candidate, its)| standing(candidate, &turns[0], its, self.share))
            .collect();
        let best = (1..standings.len())
            .max_by(|a, b| standings[*a].run.median.total_cmp(&standings[*b].run.median))
            .filter(|at| judge::is_worth(&standings[*at].run));
        let Some(best) = best else { return Ok((standings, None, Ruling::Stay)) };
        let again = self.play(&[0, best], rounds)?;
        let best = standing(&candidates[best], &again[0], &again[1], self.share);
        let ruling = judge::rule(&best.run);
        Ok((standings, Some(best), ruling))
    }
}

fn standing(candidate: &Candidate, base: &[Turn], its: &[Turn], share: f64) -> Standing {
    let rounds: Vec<_> = base
        .iter()
        .zip(its)
        .map(|(base, its)| faster(share, base.waited_s, its.waited_s))
        .collect();
    let spread =
        |of: fn(&judge::Faster) -> f64| Spread::of(&rounds.iter().map(of).collect::<Vec<_>>());
    Standing {
        label: candidate.label.clone(),
        data: candidate.modes.map(|modes| modes.data.to_string()),
        log: candidate.modes.map(|modes| modes.log.to_string()),
        cache_bytes: candidate.cache_bytes,
        waited_s: Spread::of(&its.iter().map(|turn| turn.waited_s).collect::<Vec<_>>()),
        calls: spread(|faster| faster.calls),
        run: spread(|faster| faster.run),
        device: turn::middle(its),
    }
}
