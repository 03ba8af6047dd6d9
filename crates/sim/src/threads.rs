//! Many threads on one file system: each has a directory and pages of a shared file that no other
//! thread touches, so what each of them was promised is known in any order. Log, group commit,
//! flushes, metadata, free space and the shared file's map are common to all.
//!
//! Which thread runs when is the scheduler's: a seed gives the same steps, not the same order. What
//! a failure leaves to look at is therefore the devices themselves, as the cut left them
//! ([`Remains::save`]).

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bedplate_block::{CrashChoice, Fault, FaultRule, FlushFault, Trigger};
use bedplate_fs::{AllocateMode, ErrorKind, FileSystem, InodeNo, OpenOptions};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::Tally;
use crate::act::Stage;
use crate::bed::{Remains, fresh_bed, quiet, with_helpers};
use crate::failing::one_sentence;
use crate::history::{Done, Floor, History, views};
use crate::judge::{Looks, recover_and_compare};
use crate::kept::{compare, names_fit};
use crate::live::carry_out;
use crate::model::Model;
use crate::outcome::{Outcome, Promise};
use crate::view::{View, difference, see};
use crate::workload::{
    CaptureStep, SHARED_PAGE_BYTES, SHARED_PAGES, Setup, Step, StepKind, generate_for_thread,
    generate_setup,
};

/// A promise that was broken under many threads.
#[derive(Debug)]
pub struct ThreadsViolation {
    /// The seed.
    pub seed: u64,
    /// How many threads.
    pub threads: u8,
    /// What was wrong.
    pub what: String,
    /// What the cut had left; `None` when the live file system was wrong.
    pub remains: Option<Remains>,
}

impl fmt::Display for ThreadsViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, {} threads: {}", self.seed, self.threads, self.what)
    }
}

/// Lets so many threads make so many steps each, and cuts the power so many times. `begin` runs
/// first on each thread.
///
/// # Errors
/// The first broken promise.
pub fn try_threads(
    seed: u64,
    threads: u8,
    steps: usize,
    cuts: usize,
    begin: &(dyn Fn() + Sync),
) -> Result<Tally, Box<ThreadsViolation>> {
    let broken = |what, remains| Box::new(ThreadsViolation { seed, threads, what, remains });
    let setup = generate_setup(seed);
    let crowd =
        Crowd::live(seed, threads, &setup, steps, begin).map_err(|what| broken(what, None))?;
    let mut tally = Tally { operations: crowd.operations() as u64, ..Tally::default() };
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(!seed);
    for _ in 0..cuts {
        let (after, choice) = crowd.choose(&mut rng);
        let remains = crowd.histories[0].bed.cut(after, &choice);
        // Recovery makes something else of them.
        let kept = remains.copy();
        let what = |what| {
            broken(format!("cut after device operation {after} ({choice:?}): {what}"), Some(kept))
        };
        recover_and_compare(
            &crowd.histories[0].before,
            Looks { goes_on: true, ..Looks::default() },
            &remains,
            &|seen| crowd.compare(after, seen),
        )
        .map_err(what)?;
        tally.states += 1;
    }
    Ok(tally)
}

/// What the threads did.
struct Crowd {
    /// One for each thread, of its own part.
    histories: Vec<History>,
    /// What checkpoints showed when they were made.
    made: Vec<Made>,
    shared: InodeNo,
}

/// A checkpoint that a thread made: when, and all that it shows.
struct Made {
    line: String,
    span: Range<u64>,
    shown: View,
}

/// What one thread did.
struct Worked {
    history: History,
    made: Vec<Made>,
}

/// One thread's part of a view.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// The number of its directory and its checkpoint, from 1.
    own: u8,
    threads: u8,
    shared: InodeNo,
}

impl Crowd {
    fn live(
        seed: u64,
        threads: u8,
        setup: &Setup,
        count: usize,
        begin: &(dyn Fn() + Sync),
    ) -> Result<Self, String> {
        let bed = fresh_bed(setup, seed);
        let wires = bed.connect();
        let fs = wires
            .mount(with_helpers(quiet()))
            .map_err(|e| format!("a fresh volume does not mount: {e}"))?;
        let shared =
            prepare(&fs, threads).map_err(|e| format!("a fresh volume cannot be used: {e}"))?;
        // So that others come while a flush is under way.
        let pause = Fault::Flush(FlushFault::Delay(Duration::from_micros(150)));
        bed.devices().for_each(|device| device.inject(FaultRule::new(pause, Trigger::Always)));
        let begun = |own| {
            let seen = see(&fs).map_err(|e| format!("a fresh volume cannot be read: {e}"))?;
            let part = Part { own, threads, shared };
            let mut history = History::new(
                bed.clone(),
                Model::recovered(setup.block_size, seen, BTreeSet::new()),
            );
            history.before = part.of(&history.before);
            Ok((part, history))
        };
        let begun: Vec<(Part, History)> =
            (1..=threads).map(begun).collect::<Result<_, String>>()?;
        let clock = &AtomicU64::new(0);
        let work = |(part, history): (Part, History)| {
            let (stage, steps) =
                (Stage::new(fs.clone()), generate_for_thread(seed, part.own, threads, count));
            move || {
                begin();
                work(part, clock, history, &stage, &steps)
            }
        };
        let worked = std::thread::scope(|scope| {
            let running: Vec<_> = begun.into_iter().map(|begun| scope.spawn(work(begun))).collect();
            running
                .into_iter()
                .map(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?)
                .collect::<Result<Vec<_>, String>>()
        });
        // There is no unmount.
        wires.cut();
        drop(fs);
        let mut crowd = Self { histories: Vec::new(), made: Vec::new(), shared };
        for Worked { history, made } in worked? {
            crowd.histories.push(history);
            crowd.made.extend(made);
        }
        crowd.note_syncs();
        crowd.compare_made()?;
        Ok(crowd)
    }

    /// S-4: a sync of everything by one thread promises what had returned to the others before it
    /// began.
    fn note_syncs(&mut self) {
        let synced = |done: &&Done| done.promise == Promise::All;
        let syncs: Vec<_> = self
            .histories
            .iter()
            .flat_map(|history| history.done.iter().filter(synced))
            .map(|done| (done.end, done.span.start))
            .collect();
        for history in &mut self.histories {
            let floor = |(end, begun): &(usize, u64)| Floor {
                end: *end,
                steps: history.done.partition_point(|done| done.span.end < *begun),
            };
            history.floors = syncs.iter().map(floor).collect();
        }
    }

    /// S-50: of every thread a checkpoint of everything shows what that had done at some moment of
    /// its making.
    fn compare_made(&self) -> Result<(), String> {
        for Made { line, span, shown } in
            self.made.iter().filter(|made| made.line.ends_with(" of []"))
        {
            for (part, history) in self.parts() {
                let before = history.done.partition_point(|done| done.span.end < span.start);
                let begun = history.done.partition_point(|done| done.span.start < span.end);
                let shown = part.of(shown);
                let bare = |view: &View| View {
                    names: view
                        .names
                        .iter()
                        .filter(|line| !line.starts_with("checkpoint "))
                        .cloned()
                        .collect(),
                    ..view.clone()
                };
                let differences: Vec<_> = views(history, before, begun)
                    .filter_map(|view| difference(&shown, &bare(view)))
                    .collect();
                debug_assert!(
                    before <= begun && differences.len() <= begun - before + 1,
                    "a checkpoint is compared with each moment of its making"
                );
                if differences.len() == begun - before + 1 {
                    let (own, first) = (part.own, &differences[0]);
                    return Err(format!(
                        "S-50: '{line}' shows nothing that thread {own} had done after {before} to \
                         {begun} steps: {first}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Each thread's history, and which part of everything it is of.
    fn parts(&self) -> impl Iterator<Item = (Part, &History)> {
        let threads = u8::try_from(self.histories.len()).expect("a few");
        (1..)
            .zip(&self.histories)
            .map(move |(own, history)| (Part { own, threads, shared: self.shared }, history))
    }

    /// S-5: what one thread changed of names and attributes after a change of another had returned
    /// is not there without that one.
    fn compare_order(&self, after: usize, seen: &View) -> Result<(), String> {
        let parts: Vec<_> = self
            .parts()
            .map(|(part, history)| (part.own, history, names_fit(history, after, &part.of(seen))))
            .collect();
        let changes = |history: &'_ History, at: usize| {
            views(history, at, at).next().map(|view| &view.names)
                != views(history, at + 1, at + 1).next().map(|view| &view.names)
        };
        for (own, history, fit) in &parts {
            let (Some(there), true) = (fit.first(), !fit.is_empty()) else { continue };
            let Some(kept) = (0..*there).rev().find(|at| changes(history, *at)) else { continue };
            for (other, its, fit) in parts.iter().filter(|(other, ..)| other != own) {
                let Some(last) = fit.last() else { continue };
                let Some(lost) = (*last..its.done.len()).find(|at| changes(its, *at)) else {
                    continue;
                };
                if its.done[lost].span.end < history.done[kept].span.start {
                    return Err(format!(
                        "S-5: step {kept} of thread {own} is there, and step {lost} of thread \
                         {other}, which had returned before that began, is not"
                    ));
                }
            }
        }
        Ok(())
    }

    /// S-54: a checkpoint shows what it showed when it was made, of every thread.
    fn compare_checkpoints(&self, seen: &View) -> Result<(), String> {
        for (line, shown) in &seen.checkpoints {
            let made = self
                .made
                .iter()
                .find(|made| made.line == *line)
                .ok_or_else(|| format!("'{line}' was never made"))?;
            let other = difference(shown, &made.shown).or_else(|| difference(&made.shown, shown));
            other.map_or(Ok(()), |what| {
                Err(format!("'{line}' shows something else than when it was made: {what}"))
            })?;
        }
        Ok(())
    }

    fn operations(&self) -> usize {
        self.histories[0].operations()
    }

    /// Mostly right after a promise: there it may be missed.
    fn choose(&self, rng: &mut Xoshiro256PlusPlus) -> (usize, CrashChoice) {
        let (first, last) = (self.histories[0].first_operation(), self.operations());
        let history = &self.histories[rng.random_range(0..self.histories.len())];
        let told: Vec<usize> = history
            .done
            .iter()
            .filter(|done| done.promise != Promise::None)
            .map(|done| done.end)
            .collect();
        let after = if told.is_empty() || rng.random_bool(0.3) {
            rng.random_range(first..=last)
        } else {
            told[rng.random_range(0..told.len())]
        };
        let choice = match rng.random_range(0..4) {
            0 | 1 => CrashChoice::LoseAll,
            2 => CrashChoice::KeepAll,
            _ => CrashChoice::Seeded(rng.random()),
        };
        (after, choice)
    }

    fn compare(&self, after: usize, seen: &View) -> Result<(), String> {
        self.compare_order(after, seen)?;
        self.compare_checkpoints(seen)?;
        self.parts().try_for_each(|(part, history)| {
            compare(history, after, &part.of(seen))
                .map_err(|what| format!("thread {}: {what}", part.own))
        })
    }
}

/// Makes the directories and the shared file, whose pages are not written yet.
fn prepare(fs: &FileSystem, threads: u8) -> bedplate_fs::Result<InodeNo> {
    let shared = fs.open("/f0", &OpenOptions::create())?;
    shared.allocate(
        AllocateMode::Preallocate { keep_size: false },
        0,
        SHARED_PAGES * SHARED_PAGE_BYTES,
    )?;
    for own in 1..=threads {
        fs.create_dir_all(format!("/d{own}"))?;
    }
    fs.sync()?;
    Ok(shared.ino())
}

fn work(
    part: Part,
    clock: &AtomicU64,
    mut history: History,
    stage: &Stage,
    steps: &[Step],
) -> Result<Worked, String> {
    let mut made = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let context =
            |what: String| format!("thread {}, step {number}, {step:?}: {what}", part.own);
        let begun = clock.fetch_add(1, Ordering::SeqCst);
        let outcome = match step.kind() {
            StepKind::Captures(capture @ CaptureStep::Checkpoint(_, None)) => {
                whole(part, stage, &mut history, step, capture)
            }
            _ => carry_out(stage, &mut history, step),
        };
        let mut outcome = outcome.map_err(context)?;
        let span = begun..clock.fetch_add(1, Ordering::SeqCst);
        if let Some((line, seen)) = outcome.checkpoint.take() {
            made.push(Made { line, span: span.clone(), shown: seen.view.clone() });
        }
        let (end, view) = (history.operations(), part.of(&history.model.view()));
        let Outcome { promise, touched, moved, wrote, .. } = outcome;
        history.push(Done { end, view, promise, touched, moved, wrote, span, ..Done::default() });
    }
    Ok(Worked { history, made })
}

/// Makes a checkpoint of everything: the model of one thread knows its own part of what that shows.
fn whole(
    part: Part,
    stage: &Stage,
    history: &mut History,
    step: &Step,
    capture: CaptureStep,
) -> Result<Outcome, String> {
    let made = match stage.make_checkpoint(capture) {
        Ok(made) => made,
        Err(error) if error.kind == ErrorKind::NoSpace => return Ok(Outcome::default()),
        Err(error) if history.model.clone().apply(step, &Outcome::default()).is_err() => {
            return one_sentence(&error).map(|()| Outcome::default());
        }
        Err(error) => return Err(format!("it failed and nothing speaks against it: {error}")),
    };
    let outcome =
        stage.made_checkpoint(&made).map_err(|e| format!("a checkpoint cannot be read: {e}"))?;
    let (line, seen) = outcome.checkpoint.clone().expect("it was made");
    let (shown, present) = (part.of(&seen.view), part.of(&history.model.view()));
    let present = View {
        names: present.names.into_iter().filter(|line| !line.starts_with("checkpoint ")).collect(),
        ..present
    };
    difference(&shown, &present).map_or(Ok(()), |what| {
        Err(format!("S-50: the checkpoint shows something else than the present: {what}"))
    })?;
    history.model.add_checkpoint(line, &seen)?;
    Ok(outcome)
}

impl Part {
    /// Leaves out what is others', also from the shared file.
    fn of(self, view: &View) -> View {
        let own = self.own;
        let mine = [format!("/d{own} "), format!("/d{own}/"), format!("checkpoint c{own} ")];
        let is_mine = |line: &str| mine.iter().any(|start| line.starts_with(start.as_str()));
        let names: Vec<String> = view.names.iter().filter(|line| is_mine(line)).cloned().collect();
        let inodes: BTreeSet<InodeNo> = names.iter().filter_map(|line| number(line)).collect();
        let others = |ino: &InodeNo| {
            view.names.iter().any(|line| number(line) == Some(*ino)) && !inodes.contains(ino)
        };
        let contents = view.contents.iter().filter(|(ino, _)| **ino == self.shared || !others(ino));
        View {
            contents: contents
                .map(|(ino, content)| {
                    (
                        *ino,
                        if *ino == self.shared { self.pages(content) } else { Arc::clone(content) },
                    )
                })
                .collect(),
            checkpoints: view
                .checkpoints
                .iter()
                .filter(|(line, _)| is_mine(line))
                .map(|(line, shown)| (line.clone(), Arc::new(self.of(shown))))
                .collect(),
            names,
        }
    }

    /// Takes others' pages for zeros.
    fn pages(self, content: &[u8]) -> Arc<Vec<u8>> {
        let page_bytes = usize::try_from(SHARED_PAGE_BYTES).expect("small");
        let mut content = content.to_vec();
        for (page, bytes) in content.chunks_mut(page_bytes).enumerate() {
            if page % usize::from(self.threads) != usize::from(self.own - 1) {
                bytes.fill(0);
            }
        }
        Arc::new(content)
    }
}

/// The inode number in a line about a name.
fn number(line: &str) -> Option<InodeNo> {
    line.split(" inode ").nth(1)?.split(' ').next()?.parse().ok().map(InodeNo)
}
