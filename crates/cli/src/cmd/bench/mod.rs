//! `bedplate bench WORKLOAD`, `bedplate bench all`, `bedplate bench compare`

mod volume;
mod ways;
mod workloads;

use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bedplate_bench::{
    Bed, BedOptions, ComparedFiles, DeviceClass, Extent, Progress, Results, Schedule, TargetSpec,
    Targets, Workload, run_workload,
};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::failure::{Failure, Result};
use crate::render::output::Output;

/// Measure: the same workload on raw devices, kernel file systems and Bedplate, side by side
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// One file read sequentially in small and large steps, cold
    Increments(Measured<workloads::Increments>),
    /// Update-heavy transactions over many tables in few large files, with a redo log
    Oltp(Measured<workloads::Oltp>),
    /// Threads that each write their own section of one existing file
    Writers(Measured<workloads::Writers>),
    /// Reads and writes of one file, by threads with synchronous calls and by queues
    Mixed(Measured<workloads::Mixed>),
    /// Records of one file, half in order and half at random, each locked before it is touched
    Sio(Measured<workloads::Sio>),
    /// A file through a pipe, a compressor and another pipe, in small and large requests
    Pipe(Measured<workloads::Pipe>),
    /// Large sequential reads of several files at once
    Sequential(Measured<workloads::Sequential>),
    /// Transactions with a second-level cache while the database's own cache shrinks
    Cached(Measured<workloads::Cached>),
    /// Transactions beside one sequential scan of a file larger than the second-level cache: before
    /// it, during it and then
    Scan(Measured<workloads::Scan>),
    /// Durable appends to a log
    Redo(Measured<workloads::Redo>),
    /// A file copied in small and large requests
    Copy(Measured<workloads::Copy>),
    /// Overwrites directly after a checkpoint, or a reflink of a kernel file system, against what
    /// they were before
    Checkpoint(Measured<workloads::Checkpoint>),
    /// Checkpoints, clones, reflinks and btrfs snapshots: how long making, deleting and listing
    /// takes, by size, extents and number
    Images(Measured<workloads::Images>),
    Volume(volume::Arguments),
    Ways(ways::Arguments),
    Program(ways::Order),
    All(All),
    Compare(Compare),
    Tables(Tables),
    Papers(Papers),
}

/// A workload with what every workload takes.
#[derive(Debug, Args)]
struct Measured<W: Args> {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    workload: W,
}

#[derive(Debug, Args)]
struct Common {
    /// What to measure: [LABEL=]raw:DEVICE, [LABEL=]path:DIR[,buffered][,mode=MODE],
    /// [LABEL=]volume:DEVICE[,mode=MODE][,inode-lock=whole] or
    /// [LABEL=]nfs://HOST/DIR[?OPTION&…][,mode=MODE]; memory:SIZE stands for a device. Again for each
    /// further target; the first is what the others are compared with
    #[arg(short, long = "target", value_name = "TARGET", required = true)]
    targets: Vec<String>,
    /// How often each target is measured; targets take turns
    #[arg(long, default_value_t = Schedule::default().rounds)]
    rounds: usize,
    /// How long one measurement of a timed workload lasts
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = bedplate::parse_duration)]
    time: Duration,
    /// What a timed workload runs before it counts
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = bedplate::parse_duration)]
    warm_up: Duration,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    report: Report,
}

/// Leave to overwrite.
#[derive(Debug, Args)]
pub struct Consent {
    /// Allow that a raw device, or a device without a volume, is overwritten; the name must be
    /// typed back, here or when asked
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    destroy: Vec<OsString>,
}

#[derive(Debug, Args)]
struct Report {
    /// Write report.html, results.json and results.csv into this directory
    #[arg(long = "report", value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Measure every workload; without targets on image files made for it
#[derive(Debug, Args)]
struct All {
    /// Finish within ten minutes on two processors
    #[arg(long)]
    quick: bool,
    /// What to measure every workload on, instead of image files made for it
    #[arg(short, long = "target", value_name = "TARGET")]
    targets: Vec<String>,
    /// Only these workloads
    #[arg(long, value_name = "WORKLOAD", value_delimiter = ',')]
    only: Vec<String>,
    /// Make the images on a disk instead of in shared memory
    #[arg(long, conflicts_with = "targets")]
    disk: bool,
    /// Make the images in this directory
    #[arg(long, value_name = "DIR", conflicts_with = "targets")]
    dir: Option<PathBuf>,
    /// Size of each of four images; the files of a workload take up to three quarters of it
    #[arg(long, value_name = "SIZE", default_value = "1536M", value_parser = bedplate::parse_size)]
    image_size: u64,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    report: Report,
}

/// Set two results side by side, with significance
#[derive(Debug, Args)]
struct Compare {
    /// Results to compare with: results.json, or the directory of a report
    a: PathBuf,
    /// Results that may differ
    b: PathBuf,
}

/// Write results as Markdown tables
#[derive(Debug, Args)]
struct Tables {
    /// Results: results.json, or the directories of reports
    #[arg(required = true)]
    results: Vec<PathBuf>,
}

/// Write the papers' tables and figures as Markdown, each with the command that makes its
/// counterpart, the paper's number and that of results
#[derive(Debug, Args)]
struct Papers {
    /// Results: results.json, or the directories of reports; without them nothing is measured yet
    results: Vec<PathBuf>,
}

/// Reads results files.
fn load(paths: &[PathBuf]) -> bedplate_bench::Result<Vec<Results>> {
    paths.iter().map(|path| Results::load(path)).collect()
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    match &arguments.what {
        What::Increments(one) => measure(&one.common, &one.workload.workload(), output),
        What::Oltp(one) => measure(&one.common, &one.workload.workload(), output),
        What::Writers(one) => measure(&one.common, &one.workload.workload(), output),
        What::Mixed(one) => measure(&one.common, &one.workload.workload(), output),
        What::Sio(one) => measure(&one.common, &one.workload.workload(), output),
        What::Pipe(one) => measure(&one.common, &one.workload.workload(), output),
        What::Sequential(one) => measure(&one.common, &one.workload.workload(), output),
        What::Cached(one) => measure(&one.common, &one.workload.workload(), output),
        What::Scan(one) => measure(&one.common, &one.workload.workload(), output),
        What::Redo(one) => measure(&one.common, &one.workload.workload(), output),
        What::Copy(one) => measure(&one.common, &one.workload.workload(), output),
        What::Checkpoint(one) => measure(&one.common, &one.workload.workload(), output),
        What::Images(one) => measure(&one.common, &one.workload.workload(), output),
        What::Volume(one) => volume::run(one, output),
        What::Ways(ways) => ways::run(ways, output),
        What::Program(order) => Ok(bedplate_bench::follow_order(&order.text)?),
        What::All(all) => all.run(output),
        What::Compare(compare) => output.show(&Side(bedplate_bench::compare(
            &Results::load(&compare.a)?,
            &Results::load(&compare.b)?,
        )?)),
        What::Tables(tables) => {
            output.bytes(bedplate_bench::markdown(&load(&tables.results)?).as_bytes())
        }
        What::Papers(papers) => {
            output.bytes(bedplate_bench::papers_markdown(&load(&papers.results)?).as_bytes())
        }
    }
}

fn measure(common: &Common, workload: &Workload, output: &Output) -> Result<()> {
    let specs = parse(&common.targets)?;
    let mut session = Session::begin(output)?;
    let schedule = Schedule { rounds: common.rounds, time: common.time, warm_up: common.warm_up };
    let measured = Targets::open(&specs, &mut |path| common.consent.given(path))
        .and_then(|targets| session.measure(workload, &targets, &schedule));
    session.end(&common.report, measured)
}

impl All {
    fn run(&self, output: &Output) -> Result<()> {
        let mut session = Session::begin(output)?;
        let mut entries = bedplate_bench::suite(
            if self.quick { Extent::Quick } else { Extent::Full },
            self.image_size * 3 / 4,
        );
        self.check_names(&entries)?;
        entries.retain(|entry| {
            self.only.is_empty() || self.only.iter().any(|name| name == entry.workload.name())
        });
        let measured = if self.targets.is_empty() {
            self.on_a_bed(&mut session, &entries)
        } else {
            self.on_targets(&mut session, &entries)
        };
        session.end(&self.report, measured)
    }

    fn check_names(&self, entries: &[bedplate_bench::Entry]) -> Result<()> {
        let known: Vec<&str> = entries.iter().map(|entry| entry.workload.name()).collect();
        match self.only.iter().find(|name| !known.contains(&name.as_str())) {
            Some(name) => Err(Failure::usage(format!(
                "there is no workload '{name}': use {}",
                known.join(", ")
            ))),
            None => Ok(()),
        }
    }

    fn on_targets(
        &self,
        session: &mut Session<'_>,
        entries: &[bedplate_bench::Entry],
    ) -> bedplate_bench::Result<()> {
        let specs = self
            .targets
            .iter()
            .map(|text| text.parse())
            .collect::<bedplate_bench::Result<Vec<TargetSpec>>>()?;
        let targets = Targets::open(&specs, &mut |path| self.consent.given(path))?;
        entries
            .iter()
            .try_for_each(|entry| session.measure(&entry.workload, &targets, &entry.schedule))
    }

    fn on_a_bed(
        &self,
        session: &mut Session<'_>,
        entries: &[bedplate_bench::Entry],
    ) -> bedplate_bench::Result<()> {
        let class = if self.disk { DeviceClass::Disk } else { DeviceClass::Memory };
        let options = BedOptions {
            class,
            directory: self.dir.clone(),
            image_bytes: self.image_size,
            program: std::env::current_exe().ok(),
        };
        session.say("making image files");
        let bed = Bed::make(&options)?;
        bed.missing.iter().for_each(|what| session.note(what));
        for entry in entries {
            let targets = Targets::open(&bed.targets(entry.parts)?, &mut |path| bed.owns(path))?;
            session.measure(&entry.workload, &targets, &entry.schedule)?;
        }
        Ok(())
    }
}

/// Reads the words for targets.
pub fn parse(texts: &[String]) -> Result<Vec<TargetSpec>> {
    Ok(texts
        .iter()
        .map(|text| text.parse())
        .collect::<bedplate_bench::Result<Vec<TargetSpec>>>()?)
}

impl Consent {
    /// Returns whether a device may be overwritten: its name was given, or is typed back now.
    pub fn given(&self, path: &Path) -> bool {
        if self.destroy.iter().any(|name| Path::new(name) == path) {
            return true;
        }
        let asked = self.destroy.iter().any(|name| name.is_empty());
        if !asked || !io::stdin().is_terminal() {
            return false;
        }
        eprint!("Everything on {} will be overwritten. Type its name to go on: ", path.display());
        let mut answer = String::new();
        io::stderr().flush().is_ok()
            && io::stdin().lock().read_line(&mut answer).is_ok()
            && Path::new(answer.trim_end_matches('\n')) == path
    }
}

/// A run: its results, its progress bar, and the signal that ends it early.
struct Session<'a> {
    output: &'a Output,
    results: Results,
    stop: Arc<AtomicBool>,
    bar: ProgressBar,
}

impl<'a> Session<'a> {
    fn begin(output: &'a Output) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&stop))
                .map_err(|e| Failure::new("io", format!("cannot watch for signals: {e}")))?;
        }
        let wanted = !output.is_json() && io::stderr().is_terminal();
        let bar = if wanted { ProgressBar::new(0) } else { ProgressBar::hidden() };
        bar.set_style(
            ProgressStyle::with_template("{msg:50!} {bar:24} {pos}/{len} {eta}")
                .expect("the template is a constant that parses"),
        );
        Ok(Self { output, results: Results::begin(std::env::args().collect()), stop, bar })
    }

    fn say(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.tick();
    }

    fn note(&self, what: &str) {
        if !self.output.is_json() {
            self.bar.suspend(|| eprintln!("note: {what}"));
        }
    }

    fn measure(
        &mut self,
        workload: &Workload,
        targets: &Targets,
        schedule: &Schedule,
    ) -> bedplate_bench::Result<()> {
        if self.stop.load(Relaxed) {
            return Ok(());
        }
        let bar = self.bar.clone();
        let mut show = |progress: Progress<'_>| show_progress(&bar, progress);
        run_workload(workload, targets, schedule, &mut self.results, &self.stop, &mut show)
    }

    /// Shows and writes what was measured, also after a failure.
    fn end(self, report: &Report, measured: bedplate_bench::Result<()>) -> Result<()> {
        self.bar.finish_and_clear();
        if !self.results.workloads.is_empty() {
            // A program gets one document: the results, or the failure.
            if measured.is_ok() || !self.output.is_json() {
                self.output.show(&Table(&self.results))?;
            }
            if let Some(directory) = &report.directory {
                let page = bedplate_bench::write_report(&self.results, directory)?;
                if !self.output.is_json() {
                    eprintln!("report: {}", page.display());
                }
            }
        }
        measured?;
        if self.results.workloads.is_empty() {
            return Err(Failure::new(
                "interrupted",
                "interrupted before a round was finished: nothing was measured".to_owned(),
            ));
        }
        Ok(())
    }
}

fn show_progress(bar: &ProgressBar, progress: Progress<'_>) {
    bar.set_length(progress.total as u64);
    bar.set_position(progress.done as u64);
    bar.set_message(format!("{}: {} on {}", progress.workload, progress.case, progress.target));
}

/// Results for people or programs.
struct Table<'a>(&'a Results);

impl Serialize for Table<'_> {
    fn serialize<S: serde::Serializer>(
        &self,
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(bedplate_bench::table(self.0).trim_start_matches('\n'))
    }
}

/// A comparison for people or programs.
struct Side(ComparedFiles);

impl Serialize for Side {
    fn serialize<S: serde::Serializer>(
        &self,
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.table())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::cmd::Cli;

    #[test]
    fn every_command_beside_a_paper_is_understood() {
        assert!(bedplate_bench::counterparts().count() > 15);
        for entry in bedplate_bench::counterparts() {
            let parsed = Cli::try_parse_from(entry.command.split_whitespace());
            assert!(parsed.is_ok(), "{}: {}", entry.command, parsed.unwrap_err());
            assert!(
                entry.command.contains(&format!(" bench {} ", entry.workload)),
                "{}",
                entry.command
            );
            let targets: Vec<String> = entry
                .command
                .split_whitespace()
                .zip(entry.command.split_whitespace().skip(1))
                .filter(|(word, _)| *word == "-t")
                .map(|(_, next)| next.to_owned())
                .collect();
            assert!(!targets.is_empty() && super::parse(&targets).is_ok(), "{targets:?}");
        }
    }
}
