//! What ails the members of a group: one that dies after so many calls, what of one cannot be read,
//! and whose label something damaged.
//!
//! A range that cannot be read can be read again once something was written there. What is
//! unreadable is noted with the moment, so that a cut leaves what could not be read when the power
//! went.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bedplate_block::{
    AlignedBuf, Completion, DeviceCall, DeviceQueue, Error, ErrorKind, Operation, Request,
    RequestKind, Result,
};
use parking_lot::Mutex;

/// A member whose calls are not counted.
const NEVER: u64 = u64::MAX;

/// What ails each device.
#[derive(Debug)]
pub(super) struct Ills {
    /// How many calls of each get through before it dies.
    fuses: Vec<AtomicU64>,
    /// Those whose label something damaged, or wrote over.
    hurt: Vec<AtomicBool>,
    unreadable: Vec<Arc<Unreadable>>,
    /// The member of which some block with a checksum rotted first, and with which operation.
    decayed: Mutex<Option<(usize, usize)>>,
}

impl Ills {
    /// Devices of which these ranges cannot be read, and which are sound otherwise.
    pub(super) fn new(unreadable: &[Vec<Range<u64>>]) -> Self {
        Self {
            fuses: unreadable.iter().map(|_| AtomicU64::new(NEVER)).collect(),
            hurt: unreadable.iter().map(|_| AtomicBool::new(false)).collect(),
            unreadable: unreadable.iter().map(|ranges| Arc::new(Unreadable::of(ranges))).collect(),
            decayed: Mutex::default(),
        }
    }

    /// A block with a checksum rots, with the so-manieth operation.
    pub(super) fn decays(&self, member: usize, moment: usize) {
        self.decayed.lock().get_or_insert((member, moment));
    }

    /// The member of which a block had rotted after so many operations.
    pub(super) fn decayed(&self, after: usize) -> Option<usize> {
        self.decayed.lock().filter(|(_, moment)| *moment <= after).map(|(member, _)| member)
    }

    /// Lets a device die after so many calls.
    pub(super) fn dies_after(&self, device: usize, calls: u64) {
        self.fuses[device].store(calls, Ordering::SeqCst);
    }

    /// Whether a device has calls left, of which this one is taken.
    pub(super) fn takes_call(&self, device: usize) -> bool {
        self.fuses[device]
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                if left == NEVER { Some(left) } else { left.checked_sub(1) }
            })
            .is_ok()
    }

    /// The devices that are to die and have calls left; from now on they are sound, or dead, as the
    /// caller says.
    pub(super) fn defuse(&self) -> Vec<usize> {
        (0..self.fuses.len())
            .filter(|device| self.fuses[*device].swap(NEVER, Ordering::SeqCst) != NEVER)
            .collect()
    }

    pub(super) fn hurt(&self, device: usize) {
        self.hurt[device].store(true, Ordering::SeqCst);
    }

    pub(super) fn is_hurt(&self, device: usize) -> bool {
        self.hurt[device].load(Ordering::SeqCst)
    }

    pub(super) fn unreadable(&self, device: usize) -> &Arc<Unreadable> {
        &self.unreadable[device]
    }
}

/// What of a device cannot be read.
#[derive(Debug, Default)]
pub(super) struct Unreadable(Mutex<Ranges>);

#[derive(Debug, Default)]
struct Ranges {
    now: Vec<Range<u64>>,
    /// What it was from so many operations on.
    past: Vec<(usize, Vec<Range<u64>>)>,
}

impl Unreadable {
    pub(super) fn of(ranges: &[Range<u64>]) -> Self {
        Self(Mutex::new(Ranges { now: ranges.to_vec(), past: vec![(0, ranges.to_vec())] }))
    }

    /// From the moment after so many operations on a range cannot be read.
    pub(super) fn add(&self, moment: usize, range: Range<u64>) {
        let mut ranges = self.0.lock();
        without(&mut ranges.now, &range);
        ranges.now.push(range);
        let now = ranges.now.clone();
        ranges.past.push((moment, now));
    }

    /// Something was written there.
    pub(super) fn mend(&self, moment: impl FnOnce() -> usize, range: &Range<u64>) {
        if !self.meets(range) {
            return;
        }
        let moment = moment();
        let mut ranges = self.0.lock();
        without(&mut ranges.now, range);
        let now = ranges.now.clone();
        ranges.past.push((moment, now));
    }

    pub(super) fn meets(&self, range: &Range<u64>) -> bool {
        self.0.lock().now.iter().any(|bad| bad.start < range.end && range.start < bad.end)
    }

    pub(super) fn now(&self) -> Vec<Range<u64>> {
        self.0.lock().now.clone()
    }

    /// What could not be read after so many operations.
    pub(super) fn at(&self, after: usize) -> Vec<Range<u64>> {
        self.0
            .lock()
            .past
            .iter()
            .take_while(|(moment, _)| *moment <= after)
            .last()
            .map(|(_, ranges)| ranges.clone())
            .unwrap_or_default()
    }

    /// Refuses a call that reads what cannot be read; where one writes, it can be read from then
    /// on.
    pub(super) fn meet(
        &self,
        device: &str,
        call: &DeviceCall<'_>,
        moment: impl FnOnce() -> usize,
    ) -> Result<()> {
        match *call {
            DeviceCall::Read { offset, len } => self.read(device, &(offset..offset + len))?,
            DeviceCall::Write { offset, bytes } => {
                self.mend(moment, &(offset..offset + bytes.len() as u64));
            }
            DeviceCall::WriteZeroes { offset, len } => self.mend(moment, &(offset..offset + len)),
            DeviceCall::Discard { .. } | DeviceCall::Flush => {}
        }
        Ok(())
    }

    fn read(&self, device: &str, range: &Range<u64>) -> Result<()> {
        if self.meets(range) { Err(unread(device, range.start)) } else { Ok(()) }
    }
}

fn unread(device: &str, offset: u64) -> Error {
    let detail = "this cannot be read".to_owned();
    Error {
        kind: ErrorKind::Io,
        operation: Operation::Read,
        device: device.to_owned(),
        offset: Some(offset),
        errno: None,
        detail,
    }
}

/// Takes a range out of others.
fn without(ranges: &mut Vec<Range<u64>>, gone: &Range<u64>) {
    let rest =
        |one: &Range<u64>| [one.start..one.end.min(gone.start), one.start.max(gone.end)..one.end];
    *ranges = ranges.iter().flat_map(rest).filter(|part| part.start < part.end).collect();
}

/// A queue of a device of which something cannot be read.
pub(super) struct AilingQueue {
    queue: Box<dyn DeviceQueue>,
    device: String,
    unreadable: Arc<Unreadable>,
    moment: Box<dyn Fn() -> usize + Send>,
    failed: VecDeque<Completion>,
}

impl AilingQueue {
    pub(super) fn new(
        queue: Box<dyn DeviceQueue>,
        device: String,
        unreadable: &Arc<Unreadable>,
        moment: Box<dyn Fn() -> usize + Send>,
    ) -> Self {
        Self { queue, device, unreadable: Arc::clone(unreadable), moment, failed: VecDeque::new() }
    }
}

impl DeviceQueue for AilingQueue {
    fn depth_max(&self) -> usize {
        self.queue.depth_max()
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight() + self.failed.len()
    }

    fn push(&mut self, request: Request) -> std::result::Result<(), Request> {
        let ranges = || {
            std::iter::once(&request.first)
                .chain(&request.rest)
                .map(|segment| segment.offset..segment.offset + u64::from(segment.len))
        };
        match request.kind {
            RequestKind::Read => {
                if let Some(bad) = ranges().find(|range| self.unreadable.meets(range)) {
                    let result = Err(unread(&self.device, bad.start));
                    self.failed.push_back(Completion::new(request.token, result, request.buf));
                    return Ok(());
                }
            }
            RequestKind::Write => {
                ranges().for_each(|range| self.unreadable.mend(&self.moment, &range));
            }
            RequestKind::Flush => {}
        }
        self.queue.push(request)
    }

    fn submit(&mut self) -> Result<()> {
        self.queue.submit()
    }

    fn complete(&mut self, min: usize, out: &mut Vec<Completion>) -> Result<usize> {
        let failed = self.failed.len();
        out.extend(self.failed.drain(..));
        Ok(failed + self.queue.complete(min.saturating_sub(failed), out)?)
    }

    fn take_buffer(&mut self) -> Option<AlignedBuf> {
        self.queue.take_buffer()
    }

    fn give_buffer(&mut self, buf: AlignedBuf) {
        self.queue.give_buffer(buf);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read_and_what_could_not_be_is_known_of_every_moment() {
        let ills = Ills::new(&[Vec::new(), std::iter::once(0..4096).collect()]);
        let member = ills.unreadable(1);
        member.add(10, 8192..16384);
        assert!(
            member.read("m", &(16383..16384)).is_err()
                && member.read("m", &(4096..8192)).is_ok()
                && ills.unreadable(0).now().is_empty()
        );
        member.mend(|| 20, &(4096..12288));
        member.mend(|| 30, &(20_000..30_000));
        assert_eq!(member.now(), [0..4096, 12288..16384]);
        assert_eq!(
            (member.at(9).len(), member.at(10), member.at(20)),
            (1, vec![0..4096, 8192..16384], member.now())
        );
    }

    #[test]
    fn a_device_dies_after_so_many_calls() {
        let ills = Ills::new(&[Vec::new()]);
        assert!((0..9).all(|_| ills.takes_call(0)));
        ills.dies_after(0, 2);
        assert_eq!(
            [ills.takes_call(0), ills.takes_call(0), ills.takes_call(0)],
            [true, true, false]
        );
        assert_eq!((ills.defuse(), ills.takes_call(0)), (vec![0], true));
    }
}
