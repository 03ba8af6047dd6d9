//! Locks over the network: NLM version 4, and of NSM what says whose connection it is.
//!
//! A lock that is not free is denied at once, also where the client would wait: it asks again. A
//! server that calls back would need to know where, and the client a port that is open to the server.

use std::fs::File;
use std::io;
use std::sync::Arc;

use bedplate_block::FileHandle;
pub use bedplate_nfs::wire::locks::{
    CANCEL, FREE_ALL, LOCK, MON, NLM, NLM_VERSION, NM_LOCK, NSM, NSM_VERSION, TEST, UNLOCK,
};
use bedplate_nfs::wire::locks::{COOKIE_BYTES_MAX, Monitored, SECRET_BYTES, Stat, Target};
use rustix::fs::{Access, FileType, OFlags};
use rustix::io::Errno;

use super::data;
use super::identity::User;
use super::link::{Bound, Link, Links};
use super::locks::{Asked, Owner, SessionId};
use super::request::Request;
use super::status::{Failure, Status};
use super::tree::{Node, Tree};
use super::xdr::{Garbage, Reader, Writer};

/// Returns whether NLM has a procedure here.
pub fn is_known(procedure: u32) -> bool {
    matches!(procedure, 0 | TEST | LOCK | CANCEL | UNLOCK | NM_LOCK | FREE_ALL)
}

/// Returns whether a request that comes again must not be carried out again: an unlock would free
/// what was locked since.
pub fn is_once(procedure: u32) -> bool {
    matches!(procedure, LOCK | UNLOCK | NM_LOCK | FREE_ALL)
}

/// Carries out NSM's procedure that makes a connection a client's.
pub fn monitor(
    tree: &Tree,
    (link, links): (&Arc<Link>, &Links),
    arguments: &[u8],
    out: &mut Writer,
) -> Result<(), Garbage> {
    let monitored = Monitored::read(&mut Reader::new(arguments))?;
    let bound = tree.attached().ok().and_then(|live| {
        let client = session_id(&monitored);
        let state = link.bind(&live, client, monitored.name).ok().flatten()?;
        links.put(link, client, monitored.place);
        Some(state)
    });
    out.u32(u32::from(bound.is_none()));
    out.u32(bound.unwrap_or(0));
    Ok(())
}

/// Returns by what a client is known, which no other can tell.
fn session_id(monitored: &Monitored<'_>) -> SessionId {
    let mut hasher = blake3::Hasher::new();
    let secret: &[u8; SECRET_BYTES] = &monitored.secret;
    hasher.update(secret).update(monitored.name);
    let mut id = SessionId::default();
    let len = id.len();
    id.copy_from_slice(&hasher.finalize().as_bytes()[..len]);
    id
}

/// Carries out a procedure of NLM and writes its result.
pub fn run(
    tree: &Tree,
    link: &Link,
    user: &User,
    procedure: u32,
    arguments: &[u8],
    out: &mut Writer,
) -> Result<(), Garbage> {
    let mut from = Reader::new(arguments);
    if procedure == FREE_ALL {
        return free_all(tree, link, &mut from);
    }
    out.opaque(from.opaque(COOKIE_BYTES_MAX)?);
    let call = Call { tree, user, bound: link.bound() };
    let stat = match procedure {
        TEST => return call.test(&mut from, out),
        CANCEL => {
            // Whether it waits, and the kind; nothing is kept of a lock that was denied.
            let _kept = (from.bool()?, from.bool()?, Target::read(&mut from)?);
            Stat::Granted
        }
        UNLOCK => call.unlock(&mut from)?,
        _ => call.lock(&mut from)?,
    };
    out.u32(stat as u32);
    Ok(())
}

fn free_all(tree: &Tree, link: &Link, from: &mut Reader<'_>) -> Result<(), Garbage> {
    let name = from.opaque(bedplate_nfs::wire::locks::CALLER_BYTES_MAX)?;
    let _state = from.u32()?;
    let bound = link.bound().filter(|bound| bound.name == name);
    if let (Some(bound), Ok(live)) = (bound, tree.attached())
        && live.number == bound.mount
    {
        live.locks.free_all(bound.client);
    }
    Ok(())
}

/// A call of a user over a connection.
struct Call<'a> {
    tree: &'a Tree,
    user: &'a User,
    bound: Option<Bound>,
}

/// What a call leads to.
struct Found<'a> {
    request: Request<'a>,
    file: FileHandle,
    node: Option<Node>,
    owner: Owner,
}

impl<'a> Call<'a> {
    /// Finds the file and the owner of a call. A file that is gone has locks to be given back, too.
    fn find(&self, target: &Target<'_>) -> Result<Found<'a>, Stat> {
        let bound = self.bound.as_ref().filter(|bound| bound.name == target.caller);
        let bound = bound.ok_or(Stat::NoLocks)?;
        let live = self.tree.attached().map_err(stat_of)?;
        if live.number != bound.mount {
            // The connection ends with the next request.
            return Err(Stat::Grace);
        }
        let request = Request { tree: self.tree, live, user: self.user };
        let file = request.key().unseal(target.handle).map_err(|status| stat_of(status.into()))?;
        let node = request.live.node(file.clone()).ok();
        let (session, process) = (bound.client, target.process);
        let owner = Owner { session, name: target.owner.to_vec(), process };
        Ok(Found { request, file, node, owner })
    }

    fn lock(&self, from: &mut Reader<'_>) -> Result<Stat, Garbage> {
        let (_waits, is_exclusive) = (from.bool()?, from.bool()?);
        let target = Target::read(from)?;
        let (is_reclaim, _state) = (from.bool()?, from.u32()?);
        let lock = || -> Result<Stat, Stat> {
            let range = target.range().ok_or(Stat::TooLarge)?;
            let found = self.find(&target)?;
            let node = found.lockable(is_exclusive)?;
            let Found { request, file, owner, .. } = &found;
            let asked = Asked { owner, file, range: &range, is_exclusive };
            Ok(request.live.locks.lock(asked, is_reclaim, || open(node)))
        };
        Ok(lock().unwrap_or_else(|stat| stat))
    }

    fn unlock(&self, from: &mut Reader<'_>) -> Result<Stat, Garbage> {
        let target = Target::read(from)?;
        let unlock = || -> Result<Stat, Stat> {
            let range = target.range().ok_or(Stat::TooLarge)?;
            let Found { request, file, owner, .. } = self.find(&target)?;
            Ok(request.live.locks.unlock(&owner, &file, &range))
        };
        Ok(unlock().unwrap_or_else(|stat| stat))
    }

    fn test(&self, from: &mut Reader<'_>, out: &mut Writer) -> Result<(), Garbage> {
        let is_exclusive = from.bool()?;
        let target = Target::read(from)?;
        let test = || {
            let range = target.range().ok_or(Stat::TooLarge)?;
            let found = self.find(&target)?;
            let node = found.lockable(is_exclusive)?;
            let Found { request, file, owner, .. } = &found;
            let asked = Asked { owner, file, range: &range, is_exclusive };
            request.live.locks.find(asked, || open(node))
        };
        match test() {
            Ok(None) => out.u32(Stat::Granted as u32),
            Ok(Some(holder)) => {
                out.u32(Stat::Denied as u32);
                holder.write(out);
            }
            // With this one a holder would follow.
            Err(stat) => out.u32(if stat == Stat::Denied { Stat::Failed } else { stat } as u32),
        }
        Ok(())
    }
}

impl Found<'_> {
    /// Returns the file where the user may lock it so: shared what it may read, exclusively what it
    /// may write.
    fn lockable(&self, is_exclusive: bool) -> Result<&Node, Stat> {
        let node = self.node.as_ref().ok_or(Stat::Stale)?;
        if node.file_type() != FileType::RegularFile {
            return Err(Stat::Failed);
        }
        if is_exclusive {
            self.request.need_writable().map_err(stat_of)?;
        }
        let access = if is_exclusive { Access::WRITE_OK } else { Access::READ_OK };
        data::need(&self.request, node, access).map_err(stat_of)?;
        Ok(node)
    }
}

/// Opens a file for locks of both kinds, where it can be written.
fn open(node: &Node) -> io::Result<File> {
    let opened = match node.reopen(OFlags::RDWR | OFlags::NONBLOCK) {
        Err(Errno::ROFS | Errno::TXTBSY | Errno::PERM | Errno::ACCESS) => {
            node.reopen(OFlags::RDONLY | OFlags::NONBLOCK)
        }
        opened => opened,
    };
    Ok(File::from(opened?))
}

fn stat_of(failure: Failure) -> Stat {
    match failure {
        Failure::Status(Status::Stale | Status::BadHandle) => Stat::Stale,
        Failure::Status(Status::ReadOnly) => Stat::ReadOnly,
        // It is there again soon.
        Failure::Status(Status::Jukebox) => Stat::Grace,
        Failure::Status(_) | Failure::Garbage => Stat::Failed,
    }
}
