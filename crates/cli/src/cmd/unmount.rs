//! `bedplate unmount DIR`

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bedplate::FileSystem;
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde::Serialize;

use crate::device::group;
use crate::device::{self, Access};
use crate::failure::{Failure, Result};
use crate::mount::{self, Mount, live};
use crate::render::output::Output;
use crate::render::{progress, text};

/// Unmount a volume; returns once everything is durable and the volume is free again
#[derive(Debug, Args)]
pub struct Arguments {
    /// Where the volume is mounted, or the volume itself
    dir: PathBuf,
    /// Also while programs use it: what was written is made durable, and their calls fail from then
    /// on
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
struct Unmounted {
    dir: PathBuf,
    volume: PathBuf,
    /// Where else it is mounted still, so that it is in use.
    still_mounted_at: Vec<PathBuf>,
    /// Whether the daemon had died before, so that the next mount recovers.
    stale: bool,
    duration_us: u64,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let started = Instant::now();
    let mount = find(&arguments.dir)?;
    let stale = bedplate_serve::fuse::is_dead(&mount.dir);
    // Named by a directory, that alone is meant; by the volume, all that is mounted of it.
    let others: Vec<Mount> =
        mount::places(&mount)?.into_iter().filter(|other| other.dir != mount.dir).collect();
    let is_named = mount::canonical(&arguments.dir).is_ok_and(|dir| dir == mount.dir);
    if is_named && !stale && !others.is_empty() {
        return end_one(mount, &others, arguments.force, started, output);
    }
    others.iter().rev().try_for_each(|other| bedplate_serve::fuse::unmount(&other.dir))?;
    let daemon = if stale { None } else { daemon_of(&mount) };
    let mount = if stale { mount } else { found_later(mount) };
    // A loop device that was detached while it is in use goes with its last user: kept, it can be
    // asked below whether it is clean.
    let _kept = std::fs::File::open(&mount.source);
    match (bedplate_serve::fuse::unmount(&mount.dir), daemon) {
        (Err(error), Some(daemon))
            if arguments.force && error.kind == bedplate_serve::ErrorKind::Busy =>
        {
            kill_process(daemon, Signal::QUIT).map_err(|error| {
                Failure::new("not_permitted", format!("cannot ask the daemon to end: {error}"))
            })?;
        }
        (unmounted, _) => unmounted?,
    }
    if !stale {
        progress::during(output, "making everything durable", || wait(&mount, daemon))?;
        require_clean(&mount)?;
    }
    output.show(&Unmounted {
        dir: mount.dir,
        volume: mount.source,
        still_mounted_at: Vec::new(),
        stale,
        duration_us: micros(started),
    })
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Unmounts one place of a volume that has others, whose daemon goes on.
fn end_one(
    mount: Mount,
    others: &[Mount],
    force: bool,
    started: Instant,
    output: &Output,
) -> Result<()> {
    bedplate_serve::fuse::unmount(&mount.dir).map_err(|error| {
        let mut failure = Failure::from(error);
        if force && failure.kind == "busy" {
            failure.message += "; --force cuts all programs off the volume: name the volume, or a \
                                directory that it alone is mounted on";
        }
        failure
    })?;
    output.show(&Unmounted {
        dir: mount.dir,
        volume: mount.source,
        still_mounted_at: others.iter().map(|other| other.dir.clone()).collect(),
        stale: false,
        duration_us: micros(started),
    })
}

/// Unmounts what is mounted at `dir` and waits until the volume is free; does nothing where nothing
/// is mounted.
pub fn end(dir: &Path) -> Result<()> {
    let Some(mount) = mount::at(&mount::canonical(dir)?)?.filter(Mount::is_ours) else {
        return Ok(());
    };
    let daemon = daemon_of(&mount);
    let mount = found_later(mount);
    bedplate_serve::fuse::unmount(&mount.dir)?;
    wait(&mount, daemon)?;
    require_clean(&mount)
}

fn find(path: &Path) -> Result<Mount> {
    let path = &group::resolve(path)?;
    let dir = mount::canonical(path)?;
    let shown = path.display();
    match mount::at(&dir)? {
        Some(mount) if mount.is_ours() => Ok(mount),
        Some(_) => Err(Failure::new(
            "not_a_mount",
            format!("{shown} is a mount of another file system: use umount(8)"),
        )),
        None => device::of_volume(&dir)?.ok_or_else(|| {
            Failure::new(
                "not_a_mount",
                format!("nothing is mounted at {shown}; findmnt(8) lists the mounts"),
            )
        }),
    }
}

/// Asks the daemon for its process.
fn daemon_of(mount: &Mount) -> Option<Pid> {
    Pid::from_raw(live::process(mount).ok()??)
}

/// Names the volume by what is found when the daemon is gone.
fn found_later(mut mount: Mount) -> Mount {
    mount.source = group::volume_of(&mount);
    mount
}

/// How long an end may take before its users are looked for.
const USERS_NAMED_AFTER: Duration = Duration::from_secs(5);

/// Waits until the daemon is gone or, where it is unknown, until the volume can be had. Fails when
/// copies of the mount keep both.
fn wait(mount: &Mount, daemon: Option<Pid>) -> Result<()> {
    let daemon = daemon.and_then(|daemon| pidfd_open(daemon, PidfdFlags::empty()).ok());
    let mut deadline = Instant::now() + USERS_NAMED_AFTER;
    while !has_ended(daemon.as_ref())? {
        let late = Instant::now() > deadline;
        // In another container the daemon's number may be that of another process: then the volume
        // alone tells.
        if (daemon.is_none() || late) && is_free(mount) {
            break;
        }
        if late {
            require_no_copies(mount)?;
            deadline = Instant::now() + USERS_NAMED_AFTER;
        }
    }
    Ok(())
}

/// Waits a moment for the end of the daemon and returns whether it came.
fn has_ended(daemon: Option<&OwnedFd>) -> Result<bool> {
    let Some(daemon) = daemon else {
        std::thread::sleep(Duration::from_millis(20));
        return Ok(false);
    };
    let moment = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
    match poll(&mut [PollFd::new(daemon, PollFlags::IN)], Some(&moment)) {
        Ok(ended) => Ok(ended > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(Failure::new("io", format!("cannot wait for the daemon: {error}"))),
    }
}

/// Returns whether no process holds the volume any more.
fn is_free(mount: &Mount) -> bool {
    !matches!(device::open(&mount.source, Access::ReadOnly), Err(failure) if failure.kind == "busy")
}

/// Fails when a container that was started while the volume was mounted still has a copy of the
/// mount.
fn require_no_copies(mount: &Mount) -> Result<()> {
    let holders = bedplate_serve::fuse::holders_of(&mount.device);
    if holders.is_empty() {
        return Ok(());
    }
    let (dir, shown) = (mount.dir.display(), holders[..holders.len().min(3)].join(", "));
    let what =
        "is unmounted here, but other mount namespaces still have a copy of the mount, those of";
    Err(Failure::new("busy", format!("{dir} {what} {shown}: the volume is free when they end")))
}

/// Finds out whether the daemon came to a good end: it cannot be asked any more, but the volume
/// tells.
fn require_clean(mount: &Mount) -> Result<()> {
    let probed =
        device::open(&mount.source, Access::ReadOnly).map(|device| FileSystem::probe(&device));
    match probed {
        Ok(Ok(volume)) if !volume.clean && !mount.read_only => {
            let (dir, volume) = (mount.dir.display(), mount.source.display());
            let what = "but its daemon could not make everything durable: its log file (mount \
                        option logfile=) says why, and the next mount recovers";
            Err(Failure::new("unclean", format!("{dir} is unmounted, {what} {volume}")))
        }
        Ok(Err(error)) => Err(error.into()),
        // Another process has it already; its mount tells about a recovery.
        _ => Ok(()),
    }
}

impl fmt::Display for Unmounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dir, volume) = (text::name(&self.dir), text::name(&self.volume));
        if self.stale {
            return write!(
                f,
                "{dir}: left over from a daemon that died, removed; the next mount of {volume} \
                 recovers it"
            );
        }
        if !self.still_mounted_at.is_empty() {
            let others: Vec<String> =
                self.still_mounted_at.iter().map(|other| text::name(other).to_string()).collect();
            return write!(f, "{dir}: unmounted, {volume} stays mounted at {}", others.join(", "));
        }
        write!(
            f,
            "{dir}: unmounted, {volume} is free ({})",
            bedplate::format_duration(Duration::from_micros(self.duration_us))
        )
    }
}
