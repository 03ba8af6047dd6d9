//! The beginning: where NFS and MOUNT listen, and the handle of a directory.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use super::{components, read_status, unreadable};
use crate::handle::Handle;
use crate::link::{Frame, Link, Reply, Rules, Submission, promise};
use crate::session::Session;
use crate::url::{LocksAt, Patience, Url};
use crate::wire::locks::{NLM, NLM_VERSION, NSM, NSM_VERSION};
use crate::wire::numbers as n;
use crate::wire::rpc::{Calling, User};
use crate::wire::status::Status;
use crate::wire::xdr::{Garbage, Writer};
use crate::{Error, ErrorKind, Result};

/// The longest reply to any of this.
const REPLY_BYTES_MAX: usize = 64 << 10;
/// How long a server may take for each step.
const STEP_MAX: Duration = Duration::from_secs(10);
/// The port of NFS where there is no portmapper to ask.
const NFS_PORT: u16 = 2049;
/// The kind of users that are told.
const AUTH_SYS: u32 = 1;
/// More kinds of users than any server has.
const FLAVORS_MAX: u32 = 64;

/// What was mounted.
pub struct Mounted {
    /// Where NFS listens.
    pub nfs: SocketAddr,
    pub root: Handle,
    /// What of the path lies below.
    pub rest: Vec<u8>,
}

/// Finds the server and mounts the deepest directory of the path that it lets mount.
pub fn mount(url: &Url, user: &User) -> Result<Mounted> {
    let doing = format!("mount {url}");
    let address = resolve(url, &doing)?;
    let nfs = match (url.nfs_port, ask_port(address, n::NFS)) {
        (Some(port), _) => port,
        (None, Ok(port)) => port,
        // As the kernel's client does.
        (None, Err(_)) => NFS_PORT,
    };
    let mount_port = match url.mount_port {
        Some(port) => port,
        None => ask_port(address, n::MOUNT).map_err(|error| {
            let why = error.message;
            let what = format!("cannot {doing}: {why}; name the port of MOUNT by mountport=");
            Error::new(ErrorKind::Unreached, what)
        })?,
    };
    let link = Once::open(SocketAddr::new(address.ip(), mount_port), url, &doing)?;
    let parts: Vec<&[u8]> = components(&url.path).collect();
    let mut first = None;
    for len in (0..=parts.len()).rev() {
        let path = [&b"/"[..], &parts[..len].join(&b'/')].concat();
        match link.mount(&path, user, &doing) {
            Ok(root) => {
                let rest = parts[len..].join(&b'/');
                return Ok(Mounted { nfs: SocketAddr::new(address.ip(), nfs), root, rest });
            }
            Err(error) if is_of_the_path(&error) => {
                // What the whole path met with says most.
                first.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    Err(first.unwrap_or_else(|| unreadable(&doing)))
}

/// Returns whether a directory above may be mounted all the same.
fn is_of_the_path(error: &Error) -> bool {
    matches!(
        error.kind,
        ErrorKind::NotFound | ErrorKind::NotDirectory | ErrorKind::Permission | ErrorKind::Invalid
    )
}

fn resolve(url: &Url, doing: &str) -> Result<SocketAddr> {
    let unknown = |why: String| Error::new(ErrorKind::Unreached, format!("cannot {doing}: {why}"));
    let mut found = (url.host.as_str(), NFS_PORT)
        .to_socket_addrs()
        .map_err(|error| unknown(format!("the host {} is not known: {error}", url.host)))?;
    found.next().ok_or_else(|| unknown(format!("the host {} has no address", url.host)))
}

/// Asks the portmapper for the port of a program.
fn ask_port(address: SocketAddr, program: u32) -> Result<u16> {
    let portmapper = SocketAddr::new(address.ip(), n::PORTMAP_PORT);
    let doing = "ask the portmapper";
    let link = Once::open(portmapper, &Url::new("", b"/"), doing)?;
    let mut arguments = Writer::default();
    for word in [program, n::VERSION, n::TCP, 0] {
        arguments.u32(word);
    }
    let call = Calling {
        program: n::PORTMAP,
        version: n::PORTMAP_VERSION,
        procedure: n::GETPORT,
        user: None,
    };
    let reply = link.call(&call, &arguments, doing)?;
    let port = reply.body().u32().map_err(|Garbage| unreadable(doing))?;
    match u16::try_from(port) {
        Ok(port) if port != 0 => Ok(port),
        _ => Err(Error::new(ErrorKind::Unreached, "the portmapper knows no such program")),
    }
}

/// Begins what locks on the server need; nothing where they are this client's own.
pub fn session(url: &Url, nfs: SocketAddr) -> Result<Option<Arc<Session>>> {
    let doing = format!("mount {url}");
    if url.locks == LocksAt::Client || !has_locks(url, nfs, &doing)? {
        return Ok(None);
    }
    let failed = |error| Error::new(ErrorKind::Io, format!("cannot {doing}: {error}"));
    Session::new().map(|session| Some(Arc::new(session))).map_err(failed)
}

/// Asks whether a server has locks at the port of NFS, with what ties them to connections.
fn has_locks(url: &Url, nfs: SocketAddr, doing: &str) -> Result<bool> {
    let link = Once::open(nfs, url, doing)?;
    for (program, version) in [(NLM, NLM_VERSION), (NSM, NSM_VERSION)] {
        let call = Calling { program, version, procedure: 0, user: None };
        match link.call(&call, &Writer::default(), doing) {
            Ok(_) => {}
            Err(error) if error.kind != ErrorKind::Unreached => return Err(error),
            Err(_) if url.locks == LocksAt::Server => {
                let why = "the server has no locks that this client can use (NLM and NSM at the port \
                           of NFS); with locks=local they hold among the programs of this client";
                return Err(Error::new(ErrorKind::Unsupported, format!("cannot {doing}: {why}")));
            }
            Err(_) => {
                tracing::warn!(
                    "the server of {url} has no locks that this client can use: locks hold among \
                     the programs of this client alone"
                );
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// A link for some calls.
struct Once(Link);

impl Once {
    fn open(address: SocketAddr, url: &Url, doing: &str) -> Result<Self> {
        let rules = Rules {
            connections: 1,
            calls: 1,
            timeout: url.timeout.min(STEP_MAX),
            patience: Patience::Soft(1),
            reply_bytes_max: REPLY_BYTES_MAX,
            session: None,
        };
        Link::open(address, &rules).map(Self).map_err(|error| {
            let why = format!("cannot {doing}: {address} is not reached: {error}");
            Error::new(ErrorKind::Unreached, why)
        })
    }

    fn call(&self, call: &Calling<'_>, arguments: &Writer, doing: &str) -> Result<Reply> {
        let (promise, answer) = promise();
        let frame = Frame::new(call, &arguments.0, None);
        self.0.submit(Submission {
            frame,
            finish: Box::new(move |end| promise.keep(end)),
            guard: None,
        });
        answer.wait().map_err(|failed| failed.error(doing))
    }

    fn mount(&self, path: &[u8], user: &User, doing: &str) -> Result<Handle> {
        let mut arguments = Writer::default();
        arguments.opaque(path);
        let call =
            Calling { program: n::MOUNT, version: n::VERSION, procedure: n::MNT, user: Some(user) };
        let reply = self.call(&call, &arguments, doing)?;
        let mut from = reply.body();
        let garbage = |Garbage| unreadable(doing);
        match read_status(&mut from).map_err(garbage)? {
            None => {}
            // "Server fault": it is not ready.
            Some(status @ Status::ServerFault) => {
                return Err(Error { kind: ErrorKind::TimedOut, ..Error::status(doing, status) });
            }
            Some(status) => return Err(Error::status(doing, status)),
        }
        let root = Handle::read(&mut from).map_err(garbage)?;
        let count = from.u32().map_err(garbage)?;
        if count > FLAVORS_MAX {
            return Err(unreadable(doing));
        }
        let flavors = (0..count).map(|_| from.u32()).collect::<Result<Vec<_>, _>>();
        let flavors = flavors.map_err(garbage)?;
        if !flavors.is_empty() && !flavors.contains(&AUTH_SYS) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("cannot {doing}: the server wants Kerberos, and AUTH_SYS is spoken alone"),
            ));
        }
        Ok(root)
    }
}
