//! Mutation testing: does anything notice a mistake? Each planted one is tried on the tests and on
//! the judge, and a table says by what and after how long.
//!
//! The mistakes stand in the source behind a feature (`planted.rs` of fs and of volume) and are
//! switched on at run time, so all of them need one build. What nothing notices has to be named in
//! docs/proof.md with its reason. `--all` leaves that list and lets cargo-mutants change every
//! function of the same rooms instead: each change is a build, so that is for a night.

mod catalogue;
mod watch;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::sh;
use catalogue::{Crate, Mistake};
use watch::{Noticer, Programs};

/// What to try.
#[derive(Args)]
pub struct Options {
    /// Mistakes to try: those whose name or room starts with one of these; all when none is named.
    names: Vec<String>,
    /// Only lists the mistakes with where they stand.
    #[arg(long)]
    list: bool,
    /// A fixed sample, one or two of each room, on the tests beside them and the judge: some
    /// minutes.
    #[arg(long)]
    quick: bool,
    /// How long each form of the judge looks for a mistake, in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Lets cargo-mutants change every function of the rooms instead: a night's work.
    #[arg(long)]
    all: bool,
    /// With `--all`: one part of so many, as 0/8.
    #[arg(long, requires = "all", value_name = "PART/PARTS")]
    shard: Option<String>,
}

/// The sample of `--quick`.
const QUICK: [&str; 14] = [
    "MissingFlush",
    "SealedWithoutFlush",
    "PermitTooLate",
    "ExposureNotChecked",
    "LowestLayerWins",
    "PositionNotCommitted",
    "MetadataCommitWithoutFlush",
    "ExtentImageForgotten",
    "DeletedWrittenAtOnce",
    "EpochStays",
    "NewBlockNotPadded",
    "DamagedLogIsClean",
    "RowsNotLocked",
    "RetiredBesideWriters",
];

/// Rooms that cargo-mutants goes through.
const FILES: [&str; 9] = [
    "crates/store/src/log/*.rs",
    "crates/store/src/meta/*.rs",
    "crates/store/src/images/*.rs",
    "crates/fs/src/checkpoint/*.rs",
    "crates/fs/src/background/defragmenter.rs",
    "crates/volume/src/io/raid5/*.rs",
    "crates/volume/src/io/resync.rs",
    "crates/volume/src/redundancy/*.rs",
    "crates/volume/src/relayout/*.rs",
];

const BUILD_LIMIT: Duration = Duration::from_secs(2 * 3600);

/// What became of one mistake.
struct Tried {
    mistake: Mistake,
    /// What noticed it, and after how long; `None`: nothing.
    noticed: Option<(String, Duration)>,
}

impl Tried {
    /// A row of the table in docs/proof.md.
    fn row(&self) -> String {
        let Mistake { name, says, place, .. } = &self.mistake;
        match &self.noticed {
            Some((by, after)) => {
                format!("| `{name}` | {place} | {says} | {by} | {:.1} s |", after.as_secs_f64())
            }
            None => format!("| `{name}` | {place} | {says} | nothing | |"),
        }
    }
}

/// Tries the mistakes and returns whether every one was noticed that docs/proof.md does not excuse.
///
/// # Errors
/// When nothing has such a name, or something does not build.
pub fn run(options: &Options) -> Result<bool> {
    if options.all {
        return every_function(options);
    }
    let mistakes = chosen(catalogue::read()?, options)?;
    if options.list {
        mistakes.iter().for_each(|mistake| {
            println!("{:<28} {:<28} {}", mistake.name, mistake.place, mistake.says);
        });
        return Ok(true);
    }
    let programs = Programs::build()?;
    let noticers =
        |of: Crate, room: &str| programs.noticers(of, room, options.seconds, options.quick);
    let sound = watch::Sound::default();
    let (next, tried) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let worker = || -> Result<()> {
        while let Some(mistake) = mistakes.get(next.fetch_add(1, Ordering::SeqCst)) {
            let one = try_one(mistake, &noticers(mistake.of, mistake.room()), &sound)?;
            println!("{}", one.row());
            tried.lock().expect("no thread panics with it").push(one);
        }
        Ok(())
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(mistakes.len());
    let ended = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("a worker does not panic"))
            .collect::<Result<Vec<()>>>()
    });
    ended?;
    let tried = tried.into_inner().expect("no thread panics with it");
    let excused = catalogue::excused(
        &std::fs::read_to_string("docs/proof.md").context("cannot read docs/proof.md")?,
    );
    let missed: Vec<_> = tried
        .iter()
        .filter(|one| one.noticed.is_none())
        .map(|one| one.mistake.name.as_str())
        .collect();
    println!("\n{} mistakes, {} noticed", tried.len(), tried.len() - missed.len());
    missed
        .iter()
        .filter(|name| excused.contains(**name))
        .for_each(|name| println!("not noticed, as docs/proof.md says: {name}"));
    let new: Vec<_> = missed.iter().filter(|name| !excused.contains(**name)).collect();
    new.iter().for_each(|name| println!("NOT NOTICED, and docs/proof.md gives no reason: {name}"));
    Ok(new.is_empty())
}

/// Returns what the table of mutants in docs/proof.md says otherwise than the sources.
///
/// # Errors
/// As [`catalogue::read`].
pub fn misplaced(document: &str) -> Result<Vec<String>> {
    Ok(catalogue::misplaced(document, &catalogue::read()?))
}

fn chosen(all: Vec<Mistake>, options: &Options) -> Result<Vec<Mistake>> {
    let wanted = |mistake: &Mistake| {
        if options.names.is_empty() {
            return !options.quick || QUICK.contains(&mistake.name.as_str());
        }
        options.names.iter().any(|name| {
            mistake.name.starts_with(name.as_str()) || mistake.place.starts_with(name.as_str())
        })
    };
    let chosen: Vec<_> = all.into_iter().filter(wanted).collect();
    ensure!(
        !chosen.is_empty(),
        "no mistake has a name or a room that starts so: 'cargo xtask mutants --list' names them"
    );
    Ok(chosen)
}

/// Tries a mistake on one after the other until one notices it.
fn try_one(mistake: &Mistake, noticers: &[Noticer], sound: &watch::Sound) -> Result<Tried> {
    let mut asked = Duration::ZERO;
    for noticer in noticers {
        let Some(limit) = sound.limit(noticer)? else { continue };
        let start = Instant::now();
        let noticed = noticer.notices(Some(&mistake.name), limit)?;
        asked += start.elapsed();
        if let Some(by) = noticed {
            return Ok(Tried { mistake: mistake.clone(), noticed: Some((by, asked)) });
        }
    }
    Ok(Tried { mistake: mistake.clone(), noticed: None })
}

/// Runs cargo-mutants over the same rooms.
fn every_function(options: &Options) -> Result<bool> {
    let mut version = watch::cargo();
    if !sh::finish(version.args(["mutants", "--version"]), Duration::from_secs(60))?
        .status
        .success()
    {
        bail!("cargo-mutants is not installed: 'cargo install cargo-mutants --locked' brings it");
    }
    let mut command = watch::cargo();
    command.args([
        "mutants",
        "--output",
        "target/mutants",
        "--timeout",
        "600",
        "--no-shuffle",
        "--package",
        "bedplate-store",
        "--package",
        "bedplate-fs",
        "--package",
        "bedplate-volume",
    ]);
    for files in FILES {
        command.args(["--file", files]);
    }
    if let Some(shard) = &options.shard {
        command.args(["--shard", shard]);
    }
    // Tests of orders of threads and of cost say nothing of one line, and take longest.
    command.args(["--", "--lib", "--", "--skip", "model"]);
    sh::passes(&mut command, Duration::from_secs(7 * 24 * 3600))
}
