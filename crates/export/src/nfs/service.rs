//! From the bytes of a call to those of its reply.

use std::net::IpAddr;

use super::data::TRANSFER_BYTES_MAX;
use super::handle::HANDLE_BYTES_MAX;
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
    replies: Replies,
}

impl Service {
    pub fn new(tree: Tree) -> Self {
        Self { tree, mounts: Mounts::default(), replies: Replies::default() }
    }

    /// Answers a call; nothing that is no call.
    pub fn answer(&self, peer: IpAddr, record: &[u8]) -> Result<Vec<u8>, Garbage> {
        let mut from = Reader::new(record);
        let call = match Head::read(&mut from)? {
            Head::Call(call) => call,
            Head::OtherVersion(xid) => return Ok(rpc::other_rpc(xid).0),
        };
        let arguments = from.rest();
        if call.program == request::PROGRAM
            && call.version == request::VERSION
            && request::is_once(call.procedure)
        {
            let identity = Identity::of(peer, call.xid, record);
            return Ok(self.replies.get(identity, || self.carry_out(peer, call, arguments)));
        }
        Ok(self.carry_out(peer, call, arguments))
    }

    fn carry_out(&self, peer: IpAddr, call: Call, arguments: &[u8]) -> Vec<u8> {
        let Call { xid, program, version, procedure, user } = call;
        let (known, procedures) = match program {
            request::PROGRAM => (request::VERSION, request::PROCEDURE_COUNT),
            mount::PROGRAM => (mount::VERSION, mount::PROCEDURE_COUNT),
            _ => return rpc::no_program(xid).0,
        };
        if version != known {
            return rpc::other_version(xid, known).0;
        }
        if procedure >= procedures {
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
        let done = if program == mount::PROGRAM {
            mount::run(&self.tree, &self.mounts, peer, &user, procedure, arguments, &mut out)
        } else {
            request::run(&self.tree, &user, procedure, arguments, &mut out)
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
