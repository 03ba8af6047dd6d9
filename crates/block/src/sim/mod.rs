//! The simulated device: memory that misbehaves on command, always the same way from the same seed.
//!
//! The fault model stands on [`SimulatedDevice`], where its users look for it.

mod content;
mod faults;
mod hooked;
mod image;
mod joined;
mod log;
mod queue;
mod recording;
mod trace;

pub use faults::{Fault, FaultRule, FlushFault, ReadFault, Trigger, WriteFault};
pub use hooked::{DeviceCall, Hook, HookedDevice};
pub use image::{CrashChoice, CrashStep};
pub use joined::JoinedMembers;
pub use log::{FlushOutcome, Recorded};
pub use recording::{Recording, RecordingDevice, Source, Spooled};

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::check::{Limits, assert_geometry, error};
use crate::counters::LiveCounters;
use crate::{
    BlockDevice, DeviceCounters, DeviceQueue, EngineReport, Error, ErrorKind, Geometry,
    MemoryDevice, Operation, QueueOptions, Result, Snapshot,
};
use faults::{Call, Faults};
use log::Log;

/// Sets up a [`SimulatedDevice`].
#[derive(Debug, Clone)]
pub struct SimulatedOptions {
    /// Everything that is left to chance follows from it.
    pub seed: u64,
    /// What the device states about itself and keeps to.
    pub geometry: Geometry,
    /// Whether queues carry requests out and hand completions back in a shuffled order.
    pub shuffle: bool,
}

impl Default for SimulatedOptions {
    /// A disk with 512-byte sectors and a volatile cache, shuffling.
    fn default() -> Self {
        Self {
            seed: 0,
            geometry: Geometry { volatile_cache: true, ..MemoryDevice::GEOMETRY },
            shuffle: true,
        }
    }
}

/// Memory that misbehaves on command. One lock orders all calls, and that order is the log's.
///
/// # Fault model
///
/// The medium holds *logical blocks*. In front of it there may be a volatile cache
/// ([`Geometry::volatile_cache`]).
///
/// 1. **Power cut.** Everything that was complete when a flush was submitted, and that flush was
///    honoured, is there afterwards. Of the rest any subset is: writes reach the medium in any
///    order, and each may be torn at any logical block, unless it lies within one aligned
///    [`Geometry::untorn_unit`]. Of two overlapping writes that both arrive, the later one wins.
///    Without a volatile cache only the write on its way when the power goes is uncertain.
/// 2. **Flushes.** A flush may be acknowledged and lost; a later honoured one makes up for it. A
///    flush may fail: then what it should have made durable is in doubt for ever, whatever later
///    flushes say, as on Linux.
/// 3. **Errors.** A call fails once, N times, at the N-th time, now and then, for a range, or for
///    ever. A write that fails may have arrived in part; one refused for lack of space has not.
/// 4. **Lies.** A write is lost, misdirected, torn or turned by a bit, and acknowledged; a read
///    returns a turned bit or another place's bytes; the medium decays by itself.
/// 5. **Queue.** Requests are carried out late and in any order, completions are handed out in
///    another one, and may come twice. A flush covers what was carried out when it was submitted,
///    not what stands beside it in the list.
/// 6. **Death and slowness.** The device dies at once or after so many operations, or answers late.
/// 7. **Growth.** A device that [starts smaller](Self::start_smaller) than its content grows on
///    command. It never shrinks.
///
/// Not modelled: time itself other than as a delay.
#[derive(Debug)]
pub struct SimulatedDevice {
    shared: Arc<Simulation>,
}

#[derive(Debug)]
struct Simulation {
    geometry: Geometry,
    /// What the device states, and what it would state if asked again; at most the content's size.
    size_bytes: AtomicU64,
    grown_bytes: AtomicU64,
    shuffle: bool,
    state: Mutex<State>,
    counters: LiveCounters,
}

#[derive(Debug)]
struct State {
    content: Snapshot,
    log: Log,
    faults: Faults,
    rng: Xoshiro256PlusPlus,
    /// The log length at which the device dies.
    dies_at: Option<usize>,
}

const NAME: &str = "simulated";

impl SimulatedDevice {
    /// Makes a device that reads as zeros, with [`SimulatedOptions::default`] but for the seed.
    #[must_use]
    pub fn new(size_bytes: u64, seed: u64) -> Arc<Self> {
        Self::over(
            &Snapshot::empty(size_bytes),
            &SimulatedOptions { seed, ..SimulatedOptions::default() },
        )
    }

    /// Makes a device that starts with the (durable) content of a snapshot: of another crash image,
    /// or of a live [`MemoryDevice`].
    ///
    /// # Panics
    /// When the geometry breaks its own rules, or the content is not a whole number of logical
    /// blocks.
    #[must_use]
    pub fn over(base: &Snapshot, options: &SimulatedOptions) -> Arc<Self> {
        assert_geometry(&options.geometry);
        assert_eq!(
            base.size_bytes() % u64::from(options.geometry.logical_block_size),
            0,
            "a device holds whole blocks"
        );
        let state = State {
            content: base.clone(),
            log: Log::new(base),
            faults: Faults::default(),
            rng: Xoshiro256PlusPlus::seed_from_u64(options.seed),
            dies_at: None,
        };
        let shared = Simulation {
            geometry: options.geometry,
            size_bytes: AtomicU64::new(base.size_bytes()),
            grown_bytes: AtomicU64::new(base.size_bytes()),
            shuffle: options.shuffle,
            state: Mutex::new(state),
            counters: LiveCounters::default(),
        };
        Arc::new(Self { shared: Arc::new(shared) })
    }

    /// Puts a rule in force, after those already there.
    pub fn inject(&self, rule: FaultRule) {
        self.shared.state.lock().faults.add(rule);
    }

    /// Lifts all rules. A dead device stays dead.
    pub fn clear_faults(&self) {
        self.shared.state.lock().faults.clear();
    }

    /// Kills the device: every later call fails and nothing reaches the medium any more.
    pub fn die(&self) {
        self.die_after(0);
    }

    /// Kills the device once the log holds this many operations, so that a running workload feels a
    /// power cut between two of its writes.
    pub fn die_after(&self, operations: usize) {
        self.shared.state.lock().dies_at = Some(operations);
    }

    /// Turns bits of one byte on the medium, at once and for good.
    ///
    /// # Panics
    /// When the offset passes the end.
    pub fn decay(&self, offset: u64, mask: u8) {
        assert!(offset < self.shared.size(), "byte {offset} lies beyond the device");
        self.shared.state.lock().record(Recorded::Decay { offset, mask });
    }

    /// Makes the device state fewer bytes than its content has, so that it can
    /// [`grow`](Self::grow).
    ///
    /// # Panics
    /// When the content is smaller, or the size is not a whole number of logical blocks.
    pub fn start_smaller(&self, size_bytes: u64) {
        self.grow(size_bytes);
        self.shared.size_bytes.store(size_bytes, Ordering::Release);
    }

    /// Gives the device another size, up to that of its content; its user learns that from
    /// `refresh_size`.
    ///
    /// # Panics
    /// When the content is smaller, or the size is not a whole number of logical blocks.
    pub fn grow(&self, size_bytes: u64) {
        let capacity = self.shared.state.lock().content.size_bytes();
        assert!(
            size_bytes <= capacity,
            "the content has {capacity} bytes, fewer than {size_bytes}"
        );
        assert_eq!(
            size_bytes % u64::from(self.shared.geometry.logical_block_size),
            0,
            "a device holds whole blocks"
        );
        self.shared.grown_bytes.store(size_bytes, Ordering::Release);
    }

    /// Returns how many operations the log holds.
    #[must_use]
    pub fn operation_count(&self) -> usize {
        self.shared.state.lock().log.len()
    }

    /// Returns the log.
    #[must_use]
    pub fn operations(&self) -> Vec<Recorded> {
        self.shared.state.lock().log.operations().to_vec()
    }

    /// Makes what the device holds durable and empties the log, so that crash points begin here.
    /// Not for use while a queue has requests in flight.
    pub fn make_all_durable(&self) {
        let mut state = self.shared.state.lock();
        state.log = Log::new(&state.content);
    }

    /// Returns what the device holds now, cache included.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.shared.state.lock().content.clone()
    }

    /// Returns the numbers of the writes that a power cut after the first `after` operations may
    /// take back, ascending.
    ///
    /// # Panics
    /// When the log is shorter.
    #[must_use]
    pub fn unflushed(&self, after: usize) -> Vec<usize> {
        image::unflushed(self.shared.state.lock().log.trace(), &self.shared.geometry, after)
    }

    /// Returns what a choice means for a power cut after the first `after` operations.
    ///
    /// # Panics
    /// When the log is shorter, or the choice names an operation that is not unflushed.
    #[must_use]
    pub fn crash_steps(&self, after: usize, choice: &CrashChoice) -> Vec<CrashStep> {
        image::plan(self.shared.state.lock().log.trace(), &self.shared.geometry, after, choice)
    }

    /// Returns the content that a power cut after the first `after` operations leaves. Takes time
    /// in proportion to what was not flushed.
    ///
    /// # Panics
    /// As [`crash_steps`](Self::crash_steps).
    #[must_use]
    pub fn crash_content(&self, after: usize, choice: &CrashChoice) -> Snapshot {
        let state = self.shared.state.lock();
        let steps = image::plan(state.log.trace(), &self.shared.geometry, after, choice);
        image::build(&state.log, &self.shared.geometry, after, &steps)
    }

    /// Returns a device with the content that a power cut after the first `after` operations
    /// leaves, of the same geometry.
    ///
    /// # Panics
    /// As [`crash_steps`](Self::crash_steps).
    #[must_use]
    pub fn crash_image(&self, after: usize, choice: &CrashChoice) -> Arc<MemoryDevice> {
        MemoryDevice::from_snapshot(&self.crash_content(after, choice), self.shared.geometry)
    }
}

impl State {
    /// Applies an operation and adds it to the log.
    fn record(&mut self, operation: Recorded) {
        self.log.push(operation, &self.content).apply(&mut self.content);
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if !data.is_empty() {
            self.record(Recorded::Write { offset, data: Arc::from(data) });
        }
    }

    /// Picks a run of whole sectors, possibly empty and never all of them.
    fn torn(&mut self, len: usize, sector: usize) -> Range<usize> {
        let sectors = len / sector;
        let start = self.rng.random_range(0..sectors);
        let longest = if start == 0 { sectors - 1 } else { sectors - start };
        let kept = self.rng.random_range(0..=longest);
        start * sector..(start + kept) * sector
    }

    fn flip_one_bit(&mut self, bytes: &mut [u8]) {
        let bit = self.rng.random_range(0..bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

impl Simulation {
    fn limits(&self) -> Limits<'_> {
        Limits { geometry: &self.geometry, size_bytes: self.size() }
    }

    fn size(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// Takes the lock, finds out whether the device lives and which fault strikes, and sits a delay
    /// out.
    fn begin(
        &self,
        operation: Operation,
        call: Call,
        range: &Range<u64>,
    ) -> Result<(MutexGuard<'_, State>, Option<Fault>)> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let fault = state.faults.strike(call, range, &mut state.rng);
        if let Some(pause) = delay(fault) {
            MutexGuard::unlocked(&mut guard, || std::thread::sleep(pause));
        }
        if guard.dies_at.is_some_and(|at| guard.log.len() >= at) {
            return Err(failure(operation, range.start, "the device is gone"));
        }
        Ok((guard, fault))
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.limits().transfer(NAME, Operation::Read, offset, buf.len(), buf.as_ptr() as usize)?;
        let (mut state, fault) =
            self.begin(Operation::Read, Call::Read, &(offset..offset + buf.len() as u64))?;
        let Some(Fault::Read(fault)) = fault else {
            state.content.read(buf, offset);
            return Ok(());
        };
        match fault {
            ReadFault::Fail => return Err(failure(Operation::Read, offset, "the medium failed")),
            ReadFault::Misdirect { to } => state.content.read(buf, self.fit(to, buf.len())),
            ReadFault::FlipBit | ReadFault::Turn { .. } | ReadFault::Delay(_) => {
                state.content.read(buf, offset);
            }
        }
        if fault == ReadFault::FlipBit && !buf.is_empty() {
            state.flip_one_bit(buf);
        }
        if let ReadFault::Turn { at, mask } = fault
            && let Some(byte) =
                at.checked_sub(offset).and_then(|at| buf.get_mut(usize::try_from(at).ok()?))
        {
            *byte ^= mask;
        }
        Ok(())
    }

    fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.limits().transfer(NAME, Operation::Write, offset, buf.len(), buf.as_ptr() as usize)?;
        let (mut state, fault) =
            self.begin(Operation::Write, Call::Write, &(offset..offset + buf.len() as u64))?;
        let sector = self.geometry.logical_block_size as usize;
        match fault {
            Some(Fault::Write(fault)) if !buf.is_empty() => {
                write_badly(&mut state, fault, buf, offset, sector, self.fit_to(fault, buf.len()))
            }
            _ => {
                state.write(offset, buf);
                Ok(())
            }
        }
    }

    /// Zeroes or discards.
    fn change(&self, operation: Recorded, what: Operation) -> Result<()> {
        let range = operation.range().expect("only changes of a range come here");
        self.limits().range(NAME, range.start, range.end - range.start)?;
        let (mut state, fault) = self.begin(what, Call::WriteWithoutData, &range)?;
        match fault {
            Some(Fault::Write(WriteFault::Fail)) => {
                Err(failure(what, range.start, "the medium failed"))
            }
            Some(Fault::Write(WriteFault::NoSpace)) => Err(no_space(range.start)),
            Some(Fault::Write(WriteFault::Lose)) => Ok(()),
            _ if range.is_empty() => Ok(()),
            _ => {
                state.record(operation);
                Ok(())
            }
        }
    }

    /// Flushes what was complete at operation `covers`, or by now.
    fn flush(&self, covers: Option<usize>) -> Result<()> {
        let now = self.state.lock().log.len();
        let covers = covers.unwrap_or(now);
        let (mut state, fault) = self.begin(Operation::Flush, Call::Flush, &(0..0))?;
        let outcome = match fault {
            Some(Fault::Flush(FlushFault::Fail)) => FlushOutcome::Failed,
            Some(Fault::Flush(FlushFault::Lose)) => FlushOutcome::Lost,
            _ => FlushOutcome::Honoured,
        };
        state.record(Recorded::Flush { covers, outcome });
        match outcome {
            FlushOutcome::Failed => {
                Err(Error { offset: None, ..failure(Operation::Flush, 0, "the medium failed") })
            }
            FlushOutcome::Lost | FlushOutcome::Honoured => Ok(()),
        }
    }

    /// Moves a misdirected transfer so that it is aligned and fits.
    fn fit(&self, to: u64, len: usize) -> u64 {
        let to = to.min(self.size() - len as u64);
        to - to % u64::from(self.geometry.logical_block_size)
    }

    fn fit_to(&self, fault: WriteFault, len: usize) -> u64 {
        if let WriteFault::Misdirect { to } = fault { self.fit(to, len) } else { 0 }
    }
}

fn write_badly(
    state: &mut State,
    fault: WriteFault,
    buf: &[u8],
    offset: u64,
    sector: usize,
    misdirected: u64,
) -> Result<()> {
    match fault {
        WriteFault::Fail | WriteFault::Tear => {
            let arrived = state.torn(buf.len(), sector);
            state.write(offset + arrived.start as u64, &buf[arrived]);
        }
        WriteFault::FlipBit => {
            let mut bytes = buf.to_vec();
            state.flip_one_bit(&mut bytes);
            state.write(offset, &bytes);
        }
        WriteFault::Misdirect { .. } => state.write(misdirected, buf),
        WriteFault::Delay(_) => state.write(offset, buf),
        WriteFault::NoSpace | WriteFault::Lose => {}
    }
    match fault {
        WriteFault::Fail => Err(failure(Operation::Write, offset, "the medium failed")),
        WriteFault::NoSpace => Err(no_space(offset)),
        _ => Ok(()),
    }
}

fn delay(fault: Option<Fault>) -> Option<Duration> {
    match fault {
        Some(
            Fault::Read(ReadFault::Delay(pause))
            | Fault::Write(WriteFault::Delay(pause))
            | Fault::Flush(FlushFault::Delay(pause)),
        ) => Some(pause),
        _ => None,
    }
}

fn failure(operation: Operation, offset: u64, detail: &str) -> Error {
    Error {
        errno: Some(libc::EIO),
        ..error(NAME, ErrorKind::Io, operation, Some(offset), detail.to_owned())
    }
}

fn no_space(offset: u64) -> Error {
    Error {
        errno: Some(libc::ENOSPC),
        ..error(
            NAME,
            ErrorKind::NoSpace,
            Operation::Write,
            Some(offset),
            "no space is left below the device".into(),
        )
    }
}

impl BlockDevice for SimulatedDevice {
    fn name(&self) -> &str {
        NAME
    }

    fn geometry(&self) -> Geometry {
        self.shared.geometry
    }

    fn size_bytes(&self) -> u64 {
        self.shared.size()
    }

    fn refresh_size(&self) -> Result<u64> {
        let size = self.shared.grown_bytes.load(Ordering::Acquire);
        self.shared.size_bytes.store(size, Ordering::Release);
        Ok(size)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let result = self.shared.read(buf, offset);
        self.shared.counters.count(Operation::Read, buf.len() as u64, result)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.shared.counters.count(
            Operation::Write,
            buf.len() as u64,
            self.shared.write(buf, offset),
        )
    }

    fn flush(&self) -> Result<()> {
        self.shared.counters.count(Operation::Flush, 0, self.shared.flush(None))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        let result = self.shared.limits().range(NAME, offset, len).and_then(|()| {
            self.shared.change(Recorded::WriteZeroes { offset, len }, Operation::Write)
        });
        self.shared.counters.count(Operation::Write, len, result)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<bool> {
        self.shared.limits().range(NAME, offset, len)?;
        self.shared.change(Recorded::Discard { offset, len }, Operation::Discard)?;
        Ok(true)
    }

    fn discard_to_zeros(&self, offset: u64, len: u64) -> Result<bool> {
        self.discard(offset, len)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn DeviceQueue>> {
        Ok(Box::new(queue::SimulatedQueue::new(Arc::clone(&self.shared), options)))
    }

    fn engine(&self) -> EngineReport {
        EngineReport { name: NAME, fallback: None, threads: None }
    }

    fn counters(&self) -> DeviceCounters {
        self.shared.counters.snapshot()
    }
}
