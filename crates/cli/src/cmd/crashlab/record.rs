//! The recording half: a volume, the user's setup, and the user's program with everything it writes and acknowledges.

use std::fs::File;
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate::{BlockDevice, FileSystem, FormatOptions, Geometry, MemoryDevice, format_size};
use block::{Recording, RecordingDevice, Spooled};
use serde::{Deserialize, Serialize};

use super::Lab;
use super::acknowledged::{Collector, Told};
use super::place::{Mounted, new_file};
use super::program::{Program, shell};
use super::stored;
use crate::device;
use crate::failure::{Failure, Result};
use crate::progress;

/// What was run, and on what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Circumstances {
    /// The program.
    pub command: Vec<String>,
    /// What ran before it.
    pub setup: Option<String>,
    /// The volume that it started with; none: a fresh one.
    pub image: Option<stored::Image>,
    /// Size of the volume in bytes.
    pub size_bytes: u64,
    /// What a power cut does not tear, in bytes.
    pub sector_bytes: u32,
    /// Options of the mount.
    pub options: String,
    /// How long the program ran, in milliseconds.
    pub duration_ms: u64,
}

/// A program's run, ready to be cut short.
#[derive(Debug)]
pub struct Recorded {
    pub recording: Recording,
    pub circumstances: Circumstances,
    /// After how many operations the power may go: while the program ran.
    pub cuts: RangeInclusive<usize>,
    pub told: Vec<Told>,
    /// All lines.
    pub lines: File,
}

impl Recorded {
    /// Returns how many writes the program made, their bytes, and its flushes.
    pub fn volume_of_work(&self) -> (u64, u64, u64) {
        let of_program = &self.recording.operations()[*self.cuts.start()..*self.cuts.end()];
        of_program.iter().fold((0, 0, 0), |(writes, bytes, flushes), operation| match operation {
            Spooled::Write { len, .. } => (writes + 1, bytes + len, flushes),
            Spooled::Flush { .. } => (writes, bytes, flushes + 1),
        })
    }
}

/// Opens what a recording starts with: nothing but zeros, or an image that stays as it is.
pub fn base(image: Option<&Path>, size_bytes: u64) -> Result<Arc<dyn BlockDevice>> {
    match image {
        Some(path) => device::open_to_look(path),
        None => Ok(MemoryDevice::new(size_bytes)),
    }
}

/// What the recorded device states about itself: a disk with a volatile cache.
pub fn geometry(sector_bytes: u32) -> Geometry {
    Geometry {
        logical_block_size: sector_bytes,
        physical_block_size: sector_bytes.max(4096),
        buffer_align: MemoryDevice::GEOMETRY.buffer_align,
        untorn_unit: sector_bytes,
        volatile_cache: true,
        read_only: false,
    }
}

/// Where the parts of a recording lie, in the directory that the user named or in the lab's own.
struct Parts {
    kept: Option<PathBuf>,
    spool: File,
    lines: File,
}

impl Parts {
    fn make(lab: &Lab) -> Result<Self> {
        let Some(dir) = &lab.arguments.recording else {
            return Ok(Self { kept: None, spool: lab.place.nameless("spool")?, lines: lab.place.nameless("lines")? });
        };
        std::fs::create_dir_all(dir).map_err(|error| Failure::system("make the directory", dir, &error))?;
        let (spool, lines) = (new_file(&dir.join(stored::SPOOL))?, new_file(&dir.join(stored::LINES))?);
        Ok(Self { kept: Some(dir.clone()), spool, lines })
    }
}

/// Runs the user's setup and program and returns what was recorded.
pub fn record(lab: &Lab) -> Result<Recorded> {
    let arguments = lab.arguments;
    let parts = Parts::make(lab)?;
    let cannot_copy = |error: std::io::Error| Failure::new("io", format!("cannot open the recording a second time: {error}"));
    let base = base(arguments.image.as_deref(), arguments.size / 65_536 * 65_536)?;
    let sector_bytes = sector(arguments.sector, base.geometry().logical_block_size)?;
    let size_bytes = base.size_bytes();
    let device = RecordingDevice::over(base, geometry(sector_bytes), parts.spool.try_clone().map_err(cannot_copy)?);
    if arguments.image.is_none() {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let options = FormatOptions { block_size: sector_bytes.max(4096), uid, gid, ..FormatOptions::default() };
        FileSystem::format(&as_device(&device), None, &options)?;
    }
    let dir = lab.place.directory("mnt")?;
    if let Some(setup) = &arguments.setup {
        run_setup(lab, setup, &device, &dir)?;
    }
    device.settle();

    let mounted = Mounted::start(device.clone(), &dir, &lab.settings)?;
    let first = device.operation_count();
    let started = Instant::now();
    let told = run_command(lab, &device, &dir, parts.lines.try_clone().map_err(cannot_copy)?)?;
    let (duration, last) = (started.elapsed(), device.operation_count());
    // What follows is in the recording, but no power is cut in it: nobody waits for it.
    mounted.end().map_err(|failure| Failure { message: format!("after the command: {}", failure.message), ..failure })?;
    require_whole(&device)?;
    let recorded = Recorded {
        recording: device.recording(),
        circumstances: Circumstances {
            command: arguments.command.clone(),
            setup: arguments.setup.clone(),
            image: arguments.image.as_deref().map(stored::Image::of).transpose()?,
            size_bytes,
            sector_bytes,
            options: arguments.options.join(","),
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
        },
        cuts: first..=last,
        told,
        lines: parts.lines,
    };
    if let Some(kept) = &parts.kept {
        stored::save(&recorded, kept)?;
    }
    Ok(recorded)
}

fn as_device(device: &Arc<RecordingDevice>) -> Arc<dyn BlockDevice> {
    device.clone()
}

fn sector(wanted: u64, least: u32) -> Result<u32> {
    let sector = u32::try_from(wanted).ok().filter(|sector| sector.is_power_of_two() && (512..=65_536).contains(sector));
    let sector =
        sector.ok_or_else(|| Failure::usage(format!("a sector of {wanted} bytes is not possible: choose a power of two from 512 to 65536")))?;
    Ok(sector.max(least))
}

fn run_setup(lab: &Lab, setup: &str, device: &Arc<RecordingDevice>, dir: &Path) -> Result<()> {
    let mounted = Mounted::start(device.clone(), dir, &lab.settings)?;
    let mut command = shell(setup);
    let scratch = lab.place.scratch("scratch-setup")?;
    // Standard output is for the report alone.
    command.env("BEDPLATE_DIR", dir).stdout(to_standard_error()?);
    let ended = progress::during(lab.output, "setup", || Program::start(&mut command, &scratch)?.wait(None, &lab.stop))?;
    if !ended.is_success() {
        return Err(Failure::new("setup", format!("the setup ended with {}: see above what it said, and mend it first", ended.words())));
    }
    mounted.end().map_err(|failure| Failure { message: format!("after the setup: {}", failure.message), ..failure })
}

fn to_standard_error() -> Result<Stdio> {
    let copy = rustix::io::dup(std::io::stderr()).map_err(|error| Failure::new("io", format!("cannot write to standard error: {error}")))?;
    Ok(Stdio::from(copy))
}

fn run_command(lab: &Lab, device: &Arc<RecordingDevice>, dir: &Path, lines: File) -> Result<Vec<Told>> {
    let [name, words @ ..] = &*lab.arguments.command else { return Err(Failure::usage("name the program to run behind two dashes: -- COMMAND")) };
    let mut collector = Collector::new(lines, device.clone());
    let pipe = lab.place.path("acknowledge");
    collector.listen_at(&pipe)?;
    let mut command = Command::new(name);
    let scratch = lab.place.scratch("scratch-command")?;
    command.args(words).env("BEDPLATE_DIR", dir).env("BEDPLATE_ACKNOWLEDGE", &pipe).stdout(Stdio::piped());
    let mut program = Program::start(&mut command, &scratch)?;
    if let Some(output) = program.take_output() {
        collector.listen_to(output)?;
    }
    let ended = progress::during(lab.output, "recording", || program.wait(None, &lab.stop))?;
    let told = collector.finish()?;
    if !ended.is_success() {
        return Err(Failure::new("command", format!("the command ended with {}: the lab needs a run that succeeds", ended.words())));
    }
    Ok(told)
}

/// A recording that lacks a write tells nothing.
fn require_whole(device: &RecordingDevice) -> Result<()> {
    match device.counters().errors {
        0 => Ok(()),
        errors => Err(Failure::new("no_space", format!("{errors} operations could not be recorded: make room, or choose another --dir"))),
    }
}

impl std::fmt::Display for Circumstances {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on ", self.command.join(" "))?;
        match &self.image {
            Some(image) => write!(f, "{}", image.path.display())?,
            None => write!(f, "a fresh volume of {}", format_size(self.size_bytes))?,
        }
        if self.options.is_empty() { Ok(()) } else { write!(f, ", mounted with {}", self.options) }
    }
}

/// Returns the time of a recording in words.
pub fn duration(circumstances: &Circumstances) -> String {
    bedplate::format_duration(Duration::from_millis(circumstances.duration_ms))
}

/// Makes sure that all of a file is on its way to the medium before somebody relies on it.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = File::create(path).and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    written.map_err(|error| Failure::system("write", path, &error))
}
