//! A split that comes while a write is under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bedplate_block::{
    AlignedBuf, BlockDevice, DeviceCall, DeviceQueue, Hook, HookedDevice, QueueOptions, Request,
};
use bedplate_volume::{Group, Shape};

use super::fixture::{Fixture, quiet};
use super::split::{some, volume, which};

/// What the held write brings.
const HELD: u8 = 0xa7;

/// Holds back what a member is written by a call, and what its queues complete, once it is closed.
#[derive(Debug, Clone, Default)]
struct Gate(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_closed: AtomicBool,
    holds: AtomicBool,
}

impl Hook for Gate {
    fn call(
        &self,
        call: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> bedplate_block::Result<()>,
    ) -> bedplate_block::Result<()> {
        if matches!(call, DeviceCall::Write { bytes, .. } if bytes.iter().all(|it| *it == HELD)) {
            self.0.holds.store(true, Ordering::SeqCst);
            until("the gate is opened", || !self.0.is_closed.load(Ordering::SeqCst));
        }
        pass()
    }

    fn queue(
        &self,
        inner: &Arc<dyn BlockDevice>,
        options: &QueueOptions,
    ) -> bedplate_block::Result<Box<dyn DeviceQueue>> {
        Ok(Box::new(Held { queue: inner.queue(options)?, gate: self.clone() }))
    }
}

/// A queue of that member.
struct Held {
    queue: Box<dyn DeviceQueue>,
    gate: Gate,
}

impl DeviceQueue for Held {
    fn depth_max(&self) -> usize {
        self.queue.depth_max()
    }
    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }
    fn push(&mut self, request: Request) -> Result<(), Request> {
        self.queue.push(request)
    }
    fn submit(&mut self) -> bedplate_block::Result<()> {
        // The device gets it when it is waited for.
        Ok(())
    }
    fn complete(
        &mut self,
        min: usize,
        out: &mut Vec<bedplate_block::Completion>,
    ) -> bedplate_block::Result<usize> {
        let state = &self.gate.0;
        if state.is_closed.load(Ordering::SeqCst) {
            state.holds.fetch_or(self.in_flight() > 0, Ordering::SeqCst);
            if min == 0 {
                return Ok(0);
            }
            until("the gate is opened", || !state.is_closed.load(Ordering::SeqCst));
        }
        self.queue.complete(min, out)
    }
    fn take_buffer(&mut self) -> Option<AlignedBuf> {
        self.queue.take_buffer()
    }
    fn give_buffer(&mut self, buf: AlignedBuf) {
        self.queue.give_buffer(buf);
    }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}: not within a minute");
        sleep(Duration::from_millis(1));
    }
}

/// S-592: a write that one member has and another one has not yet is not cut in two: the split waits
/// for it, and both halves have it.
#[test]
fn s_592_a_split_waits_for_a_write_that_is_under_way() {
    for slow in [0, 1] {
        let fixture = Fixture::new(2, 120 + slow as u64);
        fixture.create(Shape::Mirror, 2, 0);
        let name = fixture.device(slow).name().to_owned();
        let gate = Gate::default();
        let mut devices = some(&fixture, &[0, 1]);
        devices[slow] = HookedDevice::named(name, fixture.device(slow), gate.clone());
        let group = Group::import(&devices, &quiet()).unwrap();
        let device = volume(&group);
        gate.0.is_closed.store(true, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let writer =
                scope.spawn(|| device.write_at(&AlignedBuf::from_slice(&[HELD; 4096]), 0).unwrap());
            until("a member has the write", || gate.0.holds.load(Ordering::SeqCst));
            let split = scope.spawn(|| group.split(&which(&[1]), "half").map(drop));
            // Time for a split that waits for nothing. One that waits gives up after seconds.
            sleep(Duration::from_millis(300));
            let (split_ended, write_ended) = (split.is_finished(), writer.is_finished());
            gate.0.is_closed.store(false, Ordering::SeqCst);
            assert!(!split_ended && !write_ended, "S-592: the split waits for the write");
            split.join().unwrap().unwrap();
        });
        drop((device, group));
        for index in [0, 1] {
            let half = Group::import(&some(&fixture, &[index]), &quiet()).unwrap();
            let mut seen = AlignedBuf::zeroed(4096);
            volume(&half).read_at(&mut seen, 0).unwrap();
            assert!(seen.iter().all(|byte| *byte == HELD), "S-592: half {index} has the write");
        }
    }
}
