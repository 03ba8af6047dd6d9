//! The parity log's beginnings and ends: what a crash left is written again, and a full log starts
//! over.

use std::collections::BTreeMap;
use std::sync::Arc;

use bedplate_block::{AlignedBuf, Result};

use super::Parity;
use super::gate::Alone;
use super::log::{AREA_BYTES, Head, PAGE, RecordPart};
use super::write::Failures;
use crate::Id;
use crate::group::{Handles, MemberHandle};
use crate::io::volume_io::VolumeIo;
use crate::planted::{Mistake, is_planted};

impl VolumeIo {
    /// Writes again what the log says, and starts a log of its own. Before anything is read.
    pub fn recover_parity(&self, parity: &Parity) -> Result<()> {
        loop {
            let failures = self.replay(parity)?;
            if failures.is_empty() {
                return Ok(());
            }
            self.fail_members(failures)?;
        }
    }

    fn replay(&self, parity: &Parity) -> Result<Failures> {
        let handles = self.group_state.handles();
        let (logs, mut failures) = read_logs(parity, &handles);
        if !failures.is_empty() {
            return Ok(failures);
        }
        for part in logs.records.iter().flatten() {
            let handle =
                parity.handle(&handles, part.column.into()).expect("an active member is open");
            failures
                .extend(write_part(handle, part).err().map(|error| (Arc::clone(handle), error)));
        }
        if !logs.records.is_empty() {
            let records = logs.records.len();
            tracing::info!(
                volume = self.name,
                records,
                "rows that a crash left in the middle were written again from the parity log"
            );
        }
        if !is_planted(Mistake::ReplayNotFlushed) {
            failures.extend(self.flush_all());
        }
        if !failures.is_empty() {
            return Ok(failures);
        }
        Ok(self.start_log(
            parity,
            Head { generation: logs.generation + 1, incarnation: random(), first: 0 },
        ))
    }

    /// Starts a log in which nothing counts that stood there before.
    pub fn begin_parity(&self, parity: &Parity) -> Result<()> {
        loop {
            let handles = self.group_state.handles();
            let (mut failures, mut generation) = (Failures::new(), 0);
            for (_, handle) in writable(parity, &handles) {
                let mut heads = AlignedBuf::zeroed(2 * PAGE);
                match handle.read(&mut heads, parity.area) {
                    Ok(()) => {
                        generation = generation.max(Head::find(&heads, parity.group).generation);
                    }
                    Err(error) => failures.push((Arc::clone(handle), error)),
                }
            }
            if failures.is_empty() {
                failures = self.start_log(
                    parity,
                    Head { generation: generation + 1, incarnation: random(), first: 0 },
                );
            }
            if failures.is_empty() {
                return Ok(());
            }
            self.fail_members(failures)?;
        }
    }

    /// Makes everything in place durable where the log names rows of a range, so that none of it is
    /// ever written again.
    pub fn forget_rows(&self, parity: &Parity, range: &std::ops::Range<u64>) -> Result<()> {
        let (first, last) = parity.span(range.start, range.end - range.start);
        let named = parity.tail.lock().rows.iter().any(|row| (first..=last).contains(row));
        if named { self.checkpoint_parity(parity) } else { Ok(()) }
    }

    /// Writes a head to every member that takes writes; then it counts.
    fn start_log(&self, parity: &Parity, head: Head) -> Failures {
        let handles = self.group_state.handles();
        let (page, at) = head.encode(parity.group);
        let flush = |handle: &MemberHandle| {
            if is_planted(Mistake::HeadNotFlushed) { Ok(()) } else { handle.flush() }
        };
        let written = writable(parity, &handles).map(|(_, handle)| {
            (handle.write(&page, parity.area + at).and_then(|()| flush(handle)), handle)
        });
        let failures: Failures = written
            .filter_map(|(result, handle)| Some((Arc::clone(handle), result.err()?)))
            .collect();
        if failures.is_empty() {
            parity.tail.lock().restart(head);
        }
        failures
    }

    /// Makes everything in place durable, so that no record is needed any more, and starts the log
    /// over.
    pub fn checkpoint_parity(&self, parity: &Parity) -> Result<()> {
        loop {
            let failures = {
                let _still = parity.gate.alone(|| self.help(parity));
                let written = self.last_writes(&self.epochs.peek());
                let mut failures = if is_planted(Mistake::LogRestartsBeforeFlush) {
                    Failures::new()
                } else {
                    self.flush_all()
                };
                if failures.is_empty() {
                    let durable = written.iter().all(|(handle, last)| handle.is_durable(*last));
                    assert!(
                        durable || is_planted(Mistake::LogRestartsBeforeFlush),
                        "I-PAR-3: what records say is durable in place before they no longer count"
                    );
                    let head = parity.tail.lock().next_head();
                    failures = self.start_log(parity, head);
                }
                failures
            };
            if failures.is_empty() {
                return Ok(());
            }
            self.fail_members(failures)?;
        }
    }

    /// Waits until no row is being written and keeps it so; what was written is durable on every
    /// member but those that failed, which are added.
    pub fn hold_rows<'a>(&self, parity: &'a Parity, failures: &mut Failures) -> Alone<'a> {
        let still = parity.gate.alone(|| self.help(parity));
        let handles = self.group_state.handles();
        for (_, handle) in writable(parity, &handles) {
            if !failures.iter().any(|(failed, _)| Arc::ptr_eq(failed, handle))
                && !is_planted(Mistake::HeldRowsNotFlushed)
            {
                failures.extend(handle.flush().err().map(|error| (Arc::clone(handle), error)));
            }
        }
        still
    }

    fn flush_all(&self) -> Failures {
        let (epoch, handles) = (self.epochs.peek(), self.group_state.handles());
        let open = epoch
            .members
            .iter()
            .filter_map(|member| handles[*member].as_ref())
            .filter(|handle| handle.takes_writes());
        open.filter_map(|handle| Some((Arc::clone(handle), handle.flush().err()?))).collect()
    }
}

/// What the logs of the members say.
pub(super) struct Logs {
    /// The newest of any member.
    generation: u64,
    /// What counts, in order: the parts that belong where they say.
    pub records: Vec<Vec<RecordPart>>,
}

/// Reads the logs of the members that take writes, and says which could not be read: a record in
/// which one of those takes part does not count.
pub(super) fn read_logs(parity: &Parity, handles: &Handles) -> (Logs, Failures) {
    let (mut areas, mut log_unreadable) = (BTreeMap::new(), Failures::new());
    for (column, handle) in writable(parity, handles) {
        let mut area = AlignedBuf::zeroed(AREA_BYTES as usize);
        match handle.read(&mut area, parity.area) {
            Ok(()) => drop(areas.insert(column, area)),
            // One that is not up to date is not asked: its log is as old as it.
            Err(error) => log_unreadable.push((Arc::clone(handle), error)),
        }
    }
    let width = parity.raid5.columns().len();
    let active = |column: &usize| {
        *column < width && parity.handle(handles, *column).is_some_and(|handle| handle.is_active())
    };
    let heads: BTreeMap<usize, Head> =
        areas.iter().map(|(column, area)| (*column, Head::find(area, parity.group))).collect();
    let newest = heads
        .iter()
        .filter(|(column, _)| active(column))
        .map(|(_, head)| *head)
        .max_by_key(|head| head.generation)
        .unwrap_or_default();
    let mut records: BTreeMap<u64, Vec<RecordPart>> = BTreeMap::new();
    for (column, area) in
        areas.iter().filter(|(column, _)| newest.incarnation != 0 && active(column))
    {
        let own = RecordPart::find(area, parity.group, newest)
            .into_iter()
            .filter(|part| usize::from(part.column) == *column);
        own.for_each(|part| records.entry(part.ordinal).or_default().push(part));
    }
    let whole = records.into_values().filter(|parts| is_whole(parts, &active));
    let records =
        whole.map(|parts| parts.into_iter().filter(|part| fits(parity, part)).collect()).collect();
    (
        Logs { generation: heads.values().map(|head| head.generation).max().unwrap_or(0), records },
        log_unreadable,
    )
}

fn random() -> u64 {
    let id = Id::random().0;
    id.chunks_exact(8)
        .fold(1, |sum, word| sum ^ word.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)))
        .max(1)
}

fn writable<'a>(
    parity: &Parity,
    handles: &'a Handles,
) -> impl Iterator<Item = (usize, &'a Arc<MemberHandle>)> {
    let columns: Vec<usize> = (0..parity.raid5.columns().len()).collect();
    let open = columns.into_iter().map(|column| (column, parity.handle(handles, column)));
    open.filter_map(|(column, handle)| {
        Some((column, handle.filter(|handle| handle.takes_writes())?))
    })
    .collect::<Vec<_>>()
    .into_iter()
}

/// Says whether every member that takes part in a record and is up to date holds its part.
fn is_whole(parts: &[RecordPart], active: &dyn Fn(&usize) -> bool) -> bool {
    let columns = parts[0].columns;
    let held = |column: usize| parts.iter().any(|part| usize::from(part.column) == column);
    is_planted(Mistake::HalfRecordReplayed)
        || parts.iter().all(|part| part.columns == columns)
            && (0..128).filter(|column| columns >> column & 1 == 1 && active(column)).all(held)
}

/// Says whether the places lie in the member's data: a part is believed only so far.
fn fits(parity: &Parity, part: &RecordPart) -> bool {
    let start = parity.raid5.copy(part.column.into(), 0).offset;
    let end = start + parity.raid5.rows() * parity.raid5.unit_bytes();
    part.places.iter().all(|place| {
        place.offset >= start
            && place.offset.checked_add(place.len.into()).is_some_and(|last| last <= end)
    })
}

fn write_part(handle: &MemberHandle, part: &RecordPart) -> Result<()> {
    let mut from = 0;
    part.places.iter().try_for_each(|place| {
        let bytes = &part.bytes[from..from + place.len as usize];
        from += bytes.len();
        handle.write(&AlignedBuf::from_slice(bytes), place.offset)
    })
}
