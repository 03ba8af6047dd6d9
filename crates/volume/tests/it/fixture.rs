//! The fixture of these tests: groups on simulated members, one clock over all of them, and power
//! cuts at any moment of it.

use std::sync::Arc;

use super::tested::{self, Arrangement, Group, ImportOptions, NewGroup, Shape};
use bedplate_block::{
    AlignedBuf, BlockDevice, Completion, CrashChoice, DeviceCall, DeviceQueue, Hook, HookedDevice,
    MemoryDevice, QueueOptions, Request, Result, SimulatedDevice,
};
use parking_lot::Mutex;

pub const MEMBER_BYTES: u64 = (4 << 20) + (1 << 20);
pub const REGION_BYTES: u64 = 64 << 10;

/// What every member's log held after each operation of any member: the clock of a power cut that
/// hits all at once.
pub type Clock = Arc<Mutex<Vec<Vec<usize>>>>;

/// Simulated members under one clock.
pub struct Fixture {
    pub members: Vec<Arc<SimulatedDevice>>,
    pub clock: Clock,
    /// Whether queues of members carry out nothing before it is waited for.
    pub lazy: bool,
}

/// A member that moves the clock with everything it does.
#[derive(Debug)]
struct Watched {
    all: Vec<Arc<SimulatedDevice>>,
    clock: Clock,
    lazy: bool,
}

fn tick(all: &[Arc<SimulatedDevice>], clock: &Clock) {
    let mut clock = clock.lock();
    let now: Vec<usize> = all.iter().map(|member| member.operation_count()).collect();
    if clock.last() != Some(&now) {
        clock.push(now);
    }
}

impl Hook for Watched {
    fn call(&self, call: DeviceCall<'_>, pass: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let result = pass();
        if !matches!(call, DeviceCall::Read { .. }) {
            tick(&self.all, &self.clock);
        }
        result
    }

    fn queue(
        &self,
        inner: &Arc<dyn BlockDevice>,
        options: &QueueOptions,
    ) -> Result<Box<dyn DeviceQueue>> {
        Ok(Box::new(WatchedQueue {
            queue: inner.queue(options)?,
            all: self.all.clone(),
            clock: Arc::clone(&self.clock),
            lazy: self.lazy,
        }))
    }
}

struct WatchedQueue {
    queue: Box<dyn DeviceQueue>,
    all: Vec<Arc<SimulatedDevice>>,
    clock: Clock,
    lazy: bool,
}

impl DeviceQueue for WatchedQueue {
    fn depth_max(&self) -> usize {
        self.queue.depth_max()
    }
    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }
    fn push(&mut self, request: Request) -> std::result::Result<(), Request> {
        self.queue.push(request)
    }
    fn submit(&mut self) -> Result<()> {
        self.queue.submit()
    }
    fn complete(&mut self, min: usize, out: &mut Vec<Completion>) -> Result<usize> {
        if self.lazy && min == 0 {
            return self.queue.submit().map(|()| 0);
        }
        let result = self.queue.complete(min, out);
        tick(&self.all, &self.clock);
        result
    }
    fn take_buffer(&mut self) -> Option<AlignedBuf> {
        self.queue.take_buffer()
    }
    fn give_buffer(&mut self, buf: AlignedBuf) {
        self.queue.give_buffer(buf);
    }
}

impl Fixture {
    pub fn new(count: usize, seed: u64) -> Self {
        Self::of_sizes(&vec![MEMBER_BYTES; count], seed)
    }

    /// As [`new`](Self::new), of members of these sizes.
    pub fn of_sizes(sizes: &[u64], seed: u64) -> Self {
        let members = sizes
            .iter()
            .zip(0..)
            .map(|(size, n)| SimulatedDevice::new(*size, seed * 100 + n))
            .collect();
        Self { members, clock: Clock::default(), lazy: false }
    }

    /// Returns the members as a group opens them.
    pub fn devices(&self) -> Vec<Arc<dyn BlockDevice>> {
        (0..self.members.len()).map(|index| self.device(index)).collect()
    }

    pub fn device(&self, index: usize) -> Arc<dyn BlockDevice> {
        let (all, clock) = (self.members.clone(), Arc::clone(&self.clock));
        HookedDevice::named(
            format!("member{index}"),
            Arc::clone(&all[index]) as _,
            Watched { all, clock, lazy: self.lazy },
        )
    }

    /// Makes a group of all members but the last `spares`.
    pub fn create(&self, shape: Shape, plexes: usize, spares: usize) {
        let mut devices = self.devices();
        let spares = devices.split_off(devices.len() - spares);
        tested::create(&new_group(shape, plexes, devices, spares)).unwrap();
        self.make_all_durable();
    }

    /// Makes everything durable; crash points begin here.
    pub fn make_all_durable(&self) {
        self.members.iter().for_each(|member| member.make_all_durable());
        self.clock.lock().clear();
        tick(&self.members, &self.clock);
    }

    pub fn import(&self) -> Group {
        Group::import(&self.devices(), &quiet()).unwrap()
    }

    /// Returns every moment at which the power can go: between any two operations of any two
    /// members.
    pub fn moments(&self) -> Vec<Vec<usize>> {
        let clock = self.clock.lock();
        let mut moments: Vec<Vec<usize>> = Vec::new();
        for now in clock.iter() {
            let mut step = moments.last().cloned().unwrap_or_else(|| now.clone());
            for (index, to) in now.iter().enumerate() {
                while step[index] < *to {
                    step[index] += 1;
                    moments.push(step.clone());
                }
            }
            if moments.is_empty() {
                moments.push(now.clone());
            }
        }
        moments
    }

    /// Returns what the members hold after the power went at a moment. Choices: 0 nothing unflushed
    /// arrives, 1 everything, 2 only the last write of each member, 3 only the last write of one
    /// member; others by their seed.
    pub fn after_cut(&self, moment: &[usize], choice: u64) -> Vec<Arc<MemoryDevice>> {
        let lucky = moment.iter().sum::<usize>() % moment.len();
        let of = |index: usize, member: &SimulatedDevice| match choice {
            0 => CrashChoice::LoseAll,
            1 => CrashChoice::KeepAll,
            2 => CrashChoice::Keep(
                member.unflushed(moment[index]).last().copied().into_iter().collect(),
            ),
            3 if index == lucky => CrashChoice::Keep(
                member.unflushed(moment[index]).last().copied().into_iter().collect(),
            ),
            3 => CrashChoice::LoseAll,
            seed => CrashChoice::Seeded(seed * 31 + index as u64),
        };
        self.members
            .iter()
            .enumerate()
            .map(|(index, member)| member.crash_image(moment[index], &of(index, member)))
            .collect()
    }
}

/// Import without a thread of its own, so that tests say when what happens.
pub fn quiet() -> ImportOptions {
    ImportOptions { background: false, ..ImportOptions::default() }
}

pub fn new_group(
    shape: Shape,
    plexes: usize,
    members: Vec<Arc<dyn BlockDevice>>,
    spares: Vec<Arc<dyn BlockDevice>>,
) -> NewGroup {
    NewGroup {
        name: "tank".into(),
        data: Arrangement { shape, unit_bytes: 16 << 10, plexes },
        members,
        log_members: Vec::new(),
        spares,
        region_bytes: Some(REGION_BYTES),
        reserve_bytes: 0,
        force: false,
    }
}

/// Returns a buffer whose every sector names its write: the sector's address and the write's
/// number.
pub fn stamped(address: u64, len: usize, write: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(len);
    for (at, sector) in buf.chunks_mut(512).enumerate() {
        for word in sector.chunks_mut(16) {
            word[..8].copy_from_slice(&(address + 512 * at as u64).to_le_bytes());
            word[8..].copy_from_slice(&write.to_le_bytes());
        }
    }
    buf
}

/// Returns the number of the write that a sector shows, checking that the whole sector is of one
/// write and in its place; 0: never written.
pub fn stamp_of(sector: &[u8], address: u64) -> u64 {
    let write = u64::from_le_bytes(sector[8..16].try_into().unwrap());
    for word in sector.chunks(16) {
        let (at, number) = (
            u64::from_le_bytes(word[..8].try_into().unwrap()),
            u64::from_le_bytes(word[8..].try_into().unwrap()),
        );
        assert!(
            (write == 0 && at == 0 && number == 0) || (at == address && number == write),
            "sector {address} is torn or misplaced"
        );
    }
    write
}

/// A write or a flush, and the clock when it had been acknowledged.
pub struct Acknowledged {
    pub write: Option<(u64, usize, u64)>,
    pub begun: usize,
    pub ended: usize,
}

/// What a sector may show after a cut: what was durable, and everything written after.
pub fn allowed(history: &[Acknowledged], at: u64, cut: usize) -> Vec<u64> {
    let covered = history
        .iter()
        .filter(|entry| entry.write.is_none() && entry.ended <= cut)
        .map(|entry| entry.begun)
        .max()
        .unwrap_or(0);
    let touches = |entry: &&Acknowledged| {
        entry.write.is_some_and(|(offset, len, _)| (offset..offset + len as u64).contains(&at))
    };
    let number = |entry: &Acknowledged| entry.write.map_or(0, |(_, _, number)| number);
    let durable = history
        .iter()
        .filter(touches)
        .filter(|entry| entry.ended <= covered)
        .map(number)
        .max()
        .unwrap_or(0);
    let later = history
        .iter()
        .filter(touches)
        .filter(|entry| entry.ended > covered && entry.begun <= cut)
        .map(number);
    std::iter::once(durable).chain(later).collect()
}

pub fn ticks(fixture: &Fixture) -> usize {
    fixture.clock.lock().last().map_or(0, |now| now.iter().sum())
}
