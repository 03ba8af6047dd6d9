//! `bedplate log show|move|resize`

use std::fmt;
use std::path::{Path, PathBuf};

use bedplate::{FileSystem, LogMove, LogMoveOptions, LogSpot, format_size, parse_size};
use bedplate_block::Backing;
use bedplate_serve::control::{LogRequest, Request};
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;

use crate::device::{self, Access, group, newcomer, place, signature};
use crate::failure::{Failure, Result};
use crate::reach::{Reach, Target};
use crate::render::output::Output;
use crate::render::text;

/// Show the intent log of a file system, move it, or change its size
///
/// The log makes metadata durable before each sync returns. On a device of its own, a fast and small
/// one, syncs do not wait for the data's; and it moves while programs use the file system.
#[derive(Debug, Subcommand)]
pub enum Command {
    Show(ShowArguments),
    Move(MoveArguments),
    Resize(ResizeArguments),
}

/// Tell where the intent log is, how large and how busy
#[derive(Debug, Args)]
pub struct ShowArguments {
    #[command(flatten)]
    target: Target,
}

/// Move the intent log onto a device of its own, or home to the volume, mounted or not
///
/// Programs go on meanwhile: what syncs waits for the switch, a commit of the metadata, and no longer.
/// A power cut leaves the log in one of the two places, whole. The device before holds no log then.
///
/// With --home on a volume that is not mounted, and without --log, the log's device counts as lost:
/// after an unmount nothing was on it, and the log comes home empty. Else that is refused, because
/// what was acknowledged since the last commit of the metadata is on that device alone; --force gives
/// it up.
#[derive(Debug, Args)]
pub struct MoveArguments {
    #[command(flatten)]
    target: Target,
    /// The block device or image file that it moves to
    #[arg(required_unless_present = "home", conflicts_with = "home")]
    device: Option<PathBuf>,
    /// Move it to the volume itself
    #[arg(long)]
    home: bool,
    /// How large it is to be there; otherwise as format would make it
    #[arg(long, value_parser = parse_size, value_name = "SIZE")]
    size: Option<u64>,
    /// Overwrite whatever the device holds; with a lost device: lose what only it had
    #[arg(long)]
    force: bool,
    /// Only tell what would be done
    #[arg(long)]
    dry_run: bool,
}

/// Change the size of the intent log where it lies, mounted or not
#[derive(Debug, Args)]
pub struct ResizeArguments {
    #[command(flatten)]
    target: Target,
    /// How large it is to be
    #[arg(value_parser = parse_size)]
    size: u64,
    /// Only tell what would be done
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Serialize)]
struct Shown {
    #[serde(serialize_with = "text::readable")]
    volume: PathBuf,
    /// As in `info`.
    log: Value,
    /// The part of the time since mount that was spent writing and flushing it, in per cent.
    busy_percent: f64,
}

#[derive(Debug, Serialize)]
struct Moved {
    #[serde(serialize_with = "text::readable")]
    volume: PathBuf,
    #[serde(flatten)]
    moved: LogMove,
    /// Nothing was done.
    dry_run: bool,
    /// Its former device was not there.
    lost: bool,
}

pub fn run(command: &Command, output: &Output) -> Result<()> {
    match command {
        Command::Show(arguments) => show(arguments, output),
        Command::Move(arguments) => move_log(arguments, output),
        Command::Resize(arguments) => {
            let ResizeArguments { target, size, dry_run } = arguments;
            let ask = LogRequest::Resize { size_bytes: *size, dry_run: *dry_run };
            carry_out(target, ask, *dry_run, output)
        }
    }
}

fn show(arguments: &ShowArguments, output: &Output) -> Result<()> {
    let reach = arguments.target.reach()?;
    let info: Value = reach.ask(&Request::Info, Access::ReadOnly, output)?;
    let log = info["log"].clone();
    let number = |field: &str| log[field].as_u64().unwrap_or(0) as f64;
    let busy_percent = 100.0 * number("busy_us") / number("open_us").max(1.0);
    let volume = arguments.target.named().to_owned();
    output.show(&Shown { volume, log, busy_percent })
}

fn move_log(arguments: &MoveArguments, output: &Output) -> Result<()> {
    let MoveArguments { target, device, home: _, size, force, dry_run } = arguments;
    let device = device.as_deref().map(|path| usable(path, target, *force)).transpose()?;
    if device.is_none()
        && let Some(moved) = bring_home(arguments)?
    {
        let volume = target.named().to_owned();
        return output.show(&Moved { volume, moved, dry_run: *dry_run, lost: true });
    }
    let ask = LogRequest::Move { device, size_bytes: *size, force: *force, dry_run: *dry_run };
    carry_out(target, ask, *dry_run, output)
}

fn carry_out(target: &Target, ask: LogRequest, dry_run: bool, output: &Output) -> Result<()> {
    let volume = target.named().to_owned();
    let moved = target.reach()?.ask(&Request::Log { ask }, Access::ReadWrite, output)?;
    output.show(&Moved { volume, moved, dry_run, lost: false })
}

/// Returns the whole path of a device that a log may move to.
fn usable(path: &Path, target: &Target, force: bool) -> Result<PathBuf> {
    let path = place::whole(path)?;
    signature::refuse_kind(&path)?;
    refuse_own(&path, target)?;
    if let Some(label) = group::label_of(&path).ok().flatten() {
        let (shown, name) = (path.display(), &label.config.name);
        let message = format!(
            "{shown} is a member of the group {name}: name a device that belongs to no group"
        );
        return Err(Failure::new("exists", message));
    }
    if !force {
        newcomer::refuse_content(&path)?;
        newcomer::refuse_damaged_label(&path)?;
    }
    Ok(path)
}

/// Refuses the device that the volume lies on, or a part of it, whatever its name.
fn refuse_own(path: &Path, target: &Target) -> Result<()> {
    let volume = match target.reach()? {
        Reach::Mounted(mount) => group::volume_of(&mount),
        Reach::Alone(volume) => group::resolve(&volume.volume)?,
    };
    let shares = Backing::of(path)
        .zip(Backing::of(&volume))
        .is_some_and(|(one, other)| one.overlaps(&other));
    if !shares {
        return Ok(());
    }
    let (shown, volume) = (path.display(), volume.display());
    let message = format!(
        "{shown} is in use by the volume, or overlaps {volume} that it lies on: name another device, \
         or move the log home with --home"
    );
    Err(Failure::new("busy", message))
}

/// Brings the log of a volume home whose log's device is not there; nothing where it is, or where
/// the volume is mounted.
fn bring_home(arguments: &MoveArguments) -> Result<Option<LogMove>> {
    let Reach::Alone(volume) = arguments.target.reach()? else { return Ok(None) };
    let log = volume.devices.log.as_deref();
    let opened = device::open_with_log(&volume.volume, log, Access::ReadWrite)?;
    let is_lost = opened.log.is_none() && FileSystem::probe(&opened.device)?.log_separate;
    let options = LogMoveOptions {
        size_bytes: arguments.size,
        force: arguments.force,
        dry_run: arguments.dry_run,
    };
    let moved = is_lost.then(|| FileSystem::bring_log_home(opened.device, &options)).transpose()?;
    device::close(opened.group)?;
    Ok(moved)
}

fn told(spot: &LogSpot) -> String {
    let size = format_size(spot.size_bytes);
    match &spot.device {
        Some(device) => format!("{size} on {device}"),
        None => format!("{size} on the volume, at byte {}", spot.start_byte),
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |field: &str| self.log[field].as_u64().unwrap_or(0);
        let spot = LogSpot {
            device: self.log["device"].as_str().map(str::to_owned),
            start_byte: number("start_byte"),
            size_bytes: number("size_bytes"),
        };
        let (used, size) = (number("used_bytes"), number("size_bytes").max(1));
        writeln!(f, "{}: intent log of {}", text::name(&self.volume), told(&spot))?;
        writeln!(f, "in use: {} ({} %)", format_size(used), 100 * used / size)?;
        write!(
            f,
            "since mount: {} writes of {}, {} records, {} syncs, {} flushes of the data, {} \
             metadata commits; busy {:.1} % of the time",
            number("writes"),
            format_size(number("bytes")),
            number("records"),
            number("syncs"),
            number("flushes"),
            number("metadata_commits"),
            self.busy_percent
        )
    }
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (&self.moved.from, &self.moved.to);
        let before = if self.lost { "on a device that is lost".to_owned() } else { told(from) };
        let verb = if self.dry_run { "would be" } else { "is" };
        write!(
            f,
            "{}: the intent log {verb} {}; it was {before}",
            text::name(&self.volume),
            told(to)
        )?;
        match (&from.device, &to.device) {
            _ if self.dry_run => {}
            (old, Some(new)) if old.as_ref() != Some(new) => {
                write!(f, "; mount it with -o log={new} from now on, also in /etc/fstab")?;
            }
            (Some(_), None) => {
                write!(f, "; mount it without -o log= from now on, also in /etc/fstab")?;
            }
            _ if self.lost => {
                write!(f, "; mount it without -o log= from now on, also in /etc/fstab")?;
            }
            _ => {}
        }
        match &self.moved.left {
            Some(why) => write!(f, "; the device before still looks like its log: {why}"),
            None => Ok(()),
        }
    }
}
