//! `bedplate mount PATH DIR [-o OPTION[,OPTION…]] [--foreground]`

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bedplate::{FileSystem, Group};
use bedplate_serve::fuse::{
    Mount, MountOption, MountSettings, is_mount_option, mount_options, unknown_mount_option,
};
use clap::Args;
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::daemon::control::{self, Listening};
use crate::daemon::spawn;
use crate::device::group;
use crate::device::{self, Access};
use crate::failure::{Failure, Result};
use crate::metrics;
use crate::mount;
use crate::render::output::Output;
use crate::render::{progress, text};
use crate::session::Volume;

/// Mount a volume on a directory; returns once it is mounted and leaves a daemon behind
///
/// SIGTERM or SIGINT ends the daemon as 'bedplate unmount' does.
#[derive(Debug, Args)]
pub struct Arguments {
    /// An image file or a block device, any member of a group, or group:NAME
    path: PathBuf,
    /// An existing directory
    dir: PathBuf,
    /// Options as mount(8) writes them
    #[arg(short, value_name = "OPTION[,OPTION…]", long_help = options_help())]
    options: Vec<String>,
    /// Stay in the foreground until unmounted
    #[arg(long)]
    foreground: bool,
    /// Be the daemon of another 'bedplate mount'
    #[arg(long, hide = true, conflicts_with = "foreground")]
    daemon_child: bool,
}

/// The options that the command takes besides those of every mount.
const OPTIONS: [MountOption; 5] = [
    MountOption::new(
        "log",
        Some("PATH"),
        "the device of the intent log, where 'format --log' was given one",
    ),
    MountOption::new(
        "logfile",
        Some("PATH"),
        "where the daemon writes its warnings, and with -v more",
    ),
    MountOption::new("metrics", Some("unix:PATH|127.0.0.1:PORT"), "answers Prometheus there"),
    MountOption::new("metrics-files", Some("N"), "metrics of the N busiest files too"),
    MountOption::new(
        "degraded",
        None,
        "with ro: opens a group without its missing members, and writes to none",
    ),
];

/// Explains every option, one a line.
fn options_help() -> String {
    let own = OPTIONS.iter().map(|option| (option.to_string(), option.effect));
    let lines: Vec<String> =
        mount_options().chain(own).map(|(option, effect)| format!("{option}: {effect}")).collect();
    format!("Options as mount(8) writes them\n\n{}", lines.join("\n"))
}

/// What is mounted, and what that took.
#[derive(Debug, Serialize, Deserialize)]
struct Mounted {
    volume: PathBuf,
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
    let plan = Plan::new(arguments)?;
    plan.settings.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    if !arguments.foreground {
        return output.show(&spawn::start::<Mounted>(&plan.for_daemon(verbose))?);
    }
    let signals = signals()?;
    let serving = Serving::start(&plan, output)?;
    output.show(&serving.mounted)?;
    serving.until_unmounted(signals)
}

/// Mounts with default options and leaves a daemon behind.
pub fn start(volume: &Path, dir: &Path) -> Result<()> {
    let arguments = Arguments {
        path: volume.to_owned(),
        dir: dir.to_owned(),
        options: Vec::new(),
        foreground: false,
        daemon_child: false,
    };
    spawn::start::<Mounted>(&Plan::new(&arguments)?.for_daemon(0)).map(drop)
}

/// Mounts a checkpoint of a volume that is not mounted, and leaves a daemon behind.
pub fn start_checkpoint(volume: &Volume, name: &OsStr, dir: &Path) -> Result<()> {
    let wrong = || {
        Failure::new(
            "invalid",
            "a checkpoint whose name has a comma or is no UTF-8 cannot be mounted alone: mount the volume, then the checkpoint",
        )
    };
    let name = name.to_str().filter(|name| !name.contains(',')).ok_or_else(wrong)?;
    let mut options = vec![format!("checkpoint={name}")];
    options.extend(volume.devices.log.as_ref().map(|log| format!("log={}", log.display())));
    let arguments = Arguments {
        path: volume.volume.clone(),
        dir: dir.to_owned(),
        options,
        foreground: false,
        daemon_child: false,
    };
    spawn::start::<Mounted>(&Plan::new(&arguments)?.for_daemon(0)).map(drop)
}

/// The daemon: mounts, tells the parent, serves.
fn be_daemon(arguments: &Arguments, output: &Output) -> Result<()> {
    let started = spawn::detach_from_terminal().and_then(|()| {
        let plan = Plan::new(arguments)?;
        let log = plan.log_file.as_deref().map(spawn::open_log).transpose()?;
        let signals = signals()?;
        Ok((Serving::start(&plan, output)?, signals, log))
    });
    let (serving, signals, log) = match started {
        Ok(started) => started,
        Err(failure) => return spawn::announce::<()>(Err(&failure)).and(Ok(())),
    };
    if let Err(failure) =
        spawn::announce(Ok(&serving.mounted)).and_then(|()| silence(log.as_ref(), &serving.mounted))
    {
        serving.mount.unmount()?;
        return Err(failure);
    }
    serving.until_unmounted(signals)
}

fn silence(log: Option<&File>, mounted: &Mounted) -> Result<()> {
    spawn::silence(log)?;
    crate::logging::add_times();
    tracing::info!("{mounted}");
    Ok(())
}

/// Everything checked that can be checked before the volume is opened.
struct Plan {
    volume: PathBuf,
    dir: PathBuf,
    log: Option<PathBuf>,
    log_file: Option<PathBuf>,
    metrics: Option<metrics::MetricsAddress>,
    metrics_files: usize,
    /// Whether to go on without members that are missing.
    degraded: bool,
    options: String,
    settings: MountSettings,
}

impl Plan {
    fn new(arguments: &Arguments) -> Result<Self> {
        let absolute = |path: &Path| {
            std::path::absolute(path).map_err(|error| Failure::system("find", path, &error))
        };
        let given = arguments.options.join(",");
        let (mut log, mut log_file, mut metrics, mut metrics_files, mut rest) =
            (None, None, None, 0, Vec::new());
        let mut degraded = false;
        for option in given.split(',').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("log", path)) => log = Some(absolute(Path::new(path))?),
                Some(("logfile", path)) => log_file = Some(absolute(Path::new(path))?),
                Some(("metrics", place)) => metrics = Some(place.parse()?),
                Some(("metrics-files", number)) => metrics_files = metrics::files(number)?,
                None if option == "degraded" => degraded = true,
                _ if !is_mount_option(option.split('=').next().unwrap_or(option).trim()) => {
                    return Err(unknown_mount_option(option.trim(), &OPTIONS).into());
                }
                _ => rest.push(option),
            }
        }
        if metrics_files > 0 && metrics.is_none() {
            return Err(Failure::usage(
                "mount option 'metrics-files' counts with 'metrics=' only: say where metrics are asked for",
            ));
        }
        let mut settings = MountSettings::parse(&rest.join(","))?;
        if degraded && !settings.is_read_only() {
            let what = "degraded goes with ro, which writes to no member: to go on without the missing ones for good, run";
            return Err(Failure::usage(format!(
                "-o {what} 'bedplate volume import --degraded' first"
            )));
        }
        let volume = group::resolve(&arguments.path)?
            .canonicalize()
            .map_err(|error| Failure::system("find the volume", &arguments.path, &error))?;
        // By its source the other commands find out where a volume is mounted.
        settings.source.get_or_insert_with(|| volume.to_string_lossy().into_owned());
        Ok(Self {
            volume,
            dir: mount_point(&arguments.dir)?,
            log,
            log_file,
            metrics,
            metrics_files,
            degraded,
            options: given,
            settings,
        })
    }

    /// Returns the command line of the daemon, whose working directory is another.
    fn for_daemon(&self, verbose: u8) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = ["mount", "--daemon-child"].map(OsString::from).into();
        let absolute = |name: &str, path: &Option<PathBuf>| {
            path.as_ref().map(|path| format!(",{name}={}", path.display())).unwrap_or_default()
        };
        if !self.options.is_empty() {
            // What is said last counts: the absolute paths stand behind the ones given.
            let (log, log_file) = (absolute("log", &self.log), absolute("logfile", &self.log_file));
            let metrics =
                self.metrics.as_ref().map(|place| format!(",metrics={place}")).unwrap_or_default();
            arguments
                .extend(["-o".into(), format!("{}{log}{log_file}{metrics}", self.options).into()]);
        }
        arguments.extend((0..verbose).map(|_| "-v".into()));
        arguments.extend(["--".into(), self.volume.clone().into(), self.dir.clone().into()]);
        arguments
    }
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

/// Takes the signals that end a mount from now on, so that none that comes during recovery kills it halfway.
fn signals() -> Result<Signals> {
    Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| Failure::new("io", format!("cannot take signals: {error}")))
}

/// A mount that is being served.
struct Serving {
    mount: Arc<Mount>,
    mounted: Mounted,
    /// Answers the `volume` commands, where the volume is a group.
    listening: Option<Listening>,
    /// Answers Prometheus, where that was asked for.
    metrics: Option<metrics::Serving>,
    group: Option<Group>,
}

impl Serving {
    fn start(plan: &Plan, output: &Output) -> Result<Self> {
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
                fs.unmount()?;
                Err(failure)
            }
        }
    }

    fn serve(plan: &Plan, fs: &FileSystem, group: Option<Group>) -> Result<Self> {
        let listening = group.as_ref().map(|group| control::listen(group, fs)).transpose()?;
        let metrics = plan
            .metrics
            .as_ref()
            .map(|place| metrics::serve(place, plan.metrics_files, fs, group.as_ref()))
            .transpose()?;
        let mounted = summarize(fs, plan);
        let mount = Mount::start(fs.clone(), &plan.dir, &plan.settings)?;
        Ok(Self { mount: Arc::new(mount), mounted, listening, metrics, group })
    }

    /// Serves until it is unmounted or a signal asks for that, and everything is durable.
    fn until_unmounted(mut self, mut signals: Signals) -> Result<()> {
        let handle = signals.handle();
        let mount = Arc::clone(&self.mount);
        let watcher = std::thread::spawn(move || {
            let mut ending = None;
            for _signal in signals.forever() {
                if ending.is_some() {
                    tracing::warn!(
                        "{} is being unmounted already: wait until everything is durable",
                        mount.mountpoint().display()
                    );
                }
                let mount = Arc::clone(&mount);
                ending.get_or_insert_with(|| std::thread::spawn(move || end(&mount)));
            }
        });
        let ended = self.mount.wait();
        drop(self.metrics.take());
        handle.close();
        watcher.join().map_err(|_| Failure::new("io", "the thread that takes signals died"))?;
        drop(self.listening);
        // Not left to the last holder: a thread that is ending may be that, and not get to it
        // before the process ends.
        let closed = device::close(self.group);
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

/// Unmounts because a signal asked for it: programs that still use the mount are named and cut off, but what was written is made durable.
fn end(mount: &Mount) {
    let Err(error) = mount.unmount() else { return };
    if mount.is_live() {
        tracing::warn!("{error}; a signal ends the mount all the same");
        if let Err(error) = mount.force_unmount() {
            tracing::error!("{error}");
        }
    }
}

fn summarize(fs: &FileSystem, plan: &Plan) -> Mounted {
    let info = fs.info();
    Mounted {
        volume: plan.volume.clone(),
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
        let guide = include_str!("../../../../docs/guide/mount.md");
        let (help, refusal) =
            (options_help(), unknown_mount_option("frobnicate", &OPTIONS).message);
        for option in
            mount_options().map(|(option, _)| option).chain(OPTIONS.iter().map(ToString::to_string))
        {
            let name = option.split_inclusive('=').next().unwrap_or_default();
            assert!(help.contains(&format!("\n{option}: ")), "help lacks {option}");
            assert!(refusal.contains(&format!(" {name}")), "the error lacks {name}");
            assert!(guide.contains(&format!("`{name}")), "docs/guide/mount.md lacks {name}");
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
