//! Groups whose members something else writes over.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bedplate_block::{
    AlignedBuf, BlockDevice, Completion, DeviceCall, DeviceQueue, Hook, HookedDevice, QueueOptions,
    Request, Result, SimulatedDevice,
};
use bedplate_volume::{Group, MemberState, NewGroup, Role, Shape, Undecided};

use super::fixture::{Fixture, MEMBER_BYTES, new_group, quiet, stamp_of, stamped};

pub const SHAPES: [(Shape, usize); 4] =
    [(Shape::Mirror, 2), (Shape::StripeMirror, 4), (Shape::MirrorStripe, 4), (Shape::Raid5, 3)];

pub const CHUNK: usize = 64 << 10;

/// The unit of the groups of these tests.
pub const UNIT: usize = 16 << 10;

/// What something else leaves on a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum With {
    Zeros,
    /// What it held when the group had just been made.
    OlderCopy,
}

/// A member that is written over after so many of its operations.
#[derive(Debug)]
pub struct Doomed {
    pub below: Arc<SimulatedDevice>,
    pub left: Arc<AtomicUsize>,
}

impl Doomed {
    fn count(&self) {
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            == Ok(1)
        {
            self.below.write_zeroes(0, self.below.size_bytes()).unwrap();
        }
    }
}

impl Hook for Doomed {
    fn call(&self, _: DeviceCall<'_>, pass: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let result = pass();
        self.count();
        result
    }

    fn queue(
        &self,
        inner: &Arc<dyn BlockDevice>,
        options: &QueueOptions,
    ) -> Result<Box<dyn DeviceQueue>> {
        let doomed = Self { below: Arc::clone(&self.below), left: Arc::clone(&self.left) };
        Ok(Box::new(DoomedQueue { queue: inner.queue(options)?, doomed }))
    }
}

pub struct DoomedQueue {
    queue: Box<dyn DeviceQueue>,
    doomed: Doomed,
}

impl DeviceQueue for DoomedQueue {
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
        let completed = self.queue.complete(min, out)?;
        (0..completed).for_each(|_| self.doomed.count());
        Ok(completed)
    }
    fn take_buffer(&mut self) -> Option<AlignedBuf> {
        self.queue.take_buffer()
    }
    fn give_buffer(&mut self, buf: AlignedBuf) {
        self.queue.give_buffer(buf);
    }
}

/// A group whose volume was filled, and where the count of one member's operations is kept. It runs
/// down only when it is set.
pub struct Scene {
    pub fixture: Fixture,
    pub devices: Vec<Arc<dyn BlockDevice>>,
    pub left: Arc<AtomicUsize>,
    /// The first bytes of the victim when the group had just been made.
    older: AlignedBuf,
}

pub const NEVER: usize = usize::MAX;

impl Scene {
    pub fn new(
        new: impl FnOnce(Vec<Arc<dyn BlockDevice>>) -> NewGroup,
        sizes: &[u64],
        victim: usize,
    ) -> Self {
        let (fixture, left) = (Fixture::of_sizes(sizes, 70), Arc::new(AtomicUsize::new(NEVER)));
        let mut devices = fixture.devices();
        let doomed =
            Doomed { below: Arc::clone(&fixture.members[victim]), left: Arc::clone(&left) };
        devices[victim] = HookedDevice::named(
            format!("member{victim}"),
            Arc::clone(&fixture.members[victim]) as _,
            doomed,
        );
        bedplate_volume::create(&new(devices.clone())).unwrap();
        let mut older = AlignedBuf::zeroed(sizes[victim] as usize);
        fixture.members[victim].read_at(&mut older, 0).unwrap();
        Self { fixture, devices, left, older }
    }

    pub fn of(shape: Shape, members: usize, spares: usize, victim: usize) -> Self {
        let split = |mut devices: Vec<Arc<dyn BlockDevice>>| {
            let spares = devices.split_off(members);
            new_group(shape, 2, devices, spares)
        };
        Self::new(split, &vec![MEMBER_BYTES; members + spares], victim)
    }

    pub fn open(&self) -> Group {
        let group = Group::import(&self.devices, &quiet()).unwrap();
        group.sync().unwrap();
        group
    }

    pub fn overwrite(&self, victim: usize, with: With) {
        match with {
            With::Zeros => self.fixture.members[victim]
                .write_zeroes(0, self.fixture.members[victim].size_bytes())
                .unwrap(),
            With::OlderCopy => self.fixture.members[victim].write_at(&self.older, 0).unwrap(),
        }
    }

    pub fn all_but(&self, victim: usize) -> Vec<Arc<dyn BlockDevice>> {
        (0..self.devices.len())
            .filter(|at| *at != victim)
            .map(|at| Arc::clone(&self.devices[at]))
            .collect()
    }
}

/// Lets something else write over a member after each number of its operations, from the first on,
/// until `act` ends before it comes to that. Returns how often it was.
pub fn sweep(step: usize, mut act: impl FnMut(usize) -> usize) -> usize {
    for (tries, after) in (1..).step_by(step).enumerate() {
        if act(after) > 0 {
            return tries;
        }
    }
    0
}

pub fn data(group: &Group) -> Arc<dyn BlockDevice> {
    group.volume(Role::Data).unwrap()
}

pub fn fill(device: &dyn BlockDevice, number: u64) {
    (0..device.size_bytes()).step_by(CHUNK).for_each(|at| {
        let len = CHUNK.min((device.size_bytes() - at) as usize);
        device.write_at(&stamped(at, len, number), at).unwrap();
    });
    device.flush().unwrap();
}

pub fn check_from(device: &dyn BlockDevice, start: u64, number: u64, context: &str) {
    let mut buf = AlignedBuf::zeroed((device.size_bytes() - start) as usize);
    device.read_at(&mut buf, start).unwrap_or_else(|error| panic!("{context}: {error}"));
    let wrong = buf
        .chunks(512)
        .zip((start..).step_by(512))
        .find(|(sector, at)| stamp_of(sector, *at) != number);
    assert!(wrong.is_none(), "{context}: sector {:?}", wrong.map(|(_, at)| at));
}

pub fn check(group: &Group, number: u64, context: &str) {
    check_from(&*data(group), 0, number, context);
}

pub fn state(group: &Group, member: usize) -> MemberState {
    group.config().members[member].state
}

pub fn clean(group: &Group, context: &str) {
    assert_eq!(group.scrub(false, &Undecided, &mut |_| ()).unwrap().differences, [], "{context}");
}
