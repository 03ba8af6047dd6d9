//! A member that is open: its device, its state, and what is known of how busy it is.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bedplate_block::sync::{Mutex, rank};
use bedplate_block::{BlockDevice, BusyMeter, BusyTime, Result};

use super::label::COPIES;
use super::written_label::WrittenLabel;
use crate::meter::{Meter, Padded};
use crate::{Id, Label, MemberState, MemberStatistics};

/// Stands beside the state of a member whose label is not what was written there last: nothing is
/// read from it any more.
const OVERWRITTEN: u8 = 0x80;

/// An open member. Its state follows the configuration's and is never ahead of what the labels of
/// the others say durably.
#[derive(Debug)]
pub(crate) struct MemberHandle {
    pub id: Id,
    pub device: Arc<dyn BlockDevice>,
    state: AtomicU8,
    /// What changes with every operation lies apart from what is only read.
    load: Padded<Load>,
    /// How many writes completed.
    written: Padded<AtomicU64>,
    /// How many of them a flush covers.
    flushed: AtomicU64,
    reads: Meter,
    writes: Meter,
    flushes: Meter,
    corrected: AtomicU64,
    /// What it failed with first. A leaf.
    failure: OnceLock<String>,
    /// The first flush that failed.
    flush_failure: OnceLock<bedplate_block::Error>,
    /// What stood in the place of its label. A leaf.
    overwritten: OnceLock<bedplate_block::Error>,
    /// A leaf, used under the configuration's lock only.
    label: Mutex<WrittenLabel, { rank::MEMBER_LABEL }>,
}

/// How busy a member is.
#[derive(Debug, Default)]
struct Load {
    /// Operations under way, and for how long there were any.
    busy: BusyMeter,
    /// Where the last read ended: a stream that goes on there costs a disk no seek.
    head: AtomicU64,
}

impl MemberHandle {
    pub fn new(id: Id, device: Arc<dyn BlockDevice>, state: MemberState) -> Arc<Self> {
        Arc::new(Self {
            id,
            device,
            state: AtomicU8::new(state as u8),
            load: Padded::default(),
            written: Padded::default(),
            flushed: AtomicU64::new(0),
            reads: Meter::default(),
            writes: Meter::default(),
            flushes: Meter::default(),
            corrected: AtomicU64::new(0),
            failure: OnceLock::new(),
            flush_failure: OnceLock::new(),
            overwritten: OnceLock::new(),
            label: Mutex::default(),
        })
    }

    pub fn name(&self) -> &str {
        self.device.name()
    }

    #[inline]
    pub fn is_active(&self) -> bool {
        self.state.load(Ordering::Acquire) == MemberState::Active as u8
    }

    /// Says whether writes go to it.
    #[inline]
    pub fn takes_writes(&self) -> bool {
        let state = self.state.load(Ordering::Acquire) & !OVERWRITTEN;
        state == MemberState::Active as u8 || state == MemberState::Stale as u8
    }

    pub fn is_failed(&self) -> bool {
        self.state.load(Ordering::Acquire) & !OVERWRITTEN == MemberState::Failed as u8
    }

    /// Says whether something else was found to have written over it: then it is not active,
    /// whatever the configuration says, and nothing that it holds counts.
    pub fn is_overwritten(&self) -> bool {
        self.state.load(Ordering::Acquire) & OVERWRITTEN != 0
    }

    /// Compares its label with what was written there last. A member whose label differs is not
    /// read any more from here on.
    ///
    /// # Errors
    /// What stands there instead, or why neither copy can be read.
    pub fn check_label(&self) -> Result<()> {
        self.compare_label(&self.label.lock())
    }

    fn compare_label(&self, last: &WrittenLabel) -> Result<()> {
        if let Some(error) = self.overwritten.get() {
            return Err(error.clone());
        }
        last.check(&*self.device).map_err(|lost| {
            if lost.overwritten {
                self.note_failure(&lost.error);
                self.overwritten.get_or_init(|| lost.error.clone());
                self.state.fetch_or(OVERWRITTEN, Ordering::AcqRel);
            }
            lost.error
        })
    }

    /// Writes its label, which the caller has compared with what was written there last. One over
    /// which something else writes meanwhile is not read any more either.
    ///
    /// # Errors
    /// As [`Label::write`] and [`check_label`](Self::check_label).
    pub fn write_label(&self, label: &Label) -> crate::Result<()> {
        let mut last = self.label.lock();
        assert!(
            !self.is_overwritten(),
            "I-GRP-2: no label is written over one that is not the last"
        );
        for copy in 0..COPIES.len() {
            last.write(copy, label, &*self.device)?;
            self.compare_label(&last)?;
        }
        Ok(())
    }

    /// Takes the label that stands there for what was written last: before the group is open.
    pub fn learn_label(&self) {
        self.label.lock().learn(&*self.device);
    }

    /// Notes what it failed with first.
    pub fn note_failure(&self, why: &dyn std::fmt::Display) {
        self.failure.get_or_init(|| why.to_string());
    }

    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    pub fn set_state(&self, state: MemberState) {
        debug_assert!((state as u8) & OVERWRITTEN == 0, "a state and the mark share no bit");
        // All changes of it are under the configuration's lock.
        let lost = self.state.load(Ordering::Acquire) & OVERWRITTEN;
        self.state.store(state as u8 | lost, Ordering::Release);
    }

    /// Returns how little it costs to read at `offset`: the least busy member first, among equals
    /// the one whose head is there.
    #[inline]
    pub fn cost(&self, offset: u64) -> (u64, bool) {
        (self.load.0.busy.under_way(), self.load.0.head.load(Ordering::Relaxed) != offset)
    }

    pub fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        debug_assert!(
            offset.checked_add(buf.len() as u64).is_some(),
            "a read of {} bytes at {offset} ends somewhere",
            buf.len()
        );
        let start = self.begin();
        let result = self.device.read_at(buf, offset);
        self.end_read(start.elapsed(), offset + buf.len() as u64, buf.len() as u64, result.is_ok());
        result
    }

    pub fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
        let start = self.begin();
        let result = self.device.write_at(buf, offset);
        self.end_write(start.elapsed(), buf.len() as u64, result.is_ok());
        result
    }

    pub fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        let start = self.begin();
        let result = self.device.write_zeroes(offset, len);
        self.end_write(start.elapsed(), len, result.is_ok());
        result
    }

    pub fn discard(&self, offset: u64, len: u64) -> Result<bool> {
        let start = self.begin();
        let result = self.device.discard(offset, len);
        self.end_write(start.elapsed(), 0, result.is_ok());
        result
    }

    /// As [`discard`](Self::discard), and the range reads as zeros afterwards; `false`: nothing was
    /// done.
    pub fn discard_to_zeros(&self, offset: u64, len: u64) -> Result<bool> {
        let start = self.begin();
        let result = self.device.discard_to_zeros(offset, len);
        self.end_write(start.elapsed(), 0, result.is_ok());
        result
    }

    /// Makes what was written durable; nothing where a flush covers it already.
    pub fn flush(&self) -> Result<()> {
        let Some(covers) = self.needs_flush() else { return Ok(()) };
        let start = self.begin();
        let result = self.device.flush();
        self.end_flush(start.elapsed(), covers, result)
    }

    /// Returns the ordinal of the last write that a flush begun now covers; `None` where an earlier
    /// flush did.
    pub fn needs_flush(&self) -> Option<u64> {
        let written = self.written.0.load(Ordering::Acquire);
        (self.flushed.load(Ordering::Acquire) < written).then_some(written)
    }

    /// Returns the ordinal of the last write that completed.
    pub fn last_write(&self) -> u64 {
        self.written.0.load(Ordering::Acquire)
    }

    /// Says whether a flush covers the write with an ordinal.
    pub fn is_durable(&self, write: u64) -> bool {
        self.flushed.load(Ordering::Acquire) >= write
    }

    pub fn begin(&self) -> Instant {
        self.enter();
        Instant::now()
    }

    /// Counts an operation that begins.
    pub fn enter(&self) {
        self.load.0.busy.begin(1);
    }

    /// Notes a read of `len` bytes that ended at offset `end`.
    pub fn end_read(&self, took: Duration, end: u64, len: u64, ok: bool) {
        self.load.0.busy.end(1);
        self.load.0.head.store(end, Ordering::Relaxed);
        self.reads.note(took, len, ok);
    }

    pub fn end_write(&self, took: Duration, len: u64, ok: bool) {
        self.load.0.busy.end(1);
        // One that failed may have written all the same.
        self.written.0.fetch_add(1, Ordering::AcqRel);
        self.writes.note(took, len, ok);
    }

    /// Notes a flush that ended, and returns what came of it: after one that failed none succeeds.
    /// What it lost was written before those that began meanwhile, and the system reports it once;
    /// a caller of one of them is told too, and goes on when the member has failed for all
    /// (I-VOL-1).
    pub fn end_flush(&self, took: Duration, covers: u64, result: Result<()>) -> Result<()> {
        self.load.0.busy.end(1);
        self.flushes.note(took, 0, result.is_ok());
        if let Err(error) = result {
            self.flush_failure.get_or_init(|| error);
        }
        if let Some(error) = self.flush_failure.get() {
            return Err(error.clone());
        }
        self.flushed.fetch_max(covers, Ordering::AcqRel);
        Ok(())
    }

    pub fn note_corrected(&self) {
        self.corrected.fetch_add(1, Ordering::Relaxed);
    }

    pub fn statistics(&self) -> MemberStatistics {
        let BusyTime { under_way, busy, queued, measured } = self.load.0.busy.time();
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        MemberStatistics {
            reads: self.reads.statistics(),
            writes: self.writes.statistics(),
            flushes: self.flushes.statistics(),
            corrected: self.corrected.load(Ordering::Relaxed),
            queue_depth: under_way,
            busy_us: us(busy),
            queued_us: us(queued),
            measured_us: us(measured),
        }
    }

    pub fn reset_statistics(&self) {
        self.corrected.store(0, Ordering::Relaxed);
        self.load.0.busy.reset();
        [&self.reads, &self.writes, &self.flushes].into_iter().for_each(Meter::reset);
    }
}

#[cfg(test)]
mod tests {
    use bedplate_block::{
        DeviceCall, Fault, FaultRule, FlushFault, Hook, HookedDevice, SimulatedDevice, Trigger,
    };

    use super::*;

    #[test]
    fn a_flush_is_spared_only_when_one_covers_every_write() {
        let device = SimulatedDevice::new(1 << 20, 1);
        let handle = MemberHandle::new(Id([1; 16]), Arc::clone(&device) as _, MemberState::Active);
        handle.flush().unwrap();
        assert_eq!(device.counters().flushes, 0);
        handle.write(&bedplate_block::AlignedBuf::zeroed(512), 0).unwrap();
        handle.flush().unwrap();
        handle.flush().unwrap();
        assert_eq!(device.counters().flushes, 1);
        assert_eq!(handle.statistics().writes.operations, 1);
        handle.reset_statistics();
        let told = handle.statistics();
        let nothing = MemberStatistics { measured_us: told.measured_us, ..Default::default() };
        assert_eq!(told, nothing);
    }
    /// Holds reads back while it is shut.
    #[derive(Debug, Default)]
    struct Gate(parking_lot::Mutex<()>);

    impl Hook for Gate {
        fn call(&self, _call: DeviceCall<'_>, pass: &mut dyn FnMut() -> Result<()>) -> Result<()> {
            drop(self.0.lock());
            pass()
        }
    }

    /// S-504: a member is busy from when a request is submitted until it completes, whatever others
    /// go on beside it, and idle between.
    #[test]
    fn s_504_a_member_is_busy_while_something_is_under_way() {
        const NAP: Duration = Duration::from_millis(20);
        let device = HookedDevice::new(SimulatedDevice::new(1 << 20, 1), Gate::default());
        let handle = MemberHandle::new(Id([1; 16]), Arc::clone(&device) as _, MemberState::Active);
        let ms = |us: u64| Duration::from_micros(us);
        std::thread::sleep(NAP);
        assert_eq!(handle.statistics().utilisation(), Some(0.0), "S-504: idle");
        let shut = device.0.lock();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut buf = bedplate_block::AlignedBuf::zeroed(512);
                    handle.read(&mut buf, 0).unwrap();
                });
            }
            while handle.statistics().queue_depth < 2 {
                std::thread::yield_now();
            }
            let before = handle.statistics();
            std::thread::sleep(NAP);
            // Nothing has completed, and it was busy all the same.
            let between = handle.statistics().since(&before);
            assert_eq!(between.reads.operations, 0);
            assert!(ms(between.busy_us) + Duration::from_millis(1) >= NAP, "S-504: {between:?}");
            assert!(between.utilisation() > Some(0.9), "S-504: {between:?}");
            let depth = between.queue_depth_mean().unwrap();
            assert!((1.9..=2.1).contains(&depth), "S-504: two at once, {between:?}");
            drop(shut);
        });
        let after = handle.statistics();
        std::thread::sleep(NAP);
        let idle = handle.statistics().since(&after);
        assert_eq!((idle.busy_us, idle.queued_us), (0, 0), "S-504: {idle:?}");
        assert!(ms(idle.measured_us) >= NAP, "S-504: {idle:?}");
    }

    /// The system reports a failed flush once. What was written before it may be lost, whatever a
    /// flush says that another thread makes before the member counts as failed.
    #[test]
    fn s_33_no_flush_of_a_member_succeeds_after_one_failed() {
        let device = SimulatedDevice::new(1 << 20, 1);
        let handle = MemberHandle::new(Id([1; 16]), Arc::clone(&device) as _, MemberState::Active);
        handle.write(&bedplate_block::AlignedBuf::zeroed(512), 0).unwrap();
        device.inject(FaultRule::new(Fault::Flush(FlushFault::Fail), Trigger::Next(1)));
        assert!(handle.flush().is_err());
        assert!(handle.flush().is_err());
        assert!(!handle.is_durable(handle.last_write()));
        assert_eq!(handle.statistics().flushes.errors, 1);
    }
}
