//! The thread of a queue: it waits for the guest, the disk's queue and the lane at once.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use virtio_queue::Queue;

use super::device::Device;
use super::ring::{Halt, Ring};
use super::serving::{Pause, Serving};

/// How often what another thread completed is looked for, and memory that was missing.
const LOOK: Duration = Duration::from_millis(10);
/// How long a queue is idle before it gives its memory back.
const REST: Duration = Duration::from_secs(1);

/// A queue that is served.
#[derive(Debug)]
pub struct Worker {
    stop: Arc<OwnedFd>,
    thread: JoinHandle<Ended>,
}

/// What is left of one.
#[derive(Debug)]
pub struct Ended {
    pub queue: Queue,
    /// It cannot go on.
    pub is_broken: bool,
}

impl Worker {
    /// Begins to serve a queue, whose requests `kick` tells of.
    pub fn start(
        index: usize,
        ring: Ring,
        kick: Arc<OwnedFd>,
        device: &Arc<Device>,
    ) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let serving = Serving::new(device, ring);
        let served = Served { index, serving, kick, stop: Arc::clone(&stop) };
        let thread = Builder::new().name("bedplate-vhu-q".into()).spawn(move || served.run())?;
        Ok(Self { stop, thread })
    }

    /// Answers what is under way, and ends; `None` where the thread had panicked.
    pub fn stop(self) -> Option<Ended> {
        rustix::io::write(&self.stop, &1_u64.to_ne_bytes()).expect("the counter is 0 or 1");
        self.thread.join().ok()
    }
}

struct Served {
    index: usize,
    serving: Serving,
    kick: Arc<OwnedFd>,
    /// Readable when the queue is to be left.
    stop: Arc<OwnedFd>,
}

impl Served {
    fn run(mut self) -> Ended {
        let served = self.serve();
        let is_broken = served.is_err();
        if let Err(halt) = served {
            tracing::warn!("queue {} of the guest is served no more: {halt}", self.index);
        }
        if let Err(halt) = self.serving.drain()
            && !is_broken
        {
            tracing::warn!("queue {} of the guest is left with requests: {halt}", self.index);
        }
        Ended { queue: self.serving.into_queue(), is_broken }
    }

    fn serve(&mut self) -> Result<(), Halt> {
        let mut pause = self.serving.take_requests()?;
        self.serving.collect(0)?;
        loop {
            let ready = self.wait(pause)?;
            if ready.stop {
                return Ok(());
            }
            let min = usize::from(!ready.kick && self.serving.waits_for_queue());
            let done = self.serving.collect(min)?;
            if ready.kick || (pause != Pause::Input && (done || ready.nothing)) {
                pause = self.serving.take_requests()?;
                // What was just begun is submitted.
                self.serving.collect(0)?;
            }
            if ready.nothing && self.serving.is_idle() {
                self.serving.rest();
            }
        }
    }

    /// Waits until there is something to do.
    fn wait(&self, pause: Pause) -> Result<Ready, Halt> {
        let hears = pause == Pause::Input;
        let mut events = Vec::with_capacity(4);
        events.push(PollFd::new(&*self.stop, PollFlags::IN));
        let wanted = if hears { PollFlags::IN } else { PollFlags::empty() };
        events.push(PollFd::new(&*self.kick, wanted));
        events.extend(self.serving.queue_event().map(|queue| PollFd::new(queue, PollFlags::IN)));
        let lane = self.serving.lane();
        events.extend(lane.map(|lane| PollFd::from_borrowed_fd(lane.as_fd(), PollFlags::IN)));
        let timeout = self.timeout(pause).and_then(|time| Timespec::try_from(time).ok());
        let count = match poll(&mut events, timeout.as_ref()) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(error) => return Err(Halt::System(error.into())),
        };
        let kick = events[1].revents();
        if kick.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            return Err(Halt::Guest("what tells of its requests is closed"));
        }
        let ready = Ready {
            nothing: count == 0,
            stop: !events[0].revents().is_empty(),
            kick: kick.contains(PollFlags::IN),
        };
        if ready.kick {
            self.take_kick()?;
        }
        Ok(ready)
    }

    fn take_kick(&self) -> Result<(), Halt> {
        let mut count = [0; 8];
        match rustix::io::read(&*self.kick, &mut count) {
            Ok(8) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Ok(_) => Err(Halt::Guest("what tells of its requests is no event descriptor")),
            Err(error) => Err(Halt::System(error.into())),
        }
    }

    /// Returns how long nothing may happen; `None`: for ever.
    fn timeout(&self, pause: Pause) -> Option<Duration> {
        if pause == Pause::Turn || self.serving.waits_for_queue() {
            return Some(Duration::ZERO);
        }
        if pause == Pause::Memory || self.serving.uses_queue() {
            return Some(LOOK);
        }
        self.serving.is_keeping().then_some(REST)
    }
}

/// What there is to do.
struct Ready {
    /// The time was over.
    nothing: bool,
    stop: bool,
    kick: bool,
}
