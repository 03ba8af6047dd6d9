//! One request of NFS version 3: of which user, in which tree, and what every procedure needs.

use std::sync::Arc;

use super::attr;
use super::handle::{HANDLE_BYTES_MAX, Key};
use super::identity::{Acting, User};
use super::status::{Answer, Failure, Status};
use super::tree::{Attached, Node, Tree};
use super::xdr::{Garbage, Reader, Writer};
use super::{data, dirs, names};

/// The number of NFS among programs of RPC, and its version here.
pub use bedplate_nfs::wire::numbers::{NFS as PROGRAM, VERSION};

/// The most bytes of a name.
pub const NAME_BYTES_MAX: usize = 255;
/// The most bytes that the arguments may give a name, so that a longer one is told from garbage.
const NAME_ARGUMENT_MAX: usize = 4096;

/// What carries out a procedure.
type Procedure = fn(&Request<'_>, &mut Reader<'_>, &mut Writer) -> Answer<()>;

/// A procedure of the protocol.
struct Entry {
    run: Procedure,
    /// How many "there are no attributes" follow the status of a failure.
    absent: usize,
    /// A second time is not as once: a request that comes again gets the first answer.
    once: bool,
}

const fn entry(run: Procedure, absent: usize) -> Option<Entry> {
    Some(Entry { run, absent, once: false })
}

const fn once(run: Procedure, absent: usize) -> Option<Entry> {
    Some(Entry { run, absent, once: true })
}

/// All procedures, at their numbers; NULL has no arguments, and no result.
const PROCEDURES: [Option<Entry>; 22] = [
    None,
    entry(names::getattr, 0),
    once(names::setattr, 2),
    entry(names::lookup, 1),
    entry(names::access, 1),
    entry(names::readlink, 1),
    entry(data::read, 1),
    entry(data::write, 2),
    once(names::create, 2),
    once(names::mkdir, 2),
    once(names::symlink, 2),
    once(names::mknod, 2),
    once(names::remove, 2),
    once(names::rmdir, 2),
    once(names::rename, 4),
    once(names::link, 3),
    entry(dirs::readdir, 1),
    entry(dirs::readdirplus, 1),
    entry(dirs::fsstat, 1),
    entry(dirs::fsinfo, 1),
    entry(dirs::pathconf, 1),
    entry(data::commit, 2),
];

/// How many procedures there are.
pub const PROCEDURE_COUNT: u32 = PROCEDURES.len() as u32;

/// Returns whether a request of a procedure that comes again must not be carried out again.
pub fn is_once(procedure: u32) -> bool {
    let found = PROCEDURES.get(procedure as usize).and_then(Option::as_ref);
    found.is_some_and(|entry| entry.once)
}

/// Carries out a procedure and writes its result, of a client whose locks are of one mount on that
/// mount alone.
pub fn run(
    (tree, mount): (&Tree, Option<u64>),
    user: &User,
    procedure: u32,
    arguments: &[u8],
    out: &mut Writer,
) -> Result<(), Garbage> {
    let Some(entry) = PROCEDURES.get(procedure as usize).and_then(Option::as_ref) else {
        return Ok(());
    };
    let began = out.0.len();
    out.u32(0);
    let failure = match carry_out(entry, (tree, mount), user, arguments, out) {
        Ok(()) => return Ok(()),
        Err(Failure::Garbage) => return Err(Garbage),
        Err(Failure::Status(status)) => status,
    };
    out.0.truncate(began);
    out.u32(failure as u32);
    for _ in 0..entry.absent {
        out.bool(false);
    }
    Ok(())
}

fn carry_out(
    entry: &Entry,
    (tree, mount): (&Tree, Option<u64>),
    user: &User,
    arguments: &[u8],
    out: &mut Writer,
) -> Answer<()> {
    let live = tree.attached()?;
    if mount.is_some_and(|mount| mount != live.number) {
        // The next request ends the connection, and the client takes its locks back first.
        return Err(Status::Jukebox.into());
    }
    let request = Request { tree, live, user };
    let answer = (entry.run)(&request, &mut Reader::new(arguments), out);
    match answer {
        // Of a mount that died the system says many things: that its files are gone, too.
        Err(Failure::Status(Status::Stale | Status::Io | Status::Jukebox | Status::NotFound))
            if !tree.is_alive(&request.live) =>
        {
            Err(Status::Jukebox.into())
        }
        answer => answer,
    }
}

/// The user that asks, and the tree.
#[derive(Debug)]
pub struct Request<'a> {
    pub tree: &'a Tree,
    pub live: Arc<Attached>,
    pub user: &'a User,
}

impl Request<'_> {
    pub fn key(&self) -> &Key {
        self.tree.key()
    }

    /// Acts as the user that asks, until it is dropped.
    pub fn act(&self) -> Answer<Acting> {
        Ok(Acting::begin(self.user)?)
    }

    /// Reads a handle and opens what it names.
    pub fn node(&self, from: &mut Reader<'_>) -> Answer<Node> {
        let sealed = from.opaque(HANDLE_BYTES_MAX)?;
        self.live.node(self.key().unseal(sealed)?)
    }

    /// Refuses what changes something, where nothing may be changed.
    pub fn need_writable(&self) -> Answer<()> {
        if self.tree.rights.read_only { Err(Status::ReadOnly.into()) } else { Ok(()) }
    }

    /// Writes the handle and the attributes of something that was made.
    pub fn write_made(&self, out: &mut Writer, node: &Node) -> Answer<()> {
        out.bool(true);
        out.opaque(&self.key().seal(&node.handle)?);
        attr::write_after(out, &node.stat, self.key());
        Ok(())
    }

    /// Writes what became of a directory.
    pub fn write_changed(&self, out: &mut Writer, dir: &mut Node) -> Answer<()> {
        dir.look_again()?;
        attr::write_change(out, &dir.stat, self.key());
        Ok(())
    }
}

/// Reads a name.
pub fn read_name<'a>(from: &mut Reader<'a>) -> Answer<&'a [u8]> {
    let name = from.opaque(NAME_ARGUMENT_MAX)?;
    match name {
        [] => Err(Status::Invalid.into()),
        _ if name.len() > NAME_BYTES_MAX => Err(Status::NameTooLong.into()),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Status::Invalid.into()),
        _ => Ok(name),
    }
}

/// Reads the name of something that is made or removed: neither of the dots.
pub fn read_own_name<'a>(from: &mut Reader<'a>) -> Answer<&'a [u8]> {
    match read_name(from)? {
        b"." => Err(Status::Invalid.into()),
        b".." => Err(Status::Exists.into()),
        name => Ok(name),
    }
}
