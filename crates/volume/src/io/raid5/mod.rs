//! RAID-5 at work: rows that are written as wholes or through the parity log, read without a
//! member, and made to agree.
//!
//! ```text
//!   write   rows locked ─► gate ─► windows ─► read what the way to the parity needs ─► partial row? log, flush ─► all members at once
//!           a row write (row_write.rs): a positioned call waits at every step, a queue looks in now and then (write_batcher.rs)
//!   read    the member ─► gone or unreadable? row locked ─► exclusive or of the others ─► written back where it was unreadable
//!   log     full ─► gate alone: all members flushed, new head ─► from the start            import: what counts is written again
//! ```
//! **The write hole.** While a row is partly new its parity is of no use, and a member that is lost
//! then takes with it bytes that were never written. So what goes to two or more members of a row
//! is first made durable in the log of those very members (I-PAR-1), and stays there until what was
//! written in place is durable. After a crash either every part is there and all are written again,
//! or none was begun in place. One lost member loses its part of the record and its part of the
//! row: the others' parts make the row whole in its new state.
//!
//! A row that is written from end to end is not logged while all members are up to date: whatever
//! arrives, the data of the row is what the write and what was there before made it, and the parity
//! is computed from that. Only a crash *and* the loss of a member at the same time, or before the
//! rows in doubt were compared, leave the lost member's part of rows open that were written whole
//! and not flushed since. When a member fails while the volume is in use, the others are flushed
//! before it counts as failed (I-PAR-2), so that state is never met later.
//!
//! * I-PAR-1: nothing is written in place on two members of a row before the record that says so is
//!   durable on every member that takes part, unless the whole row is written, all members are up
//!   to date and no record of the row could be written again.
//! * I-PAR-2: a member counts as failed only when all rows that were written without a record are
//!   durable on the others.
//! * I-PAR-3: a head lets a record no longer count only when what the record says is durable in
//!   place on every member.

mod gate;
mod log;
mod plan;
mod read;
mod readonly_recovery;
mod recover;
mod row_write;
mod rows;
mod sync;
#[cfg(test)]
mod tests;
mod write;
mod write_batcher;

use std::sync::Arc;

use bedplate_block::sync::{Mutex, rank};

#[cfg(feature = "forge")]
pub(crate) use log::reseal as reseal_log;
pub(crate) use readonly_recovery::{UncertainRows, refuse_unreadable_log};
pub(crate) use sync::Rows;
pub(crate) use write_batcher::WriteBatcher;

use super::epoch::{LayoutEpoch, POLL_INTERVAL};
use super::volume_io::VolumeIo;
use crate::{Id, Layout, Raid5};
use gate::Gate;
use log::Tail;
use rows::{RowLocks, RowsHeld};
use write_batcher::BatchLock;

/// Returns where the parity log of a volume lies on a member, and its length.
#[cfg(feature = "forge")]
pub(crate) fn log_area(volume: usize) -> (u64, u64) {
    (log::area(volume), log::AREA_BYTES)
}

/// What a RAID-5 volume keeps.
#[derive(Debug)]
pub(crate) struct Parity {
    pub raid5: Raid5,
    pub group: Id,
    /// Where the log begins on every member.
    area: u64,
    rows: Arc<RowLocks>,
    gate: Arc<Gate>,
    /// What queues have under way. The list is a leaf lock; each batch is locked by the thread that
    /// takes it a step further, and is not waited for while another is held.
    batches: Mutex<Vec<Arc<BatchLock>>, { rank::VOLUME_LEAF }>,
    /// A leaf lock.
    tail: Mutex<Tail, { rank::VOLUME_LEAF }>,
}

impl Parity {
    /// Makes what a RAID-5 keeps whose log lies where that of the volume with an ordinal does.
    pub fn new(raid5: Raid5, group: Id, volume: usize) -> Self {
        Self {
            raid5,
            group,
            area: log::area(volume),
            rows: Arc::default(),
            gate: Arc::default(),
            batches: Mutex::default(),
            tail: Mutex::default(),
        }
    }
}

impl Parity {
    /// Sleeps until the gate is free, or for a moment; rows that are held may be free then as well.
    fn wait_for_others(&self) {
        if !self.gate.wait() {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl VolumeIo {
    /// Waits until rows are free and takes them. Meanwhile it carries out what queues have under
    /// way and their owners do not look after now.
    pub(crate) fn lock_rows(&self, parity: &Parity, first: u64, last: u64) -> RowsHeld {
        parity.rows.lock(&[(first, last)], || self.help(parity))
    }
}

/// Adds bytes to a sum without carry, word by word: plain enough for the compiler to use the widest
/// registers there are.
pub(crate) fn xor(sum: &mut [u8], bytes: &[u8]) {
    assert_eq!(sum.len(), bytes.len(), "only equal lengths are summed");
    let (words, rest) = sum.as_chunks_mut::<8>();
    let (others, last) = bytes.as_chunks::<8>();
    words.iter_mut().zip(others).for_each(|(word, other)| {
        *word = (u64::from_ne_bytes(*word) ^ u64::from_ne_bytes(*other)).to_ne_bytes();
    });
    rest.iter_mut().zip(last).for_each(|(byte, other)| *byte ^= other);
}

/// Returns what a layout keeps where it is a RAID-5.
fn parity_of(layout: &Layout, group: Id, log: usize) -> Option<Arc<Parity>> {
    match layout {
        Layout::Raid5(raid5) => Some(Arc::new(Parity::new(raid5.clone(), group, log))),
        _ => None,
    }
}

/// Gives an epoch what its layouts keep where they are a RAID-5. The log of the next one lies where
/// a second volume would have its own; members between two layouts have none.
pub(crate) fn with_parity(mut epoch: LayoutEpoch, group: Id, ordinal: usize) -> LayoutEpoch {
    let swapped = epoch.relayout.as_ref().is_some_and(|relayout| relayout.logs_swapped);
    let (now, next) = if swapped { (1 - ordinal, ordinal) } else { (ordinal, 1 - ordinal) };
    epoch.parity = parity_of(&epoch.layout, group, now);
    epoch.next_parity =
        epoch.relayout.as_ref().and_then(|relayout| parity_of(&relayout.next, group, next));
    epoch
}
