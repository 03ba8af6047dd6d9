//! Talking to the process that has a group open: the daemon of a mount.
//!
//! The daemon listens on an abstract socket named after the group and answers its own user and root: one line of JSON each way. A group that
//! no process has open is opened for the length of the request.

pub mod wire;

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bedplate::{
    FileSystem, Group, GroupConfig, MemberState, MountOptions, PageArbiter, Role, Shape, Target,
    WeakGroup, Which, format_size,
};
use serde::{Deserialize, Serialize};

use crate::daemon::names::Names;
use crate::daemon::scrubbed::Scrubbed;
use crate::daemon::status::Status;
use crate::device::Access;
use crate::device::group::{self, Located, holder};
use crate::device::newcomer::Newcomer;
use crate::failure::{Failure, Result};

/// What is asked of the process that has the group open.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// Tell everything.
    Status {
        /// Set the statistics to zero afterwards.
        reset: bool,
    },
    /// Add a device that waits for a member to fail.
    Spare(Newcomer),
    /// Put a device in the place of a member, which its identity names.
    Replace(String, Newcomer),
    /// Move a member that lies on others to a device of its own.
    Unrelocate(String, Newcomer),
    /// Add a member that brings room.
    Add(Newcomer),
    /// Let a volume become something else, or change how that goes.
    Relayout(RelayoutRequest),
    /// Let go of a member without data.
    Remove(String),
    /// State the largest p99 latency of the foreground during work in the background, in hundredths
    /// of the p99 without it.
    Foreground(u16),
    /// Compare all copies at regular times, in seconds; `None`: not any more.
    ScrubEvery {
        every_s: Option<u64>,
        /// Make copies good that are known to be wrong.
        repair: bool,
    },
    /// Compare all copies.
    Scrub {
        /// Make copies good that are known to be wrong.
        repair: bool,
    },
}

/// What is asked of a relayout.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum RelayoutRequest {
    /// Begin.
    Begin(RelayoutTarget),
    /// Wait, or go on.
    Pause(bool),
    /// Go back.
    Reverse,
}

/// What a volume is to become; what is not said stays as it is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RelayoutTarget {
    /// The volume for the intent log is meant.
    pub log: bool,
    /// The arrangement, by its name.
    pub layout: Option<String>,
    pub columns: Option<usize>,
    pub unit_bytes: Option<u64>,
    pub plexes: Option<usize>,
    pub size_bytes: Option<u64>,
    pub step_bytes_max: Option<u64>,
    /// The identity of a member that gives its data to others.
    #[serde(default)]
    pub without: Option<String>,
    /// Only the size changes, and not downward.
    pub grow: bool,
}

/// What comes back.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The group as it is now.
    Status(Box<Status>),
    /// What a scrub found.
    Scrubbed(Box<Scrubbed>),
    /// It failed.
    Failed(Failure),
}

/// A mounted file system as the listener sees it: gone when the mount is.
type Mounted = Arc<Mutex<Option<FileSystem>>>;

/// The listener of a mount. It answers until this is dropped.
pub struct Listening(Mounted);

impl Drop for Listening {
    fn drop(&mut self) {
        // What is asked from now on is answered without names; the volume can be closed.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    }
}

/// Returns the path of a member that holds what it should of the group that a process has open; `None` where it has none.
pub fn member_of(daemon: i32) -> Option<PathBuf> {
    let active = |member: &&crate::daemon::status::MemberStatus| {
        member.state == MemberState::Active.name() && Path::new(&member.path).exists()
    };
    status_of(daemon)?.members.iter().find(active).map(|member| PathBuf::from(&member.path))
}

/// Returns how the group is that a process has open; `None` where it has none, or does not tell.
pub fn status_of(daemon: i32) -> Option<Status> {
    let table = std::fs::read_to_string("/proc/net/unix").ok()?;
    let ids: std::collections::BTreeSet<&str> = table
        .lines()
        .filter_map(|line| line.rsplit(' ').next()?.strip_prefix('@')?.strip_prefix(holder::NAME))
        .collect();
    let mut streams =
        ids.into_iter().filter_map(|id| UnixStream::connect_addr(&holder::address(id).ok()?).ok());
    let stream = streams.find(|stream| {
        holder::peer_of(stream).is_ok_and(|peer| peer.pid.as_raw_nonzero().get() == daemon)
    })?;
    let Ok(Reply::Status(status)) = wire::ask(stream, &[], &Request::Status { reset: false })
    else {
        return None;
    };
    Some(*status)
}

/// Answers requests for a group from a thread of its own, as long as the process lives.
pub fn listen(group: &Group, fs: &FileSystem) -> Result<Listening> {
    let mounted: Mounted = Arc::new(Mutex::new(Some(fs.clone())));
    let listener = match UnixListener::bind_addr(&holder::address(group.config().id)?) {
        Ok(listener) => listener,
        // The members are claimed, so that process does not have the group open. It must not keep the volume from being mounted.
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            tracing::warn!(
                "another process took the name under which group {} is asked for: 'bedplate volume' does not reach this mount",
                group.config().name
            );
            return Ok(Listening(mounted));
        }
        Err(error) => {
            return Err(Failure::new(
                "io",
                format!("cannot listen for requests: {}", crate::failure::plain(&error)),
            ));
        }
    };
    let slot = Arc::clone(&mounted);
    group.set_arbiter_provider(Some(Arc::new(move || judge_of(&slot))));
    let (weak, slot) = (group.downgrade(), Arc::clone(&mounted));
    let serve = move || {
        for stream in listener.incoming().flatten() {
            let (weak, slot) = (weak.clone(), Arc::clone(&slot));
            // One that cannot be started leaves its caller without an answer, and the caller says so.
            let _started = std::thread::Builder::new()
                .name("bedplate-control".into())
                .spawn(move || answer(stream, &weak, &slot));
        }
    };
    std::thread::Builder::new()
        .name("bedplate-control".into())
        .spawn(serve)
        .map_err(|error| Failure::new("io", format!("cannot listen: {error}")))?;
    Ok(Listening(mounted))
}

/// Looks all names up for a scrub on schedule; nothing once the mount is gone.
fn judge_of(mounted: &Mounted) -> Option<Box<dyn PageArbiter>> {
    let fs = mounted.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()?;
    Names::of(&fs).ok().map(|names| Box::new(names) as _)
}

fn answer(mut stream: UnixStream, group: &WeakGroup, mounted: &Mounted) {
    let reply = match wire::hear(&stream)
        .and_then(|request| Ok((request, group.upgrade().ok_or_else(closing)?)))
    {
        Ok((request, group)) => {
            let fs = mounted.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
            act(&group, fs.as_ref(), &request, &Newcomer::open).unwrap_or_else(Reply::Failed)
        }
        Err(failure) => Reply::Failed(failure),
    };
    // A caller that went away is not told.
    let _told = wire::write(&mut stream, &reply);
}

fn closing() -> Failure {
    Failure::new("busy", "the group is being closed: ask again in a moment")
}

/// Asks the process that has the group open; where none has, opens it for the length of the
/// request.
pub fn request(located: &Located, request: &Request) -> Result<Reply> {
    request_with(located, request, &mut |_, _| ())
}

/// As [`request`], and tells how many bytes of how many a relayout has moved that this process
/// carries out.
pub fn request_with(
    located: &Located,
    request: &Request,
    moved: &mut dyn FnMut(u64, u64),
) -> Result<Reply> {
    if let Ok(stream) = UnixStream::connect_addr(&holder::address(located.config.id)?) {
        return wire::ask(stream, &paths(located), request);
    }
    // A scrub settles what a crash left in doubt, so it opens for writing even where it repairs
    // nothing.
    let access = if matches!(request, Request::Status { .. }) {
        Access::ReadOnly
    } else {
        Access::ReadWrite
    };
    let group = group::open(located, access, false)?;
    // No other process will move it.
    let moves = matches!(
        request,
        Request::Relayout(
            RelayoutRequest::Begin(_) | RelayoutRequest::Pause(false) | RelayoutRequest::Reverse
        )
    );
    let fs = matches!(request, Request::Scrub { .. }).then(|| mount_to_look(&group)).flatten();
    let mut reply = act(&group, fs.as_ref(), request, &Newcomer::open);
    if moves && reply.is_ok() {
        group.run_relayout(&mut |progress| {
            moved(progress.moved_bytes, progress.total_bytes);
            true
        })?;
        reply = Ok(Reply::Status(Box::new(Status::of(&group))));
    }
    if let Some(fs) = fs {
        fs.unmount()?;
    }
    reply
}

/// Asks for the status of a group that a process has open; `None` where none has, or none that may
/// be asked.
pub fn ask_if_open(located: &Located) -> Result<Option<Status>> {
    let Ok(stream) = UnixStream::connect_addr(&holder::address(located.config.id)?) else {
        return Ok(None);
    };
    match wire::ask(stream, &paths(located), &Request::Status { reset: false }) {
        Ok(Reply::Status(status)) => Ok(Some(*status)),
        _ => Ok(None),
    }
}

/// Mounts the group's file system to look names up; `None` where there is none.
fn mount_to_look(group: &Group) -> Option<FileSystem> {
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    FileSystem::mount(group.volume(Role::Data)?, group.volume(Role::Log), options).ok()
}

fn paths(located: &Located) -> Vec<PathBuf> {
    located.members.iter().map(|(path, _)| path.clone()).collect()
}

/// Opens a device that a request names.
pub type Open<'a> = &'a dyn Fn(&Newcomer, &GroupConfig) -> Result<Arc<dyn bedplate::BlockDevice>>;

/// Carries a request out on an open group.
pub fn act(
    group: &Group,
    fs: Option<&FileSystem>,
    request: &Request,
    open_new: Open<'_>,
) -> Result<Reply> {
    let open_new = |new: &Newcomer| open_new(new, &group.config());
    match request {
        Request::Status { .. } => {}
        Request::Spare(new) => group.add_spare(new.arrival(&open_new(new)?))?,
        Request::Add(new) => group.add_member(new.arrival(&open_new(new)?))?,
        Request::Relayout(RelayoutRequest::Begin(target)) => begin(group, fs, target)?,
        Request::Relayout(RelayoutRequest::Pause(pause)) => group.pause_relayout(*pause)?,
        Request::Relayout(RelayoutRequest::Reverse) => group.reverse_relayout()?,
        Request::Replace(member, new) => {
            group.replace(which(member)?, new.arrival(&open_new(new)?))?
        }
        Request::Unrelocate(member, new) => {
            group.unrelocate(which(member)?, new.arrival(&open_new(new)?))?
        }
        Request::Remove(member) => group.remove(which(member)?)?,
        Request::Foreground(limit_percent) => group.set_foreground(*limit_percent)?,
        Request::ScrubEvery { every_s, repair } => {
            group.schedule_scrub(every_s.map(Duration::from_secs), *repair)?
        }
        Request::Scrub { repair } => return scrub(group, fs, *repair),
    }
    let status = Status::of(group);
    if matches!(request, Request::Status { reset: true }) {
        group.reset_statistics();
    }
    Ok(Reply::Status(Box::new(status)))
}

/// Returns which member a request means: by its identity, because its number may be another's by
/// now.
fn which(id: &str) -> Result<Which> {
    Ok(Which::Is(id.parse()?))
}

fn begin(group: &Group, fs: Option<&FileSystem>, target: &RelayoutTarget) -> Result<()> {
    let role = if target.log { Role::Log } else { Role::Data };
    if target.grow {
        return Ok(group.grow(role, target.size_bytes)?);
    }
    let shape = target
        .layout
        .as_ref()
        .and_then(|wanted| Shape::ALL.into_iter().find(|(_, name)| name == wanted))
        .map(|(shape, _)| shape);
    let RelayoutTarget { columns, unit_bytes, plexes, size_bytes, step_bytes_max, .. } = *target;
    // Without anything else that is said, a size is one to shrink to.
    let present = group.config().volume(role).map_or(u64::MAX, bedplate::VolumeConfig::size_bytes);
    if let Some(size) = size_bytes.filter(|size| *size > present) {
        let (size, present) = (format_size(size), format_size(present));
        return Err(Failure::new(
            "invalid",
            format!("the volume has {present}, less than {size}: see 'bedplate volume grow'"),
        ));
    }
    let without = target.without.as_ref().map(|id| which(id)).transpose()?;
    let target = Target { shape, columns, unit_bytes, plexes, size_bytes, step_bytes_max, without };
    // What is mounted must not grow between the question and the answer.
    match fs.filter(|_| role == Role::Data) {
        Some(fs) => Ok(fs.keeping_size(|used_bytes| group.relayout(role, &target, used_bytes))?),
        None => Ok(group.relayout(
            role,
            &target,
            group.volume(role).map_or(Ok(0), |volume| used_bytes(&volume))?,
        )?),
    }
}

/// Returns how much of a volume its file system uses: all but for what it did not grow to. A volume
/// that holds something else is all in use.
fn used_bytes(volume: &Arc<dyn bedplate::BlockDevice>) -> Result<u64> {
    match FileSystem::probe(volume) {
        Ok(report) => Ok(report.size_bytes),
        Err(error) if error.kind == bedplate::ErrorKind::NotAVolume => Ok(volume.size_bytes()),
        Err(error) => Err(error.into()),
    }
}

/// Compares everything; names and page checksums are looked up only where something differs.
fn scrub(group: &Group, fs: Option<&FileSystem>, repair: bool) -> Result<Reply> {
    let config = group.config();
    if !config.volumes.iter().any(|volume| {
        volume.layout.is_redundant()
            || volume.relayout.as_ref().is_some_and(|relayout| relayout.next.is_redundant())
    }) {
        return Err(Failure::new(
            "invalid",
            format!(
                "group {} has one copy of everything: there is nothing to compare",
                config.name
            ),
        ));
    }
    let mut report = group.scrub(repair, &bedplate::Undecided, &mut |_| ())?;
    let mut names = None;
    if report.differences.iter().any(|difference| !difference.repaired) {
        names = fs.map(Names::of).transpose()?;
    }
    if let Some(names) = &names {
        group.scrub_again(repair, names, &mut report)?;
    }
    Ok(Reply::Scrubbed(Box::new(Scrubbed::new(&group.config(), report, names.as_ref()))))
}

#[cfg(test)]
mod tests;
