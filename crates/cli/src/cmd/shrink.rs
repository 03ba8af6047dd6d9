//! `bedplate shrink DIR|VOLUME SIZE`

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bedplate::{FileSystem, ShrinkPlan, ShrinkStep, format_duration, format_size, parse_size};
use bedplate_serve::control::{Request, ShrinkRequest};
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::device::{Access, group};
use crate::failure::{Failure, Result};
use crate::mount::Mount;
use crate::reach::{Reach, Target};
use crate::reach::{ask_here, ask_mount};
use crate::render::output::Output;
use crate::render::{progress, text};

/// Make a file system smaller, mounted or not, while programs use it
///
/// What lies beyond the new end moves before it: of files, of checkpoints and clones, which go on to
/// share it, and of the metadata. The size changes last, at once. Ended before that, by Ctrl-C or a
/// power cut, blocks have moved and the size is what it was. An image file is cut off where the file
/// system ends; a group below is made smaller with 'bedplate volume shrink' then, a partition with
/// the tools of its own.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// How large it is to be
    #[arg(value_parser = parse_size)]
    size: u64,
    /// Only tell what would be moved, and whether there is room for it
    #[arg(long)]
    dry_run: bool,
}

/// What a command can measure of how fast blocks move before it moves any: a guess, told as one.
const BYTES_PER_SECOND: u64 = 200 << 20;

#[derive(Debug, Serialize)]
struct Planned {
    #[serde(serialize_with = "text::readable")]
    volume: PathBuf,
    #[serde(flatten)]
    plan: ShrinkPlan,
}

#[derive(Debug, Serialize)]
struct Shrunk {
    #[serde(serialize_with = "text::readable")]
    volume: PathBuf,
    before_bytes: u64,
    size_bytes: u64,
    moved_bytes: u64,
    /// How long it took.
    seconds: f64,
    below: Below,
}

/// What became of what the file system lies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Below {
    /// An image file, which ends where the file system does.
    ImageCutOff,
    /// A group of devices, whose volume is as large as before.
    GroupLeft,
    /// A device or partition, which is as large as before.
    DeviceLeft,
}

/// Where the file system is.
enum Source<'a> {
    Mounted(&'a Mount),
    Here(&'a FileSystem),
}

impl Source<'_> {
    fn ask<T: DeserializeOwned>(&self, ask: ShrinkRequest) -> Result<T> {
        let request = Request::Shrink { ask };
        match self {
            Self::Mounted(mount) => ask_mount(mount, &request),
            Self::Here(fs) => ask_here(fs, &request),
        }
    }
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let access = if arguments.dry_run { Access::ReadOnly } else { Access::ReadWrite };
    match arguments.target.reach()? {
        Reach::Mounted(mount) => {
            work(&Source::Mounted(&mount), &group::volume_of(&mount), arguments, output)
        }
        Reach::Alone(volume) => volume.with(access, output, |fs| {
            work(&Source::Here(fs), arguments.target.named(), arguments, output)
        }),
    }
}

fn work(source: &Source<'_>, device: &Path, arguments: &Arguments, output: &Output) -> Result<()> {
    let volume = arguments.target.named().to_owned();
    let plan: ShrinkPlan = source.ask(ShrinkRequest::Plan { size_bytes: arguments.size })?;
    if arguments.dry_run {
        return output.show(&Planned { volume, plan });
    }
    let began = Instant::now();
    let (size_bytes, moved_bytes) = shrink(source, &plan, output)?;
    output.show(&Shrunk {
        volume,
        before_bytes: plan.size_bytes,
        size_bytes,
        moved_bytes,
        seconds: began.elapsed().as_secs_f64(),
        below: cut_off(source, device)?,
    })
}

/// Carries the shrink on until it is done, or a signal asks for its end.
fn shrink(source: &Source<'_>, plan: &ShrinkPlan, output: &Output) -> Result<(u64, u64)> {
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stopped))
            .map_err(|error| Failure::new("io", format!("cannot take signals: {error}")))?;
    }
    let whole = plan.file_bytes + plan.checkpoint_bytes + plan.metadata_bytes;
    let mut bar = progress::Bytes::new(output, "moving", whole);
    let mut moved_bytes = 0;
    loop {
        if stopped.load(Ordering::Relaxed) {
            source.ask::<()>(ShrinkRequest::Stop)?;
            let size = format_size(plan.size_bytes);
            let message = format!("interrupted: blocks were moved, and the size is still {size}");
            return Err(Failure::new("interrupted", message));
        }
        let step: ShrinkStep = source.ask(ShrinkRequest::Step { size_bytes: plan.new_bytes })?;
        moved_bytes += step.moved_bytes;
        bar.reach(whole.saturating_sub(step.left_bytes), whole);
        if step.is_done {
            return Ok((step.size_bytes, moved_bytes));
        }
    }
}

/// Lets an image file end where its file system does.
fn cut_off(source: &Source<'_>, device: &Path) -> Result<Below> {
    if source.ask(ShrinkRequest::CutOffImage)? {
        return Ok(Below::ImageCutOff);
    }
    let device = group::resolve(device)?;
    let is_member = group::label_of(&device).is_ok_and(|label| label.is_some());
    Ok(if is_member { Below::GroupLeft } else { Below::DeviceLeft })
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = &self.plan;
        let moved = plan.file_bytes + plan.checkpoint_bytes + plan.metadata_bytes;
        writeln!(
            f,
            "{}: {} now, {} then; it could have {} or more",
            text::name(&self.volume),
            format_size(plan.size_bytes),
            format_size(plan.new_bytes),
            format_size(plan.size_bytes_min)
        )?;
        write!(
            f,
            "beyond the new end: {} of files, {} that checkpoints alone have, {} of metadata",
            format_size(plan.file_bytes),
            format_size(plan.checkpoint_bytes),
            format_size(plan.metadata_bytes)
        )?;
        if plan.lacking_bytes > 0 {
            return write!(f, "\nno room for that: {} lack", format_size(plan.lacking_bytes));
        }
        let time = std::time::Duration::from_secs(moved.div_ceil(BYTES_PER_SECOND));
        write!(f, "\nthere is room; at 200 MiB/s it takes {}", format_duration(time))
    }
}

impl fmt::Display for Shrunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: shrunk from {} to {}, {} moved in {:.1} s",
            text::name(&self.volume),
            format_size(self.before_bytes),
            format_size(self.size_bytes),
            format_size(self.moved_bytes),
            self.seconds
        )?;
        match self.below {
            Below::ImageCutOff => write!(f, "; the image file ends there"),
            Below::GroupLeft => write!(
                f,
                "; the volume of the group is as large as before: 'bedplate volume shrink' makes it \
                 smaller"
            ),
            Below::DeviceLeft => write!(
                f,
                "; the device is as large as before: what is behind the first {} bytes of it is not \
                 needed any more",
                self.size_bytes
            ),
        }
    }
}
