//! Requests about a group of devices: to the daemon of the mount that has it open, or carried out
//! here.
//!
//! They go through the socket of the mount, like all others ([`bedplate_serve::control`]). A group
//! that no process has open is opened for the length of the request.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bedplate::{
    FileSystem, Group, GroupConfig, MountOptions, PageArbiter, Role, Shape, Target, WeakGroup,
    Which, format_size,
};
use bedplate_serve::control::{
    Answer, GroupHandle, GroupRequest, Newcomer, RelayoutRequest, RelayoutTarget, Request,
};
use serde::{Deserialize, Serialize};

use crate::daemon::halves;
use crate::daemon::names::Names;
use crate::daemon::scrubbed::Scrubbed;
use crate::daemon::status::Status;
use crate::device::Access;
use crate::device::group::{self, Located, holder};
use crate::device::newcomer;
use crate::failure::{Failure, Result};
use crate::mount::{Mount, live};

/// What comes back.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The group as it is now.
    Status(Box<Status>),
    /// What a scrub found.
    Scrubbed(Box<Scrubbed>),
}

/// A mounted file system as scrubs on schedule see it: gone when the mount is.
type Mounted = Arc<Mutex<Option<FileSystem>>>;

/// Lets scrubs on schedule look names up, until this is dropped.
pub struct Naming(Mounted);

impl Drop for Naming {
    fn drop(&mut self) {
        // What is scrubbed from now on is told without names; the volume can be closed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Lets the scrubs of a mounted group look names up, and relayouts and members that are brought up to
/// date ask which copy is right; from then on that goes on in the background.
pub fn lend_names(group: &Group, fs: &FileSystem) -> Result<Naming> {
    let mounted: Mounted = Arc::new(Mutex::new(Some(fs.clone())));
    let slot = Arc::clone(&mounted);
    group.set_arbiter_provider(Some(Arc::new(move || judge_of(&slot))));
    let naming = Naming(mounted);
    group.start_background()?;
    Ok(naming)
}

/// As [`lend_names`], of a group whose file system nothing has mounted, or will: it is looked at where
/// copies differ.
pub fn lend_unmounted(group: &Group) {
    let weak = group.downgrade();
    group.set_arbiter_provider(Some(Arc::new(move || {
        let fs = mount_to_look(&weak.upgrade()?)?;
        Names::of(&fs).ok().map(|names| Box::new(names) as _)
    })));
}

/// Looks all names up for a scrub on schedule; nothing once the mount is gone.
fn judge_of(mounted: &Mounted) -> Option<Box<dyn PageArbiter>> {
    let fs = mounted.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
    Names::of(&fs).ok().map(|names| Box::new(names) as _)
}

/// Returns what answers for a group on the socket of its mount.
pub fn handle(group: &Group) -> GroupHandle {
    let weak: WeakGroup = group.downgrade();
    GroupHandle::new(group.config().id.to_string(), move |request, fs| {
        let group = weak.upgrade().ok_or_else(|| {
            Failure::new("busy", "the group is being closed: ask again in a moment")
        });
        answer_of(group.and_then(|group| act(&group, Some(fs), request, &newcomer::open)))
    })
}

/// Turns a reply into what is sent.
pub fn answer_of(reply: Result<Reply>) -> Answer {
    let sent = reply.and_then(|reply| {
        serde_json::to_value(reply).map_err(|error| {
            Failure::new("io", format!("the answer cannot be written as JSON: {error}"))
        })
    });
    sent.map_or_else(|failure| Answer::Failed(failure.kind, failure.message), Answer::Done)
}

/// Returns how the group is that a mount lies on; `None` where it lies on none, or its daemon does
/// not tell this user.
pub fn status_of(mount: &Mount) -> Option<Status> {
    status(mount).ok()
}

/// Returns how the group is that a mount lies on.
pub fn status(mount: &Mount) -> Result<Status> {
    match ask(mount, &GroupRequest::Status { reset: false })? {
        Reply::Status(status) => Ok(*status),
        Reply::Scrubbed(_) => Err(Failure::new("io", "the answer is not that of a status")),
    }
}

/// Asks the daemon of a mount about the group.
fn ask(mount: &Mount, request: &GroupRequest) -> Result<Reply> {
    live::ask(mount, &Request::Group { ask: request.clone() })
}

/// Asks the process that has the group open; where none has, opens it for the length of the
/// request.
pub fn request(located: &Located, request: &GroupRequest) -> Result<Reply> {
    request_with(located, request, &mut |_, _| ())
}

/// As [`request`], and tells how many bytes of how many a relayout has moved that this process
/// carries out.
pub fn request_with(
    located: &Located,
    request: &GroupRequest,
    moved: &mut dyn FnMut(u64, u64),
) -> Result<Reply> {
    if let Some(mount) = holder::mount_of(located) {
        return ask(&mount, request);
    }
    // A scrub settles what a crash left in doubt, so it opens for writing even where it repairs
    // nothing.
    let access = if matches!(request, GroupRequest::Status { .. }) {
        Access::ReadOnly
    } else {
        Access::ReadWrite
    };
    let group = group::open(located, access, false)?;
    lend_unmounted(&group);
    group.start_background()?;
    // No other process will move it.
    let moves = matches!(
        request,
        GroupRequest::Relayout(
            RelayoutRequest::Begin(_) | RelayoutRequest::Pause(false) | RelayoutRequest::Reverse
        )
    );
    let fs = matches!(request, GroupRequest::Scrub { .. }).then(|| mount_to_look(&group)).flatten();
    let mut reply = act(&group, fs.as_ref(), request, &newcomer::open);
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
pub fn ask_if_open(located: &Located) -> Option<Status> {
    status_of(&holder::mount_of(located)?)
}

/// Mounts the group's file system to look names up; `None` where there is none.
fn mount_to_look(group: &Group) -> Option<FileSystem> {
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    FileSystem::mount(group.volume(Role::Data)?, group.volume(Role::Log), options).ok()
}

/// Opens a device that a request names.
pub type Open<'a> = &'a dyn Fn(&Newcomer, &GroupConfig) -> Result<Arc<dyn bedplate::BlockDevice>>;

/// Carries a request out on an open group.
pub fn act(
    group: &Group,
    fs: Option<&FileSystem>,
    request: &GroupRequest,
    open_new: Open<'_>,
) -> Result<Reply> {
    let open_new = |new: &Newcomer| open_new(new, &group.config());
    match request {
        GroupRequest::Status { .. } => {}
        GroupRequest::Spare(new) => group.add_spare(newcomer::arrival(new, &open_new(new)?))?,
        GroupRequest::Add(new) => group.add_member(newcomer::arrival(new, &open_new(new)?))?,
        GroupRequest::Relayout(RelayoutRequest::Begin(target)) => begin(group, fs, target)?,
        GroupRequest::Relayout(RelayoutRequest::Pause(pause)) => group.pause_relayout(*pause)?,
        GroupRequest::Relayout(RelayoutRequest::Reverse) => group.reverse_relayout()?,
        GroupRequest::Replace(member, new) => {
            group.replace(which(member)?, newcomer::arrival(new, &open_new(new)?))?;
        }
        GroupRequest::Unrelocate(member, new) => {
            group.unrelocate(which(member)?, newcomer::arrival(new, &open_new(new)?))?;
        }
        GroupRequest::Remove(member) => group.remove(which(member)?)?,
        GroupRequest::Split { members, name } => {
            let members = members.iter().map(|id| which(id)).collect::<Result<Vec<_>>>()?;
            halves::split(group, fs, &members, name)?;
        }
        GroupRequest::Foreground(limit_percent) => group.set_foreground(*limit_percent)?,
        GroupRequest::ScrubEvery { every_s, repair } => {
            group.schedule_scrub(every_s.map(Duration::from_secs), *repair)?;
        }
        GroupRequest::Scrub { repair } => return scrub(group, fs, *repair),
    }
    let status = Status::of(group);
    if matches!(request, GroupRequest::Status { reset: true }) {
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
