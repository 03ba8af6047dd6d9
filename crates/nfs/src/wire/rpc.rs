//! Calls and replies of ONC RPC (RFC 5531), and the users that AUTH_SYS names.

use super::xdr::{Garbage, Reader, Writer};

/// A user as a client names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct User {
    /// The user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}

const VERSION: u32 = 2;
/// The most bytes of a credential or verifier.
const AUTH_BYTES_MAX: usize = 400;
/// The most bytes of a client's name in AUTH_SYS.
const MACHINE_BYTES_MAX: usize = 255;
/// The most further groups in AUTH_SYS.
pub const GROUPS_MAX: usize = 16;

const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;

/// Why a client's credential is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthStatus {
    /// It cannot be read.
    BadCredential = 1,
    /// It is of a kind that is not served.
    TooWeak = 5,
}

/// The head of a call.
#[derive(Debug)]
pub struct Call {
    /// The number by which the client knows the reply.
    pub xid: u32,
    /// Which program is called.
    pub program: u32,
    /// Which version of it.
    pub version: u32,
    /// Which procedure.
    pub procedure: u32,
    /// The user that the client names; none with AUTH_NONE.
    pub user: Result<Option<User>, AuthStatus>,
}

/// What begins a record.
#[derive(Debug)]
pub enum Head {
    /// A call.
    Call(Call),
    /// A call of another version of RPC itself.
    OtherVersion(u32),
}

impl Head {
    /// Reads the head of a call; the arguments are what the reader has left.
    ///
    /// # Errors
    /// What is no call.
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
    if count as usize > GROUPS_MAX {
        return Err(Garbage);
    }
    let groups = (0..count).map(|_| from.u32()).collect::<Result<_, _>>()?;
    Ok(User { uid, gid, groups })
}

/// Begins a reply to a call that was accepted: what follows is the result.
#[must_use]
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
#[must_use]
pub fn no_program(xid: u32) -> Writer {
    accepted_as(xid, 1)
}

/// Returns the reply to a call of another version of a program.
#[must_use]
pub fn other_version(xid: u32, version: u32) -> Writer {
    let mut out = accepted_as(xid, 2);
    out.u32(version);
    out.u32(version);
    out
}

/// Returns the reply to a call of a procedure that is not there.
#[must_use]
pub fn no_procedure(xid: u32) -> Writer {
    accepted_as(xid, 3)
}

/// Returns the reply to a call whose arguments cannot be read.
#[must_use]
pub fn garbage(xid: u32) -> Writer {
    accepted_as(xid, 4)
}

/// Returns the reply to a call of another version of RPC.
#[must_use]
pub fn other_rpc(xid: u32) -> Writer {
    let mut out = Writer::default();
    for word in [xid, 1, 1, 0, VERSION, VERSION] {
        out.u32(word);
    }
    out
}

/// Returns the reply to a call whose credential is refused.
#[must_use]
pub fn denied(xid: u32, status: AuthStatus) -> Writer {
    let mut out = Writer::default();
    for word in [xid, 1, 1, 1, status as u32] {
        out.u32(word);
    }
    out
}

/// The head of a call that is to be made.
#[derive(Debug, Clone, Copy)]
pub struct Calling<'a> {
    /// Which program is called.
    pub program: u32,
    /// Which version of it.
    pub version: u32,
    /// Which procedure.
    pub procedure: u32,
    /// As which user, by AUTH_SYS; none with AUTH_NONE.
    pub user: Option<&'a User>,
}

impl Calling<'_> {
    /// Writes the head; the arguments follow. A user's groups are told as far as AUTH_SYS takes
    /// them.
    pub fn write(&self, out: &mut Writer, xid: u32) {
        for word in [xid, 0, VERSION, self.program, self.version, self.procedure] {
            out.u32(word);
        }
        match self.user {
            None => (0..2).for_each(|_| out.u32(0)),
            Some(user) => {
                out.u32(AUTH_SYS);
                let mut body = Writer::default();
                body.u32(0);
                body.opaque(b"bedplate");
                body.u32(user.uid);
                body.u32(user.gid);
                let groups = &user.groups[..user.groups.len().min(GROUPS_MAX)];
                body.u32(groups.len() as u32);
                groups.iter().for_each(|group| body.u32(*group));
                out.opaque(&body.0);
            }
        }
        // No verifier.
        (0..2).for_each(|_| out.u32(0));
    }
}

/// Why a call was not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denial {
    /// The server has no such program.
    NoProgram,
    /// It has other versions of it.
    OtherVersion,
    /// The program has no such procedure.
    NoProcedure,
    /// It could not read the arguments.
    Garbage,
    /// It does not serve this user.
    User,
    /// It says something else.
    Other,
}

/// What begins a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHead {
    /// The number of the call.
    pub xid: u32,
    /// Whether it was carried out.
    pub outcome: Result<(), Denial>,
}

impl ReplyHead {
    /// Reads the head of a reply; the result is what the reader has left.
    ///
    /// # Errors
    /// What is no reply.
    pub fn read(from: &mut Reader<'_>) -> Result<Self, Garbage> {
        let xid = from.u32()?;
        if from.u32()? != 1 {
            return Err(Garbage);
        }
        let outcome = match from.u32()? {
            0 => {
                // The verifier has no meaning with either flavour.
                from.u32()?;
                from.opaque(AUTH_BYTES_MAX)?;
                match from.u32()? {
                    0 => Ok(()),
                    1 => Err(Denial::NoProgram),
                    2 => Err(Denial::OtherVersion),
                    3 => Err(Denial::NoProcedure),
                    4 => Err(Denial::Garbage),
                    _ => Err(Denial::Other),
                }
            }
            1 => match from.u32()? {
                1 => Err(Denial::User),
                _ => Err(Denial::Other),
            },
            _ => return Err(Garbage),
        };
        Ok(Self { xid, outcome })
    }
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

    #[test]
    fn what_is_called_is_read_as_it_was_meant_and_so_are_replies() {
        let user = User { uid: 7, gid: 8, groups: (0..20).collect() };
        let mut out = Writer::default();
        Calling { program: 100_003, version: 3, procedure: 6, user: Some(&user) }
            .write(&mut out, 5);
        out.u32(99);
        let mut reader = Reader::new(&out.0);
        let Ok(Head::Call(call)) = Head::read(&mut reader) else { panic!("it is a call") };
        assert_eq!((call.xid, call.program, call.version, call.procedure), (5, 100_003, 3, 6));
        let told = call.user.unwrap().unwrap();
        assert_eq!((told.uid, told.gid, told.groups.len()), (7, 8, GROUPS_MAX));
        assert_eq!(reader.u32(), Ok(99));
        let head = |bytes: &[u8]| ReplyHead::read(&mut Reader::new(bytes));
        for (reply, outcome) in [
            (accepted(5), Ok(())),
            (no_program(5), Err(Denial::NoProgram)),
            (other_version(5, 4), Err(Denial::OtherVersion)),
            (no_procedure(5), Err(Denial::NoProcedure)),
            (garbage(5), Err(Denial::Garbage)),
            (denied(5, AuthStatus::TooWeak), Err(Denial::User)),
            (other_rpc(5), Err(Denial::Other)),
        ] {
            assert_eq!(head(&reply.0), Ok(ReplyHead { xid: 5, outcome }));
            assert!(head(&reply.0[..reply.0.len().min(12)]).is_err());
        }
        assert!(head(&out.0).is_err(), "a call is no reply");
    }
}
