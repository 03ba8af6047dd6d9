//! `bedplate mount PATH DIR [-o OPTION[,OPTION…]] [--foreground]`

mod beside;
mod fstab;
mod remount;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bedplate::{FileSystem, Group};
use bedplate_serve::fuse::{
    Mount, MountOption, MountSettings, check_part, is_mount_option, mount_options,
    unknown_mount_option,
};
use clap::Args;
use serde::{Deserialize, Serialize};
use signal_hook::iterator::Signals;

use crate::address::volume_and_path;
use crate::daemon::control::{self, Naming};
use crate::daemon::events::{self, Events};
use crate::daemon::host_room::{self, HostWatch};
use crate::daemon::signals::{self, Subject, Watcher};
use crate::daemon::spawn;
use crate::device::{self, Access, group, place};
use crate::failure::{Failure, Result};
use crate::metrics;
use crate::mount;
use crate::render::output::Output;
use crate::render::{progress, text};
use crate::session::{Devices, Volume};

/// Mount a volume on a directory; returns once it is mounted and leaves a daemon behind
///
/// SIGTERM or SIGINT ends the daemon as 'bedplate unmount' does: while programs use the mount it
/// names them and waits for their end. A second one, or SIGQUIT, cuts them off. SIGHUP opens the
/// log file again.
#[derive(Debug, Args)]
pub struct Arguments {
    /// An image file or a block device, any member of a group, or group:NAME; with :/PATH behind it
    /// one directory of the volume, also beside what is mounted of it
    path: PathBuf,
    /// An existing directory
    dir: PathBuf,
    /// Options as mount(8) writes them
    #[arg(short, value_name = "OPTION[,OPTION…]", long_help = options_help())]
    options: Vec<String>,
    /// Run PROGRAM for what an administrator should know, with JSON on its standard input
    #[arg(long, value_name = "PROGRAM")]
    on_event: Option<PathBuf>,
    /// Stay in the foreground until unmounted
    #[arg(long)]
    foreground: bool,
    /// Check what can be checked before the volume is opened, and do not mount
    #[arg(long, hide = true)]
    fake: bool,
    /// Be the daemon of another 'bedplate mount'
    #[arg(long, hide = true, conflicts_with = "foreground")]
    daemon_child: bool,
}

/// The options that the command takes besides those of every mount.
const OPTIONS: [MountOption; 7] = [
    MountOption::new(
        "log",
        Some("PATH"),
        "the device of the intent log, where 'format --log' was given one",
    ),
    MountOption::new(
        "logfile",
        Some("PATH"),
        "where the daemon writes its warnings, and with -v more; without it to the system's log",
    ),
    MountOption::new(
        "on-event",
        Some("PROGRAM"),
        "runs the program for what an administrator should know, with JSON on its standard input",
    ),
    MountOption::new("metrics", Some("unix:PATH|127.0.0.1:PORT"), "answers Prometheus there"),
    MountOption::new("metrics-files", Some("N"), "metrics of the N busiest files too"),
    MountOption::new(
        "stop-timeout",
        Some("DURATION"),
        "cuts programs off that use the mount so long after a SIGTERM; without it they are waited \
         for",
    ),
    MountOption::new(
        "degraded",
        None,
        "with ro: opens a group without its missing members, and writes to none",
    ),
];

/// Explains every option, one a line.
fn options_help() -> String {
    let own = OPTIONS.iter().map(|option| (option.to_string(), option.effect));
    let lines: Vec<String> = mount_options()
        .chain(own)
        .map(|(option, effect)| format!("{option}: {effect}"))
        .chain([fstab::told()])
        .collect();
    format!("Options as mount(8) writes them\n\n{}", lines.join("\n"))
}

/// What is mounted, and what that took.
#[derive(Debug, Serialize, Deserialize)]
struct Mounted {
    volume: PathBuf,
    /// The directory of it that is shown, where that is not all.
    path: Option<PathBuf>,
    dir: PathBuf,
    pid: u32,
    uuid: String,
    mode: String,
    read_only: bool,
    engine: String,
    size_bytes: u64,
    recovery: Recovery,
}

/// The part of the recovery report that the summary tells.
#[derive(Debug, Serialize, Deserialize)]
struct Recovery {
    needed: bool,
    records: u64,
    orphans: u64,
    second_superblock: bool,
    duration_us: u64,
}

pub fn run(arguments: &Arguments, verbose: u8, output: &Output) -> Result<()> {
    if arguments.daemon_child {
        return be_daemon(arguments, output);
    }
    if let Some(options) = remount::wanted(&arguments.options) {
        return remount::run(&arguments.dir, &options, output);
    }
    if let Some((volume, path)) = volume_and_path(&arguments.path)
        && let Some(mount) = beside::mounted(&volume)?
    {
        return beside::run(arguments, &mount, &path, output);
    }
    let plan = Plan::new(arguments)?;
    plan.settings.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    if arguments.fake {
        return Ok(());
    }
    if !arguments.foreground {
        return output.show(&spawn::start::<Mounted>(&plan.for_daemon(verbose))?);
    }
    let signals = signals::take()?;
    let serving = Serving::start(&plan, output)?;
    output.show(&serving.mounted)?;
    serving.until_unmounted(None, plan.stop_timeout, signals)
}

/// Mounts with default options and leaves a daemon behind.
pub fn start(volume: &Path, dir: &Path) -> Result<()> {
    start_with(&Volume::new(volume, &Devices::default()), &[], dir)
}

/// Mounts a checkpoint of a volume that is not mounted, and leaves a daemon behind.
pub fn start_checkpoint(volume: &Volume, name: &OsStr, dir: &Path) -> Result<()> {
    let wrong = || {
        Failure::new(
            "invalid",
            "a checkpoint whose name has a comma or is no UTF-8 cannot be mounted alone: mount the \
             volume, then the checkpoint",
        )
    };
    let name = name.to_str().filter(|name| !name.contains(',')).ok_or_else(wrong)?;
    start_with(volume, &[&format!("checkpoint={name}")], dir)
}

/// Mounts with these options and leaves a daemon behind.
pub fn start_with(volume: &Volume, options: &[&str], dir: &Path) -> Result<()> {
    let mut options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
    options.extend(volume.devices.log.as_ref().map(|log| format!("log={}", log.display())));
    let arguments = Arguments {
        path: volume.volume.clone(),
        dir: dir.to_owned(),
        options,
        on_event: None,
        foreground: false,
        fake: false,
        daemon_child: false,
    };
    spawn::start::<Mounted>(&Plan::new(&arguments)?.for_daemon(0)).map(drop)
}

/// The daemon: mounts, tells the parent, serves.
fn be_daemon(arguments: &Arguments, output: &Output) -> Result<()> {
    let started = spawn::detach_from_terminal().and_then(|()| {
        let plan = Plan::new(arguments)?;
        let log = plan.log_file.as_deref().map(spawn::open_log).transpose()?;
        let signals = signals::take()?;
        Ok((Serving::start(&plan, output)?, signals, log, plan))
    });
    let (serving, signals, log, plan) = match started {
        Ok(started) => started,
        Err(failure) => return spawn::announce::<()>(Err(&failure)).and(Ok(())),
    };
    if let Err(failure) =
        spawn::announce(Ok(&serving.mounted)).and_then(|()| silence(log.as_ref(), &serving.mounted))
    {
        serving.mount.unmount()?;
        return Err(failure);
    }
    serving.until_unmounted(plan.log_file, plan.stop_timeout, signals)
}

fn silence(log: Option<&File>, mounted: &Mounted) -> Result<()> {
    if log.is_none()
        && let Err(error) = crate::logging::to_system(&mounted.dir)
    {
        tracing::warn!("the daemon's messages go nowhere: the system's log has no socket: {error}");
    }
    spawn::silence(log)?;
    crate::logging::add_times();
    tracing::info!("{mounted}");
    Ok(())
}

/// Everything checked that can be checked before the volume is opened.
struct Plan {
    volume: PathBuf,
    /// The directory of it that is shown, where that is not all.
    path: Option<PathBuf>,
    dir: PathBuf,
    log: Option<PathBuf>,
    log_file: Option<PathBuf>,
    /// The program that events are told to.
    on_event: Option<PathBuf>,
    metrics: Option<metrics::MetricsAddress>,
    metrics_files: usize,
    /// How long an end that a signal asked for waits for programs on the mount.
    stop_timeout: Option<Duration>,
    /// Whether to go on without members that are missing.
    degraded: bool,
    options: String,
    settings: MountSettings,
}

const DEGRADED_WRITES: &str = "-o degraded goes with ro, which writes to no member: to go on \
                               without the missing ones for good, run 'bedplate volume import \
                               --degraded' first";

impl Plan {
    fn new(arguments: &Arguments) -> Result<Self> {
        let absolute = |path: &Path| {
            std::path::absolute(path).map_err(|error| Failure::system("find", path, &error))
        };
        let given = arguments.options.join(",");
        let (mut log, mut log_file, mut metrics, mut metrics_files, mut rest) =
            (None, None, None, 0, Vec::new());
        let (mut degraded, mut stop_timeout) = (false, None);
        let mut on_event = arguments.on_event.as_deref();
        for option in given.split(',').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("log", path)) if place::is_remote(Path::new(path)) => {
                    log = Some(place::whole(Path::new(path))?);
                }
                Some(("log", path)) => log = Some(absolute(Path::new(path))?),
                Some(("logfile", path)) => log_file = Some(absolute(Path::new(path))?),
                Some(("on-event", path)) => on_event = Some(Path::new(path)),
                Some(("metrics", place)) => metrics = Some(place.parse()?),
                Some(("metrics-files", number)) => metrics_files = metrics::files(number)?,
                Some(("stop-timeout", time)) => stop_timeout = Some(timeout(time)?),
                None if option == "degraded" => degraded = true,
                _ if fstab::is_word(option) => {}
                _ if !is_mount_option(option.split('=').next().unwrap_or(option).trim()) => {
                    return Err(unknown(option));
                }
                _ => rest.push(option),
            }
        }
        if metrics_files > 0 && metrics.is_none() {
            return Err(Failure::usage(
                "mount option 'metrics-files' counts with 'metrics=' only: say where metrics are \
                 asked for",
            ));
        }
        let mut settings = MountSettings::parse(&rest.join(","))?;
        settings.listed.extend(listed(&given));
        if degraded && !settings.is_read_only() {
            return Err(Failure::usage(DEGRADED_WRITES));
        }
        let (volume, path) = find_volume(&arguments.path)?;
        // By its source the other commands find out where a volume is mounted.
        settings.source = Some(match settings.source.take() {
            Some(source) => source,
            None => group::source_of(&volume)?,
        });
        Ok(Self {
            volume,
            path,
            dir: mount_point(&arguments.dir)?,
            log,
            log_file,
            on_event: on_event.map(events::check).transpose()?,
            metrics,
            metrics_files,
            stop_timeout,
            degraded,
            options: without_program(&given),
            settings,
        })
    }

    /// Returns what lists of mounts show as what is mounted.
    fn shown(&self) -> String {
        self.settings.source.clone().unwrap_or_default()
    }

    /// Returns the command line of the daemon, whose working directory is another.
    fn for_daemon(&self, verbose: u8) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = ["mount", "--daemon-child"].map(OsString::from).into();
        let absolute = |name: &str, path: &Option<PathBuf>| {
            path.as_ref().map(|path| format!(",{name}={}", path.display())).unwrap_or_default()
        };
        if let Some(program) = &self.on_event {
            arguments.extend(["--on-event".into(), program.clone().into()]);
        }
        if !self.options.is_empty() {
            // What is said last counts: the absolute paths stand behind the ones given.
            let (log, log_file) = (absolute("log", &self.log), absolute("logfile", &self.log_file));
            let metrics =
                self.metrics.as_ref().map(|place| format!(",metrics={place}")).unwrap_or_default();
            arguments
                .extend(["-o".into(), format!("{}{log}{log_file}{metrics}", self.options).into()]);
        }
        arguments.extend((0..verbose).map(|_| "-v".into()));
        let mut volume = self.volume.clone().into_os_string();
        if let Some(path) = &self.path {
            volume.push(":");
            volume.push(path);
        }
        arguments.extend(["--".into(), volume, self.dir.clone().into()]);
        arguments
    }
}

/// Returns the volume that is named, and the directory of it where one is.
fn find_volume(named: &Path) -> Result<(PathBuf, Option<PathBuf>)> {
    let (volume, path) = match volume_and_path(named) {
        Some((volume, path)) => (volume, Some(path)),
        None => (named.to_owned(), None),
    };
    Ok((place::whole_to("find the volume", &group::resolve(&volume)?)?, path))
}

/// Returns the options of the command itself that lists of mounts are to show.
fn listed(options: &str) -> impl Iterator<Item = String> {
    let is_own = |option: &&str| {
        let name = option.split('=').next().unwrap_or(option);
        OPTIONS.iter().any(|own| own.name == name)
    };
    options.split(',').filter(is_own).map(str::to_owned)
}

/// Leaves the program of events out, which the daemon is given as an argument: its name may hold a
/// comma, and the option a path that begins elsewhere.
fn without_program(options: &str) -> String {
    let kept = options.split(',').filter(|option| !option.starts_with("on-event="));
    kept.collect::<Vec<_>>().join(",")
}

/// Makes the failure of an option that there is not.
fn unknown(option: &str) -> Failure {
    let Failure { message, .. } = unknown_mount_option(option.trim(), &OPTIONS).into();
    Failure::usage(format!("{message}, remount, and {}", fstab::told()))
}

/// Reads how long an end waits.
fn timeout(text: &str) -> Result<Duration> {
    bedplate::parse_duration(text)
        .map_err(|why| Failure::usage(format!("mount option 'stop-timeout': {why}")))
}

/// Returns the mount point without links; what else it must be is the mount's own business.
fn mount_point(dir: &Path) -> Result<PathBuf> {
    mount::canonical(dir).map_err(|failure| match failure.kind.as_str() {
        "not_found" => Failure::new(
            "mount_point",
            format!("the mount point {} does not exist: make the directory first", dir.display()),
        ),
        _ => failure,
    })
}

/// A mount that is being served.
struct Serving {
    mount: Arc<Mount>,
    mounted: Mounted,
    /// Names files to scrubs on schedule, where the volume is a group.
    naming: Option<Naming>,
    /// Answers Prometheus, where that was asked for.
    metrics: Option<metrics::Serving>,
    /// Tells events to a program, where that was asked for.
    events: Option<Events>,
    /// Tells when the file system below an image fills.
    host: HostWatch,
    group: Option<Group>,
}

impl Serving {
    fn start(plan: &Plan, output: &Output) -> Result<Self> {
        bedplate_block::allocate_from_few_arenas();
        let options = &plan.settings.file_system;
        let access =
            if plan.settings.is_read_only() { Access::ReadOnly } else { Access::ReadWrite };
        let opened = device::open_parts(&plan.volume, plan.log.as_deref(), access, plan.degraded)?;
        let fs = progress::during(output, "recovering", || {
            FileSystem::mount(opened.device, opened.log, options.clone())
        })?;
        match Self::serve(plan, &fs, opened.group) {
            Ok(serving) => Ok(serving),
            Err(failure) => {
                // A mount that had begun has unmounted it with its own end.
                if let Err(error) = fs.unmount() {
                    tracing::warn!("{error}");
                }
                Err(failure)
            }
        }
    }

    fn serve(plan: &Plan, fs: &FileSystem, group: Option<Group>) -> Result<Self> {
        if let Some(path) = &plan.path {
            check_part(fs, &plan.shown(), path)?;
        }
        let events =
            plan.on_event.as_ref().map(|program| events::start(program, &plan.dir, &plan.shown()));
        let naming = group.as_ref().map(|group| control::lend_names(group, fs)).transpose()?;
        let metrics = plan
            .metrics
            .as_ref()
            .map(|place| metrics::serve(place, plan.metrics_files, &plan.dir, fs, group.as_ref()))
            .transpose()?;
        let mounted = summarize(fs, plan);
        let mount = Mount::start_on(
            group.as_ref().map(control::handle),
            fs.clone(),
            &plan.dir,
            &plan.settings,
        )?;
        if let Some(path) = &plan.path {
            mount.show_part(path)?;
        }
        if let Some(metrics) = &metrics {
            metrics.tell_of(mount.threads());
        }
        let host = host_room::start(plan.volume.clone(), group.as_ref());
        Ok(Self { mount: Arc::new(mount), mounted, naming, metrics, events, host, group })
    }

    /// Serves until it is unmounted or a signal asks for that, and everything is durable.
    fn until_unmounted(
        mut self,
        log_file: Option<PathBuf>,
        stop_timeout: Option<Duration>,
        signals: Signals,
    ) -> Result<()> {
        let subject = Subject { mount: Arc::clone(&self.mount), log_file, stop_timeout };
        let watcher = Watcher::start(subject, signals);
        let ended = self.mount.wait();
        drop(self.metrics.take());
        drop(self.host);
        watcher.end()?;
        drop(self.naming);
        // Not left to the last holder: a thread that is ending may be that, and not get to it
        // before the process ends.
        let closed = device::close(self.group);
        if let Some(events) = self.events {
            events.end();
        }
        ended?;
        closed?;
        tracing::info!(
            "{} unmounted, {} is free",
            self.mounted.dir.display(),
            self.mounted.volume.display()
        );
        Ok(())
    }
}

fn summarize(fs: &FileSystem, plan: &Plan) -> Mounted {
    let info = fs.info();
    Mounted {
        volume: plan.volume.clone(),
        path: plan.path.clone(),
        dir: plan.dir.clone(),
        pid: std::process::id(),
        uuid: info.uuid,
        mode: info.mode.to_string(),
        read_only: plan.settings.is_read_only(),
        engine: info.engine,
        size_bytes: info.size_bytes,
        recovery: Recovery {
            needed: info.recovery.needed,
            records: info.recovery.records,
            orphans: info.recovery.orphans,
            second_superblock: info.recovery.second_superblock,
            duration_us: info.recovery.duration_us,
        },
    }
}

impl fmt::Display for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let took = bedplate::format_duration(Duration::from_micros(self.recovery.duration_us));
        let opened = if self.recovery.needed {
            format!("recovered {} in {took}", text::count(self.recovery.records, "record"))
        } else {
            format!("opened in {took}")
        };
        let second =
            if self.recovery.second_superblock { " from the second superblock" } else { "" };
        let read_only = if self.read_only { ", read-only" } else { "" };
        if let Some(path) = &self.path {
            write!(f, "{} of ", text::name(path))?;
        }
        write!(
            f,
            "{} mounted on {}: {opened}{second}, mode {}{read_only}, engine {}",
            text::name(&self.volume),
            text::name(&self.dir),
            self.mode,
            self.engine
        )
    }
}

#[cfg(test)]
mod tests {
    use bedplate_serve::fuse::mount_tunables;

    use super::*;

    /// Once `mount --help` lacked three options, the error that lists all lacked six, and one was
    /// in neither.
    #[test]
    fn help_error_and_guide_have_every_option() {
        let guide = include_str!("../../../../../docs/guide/mount.md");
        let (help, refusal) = (options_help(), unknown("frobnicate").message);
        for option in
            mount_options().map(|(option, _)| option).chain(OPTIONS.iter().map(ToString::to_string))
        {
            let name = option.split_inclusive('=').next().unwrap_or_default();
            assert!(help.contains(&format!("\n{option}: ")), "help lacks {option}");
            assert!(refusal.contains(&format!(" {name}")), "the error lacks {name}");
            assert!(guide.contains(&format!("`{name}")), "docs/guide/mount.md lacks {name}");
        }
        for word in fstab::WORDS {
            assert!(help.contains(word) && refusal.contains(word), "{word}");
            assert!(guide.contains(&format!("`{word}")), "docs/guide/mount.md lacks {word}");
        }
        for info in mount_tunables() {
            assert!(
                guide.contains(&format!("| `{}=", info.name)),
                "docs/guide/mount.md has no line for {}=",
                info.name
            );
        }
    }
}
