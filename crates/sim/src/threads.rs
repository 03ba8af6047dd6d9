//! Many threads on one file system: each has a directory and pages of a shared file that nobody else touches, so what each of them was promised is
//! known whoever comes first. Log, group commit, flushes, metadata, free space and the shared file's map are everybody's.
//!
//! Which thread runs when is the scheduler's: a seed gives the same steps, not the same order. What a failure leaves to look at is therefore the
//! devices themselves, as the cut left them ([`Remains::save`]).

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use block::{CrashChoice, Fault, FaultRule, FlushFault, Trigger};
use fs::{AllocateMode, FileSystem, InodeNo, OpenOptions};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::Tally;
use crate::act::{Promise, Stage};
use crate::bed::Remains;
use crate::judge::{compare, recover_and_compare};
use crate::model::Model;
use crate::run::{Done, History, carry_out, fresh_bed, quiet};
use crate::view::{View, see};
use crate::workload::{SHARED_PAGE_BYTES, SHARED_PAGES, Setup, Step, generate_for_thread, generate_setup};

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

/// Lets so many threads make so many steps each, and cuts the power so many times. `begin` runs first on each thread.
///
/// # Errors
/// The first broken promise.
pub fn try_threads(seed: u64, threads: u8, steps: usize, cuts: usize, begin: &(dyn Fn() + Sync)) -> Result<Tally, Box<ThreadsViolation>> {
    let broken = |what, remains| Box::new(ThreadsViolation { seed, threads, what, remains });
    let setup = generate_setup(seed);
    let crowd = Crowd::live(seed, threads, &setup, steps, begin).map_err(|what| broken(what, None))?;
    let mut tally = Tally { operations: crowd.operations() as u64, ..Tally::default() };
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(!seed);
    for _ in 0..cuts {
        let (after, choice) = crowd.choose(&mut rng);
        let remains = crowd.histories[0].bed.cut(after, &choice);
        // Recovery makes something else of them.
        let kept = remains.copy();
        let what = |what| broken(format!("cut after device operation {after} ({choice:?}): {what}"), Some(kept));
        recover_and_compare(&crowd.histories[0].before, false, &remains, &|seen| crowd.compare(after, seen)).map_err(what)?;
        tally.states += 1;
    }
    Ok(tally)
}

/// What the threads did.
struct Crowd {
    /// One for each thread, of its own part.
    histories: Vec<History>,
    shared: InodeNo,
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
    fn live(seed: u64, threads: u8, setup: &Setup, count: usize, begin: &(dyn Fn() + Sync)) -> Result<Self, String> {
        let bed = fresh_bed(setup, seed);
        let wires = bed.connect();
        let fs = wires.mount(quiet()).map_err(|e| format!("a fresh volume does not mount: {e}"))?;
        let shared = prepare(&fs, threads).map_err(|e| format!("a fresh volume cannot be used: {e}"))?;
        // So that others come while a flush is under way.
        let pause = Fault::Flush(FlushFault::Delay(Duration::from_micros(150)));
        bed.devices().for_each(|device| device.inject(FaultRule::new(pause, Trigger::Always)));
        let begun = |own| {
            let seen = see(&fs).map_err(|e| format!("a fresh volume cannot be read: {e}"))?;
            let part = Part { own, threads, shared };
            let mut history = History::new(bed.clone(), Model::recovered(setup.block_size, seen, BTreeSet::new()));
            history.before = part.of(&history.before);
            Ok((part, history))
        };
        let begun: Vec<(Part, History)> = (1..=threads).map(begun).collect::<Result<_, String>>()?;
        let work = |(part, history): (Part, History)| {
            let (stage, steps) = (Stage::new(fs.clone()), generate_for_thread(seed, part.own, threads, count));
            move || {
                begin();
                work(part, history, stage, &steps)
            }
        };
        let histories = std::thread::scope(|scope| {
            let running: Vec<_> = begun.into_iter().map(|begun| scope.spawn(work(begun))).collect();
            running.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?).collect::<Result<Vec<_>, String>>()
        });
        // Nobody unmounts.
        wires.cut();
        drop(fs);
        Ok(Self { histories: histories?, shared })
    }

    fn operations(&self) -> usize {
        self.histories[0].operations()
    }

    /// Mostly right after somebody was promised something: there it may be missed.
    fn choose(&self, rng: &mut Xoshiro256PlusPlus) -> (usize, CrashChoice) {
        let (first, last) = (self.histories[0].first_operation(), self.operations());
        let history = &self.histories[rng.random_range(0..self.histories.len())];
        let told: Vec<usize> = history.done.iter().filter(|done| done.promise != Promise::None).map(|done| done.end).collect();
        let after = if told.is_empty() || rng.random_bool(0.3) { rng.random_range(first..=last) } else { told[rng.random_range(0..told.len())] };
        let choice = match rng.random_range(0..4) {
            0 | 1 => CrashChoice::LoseAll,
            2 => CrashChoice::KeepAll,
            _ => CrashChoice::Seeded(rng.random()),
        };
        (after, choice)
    }

    fn compare(&self, after: usize, seen: &View) -> Result<(), String> {
        let threads = u8::try_from(self.histories.len()).expect("a few");
        for (own, history) in (1..).zip(&self.histories) {
            let part = Part { own, threads, shared: self.shared };
            compare(history, after, &part.of(seen)).map_err(|what| format!("thread {own}: {what}"))?;
        }
        Ok(())
    }
}

/// Makes the directories and the shared file, whose pages are not written yet.
fn prepare(fs: &FileSystem, threads: u8) -> fs::Result<InodeNo> {
    let shared = fs.open("/f0", &OpenOptions::create())?;
    shared.allocate(AllocateMode::Preallocate { keep_size: false }, 0, SHARED_PAGES * SHARED_PAGE_BYTES)?;
    for own in 1..=threads {
        fs.create_dir_all(format!("/d{own}"))?;
    }
    fs.sync()?;
    Ok(shared.ino())
}

fn work(part: Part, mut history: History, mut stage: Stage, steps: &[Step]) -> Result<History, String> {
    for (number, step) in steps.iter().enumerate() {
        let context = |what: String| format!("thread {}, step {number}, {step:?}: {what}", part.own);
        let outcome = carry_out(&mut stage, &mut history.model, step).map_err(context)?;
        let (end, view) = (history.operations(), part.of(&history.model.view()));
        history.push(Done { end, view, promise: outcome.promise, touched: outcome.touched, moved: outcome.moved, wrote: outcome.wrote });
    }
    Ok(history)
}

impl Part {
    /// Leaves out what is others', also from the shared file.
    fn of(self, view: &View) -> View {
        let own = self.own;
        let mine = [format!("/d{own} "), format!("/d{own}/"), format!("checkpoint c{own} ")];
        let is_mine = |line: &str| mine.iter().any(|start| line.starts_with(start.as_str()));
        let names: Vec<String> = view.names.iter().filter(|line| is_mine(line)).cloned().collect();
        let inodes: BTreeSet<InodeNo> = names.iter().filter_map(|line| number(line)).collect();
        let others = |ino: &InodeNo| view.names.iter().any(|line| number(line) == Some(*ino)) && !inodes.contains(ino);
        let contents = view.contents.iter().filter(|(ino, _)| **ino == self.shared || !others(ino));
        View {
            contents: contents.map(|(ino, content)| (*ino, if *ino == self.shared { self.pages(content) } else { Arc::clone(content) })).collect(),
            checkpoints: view.checkpoints.iter().filter(|(line, _)| is_mine(line)).map(|(line, shown)| (line.clone(), Arc::clone(shown))).collect(),
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
