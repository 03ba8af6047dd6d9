//! What every read and write of a file looks at and hardly any changes: how the file is served, its
//! counters, and which causes there are to take the slow path.
//!
//! ```text
//!   read or write of whole sectors ─► any cause? ─► no: one lookup, the device
//!                                         │
//!                                         └► yes: each cause is asked by itself
//! ```
//!
//! A cause is a bit of one word; the part of the file's state that it stands for sets and clears it.
//!
//! - I-SLO-1: the bit of a cause is set before the first read or write can meet what it stands for,
//!   and cleared after the last. So one that holds the inode lock, has looked up where its bytes
//!   lie, and then finds no bit, may use what it found. Read windows come under a shared lock, too:
//!   a write looks for their bit again when it has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};

use crate::mode::Service;
use crate::statistics::FileCounters;

/// Why a read or write takes the slow path.
#[derive(Debug, Clone, Copy)]
pub(super) enum Cause {
    /// The service asks for something: a cache, range locks, or that it is counted.
    Served = 1,
    /// Sectors are held of which a copy must follow writes.
    HeldSectors = 1 << 1,
    HeldWrite = 1 << 2,
    Delayed = 1 << 3,
    Windows = 1 << 4,
    /// A record vouches for bytes by a checksum.
    Unsealed = 1 << 5,
    /// There is, or was, a lease.
    Leased = 1 << 6,
}

/// The causes that reads ask about.
const OF_READS: u32 =
    Cause::Served as u32 | Cause::HeldWrite as u32 | Cause::Delayed as u32 | Cause::Leased as u32;

/// A cache line that all processors keep, away from the locks that they take from each other.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Steady {
    /// How the file is served, [`Service::word`]; 0 before the first open. Changes under `order`
    /// and `lock`, both exclusive.
    service: AtomicU16,
    causes: AtomicU32,
    pub(crate) io_counters: FileCounters,
}

impl Default for Steady {
    fn default() -> Self {
        Self {
            service: AtomicU16::new(0),
            causes: AtomicU32::new(Cause::Served as u32),
            io_counters: FileCounters::default(),
        }
    }
}

impl Steady {
    /// Returns how the file is served, 0 before the first open.
    #[inline]
    pub(crate) fn service_word(&self) -> u16 {
        self.service.load(Ordering::Acquire)
    }

    /// Serves the file so from now on. Both locks are held exclusively.
    pub(crate) fn serve(&self, service: Service) {
        self.service.store(service.word(), Ordering::Release);
        self.mark(Cause::Served, !service.is_plain());
    }

    /// Returns whether a write of whole sectors over the file's own blocks has nothing to ask
    /// (I-SLO-1).
    #[inline]
    pub(crate) fn writes_plainly(&self) -> bool {
        self.causes.load(Ordering::Acquire) == 0
    }

    /// Returns whether a read of whole sectors has nothing to ask but the map (I-SLO-1).
    #[inline]
    pub(crate) fn reads_plainly(&self) -> bool {
        self.causes.load(Ordering::Acquire) & OF_READS == 0
    }

    /// Returns whether read windows came during a write that has just ended on the device, and
    /// asked for nothing.
    #[inline]
    pub(crate) fn met_windows(&self) -> bool {
        // With that of a window that begins.
        fence(Ordering::SeqCst);
        self.has(Cause::Windows)
    }

    #[inline]
    fn has(&self, cause: Cause) -> bool {
        self.causes.load(Ordering::Acquire) & cause as u32 != 0
    }

    /// Sets or clears the bit of a cause; one thread at a time for each.
    fn mark(&self, cause: Cause, there: bool) {
        if self.has(cause) == there {
            return;
        }
        if there {
            self.causes.fetch_or(cause as u32, Ordering::AcqRel);
        } else {
            self.causes.fetch_and(!(cause as u32), Ordering::AcqRel);
        }
    }
}

/// The bit of one cause, in the hands of the part of the state that it stands for.
#[derive(Debug, Clone)]
pub(super) struct Bit {
    steady: Arc<Steady>,
    cause: Cause,
}

impl Bit {
    pub(super) fn new(steady: &Arc<Steady>, cause: Cause) -> Self {
        Self { steady: Arc::clone(steady), cause }
    }

    /// Makes one of a file that has nothing else.
    #[cfg(test)]
    pub(super) fn alone(cause: Cause) -> Self {
        Self::new(&Arc::default(), cause)
    }

    #[inline]
    pub(super) fn is_set(&self) -> bool {
        self.steady.has(self.cause)
    }

    /// Says what there is from now on, under the lock of what the bit stands for.
    pub(super) fn set(&self, there: bool) {
        self.steady.mark(self.cause, there);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IoMode;

    #[test]
    fn i_slo_1_one_cause_is_enough_and_reads_ask_for_fewer() {
        let steady = Arc::new(Steady::default());
        assert!(!steady.reads_plainly(), "it was never open");
        steady.serve(Service::new(IoMode::Concurrent, IoMode::Concurrent));
        assert!(steady.reads_plainly() && steady.writes_plainly());
        let causes = [
            (Cause::HeldSectors, true),
            (Cause::HeldWrite, false),
            (Cause::Delayed, false),
            (Cause::Windows, true),
            (Cause::Unsealed, true),
            (Cause::Leased, false),
        ];
        for (cause, reads_plainly) in causes {
            let bit = Bit::new(&steady, cause);
            bit.set(true);
            bit.set(true);
            assert_eq!(
                (bit.is_set(), steady.writes_plainly(), steady.reads_plainly()),
                (true, false, reads_plainly),
                "{cause:?}"
            );
            bit.set(false);
            assert!(!bit.is_set() && steady.writes_plainly(), "{cause:?}");
        }
        for mode in [IoMode::Direct, IoMode::Cached] {
            steady.serve(Service::new(mode, mode));
            assert!(!steady.reads_plainly() && !steady.writes_plainly(), "{mode:?}");
        }
    }
}
