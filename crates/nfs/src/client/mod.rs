//! A directory of a server, mounted in this process.

mod cache;
mod listing;
mod mount;
mod names;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bedplate_cache::PageCache;
use parking_lot::Mutex;

pub use listing::{Entry, Part};
pub use names::Room;

use crate::handle::Handle;
use crate::inode::Inode;
use crate::link::{Bytes, Failed, Frame, Link, Reply, Rules, Submission, promise};
use crate::session::{Guard, Session};
use crate::url::{Patience, Stability, TRANSFER_BYTES_MIN, Url};
use crate::wire::attr::{Attr, Kind};
use crate::wire::numbers::{FSINFO, NFS, VERSION};
use crate::wire::rpc::{Calling, User};
use crate::wire::status::Status;
use crate::wire::xdr::{Garbage, Reader, Writer};
use crate::{Error, ErrorKind, Result};

/// What a reply may have beside data or names.
const HEAD_BYTES_MAX: usize = 8192;
/// How long a server that asks for it is left alone.
const LATER_MIN: Duration = Duration::from_millis(50);
const LATER_MAX: Duration = Duration::from_secs(5);
/// Symbolic links that a path may lead through.
const LINKS_MAX: usize = 40;

/// A file, a directory or what else a name leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// By what the server knows it.
    pub handle: Handle,
    /// Its attributes, a moment ago.
    pub attr: Attr,
}

/// What a server takes at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub read_bytes: u32,
    pub write_bytes: u32,
}

#[derive(Debug)]
pub(crate) struct Inner {
    link: Link,
    /// There where locks are the server's.
    pub session: Option<Arc<Session>>,
    url: Url,
    root: Handle,
    pub limits: Limits,
    /// The pages of files in mode `cached`.
    pub cache: Arc<PageCache>,
    /// Files that are open.
    inodes: Mutex<HashMap<Handle, Weak<Inode>>>,
}

/// A directory of a server. Clones are the same one; calls may be made from any thread.
#[derive(Debug, Clone)]
pub struct Client(pub(crate) Arc<Inner>, pub(crate) Arc<User>);

impl Client {
    /// Mounts what a URL names, or the deepest directory above it that the server lets mount.
    /// Returns the path from there on, which is empty where the whole was mounted.
    ///
    /// # Errors
    /// `Unreached`, `TimedOut`, `Permission` or `NotFound` where the server does not serve it.
    pub fn connect(url: &Url) -> Result<(Self, Vec<u8>)> {
        let user = user_of(url);
        let mounted = mount::mount(url, &user)?;
        let session = mount::session(url, mounted.nfs)?;
        let rules = Rules {
            connections: url.connections,
            calls: url.calls,
            timeout: url.timeout,
            patience: url.patience,
            reply_bytes_max: (url.read_bytes as usize).max(listing::BYTES) + HEAD_BYTES_MAX,
            session: session.clone(),
        };
        let link = Link::open(mounted.nfs, &rules).map_err(|error| {
            let why = format!("cannot mount {url}: {} is not reached: {error}", mounted.nfs);
            Error::new(ErrorKind::Unreached, why)
        })?;
        let mut inner = Inner {
            link,
            session,
            url: url.clone(),
            root: mounted.root,
            limits: Limits { read_bytes: url.read_bytes, write_bytes: url.write_bytes },
            cache: cache::cache(url),
            inodes: Mutex::default(),
        };
        inner.limits = inner.ask_limits(&user)?;
        Ok((Self(Arc::new(inner), Arc::new(user)), mounted.rest))
    }

    /// Returns the same directory for calls as another user: connections, files that are open, and
    /// what waits for a commit are those of this one.
    #[must_use]
    pub fn as_user(&self, uid: u32, gid: u32, groups: &[u32]) -> Self {
        let user = User { uid, gid, groups: groups.to_vec() };
        Self(Arc::clone(&self.0), Arc::new(user))
    }

    /// As [`ask`](Self::ask), of what stands under the locks of a file.
    pub(crate) fn ask_under<T>(
        &self,
        guard: Option<&Arc<Guard>>,
        doing: &str,
        procedure: u32,
        arguments: &Writer,
        read: impl Fn(&mut Reader<'_>) -> Result<T, Garbage>,
    ) -> Result<T> {
        self.0.ask((&self.1, guard), doing, procedure, arguments, read)
    }

    /// Makes a call as the user of this client; `finish` is given its end by the thread of a
    /// connection.
    pub(crate) fn submission(
        &self,
        procedure: u32,
        arguments: &Writer,
        data: Option<(Bytes, std::ops::Range<usize>)>,
        finish: impl FnOnce(Result<Reply, Failed>) + Send + 'static,
    ) -> Submission {
        self.0.submission(&self.1, procedure, arguments, data, finish)
    }

    /// Makes a call as the user of this client and reads its result; asks again where the server
    /// wants to be asked later. `doing` completes "cannot …".
    pub(crate) fn ask<T>(
        &self,
        doing: &str,
        procedure: u32,
        arguments: &Writer,
        read: impl Fn(&mut Reader<'_>) -> Result<T, Garbage>,
    ) -> Result<T> {
        self.ask_under(None, doing, procedure, arguments, read)
    }

    /// Returns whether both are one.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns what it was made of.
    #[must_use]
    pub fn url(&self) -> &Url {
        &self.0.url
    }

    /// Returns the handle of the directory that is mounted.
    #[must_use]
    pub fn root(&self) -> &Handle {
        &self.0.root
    }

    /// Returns the most bytes of one read and of one write.
    #[must_use]
    pub fn transfer_bytes(&self) -> (u32, u32) {
        (self.0.limits.read_bytes, self.0.limits.write_bytes)
    }

    /// Looks up a path from the mounted directory on, through symbolic links that do not lead out of
    /// it by a whole path.
    ///
    /// # Errors
    /// `NotFound` and others of the server.
    pub fn find(&self, path: &[u8]) -> Result<Found> {
        let shown = path.escape_ascii();
        let root = self.root().clone();
        let mut here = Found { attr: self.attributes(&root)?, handle: root };
        let mut links = 0;
        let mut rest: Vec<Vec<u8>> = components(path).rev().map(<[u8]>::to_vec).collect();
        while let Some(name) = rest.pop() {
            let next = self.lookup(&here.handle, &name)?;
            if next.attr.kind != Kind::Symlink {
                here = next;
                continue;
            }
            let target = self.read_link(&next.handle)?;
            links += 1;
            if target.starts_with(b"/") || links > LINKS_MAX {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!(
                        "cannot look up '{shown}': a symbolic link leads to '{}', which cannot be \
                         followed on the server",
                        target.escape_ascii()
                    ),
                ));
            }
            rest.extend(components(&target).rev().map(<[u8]>::to_vec));
        }
        Ok(here)
    }

    /// Looks up the directory of a path; returns it with the last name.
    ///
    /// # Errors
    /// As [`find`](Self::find); `Usage` for a path that names nothing.
    pub fn find_parent<'a>(&self, path: &'a [u8]) -> Result<(Found, &'a [u8])> {
        let trimmed = path.strip_suffix(b"/").unwrap_or(path);
        let at = trimmed.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let (parent, name) = trimmed.split_at(at);
        if matches!(name, b"" | b"." | b"..") {
            return Err(Error::usage(format!("'{}' names no file", path.escape_ascii())));
        }
        Ok((self.find(parent)?, name))
    }

    /// Returns what all opens of a file share.
    pub(crate) fn inode(&self, handle: &Handle) -> Arc<Inode> {
        let mut inodes = self.0.inodes.lock();
        if let Some(known) = inodes.get(handle).and_then(Weak::upgrade) {
            return known;
        }
        inodes.retain(|_, inode| inode.strong_count() > 0);
        let inode = Arc::new(Inode::new(handle.clone(), &self.1));
        inodes.insert(handle.clone(), Arc::downgrade(&inode));
        inode
    }

    /// Returns what all opens of a file share where there are any.
    pub(crate) fn known_inode(&self, handle: &Handle) -> Option<Arc<Inode>> {
        self.0.inodes.lock().get(handle).and_then(Weak::upgrade)
    }

    pub(crate) fn stability(&self) -> Stability {
        self.0.url.stability
    }
}

impl Inner {
    fn submission(
        &self,
        user: &User,
        procedure: u32,
        arguments: &Writer,
        data: Option<(Bytes, std::ops::Range<usize>)>,
        finish: impl FnOnce(Result<Reply, Failed>) + Send + 'static,
    ) -> Submission {
        let call = Calling { program: NFS, version: VERSION, procedure, user: Some(user) };
        let frame = Frame::new(&call, &arguments.0, data);
        Submission { frame, finish: Box::new(finish), guard: None }
    }

    pub fn link(&self) -> &Link {
        &self.link
    }

    fn ask<T>(
        &self,
        (user, guard): (&User, Option<&Arc<Guard>>),
        doing: &str,
        procedure: u32,
        arguments: &Writer,
        read: impl Fn(&mut Reader<'_>) -> Result<T, Garbage>,
    ) -> Result<T> {
        let mut later = Later::new(&self.url);
        loop {
            let (promise, answer) = promise();
            let finish = move |end| promise.keep(end);
            let mut call = self.submission(user, procedure, arguments, None, finish);
            call.guard = guard.map(Arc::clone);
            self.link.submit(call);
            let reply = answer.wait().map_err(|failed| failed.error(doing))?;
            let mut from = reply.body();
            match read_status(&mut from) {
                Ok(None) => {
                    return read(&mut from).map_err(|Garbage| unreadable(doing));
                }
                Ok(Some(Status::Jukebox)) if later.wait() => {}
                Ok(Some(status)) => return Err(Error::status(doing, status)),
                Err(Garbage) => return Err(unreadable(doing)),
            }
        }
    }

    fn ask_limits(&self, user: &User) -> Result<Limits> {
        let doing = format!("mount {}", self.url);
        let [read, write] =
            self.ask((user, None), &doing, FSINFO, &self.root.arguments(), |from| {
                crate::wire::attr::read_after(from)?;
                let read = from.u32()?;
                from.array::<8>()?;
                Ok([read, from.u32()?])
            })?;
        if read.min(write) < TRANSFER_BYTES_MIN {
            let what = format!("that it takes reads of {read} and writes of {write} bytes");
            return Err(Error::protocol(&doing, &what));
        }
        Ok(Limits {
            read_bytes: self.url.read_bytes.min(read),
            write_bytes: self.url.write_bytes.min(write),
        })
    }
}

/// Reads the status that a result begins with; `None` is success.
pub(crate) fn read_status(from: &mut Reader<'_>) -> Result<Option<Status>, Garbage> {
    Ok(match from.u32()? {
        0 => None,
        number => Some(Status::of_number(number)),
    })
}

pub(crate) fn unreadable(doing: &str) -> Error {
    Error::protocol(doing, "what cannot be read")
}

/// Pauses for a server that asks to come again later, as long as the client has patience.
#[derive(Debug)]
pub(crate) struct Later {
    until: Option<Instant>,
    pause: Duration,
}

impl Later {
    pub fn new(url: &Url) -> Self {
        let until = match url.patience {
            Patience::Hard => None,
            Patience::Soft(times) => Some(Instant::now() + url.timeout * (times + 1)),
        };
        Self { until, pause: LATER_MIN }
    }

    /// Waits; `false` where the patience is at its end.
    pub fn wait(&mut self) -> bool {
        if self.until.is_some_and(|until| Instant::now() + self.pause > until) {
            return false;
        }
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(LATER_MAX);
        true
    }
}

fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."))
}

fn user_of(url: &Url) -> User {
    let own = url.uid.is_none() && url.gid.is_none();
    let groups = if own { rustix::process::getgroups().unwrap_or_default() } else { Vec::new() };
    User {
        uid: url.uid.unwrap_or_else(|| rustix::process::geteuid().as_raw()),
        gid: url.gid.unwrap_or_else(|| rustix::process::getegid().as_raw()),
        groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
    }
}
