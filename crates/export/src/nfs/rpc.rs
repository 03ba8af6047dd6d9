//! Calls and replies of ONC RPC (RFC 5531), and the users that AUTH_SYS names.

use super::identity::User;
use super::xdr::{Garbage, Reader, Writer};

const VERSION: u32 = 2;
/// The most bytes of a credential or verifier.
const AUTH_BYTES_MAX: usize = 400;
/// The most bytes of a client's name, and the most further groups, in AUTH_SYS.
const MACHINE_BYTES_MAX: usize = 255;
const GROUPS_MAX: u32 = 16;

const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;

/// Why a client's credential is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthStatus {
    BadCredential = 1,
    TooWeak = 5,
}

/// The head of a call.
#[derive(Debug)]
pub struct Call {
    pub xid: u32,
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
    /// The user that the client names; none with AUTH_NONE.
    pub user: Result<Option<User>, AuthStatus>,
}

/// What begins a record.
#[derive(Debug)]
pub enum Head {
    Call(Call),
    /// A call of another version of RPC itself.
    OtherVersion(u32),
}

impl Head {
    /// Reads the head of a call; the arguments are what the reader has left.
    pub fn read(from: &mut Reader<'_>) -> Result<Self, Garbage> {
        let xid = from.u32()?;
        // A reply: nothing here has asked.
        if from.u32()? != 0 {
            return Err(Garbage);
        }
        if from.u32()? != VERSION {
            return Ok(Self::OtherVersion(xid));
        }
        let (program, version, procedure) = (from.u32()?, from.u32()?, from.u32()?);
        let flavor = from.u32()?;
        let user = user(flavor, from.opaque(AUTH_BYTES_MAX)?);
        // The verifier has no meaning with either flavour.
        from.u32()?;
        from.opaque(AUTH_BYTES_MAX)?;
        Ok(Self::Call(Call { xid, program, version, procedure, user }))
    }
}

fn user(flavor: u32, body: &[u8]) -> Result<Option<User>, AuthStatus> {
    match flavor {
        AUTH_NONE => Ok(None),
        AUTH_SYS => {
            let read = system_user(&mut Reader::new(body));
            read.map(Some).map_err(|Garbage| AuthStatus::BadCredential)
        }
        _ => Err(AuthStatus::TooWeak),
    }
}

fn system_user(from: &mut Reader<'_>) -> Result<User, Garbage> {
    let _stamp = from.u32()?;
    let _machine = from.opaque(MACHINE_BYTES_MAX)?;
    let (uid, gid, count) = (from.u32()?, from.u32()?, from.u32()?);
    if count > GROUPS_MAX {
        return Err(Garbage);
    }
    let groups = (0..count).map(|_| from.u32()).collect::<Result<_, _>>()?;
    Ok(User { uid, gid, groups })
}

/// Begins a reply to a call that was accepted: what follows is the result.
pub fn accepted(xid: u32) -> Writer {
    accepted_as(xid, 0)
}

/// Begins a reply to a call that was accepted and cannot be carried out.
fn accepted_as(xid: u32, status: u32) -> Writer {
    let mut out = Writer::default();
    // A reply, accepted, with an empty verifier.
    for word in [xid, 1, 0, AUTH_NONE, 0, status] {
        out.u32(word);
    }
    out
}

/// Returns the reply to a call of a program that is not here.
pub fn no_program(xid: u32) -> Writer {
    accepted_as(xid, 1)
}

/// Returns the reply to a call of another version of a program.
pub fn other_version(xid: u32, version: u32) -> Writer {
    let mut out = accepted_as(xid, 2);
    out.u32(version);
    out.u32(version);
    out
}

/// Returns the reply to a call of a procedure that is not there.
pub fn no_procedure(xid: u32) -> Writer {
    accepted_as(xid, 3)
}

/// Returns the reply to a call whose arguments cannot be read.
pub fn garbage(xid: u32) -> Writer {
    accepted_as(xid, 4)
}

/// Returns the reply to a call of another version of RPC.
pub fn other_rpc(xid: u32) -> Writer {
    let mut out = Writer::default();
    for word in [xid, 1, 1, 0, VERSION, VERSION] {
        out.u32(word);
    }
    out
}

/// Returns the reply to a call whose credential is refused.
pub fn denied(xid: u32, status: AuthStatus) -> Writer {
    let mut out = Writer::default();
    for word in [xid, 1, 1, 1, status as u32] {
        out.u32(word);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(flavor: u32, body: &[u8]) -> Vec<u8> {
        let mut out = Writer::default();
        for word in [9, 0, 2, 100_003, 3, 1, flavor] {
            out.u32(word);
        }
        out.opaque(body);
        out.u32(0);
        out.opaque(b"");
        out.0
    }

    #[test]
    fn a_call_names_its_user_or_none() {
        let mut body = Writer::default();
        body.u32(1);
        body.opaque(b"host");
        for word in [1000, 100, 2, 10, 20] {
            body.u32(word);
        }
        let read = |bytes: &[u8]| match Head::read(&mut Reader::new(bytes)) {
            Ok(Head::Call(call)) => call,
            other => panic!("{other:?}"),
        };
        let user = User { uid: 1000, gid: 100, groups: vec![10, 20] };
        assert_eq!(read(&call(1, &body.0)).user, Ok(Some(user)));
        assert_eq!(read(&call(0, b"")).user, Ok(None));
        assert_eq!(read(&call(6, b"")).user, Err(AuthStatus::TooWeak));
        assert_eq!(read(&call(1, &body.0[..8])).user, Err(AuthStatus::BadCredential));
        assert!(Head::read(&mut Reader::new(&call(1, &[0; 401]))).is_err());
    }
}
