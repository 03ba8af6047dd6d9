//! Writes that a queue has pushed go out together: neighbours fill rows, and all of a batch share
//! the log's records and flushes. A few batches are in flight at once; what is pushed meanwhile
//! waits, and so goes out together with more.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bedplate_block::sync::{Mutex, rank};
use bedplate_block::{AlignedBuf, Completion, Request, RequestKind, Result, Segment};

use super::Parity;
use super::plan::Put;
use super::row_write::{Progress, RowWrite};
use crate::io::epoch::{LayoutEpoch, POLL_INTERVAL};
use crate::io::fanout::Wait;
use crate::io::volume_io::VolumeIo;

/// How many batches of one queue are in flight at once.
const BATCHES_MAX: usize = 4;
/// A batch takes no further request once it has so many bytes, or so many requests, unless that
/// goes on in the row where the last one ended.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_REQUESTS: usize = 32;
const _: () =
    assert!(BATCHES_MAX > 0 && BATCH_REQUESTS > 0, "a batch takes a request, and one is in flight");

/// Requests in flight. Rank G0.4: driven before rows are waited for; a thread that drives it may
/// carry out others, which it only tries to lock.
pub(crate) struct BatchInFlight {
    start: Instant,
    parity: Arc<Parity>,
    /// What it goes by, until all is written and its regions were left.
    epoch: Option<Arc<LayoutEpoch>>,
    requests: Vec<Request>,
    row_write: RowWrite,
    result: Option<Result<()>>,
}

/// What a queue was given to write to a RAID-5.
#[derive(Default)]
pub(crate) struct WriteBatcher {
    waiting: VecDeque<Request>,
    batches: Vec<Arc<BatchLock>>,
    requests_in_flight: usize,
}

/// A batch, locked by the thread that takes it a step further. Rank G0.4.
pub(super) type BatchLock = Mutex<BatchInFlight, { rank::BATCH }>;

impl std::fmt::Debug for BatchInFlight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Flight of {} requests", self.requests.len())
    }
}

impl BatchInFlight {
    /// Takes it as far as it goes; told to wait, it waits for the members once.
    fn go(&mut self, io: &VolumeIo, wait: Wait) -> Progress {
        let parity = Arc::clone(&self.parity);
        if self.result.is_some() {
            return Progress::Over;
        }
        let buffers: Vec<&[u8]> = self
            .requests
            .iter()
            .map(|request| request.buf.as_deref().unwrap_or_default())
            .collect();
        let (progress, result) = match self.row_write.go(io, &parity, &buffers, wait) {
            Ok(Progress::Over) => (Progress::Over, Some(Ok(()))),
            Ok(progress) => (progress, None),
            Err(error) => (Progress::Over, Some(Err(error))),
        };
        if result.as_ref().is_some_and(Result::is_err) {
            // Its rows are free from here on.
            self.row_write = RowWrite::new(&parity, &[]);
        }
        if result.is_some()
            && let Some(epoch) = self.epoch.take()
        {
            // Waiting until no operation holds the epoch need not mean waiting for the queue's
            // owner.
            let segments = self.requests.iter().flat_map(segments);
            segments.for_each(|segment| io.leave(&epoch, segment.offset, segment.len.into()));
        }
        self.result = result;
        debug_assert!(
            self.result.is_none() || self.epoch.is_none(),
            "a batch that ended has left its regions"
        );
        progress
    }
}

impl WriteBatcher {
    /// Returns how many requests have not come back.
    pub fn count(&self) -> usize {
        self.waiting.len() + self.requests_in_flight
    }

    /// Takes a write that was checked.
    pub fn push(&mut self, request: Request) {
        self.waiting.push_back(request);
    }

    /// Sends out what was pushed, as far as there is room in flight.
    pub fn start(&mut self, io: &VolumeIo, done: &mut Vec<Completion>) {
        while let Some(next) = self.waiting.front().filter(|_| self.batches.len() < BATCHES_MAX) {
            let Some(epoch) = io
                .epochs
                .try_for_writes(segments(next).map(|segment| (segment.offset, segment.len.into())))
            else {
                return;
            };
            let Some(parity) = epoch.parity.as_ref().filter(|_| epoch.relayout.is_none()).cloned()
            else {
                // Between two layouts writes go one by one, each part to the layout that it is in.
                let request = self.waiting.pop_front();
                done.extend(request.map(|request| write_now(io, &epoch, request)));
                continue;
            };
            let requests: Vec<Request> = self
                .next_batch(&parity)
                .into_iter()
                .filter_map(|request| entered(io, &epoch, request, done))
                .collect();
            let row_write = RowWrite::new(&parity, &puts(&requests));
            let mut batch = BatchInFlight {
                start: Instant::now(),
                parity: Arc::clone(&parity),
                epoch: Some(epoch),
                row_write,
                requests,
                result: None,
            };
            batch.go(io, Wait::No);
            self.requests_in_flight += batch.requests.len();
            io.meter.begin(batch.requests.len() as u64);
            let batch = Arc::new(Mutex::new(batch));
            parity.batches.lock().push(Arc::clone(&batch));
            self.batches.push(batch);
        }
    }

    /// Takes the requests of a batch off those that wait, the oldest first.
    fn next_batch(&mut self, parity: &Parity) -> Vec<Request> {
        let (mut requests, mut bytes, mut end) = (Vec::new(), 0, 0);
        while let Some(next) = self.waiting.front() {
            let full = bytes >= BATCH_BYTES || requests.len() >= BATCH_REQUESTS;
            // One that goes on in the row where the last one ended would have to wait for it.
            let goes_on = end > 0
                && parity.raid5.place(next.first.offset).row == parity.raid5.place(end - 1).row;
            if full && !(goes_on && bytes < 2 * BATCH_BYTES) {
                break;
            }
            let Some(request) = self.waiting.pop_front() else { break };
            for Segment { offset, len } in segments(&request) {
                bytes += *len as usize;
                end = offset + u64::from(*len);
            }
            requests.push(request);
        }
        requests
    }

    /// Looks how far the batches are; told to wait, it waits until one comes a step further.
    pub fn poll(&mut self, io: &VolumeIo, wait: Wait, done: &mut Vec<Completion>) {
        let (mut wait, before) = (wait, done.len());
        let mut completed = Vec::new();
        for (at, batch) in self.batches.iter().enumerate() {
            // One that another thread carries out is left to it, unless there is nothing else to
            // wait for.
            let Some(mut batch) =
                (if wait == Wait::ForAll { Some(batch.lock()) } else { batch.try_lock() })
            else {
                continue;
            };
            match batch.go(io, wait) {
                Progress::Over => completed.push(at),
                Progress::InFlight => {}
                Progress::Stuck => continue,
            }
            wait = Wait::No;
        }
        for at in completed.into_iter().rev() {
            self.complete(io, at, done);
        }
        if wait == Wait::ForAll && done.len() == before {
            match self.batches.first().map(|batch| Arc::clone(&batch.lock().parity)) {
                // Others have the rows, or the gate: what another queue has under way may not be
                // looked after for long, its owner may be this very thread.
                Some(parity) => {
                    io.help(&parity);
                    parity.wait_for_others();
                }
                // What waits may not be written yet: its range is being moved.
                None => std::thread::sleep(POLL_INTERVAL),
            }
        }
        self.start(io, done);
    }

    /// Takes a batch that is over apart.
    fn complete(&mut self, io: &VolumeIo, at: usize, done: &mut Vec<Completion>) {
        let batch = self.batches.swap_remove(at);
        let parity = Arc::clone(&batch.lock().parity);
        parity.batches.lock().retain(|other| !Arc::ptr_eq(other, &batch));
        let mut batch = batch.lock();
        let result = batch.result.clone().unwrap_or(Ok(()));
        self.requests_in_flight -= batch.requests.len();
        io.meter.end(batch.requests.len() as u64);
        let now = Instant::now();
        for request in std::mem::take(&mut batch.requests) {
            let bytes = segments(&request).map(|segment| u64::from(segment.len)).sum();
            io.meter.note(RequestKind::Write, (batch.start, now), bytes, result.is_ok());
            done.push(Completion::new(request.token, result.clone(), request.buf));
        }
    }
}

impl VolumeIo {
    /// Carries out what queues have under way and their owners do not look after now.
    pub(crate) fn help(&self, parity: &Parity) {
        let batches = parity.batches.lock().clone();
        for batch in batches {
            while let Some(mut batch) = batch.try_lock()
                && batch.go(self, Wait::ForAll) == Progress::InFlight
            {}
        }
    }
}

/// Enters the regions of a request; one that cannot is over.
fn entered(
    io: &VolumeIo,
    epoch: &LayoutEpoch,
    request: Request,
    done: &mut Vec<Completion>,
) -> Option<Request> {
    let enter = |(count, segment): (usize, &Segment)| {
        Some((count, io.enter(epoch, segment.offset, segment.len.into()).err()?))
    };
    let Some((count, error)) = segments(&request).enumerate().find_map(enter) else {
        return Some(request);
    };
    segments(&request)
        .take(count)
        .for_each(|segment| io.leave(epoch, segment.offset, segment.len.into()));
    let now = Instant::now();
    io.meter.note(RequestKind::Write, (now, now), 0, false);
    done.push(Completion::new(request.token, Err(error), request.buf));
    None
}

/// Writes a request with positioned calls.
fn write_now(io: &VolumeIo, epoch: &LayoutEpoch, request: Request) -> Completion {
    let (start, mut from, mut bytes) = (Instant::now(), 0, 0);
    let buf = request.buf.as_deref().unwrap_or_default();
    let result = segments(&request).try_for_each(|segment| {
        let part = AlignedBuf::from_slice(&buf[from..from + segment.len as usize]);
        from += part.len();
        bytes += part.len() as u64;
        io.write_in(epoch, &part, segment.offset)
    });
    io.meter.note(RequestKind::Write, (start, Instant::now()), bytes, result.is_ok());
    Completion::new(request.token, result, request.buf)
}

fn segments(request: &Request) -> impl Iterator<Item = &Segment> {
    std::iter::once(&request.first).chain(&request.rest)
}

/// Lays out what requests write, sorted by address. Which of two that overlap comes last is open,
/// as everywhere in a queue: the earlier address wins.
fn puts(requests: &[Request]) -> Vec<Put> {
    let mut puts = Vec::new();
    for (buffer, request) in requests.iter().enumerate() {
        let mut from = 0;
        for Segment { offset, len } in segments(request) {
            puts.push(Put { at: *offset, buffer, from, len: *len as usize });
            from += *len as usize;
        }
    }
    puts.sort_by_key(|put| put.at);
    let mut end = 0;
    for put in &mut puts {
        let cut = usize::try_from(end.max(put.at) - put.at).unwrap_or(usize::MAX).min(put.len);
        *put = Put {
            at: put.at + cut as u64,
            buffer: put.buffer,
            from: put.from + cut,
            len: put.len - cut,
        };
        end = end.max(put.at + put.len as u64);
    }
    puts.retain(|put| put.len > 0);
    puts
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn of_writes_that_overlap_every_byte_comes_from_one() {
        let request = |offset, len| {
            let first = Segment { offset, len };
            Request {
                token: 0,
                kind: RequestKind::Write,
                buf: Some(AlignedBuf::zeroed(len as usize)),
                first,
                rest: Vec::new(),
            }
        };
        let laid =
            puts(&[request(4096, 8192), request(0, 6144), request(512, 512), request(12_288, 512)]);
        let told: Vec<_> = laid.iter().map(|put| (put.at, put.buffer, put.from, put.len)).collect();
        assert_eq!(told, [(0, 1, 0, 6144), (6144, 0, 2048, 6144), (12_288, 3, 0, 512)]);
    }
}
