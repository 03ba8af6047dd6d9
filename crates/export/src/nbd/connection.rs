//! One connection: its thread waits for the socket, the queue and the lane at once.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_block::AlignedBuf;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::handshake::{self, Offer};
use super::inbox::Inbox;
use super::peer::{End, Peer};
use super::request::{Command, Refused, Request};
use super::serving::Serving;
use super::transport::Transport;
use super::wire::{self, command};
use crate::buffers::{Budget, Buffers};
use crate::socket::Socket;

/// How long a client may take until it uses an export.
const HANDSHAKE_TIME: Duration = Duration::from_secs(60);
/// How long a client may keep silent in the middle of a request, or take no byte of a reply.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long replies may take to leave when the client or the server ends.
const FAREWELL_TIME: Duration = Duration::from_secs(5);
/// How often what another thread completed is looked for, and memory that was missing.
const LOOK: Duration = Duration::from_millis(10);
/// How long a connection is idle before it gives its memory back; how often patience is looked at.
const REST: Duration = Duration::from_secs(1);

/// The request that is being received.
enum Incoming {
    /// None.
    None,
    /// There is no memory for it yet.
    NoMemory(Request, Command),
    /// The data of a write.
    Data { request: Request, command: Command, buf: AlignedBuf, got: usize },
    /// The data of a write that is refused.
    Skip { request: Request, refused: Refused, left: usize },
}

/// Why no more requests are begun for now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pause {
    /// The next one is not here.
    Input,
    /// There are too many under way.
    Room,
    /// There is no memory.
    Memory,
}

struct Connection {
    peer: Peer,
    serving: Serving,
    incoming: Incoming,
    /// No more requests are taken.
    closing: Option<Instant>,
    heard: Instant,
    told: Instant,
}

/// Serves a client to its end.
pub fn serve(
    socket: Socket,
    woken: &Arc<UnixStream>,
    offer: &Offer<'_>,
    budget: &Arc<Budget>,
) -> Result<(), End> {
    socket.prepare()?;
    let mut peer = Peer::new(Transport::new(socket), Arc::clone(woken), HANDSHAKE_TIME);
    let Some(session) = handshake::agree(&mut peer, offer)? else { return Ok(()) };
    tracing::info!(export = session.export.name, "a client uses an export");
    let now = Instant::now();
    let serving = Serving::new(session, Buffers::new(Arc::clone(budget)));
    let mut connection = Connection {
        peer,
        serving,
        incoming: Incoming::None,
        closing: None,
        heard: now,
        told: now,
    };
    let end = connection.run();
    connection.peer.transport.close();
    end
}

impl Connection {
    fn run(&mut self) -> Result<(), End> {
        let mut pause = self.take_requests()?;
        self.serving.collect(0, false)?;
        loop {
            let ready = self.wait(pause)?;
            if ready.input {
                self.receive()?;
                pause = self.take_requests()?;
            }
            let min = usize::from(!ready.input && self.serving.waits_for_queue());
            let done = self.serving.collect(min, ready.lane)?;
            let waiting = self.has_unsent();
            self.peer.transport.send_waiting()?;
            let sent =
                self.serving.outbox.send(&mut self.peer.transport, &mut self.serving.buffers)?;
            if sent || !waiting {
                self.told = Instant::now();
            }
            if pause != Pause::Input && (done || sent || ready.nothing) {
                pause = self.take_requests()?;
                // What was just begun is submitted.
                self.serving.collect(0, false)?;
            }
            if self.is_over() {
                return Ok(());
            }
            self.keep_patience(pause)?;
            if ready.nothing && self.serving.is_idle() && self.serving.outbox.is_empty() {
                self.serving.buffers.shrink();
            }
        }
    }

    /// Returns whether replies wait for the socket.
    fn has_unsent(&self) -> bool {
        !self.serving.outbox.is_empty() || self.peer.transport.has_unsent()
    }

    fn is_over(&self) -> bool {
        self.closing.is_some() && self.serving.is_idle() && !self.has_unsent()
    }

    /// Waits until there is something to do.
    fn wait(&mut self, pause: Pause) -> Result<Ready, End> {
        let mut wanted = PollFlags::empty();
        if pause == Pause::Input && self.closing.is_none() {
            wanted |= PollFlags::IN;
        }
        if self.has_unsent() {
            wanted |= PollFlags::OUT;
        }
        let hears = wanted.contains(PollFlags::IN);
        let holds_more = hears && self.peer.transport.may_hold_more();
        let timeout = if holds_more { Some(Duration::ZERO) } else { self.timeout(pause) };
        let lane = self.serving.lane();
        let queue = self.serving.queue_event();
        let mut events = Vec::with_capacity(4);
        events.push(PollFd::new(&self.peer.transport, wanted));
        // Once it is readable it stays so.
        if self.closing.is_none() {
            events.push(PollFd::new(&*self.peer.woken, PollFlags::IN));
        }
        events.extend(queue.map(|queue| PollFd::new(queue, PollFlags::IN)));
        events.extend(lane.map(|lane| PollFd::from_borrowed_fd(lane.as_fd(), PollFlags::IN)));
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        let count = match poll(&mut events, timeout.as_ref()) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(End::Io(error.into())),
        };
        let socket = events[0].revents();
        let gone = socket.intersects(PollFlags::HUP | PollFlags::ERR);
        if gone && !hears {
            return Err(End::Closed);
        }
        let ready = Ready {
            nothing: count == 0 && !holds_more,
            // What a peer sent before it went is still read.
            input: hears && (gone || holds_more || socket.contains(PollFlags::IN)),
            lane: lane.is_some() && events.last().is_some_and(|lane| !lane.revents().is_empty()),
        };
        let stopped = self.closing.is_none() && !events[1].revents().is_empty();
        if stopped {
            self.closing = Some(Instant::now() + FAREWELL_TIME);
        }
        Ok(ready)
    }

    /// Returns how long nothing may happen; `None`: for ever.
    fn timeout(&self, pause: Pause) -> Option<Duration> {
        if self.serving.waits_for_queue() {
            return Some(Duration::ZERO);
        }
        if self.serving.uses_queue() || pause == Pause::Memory {
            return Some(LOOK);
        }
        let in_message = !matches!(self.incoming, Incoming::None)
            || !self.peer.inbox.bytes().is_empty()
            || self.has_unsent();
        let tires = in_message || self.closing.is_some() || self.serving.buffers.is_keeping();
        tires.then_some(REST)
    }

    fn keep_patience(&self, pause: Pause) -> Result<(), End> {
        let now = Instant::now();
        if self.closing.is_some_and(|until| now > until && self.has_unsent()) {
            return Err(End::Stopped);
        }
        let in_request =
            !matches!(self.incoming, Incoming::None) || !self.peer.inbox.bytes().is_empty();
        let silent = in_request && pause == Pause::Input && now - self.heard > PATIENCE;
        let deaf = self.has_unsent() && now - self.told > PATIENCE;
        if silent || deaf { Err(End::TimedOut) } else { Ok(()) }
    }

    /// Receives what is there: the rest of a large write straight to its buffer.
    fn receive(&mut self) -> Result<(), End> {
        let transport = &mut self.peer.transport;
        let received = match &mut self.incoming {
            Incoming::Data { buf, got, .. }
                if buf.len() - *got > Inbox::CAPACITY / 2 && self.peer.inbox.bytes().is_empty() =>
            {
                transport.read(&mut buf[*got..]).inspect(|count| *got += count)
            }
            _ => self.peer.inbox.fill(transport),
        };
        match received {
            Ok(0) => Err(End::Closed),
            Ok(_) => {
                self.heard = Instant::now();
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Begins all requests that are here and for which there is room.
    fn take_requests(&mut self) -> Result<Pause, End> {
        loop {
            let (next, pause) = match std::mem::replace(&mut self.incoming, Incoming::None) {
                Incoming::None => self.next_request()?,
                Incoming::NoMemory(request, command) => self.find_memory(request, command)?,
                Incoming::Data { request, command, mut buf, mut got } => {
                    got += self.peer.inbox.move_to(&mut buf[got..]);
                    if got < buf.len() {
                        (Incoming::Data { request, command, buf, got }, Some(Pause::Input))
                    } else {
                        self.serving.begin(request, command, Some(buf))?;
                        (Incoming::None, None)
                    }
                }
                Incoming::Skip { request, refused, left } => self.skip(request, refused, left),
            };
            self.incoming = next;
            if let Some(pause) = pause {
                return Ok(pause);
            }
        }
    }

    fn next_request(&mut self) -> Result<(Incoming, Option<Pause>), End> {
        if self.closing.is_some() {
            return Ok((Incoming::None, Some(Pause::Input)));
        }
        let Some(head) = self.peer.inbox.bytes().first_chunk::<{ wire::REQUEST_BYTES }>() else {
            return Ok((Incoming::None, Some(Pause::Input)));
        };
        if !self.serving.has_room() {
            return Ok((Incoming::None, Some(Pause::Room)));
        }
        let Some(request) = Request::parse(head) else {
            return Err(End::Protocol("the client sent no request where one was due"));
        };
        self.peer.inbox.consume(wire::REQUEST_BYTES);
        if request.kind == command::DISC {
            self.closing = Some(Instant::now() + FAREWELL_TIME);
            return Ok((Incoming::None, Some(Pause::Input)));
        }
        match self.serving.decide(&request) {
            Err(refused) => {
                let left = request.payload_len() as usize;
                Ok((Incoming::Skip { request, refused, left }, None))
            }
            Ok(command) if command.has_data() => Ok((Incoming::NoMemory(request, command), None)),
            Ok(command) => {
                self.serving.begin(request, command, None)?;
                Ok((Incoming::None, None))
            }
        }
    }

    fn find_memory(
        &mut self,
        request: Request,
        command: Command,
    ) -> Result<(Incoming, Option<Pause>), End> {
        let Some(buf) = self.serving.buffers.take(request.len as usize) else {
            return Ok((Incoming::NoMemory(request, command), Some(Pause::Memory)));
        };
        if command == Command::Read {
            self.serving.begin(request, command, Some(buf))?;
            return Ok((Incoming::None, None));
        }
        Ok((Incoming::Data { request, command, buf, got: 0 }, None))
    }

    fn skip(
        &mut self,
        request: Request,
        refused: Refused,
        left: usize,
    ) -> (Incoming, Option<Pause>) {
        let count = left.min(self.peer.inbox.bytes().len());
        self.peer.inbox.consume(count);
        let left = left - count;
        if left > 0 {
            return (Incoming::Skip { request, refused, left }, Some(Pause::Input));
        }
        self.serving.refuse(&request, &refused);
        (Incoming::None, None)
    }
}

/// What there is to do.
struct Ready {
    /// The time was over.
    nothing: bool,
    input: bool,
    lane: bool,
}
