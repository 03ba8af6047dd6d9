//! From the bytes of a call to those of its reply.

use std::sync::Arc;

use super::data::TRANSFER_BYTES_MAX;
use super::handle::HANDLE_BYTES_MAX;
use super::link::{Link, Links};
use super::lock_calls::{self, NLM, NSM};
use super::mount::{self, Mounts};
use super::replies::{Identity, Replies};
use super::request;
use super::rpc::{self, Call, Head};
use super::tree::Tree;
use super::xdr::{Garbage, Reader};

/// The most bytes of a call: those of the largest write, and what stands before them.
pub const CALL_BYTES_MAX: usize = TRANSFER_BYTES_MAX + 8192;

const NULL: u32 = 0;
const READ: u32 = 6;

/// What one server serves, to all its clients.
#[derive(Debug)]
pub struct Service {
    pub tree: Tree,
    mounts: Mounts,
    links: Links,
    replies: Replies,
}

impl Service {
    pub fn new(tree: Tree) -> Self {
        Self {
            tree,
            mounts: Mounts::default(),
            links: Links::default(),
            replies: Replies::default(),
        }
    }

    /// Answers a call; nothing that is no call, and nothing on a connection that has to end: its
    /// place has another, or its client's locks were of a mount that is gone.
    pub fn answer(&self, link: &Arc<Link>, record: &[u8]) -> Result<Vec<u8>, Garbage> {
        let mut from = Reader::new(record);
        let call = match Head::read(&mut from)? {
            Head::Call(call) => call,
            Head::OtherVersion(xid) => return Ok(rpc::other_rpc(xid).0),
        };
        let arguments = from.rest();
        if (call.program, call.version, call.procedure)
            == (NSM, lock_calls::NSM_VERSION, lock_calls::MON)
        {
            // It may wait for the requests of another connection.
            return Ok(self.monitor(link, call.xid, arguments));
        }
        let _under_way = link.begin().ok_or(Garbage)?;
        let mount = link.mount();
        if mount.is_some() && self.tree.mount_number().is_some_and(|now| mount != Some(now)) {
            return Err(Garbage);
        }
        let is_once = match call.program {
            request::PROGRAM => {
                call.version == request::VERSION && request::is_once(call.procedure)
            }
            NLM => lock_calls::is_once(call.procedure),
            _ => false,
        };
        if is_once {
            let identity = Identity::of(link.peer, call.xid, record);
            return Ok(self.replies.get(identity, || self.carry_out(link, call, arguments)));
        }
        Ok(self.carry_out(link, call, arguments))
    }

    fn monitor(&self, link: &Arc<Link>, xid: u32, arguments: &[u8]) -> Vec<u8> {
        let mut out = rpc::accepted(xid);
        match lock_calls::monitor(&self.tree, (link, &self.links), arguments, &mut out) {
            Ok(()) => out.0,
            Err(Garbage) => rpc::garbage(xid).0,
        }
    }

    fn carry_out(&self, link: &Link, call: Call, arguments: &[u8]) -> Vec<u8> {
        let Call { xid, program, version, procedure, user } = call;
        let (known, is_known) = match program {
            request::PROGRAM => (request::VERSION, procedure < request::PROCEDURE_COUNT),
            mount::PROGRAM => (mount::VERSION, procedure < mount::PROCEDURE_COUNT),
            NLM => (lock_calls::NLM_VERSION, lock_calls::is_known(procedure)),
            NSM => (lock_calls::NSM_VERSION, procedure == NULL),
            _ => return rpc::no_program(xid).0,
        };
        if version != known {
            return rpc::other_version(xid, known).0;
        }
        if !is_known {
            return rpc::no_procedure(xid).0;
        }
        let mut out = rpc::accepted(xid);
        if procedure == NULL {
            return out.0;
        }
        let user = match user {
            Ok(user) => self.tree.rights.users.map(user),
            Err(status) => return rpc::denied(xid, status).0,
        };
        let done = match program {
            mount::PROGRAM => {
                let peer = link.peer;
                mount::run(&self.tree, &self.mounts, peer, &user, procedure, arguments, &mut out)
            }
            NLM => lock_calls::run(&self.tree, link, &user, procedure, arguments, &mut out),
            _ => request::run((&self.tree, link.mount()), &user, procedure, arguments, &mut out),
        };
        match done {
            Ok(()) => out.0,
            Err(Garbage) => rpc::garbage(xid).0,
        }
    }
}

/// Returns how many bytes the reply to a call may have.
pub fn reply_bytes_max(record: &[u8]) -> usize {
    /// All but data and listings.
    const SMALL: usize = 6144;
    /// Listings, with what the reply begins with.
    const LISTING: usize = (1 << 18) + SMALL;
    let mut from = Reader::new(record);
    let Ok(Head::Call(call)) = Head::read(&mut from) else { return SMALL };
    let mut asked = || -> Result<usize, Garbage> {
        from.opaque(HANDLE_BYTES_MAX)?;
        from.u64()?;
        Ok(from.u32()? as usize)
    };
    match (call.program, call.procedure) {
        (request::PROGRAM, READ) => SMALL + asked().unwrap_or(0).min(TRANSFER_BYTES_MAX),
        (request::PROGRAM, 16 | 17) | (mount::PROGRAM, 2) => LISTING,
        _ => SMALL,
    }
}
