//! `bedplate convert --in-place DEVICE`, `--commit`, `--abandon`, `--status`

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bedplate::{format_duration, format_size};
use bedplate_adopt::{Abandoned, Committed, Made, Needs, Plan, State, Status};
use bedplate_block::in_place_path;
use serde::Serialize;

use crate::device::{explain_busy, place, signature};
use crate::failure::{Failure, Result};
use crate::render::output::Output;
use crate::render::progress::{self, Bytes};
use crate::render::text::{self, Name};

/// A result with the device that it is about.
#[derive(Serialize)]
struct Of<T> {
    device: Name,
    #[serde(flatten)]
    what: T,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_us: Option<u64>,
}

impl<T> Of<T> {
    fn new(device: &Path, what: T) -> Self {
        Self { device: device.to_owned().into(), what, duration_us: None }
    }

    fn since(self, started: Instant) -> Self {
        let took = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        Self { duration_us: Some(took), ..self }
    }
}

/// What would be done, and whether it can be.
#[derive(Serialize)]
struct Planned {
    #[serde(flatten)]
    plan: Plan,
    missing_bytes: u64,
}

fn failure(path: &Path) -> impl Fn(bedplate_adopt::Error) -> Failure + '_ {
    // It may be mounted by either name.
    move |error| explain_busy(&in_place_path(path), explain_busy(path, error.into()))
}

/// Returns the whole path of a device or an image file of this machine.
fn device_of(path: &Path) -> Result<PathBuf> {
    if place::is_remote(path) || place::file_of(path) != path {
        return Err(Failure::usage(format!(
            "{} is no device or image of this machine: a conversion in place mounts what is on it",
            text::name(path)
        )));
    }
    signature::refuse_kind(path)?;
    place::whole(path)
}

pub fn make(path: &Path, dry_run: bool, output: &Output) -> Result<()> {
    let device = device_of(path)?;
    if dry_run {
        let plan = progress::during(output, "looking", || bedplate_adopt::plan(&device));
        let plan = plan.map_err(failure(&device))?;
        let missing_bytes = plan.needs.missing_bytes();
        return output.show(&Of::new(&device, Planned { plan, missing_bytes }));
    }
    let started = Instant::now();
    let bar = Mutex::new(Bytes::new(output, "copy", 0));
    let copied = |done: u64, total: u64| {
        bar.lock().unwrap_or_else(std::sync::PoisonError::into_inner).reach(done, total);
    };
    let made = bedplate_adopt::make(&device, &copied).map_err(failure(&device))?;
    drop(bar);
    output.show(&Of::new(&device, made).since(started))
}

pub fn commit(path: &Path, output: &Output) -> Result<()> {
    let device = device_of(path)?;
    let started = Instant::now();
    let committed = progress::during(output, "checking", || bedplate_adopt::commit(&device));
    output.show(&Of::new(&device, committed.map_err(failure(&device))?).since(started))
}

pub fn abandon(path: &Path, output: &Output) -> Result<()> {
    let device = device_of(path)?;
    let abandoned = bedplate_adopt::abandon(&device).map_err(failure(&device))?;
    output.show(&Of::new(&device, abandoned))
}

pub fn status(path: &Path, output: &Output) -> Result<()> {
    let device = device_of(path)?;
    let status = bedplate_adopt::status(&device).map_err(failure(&device))?;
    output.show(&Of::new(&device, status))
}

fn amounts(f: &mut fmt::Formatter<'_>, needs: &Needs) -> fmt::Result {
    write!(
        f,
        "{}, {}, {}: {} stay where they lie, {} of {} copied",
        text::count(needs.files, "file"),
        text::count_in(needs.directories, "directory", "directories"),
        text::count(needs.others, "other name"),
        format_size(needs.adopted_bytes),
        format_size(needs.copied_bytes),
        text::count(needs.copied_files, "file"),
    )?;
    match needs.attributes_left_out {
        0 => Ok(()),
        left_out => write!(f, "; {} not kept", text::count(left_out, "extended attribute")),
    }
}

impl fmt::Display for Of<Planned> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { old, block_size, needs } = &self.what.plan;
        writeln!(
            f,
            "{}: {old} would become a volume with blocks of {block_size} bytes",
            self.device
        )?;
        amounts(f, needs)?;
        write!(
            f,
            "\n{} of free space are needed until the commit (metadata {}, log {}), {} are free",
            format_size(needs.needed_bytes),
            format_size(needs.metadata_bytes),
            format_size(needs.log_bytes),
            format_size(needs.free_bytes)
        )?;
        match self.what.missing_bytes {
            0 => Ok(()),
            missing => write!(f, "\nit does not fit: {} are missing", format_size(missing)),
        }
    }
}

impl fmt::Display for Of<Made> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Made { old, uuid, needs, .. } = &self.what;
        let took = format_duration(Duration::from_micros(self.duration_us.unwrap_or(0)));
        writeln!(f, "{}: volume {uuid} made beside its {old} file system in {took}", self.device)?;
        amounts(f, needs)?;
        let device = &self.device;
        write!(
            f,
            "\nlook at it with 'bedplate mount in-place:{device} DIR -o ro', then run 'bedplate convert \
             --commit {device}' or '--abandon {device}'; once the old one is written to, it can be \
             abandoned only"
        )
    }
}

impl fmt::Display for Of<Committed> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Committed { old, uuid, gone_on } = &self.what;
        let again = if *gone_on { ", going on with one that was cut short" } else { "" };
        write!(f, "{}: volume {uuid}{again}; the {old} file system is gone", self.device)
    }
}

impl fmt::Display for Of<Abandoned> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = if self.what.had_volume { "" } else { ", which had been cut short" };
        write!(
            f,
            "{}: the {} file system is as it was; the conversion{before} is given up",
            self.device, self.what.old
        )
    }
}

impl fmt::Display for Of<Status> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Status { state, old, uuid } = &self.what;
        let (old, uuid) = (old.unwrap_or("no"), uuid.as_deref().unwrap_or_default());
        let device = &self.device;
        match state {
            State::None => write!(f, "{device}: {old} file system, no conversion in place"),
            State::Made => write!(
                f,
                "{device}: {old} file system, and volume {uuid} beside it: commit it or abandon it"
            ),
            State::Changed => write!(
                f,
                "{device}: the {old} file system was written to since volume {uuid} was made: abandon \
                 it and convert it again"
            ),
            State::CommitCutShort => write!(
                f,
                "{device}: the commit of volume {uuid} was cut short: run 'bedplate convert --commit \
                 {device}' again"
            ),
            State::Volume => write!(f, "{device}: volume {uuid}, nothing left of a conversion"),
        }
    }
}
