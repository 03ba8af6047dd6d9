//! One round of group commit: plan under the mutexes, then write and flush without them, then
//! publish.

use std::collections::VecDeque;
use std::time::Instant;

use bedplate_block::AlignedBuf;

use super::batch::{HEADER_BYTES, Header};
use super::buffer::Batch;
use super::ring::{Ring, Slot};
use super::{HomeWrites, IntentLog, LogParts};
use crate::planted::{PlantedBug, planted};
use crate::{Lsn, Result};

/// What only the leader touches (rank 5a, free whenever there is no leader).
#[derive(Debug)]
pub(super) struct Leader {
    /// Where the log lives.
    parts: LogParts,
    /// Write unit in bytes: what the device writes without reading first.
    unit: usize,
    /// The batches in hand and where they go; empty between rounds.
    batches: VecDeque<Batch>,
    slots: VecDeque<Slot>,
    /// The batch that carries nothing but its header: one write unit.
    empty: AlignedBuf,
    /// A flush of the data that succeeded began when this was the last record: what records up to it
    /// expose is durable.
    flushed: Lsn,
    /// The first record that carried data which was not at home when that flush began.
    not_home: Option<Lsn>,
    /// Rounds since everything was at home.
    rounds: u32,
}

/// After how many rounds data goes home whatever there is of it, so that what is freed meanwhile
/// can be used again (I-HOM-1).
const ROUNDS_MAX: u32 = 256;

impl Leader {
    pub(super) fn new(parts: LogParts, unit: usize) -> Self {
        Self {
            parts,
            unit,
            batches: VecDeque::new(),
            slots: VecDeque::new(),
            empty: AlignedBuf::zeroed(unit),
            flushed: Lsn(0),
            not_home: None,
            rounds: 0,
        }
    }

    /// Returns up to where the last flush of the data lets headers seal.
    fn covers(&self, ring: &Ring) -> Lsn {
        let before = |first: Lsn| ring.durable().min(Lsn(first.0 - 1)).max(ring.sealed());
        self.not_home.map_or(ring.durable(), before)
    }
}

/// What a round writes between the flushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Write {
    Nothing,
    /// An empty batch, for the sealed lsn in its header.
    Seal,
    Records,
}

/// What a round does.
#[derive(Debug, Clone, Copy)]
struct Plan {
    write: Write,
    /// What the records expose is durable before the write: then the batches seal themselves.
    barrier: bool,
    /// A flush before the write makes it so; otherwise the last round's has.
    flush_first: bool,
    /// The sealed lsn of the headers, where the batches do not seal themselves.
    sealed: Lsn,
    durable_sequence: u64,
    incarnation: u64,
    /// The first lsn of an empty batch.
    next: Lsn,
    /// The last record written whose data replay will have to check.
    exposing: Lsn,
}

impl Plan {
    /// Has data go home, and a flush make that durable, before the headers say that all which is
    /// durable is sealed.
    fn seal_all(&mut self, ring: &Ring) {
        if self.write != Write::Nothing && !self.barrier {
            self.flush_first = true;
            self.sealed = ring.durable();
        }
    }
}

impl IntentLog {
    /// Leads one round. A failure latches the log.
    pub(super) fn lead(&self) {
        if self.failed.get().is_some() {
            return;
        }
        let mut leader = self.leader.try_lock().expect("I-GROUP-1: one leader at a time");
        let plan = self.plan(&mut leader);
        let began = Instant::now();
        let done = self.carry_out(&mut leader, &plan);
        self.counters
            .busy_us
            .fetch_add(super::us(began.elapsed()), std::sync::atomic::Ordering::Relaxed);
        match done {
            Ok(evidence) => self.publish(&mut leader, &plan, evidence),
            Err(_) if planted(PlantedBug::FailedFlushForgotten) => {
                self.publish(&mut leader, &plan, plan.sealed);
            }
            Err(error) => self.latch(error),
        }
    }

    /// Decides what to write, takes the batches and places them.
    fn plan(&self, leader: &mut Leader) -> Plan {
        debug_assert!(
            leader.batches.is_empty() && leader.slots.is_empty(),
            "I-GROUP-1: a round begins with nothing of the one before"
        );
        // Read after the tickets were counted: every caller that is covered has published its
        // request.
        let (sync_to, seal_to) = self.requested();
        let mut buffer = self.buffer.lock();
        let mut ring = self.ring.lock();
        let wanted = sync_to.max(seal_to);
        assert!(
            wanted <= buffer.last(),
            "I-LOG-1: no thread waits for a record that was not appended"
        );
        debug_assert!(
            ring.sealed() <= ring.durable(),
            "I-LOG-5: {:?} is sealed and durable only up to {:?}",
            ring.sealed(),
            ring.durable()
        );
        let mut plan = Plan {
            write: Write::Nothing,
            barrier: false,
            flush_first: leader.parts.place.separate,
            sealed: leader.covers(&ring),
            durable_sequence: ring.durable_sequence(),
            incarnation: ring.incarnation(),
            next: Lsn(ring.placed().0 + 1),
            exposing: Lsn(0),
        };
        if wanted > ring.durable() {
            // Records that were dropped, or do not fit, wait for a metadata commit; the flush is
            // made for the others.
            if buffer.dropped() <= ring.durable() && ring.fits(buffer.lengths()) {
                plan.write = Write::Records;
                let taken = buffer.take(&mut leader.batches);
                plan.barrier =
                    taken.barrier || leader.parts.place.separate || seal_to > ring.durable();
                assert!(
                    plan.barrier || !taken.barrier,
                    "I-LOG-4: a record without a checksum waits for its data"
                );
                let is_flushed =
                    leader.batches.back().is_some_and(|it| it.last() <= leader.flushed);
                plan.flush_first |= plan.barrier && !is_flushed;
                plan.exposing = if plan.barrier { Lsn(0) } else { taken.exposing };
            }
        } else if ring.sealed() < plan.sealed.max(seal_to)
            && ring.fits(std::iter::once(leader.unit as u64))
        {
            // The flush is due anyway: a seal now saves the next overwrite a flush of its own.
            plan.write = Write::Seal;
        }
        if seal_to > plan.sealed {
            plan.seal_all(&ring);
        }
        self.place(leader, &plan, &mut ring);
        plan
    }

    fn place(&self, leader: &mut Leader, plan: &Plan, ring: &mut Ring) {
        match plan.write {
            Write::Nothing => {}
            Write::Seal => leader.slots.push_back(ring.place(leader.unit as u64, ring.placed())),
            Write::Records => {
                let placed = leader
                    .batches
                    .iter()
                    .map(|batch| ring.place(batch.padded(leader.unit) as u64, batch.last()));
                leader.slots.extend(placed);
                debug_assert_eq!(
                    leader.slots.len(),
                    leader.batches.len(),
                    "I-LOG-2: every batch has its place in the ring"
                );
            }
        }
    }

    /// Writes and flushes; returns up to where the batches in the ring seal.
    fn carry_out(&self, leader: &mut Leader, plan: &Plan) -> Result<Lsn> {
        self.write_home(leader, plan.flush_first)?;
        let late = leader.parts.place.separate && planted(PlantedBug::DataFlushedAfterLog);
        if plan.flush_first && !late && !planted(PlantedBug::LogBeforeData) {
            self.flush_data(leader)?;
        }
        let evidence = self.write_batches(leader, plan)?;
        match (leader.parts.place.separate, plan.write) {
            (_, Write::Records) if planted(PlantedBug::MissingFlush) => {}
            (true, Write::Nothing) => {}
            (true, _) => leader.parts.ring_device().flush()?,
            (false, _) => self.flush_data(leader)?,
        }
        if late {
            self.flush_data(leader)?;
        }
        Ok(evidence)
    }

    /// Writes data home where it has to be there, or there is much of it, or it is long ago.
    fn write_home(&self, leader: &mut Leader, must: bool) -> Result<()> {
        if self.homes.bytes() == 0 {
            leader.rounds = 0;
            return Ok(());
        }
        leader.rounds += 1;
        let is_due = leader.rounds > ROUNDS_MAX || self.homes.bytes() >= HomeWrites::BYTES_DUE;
        if must || is_due {
            leader.rounds = 0;
            let written = self.homes.write(&*leader.parts.data);
            // What did not have to be there yet waits on.
            return if must { written } else { Ok(()) };
        }
        Ok(())
    }

    /// Writes the batches; returns up to where those in the ring seal.
    fn write_batches(&self, leader: &mut Leader, plan: &Plan) -> Result<Lsn> {
        let Leader { parts, unit, batches, slots, empty, .. } = leader;
        let unit = *unit;
        let mut evidence = if plan.write == Write::Nothing { Lsn(0) } else { plan.sealed };
        for (index, slot) in slots.iter().enumerate() {
            let (buf, first, count, used) = match batches.get_mut(index) {
                Some(batch) => {
                    let len = batch.padded(unit);
                    (&mut batch.buf[..len], batch.first, batch.count, batch.used)
                }
                None => (&mut empty[..], plan.next, 0, HEADER_BYTES),
            };
            debug_assert!(
                HEADER_BYTES <= used && used <= buf.len(),
                "{used} used bytes lie behind the header and in a log write of {}",
                buf.len()
            );
            let mut header = Header {
                len: u32::try_from(buf.len()).expect("a batch is at most 4 MiB"),
                incarnation: plan.incarnation,
                sequence: slot.sequence,
                offset: slot.offset,
                first,
                sealed: if planted(PlantedBug::SealNotSaid) { Lsn(0) } else { plan.sealed },
                durable_sequence: if planted(PlantedBug::DurableTooEarly) {
                    slot.sequence - 1
                } else {
                    plan.durable_sequence
                },
                payload_len: u32::try_from(used - HEADER_BYTES).expect("a batch is at most 4 MiB"),
                count,
            };
            if plan.barrier || planted(PlantedBug::SealedWithoutFlush) {
                header.sealed = header.last();
                evidence = evidence.max(header.sealed);
            }
            assert!(
                header.sealed <= header.last(),
                "I-LOG-5: a batch seals nothing that comes after it"
            );
            header.write(parts.volume, buf);
            self.write_batch(parts, unit, buf, slot.offset)?;
        }
        Ok(evidence)
    }

    fn write_batch(&self, parts: &LogParts, unit: usize, batch: &[u8], offset: u64) -> Result<()> {
        let place = parts.place;
        assert!(
            offset + batch.len() as u64 <= place.len_bytes,
            "I-LOG-2: a log write stays within the ring"
        );
        debug_assert!(
            (place.start_byte + offset).is_multiple_of(unit as u64)
                && batch.len().is_multiple_of(unit),
            "I-LOG-2: a log write is whole units of {unit} bytes: {} bytes at {offset}",
            batch.len()
        );
        parts.ring_device().write_at(batch, place.start_byte + offset)?;
        self.counters.bytes.fetch_add(batch.len() as u64, std::sync::atomic::Ordering::Relaxed);
        self.counters.writes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    fn flush_data(&self, leader: &mut Leader) -> Result<()> {
        // A record is appended when the data that it exposes was written, or is noted as not at
        // home, so what is appended while the flush is under way does not count.
        let before = self.buffer.lock().last();
        let not_home = self.homes.first();
        leader.parts.data.flush()?;
        let before = if planted(PlantedBug::FlushCountsForLater) {
            self.buffer.lock().last()
        } else {
            before
        };
        leader.flushed = not_home.map_or(before, |first| before.min(Lsn(first.0 - 1)));
        leader.not_home = not_home;
        self.counters.flushes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    fn publish(&self, leader: &mut Leader, plan: &Plan, evidence: Lsn) {
        assert!(
            self.homes.first().is_none_or(|first| evidence < first),
            "I-HOM-1: records are sealed up to {evidence:?} whose data is not at home"
        );
        leader.slots.clear();
        let records: u64 = leader.batches.iter().map(|batch| u64::from(batch.count)).sum();
        self.counters.records.fetch_add(records, std::sync::atomic::Ordering::Relaxed);
        if plan.write != Write::Nothing {
            let mut ring = self.ring.lock();
            ring.complete(evidence, plan.exposing);
            debug_assert!(
                ring.sealed() >= plan.sealed,
                "I-LOG-5: what is sealed stays sealed: {:?}, and was {:?}",
                ring.sealed(),
                plan.sealed
            );
            let written = leader.batches.back().map_or(Lsn(0), Batch::last);
            assert!(
                ring.durable() >= written,
                "I-LOG-3: what was written before the flush is durable after it"
            );
            self.publish_progress(&ring);
        }
        if !leader.batches.is_empty() {
            let mut buffer = self.buffer.lock();
            for batch in leader.batches.drain(..) {
                buffer.recycle(batch.buf);
            }
        }
    }
}
