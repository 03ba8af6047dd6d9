//! The recording half: a volume, the user's setup, and the user's program with everything it writes
//! and acknowledges.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use bedplate::{BlockDevice, FileSystem, FormatOptions};
use bedplate_block::RecordingDevice;

use crate::acknowledged::{Acknowledgement, Collector};
use crate::error::{Error, ErrorKind, Result};
use crate::lab::{Lab, Stage};
use crate::program::{Program, shell};
use crate::recorded::{Circumstances, Image, Recorded, base, geometry};
use crate::stored;
use crate::workplace::{Mounted, new_file};

/// What is to be recorded.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// The program and its arguments.
    pub command: &'a [String],
    /// What runs before it on the volume and is not recorded, a line for the shell.
    pub setup: Option<&'a str>,
    /// The volume to start with; without one a fresh volume is made.
    pub image: Option<&'a Path>,
    /// Size of a fresh volume.
    pub size_bytes: u64,
    /// What a power cut never tears.
    pub sector_bytes: u64,
    /// The mount options as the user wrote them, for the report.
    pub options: &'a str,
    /// A directory in which the recording is kept.
    pub keep: Option<&'a Path>,
}

/// Where the parts of a recording lie, in the directory that the user named or in the lab's own.
struct Parts {
    spool: File,
    lines: File,
}

impl Parts {
    fn make(lab: &Lab<'_>, keep: Option<&Path>) -> Result<Self> {
        let Some(dir) = keep else {
            return Ok(Self {
                spool: lab.workplace.nameless("spool")?,
                lines: lab.workplace.nameless("lines")?,
            });
        };
        std::fs::create_dir_all(dir)
            .map_err(|error| Error::system("make the directory", dir, &error))?;
        Ok(Self {
            spool: new_file(&dir.join(stored::SPOOL))?,
            lines: new_file(&dir.join(stored::LINES))?,
        })
    }
}

/// Runs the user's setup and program and returns what was recorded.
///
/// # Errors
/// `Usage` for a sector that is not possible, `Setup` and `Command` for programs that fail,
/// `NoSpace` for a recording that lacks a write, `Interrupted`; those of the system, the file
/// system and the mount.
pub fn record(lab: &Lab<'_>, run: &Run<'_>) -> Result<Recorded> {
    let parts = Parts::make(lab, run.keep)?;
    let cannot_copy = |error: std::io::Error| Error::io("open the recording a second time", &error);
    let base = base(lab, run.image, run.size_bytes / 65_536 * 65_536)?;
    let sector_bytes = sector(run.sector_bytes, base.geometry().logical_block_size)?;
    let size_bytes = base.size_bytes();
    let device = RecordingDevice::over(
        base,
        geometry(sector_bytes),
        parts.spool.try_clone().map_err(cannot_copy)?,
    );
    if run.image.is_none() {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let options = FormatOptions {
            block_size: sector_bytes.max(4096),
            uid,
            gid,
            ..FormatOptions::default()
        };
        FileSystem::format(&as_device(&device), None, &options)?;
    }
    let dir = lab.workplace.directory("mnt")?;
    if let Some(setup) = run.setup {
        (lab.progress)(Stage::Setup);
        run_setup(lab, setup, &device, &dir)?;
    }
    device.make_all_durable();

    (lab.progress)(Stage::Recording);
    let mounted = Mounted::start(device.clone(), &dir, &lab.settings)?;
    let first = device.operation_count();
    let started = Instant::now();
    let acknowledgements =
        run_command(lab, run, &device, &dir, parts.lines.try_clone().map_err(cannot_copy)?)?;
    let (duration, last) = (started.elapsed(), device.operation_count());
    // What follows is in the recording, but no power is cut in it: no program waits for it.
    mounted.end().map_err(|error| error.during("after the command"))?;
    require_whole(&device)?;
    let recorded = Recorded {
        recording: device.recording(),
        circumstances: Circumstances {
            command: run.command.to_vec(),
            setup: run.setup.map(str::to_owned),
            image: run.image.map(Image::of).transpose()?,
            size_bytes,
            sector_bytes,
            options: run.options.to_owned(),
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
        },
        cuts: first..=last,
        acknowledgements,
        lines: parts.lines,
    };
    if let Some(dir) = run.keep {
        stored::save(&recorded, dir)?;
    }
    Ok(recorded)
}

fn as_device(device: &Arc<RecordingDevice>) -> Arc<dyn BlockDevice> {
    device.clone()
}

fn sector(wanted: u64, least: u32) -> Result<u32> {
    let sector = u32::try_from(wanted)
        .ok()
        .filter(|sector| sector.is_power_of_two() && (512..=65_536).contains(sector));
    let impossible = || {
        format!(
            "a sector of {wanted} bytes is not possible: choose a power of two from 512 to 65536"
        )
    };
    Ok(sector.ok_or_else(|| Error::new(ErrorKind::Usage, impossible()))?.max(least))
}

fn run_setup(lab: &Lab<'_>, setup: &str, device: &Arc<RecordingDevice>, dir: &Path) -> Result<()> {
    let mounted = Mounted::start(device.clone(), dir, &lab.settings)?;
    let mut command = shell(setup);
    let scratch = lab.workplace.scratch("scratch-setup")?;
    // Standard output is for the report alone.
    command.env("BEDPLATE_DIR", dir).stdout(to_standard_error()?);
    let ended = Program::start(&mut command, &scratch)?.wait(None, lab.stop)?;
    if !ended.is_success() {
        let why = format!(
            "the setup ended with {}: see above what it said, and mend it first",
            ended.words()
        );
        return Err(Error::new(ErrorKind::Setup, why));
    }
    mounted.end().map_err(|error| error.during("after the setup"))
}

fn to_standard_error() -> Result<Stdio> {
    let copy = rustix::io::dup(std::io::stderr())
        .map_err(|error| Error::io("write to standard error", &error.into()))?;
    Ok(Stdio::from(copy))
}

fn run_command(
    lab: &Lab<'_>,
    run: &Run<'_>,
    device: &Arc<RecordingDevice>,
    dir: &Path,
    lines: File,
) -> Result<Vec<Acknowledgement>> {
    let [name, words @ ..] = run.command else {
        return Err(Error::new(
            ErrorKind::Usage,
            "name the program to run behind two dashes: -- COMMAND",
        ));
    };
    let mut collector = Collector::new(lines, device.clone());
    let pipe = lab.workplace.path("acknowledge");
    collector.listen_at(&pipe)?;
    let mut command = Command::new(name);
    let scratch = lab.workplace.scratch("scratch-command")?;
    command
        .args(words)
        .env("BEDPLATE_DIR", dir)
        .env("BEDPLATE_ACKNOWLEDGE", &pipe)
        .stdout(Stdio::piped());
    let mut program = Program::start(&mut command, &scratch)?;
    if let Some(output) = program.take_output() {
        collector.listen_to(output)?;
    }
    let ended = program.wait(None, lab.stop)?;
    let acknowledgements = collector.finish()?;
    if !ended.is_success() {
        let why =
            format!("the command ended with {}: the lab needs a run that succeeds", ended.words());
        return Err(Error::new(ErrorKind::Command, why));
    }
    Ok(acknowledgements)
}

/// Refuses a recording that lacks a write: it would tell nothing.
fn require_whole(device: &RecordingDevice) -> Result<()> {
    match device.counters().errors {
        0 => Ok(()),
        errors => {
            let why = format!(
                "{errors} operations could not be recorded: make room, or choose another --dir"
            );
            Err(Error::new(ErrorKind::NoSpace, why))
        }
    }
}
