//! `bedplate trace [-o FILE] -- PROGRAM …`

use std::ffi::OsString;
use std::fmt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bedplate::{format_size, parse_size};
use bedplate_bench::{DeviceOps, all_devices};
use bedplate_trace::{About, Call, DeviceCount, SLOT_BYTES, Trace};
use clap::{Args, ValueEnum};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper, waitpid};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::arena::Made;
use super::attach::{Attached, Attaching};
use crate::cmd::run::{find_library, find_program, preloaded, why_not};
use crate::failure::{Failure, Result};
use crate::render::output::Output;
use crate::render::text::{Name, count};

/// Where the library finds the arena.
const VARIABLE: &str = "BEDPLATE_TRACE";

#[derive(Debug, Args)]
pub struct Recording {
    /// The trace; a file of this name is replaced
    #[arg(short, long, value_name = "FILE", default_value = "bedplate.trace")]
    output: PathBuf,
    /// Whether what the program starts is recorded too, and waited for
    #[arg(long, value_name = "WHICH", value_enum, default_value = "all", require_equals = true)]
    children: Children,
    /// Record so much at the most; 64 bytes are one call. What is beyond it is counted
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256MiB")]
    limit: u64,
    /// A directory for what is recorded while the program runs, instead of memory
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Write what is dirty in the system's memory to its devices before the program starts and when
    /// it has ended, so that the devices' counts in the trace are those of its work
    #[arg(long)]
    settle: bool,
    #[command(flatten)]
    attaching: Attaching,
    /// The program and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Children {
    /// They are recorded until the program ends
    All,
    /// They are recorded until the last of them ends: of a program that goes to the background
    Wait,
    /// The program alone is recorded
    None,
}

impl Recording {
    /// Tells whether neither a program nor a process was named.
    pub fn is_empty(&self) -> bool {
        self.program.is_empty() && !self.attaching.is_wanted()
    }
}

/// What was recorded.
#[derive(Serialize)]
struct Recorded {
    trace: Name,
    size_bytes: u64,
    calls: u64,
    processes: u64,
    files: u64,
    lost: u64,
    maps: u64,
    rings: u64,
    exit_code: i32,
    /// It ran before.
    #[serde(skip)]
    was_running: bool,
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} on {} in {} ({})",
            count(self.calls, "call"),
            if self.processes == 1 {
                "1 process".to_owned()
            } else {
                format!("{} processes", self.processes)
            },
            count(self.files, "file"),
            self.trace,
            format_size(self.size_bytes)
        )?;
        if self.lost > 0 {
            let (lost, why) = (count(self.lost, "record"), why_lost(self.was_running));
            write!(f, "\n{lost} lost, {why}")?;
        }
        if self.maps > 0 {
            let times = count(self.maps, "mapping");
            write!(f, "\nnot seen: what went through {times} of files")?;
        }
        if self.rings > 0 {
            write!(f, "\nnot seen: what went through {} of io_uring", count(self.rings, "ring"))?;
        }
        Ok(())
    }
}

fn why_lost(was_running: bool) -> &'static str {
    if was_running {
        "for want of room, or of files that were closed before they could be looked at"
    } else {
        "for want of room: give a larger --limit"
    }
}

pub fn run(arguments: &Recording, output: &Output) -> Result<()> {
    if arguments.attaching.is_wanted() {
        return attached(arguments, output);
    }
    if arguments.attaching.is_half() {
        return Err(Failure::usage("--while is for a process that runs: name one with --pid"));
    }
    let (name, rest) =
        arguments.program.split_first().ok_or_else(|| Failure::usage("name a program to run"))?;
    let path = find_program(name)?;
    if let Some(why) = why_not(&path) {
        let path = path.display();
        return Err(Failure::new("not_supported", format!("{path} cannot be recorded: it {why}")));
    }
    let library = find_library()?;
    let only = arguments.children == Children::None;
    let arena = Made::new(arguments.scratch.as_deref(), arguments.limit, only)?;
    let mut command = Command::new(&path);
    command.arg0(name).args(rest).env("LD_PRELOAD", preloaded(&library));
    command.env(VARIABLE, arena.path());
    let run = Run::of(arguments, &mut command, &path)?;
    let mut trace = arena.collected()?.trace;
    drop(arena);
    let lost = trace.about.lost;
    trace.about = About { lost, ..run.about(arguments) };
    trace.save(&arguments.output)?;
    told(&trace, arguments, output)?;
    let code = trace.about.exit_code;
    if code == 0 { Ok(()) } else { std::process::exit(code) }
}

/// Records a process that runs.
fn attached(arguments: &Recording, output: &Output) -> Result<()> {
    let command = arguments.attaching.command();
    let settle = || {
        if arguments.settle {
            rustix::fs::sync();
        }
    };
    settle();
    let before = all_devices();
    let calls = arguments.limit / SLOT_BYTES as u64;
    let calls_max = usize::try_from(calls).unwrap_or(usize::MAX);
    let Attached { mut trace, started, took } = arguments.attaching.record(calls_max, || {
        if !output.is_json() {
            eprintln!("bedplate: recording; Ctrl-C ends it");
        }
    })?;
    settle();
    let lost = trace.about.lost;
    trace.about = About { lost, command, ..about(arguments, started, took, since(&before)) };
    trace.save(&arguments.output)?;
    told(&trace, arguments, output)
}

/// What devices did since.
fn since(before: &[(String, u64, DeviceOps)]) -> Vec<DeviceCount> {
    let counted = |(name, device, ops): (String, u64, DeviceOps)| {
        let then = before.iter().find(|(_, other, _)| *other == device)?;
        counted(name, device, ops.since(&then.2))
    };
    all_devices().into_iter().filter_map(counted).collect()
}

fn about(
    arguments: &Recording,
    started: SystemTime,
    took: Duration,
    devices: Vec<DeviceCount>,
) -> About {
    About {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started: started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        kernel: kernel(),
        took_ns: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
        settled: arguments.settle,
        devices,
        ..About::default()
    }
}

fn told(trace: &Trace, arguments: &Recording, output: &Output) -> Result<()> {
    let size = std::fs::metadata(&arguments.output).map_or(0, |meta| meta.len());
    let of = |call: Call| {
        trace.events.iter().filter(|event| event.call == call && event.errno == 0).count() as u64
    };
    let recorded = Recorded {
        trace: arguments.output.clone().into(),
        size_bytes: size,
        calls: trace.events.len() as u64,
        processes: trace.processes.len() as u64,
        files: trace.files.iter().filter(|file| file.inode != 0).count() as u64,
        lost: trace.about.lost,
        maps: of(Call::Map),
        rings: of(Call::Ring),
        exit_code: trace.about.exit_code,
        was_running: arguments.attaching.is_wanted(),
    };
    if output.is_json() {
        return output.show(&recorded);
    }
    // Standard output is the program's.
    recorded.to_string().lines().for_each(|line| eprintln!("bedplate: {line}"));
    Ok(())
}

/// A run of the program.
struct Run {
    started: SystemTime,
    took: Duration,
    status: ExitStatus,
    devices: Vec<DeviceCount>,
}

impl Run {
    fn of(arguments: &Recording, command: &mut Command, path: &std::path::Path) -> Result<Self> {
        if arguments.children == Children::Wait {
            // Children that lose their parent become this process's.
            set_child_subreaper(Some(rustix::process::getpid())).map_err(|error| {
                Failure::new("io", format!("cannot wait for children of children: {error}"))
            })?;
        }
        let told = Told::new()?;
        if arguments.settle {
            rustix::fs::sync();
        }
        let before = all_devices();
        let (started, from) = (SystemTime::now(), Instant::now());
        let child = command.spawn().map_err(|error| Failure::system("run", path, &error))?;
        let status = told.during(child, path)?;
        if arguments.children == Children::Wait {
            told.wait_for_all();
        }
        let took = from.elapsed();
        if arguments.settle {
            rustix::fs::sync();
        }
        Ok(Self { started, took, status, devices: since(&before) })
    }

    fn about(&self, arguments: &Recording) -> About {
        let words = arguments.program.iter().map(|word| word.to_string_lossy().into_owned());
        About {
            command: words.collect(),
            // As a shell says it of a program that a signal ended.
            exit_code: self
                .status
                .code()
                .unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0)),
            ..about(arguments, self.started, self.took, self.devices.clone())
        }
    }
}

fn kernel() -> String {
    let told = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    told.trim().to_owned()
}

/// Leaves out a device that did nothing.
fn counted(name: String, device: u64, ops: DeviceOps) -> Option<DeviceCount> {
    let DeviceOps { reads, read_bytes, writes, written_bytes, flushes } = ops;
    let count = DeviceCount { name, device, reads, read_bytes, writes, written_bytes, flushes };
    (ops != DeviceOps::default()).then_some(count)
}

/// Signals to this process while a program runs: what the terminal sends goes to the program too,
/// and is left to it; what others send is passed on.
struct Told {
    signals: Signals,
}

impl Told {
    fn new() -> Result<Self> {
        let failed = |error| Failure::new("io", format!("cannot wait for signals: {error}"));
        let signals = Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP]).map_err(failed)?;
        Ok(Self { signals })
    }

    /// Waits for the program.
    fn during(&self, mut child: Child, path: &std::path::Path) -> Result<ExitStatus> {
        let mut signals = Signals::new([SIGTERM, SIGHUP])
            .map_err(|error| Failure::new("io", format!("cannot wait for signals: {error}")))?;
        let handle = signals.handle();
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let passing = std::thread::spawn(move || {
            for signal in &mut signals {
                let signal = if signal == SIGTERM { Signal::TERM } else { Signal::HUP };
                if let Some(pid) = pid {
                    // One that has ended is told nothing.
                    let _gone = kill_process(pid, signal);
                }
            }
        });
        let status = child.wait().map_err(|error| Failure::system("wait for", path, &error));
        handle.close();
        // It ends when its signals are closed.
        let _ended = passing.join();
        status
    }

    /// Waits until no child is left, or a signal comes.
    fn wait_for_all(mut self) {
        const TURN: Duration = Duration::from_millis(20);
        // Those that came while the program ran were the program's.
        let _past = self.signals.pending().count();
        while self.signals.pending().next().is_none() {
            match waitpid(None, WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => std::thread::sleep(TURN),
                Err(_) => return,
            }
        }
    }
}
