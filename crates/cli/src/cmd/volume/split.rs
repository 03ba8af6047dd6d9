//! `bedplate volume split`

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate::BlockDevice;
use bedplate_serve::control::GroupRequest;
use clap::Args;
use serde::Serialize;

use super::change::{id_of, index_of};
use crate::daemon::control::{self, Reply};
use crate::daemon::halves;
use crate::daemon::status::Status;
use crate::device::group::{self, Located, holder};
use crate::device::{self, Access, renewed};
use crate::failure::{Failure, Result};
use crate::mount::{Mount, live};
use crate::render::output::Output;

/// How long a mount may take to let go of the devices that it gave away.
const RELEASE: Duration = Duration::from_secs(20);
/// How often it is looked whether it has.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Make one whole copy of a mirror a group of its own, mounted or not
///
/// Takes one member of every mirror, all in sync. Of a mounted group the half holds what was written
/// before, as a power cut at one moment would leave it. Both remember what they write from then on,
/// so that 'volume join' copies no more than that. The half gets identities of its own and can be
/// mounted at once. Cut short, the same command ends it.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Any member, group:NAME, or where it is mounted
    group: PathBuf,
    /// The members that leave: their paths, or their numbers as 'volume show --json' tells them
    #[arg(required = true)]
    devices: Vec<String>,
    /// The name that the half gets
    #[arg(long = "as", value_name = "NAME")]
    name: String,
}

#[derive(Debug, Serialize)]
struct Parted {
    group: Status,
    half: Status,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let located = group::named(&arguments.group)?;
    super::many::refuse_part(
        &located,
        "a split",
        "clone files of it, or split a group of one volume",
    )?;
    let mount = holder::mount_of(&located);
    let is_cut = located
        .config
        .split
        .as_ref()
        .is_some_and(|split| split.name == arguments.name && !split.joins);
    if is_cut {
        return end(&located, arguments, mount.as_ref(), output);
    }
    let members = arguments
        .devices
        .iter()
        .map(|name| index_of(&located, name))
        .collect::<Result<Vec<usize>>>()?;
    let leaves = |label: &bedplate::Label| {
        located.config.index_of(label.member).is_some_and(|index| members.contains(&index))
    };
    let paths: Vec<PathBuf> = located
        .members
        .iter()
        .filter(|(_, label)| leaves(label))
        .map(|(path, _)| path.clone())
        .collect();
    if let Some(mount) = &mount {
        stir(mount)?;
    }
    let request = GroupRequest::Split {
        members: members.iter().map(|member| id_of(&located, *member)).collect(),
        name: arguments.name.clone(),
    };
    let Reply::Status(group) = control::request(&located, &request)? else {
        return Err(Failure::new("io", "the answer is not that of a status"));
    };
    let devices = free(&paths, mount.as_ref())?;
    drop(devices);
    show(*group, &paths, output)
}

fn show(group: Status, paths: &[PathBuf], output: &Output) -> Result<()> {
    let half = group::named(paths.first().map_or(Path::new(""), PathBuf::as_path))?;
    output.show(&Parted { group, half: Status::from_config(&half.config) })
}

/// Has the kernel hand over what it holds of a mount, and the mount look at its devices.
fn stir(mount: &Mount) -> Result<()> {
    let failed = |error: std::io::Error| Failure::system("sync", &mount.dir, &error);
    let dir = std::fs::File::open(&mount.dir).map_err(failed)?;
    bedplate_block::sync_file_system(&dir).map_err(failed)
}

/// Waits until no process holds the devices of the half, and returns them.
fn free(paths: &[PathBuf], mount: Option<&Mount>) -> Result<Vec<Arc<dyn BlockDevice>>> {
    let start = Instant::now();
    loop {
        let opened = paths.iter().map(|path| device::open_plain(path, Access::ReadWrite));
        match opened.collect::<Result<Vec<_>>>() {
            Err(failure) if failure.kind == "busy" && mount.is_some() => {
                if start.elapsed() >= RELEASE {
                    return Err(Failure::new(
                        "busy",
                        "the half is split off, and the mount of the group still holds its devices: \
                         they are free once it was used a little, or unmounted",
                    ));
                }
                mount.map_or(Ok(()), stir)?;
                std::thread::sleep(POLL_INTERVAL);
            }
            opened => return opened,
        }
    }
}

/// Ends a split that was cut short: the half gets the labels and the identity that it lacks.
fn end(
    located: &Located,
    arguments: &Arguments,
    mount: Option<&Mount>,
    output: &Output,
) -> Result<()> {
    let name = &arguments.name;
    let identity = match mount {
        Some(mount) => live::info(mount)?["uuid"].as_str().map(str::to_owned),
        None => {
            let group = group::open(located, Access::ReadWrite, false)?;
            let identity = renewed::identity_of(&group);
            device::close(Some(group))?;
            identity
        }
    };
    let group = Status::from_config(&group::named(&arguments.group)?.config);
    let members = arguments.devices.iter().map(|name| index_of(located, name));
    let members = members.collect::<Result<Vec<usize>>>()?;
    let first = PathBuf::from(&located.config.members[members[0]].path);
    let half = group::named(&first)?;
    if half.config.name != *name {
        return Err(Failure::new(
            "invalid",
            format!("{} is not of the half {name}: name the members that it got", first.display()),
        ));
    }
    let devices = group::claimed(&half, Access::ReadWrite)?;
    let opened = bedplate::Group::import(
        &devices,
        &bedplate::ImportOptions { read_only: true, ..bedplate::ImportOptions::default() },
    )?;
    let is_ended = renewed::identity_of(&opened) != identity || identity.is_none();
    drop(opened);
    if is_ended {
        let group = &located.config.name;
        return Err(Failure::new(
            "exists",
            format!("the half {name} was split off the group {group} already: both can be used"),
        ));
    }
    halves::finish(&devices, name)?;
    drop(devices);
    show(group, &[first], output)
}

impl fmt::Display for Parted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n\n{}", self.group, self.half)
    }
}
