//! One connection: its thread takes requests from the socket and hands them to those that carry
//! them out, and sends what of replies the socket did not take at once.

use std::io;
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_block::Workers;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};

use super::link::Link;
use super::outbox::{Budget, Outbox};
use super::record::Incoming;
use super::service::{CALL_BYTES_MAX, Service, reply_bytes_max};
use crate::socket::{Socket, retry};

/// How long a client may keep silent in the middle of a request, or take no byte of a reply.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long replies may take to leave when the server ends.
const FAREWELL_TIME: Duration = Duration::from_secs(5);
/// How often memory that was missing is looked for.
const LOOK: Duration = Duration::from_millis(10);
/// What is received at once.
const CHUNK_BYTES: usize = 64 << 10;

/// Why a connection ends.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The client has gone.
    Closed,
    /// The server ends.
    Stopped,
    /// The client sent what is no call.
    Garbage,
    /// It was silent for too long.
    TimedOut,
    Io(io::ErrorKind),
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Closed => f.write_str("the client has closed it"),
            Self::Stopped => f.write_str("the server ends"),
            Self::Garbage => f.write_str("the client sent what is no call, or one too long"),
            Self::TimedOut => f.write_str("the client stopped in the middle of a message"),
            Self::Io(kind) => write!(f, "{kind}"),
        }
    }
}

struct Connection {
    service: Arc<Service>,
    workers: Arc<Workers>,
    outbox: Arc<Outbox>,
    link: Arc<Link>,
    incoming: Incoming,
    /// Bytes that were received and not taken: behind a request for which there is no room.
    input: Vec<u8>,
    /// A request for which there is no room.
    waiting: Option<Vec<u8>>,
    heard: Instant,
    told: Instant,
}

/// Serves a client to its end.
pub fn serve(
    socket: Socket,
    peer: IpAddr,
    woken: &UnixStream,
    service: &Arc<Service>,
    workers: &Arc<Workers>,
    budget: &Arc<Budget>,
) -> End {
    let prepared =
        socket.prepare().and_then(|()| Outbox::new(socket, Arc::clone(budget)).map(Arc::new));
    let outbox = match prepared {
        Ok(outbox) => outbox,
        Err(error) => return End::Io(error.kind()),
    };
    let now = Instant::now();
    let mut connection = Connection {
        service: Arc::clone(service),
        workers: Arc::clone(workers),
        outbox,
        link: Link::new(peer),
        incoming: Incoming::new(CALL_BYTES_MAX),
        input: Vec::new(),
        waiting: None,
        heard: now,
        told: now,
    };
    let end = connection.run(woken);
    connection.take_leave(&end);
    end
}

impl Connection {
    fn run(&mut self, woken: &UnixStream) -> End {
        loop {
            let unsent = self.outbox.has_unsent();
            match self.wait(woken, unsent) {
                Ok(true) => {}
                Ok(false) => return End::Stopped,
                Err(end) => return end,
            }
            self.outbox.looked();
            if self.outbox.is_broken() {
                return End::Closed;
            }
            if self.outbox.send() || !unsent {
                self.told = Instant::now();
            }
            if let Err(end) = self.take_requests() {
                return end;
            }
            let silent = self.incoming.has_begun() && self.waiting.is_none();
            if silent && self.heard.elapsed() > PATIENCE || self.told.elapsed() > PATIENCE {
                return End::TimedOut;
            }
        }
    }

    /// Waits until there is something to do; returns whether the server goes on.
    fn wait(&self, woken: &UnixStream, unsent: bool) -> Result<bool, End> {
        let mut asked = PollFlags::empty();
        asked.set(PollFlags::IN, self.waiting.is_none());
        asked.set(PollFlags::OUT, unsent);
        let timeout = if self.waiting.is_some() {
            Some(LOOK)
        } else {
            (unsent || self.incoming.has_begun()).then_some(PATIENCE)
        };
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        let event = self.outbox.event();
        let mut events = [
            PollFd::new(self.outbox.socket(), asked),
            PollFd::new(&event, PollFlags::IN),
            PollFd::new(woken, PollFlags::IN),
        ];
        match poll(&mut events, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(End::Io(io::Error::from(error).kind())),
        }
        if !events[2].revents().is_empty() {
            return Ok(false);
        }
        // With nothing asked for, the system still tells of a peer that has gone.
        let gone = PollFlags::ERR | PollFlags::HUP;
        if self.waiting.is_some() && events[0].revents().intersects(gone) {
            return Err(End::Closed);
        }
        Ok(true)
    }

    /// Hands over all requests that are here and for which there is room.
    fn take_requests(&mut self) -> Result<(), End> {
        loop {
            if let Some(record) = self.waiting.take() {
                self.begin(record);
                if self.waiting.is_some() {
                    return Ok(());
                }
            }
            if self.input.is_empty() && !self.receive()? {
                return Ok(());
            }
            let (taken, record) = self.incoming.take(&self.input).map_err(|_| End::Garbage)?;
            self.input.drain(..taken);
            if self.input.is_empty() {
                // Most connections are idle.
                self.input = Vec::new();
            }
            self.waiting = record;
        }
    }

    /// Receives what is here; returns whether there was something.
    fn receive(&mut self) -> Result<bool, End> {
        let mut bytes = [0; CHUNK_BYTES];
        match retry(|| self.outbox.socket().read(&mut bytes)) {
            Ok(0) => Err(End::Closed),
            Ok(count) => {
                self.heard = Instant::now();
                self.input = bytes[..count].to_vec();
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(End::Closed),
            Err(error) => Err(End::Io(error.kind())),
        }
    }

    /// Hands a request over, or keeps it until there is room.
    fn begin(&mut self, record: Vec<u8>) {
        let charge = record.len() + reply_bytes_max(&record);
        if !self.outbox.begin(charge) {
            self.waiting = Some(record);
            return;
        }
        let (service, outbox, link) =
            (Arc::clone(&self.service), Arc::clone(&self.outbox), Arc::clone(&self.link));
        let begun = self.workers.submit(move || {
            // One that panics ends its connection, and nothing else.
            let mut ending = Ending { outbox, charge, reply: None };
            ending.reply = service.answer(&link, &record).ok();
        });
        if !begun {
            self.outbox.finish(None, charge);
        }
    }

    /// Waits for what is under way, and sends its replies to a client that is still there.
    fn take_leave(&self, end: &End) {
        let began = Instant::now();
        if *end != End::Stopped {
            self.outbox.give_up();
        }
        while !self.outbox.is_idle() {
            if began.elapsed() > FAREWELL_TIME {
                self.outbox.give_up();
            }
            let mut out = PollFlags::empty();
            out.set(PollFlags::OUT, self.outbox.has_unsent());
            let event = self.outbox.event();
            let mut events =
                [PollFd::new(self.outbox.socket(), out), PollFd::new(&event, PollFlags::IN)];
            // A socket whose peer has gone is ready all the time.
            let events = if out.is_empty() { &mut events[1..] } else { &mut events[..] };
            let _waited = poll(events, Timespec::try_from(FAREWELL_TIME).ok().as_ref());
            self.outbox.looked();
            self.outbox.send();
        }
        let _closed = shutdown(self.outbox.socket(), Shutdown::Both);
    }
}

/// The end of a request, also of one that panicked.
struct Ending {
    outbox: Arc<Outbox>,
    charge: usize,
    reply: Option<Vec<u8>>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.outbox.finish(self.reply.take(), self.charge);
    }
}
