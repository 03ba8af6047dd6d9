//! A log that goes on in another place.
//!
//! ```text
//!   lead alone ─► metadata commit: all records, the next incarnation ─► superblocks: the new place ─► go_on ─► a round there
//!       │                              │
//!       │                              └ from here on replay finds an empty log, in either place (I-LOG-9)
//!       └ callers of sync and seal wait; records go on into the buffer
//! ```

use std::sync::atomic::Ordering;

use super::commit::Leader;
use super::ring::Ring;
use super::{IntentLog, LogParts, LogPosition, check_place, limits_of};
use crate::{Error, Lsn, Result};

impl LogParts {
    /// Refuses a place that does not suit its device.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn suit(&self) -> Result<()> {
        check_place(self, 0).map(drop)
    }

    /// Makes runs of bytes of the ring's device durably zero, which become part of the ring.
    ///
    /// # Errors
    /// Those of the device.
    pub fn prepare(&self, fresh: &[(u64, u64)]) -> Result<()> {
        for (start, len) in fresh {
            self.ring_device().write_zeroes(*start, *len)?;
        }
        Ok(self.ring_device().flush()?)
    }
}

impl IntentLog {
    /// Runs `switch` while nothing is written to the log, and then a round for all that waited.
    /// Records are appended meanwhile.
    pub(crate) fn alone<T>(&self, switch: impl FnOnce() -> T) -> T {
        let mut done = None;
        self.group.lead_alone(|| {
            done = Some(switch());
            self.lead();
        });
        done.expect("a round of its own was led")
    }

    /// Returns where the next incarnation begins when a metadata commit holds everything up to
    /// `lsn`: in any ring.
    pub(crate) fn next_life(&self, lsn: Lsn) -> LogPosition {
        let incarnation = self.ring.lock().incarnation() + 1;
        LogPosition { incarnation, applied: lsn, ..LogPosition::START }
    }

    /// Goes on in another place from a position that a durable metadata commit holds, made after a
    /// flush of the data device (I-LOG-9). Called from within [`alone`](Self::alone).
    ///
    /// # Errors
    /// As [`open`](Self::open), and nothing has changed.
    pub(crate) fn go_on(&self, parts: LogParts, position: LogPosition) -> Result<()> {
        let place = parts.place;
        let limits = limits_of(place, check_place(&parts, position.offset)?);
        *self.leader.try_lock().expect("I-GROUP-1: one leader at a time") =
            Leader::new(parts, limits.unit);
        let mut buffer = self.buffer.lock();
        buffer.skip_to(position.applied);
        buffer.refit(limits);
        let mut ring = self.ring.lock();
        assert!(
            position.incarnation > ring.incarnation() && position.applied >= ring.durable(),
            "I-LOG-9: a log goes on in a new incarnation, behind all that was durable"
        );
        *ring = Ring::new(place, position);
        self.size.store(place.len_bytes, Ordering::Relaxed);
        self.separate.store(place.separate, Ordering::Relaxed);
        self.publish_progress(&ring);
        Ok(())
    }

    /// Takes note that nothing becomes durable any more, because a move of the log failed half-way.
    pub(crate) fn fail(&self, error: Error) {
        if self.failed.get().is_none() {
            self.latch(error);
        }
    }
}
