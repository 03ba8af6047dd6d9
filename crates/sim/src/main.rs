//! Runs seeds until a time is over or a promise is broken.
#![forbid(unsafe_code)]

mod arguments;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bedplate_sim::{
    Backend, Directed, Effort, Failure, FailureTally, Setup, Step, Tally, ThreadsViolation,
    Violation, pair_count, shrink, try_failures, try_format_failures, try_interleaved, try_mounted,
    try_pair, try_seed, try_steps, try_threads, why_no_mount,
};
use clap::Parser;

use arguments::Arguments;

/// What the threads share.
struct Run {
    arguments: Arguments,
    /// The directed workloads that are asked for.
    directed: Vec<&'static Directed>,
    started: Instant,
    next: AtomicU64,
    seeds: AtomicU64,
    tally: Mutex<Tally>,
    failed: AtomicBool,
    violations: AtomicU64,
}

impl Run {
    fn goes_on(&self, seed: u64) -> bool {
        let Arguments { seed: first, seeds, seconds, states, .. } = self.arguments;
        let seeds_done = seeds > 0 && seed >= first.saturating_add(seeds);
        let time_over = seconds > 0 && self.started.elapsed() >= Duration::from_secs(seconds);
        let enough =
            states > 0 && self.tally.lock().expect("no thread panics with it").states >= states;
        let failed = self.failed.load(Ordering::SeqCst) && !self.arguments.survey;
        !(seeds_done || time_over || enough || failed)
    }

    /// How many parts a seed has: the directed workloads, each on one device and on two.
    fn parts(&self) -> u64 {
        match (self.arguments.directed, self.arguments.pairs) {
            (true, _) => 2 * self.directed.len() as u64,
            (false, 0) => 1,
            (false, _) => 2 * pair_count() as u64,
        }
    }

    fn work(&self) {
        let effort = self.arguments.effort();
        loop {
            let at = self.next.fetch_add(1, Ordering::SeqCst);
            let (seed, part) =
                (self.arguments.seed.saturating_add(at / self.parts()), at % self.parts());
            if !self.goes_on(seed) {
                return;
            }
            if self.arguments.threads > 0 {
                match try_threads(
                    seed,
                    self.arguments.threads,
                    effort.steps,
                    self.arguments.cuts,
                    &|| {},
                ) {
                    Ok(tally) => self.tally.lock().expect("no thread panics with it").add(&tally),
                    Err(violation) => return self.keep(&violation),
                }
                self.seeds.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            match self.one(seed, part, &effort) {
                Ok(tally) => self.tally.lock().expect("no thread panics with it").add(&tally),
                Err(violation) if self.arguments.survey => self.tell(&violation, part),
                Err(violation) => return self.report(violation, part, &effort),
            }
            self.seeds.fetch_add(u64::from(part == 0), Ordering::SeqCst);
        }
    }

    fn one(&self, seed: u64, part: u64, effort: &Effort) -> Result<Tally, Box<Violation>> {
        let volatile_cache = !seed.is_multiple_of(8);
        if self.arguments.pairs > 0 {
            let setup = Setup { volatile_cache, separate_log: part % 2 == 1, ..Setup::SMALL };
            return try_pair(
                seed,
                usize::try_from(part / 2).expect("some hundreds"),
                &setup,
                self.arguments.pairs,
                effort,
            );
        }
        if self.arguments.mounted {
            return try_mounted(seed, effort);
        }
        if self.arguments.interleaved {
            let backends: &[Backend] =
                if self.arguments.groups { &Backend::GROUPS } else { &Backend::MIXED };
            return try_interleaved(seed, backends, effort);
        }
        if !self.arguments.directed {
            return try_seed(seed, effort);
        }
        let directed = self.directed[(part / 2) as usize];
        let setup = Setup { volatile_cache, separate_log: part % 2 == 1, ..Setup::DISK };
        try_steps(seed, &setup, &(directed.steps)(), effort)
    }

    fn keep(&self, violation: &ThreadsViolation) {
        self.failed.store(true, Ordering::SeqCst);
        eprintln!("{violation}");
        if let Some(remains) = &violation.remains {
            let dir = self.arguments.keep.join(format!("seed-{}", violation.seed));
            match remains.save(&dir) {
                Ok(()) => eprintln!(
                    "the devices as the cut left them are in {}: mount or check them",
                    dir.display()
                ),
                Err(error) => eprintln!("the devices cannot be kept in {}: {error}", dir.display()),
            }
        }
    }

    /// Says in one line what a seed broke.
    fn tell(&self, violation: &Violation, part: u64) {
        self.failed.store(true, Ordering::SeqCst);
        self.violations.fetch_add(1, Ordering::SeqCst);
        let (seed, state) = (violation.seed, violation.states + 1);
        let pair = violation
            .steps
            .iter()
            .find(|step| matches!(step, Step::During(..)))
            .map(|step| format!("{step:?}: "))
            .unwrap_or_default();
        let what = violation.what.lines().take(3).map(str::trim).collect::<Vec<_>>().join(" | ");
        let seconds = self.started.elapsed().as_secs();
        let line = format!("seed {seed} part {part}, state {state}, {seconds} s: {pair}{what}");
        if self.arguments.json { eprintln!("{line}") } else { println!("{line}") }
    }

    fn report(&self, violation: Box<Violation>, part: u64, effort: &Effort) {
        if self.failed.swap(true, Ordering::SeqCst) {
            return;
        }
        let directed = self.directed.get((part / 2) as usize).filter(|_| self.arguments.directed);
        let again = self.arguments.again(violation.seed, directed.copied());
        eprintln!(
            "seed {} breaks a promise: {}\nreproduce with: {again}",
            violation.seed, violation.what
        );
        if !self.arguments.no_shrink {
            eprintln!("the smallest workload that still fails:\n{}", shrink(violation, effort));
        }
    }
}

/// Runs each directed workload with each kind of error at each call.
fn fail_every_call(arguments: &Arguments, directed: &[&'static Directed]) -> ExitCode {
    let kinds = Failure::ALL.into_iter().flat_map(|failure| [(failure, false), (failure, true)]);
    let work: Vec<_> = directed
        .iter()
        .flat_map(|directed| {
            kinds.clone().map(move |(failure, for_ever)| (*directed, failure, for_ever))
        })
        .collect();
    let (next, total, failed) =
        (AtomicU64::new(0), Mutex::new(FailureTally::default()), AtomicBool::new(false));
    let formatting = Failure::ALL.into_iter().filter(|_| arguments.workloads.is_empty());
    for (failure, setup) in
        formatting.flat_map(|failure| [(failure, Setup::DISK), (failure, Setup::TWO_DISKS)])
    {
        match try_format_failures(&setup, failure) {
            Ok(tally) => total.lock().expect("no thread panics with it").add(&tally),
            Err(what) => {
                eprintln!("formatting: {what}\nreproduce with: {}", arguments.fail_again(None));
                failed.store(true, Ordering::SeqCst);
            }
        }
    }
    let run = || {
        while let Some((directed, failure, for_ever)) =
            usize::try_from(next.fetch_add(1, Ordering::SeqCst)).ok().and_then(|at| work.get(at))
        {
            match try_failures(
                &Setup::DISK,
                &(directed.steps)(),
                *failure,
                *for_ever,
                arguments.stride.max(1),
            ) {
                Ok(tally) => total.lock().expect("no thread panics with it").add(&tally),
                Err(what) => {
                    eprintln!(
                        "{}: {what}\nreproduce with: {}",
                        directed.name,
                        arguments.fail_again(Some(directed))
                    );
                    failed.store(true, Ordering::SeqCst);
                }
            }
        }
    };
    std::thread::scope(|scope| (0..arguments.jobs.max(1)).for_each(|_| drop(scope.spawn(run))));
    if failed.into_inner() {
        return ExitCode::FAILURE;
    }
    let FailureTally { runs, latched, states } =
        total.into_inner().expect("no thread panics with it");
    println!(
        "{runs} calls failed, {latched} of them for good, {states} crash states afterwards, 0 \
         violations"
    );
    ExitCode::SUCCESS
}

/// Settings of the C library's allocator, which reads them when a program begins. Every crash state
/// takes some megabytes and gives them back; without these they come from the kernel each time,
/// which takes longer than to judge it.
const ALLOCATOR: [(&str, &str); 3] = [
    ("MALLOC_TRIM_THRESHOLD_", "2000000000"),
    ("MALLOC_MMAP_THRESHOLD_", "2000000000"),
    ("MALLOC_TOP_PAD_", "16777216"),
];

/// Begins this program once more with an allocator that keeps what it has, where none was asked
/// for.
fn keep_memory() {
    if ALLOCATOR.iter().any(|(name, _)| std::env::var_os(name).is_some()) {
        return;
    }
    if let Ok(program) = std::env::current_exe() {
        // It returns only where that is impossible, and then all takes longer.
        let error = Command::new(program).args(std::env::args_os().skip(1)).envs(ALLOCATOR).exec();
        eprintln!("the allocator keeps its settings: {error}");
    }
}

fn main() -> ExitCode {
    keep_memory();
    let arguments = Arguments::parse();
    let directed = match arguments.picked() {
        Ok(directed) => directed,
        Err(what) => {
            eprintln!("{what}");
            return ExitCode::from(2);
        }
    };
    if arguments.list {
        directed.iter().for_each(|directed| println!("{}", directed.name));
        return ExitCode::SUCCESS;
    }
    if arguments.failing {
        return fail_every_call(&arguments, &directed);
    }
    if let Some(why) = why_no_mount().filter(|_| arguments.mounted) {
        println!("skipped: {why}");
        return ExitCode::SUCCESS;
    }
    let (jobs, json) = (arguments.jobs.max(1), arguments.json);
    let run = Run {
        arguments,
        directed,
        started: Instant::now(),
        next: AtomicU64::new(0),
        seeds: AtomicU64::new(0),
        tally: Mutex::default(),
        failed: AtomicBool::new(false),
        violations: AtomicU64::new(0),
    };
    std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(|| run.work()))));
    let failed = run.failed.load(Ordering::SeqCst);
    if failed && !run.arguments.survey {
        return ExitCode::FAILURE;
    }
    let violations = run.violations.load(Ordering::SeqCst);
    let minutes = run.started.elapsed().as_secs_f64() / 60.0;
    let (seeds, total) =
        (run.seeds.into_inner(), run.tally.into_inner().expect("no thread panics with it"));
    if json {
        println!(
            "{}",
            serde_json::json!({ "seeds": seeds, "tally": total, "minutes": minutes, "violations": violations })
        );
    } else {
        let Tally { states, second_cuts, second_lives, interleaved, grouped, leased, .. } = total;
        let rate = states as f64 / minutes;
        println!(
            "{states} distinct crash states of {seeds} seeds ({second_cuts} during recovery, \
             {second_lives} in a second life, {interleaved} with a step in the middle of another, \
             {grouped} of a group of devices; {leased} calls under leases), {rate:.0} a minute, {violations} violations"
        );
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
