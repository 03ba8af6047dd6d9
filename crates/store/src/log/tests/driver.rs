//! A small file system's worth of use of the log, on devices that forget, with the history that a
//! judge needs.
//!
//! ```text
//!  data device   0        4 KiB      64 KiB                  + ring          + 24 slots of 2 KiB
//!                │ commit │ commit   │ ring (unless separate)│ slot │ slot │ … │
//! ```
//! A *slot* stands for a block. A *tenure* is the time a slot belongs to one file: from the record
//! that exposes it to the one that frees it. Every write to a slot is a new *version* whose bytes
//! are found in no other, so that what a slot shows after a crash tells where it is from.

use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice, SimulatedDevice};

use super::tap::{Moments, Tap};
use super::*;
use crate::checksum::Crc32c;
use crate::log::{HomeWrites, LoggedData, SyncOutcome};

pub(super) const RING: u64 = 48 << 10;
const SLOT: u64 = 2048;
const SLOTS: usize = 24;
const SECTOR: usize = 512;
pub(super) const DATA_BYTES: u64 = RING_START + RING + SLOT * SLOTS as u64;
pub(super) const LOG_BYTES: u64 = RING_START + RING;

/// A mistake that the judge must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bug {
    None,
    DropDataFlushes,
    DropLogFlushes,
    OverwriteWithoutPermission,
    ReuseBeforeSealed,
    ExposeWithoutChecksum,
    SameIncarnation,
    TrimBeforeCommit,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    pub(super) separate: bool,
    pub(super) bug: Bug,
}

/// What a record does to the slots.
#[derive(Debug, Clone)]
enum Effect {
    Nothing,
    Expose(Vec<usize>),
    Free(usize),
}

#[derive(Debug, Clone)]
struct Version {
    id: usize,
    /// The moment at which it had been written; `None`: in an earlier life.
    moment: Option<usize>,
}

#[derive(Debug, Clone)]
struct Tenure {
    slot: usize,
    exposed: usize,
    versions: Vec<Version>,
    /// Versions before this one are known to be gone.
    floor: usize,
    lsn: Lsn,
}

/// A promise: at `until`, everything up to `lsn` and all data written by `since` is durable.
#[derive(Debug, Clone, Copy)]
struct Promise {
    since: usize,
    until: usize,
    lsn: Lsn,
}

/// All that was done, as the judge needs it.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    records: Vec<Record>,
    effects: Vec<Effect>,
    tenures: Vec<Tenure>,
    promises: Vec<Promise>,
    /// What each version wrote, by its number.
    contents: Vec<Arc<[u8]>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Occupancy {
    tenure: Option<usize>,
    freed_by: Lsn,
}

pub(super) struct Driver {
    setup: Setup,
    parts: LogParts,
    log: IntentLog,
    pub(super) moments: Arc<Moments>,
    pub(super) history: History,
    slots: [Occupancy; SLOTS],
    commits: u64,
    dice: Dice,
}

fn slot_offset(slot: usize) -> u64 {
    RING_START + RING + slot as u64 * SLOT
}

/// Bytes that no other number gives.
fn content(number: usize) -> Arc<[u8]> {
    let mut dice = Dice(number as u64);
    (0..SLOT / 8).flat_map(|_| dice.roll().to_le_bytes()).collect()
}

pub(super) fn parts(
    setup: Setup,
    data: Arc<dyn BlockDevice>,
    log: Option<Arc<dyn BlockDevice>>,
) -> LogParts {
    LogParts {
        data,
        log,
        volume: volume(),
        place: LogPlace { separate: setup.separate, start_byte: RING_START, len_bytes: RING },
    }
}

/// Reads the newer of the two commits: its number and position.
pub(super) fn last_commit(data: &Arc<dyn BlockDevice>) -> (u64, LogPosition) {
    let read = |offset| {
        let mut buf = AlignedBuf::zeroed(SECTOR);
        data.read_at(&mut buf, offset).unwrap();
        let crc = u32::from_le_bytes(buf[40..44].try_into().unwrap());
        (crc32c(&buf[..40]) == crc).then(|| {
            (
                u64::from_le_bytes(buf[..8].try_into().unwrap()),
                LogPosition::decode(&buf[8..40]).unwrap(),
            )
        })
    };
    read(0).max_by_number(read(4096)).unwrap_or((0, LogPosition::START))
}

trait MaxByNumber {
    fn max_by_number(self, other: Self) -> Self;
}

impl MaxByNumber for Option<(u64, LogPosition)> {
    fn max_by_number(self, other: Self) -> Self {
        if self.map(|(number, _)| number) >= other.map(|(number, _)| number) { self } else { other }
    }
}

impl Driver {
    /// Starts a life on the devices, after the records of `history` up to `last` (those that a
    /// replay found).
    pub(super) fn start(
        setup: Setup,
        data: Arc<SimulatedDevice>,
        log: Option<Arc<SimulatedDevice>>,
        mut history: History,
        last: Lsn,
        seed: u64,
    ) -> Self {
        let moments = Arc::new(Moments::default());
        let data = Tap::over(data, &moments, setup.bug == Bug::DropDataFlushes);
        let log = log.map(|log| Tap::over(log, &moments, setup.bug == Bug::DropLogFlushes));
        moments.note();
        let parts = parts(setup, data, log);
        let slots = history.rewind(last);
        let (commits, old) = last_commit(&parts.data);
        let mut next = if last == Lsn(0) {
            LogPosition::START
        } else {
            LogPosition { incarnation: old.incarnation + 1, ..LogPosition::START }
        };
        if setup.bug == Bug::SameIncarnation {
            next.incarnation = 1;
        }
        next.applied = last;
        let opened = IntentLog::open(parts.clone(), next).unwrap();
        if last > Lsn(0) {
            // As a mount does, before its first commit.
            write_homes(&parts, &collect(&parts, old).unwrap().0);
        }
        let mut driver =
            Self { setup, parts, log: opened, moments, history, slots, commits, dice: Dice(seed) };
        driver.parts.data.flush().unwrap();
        driver.write_commit(next);
        driver
    }

    fn now(&self) -> usize {
        self.moments.count() - 1
    }

    pub(super) fn step(&mut self) {
        match self.dice.below(24) {
            0..6 => self.expose(),
            6..10 => self.overwrite(),
            10..13 => self.free(),
            13..15 => self.change(),
            15..19 => self.sync(self.log.last_lsn()),
            19 => {
                let lsn = Lsn(self.dice.below(self.log.last_lsn().0 + 1));
                self.sync(lsn);
            }
            20..22 => self.sync(Lsn(0)),
            22 => {
                let since = self.now();
                let lsn = self.log.last_lsn();
                let outcome = self.log.seal(lsn).unwrap();
                if outcome == SyncOutcome::Durable {
                    assert!(self.log.sealed_lsn() >= lsn);
                }
                self.note_outcome(outcome, since, lsn);
            }
            _ => self.commit(),
        }
    }

    fn note_outcome(&mut self, outcome: SyncOutcome, since: usize, lsn: Lsn) {
        match outcome {
            SyncOutcome::Durable => {
                // A seal that had nothing to do made no flush.
                let since = if self.now() == since { 0 } else { since };
                self.history.promises.push(Promise { since, until: self.now(), lsn });
            }
            SyncOutcome::NeedsCommit => self.commit(),
        }
    }

    fn sync(&mut self, lsn: Lsn) {
        let since = self.now();
        let outcome = self.log.sync(lsn).unwrap();
        self.note_outcome(outcome, since, lsn);
    }

    fn append(&mut self, record: Record, effect: Effect) -> Lsn {
        let lsn = self.log.append(&record);
        self.history.records.push(record);
        self.history.effects.push(effect);
        assert_eq!(lsn.0, self.history.records.len() as u64);
        lsn
    }

    fn change(&mut self) {
        let bytes = if self.dice.one_in(6) { 11_000 } else { self.dice.below(3000) as usize };
        let id = self.dice.roll();
        self.append(record(id, bytes), Effect::Nothing);
    }

    /// Makes a new version of a slot.
    fn version(&mut self) -> Version {
        let id = self.history.contents.len();
        self.history.contents.push(content(id));
        Version { id, moment: Some(self.now()) }
    }

    /// Writes a new version of a slot.
    fn write(&mut self, slot: usize) -> Version {
        let version = self.version();
        let bytes = AlignedBuf::from_slice(&self.history.contents[version.id]);
        let at = slot_offset(slot);
        self.log.homes.settle(&(at..at + SLOT), &*self.parts.data).unwrap();
        self.parts.data.write_at(&bytes, at).unwrap();
        Version { moment: Some(self.now()), ..version }
    }

    fn free_slots(&self) -> Vec<usize> {
        let reusable = if self.setup.bug == Bug::ReuseBeforeSealed {
            self.log.durable_lsn()
        } else {
            self.log.sealed_lsn()
        };
        (0..SLOTS)
            .filter(|slot| {
                self.slots[*slot].tenure.is_none() && self.slots[*slot].freed_by <= reusable
            })
            .collect()
    }

    /// Writes new data into free slots, then the record that makes it readable.
    fn expose(&mut self) {
        let free = self.free_slots();
        let count = (1 + self.dice.below(3) as usize).min(free.len());
        if count == 0 {
            return self.free();
        }
        let lsn = Lsn(self.log.last_lsn().0 + 1);
        let (mut crc, mut segments, mut tenures) = (Crc32c::new(), Vec::new(), Vec::new());
        let mut logged = (!self.setup.separate && self.dice.one_in(2)).then(LoggedData::default);
        for _ in 0..count {
            let free = self.free_slots();
            let slot = free[self.dice.below(free.len() as u64) as usize];
            let exposed = 1 + self.dice.below(SLOT) as usize;
            let version = if logged.is_some() { self.version() } else { self.write(slot) };
            let content = &self.history.contents[version.id];
            crc.update(&content[..exposed]);
            if let Some(logged) = &mut logged {
                logged.bytes.extend_from_slice(&content[..exposed]);
                logged.writes.push((slot_offset(slot), content.to_vec()));
            }
            segments.push((slot_offset(slot), exposed as u32));
            tenures.push(self.history.tenures.len());
            self.slots[slot].tenure = Some(self.history.tenures.len());
            self.history.tenures.push(Tenure {
                slot,
                exposed,
                versions: vec![version],
                floor: 0,
                lsn,
            });
        }
        let mut made = record(lsn.0, 30);
        if self.setup.bug != Bug::ExposeWithoutChecksum {
            made = if logged.is_none() && self.dice.one_in(4) {
                made.after_barrier()
            } else {
                made.exposing(Exposure { segments, crc: crc.finish(), logged })
            };
        }
        self.append(made, Effect::Expose(tenures));
    }

    fn owned_slot(&mut self) -> Option<usize> {
        let owned: Vec<_> = (0..SLOTS).filter(|slot| self.slots[*slot].tenure.is_some()).collect();
        (!owned.is_empty()).then(|| owned[self.dice.below(owned.len() as u64) as usize])
    }

    fn overwrite(&mut self) {
        let Some(slot) = self.owned_slot() else { return };
        let tenure = self.slots[slot].tenure.unwrap();
        let lsn = self.history.tenures[tenure].lsn;
        if self.setup.bug != Bug::OverwriteWithoutPermission
            && self.log.permit_overwrite(lsn).unwrap() == SyncOutcome::NeedsCommit
        {
            self.commit();
        }
        let version = self.write(slot);
        self.history.tenures[tenure].versions.push(version);
    }

    fn free(&mut self) {
        let Some(slot) = self.owned_slot() else { return };
        let id = self.dice.roll();
        let lsn = self.append(record(id, 20), Effect::Free(slot));
        self.slots[slot] = Occupancy { tenure: None, freed_by: lsn };
    }

    /// Makes a durable metadata commit.
    fn commit(&mut self) {
        let since = self.now();
        let lsn = self.log.last_lsn();
        self.log.homes.write(&*self.parts.data).unwrap();
        let through_the_log =
            self.dice.one_in(2) && self.log.sync(lsn).unwrap() == SyncOutcome::Durable;
        if !through_the_log {
            assert_eq!(self.log.sync(Lsn(0)).unwrap(), SyncOutcome::Durable);
        }
        let position = self.log.position_after(lsn);
        let early = self.setup.bug == Bug::TrimBeforeCommit;
        if early {
            self.log.trim(position);
            self.log.skip_to(lsn);
            let next = self.log.append(&record(0, 9000));
            self.history.records.push(record(0, 9000));
            self.history.effects.push(Effect::Nothing);
            self.sync(next);
        }
        self.write_commit(position);
        if !early {
            self.log.trim(position);
            self.log.skip_to(lsn);
        }
        self.history.promises.push(Promise { since, until: self.now(), lsn });
        assert!(self.log.durable_lsn() >= lsn && self.log.sealed_lsn() >= lsn);
    }

    fn write_commit(&mut self, position: LogPosition) {
        self.commits += 1;
        let mut buf = AlignedBuf::zeroed(SECTOR);
        buf[..8].copy_from_slice(&self.commits.to_le_bytes());
        buf[8..40].copy_from_slice(&position.encode());
        let crc = crc32c(&buf[..40]);
        buf[40..44].copy_from_slice(&crc.to_le_bytes());
        self.parts.data.write_at(&buf, self.commits % 2 * 4096).unwrap();
        self.parts.data.flush().unwrap();
    }
}

/// Has the data device have what a replay found in the log.
fn write_homes(parts: &LogParts, report: &ReplayReport) {
    HomeWrites::of(report).write(&*parts.data).unwrap();
    parts.data.flush().unwrap();
}

impl History {
    /// Forgets what came after `last`, as a crash does, and returns the owners of the slots.
    fn rewind(&mut self, last: Lsn) -> [Occupancy; SLOTS] {
        // What was promised before the crash is promised still.
        let kept = self.promises.iter().map(|promise| promise.lsn).max().unwrap_or_default();
        self.promises = vec![Promise { since: 0, until: 0, lsn: kept.min(last) }];
        self.records.truncate(last.0 as usize);
        self.effects.truncate(last.0 as usize);
        for tenure in &mut self.tenures {
            tenure.versions.iter_mut().for_each(|version| version.moment = None);
        }
        let mut slots = [Occupancy::default(); SLOTS];
        for (slot, tenure) in self.owners(last) {
            slots[slot].tenure = Some(tenure);
        }
        slots
    }

    /// The owner of each slot after record `last`.
    fn owners(&self, last: Lsn) -> std::collections::BTreeMap<usize, usize> {
        let mut owners = std::collections::BTreeMap::new();
        for effect in &self.effects[..last.0 as usize] {
            match effect {
                Effect::Nothing => {}
                Effect::Expose(tenures) => owners
                    .extend(tenures.iter().map(|tenure| (self.tenures[*tenure].slot, *tenure))),
                Effect::Free(slot) => {
                    assert!(owners.remove(slot).is_some(), "the test freed a free slot");
                }
            }
        }
        owners
    }

    /// Judges what a replay found on `parts` after the power went at `moment`.
    pub(super) fn judge(
        &self,
        parts: &LogParts,
        moment: usize,
    ) -> std::result::Result<Lsn, String> {
        let (_, position) = last_commit(&parts.data);
        let (report, replayed) =
            collect(parts, position).map_err(|error| format!("replay failed: {error}"))?;
        if let Some(damaged) = &report.damaged {
            return Err(format!("a power cut was taken for damage: {damaged}"));
        }
        write_homes(parts, &report);
        for (index, (lsn, found)) in replayed.iter().enumerate() {
            let expected = self
                .records
                .get(lsn.0 as usize - 1)
                .ok_or_else(|| format!("I-LOG-7: {lsn:?} was never appended"))?;
            if lsn.0 != position.applied.0 + 1 + index as u64
                || found.rows != expected.rows
                || found.kind != expected.kind
            {
                return Err(format!("I-LOG-7: {lsn:?} is not the record that was appended"));
            }
        }
        let promises = || self.promises.iter().filter(|promise| promise.until <= moment);
        if let Some(broken) = promises().find(|promise| promise.lsn > report.last) {
            return Err(format!(
                "I-LOG-3, I-LOG-5: {broken:?} is broken: the log ends at {:?} ({})",
                report.last, report.end
            ));
        }
        let flushed = promises().map(|promise| promise.since).max().unwrap_or(0);
        for (slot, tenure) in self.owners(report.last) {
            self.judge_slot(parts, slot, &self.tenures[tenure], flushed)?;
        }
        Ok(report.last)
    }

    fn judge_slot(
        &self,
        parts: &LogParts,
        slot: usize,
        tenure: &Tenure,
        flushed: usize,
    ) -> std::result::Result<(), String> {
        let is_flushed = |version: &Version| version.moment.is_some_and(|moment| moment <= flushed);
        let floor = tenure.versions.iter().rposition(is_flushed).unwrap_or(tenure.floor);
        let mut shown = AlignedBuf::zeroed(SLOT as usize);
        parts.data.read_at(&mut shown, slot_offset(slot)).unwrap();
        for from in (0..tenure.exposed).step_by(SECTOR) {
            let sector = from..(from + SECTOR).min(tenure.exposed);
            let legitimate = |version: &Version| {
                self.contents[version.id][sector.clone()] == shown[sector.clone()]
            };
            if !tenure.versions[floor..].iter().any(legitimate) {
                return Err(format!(
                    "I-LOG-4: slot {slot} shows bytes at {from} that its file never wrote, or that \
                     were overwritten durably: {tenure:?} {flushed}"
                ));
            }
        }
        Ok(())
    }
}
