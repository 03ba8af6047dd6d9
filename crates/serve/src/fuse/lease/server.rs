//! The thread that looks after processes with leases: takes them in, answers them, and notices
//! their end.
//!
//! ```text
//!   connection ── user allowed? ── attach, with a token ──► client: slots, descriptors, pidfd
//!        │ no: told, and cut off                                │
//!        └ says nothing: cut off when others come               ├─ publish, close, suspend, flush failed: answered
//!                                                               ├─ asynchronous requests: counted from now on
//!                                                               ├─ socket ends ──► kept until the process has ended
//!                                                               └─ the process has ended, and its requests ──► detached
//! ```
//!
//! A process that has closed its socket may still be in the midst of I/O; one that has ended is
//! not. So only the end of the process counts. No event thread takes part, and this one may wait
//! for the kernel (I-LIN-1).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use bedplate_fs::{InodeNo, LeaseClient, LeaseProcess, SharedCache};
use bedplate_lease::wire::{Answer, Request, Token};
use bedplate_lease::{Lease, Reason};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::packet::{self, Heard};
use super::requests::Requests;
use super::{Desk, Granted};
use crate::fuse::shared::Shared;

/// Connections that have not attached yet; of more the oldest is cut off.
const STRANGERS_MAX: usize = 64;
/// How often written files are looked for, and files that were served another way.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
const TICK_TIME: Duration = Duration::from_millis(500);
/// How long it waits while there is no client.
const REST: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
/// How long nothing is accepted after the system refused to.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// Looks after clients. Dropped, it takes no more of them; those that it has keep what they have,
/// and the file system waits for them.
#[derive(Debug)]
pub(in crate::fuse) struct LeaseServer {
    /// Closed to end the thread.
    waker: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl LeaseServer {
    /// Begins to take in the clients of a mount that has a desk.
    pub(in crate::fuse) fn start(shared: &Arc<Shared>) -> io::Result<Self> {
        let desk = shared.desk.get().ok_or(io::ErrorKind::NotFound)?;
        let listener = packet::listen_on(desk.name())?;
        let (waker, woken) = UnixStream::pair()?;
        let weak = Arc::downgrade(shared);
        let all = Vec::new();
        let clients = Clients { shared: weak, listener, woken, all, looked: Instant::now() };
        let serve = move || clients.serve();
        let thread = Builder::new().name("bedplate-lease".into()).spawn(serve)?;
        Ok(Self { waker: Some(waker), thread: Some(thread) })
    }
}

impl Drop for LeaseServer {
    fn drop(&mut self) {
        self.waker = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that looks after leases had panicked");
        }
    }
}

/// A process that is connected, or was.
#[derive(Debug)]
struct Connection {
    /// `None` once the process has closed it.
    socket: Option<OwnedFd>,
    pid: u32,
    uid: u32,
    /// Readable when the process has ended, with all its threads.
    process: Arc<OwnedFd>,
    client: Option<Arc<LeaseClient>>,
    /// What the client has of the device allows only reads.
    is_read_only: bool,
    /// Its asynchronous requests are counted.
    makes_requests: bool,
    /// The process has ended; requests of it are in flight.
    has_ended: bool,
}

/// The process of a client, by a descriptor of it.
struct Process {
    descriptor: Arc<OwnedFd>,
    pid: u32,
}

impl LeaseProcess for Process {
    fn is_alive(&self) -> bool {
        !has_ended(&self.descriptor)
    }

    fn has_thread_ended(&self, thread: u32) -> bool {
        // 0 is the number of none. The descriptor's process still has its own after its threads were
        // looked at.
        thread != 0 && has_no_thread(self.pid, thread) && !has_ended(&self.descriptor)
    }

    fn kill(&self) -> io::Result<()> {
        pidfd_send_signal(&*self.descriptor, Signal::KILL).map_err(io::Error::from)
    }
}

/// Tells whether no thread of a process has a number, in the namespace of the process, and can
/// still do anything. One that cannot be looked at may.
fn has_no_thread(pid: u32, thread: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let mut seen = 0;
    for entry in threads {
        let Ok(entry) = entry else { return false };
        match std::fs::read_to_string(entry.path().join("status")) {
            Ok(status) if is_going(&status, thread) => return false,
            Ok(_) => seen += 1,
            // It ended meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => return false,
        }
    }
    // The first thread stays, as a zombie, until the process has ended.
    seen > 0
}

/// Tells whether a thread's status is that of one with this number that has not ended.
fn is_going(status: &str, thread: u32) -> bool {
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let has_ended = line("State:").is_some_and(|state| state.trim_start().starts_with(['Z', 'X']));
    // The last number is that of the innermost namespace, in which the thread names itself.
    let number = line("NSpid:").and_then(|all| all.split_whitespace().last()?.parse().ok());
    !has_ended && number.is_none_or(|number: u32| number == thread)
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut events = [PollFd::new(process, PollFlags::IN)];
    poll(&mut events, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

struct Clients {
    shared: Weak<Shared>,
    listener: OwnedFd,
    woken: UnixStream,
    all: Vec<Connection>,
    /// When written files were looked for.
    looked: Instant,
}

impl Clients {
    fn serve(mut self) {
        loop {
            let (woken, accepts) = self.wait();
            let Some(shared) = self.shared.upgrade() else { return };
            if woken {
                return;
            }
            if accepts {
                self.accept(&shared);
            }
            self.all.retain_mut(|connection| connection.attend(&shared));
            if self.looked.elapsed() >= TICK_TIME && self.all.iter().any(|it| it.client.is_some()) {
                self.looked = Instant::now();
                shared.show_leased_writes();
                shared.publish_again();
            }
        }
    }

    /// Waits for something to do; returns whether the end has come, and whether a connection waits.
    fn wait(&self) -> (bool, bool) {
        let mut events = vec![
            PollFd::new(&self.woken, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        for connection in &self.all {
            if !connection.has_ended {
                events.push(PollFd::new(&*connection.process, PollFlags::IN));
            }
            events.extend(connection.socket.iter().map(|it| PollFd::new(it, PollFlags::IN)));
        }
        let timeout = if self.all.is_empty() { REST } else { TICK };
        match poll(&mut events, Some(&timeout)) {
            Ok(_) => (!events[0].revents().is_empty(), !events[1].revents().is_empty()),
            Err(_) => (false, false),
        }
    }

    fn accept(&mut self, shared: &Arc<Shared>) {
        let socket = match packet::accept(&self.listener) {
            Ok(Some(socket)) => socket,
            Ok(None) => return,
            Err(error) => {
                tracing::debug!("cannot take a process that wants a lease: {error}");
                return std::thread::sleep(REFUSED_PAUSE);
            }
        };
        match Connection::of(shared, &socket) {
            Ok(connection) => {
                self.make_room();
                self.all.push(Connection { socket: Some(socket), ..connection });
            }
            Err(reason) => {
                shared.fs.lease_refused(None, reason);
                drop(packet::tell(&socket, &Answer::refused(reason), &[]));
            }
        }
    }

    /// Cuts off the oldest connection that has not attached, if there are too many.
    fn make_room(&mut self) {
        let is_stranger = |connection: &Connection| connection.client.is_none();
        if self.all.iter().filter(|it| is_stranger(it)).count() >= STRANGERS_MAX
            && let Some(oldest) = self.all.iter().position(is_stranger)
        {
            self.all.remove(oldest);
        }
    }
}

impl Connection {
    fn of(shared: &Shared, socket: &OwnedFd) -> Result<Self, Reason> {
        let failed = |_| Reason::Failed;
        let desk = shared.desk.get().ok_or(Reason::Off)?;
        let peer = socket_peercred(socket).map_err(failed)?;
        if !desk.allows(peer.uid.as_raw()) {
            return Err(Reason::User);
        }
        let process = pidfd_open(peer.pid, PidfdFlags::empty()).map_err(failed)?;
        Ok(Self {
            socket: None,
            pid: peer.pid.as_raw_pid().unsigned_abs(),
            uid: peer.uid.as_raw(),
            process: Arc::new(process),
            client: None,
            is_read_only: false,
            makes_requests: false,
            has_ended: false,
        })
    }

    /// Does what is to be done; returns whether it is to be kept.
    fn attend(&mut self, shared: &Arc<Shared>) -> bool {
        while let Some(socket) = &self.socket {
            match packet::hear(socket) {
                Heard::Nothing => break,
                Heard::End => self.socket = None,
                Heard::Request(request) => {
                    if let Err(error) = self.answer(shared, request) {
                        tracing::debug!("process {} did not take an answer: {error}", self.pid);
                        self.socket = None;
                    }
                }
            }
        }
        let Some(client) = &self.client else { return self.socket.is_some() };
        self.has_ended = self.has_ended || has_ended(&self.process);
        // What it has begun is waited for like that of a process that lives.
        if !self.has_ended || client.has_requests() {
            return true;
        }
        shared.fs.lease_detach(client);
        shared.show_leased_writes();
        false
    }

    fn answer(&mut self, shared: &Arc<Shared>, request: Result<Request, Reason>) -> io::Result<()> {
        let done = match (request, &self.client) {
            (Ok(Request::Attach { token }), None) => return self.attach(shared, &token),
            (Ok(Request::Publish { token }), Some(_)) => {
                return self.publish(shared, &token);
            }
            // Its opens tell by themselves; what it wrote is looked at now.
            (Ok(Request::Close { .. }), Some(_)) => {
                shared.show_leased_writes();
                Ok(None)
            }
            (Ok(Request::Suspend { inode }), Some(_)) => {
                if let Some(open) = shared.files.any_of(InodeNo(inode)) {
                    open.file.suspend_lease();
                }
                Ok(None)
            }
            (Ok(Request::FlushFailed { errno }), Some(_)) => {
                shared.fs.lease_flush_failed(i32::try_from(errno).unwrap_or(libc::EIO));
                Ok(None)
            }
            (Ok(Request::Requests), Some(client)) if !self.makes_requests => {
                let client = Arc::clone(client);
                return self.count_requests(&client);
            }
            (Ok(_), _) => Err(Reason::Request),
            (Err(reason), _) => Err(reason),
        };
        self.tell(&match done {
            Ok(lease) => Answer { lease, ..Answer::DONE },
            Err(reason) => Answer::refused(reason),
        })
    }

    fn tell(&self, answer: &Answer) -> io::Result<()> {
        self.socket.as_ref().map_or(Ok(()), |socket| packet::tell(socket, answer, &[]))
    }

    /// Counts the asynchronous requests of the client from now on.
    fn count_requests(&mut self, client: &Arc<LeaseClient>) -> io::Result<()> {
        let (requests, theirs) = match Requests::new() {
            Ok(made) => made,
            Err(error) => {
                tracing::warn!("requests of process {} stay on the mount: {error}", self.pid);
                return self.tell(&Answer::refused(Reason::Failed));
            }
        };
        // Before the client can begin any.
        client.set_requests(requests);
        self.makes_requests = true;
        let descriptors = [theirs.counter.as_fd(), theirs.life.as_fd()];
        self.socket
            .as_ref()
            .map_or(Ok(()), |socket| packet::tell(socket, &Answer::DONE, &descriptors))
    }

    /// Publishes a file for a client. One that could only read gets the device anew with the first
    /// file that it may write (S-217).
    fn publish(&mut self, shared: &Arc<Shared>, token: &Token) -> io::Result<()> {
        let published = redeem(shared, token)
            .and_then(|granted| publish(shared, granted).map(|lease| (granted, lease)));
        let (granted, lease) = match published {
            Ok(published) => published,
            Err(reason) => return self.tell(&Answer::refused(reason)),
        };
        let answer = Answer { lease: Some(lease), ..Answer::DONE };
        if !self.is_read_only || !granted.writable {
            return self.tell(&answer);
        }
        let wider = shared.fs.lease_device(false).inspect_err(|error| {
            tracing::warn!("process {} goes on reading only: {error}", self.pid);
        });
        let (Ok(lent), Some(memory), Some(client), Some(socket)) =
            (wider, shared.fs.lease_memory(), &self.client, &self.socket)
        else {
            return self.tell(&answer);
        };
        let descriptors =
            [lent.claim.as_fd(), lent.io.as_fd(), memory.as_fd(), client.memory().as_fd()];
        packet::tell(socket, &answer, &descriptors)?;
        self.is_read_only = false;
        Ok(())
    }

    /// Takes in the process, and publishes the file of its token where that can be.
    fn attach(&mut self, shared: &Arc<Shared>, token: &Token) -> io::Result<()> {
        match self.admit(shared, token) {
            Ok(()) => Ok(()),
            Err(Refused::Because(reason)) => {
                shared.fs.lease_refused(None, reason);
                self.tell(&Answer::refused(reason))
            }
            Err(Refused::Io(error)) => Err(error),
        }
    }

    fn admit(&mut self, shared: &Arc<Shared>, token: &Token) -> Result<(), Refused> {
        let granted = redeem(shared, token)?;
        let desk = shared.desk.get().ok_or(Reason::Off)?;
        let is_read_only = !granted.writable && !desk.owns(self.uid);
        let failed = |error: bedplate_fs::Error| {
            tracing::warn!("process {} gets no lease: {error}", self.pid);
            Reason::Failed
        };
        let lent = shared.fs.lease_device(is_read_only).map_err(failed)?;
        let memory = shared.fs.lease_memory().ok_or(Reason::Off)?;
        let process = Process { descriptor: Arc::clone(&self.process), pid: self.pid };
        let client = shared.fs.lease_attach(self.pid, self.uid, process);
        let client = client.map_err(|error| {
            tracing::warn!("process {} gets no lease: {error}", self.pid);
            Reason::TooManyClients
        })?;
        let lease: Option<Lease> = publish(shared, granted).ok();
        let answer = Answer { lease, is_read_only, ..Answer::DONE };
        let mut descriptors =
            vec![lent.claim.as_fd(), lent.io.as_fd(), memory.as_fd(), client.memory().as_fd()];
        let cache = Cache::of(shared);
        if let Some(Cache { frames, shared }) = &cache {
            descriptors.extend([frames.as_fd(), shared.directory.as_fd(), shared.uses.as_fd()]);
        }
        let told = self
            .socket
            .as_ref()
            .map_or(Ok(()), |socket| packet::tell(socket, &answer, &descriptors));
        match told {
            Ok(()) => {
                (self.client, self.is_read_only) = (Some(client), is_read_only);
                Ok(())
            }
            Err(error) => {
                // It has got nothing.
                shared.fs.lease_detach(&client);
                Err(Refused::Io(error))
            }
        }
    }
}

/// The memory of the cache, as a process gets it.
struct Cache {
    frames: OwnedFd,
    shared: SharedCache,
}

impl Cache {
    /// Nothing where there is none, or no descriptor of it: the process reads on the mount.
    fn of(shared: &Shared) -> Option<Self> {
        let shared = shared.fs.lease_cache()?;
        let frames = shared.frames.for_readers().inspect_err(|error| {
            tracing::warn!("a process does not read in the cache: {error}");
        });
        Some(Self { frames: frames.ok()?, shared })
    }
}

/// Why a process was not taken in.
enum Refused {
    Because(Reason),
    Io(io::Error),
}

impl From<Reason> for Refused {
    fn from(reason: Reason) -> Self {
        Self::Because(reason)
    }
}

/// Publishes the file of a request; takes note of why not.
fn publish(shared: &Arc<Shared>, granted: Granted) -> Result<Lease, Reason> {
    let refused = |reason: &Reason| shared.fs.lease_refused(Some(granted.ino), *reason);
    shared.publish(granted.ino).inspect_err(refused)
}

fn redeem(shared: &Shared, token: &Token) -> Result<Granted, Reason> {
    shared.desk.get().map_or(Err(Reason::Off), |desk: &Desk| desk.redeem(token))
}
