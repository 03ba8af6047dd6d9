//! The mount whose daemon has a group open.

use std::path::PathBuf;

use bedplate::MemberState;
use bedplate_serve::control::{GroupRequest, Request, Serving};
use serde::Deserialize;

use super::find::{Located, source};
use crate::device::place;
use crate::mount::{self, Mount, live};

/// Returns the mount whose daemon has a group open; `None` where none has that can be reached from
/// here.
pub fn mount_of(located: &Located) -> Option<Mount> {
    let source = PathBuf::from(source(located));
    let is_listed = |mount: &Mount| {
        mount.source == source || located.members.iter().any(|(path, _)| *path == mount.source)
    };
    // Most are listed under the group; 'fsname=' gives others another name.
    let (listed, others): (Vec<Mount>, Vec<Mount>) =
        mount::ours().ok()?.into_iter().partition(is_listed);
    let id = located.config.id.to_string();
    listed.into_iter().chain(others).find(|mount| {
        match live::ask::<Serving>(mount, &Request::Serving) {
            Ok(serving) => serving.group.as_ref() == Some(&id),
            // That of another user is named, so that the request tells why it is refused.
            Err(failure) => failure.kind == "not_permitted" && is_listed(mount),
        }
    })
}

/// Returns whether the daemon of a mount has the group open.
pub fn is_open(located: &Located) -> bool {
    mount_of(located).is_some()
}

/// The part of the answer to a question for a group's status that is needed here.
#[derive(Deserialize)]
struct StatusAnswer {
    #[serde(rename = "Status")]
    status: Members,
}

#[derive(Deserialize)]
struct Members {
    members: Vec<Member>,
}

#[derive(Deserialize)]
struct Member {
    path: PathBuf,
    state: String,
}

/// Returns the path of a member that holds what it should, of the group that a mount lies on;
/// `None` where it lies on none, or its daemon does not tell this user.
pub fn member_of(mount: &Mount) -> Option<PathBuf> {
    let ask = GroupRequest::Status { reset: false };
    let told: StatusAnswer = live::ask(mount, &Request::Group { ask }).ok()?;
    let is_active =
        |member: &Member| member.state == MemberState::Active.name() && place::exists(&member.path);
    told.status.members.into_iter().find(is_active).map(|member| member.path)
}
