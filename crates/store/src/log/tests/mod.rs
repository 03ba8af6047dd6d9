//! Tests of the log: format, ring, faults, threads, the model of the protocol, and power cuts.

mod crash;
mod driver;
mod faults;
mod flushed;
mod format;
mod model;
mod resume;
mod ring;
pub(crate) mod tap;
mod threads;

use std::sync::Arc;

use bedplate_block::{BlockDevice, MemoryDevice};
use uuid::Uuid;

use super::{
    Exposure, IntentLog, LogParts, LogPlace, LogPosition, Record, RecordKind, ReplayReport, replay,
};
use crate::checksum::crc32c;
use crate::row::{RowChange, Table};
use crate::{Lsn, Result};

/// Where the tests put the ring: not at 0, so that forgetting the start shows.
const RING_START: u64 = 64 << 10;

fn volume() -> Uuid {
    Uuid::from_u128(0x0123_4567_89ab_cdef)
}

fn parts_on(data: Arc<dyn BlockDevice>, ring_bytes: u64) -> LogParts {
    LogParts {
        data,
        log: None,
        volume: volume(),
        place: LogPlace { separate: false, start_byte: RING_START, len_bytes: ring_bytes },
    }
}

fn memory_parts(ring_bytes: u64) -> LogParts {
    parts_on(MemoryDevice::new(RING_START + ring_bytes + (1 << 20)), ring_bytes)
}

fn open(parts: &LogParts) -> IntentLog {
    IntentLog::open(parts.clone(), LogPosition::START).unwrap()
}

impl Exposure {
    /// The exposure of one contiguous range that holds `bytes`.
    fn of(offset: u64, bytes: &[u8]) -> Self {
        Self { segments: vec![(offset, bytes.len() as u32)], crc: crc32c(bytes), logged: None }
    }
}

impl Record {
    fn exposing(mut self, exposure: Exposure) -> Self {
        self.exposes = Some(exposure);
        self
    }

    fn after_barrier(mut self) -> Self {
        self.barrier = true;
        self
    }
}

impl IntentLog {
    fn buffered_bytes(&self) -> u64 {
        self.buffer.lock().bytes()
    }
}

/// A record whose rows take about `bytes` bytes and tell records apart.
fn record(id: u64, bytes: usize) -> Record {
    let rows = vec![RowChange::put(Table::Xattr, id.to_be_bytes().to_vec(), vec![id as u8; bytes])];
    Record { kind: RecordKind::Xattr, rows, exposes: None, barrier: false }
}

fn collect(parts: &LogParts, position: LogPosition) -> Result<(ReplayReport, Vec<(Lsn, Record)>)> {
    let mut records = Vec::new();
    let report = replay(parts, position, |lsn, record| {
        records.push((lsn, record));
        Ok(())
    })?;
    assert_eq!(report.records, records.len() as u64);
    Ok((report, records))
}

/// Always the same numbers from the same seed (SplitMix64).
#[derive(Debug, Clone)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.roll() % bound
    }

    fn one_in(&mut self, chance: u64) -> bool {
        self.below(chance) == 0
    }
}
