//! `bedplate quickstart`: from nothing to a measured volume in one command.

mod report;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bedplate::{
    FileSystem, FormatOptions, IoMode, create_image, format_size, parse_duration, parse_size,
};
use bedplate_bench::{Mixed, Results, Schedule, TargetSpec, Targets, Workload, run_workload};
use clap::Args;

use super::mount;
use crate::device::{self, Access};
use crate::failure::{Failure, Result};
use crate::render::output::Output;
use crate::render::progress::Steps;
use report::{Column, Report};

/// Make an image, mount it, measure every mode beside the raw device, clean up: the tour of a
/// minute
///
/// The raw device is a second, fully written file of the same size beside the image, used through
/// the same engine. Rounds are interleaved, and ratios are taken within each round. Needs no root;
/// where mounting is not possible it says why and measures the library alone.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Where to work; a directory of its own is made in it
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Size of the file that is read and written
    #[arg(long, default_value = "128M", value_parser = parse_size)]
    size: u64,
    /// Threads that read and write it
    #[arg(long, default_value = "16", value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: u64,
    /// Rounds that count
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Length of one measurement
    #[arg(long, default_value = "700ms", value_parser = parse_duration)]
    time: Duration,
    /// Keep the image
    #[arg(long)]
    keep: bool,
}

/// Bytes of the pages.
const PAGE_BYTES: u64 = 8192;
/// What a volume needs beside its files: log, metadata, reserve.
const OVERHEAD_BYTES: u64 = 96 << 20;
/// On the mount each mode has a file of its own; through the library they share one.
const FILES: u64 = IoMode::ALL.len() as u64;
/// What a raw file needs beside the data.
const RAW_OVERHEAD_BYTES: u64 = 1 << 20;

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| Failure::new("io", format!("cannot take signals: {error}")))?;
    }
    let size = arguments.size / PAGE_BYTES * PAGE_BYTES;
    let tour = Tour {
        arguments,
        output,
        size,
        stop,
        place: Workplace::make(arguments.dir.as_deref(), size)?,
    };
    tour.make_volume()?;
    let library = tour.measure("library", &tour.library_targets()?)?;
    let (mount, no_mount) = match tour.mount() {
        Ok(()) => (Some(tour.measure("mount", &tour.mount_targets()?)?), None),
        Err(failure) => (None, Some(failure.message)),
    };
    tour.place.unmount()?;
    let kept = arguments.keep.then(|| tour.place.image.clone());
    let report = Report::new(size, arguments, &library, mount.as_ref(), no_mount, kept);
    tour.place.leave(arguments.keep)?;
    output.show(&report)
}

/// The tour and what it needs at every stop.
struct Tour<'a> {
    arguments: &'a Arguments,
    output: &'a Output,
    size: u64,
    stop: Arc<AtomicBool>,
    place: Workplace,
}

impl Tour<'_> {
    fn make_volume(&self) -> Result<()> {
        create_image(&self.place.raw, self.size + RAW_OVERHEAD_BYTES, true)?;
        create_image(&self.place.image, FILES * self.size + OVERHEAD_BYTES, true)?;
        let device = device::open(&self.place.image, Access::ReadWrite)?;
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        FileSystem::format(&device, None, &FormatOptions { uid, gid, ..FormatOptions::default() })?;
        Ok(())
    }

    fn library_targets(&self) -> Result<Targets> {
        let image = self.place.image.display();
        self.open(IoMode::ALL.map(|mode| format!("{mode}=volume:{image},mode={mode}")))
    }

    fn mount(&self) -> Result<()> {
        mount::start(&self.place.image, &self.place.dir)
    }

    fn mount_targets(&self) -> Result<Targets> {
        let dir = self.place.dir.display();
        self.open(IoMode::ALL.map(|mode| {
            let caching = if mode.writes_behind() { "buffered" } else { "direct" };
            format!("{mode}=path:{dir},{caching},mode={mode}")
        }))
    }

    /// Opens the raw device, with which all others are compared, and the targets.
    fn open(&self, specs: [String; IoMode::ALL.len()]) -> Result<Targets> {
        let raw = format!("raw=raw:{}", self.place.raw.display());
        let specs = std::iter::once(raw)
            .chain(specs)
            .map(|spec| spec.parse::<TargetSpec>())
            .collect::<std::result::Result<Vec<_>, _>>()?;
        Ok(Targets::open(&specs, &mut |_: &Path| true)?)
    }

    fn measure(&self, what: &str, targets: &Targets) -> Result<Column> {
        let workload = Workload::Mixed(Mixed {
            size_bytes: self.size,
            block_bytes: vec![PAGE_BYTES],
            reads_percent: vec![50],
            threads: vec![usize::try_from(self.arguments.threads).unwrap_or(1)],
            depths: Vec::new(),
            ..Mixed::default()
        });
        let schedule = Schedule {
            rounds: usize::try_from(self.arguments.rounds).unwrap_or(1),
            time: self.arguments.time,
            warm_up: self.arguments.time / 5,
        };
        let mut results = Results::begin(vec!["bedplate".into(), "quickstart".into()]);
        let mut steps = Steps::new(self.output);
        run_workload(&workload, targets, &schedule, &mut results, &self.stop, &mut |now| {
            steps.at(now.done, now.total, &format!("{what}: {} {}", now.target, now.case));
        })?;
        if self.stop.load(Ordering::Relaxed) {
            return Err(Failure::new("interrupted", "ended early; what was made is removed again"));
        }
        let engine =
            targets.describe().first().map(|target| target.engine.clone()).unwrap_or_default();
        let measured = results
            .workloads
            .first()
            .ok_or_else(|| Failure::new("io", "nothing was measured: give a longer --time"))?;
        Ok(Column::new(engine, measured))
    }
}

/// A directory of our own. Dropped, it is gone with all that is in it, also after a failure.
struct Workplace {
    base: PathBuf,
    image: PathBuf,
    raw: PathBuf,
    dir: PathBuf,
}

impl Workplace {
    fn make(parent: Option<&Path>, size: u64) -> Result<Self> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let parent =
            parent.canonicalize().map_err(|error| Failure::system("work in", &parent, &error))?;
        let needed = (FILES + 1) * size + OVERHEAD_BYTES + RAW_OVERHEAD_BYTES;
        let free = rustix::fs::statvfs(&parent).map_err(|error| {
            Failure::system("ask for the free space of", &parent, &error.into())
        })?;
        let free = free.f_bavail * free.f_frsize;
        if free < needed {
            let (parent, free, needed) = (parent.display(), format_size(free), format_size(needed));
            return Err(Failure::new(
                "no_space",
                format!(
                    "{parent} has {free} free and {needed} are needed: choose another --dir or a \
                     smaller --size"
                ),
            ));
        }
        let base = parent.join(format!("bedplate-quickstart-{}", std::process::id()));
        let place = Self {
            image: base.join("volume.img"),
            raw: base.join("raw.img"),
            dir: base.join("mnt"),
            base,
        };
        for dir in [&place.base, &place.dir] {
            std::fs::create_dir(dir)
                .map_err(|error| Failure::system("make the directory", dir, &error))?;
        }
        Ok(place)
    }

    fn unmount(&self) -> Result<()> {
        crate::cmd::unmount::end(&self.dir)
    }

    /// Removes what was made; all but the image when that is to be kept.
    fn leave(&self, keep: bool) -> Result<()> {
        let gone = if keep {
            std::fs::remove_file(&self.raw).and_then(|()| std::fs::remove_dir(&self.dir))
        } else {
            std::fs::remove_dir_all(&self.base)
        };
        gone.map_err(|error| Failure::system("clean up", &self.base, &error))
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        if !self.raw.exists() {
            return;
        }
        if let Err(failure) = self.unmount().and_then(|()| self.leave(false)) {
            tracing::warn!("{failure}");
        }
    }
}
