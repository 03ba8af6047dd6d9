//! `bedplate volume import`, also under another name and identity

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use bedplate::{BlockDevice, Group, GroupErrorKind, ImportOptions};
use clap::Args;
use serde::Serialize;

use super::many;
use crate::daemon::control;
use crate::daemon::status::Status;
use crate::device::{self, Access, group, place, renewed};
use crate::failure::{Failure, Result};
use crate::render::output::Output;
use crate::render::{progress, text};

/// Check that a group can be opened here, and let members that came back catch up
///
/// With --new-identity and --as, the devices that are named become a group of their own, under another
/// name: copies of another group's members, or, with --degraded, the half of a mirror that was split
/// off. Group, members and the file system in it get identities that nothing else has, so that both
/// can be open on one host. A power cut leaves what the same command brings to its end. Without --as
/// it gives one image or device that belongs to no group, a copy of another, an identity of its own.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Any member, group:NAME, or where it is mounted; with --new-identity the first device
    group: PathBuf,
    /// With --new-identity the other devices, all that belong to it
    #[arg(requires = "new_identity")]
    others: Vec<PathBuf>,
    /// Go on without members that are missing; from then on they count as failed
    #[arg(long)]
    degraded: bool,
    /// Give it identities that nothing else has
    #[arg(long)]
    new_identity: bool,
    /// The name that the group gets
    #[arg(long = "as", value_name = "NAME", requires = "new_identity")]
    name: Option<String>,
    /// The device that holds the intent log, where the file system has it on one outside of the group
    #[arg(long, value_name = "PATH", requires = "new_identity")]
    log: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Renewed {
    /// The group, where it is one.
    #[serde(flatten)]
    status: Option<Status>,
    #[serde(serialize_with = "text::readable")]
    path: PathBuf,
    /// The identity of the file system, where there is one.
    uuid: Option<String>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    if arguments.new_identity {
        return output.show(&renew(arguments, output)?);
    }
    if let Some(found) = group::divided(&arguments.group)? {
        return many::import(&found, arguments.degraded, output);
    }
    let located = group::named(&arguments.group)?;
    let group = group::open(&located, Access::ReadWrite, arguments.degraded)?;
    control::lend_unmounted(&group);
    progress::during(output, "bringing members up to date", || group.sync())?;
    output.show(&Status::of(&group))
}

fn renew(arguments: &Arguments, output: &Output) -> Result<Renewed> {
    let path = arguments.group.clone();
    let log = arguments.log.as_deref();
    match (group::label_of(&path)?, &arguments.name) {
        (Some(_), Some(name)) => {
            let group = open_renewed(arguments, name, output)?;
            control::lend_unmounted(&group);
            progress::during(output, "bringing members up to date", || group.sync())?;
            let log = log.map(|log| device::open(log, Access::ReadWrite)).transpose()?;
            let uuid = progress::during(output, "mounting", || renewed::inside(&group, log))?;
            let status = Some(Status::of(&group));
            device::close(Some(group))?;
            Ok(Renewed { status, path, uuid })
        }
        (None, None) if arguments.others.is_empty() => {
            let log = log.map(|log| device::open(log, Access::ReadWrite)).transpose()?;
            let device = device::open_plain(&path, Access::ReadWrite)?;
            let renew = || renewed::volume(device, log);
            let uuid = Some(progress::during(output, "mounting", renew)?);
            Ok(Renewed { status: None, path, uuid })
        }
        (Some(label), None) => Err(Failure::usage(format!(
            "{} is a member of the group {}: add --as with the name that it gets",
            path.display(),
            label.config.name
        ))),
        (None, _) => Err(Failure::new(
            "not_a_member",
            format!(
                "{} carries no label of a group: name all members of one, or without --as one image \
                 that is no member",
                path.display()
            ),
        )),
    }
}

/// Opens the devices that are named as a group under a new identity; no others are looked for,
/// because those that would be found are the ones that these are copies of.
fn open_renewed(arguments: &Arguments, name: &str, output: &Output) -> Result<Group> {
    let paths = std::iter::once(&arguments.group).chain(&arguments.others);
    let open = |path: &PathBuf| device::open_plain(&place::whole(path)?, Access::ReadWrite);
    let devices: Vec<Arc<dyn BlockDevice>> = paths.map(open).collect::<Result<_>>()?;
    let options =
        ImportOptions { degraded: arguments.degraded, background: false, ..Default::default() };
    let opened = progress::during(output, "giving members their identities", || {
        Group::import_as(&devices, name, &options)
    });
    opened.map_err(|error| {
        let is_missing = matches!(error.kind, GroupErrorKind::Missing | GroupErrorKind::Broken);
        let mut failure = Failure::from(error);
        if is_missing {
            failure.message +=
                " (name all devices of the copy, or add --degraded for the half of a mirror)";
        }
        failure
    })
}

impl fmt::Display for Renewed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(status) = &self.status {
            writeln!(f, "{status}")?;
        }
        match &self.uuid {
            Some(uuid) => {
                write!(f, "{}: the file system's identity is {uuid}", text::name(&self.path))
            }
            None => write!(f, "{}: there is no file system on it", text::name(&self.path)),
        }
    }
}
