//! The MOUNT protocol, version 3: what a client begins with.

use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::identity::User;
use super::request::Request;
use super::status::{Answer, Failure, Status};
use super::tree::Tree;
use super::xdr::{Garbage, Reader, Writer};

/// The number among programs of RPC, and the version here.
pub use bedplate_nfs::wire::numbers::{MOUNT as PROGRAM, VERSION};
/// How many procedures there are.
pub const PROCEDURE_COUNT: u32 = 6;

/// The most bytes of a path.
const PATH_BYTES_MAX: usize = 1024;
/// How many mounts are remembered.
const MOUNTS_MAX: usize = 128;
/// Users are taken as AUTH_SYS names them.
const FLAVORS: [u32; 1] = [1];

/// Which clients have mounted what, as they say: told to those that ask, and otherwise of no use.
#[derive(Debug, Default)]
pub struct Mounts(Mutex<Vec<(IpAddr, Vec<u8>)>>);

impl Mounts {
    fn add(&self, peer: IpAddr, path: &[u8]) {
        let mut mounts = self.0.lock();
        let mount = (peer, path.to_vec());
        if !mounts.contains(&mount) {
            if mounts.len() == MOUNTS_MAX {
                mounts.remove(0);
            }
            mounts.push(mount);
        }
    }

    fn remove(&self, peer: IpAddr, path: Option<&[u8]>) {
        self.0.lock().retain(|(host, mounted)| {
            *host != peer || path.is_some_and(|path| path != mounted.as_slice())
        });
    }
}

/// Carries out a procedure and writes its result.
pub fn run(
    tree: &Tree,
    mounts: &Mounts,
    peer: IpAddr,
    user: &User,
    procedure: u32,
    arguments: &[u8],
    out: &mut Writer,
) -> Result<(), Garbage> {
    let mut from = Reader::new(arguments);
    match procedure {
        1 => {
            let path = from.opaque(PATH_BYTES_MAX)?;
            match mount(tree, user, path) {
                Ok(handle) => {
                    mounts.add(peer, path);
                    out.u32(0);
                    out.opaque(&handle);
                    out.u32(FLAVORS.len() as u32);
                    FLAVORS.iter().for_each(|flavor| out.u32(*flavor));
                }
                Err(Failure::Garbage) => return Err(Garbage),
                // The numbers are those of NFS, as far as there are any.
                Err(Failure::Status(Status::Jukebox)) => out.u32(10_006),
                Err(Failure::Status(status)) => out.u32(status as u32),
            }
        }
        2 => {
            for (host, path) in mounts.0.lock().iter() {
                out.bool(true);
                out.opaque(host.to_string().as_bytes());
                out.opaque(path);
            }
            out.bool(false);
        }
        3 => mounts.remove(peer, Some(from.opaque(PATH_BYTES_MAX)?)),
        4 => mounts.remove(peer, None),
        5 => {
            out.bool(true);
            out.opaque(tree.path().as_os_str().as_bytes());
            // To no groups by name: addresses decide.
            out.bool(false);
            out.bool(false);
        }
        _ => {}
    }
    Ok(())
}

/// Returns the handle of the exported directory, or of one below it.
fn mount(tree: &Tree, user: &User, path: &[u8]) -> Answer<Vec<u8>> {
    let request = Request { tree, live: tree.attached()?, user };
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    // Links and dots lead out of what is exported, or need not.
    let below = path.strip_prefix(tree.path()).map_err(|_| Status::NotFound)?;
    if below.as_os_str().is_empty() {
        return Ok(request.key().seal(&request.live.root.handle)?);
    }
    let acting = request.act()?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let opened = rustix::fs::openat2(&request.live.root.fd, below, flags, Mode::empty(), resolve);
    drop(acting);
    let node = match opened {
        Ok(fd) => request.live.found(fd)?,
        Err(Errno::LOOP | Errno::XDEV) => return Err(Status::Access.into()),
        Err(error) => return Err(error.into()),
    };
    Ok(request.key().seal(&node.handle)?)
}
