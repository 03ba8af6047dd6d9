//! What reads and writes waited for: locks of the file, a thread of the I/O engine, the device.
//!
//! ```text
//!   lock free                      ──► nothing is counted, and no clock is looked at
//!   lock held   ──► begin: count   ──► the wait ──► end: time, longest
//!   a read or write that is timed  ──► each call of the device: time; counted with the I/Os it stands for
//! ```
//! Each wait counts for its file and for the whole file system.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Timing, counting};

/// What was waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Awaited {
    InodeShared,
    InodeExclusive,
    ByteRange,
    Queue,
    Device,
}

const CLASSES: usize = Awaited::Device as usize + 1;

#[derive(Debug, Default)]
struct Live {
    count: AtomicU64,
    ns: AtomicU64,
    ns_max: AtomicU64,
}

/// Live counts by class; updated without a lock.
#[derive(Debug, Default)]
pub(crate) struct WaitMeter([Live; CLASSES]);

impl WaitMeter {
    fn begin(&self, what: Awaited) {
        self.0[what as usize].count.fetch_add(1, Relaxed);
    }

    fn end(&self, what: Awaited, took: Duration, times: u32) {
        let (live, ns) = (&self.0[what as usize], nanoseconds(took));
        live.ns.fetch_add(ns.saturating_mul(times.into()), Relaxed);
        live.ns_max.fetch_max(ns, Relaxed);
    }

    /// Counts what a timed read or write waited for.
    fn note(&self, what: Awaited, took: Duration, timing: Timing) {
        self.0[what as usize].count.fetch_add(timing.stands_for.into(), Relaxed);
        self.end(what, took, timing.stands_for);
    }

    pub(crate) fn reset(&self) {
        for Live { count, ns, ns_max } in &self.0 {
            [count, ns, ns_max].into_iter().for_each(|value| value.store(0, Relaxed));
        }
    }

    /// Returns what was counted; `has_queue`: requests can wait for a thread of the I/O engine.
    pub(crate) fn snapshot(&self, has_queue: bool) -> Waits {
        let told = |what: Awaited| {
            let Live { count, ns, ns_max } = &self.0[what as usize];
            WaitTime {
                count: count.load(Relaxed),
                ns: ns.load(Relaxed),
                ns_max: ns_max.load(Relaxed),
            }
        };
        Waits {
            inode_shared: told(Awaited::InodeShared),
            inode_exclusive: told(Awaited::InodeExclusive),
            byte_range: told(Awaited::ByteRange),
            queue: has_queue.then(|| told(Awaited::Queue)),
            device: told(Awaited::Device),
        }
    }
}

fn nanoseconds(took: Duration) -> u64 {
    u64::try_from(took.as_nanos()).unwrap_or(u64::MAX >> 1)
}

/// A wait for a lock of a file, from when the lock was found held until this is dropped.
#[must_use]
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    what: Awaited,
    since: Instant,
    meters: [Option<&'a WaitMeter>; 2],
}

impl<'a> Waiting<'a> {
    /// Begins a wait that counts for a file, and for `all`; `None` where it is not to be counted.
    #[cold]
    pub(crate) fn begin(
        what: Awaited,
        file: Option<&'a WaitMeter>,
        all: Option<&'a WaitMeter>,
    ) -> Option<Self> {
        if all.is_none() || !counting() {
            return None;
        }
        let meters = [file, all];
        meters.into_iter().flatten().for_each(|meter| meter.begin(what));
        Some(Self { what, since: Instant::now(), meters })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let took = self.since.elapsed();
        self.meters.into_iter().flatten().for_each(|meter| meter.end(self.what, took, 1));
    }
}

/// Calls of the device are not timed on this thread.
const OFF: u64 = u64::MAX;

thread_local! {
    /// Nanoseconds that calls of the device took within the read or write that is timed.
    static IN_DEVICE: Cell<u64> = const { Cell::new(OFF) };
}

/// While it lives, calls of the device from this thread are timed: a read or write is, that may
/// make some.
#[must_use]
#[derive(Debug)]
pub(crate) struct DeviceWatch(Timing);

impl DeviceWatch {
    #[cold]
    pub(crate) fn begin(timing: Timing) -> Self {
        IN_DEVICE.set(0);
        Self(timing)
    }

    /// Counts the time, where the device was called at all.
    #[cold]
    pub(crate) fn end(self, meters: [&WaitMeter; 2]) {
        let ns = IN_DEVICE.get();
        if ns != OFF && ns > 0 {
            let took = Duration::from_nanos(ns);
            meters.into_iter().for_each(|meter| meter.note(Awaited::Device, took, self.0));
        }
    }
}

impl Drop for DeviceWatch {
    fn drop(&mut self) {
        IN_DEVICE.set(OFF);
    }
}

/// Makes a call of the device, and times it within a read or write that is timed.
#[inline]
pub(crate) fn in_device<T>(call: impl FnOnce() -> T) -> T {
    if IN_DEVICE.get() == OFF { call() } else { timed_in_device(call) }
}

#[cold]
#[inline(never)]
fn timed_in_device<T>(call: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = call();
    // At least one: it was called.
    let ns = nanoseconds(began.elapsed()).max(1);
    IN_DEVICE.set(IN_DEVICE.get().saturating_add(ns).min(OFF - 1));
    result
}

/// Counts what a queued read or write waited for, that is timed: `waited_ns` for a thread of the
/// I/O engine, the rest for the device.
#[cold]
pub(crate) fn note_queued(timing: Timing, waited_ns: u64, meters: [&WaitMeter; 2]) {
    let (took, waited) = (timing.began.elapsed(), Duration::from_nanos(waited_ns));
    for meter in meters {
        if waited_ns > 0 {
            meter.note(Awaited::Queue, waited, timing);
        }
        meter.note(Awaited::Device, took.saturating_sub(waited), timing);
    }
}

/// How often one thing was waited for, and how long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitTime {
    /// How often. A wait that lasts counts already.
    pub count: u64,
    /// How long altogether, in nanoseconds; waits that last are not in it.
    pub ns: u64,
    /// The longest in nanoseconds.
    pub ns_max: u64,
}

impl WaitTime {
    fn plus(&self, other: &Self) -> Self {
        Self {
            count: self.count + other.count,
            ns: self.ns + other.ns,
            ns_max: self.ns_max.max(other.ns_max),
        }
    }

    /// Returns what came since an earlier state of the same; after a reset, all there is. The
    /// longest stays that of the whole.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        if self.count < earlier.count || self.ns < earlier.ns {
            return *self;
        }
        Self { count: self.count - earlier.count, ns: self.ns - earlier.ns, ns_max: self.ns_max }
    }
}

/// What reads and writes waited for, by class.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// For the file's lock, to have it beside others that read or write.
    pub inode_shared: WaitTime,
    /// For the file's lock, to have it alone.
    pub inode_exclusive: WaitTime,
    /// For a range of bytes or of blocks that another read or write holds, and behind others that
    /// append.
    pub byte_range: WaitTime,
    /// For a thread of the I/O engine, of requests of queues; `None` where no queue was opened, and of
    /// engines without threads, whose queues are the kernel's. From a sample.
    pub queue: Option<WaitTime>,
    /// For the device, from the submission to the completion. From a sample.
    pub device: WaitTime,
}

impl Waits {
    /// Returns the classes by their names, those that are told.
    pub fn by_name(&self) -> impl Iterator<Item = (&'static str, WaitTime)> {
        [
            ("inode_shared", Some(self.inode_shared)),
            ("inode_exclusive", Some(self.inode_exclusive)),
            ("byte_range", Some(self.byte_range)),
            ("queue", self.queue),
            ("device", Some(self.device)),
        ]
        .into_iter()
        .filter_map(|(name, time)| Some((name, time?)))
    }

    /// Returns how long locks of files were waited for, in nanoseconds.
    #[must_use]
    pub fn lock_ns(&self) -> u64 {
        self.inode_shared.ns + self.inode_exclusive.ns + self.byte_range.ns
    }

    /// Returns how often locks of files were waited for.
    #[must_use]
    pub fn lock_count(&self) -> u64 {
        self.inode_shared.count + self.inode_exclusive.count + self.byte_range.count
    }

    /// Adds what another file or file system waited for.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            inode_shared: self.inode_shared.plus(&other.inode_shared),
            inode_exclusive: self.inode_exclusive.plus(&other.inode_exclusive),
            byte_range: self.byte_range.plus(&other.byte_range),
            queue: self
                .queue
                .or(other.queue)
                .map(|_| self.queue.unwrap_or_default().plus(&other.queue.unwrap_or_default())),
            device: self.device.plus(&other.device),
        }
    }

    /// Returns what came since an earlier state of the same.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            inode_shared: self.inode_shared.since(&earlier.inode_shared),
            inode_exclusive: self.inode_exclusive.since(&earlier.inode_exclusive),
            byte_range: self.byte_range.since(&earlier.byte_range),
            queue: self.queue.map(|now| now.since(&earlier.queue.unwrap_or_default())),
            device: self.device.since(&earlier.device),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_counts_from_its_begin_and_has_its_time_at_its_end() {
        let (file, all) = (WaitMeter::default(), WaitMeter::default());
        let waiting = Waiting::begin(Awaited::ByteRange, Some(&file), Some(&all));
        let lasting = file.snapshot(false).byte_range;
        assert_eq!((lasting.count, lasting.ns), (1, 0));
        std::thread::sleep(Duration::from_millis(5));
        drop(waiting);
        let told = file.snapshot(false);
        assert!(told.byte_range.ns >= 5_000_000 && told.byte_range.ns == told.byte_range.ns_max);
        assert_eq!(told.byte_range.count, 1);
        assert_eq!((told.lock_ns(), told.lock_count()), (told.byte_range.ns, 1));
        assert_eq!(told, all.snapshot(false));
        let both = told.plus(&all.snapshot(true));
        assert_eq!((both.byte_range.count, both.queue), (2, Some(WaitTime::default())));
        assert_eq!(both.lock_ns(), 2 * told.lock_ns());
        assert_eq!(told.since(&told).byte_range.count, 0);
        all.reset();
        assert_eq!(all.snapshot(false), Waits::default());
        assert_eq!(all.snapshot(false).since(&told), Waits::default(), "after a reset");
        assert!(Waiting::begin(Awaited::ByteRange, Some(&file), None).is_none());
    }

    #[test]
    fn the_device_is_timed_only_within_what_is_timed() {
        let meters = [WaitMeter::default(), WaitMeter::default()];
        let timing = Timing { began: Instant::now(), stands_for: 3 };
        in_device(|| ());
        DeviceWatch::begin(timing).end([&meters[0], &meters[1]]);
        assert_eq!(meters[0].snapshot(false), Waits::default(), "the device was not called");
        drop(DeviceWatch::begin(timing));
        in_device(|| ());
        let watch = DeviceWatch::begin(timing);
        (0..2).for_each(|_| in_device(|| std::thread::sleep(Duration::from_millis(2))));
        watch.end([&meters[0], &meters[1]]);
        let told = meters[1].snapshot(true);
        assert_eq!(told.device.count, 3, "each stands for three");
        assert!(told.device.ns_max >= 4_000_000 && told.device.ns == 3 * told.device.ns_max);
        assert_eq!(told.queue, Some(WaitTime::default()));
        assert_eq!(told.by_name().count(), 5);
    }

    #[test]
    fn a_queued_request_waits_for_a_thread_first_and_then_for_the_device() {
        let meter = WaitMeter::default();
        let timing = Timing { began: Instant::now(), stands_for: 1 };
        std::thread::sleep(Duration::from_millis(3));
        note_queued(timing, 1_000_000, [&meter, &WaitMeter::default()]);
        let told = meter.snapshot(true);
        assert_eq!(told.queue, Some(WaitTime { count: 1, ns: 1_000_000, ns_max: 1_000_000 }));
        assert!(told.device.ns >= 2_000_000, "{told:?}");
    }
}
