//! A split that comes while a write is under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bedplate_block::{AlignedBuf, BlockDevice, DeviceCall, Hook, HookedDevice};
use bedplate_volume::{Group, Shape};

use super::fixture::{Fixture, quiet};
use super::split::{some, volume, which};

/// What the write brings that is held.
const HELD: u8 = 0xa7;

/// Holds the write of a member back that brings these bytes.
#[derive(Debug, Default)]
struct Gate {
    is_open: AtomicBool,
    holds: AtomicBool,
}

impl Hook for Gate {
    fn call(
        &self,
        call: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> bedplate_block::Result<()>,
    ) -> bedplate_block::Result<()> {
        if matches!(call, DeviceCall::Write { bytes, .. } if bytes.iter().all(|it| *it == HELD)) {
            self.holds.store(true, Ordering::SeqCst);
            until("the gate is opened", || self.is_open.load(Ordering::SeqCst));
        }
        pass()
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
        let gate = HookedDevice::named(name, fixture.device(slow), Gate::default());
        let mut devices = some(&fixture, &[0, 1]);
        devices[slow] = Arc::clone(&gate) as Arc<dyn BlockDevice>;
        let group = Group::import(&devices, &quiet()).unwrap();
        let device = volume(&group);
        std::thread::scope(|scope| {
            let writer =
                scope.spawn(|| device.write_at(&AlignedBuf::from_slice(&[HELD; 4096]), 0).unwrap());
            until("a member has the write", || gate.holds.load(Ordering::SeqCst));
            let split = scope.spawn(|| group.split(&which(&[1]), "half").map(drop));
            // Time for a split that waits for nothing. One that waits gives up after seconds.
            sleep(Duration::from_millis(300));
            let (split_ended, write_ended) = (split.is_finished(), writer.is_finished());
            gate.is_open.store(true, Ordering::SeqCst);
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
