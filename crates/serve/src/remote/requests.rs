//! One arm a request, and its answer.

use std::ops::Range;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use bedplate_fuse::{HeaderIn, Notifier, Reply, Request, ThreadCount, opcode};
use bedplate_nfs::{Client, Handle, LockOwner, Mode};

use super::callers::Callers;
use super::files::Opened;
use super::handles::Handles;
use super::interrupts::{Ticket, Tickets};
use super::listing::Listing;
use super::nodes::Nodes;
use crate::fuse::errno::{Answer, Errno};
use crate::fuse::translate::fields::Fields;

/// What the kernel calls the root (`FUSE_ROOT_ID`).
pub(super) const ROOT: u64 = 1;
/// Threads at the beginning.
pub(super) const THREADS_MIN: usize = 4;
/// And at most: each waits with one request for the server.
const THREADS_MAX: usize = 512;

/// A directory of a server, as it is served to the kernel.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) callers: Callers,
    pub(super) mode: Mode,
    pub(super) nodes: Nodes,
    pub(super) files: Handles<Opened>,
    pub(super) listings: Handles<Listing>,
    pub(super) notifier: OnceLock<Notifier>,
    tickets: Tickets,
    /// Sets how many threads serve.
    pub(super) threads: OnceLock<ThreadCount>,
    count: AtomicUsize,
    busy: AtomicUsize,
    /// Distinguishes names of files that lost theirs.
    pub(super) hidden: AtomicUsize,
    /// A program has locked something.
    pub(super) has_locks: AtomicBool,
}

/// A request, apart from the right to answer it.
pub(super) struct Asked {
    header: HeaderIn,
    operation: Vec<u8>,
    pub(super) payload: Arc<[u8]>,
}

/// An answer, and what is taken back where it reaches its caller no more.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) bytes: Vec<u8>,
    /// Nodes that the kernel is told of.
    pub(super) nodes: Vec<u64>,
    pub(super) file: Option<u64>,
    pub(super) listing: Option<u64>,
    pub(super) lock: Option<TakenLock>,
}

/// A lock that was taken for a caller.
#[derive(Debug)]
pub(super) struct TakenLock {
    pub(super) handle: u64,
    pub(super) owner: LockOwner,
    pub(super) range: Range<u64>,
}

impl Done {
    pub(super) fn of(bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::default() }
    }
}

impl Asked {
    fn of(request: &Request<'_>) -> Self {
        Self {
            header: request.header,
            operation: request.operation.to_vec(),
            payload: request.payload.into(),
        }
    }

    pub(super) fn fields(&self) -> Fields<'_> {
        let (header, operation, payload) = (self.header, &self.operation[..], &self.payload[..]);
        Fields(Request { header, operation, payload })
    }

    pub(super) fn header(&self) -> &HeaderIn {
        &self.header
    }

    /// Returns the name that the payload begins with.
    pub(super) fn name(&self) -> Answer<&[u8]> {
        Ok(self.fields().name()?.0.as_encoded_bytes())
    }

    /// Returns the two names of the payload.
    pub(super) fn names(&self) -> Answer<(&[u8], &[u8])> {
        let (first, second) = self.fields().names()?;
        Ok((first.as_encoded_bytes(), second.as_encoded_bytes()))
    }
}

impl Remote {
    pub(super) fn new(client: Client, root: &Handle, mode: Mode) -> std::io::Result<Self> {
        Ok(Self {
            nodes: Nodes::new(root),
            callers: Callers::new(client),
            mode,
            files: Handles::default(),
            listings: Handles::default(),
            notifier: OnceLock::new(),
            tickets: Tickets::start()?,
            threads: OnceLock::new(),
            count: AtomicUsize::new(THREADS_MIN),
            busy: AtomicUsize::new(0),
            hidden: AtomicUsize::new(0),
            has_locks: AtomicBool::new(false),
        })
    }

    /// Serves one request.
    pub(super) fn serve(&self, reply: Reply) {
        match reply.request().header.opcode {
            opcode::FORGET | opcode::BATCH_FORGET => {
                for (number, count) in Fields(reply.request()).forgotten() {
                    self.nodes.forget(number, count);
                }
                reply.send(0);
            }
            opcode::INTERRUPT => {
                let unique = Fields(reply.request()).u64(0);
                if self.tickets.interrupt(unique) {
                    reply.send(0);
                } else {
                    // It is about to be entered, or was answered: then the kernel asks no more.
                    reply.refuse(libc::EAGAIN);
                }
            }
            _ => {
                self.begin();
                self.serve_waiting(reply);
                self.busy.fetch_sub(1, SeqCst);
            }
        }
    }

    /// Notes that a thread may wait for the server, and has another one take what comes then: above
    /// all that a caller was killed.
    fn begin(&self) {
        let busy = self.busy.fetch_add(1, SeqCst) + 1;
        let count = self.count.load(SeqCst);
        if busy < count || count >= THREADS_MAX {
            return;
        }
        let more = (count * 2).min(THREADS_MAX);
        if self.count.compare_exchange(count, more, SeqCst, SeqCst).is_ok()
            && let Some(Err(error)) = self.threads.get().map(|threads| threads.set(more))
        {
            self.count.store(count, SeqCst);
            tracing::debug!("{count} threads serve programs, and there are no more: {error}");
        }
    }

    /// Serves a request that may wait for the server.
    fn serve_waiting(&self, reply: Reply) {
        let asked = Asked::of(&reply.request());
        let ticket = self.tickets.enter(reply);
        if asked.header.opcode == opcode::FLUSH {
            self.tickets.watch(&ticket);
        }
        let answer = self.answer(&asked, &ticket);
        self.tickets.leave(asked.header.unique);
        match (ticket.take(), answer) {
            (Some(reply), Ok(done)) if done.bytes.is_empty() => reply.send(0),
            (Some(reply), Ok(done)) => reply.send_bytes(&done.bytes),
            (Some(reply), Err(errno)) => reply.refuse(errno.code()),
            (None, Ok(done)) => self.take_back(&done),
            (None, Err(_)) => {}
        }
    }

    /// Takes back what a caller that is gone was to be given.
    fn take_back(&self, done: &Done) {
        done.nodes.iter().for_each(|number| self.nodes.forget(*number, 1));
        done.file.iter().for_each(|handle| self.release(*handle));
        done.listing.iter().for_each(|handle| drop(self.listings.remove(*handle)));
        done.lock.iter().for_each(|taken| self.unlock_again(taken));
    }

    fn answer(&self, asked: &Asked, ticket: &Ticket) -> Answer<Done> {
        match asked.header.opcode {
            opcode::READ => self.read(asked),
            opcode::WRITE => self.write(asked),
            opcode::FLUSH => self.flush(asked),
            opcode::FSYNC => self.sync(asked),
            opcode::SETLK => self.set_lock(asked, ticket, false),
            opcode::SETLKW => self.set_lock(asked, ticket, true),
            opcode::GETLK => self.get_lock(asked),
            opcode::OPEN => self.open(asked),
            opcode::CREATE => self.create(asked),
            opcode::RELEASE => {
                self.release(asked.fields().u64(0));
                Ok(Done::default())
            }
            opcode::GETATTR => self.getattr(asked),
            opcode::SETATTR => self.setattr(asked),
            opcode::STATFS => self.statfs(asked),
            opcode::ACCESS => self.access(asked),
            opcode::OPENDIR => self.open_listing(asked),
            opcode::READDIR => self.list(asked, false),
            opcode::READDIRPLUS => self.list(asked, true),
            opcode::RELEASEDIR => {
                drop(self.listings.remove(asked.fields().u64(0)));
                Ok(Done::default())
            }
            // Names are durable when the server answers.
            opcode::FSYNCDIR => Ok(Done::default()),
            opcode::IOCTL => Err(Errno::NOTTY),
            _ => self.change_names(asked),
        }
    }
}
