//! `bedplate convert DIR --to MOUNTED_DIR`, `--back-to DIR`, `--back`, `--continue`, `--abandon`;
//! `bedplate convert DEVICE --in-place`, `--commit`, `--status`, `--abandon`

mod checkpoints;
mod in_place;
mod operator;
mod report;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use bedplate::{IoMode, parse_size};
use bedplate_direct::convert::{
    self, How, Journal, Pace, Phase, Place, Plain, Prepared, Source, Stopping, Switch, Verify,
};
use clap::{ArgGroup, Args, ValueEnum};

use crate::cmd::cp::{Requests, rate};
use crate::failure::{Failure, Result};
use crate::mount::{self, live};
use crate::render::output::Output;
use crate::render::text;
use checkpoints::Checkpoints;
use operator::{Bar, Person};
use report::{Abandoned, Plan, Report};

/// Move a directory onto a Bedplate mount, or back from one, while the database in it runs; or make a
/// volume of an ext4 or XFS file system in place
///
/// The directory is copied in passes, each of which copies what changed, until one is short. Then
/// the database is stopped, the last changes are copied, every file is compared with its copy, the
/// directory becomes DIR.before-convert and its name a link to the copy, and the database is started.
/// Until then the directory is only read. One that is killed is gone on with or given up.
///
/// With --in-place a device or image with an ext4 or XFS file system, which is not mounted, becomes a
/// volume: files stay where they lie, and the metadata goes into free space. The old file system is
/// as it was until --commit, and stays so with --abandon. Needs root.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["to", "back_to", "back", "resume", "abandon", "in_place", "commit", "status"]))]
pub struct Arguments {
    /// The directory of the database; in place the device or image file
    #[arg(value_name = "DIR|DEVICE")]
    directory: PathBuf,
    /// Copy it to this directory of a mounted volume, which does not exist or is empty
    #[arg(long, value_name = "MOUNTED_DIR")]
    to: Option<PathBuf>,
    /// Copy it from a mounted volume to this directory of any file system, which does not exist or
    /// is empty
    #[arg(long, value_name = "DIR")]
    back_to: Option<PathBuf>,
    /// Undo the conversion of DIR: what was written since goes into DIR.before-convert, which gets
    /// its name back
    #[arg(long)]
    back: bool,
    /// Go on with a conversion that was killed or that failed
    #[arg(long = "continue")]
    resume: bool,
    /// Give up a conversion that was killed or that failed, or one in place that is not committed: DIR
    /// or DEVICE stays what it was, the copy or the volume goes
    #[arg(long)]
    abandon: bool,
    /// Make a volume of the ext4 or XFS file system on DEVICE beside it, of the same files where they
    /// lie
    #[arg(long, conflicts_with_all = IN_PLACE_LACKS)]
    in_place: bool,
    /// Let the volume that was made in place take the place of the old file system, for good
    #[arg(long, conflicts_with_all = IN_PLACE_LACKS, conflicts_with = "dry_run")]
    commit: bool,
    /// Tell how far a conversion in place is
    #[arg(long, conflicts_with_all = IN_PLACE_LACKS, conflicts_with = "dry_run")]
    status: bool,
    /// The command that stops the database, run by a shell; it ends when the database is stopped
    #[arg(long, value_name = "COMMAND", requires = "start", conflicts_with_all = ["resume", "abandon"])]
    stop: Option<String>,
    /// The command that starts it
    #[arg(long, value_name = "COMMAND", requires = "stop", conflicts_with_all = ["resume", "abandon"])]
    start: Option<String>,
    /// Ask for the stop and wait for it
    #[arg(long, conflicts_with_all = ["stop", "resume", "abandon"])]
    wait: bool,
    /// Which files are compared while the database is stopped: all, or those that changed since they
    /// were compared while it ran
    #[arg(long, value_enum, value_name = "WHICH", default_value = "all", conflicts_with_all = ["resume", "abandon"])]
    verify: Which,
    /// Mount the copy at DIR instead of making DIR a link to it
    #[arg(long, conflicts_with_all = ["no_switch", "back", "resume", "abandon"])]
    bind: bool,
    /// Leave the names as they are: the copy is all
    #[arg(long, conflicts_with_all = ["back", "resume", "abandon"])]
    no_switch: bool,
    /// Tell what would be done, how much there is to copy and how long that takes at least
    #[arg(long, conflicts_with_all = ["resume", "abandon"])]
    dry_run: bool,
    /// The I/O mode of the copy's files
    #[arg(long, value_name = "MODE", conflicts_with_all = ["back_to", "back", "abandon"])]
    mode: Option<IoMode>,
    /// The I/O mode of one directory of the copy, as in pg_wal=concurrent; may be given several
    /// times
    #[arg(long, value_name = "NAME=MODE", value_parser = parse_log_dir, conflicts_with_all = ["back_to", "back", "abandon"])]
    log_dir: Vec<(OsString, IoMode)>,
    /// Read no more than so many bytes of the directory a second
    #[arg(long, value_parser = parse_size, value_name = "BYTES")]
    rate: Option<u64>,
    #[command(flatten)]
    requests: Requests,
}

/// What moves of directories take and conversions in place do not.
const IN_PLACE_LACKS: [&str; 9] =
    ["stop", "start", "wait", "verify", "bind", "no_switch", "mode", "log_dir", "rate"];

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Which {
    All,
    Changed,
}

fn parse_log_dir(text: &str) -> std::result::Result<(OsString, IoMode), String> {
    let (name, mode) = text
        .split_once('=')
        .ok_or_else(|| "write it as NAME=MODE, for instance pg_wal=concurrent".to_owned())?;
    let is_one_name = Path::new(name).components().count() == 1
        && Path::new(name).file_name() == Some(name.as_ref());
    if !is_one_name {
        return Err(format!("'{name}' is not the name of one directory in the directory"));
    }
    Ok((name.into(), mode.parse().map_err(|error| ToString::to_string(&error))?))
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let device = &arguments.directory;
    if arguments.in_place {
        return in_place::make(device, arguments.dry_run, output);
    }
    if arguments.commit {
        return in_place::commit(device, output);
    }
    if arguments.status {
        return in_place::status(device, output);
    }
    if arguments.abandon {
        // A directory is a copy's; what is a file or a device is converted in place.
        let is_device = device.symlink_metadata().is_ok() && !device.is_dir();
        return if is_device {
            in_place::abandon(device, output)
        } else {
            abandon(arguments, output)
        };
    }
    let rate = rate(arguments.rate)?;
    let (place, mut journal, total) = if arguments.resume {
        let (place, journal) = begun(&arguments.directory)?;
        if journal.phase == Phase::Done {
            let name = text::name(&arguments.directory);
            let message = format!("the conversion of {name} has ended: --back undoes it");
            return Err(Failure::new("exists", message));
        }
        (place, journal, 0)
    } else {
        let prepared = prepare(arguments)?;
        refuse_odd_log_dirs(arguments, &prepared.journal.source)?;
        if arguments.dry_run {
            let plan = Plan::new(&prepared);
            let speed = convert::limited(prepared.give_up()?, rate.as_ref());
            return output.show(&plan.with_speed(speed));
        }
        let total = prepared.amount.data;
        let (place, journal) = prepared.begin()?;
        (place, journal, total)
    };
    set_modes(arguments, &journal)?;
    let mut source = source_of(&journal)?;
    let bar = Bar::new(output, total);
    let mut person = Person { name: journal.name.clone(), bar: &bar, output };
    let pace = Pace { workers: arguments.requests.get(), rate: rate.as_ref() };
    let progress = |bytes| bar.advance(bytes);
    let done = convert::run(place, &mut journal, source.as_mut(), &mut person, pace, &progress)?;
    drop(source);
    drop(bar);
    output.show(&Report::new(&journal, done))
}

fn how(arguments: &Arguments) -> How {
    let stopping = match (&arguments.stop, &arguments.start) {
        (Some(stop), Some(start)) => {
            Stopping::Commands { stop: stop.clone(), start: start.clone() }
        }
        _ if arguments.wait => Stopping::Wait,
        _ => Stopping::None,
    };
    let switch = if arguments.no_switch {
        Switch::No
    } else if arguments.bind {
        Switch::Bind
    } else {
        Switch::Link
    };
    let verify = match arguments.verify {
        Which::All => Verify::All,
        Which::Changed => Verify::Changed,
    };
    How { switch, verify, stopping }
}

fn prepare(arguments: &Arguments) -> Result<Prepared> {
    let (directory, how) = (&arguments.directory, how(arguments));
    if arguments.back {
        return Ok(convert::prepare_back(directory, &how)?);
    }
    if let Some(target) = &arguments.to {
        if our_mount(&convert::name_of(target)?)?.is_none() {
            let message = format!(
                "{} does not lie on a Bedplate mount: mount a volume first, or say --back-to for \
                 another file system",
                text::name(target)
            );
            return Err(Failure::new("not_a_mount", message));
        }
        return Ok(convert::prepare(directory, target, &how)?);
    }
    let target = arguments.back_to.as_ref().expect("clap asks for one of them");
    live::require_mount(directory)?;
    Ok(convert::prepare(directory, target, &how)?)
}

/// Returns the mount of ours that a path lies on.
fn our_mount(path: &Path) -> Result<Option<mount::Mount>> {
    mount::above(path)
}

fn source_of(journal: &Journal) -> Result<Box<dyn Source>> {
    Ok(match our_mount(&journal.source)?.filter(|mount| !mount.read_only) {
        Some(mount) => Box::new(Checkpoints::new(mount, &journal.source, &journal.id)?),
        None => Box::new(Plain(journal.source.clone())),
    })
}

fn refuse_odd_log_dirs(arguments: &Arguments, source: &Path) -> Result<()> {
    let is_directory =
        |name: &OsString| std::fs::symlink_metadata(source.join(name)).is_ok_and(|is| is.is_dir());
    match arguments.log_dir.iter().find(|(name, _)| !is_directory(name)) {
        None => Ok(()),
        Some((name, _)) => Err(Failure::usage(format!(
            "{} has no directory {} whose mode could be set",
            text::name(source),
            text::name(name)
        ))),
    }
}

/// Sets the modes that files of the copy take over when they are made.
fn set_modes(arguments: &Arguments, journal: &Journal) -> Result<()> {
    if let Some(mode) = arguments.mode {
        live::set(&journal.target, live::MODE, mode.name())?;
    }
    for (name, mode) in &arguments.log_dir {
        let directory = journal.target.join(name);
        match std::fs::create_dir(&directory) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => made.map_err(|error| Failure::system("make", &directory, &error))?,
        }
        live::set(&directory, live::MODE, mode.name())?;
    }
    Ok(())
}

/// Returns a conversion that was begun.
fn begun(directory: &Path) -> Result<(Place, Journal)> {
    let name = convert::name_of(directory)?;
    let place = Place::take(&name, false)?;
    match place.read()? {
        Some(journal) => Ok((place, journal)),
        // Killed before anything was made.
        None => {
            place.remove()?;
            let message = format!("{} is not being converted", text::name(directory));
            Err(Failure::new("not_found", message))
        }
    }
}

fn abandon(arguments: &Arguments, output: &Output) -> Result<()> {
    let (place, mut journal) = begun(&arguments.directory)?;
    if let Some(mount) = our_mount(&journal.source)?.filter(|mount| !mount.read_only) {
        Checkpoints::new(mount, &journal.source, &journal.id)?;
    }
    let name = journal.name.clone();
    let bar = Bar::new(output, 0);
    let mut person = Person { name: name.clone(), bar: &bar, output };
    convert::abandon(place, &mut journal, &mut person)?;
    output.show(&Abandoned { name: name.into(), abandoned: true })
}
