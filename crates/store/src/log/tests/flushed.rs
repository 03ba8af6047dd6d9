//! One flush for two rounds: the one that ends a round makes durable what the records of the next
//! expose.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_block::{DeviceCall, Hook, HookedDevice};
use parking_lot::Mutex;

use super::*;
use crate::log::SyncOutcome;
use crate::planted::{PlantedBug, plant};

/// When a thread appends a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// While a log write is under way, and the flush that follows has not begun.
    Write,
    /// While the flush that follows a log write is under way.
    FlushAfterWrite,
}

/// Appends a record that waits for its data in the midst of a round, and counts flushes.
#[derive(Debug, Default)]
struct Meddler {
    log: OnceLock<Arc<IntentLog>>,
    when: Mutex<Option<When>>,
    wrote: Mutex<bool>,
    appended: Mutex<Lsn>,
    flushes: AtomicU64,
}

impl Meddler {
    fn append(&self) {
        *self.when.lock() = None;
        let log = self.log.get().expect("the log was opened");
        *self.appended.lock() = log.append(&record(7, 60).after_barrier());
    }
}

impl Hook for Meddler {
    fn call(
        &self,
        call: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> bedplate_block::Result<()>,
    ) -> bedplate_block::Result<()> {
        let when = *self.when.lock();
        match call {
            DeviceCall::Write { .. } => {
                *self.wrote.lock() = true;
                if when == Some(When::Write) {
                    self.append();
                }
            }
            DeviceCall::Flush => {
                self.flushes.fetch_add(1, Ordering::SeqCst);
                if std::mem::take(&mut *self.wrote.lock()) && when == Some(When::FlushAfterWrite) {
                    self.append();
                }
            }
            _ => {}
        }
        pass()
    }
}

/// Returns how many flushes the sync of a record takes that was appended in the midst of the round
/// before.
fn flushes_of_next(when: When) -> u64 {
    let ring_bytes = 1 << 20;
    let memory = MemoryDevice::new(RING_START + ring_bytes + (1 << 20));
    let device = HookedDevice::new(memory, Meddler::default());
    let parts = parts_on(Arc::clone(&device) as _, ring_bytes);
    let log = Arc::new(open(&parts));
    device.log.set(Arc::clone(&log)).unwrap();
    let flushes = || device.flushes.swap(0, Ordering::SeqCst);
    let sync = |lsn| assert_eq!(log.sync(lsn).unwrap(), SyncOutcome::Durable);
    flushes();

    *device.wrote.lock() = false;
    *device.when.lock() = Some(when);
    sync(log.append(&record(1, 60).after_barrier()));
    assert_eq!(flushes(), 2, "the data, then the log");
    let appended = *device.appended.lock();
    assert!(appended > log.durable_lsn(), "it came too late for the round");
    sync(appended);
    let taken = flushes();
    assert_eq!(log.sealed_lsn(), appended, "its log write seals it, as with a flush of its own");
    assert_eq!(collect(&parts, LogPosition::START).unwrap().1.len(), 2);
    taken
}

#[test]
fn a_flush_that_ends_a_round_stands_for_the_first_of_the_next() {
    assert_eq!(flushes_of_next(When::Write), 1);
}

#[test]
fn a_flush_that_had_begun_counts_for_nothing_that_was_appended_since() {
    assert_eq!(flushes_of_next(When::FlushAfterWrite), 2, "I-LOG-4");
    plant(Some(PlantedBug::FlushCountsForLater));
    let missed = flushes_of_next(When::FlushAfterWrite);
    plant(None);
    assert_eq!(missed, 1, "the mistake is made");
}
