//! Lists of reads and writes: one thread's, with many calls in flight.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use bedplate_block::AlignedBuf;
use parking_lot::{Condvar, Mutex};

use crate::client::{Client, Later};
use crate::file::{File, check_range};
use crate::inode::Turn;
use crate::link::{Bytes, Submission};
use crate::transfer::{End, Part, Transfer};
use crate::wire::status::Status;
use crate::{Error, Result};

/// The end of one operation.
#[derive(Debug)]
pub struct Completion {
    /// The token given with it.
    pub token: u64,
    /// How many bytes were moved: fewer than the buffer has only where the file ends; or what
    /// failed.
    pub result: Result<usize>,
    /// Its buffer.
    pub buf: AlignedBuf,
}

/// An operation that is to begin.
struct Waiting {
    token: u64,
    file: Arc<File>,
    offset: u64,
    buf: AlignedBuf,
    writes: bool,
}

impl Waiting {
    fn transfer(&self) -> &Transfer {
        self.file.transfer()
    }

    /// Carries it out at once.
    fn carry_out(mut self) -> Completion {
        let result = if self.writes {
            self.file.write_at(&self.buf, self.offset).map(|()| self.buf.len())
        } else {
            self.file.read_at(&mut self.buf, self.offset)
        };
        Completion { token: self.token, result, buf: self.buf }
    }
}

/// An operation that is under way.
struct Operation {
    waiting: Waiting,
    /// What is written.
    bytes: Option<Bytes>,
    /// Calls that are not answered.
    calls: usize,
    /// Up to where bytes were moved; less where the file ends there.
    end: usize,
    failure: Option<Error>,
    later: Later,
}

/// What a connection's thread tells of a call.
struct Arrival {
    id: u64,
    /// Of the buffer.
    part: Range<usize>,
    end: End<Moved>,
}

enum Moved {
    Read(Part),
    Written(usize),
}

#[derive(Default)]
struct Arrivals {
    all: Mutex<VecDeque<Arrival>>,
    here: Condvar,
}

impl Arrivals {
    fn tell(&self, arrival: Arrival) {
        self.all.lock().push_back(arrival);
        self.here.notify_one();
    }
}

/// One thread's submission and completion pair, for files of any clients. Operations complete in any
/// order; those of a file in mode `direct` begin in theirs.
pub struct Queue {
    depth_max: usize,
    waiting: VecDeque<Waiting>,
    under_way: HashMap<u64, Operation>,
    next: u64,
    arrivals: Arc<Arrivals>,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

impl Queue {
    /// Makes one of at most so many operations.
    #[must_use]
    pub fn new(depth_max: usize) -> Self {
        Self {
            depth_max: depth_max.max(1),
            waiting: VecDeque::new(),
            under_way: HashMap::new(),
            next: 0,
            arrivals: Arc::default(),
        }
    }

    /// Returns how many operations are not complete.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.waiting.len() + self.under_way.len()
    }

    /// Adds a read that fills `buf`.
    ///
    /// # Errors
    /// Gives the buffer back when the queue is full.
    pub fn read(
        &mut self,
        file: &Arc<File>,
        buf: AlignedBuf,
        offset: u64,
        token: u64,
    ) -> Result<(), AlignedBuf> {
        self.push(Waiting { token, file: Arc::clone(file), offset, buf, writes: false })
    }

    /// Adds a write of the whole buffer.
    ///
    /// # Errors
    /// Gives the buffer back when the queue is full.
    pub fn write(
        &mut self,
        file: &Arc<File>,
        buf: AlignedBuf,
        offset: u64,
        token: u64,
    ) -> Result<(), AlignedBuf> {
        self.push(Waiting { token, file: Arc::clone(file), offset, buf, writes: true })
    }

    fn push(&mut self, waiting: Waiting) -> Result<(), AlignedBuf> {
        if self.in_flight() == self.depth_max {
            return Err(waiting.buf);
        }
        self.waiting.push_back(waiting);
        Ok(())
    }

    /// Submits what was added, waits until at least `min` operations are complete, or as many as
    /// there are, and appends them to `out`.
    pub fn complete(&mut self, min: usize, out: &mut Vec<Completion>) {
        let min = min.min(self.in_flight()) + out.len();
        self.begin_all(out);
        loop {
            let arrived = {
                let mut all = self.arrivals.all.lock();
                while all.is_empty() && out.len() < min && !self.under_way.is_empty() {
                    self.arrivals.here.wait(&mut all);
                }
                std::mem::take(&mut *all)
            };
            let is_idle = arrived.is_empty();
            let mut again: Vec<_> =
                arrived.into_iter().filter_map(|arrival| self.take(arrival, out)).collect();
            submit(&mut again);
            self.begin_all(out);
            if is_idle && (out.len() >= min || self.in_flight() == 0) {
                return;
            }
        }
    }

    /// Begins what waits, in its order.
    fn begin_all(&mut self, out: &mut Vec<Completion>) {
        let mut calls = Vec::new();
        while let Some(waiting) = self.waiting.pop_front() {
            let turn = turn_of(&waiting, false).unwrap_or_else(|| {
                // Calls in flight hold what is waited for, and end by themselves, once they are sent.
                submit(&mut calls);
                turn_of(&waiting, true).expect("it was waited for")
            });
            if turn.pages.is_some() {
                // The cache has it, or reads it ahead: there is no call to wait for later.
                drop(turn);
                submit(&mut calls);
                out.push(waiting.carry_out());
            } else {
                self.begin(waiting, &turn, &mut calls, out);
            }
        }
        submit(&mut calls);
    }

    fn begin(
        &mut self,
        waiting: Waiting,
        turn: &Turn,
        calls: &mut Vec<(Client, Submission)>,
        out: &mut Vec<Completion>,
    ) {
        let Waiting { token, offset, .. } = waiting;
        let len = waiting.buf.len();
        let checked = check_range(len, offset);
        if len == 0 || checked.is_err() {
            out.push(Completion { token, result: checked.map(|()| 0), buf: waiting.buf });
            return;
        }
        let client = &waiting.transfer().client;
        let limits = client.0.limits;
        let step = if waiting.writes { limits.write_bytes } else { limits.read_bytes } as usize;
        let later = Later::new(client.url());
        let bytes = waiting.writes.then(|| Bytes::from(&waiting.buf[..]));
        let operation = Operation { waiting, bytes, calls: 0, end: len, failure: None, later };
        let id = self.next;
        self.next += 1;
        self.under_way.insert(id, operation);
        for at in 0..len.div_ceil(step) {
            calls.push(self.call(id, at * step..len.min((at + 1) * step), turn.clone()));
        }
    }

    /// Makes the call of a part of an operation.
    fn call(&mut self, id: u64, part: Range<usize>, turn: Turn) -> (Client, Submission) {
        let operation = self.under_way.get_mut(&id).expect("it is under way");
        operation.calls += 1;
        let arrivals = Arc::clone(&self.arrivals);
        let (transfer, offset) = (operation.waiting.transfer(), operation.waiting.offset);
        let told = part.clone();
        let call = match &operation.bytes {
            Some(bytes) => transfer.writing(bytes, part, offset, turn, move |end| {
                arrivals.tell(Arrival { id, part: told, end: end.map(Moved::Written) });
            }),
            None => transfer.reading(offset + part.start as u64, part.len(), turn, move |end| {
                arrivals.tell(Arrival { id, part: told, end: end.map(Moved::Read) });
            }),
        };
        (transfer.client.clone(), call)
    }

    /// Takes the end of a call; returns the call that goes on from it.
    fn take(
        &mut self,
        arrival: Arrival,
        out: &mut Vec<Completion>,
    ) -> Option<(Client, Submission)> {
        let Arrival { id, part, end } = arrival;
        let operation = self.under_way.get_mut(&id).expect("a call belongs to an operation");
        operation.calls -= 1;
        let rest = match end {
            End::Done(Moved::Read(told)) => {
                let bytes = told.bytes();
                operation.waiting.buf[part.start..part.start + bytes.len()].copy_from_slice(bytes);
                let got = part.start + bytes.len();
                if told.is_end && got < part.end {
                    operation.end = operation.end.min(got);
                }
                if told.is_end { part.end..part.end } else { got..part.end }
            }
            End::Done(Moved::Written(count)) => part.start + count..part.end,
            End::Later if operation.later.wait() => part,
            End::Later => {
                operation.failure.get_or_insert(Error::status("go on", Status::Jukebox));
                part.end..part.end
            }
            End::Failed(error) => {
                operation.failure.get_or_insert(error);
                part.end..part.end
            }
        };
        if !rest.is_empty() && operation.failure.is_none() {
            let turn = turn_of(&operation.waiting, true).expect("it was waited for");
            return Some(self.call(id, rest, turn));
        }
        if operation.calls == 0 {
            let operation = self.under_way.remove(&id).expect("it was just there");
            out.push(operation.complete());
        }
        None
    }
}

fn turn_of(waiting: &Waiting, waits: bool) -> Option<Turn> {
    waiting.file.turn(waiting.writes, waits)
}

/// Makes calls, those of one client together.
fn submit(calls: &mut Vec<(Client, Submission)>) {
    let mut calls = calls.drain(..).peekable();
    while let Some((client, first)) = calls.next() {
        let mut together = vec![first];
        while let Some((_, next)) = calls.next_if(|(other, _)| other.is_same(&client)) {
            together.push(next);
        }
        client.0.link().submit_all(together);
    }
}

impl Operation {
    fn complete(self) -> Completion {
        let Waiting { token, file, buf, writes, .. } = self.waiting;
        let result = match self.failure {
            Some(error) => Err(error),
            None if writes => file.transfer().bound().map(|()| self.end),
            None => Ok(self.end),
        };
        Completion { token, result, buf }
    }
}

impl Drop for Queue {
    /// Waits for what is under way: it uses what its files share.
    fn drop(&mut self) {
        self.waiting.clear();
        let mut ends = Vec::new();
        while !self.under_way.is_empty() {
            self.complete(1, &mut ends);
            ends.clear();
        }
    }
}
