//! The socket of a mount ([`crate::control`]): takes requests of commands, and has them carried
//! out.
//!
//! ```text
//!   listen() ── connection ──► converse(), a thread of its own: hear ── carry_out() in the control line ── tell
//!      │                                                            └── the group of devices, in this thread
//!      └── the socket is gone from its directory: made again
//! ```
//!
//! No event thread takes part: a rollback waits for the kernel to drop pages, and that for event
//! threads (I-LIN-1). A connection whose caller says nothing, or does not read, has a thread and
//! nothing else, and is cut off as soon as another one needs its place. A request of the group may
//! take hours and is not waited for at the end of the mount; all others are finished.

use std::ffi::OsStr;
use std::io;
use std::net::Shutdown;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::aliases::suffixed;
use super::shared::Shared;
use crate::control::{self, Answer, Bound, Changed, GroupHandle, Request, Serving, wire};

/// How many connections there may be at once.
const CONNECTIONS_MAX: usize = 64;
/// How often it is looked whether the socket is still in its directory.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);
/// How long nothing is accepted after the system refused to.
const REFUSED_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Listens for commands. Dropped, the socket is gone, and no request begins any more.
#[derive(Debug)]
pub(super) struct Listener {
    /// Closed to end the thread.
    waker: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    connections: Arc<Connections>,
}

impl Listener {
    /// Begins to listen for the mount of a device.
    pub(super) fn start(
        shared: &Arc<Shared>,
        group: Option<GroupHandle>,
        device: String,
    ) -> io::Result<Self> {
        let bound = control::bind(&device)?;
        let (waker, woken) = UnixStream::pair()?;
        let connections = Arc::new(Connections {
            group,
            shared: Arc::downgrade(shared),
            open: Mutex::default(),
            next: AtomicU64::new(0),
        });
        let taking = Arc::clone(&connections);
        let thread = Builder::new()
            .name("bedplate-listen".into())
            .spawn(move || listen(bound, &device, &woken, &taking))?;
        Ok(Self { waker: Some(waker), thread: Some(thread), connections })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.waker = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that listens for commands had panicked");
        }
        self.connections.cut_idle();
    }
}

fn listen(mut bound: Bound, device: &str, woken: &UnixStream, connections: &Arc<Connections>) {
    loop {
        let until_next = connections.note_moment().min(RENEW_INTERVAL);
        let until_next = Timespec::try_from(until_next).unwrap_or_default();
        let mut events =
            [PollFd::new(&bound.listener, PollFlags::IN), PollFd::new(woken, PollFlags::IN)];
        let waited = poll(&mut events, Some(&until_next));
        if !events[1].revents().is_empty() {
            return;
        }
        match waited {
            Ok(0) if !bound.is_there() => match control::bind(device) {
                Ok(again) => bound = again,
                Err(error) => tracing::debug!("no socket for commands: {error}"),
            },
            Ok(_) if !events[0].revents().is_empty() => match bound.listener.accept() {
                Ok((stream, _)) => connections.take(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    tracing::debug!("cannot take a connection: {error}");
                    // Ends early when the mount does.
                    let _waited =
                        poll(&mut [PollFd::new(woken, PollFlags::IN)], Some(&REFUSED_PAUSE));
                }
            },
            _ => {}
        }
    }
}

/// What is asked at the moment.
#[derive(Debug)]
struct Connections {
    group: Option<GroupHandle>,
    shared: Weak<Shared>,
    /// The oldest first.
    open: Mutex<Vec<Connection>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct Connection {
    id: u64,
    stream: Arc<UnixStream>,
    /// Its request is carried out: it is not waiting for its caller.
    works: bool,
}

impl Connections {
    /// Notes how busy the threads are that serve, so that it can be told of the last seconds;
    /// returns when to do so next.
    fn note_moment(&self) -> Duration {
        self.shared.upgrade().map_or(RENEW_INTERVAL, |shared| {
            shared.forget_trees();
            shared.threads.note_moment()
        })
    }

    /// Takes a connection, in the place of one that waits for its caller if there are too many.
    fn take(self: &Arc<Self>, stream: UnixStream) {
        let stream = Arc::new(stream);
        let id = self.next.fetch_add(1, Relaxed);
        {
            let mut open = self.open.lock();
            if open.len() >= CONNECTIONS_MAX {
                let Some(idle) = open.iter().position(|connection| !connection.works) else {
                    let busy = Answer::Failed(
                        "busy".into(),
                        format!(
                            "{CONNECTIONS_MAX} requests are under way: ask again when one has ended"
                        ),
                    );
                    // It fits what the system holds for a caller that does not read yet.
                    drop(wire::tell(&stream, &busy));
                    return;
                };
                cut(&open.remove(idle).stream);
            }
            open.push(Connection { id, stream: Arc::clone(&stream), works: false });
        }
        let this = Arc::clone(self);
        let started = Builder::new().name("bedplate-contr".into()).spawn(move || {
            this.converse(id, &stream);
            this.forget(id);
        });
        if let Err(error) = started {
            tracing::debug!("no thread for a request: {error}");
            self.forget(id);
        }
    }

    fn forget(&self, id: u64) {
        self.open.lock().retain(|connection| connection.id != id);
    }

    /// Ends the connections that wait for their callers.
    fn cut_idle(&self) {
        self.open
            .lock()
            .iter()
            .filter(|connection| !connection.works)
            .for_each(|connection| cut(&connection.stream));
    }

    /// Notes that a request is carried out, or that it was; returns whether the connection is still
    /// there.
    fn works(&self, id: u64, works: bool) -> bool {
        let mut open = self.open.lock();
        let found = open.iter_mut().find(|connection| connection.id == id);
        found.map(|connection| connection.works = works).is_some()
    }

    fn converse(&self, id: u64, stream: &UnixStream) {
        let answer = match require_manager(stream).and_then(|()| wire::hear(stream)) {
            Ok(Some(request)) if self.works(id, true) => {
                let answer = self.carry_out(&request);
                self.works(id, false);
                answer
            }
            Ok(_) => return,
            Err(refused) => Answer::of(Err(refused)),
        };
        if let Err(error) = wire::tell(stream, &answer) {
            tracing::debug!("an answer was not taken: {error}");
        }
    }

    fn carry_out(&self, request: &Request) -> Answer {
        let closing = || {
            Answer::Failed(
                "busy".into(),
                "the volume is being unmounted: ask again in a moment".into(),
            )
        };
        let Some(shared) = self.shared.upgrade() else { return closing() };
        match request {
            Request::Serving => {
                let serving = Serving {
                    pid: std::process::id(),
                    group: self.group.as_ref().map(|group| group.id.clone()),
                };
                Answer::of(control::json(&serving))
            }
            Request::Group { ask } => {
                let Some(group) = &self.group else {
                    return Answer::Failed(
                        "invalid".into(),
                        "the volume lies on one device, and on no group of devices".into(),
                    );
                };
                let fs = shared.fs.clone();
                drop(shared);
                group.answer(ask, &fs)
            }
            request => {
                let (tell, told) = mpsc::channel();
                let request = request.clone();
                // A job that came too late is dropped, and its sender with it.
                shared.run_control(move |shared| {
                    tell.send(shared.carry_out(&request)).unwrap_or_default();
                });
                drop(shared);
                told.recv().unwrap_or_else(|_| closing())
            }
        }
    }
}

/// Cuts a connection off. One that is over already is none the worse.
fn cut(stream: &UnixStream) {
    drop(stream.shutdown(Shutdown::Both));
}

/// Refuses callers other than root and the user that mounted the volume: requests concern the files
/// of all users.
fn require_manager(stream: &UnixStream) -> bedplate_fs::Result<()> {
    let refuse = |message: String| {
        Err(bedplate_fs::Error::new(bedplate_fs::ErrorKind::NotPermitted, message))
    };
    let own = rustix::process::geteuid();
    match rustix::net::sockopt::socket_peercred(stream) {
        Ok(peer) if peer.uid.is_root() || peer.uid == own => Ok(()),
        Ok(_) => refuse(format!(
            "the mount is of user {}: only that user and root may ask",
            own.as_raw()
        )),
        Err(error) => refuse(format!("the system does not tell which user asks: {error}")),
    }
}

impl Shared {
    /// Carries out what concerns the file system.
    fn carry_out(&self, request: &Request) -> Answer {
        let answer = self.run("request", || Ok(self.answer_to(request)));
        let answer = answer.unwrap_or_else(|_| {
            let message =
                "a broken invariant was found: unmount, mount again to recover, and run a check";
            Answer::Failed("io".into(), message.into())
        });
        if matches!(request, Request::Tune(_)) {
            self.widen_read_ahead();
            self.list_options();
        }
        answer
    }

    fn answer_to(&self, request: &Request) -> Answer {
        Answer::of(match request {
            Request::Mount { name, dir } => match self.mount_checkpoint(name, dir) {
                Ok(dir) => return Answer::Done(serde_json::json!({ "mounted": dir })),
                Err(error) => return Answer::failed(error.kind, error.message),
            },
            Request::MountPart { path, dir, options } => {
                match self.mount_part(path, dir, options) {
                    Ok(part) => control::json(&part),
                    Err(error) => return Answer::failed(error.kind, error.message),
                }
            }
            Request::Defragmenter => self.defragmenter().and_then(|told| control::json(&told)),
            Request::Threads => control::json(&self.threads.report()),
            Request::Tune(change) => self.tune(change).and_then(|told| control::json(&told)),
            Request::Activities => self.activities().and_then(|told| control::json(&told)),
            _ => control::answer(&self.fs, request).map(|(value, changed)| {
                self.forget_changed(&changed);
                value
            }),
        })
    }

    /// Makes the kernel forget what a request changed.
    fn forget_changed(&self, changed: &Changed) {
        if !changed.names.is_empty() || !changed.inodes.is_empty() {
            // Also names that came back in a directory.
            self.kernel.forget_absent();
        }
        for (dir, name) in &changed.names {
            self.kernel.drop_name(*dir, OsStr::from_bytes(name));
            if !self.aliases.are_none() {
                suffixed(name).for_each(|name| self.kernel.drop_name(*dir, &name));
            }
        }
        // Before the pages: of those that are dirty beyond the end none may be written any more.
        self.tell_sizes(&changed.inodes);
        for ino in &changed.inodes {
            self.kernel.drop_pages(*ino, 0, 0);
        }
    }
}
