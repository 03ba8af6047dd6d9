//! What is durable, under power cuts.

use std::collections::HashMap;
use std::sync::Arc;

use bedplate_block::{BlockDevice, CrashChoice, SimulatedDevice};
use bedplate_export::Disk;
use bedplate_fs::{FileSystem, MountOptions, OpenOptions};

use crate::bed::{Bed, pattern};
use crate::guest::{FLUSH, FLUSHES, Guest, OK, OUT, WRITE_ZEROES, ranges};
use crate::places;

const SIZE: u64 = 8 << 20;

/// What a disk holds, by sector.
type Expected = HashMap<u64, Vec<u8>>;

fn survives(device: &SimulatedDevice, expected: &Expected) {
    for choice in [CrashChoice::LoseAll, CrashChoice::Seeded(7)] {
        let left: Arc<dyn BlockDevice> = device.crash_image(device.operation_count(), &choice);
        let fs = FileSystem::mount(left, None, MountOptions::default()).unwrap();
        let file = fs.open("/disk", &OpenOptions::read_only()).unwrap();
        let mut found = vec![0; SIZE as usize];
        assert_eq!(file.read_at(&mut found, 0).unwrap(), found.len());
        for (sector, data) in expected {
            let found = &found[*sector as usize * 512..][..data.len()];
            assert!(found == data, "{choice:?}: sector {sector}");
        }
    }
}

fn bed(seed: u64) -> (Arc<SimulatedDevice>, Bed) {
    let device = SimulatedDevice::new(128 << 20, seed);
    let fs = places::volume(Arc::clone(&device) as _);
    let disk: Arc<dyn Disk> = Arc::new(places::file_disk(&fs, SIZE));
    disk.sync().unwrap();
    let bed = Bed::serve(tempfile::tempdir().unwrap(), Some(fs), disk);
    (device, bed)
}

#[test]
fn s_555_what_a_flush_covers_outlives_a_power_cut_whichever_queue_wrote_it() {
    let (device, bed) = bed(3);
    let mut guest = Guest::new(&bed.socket, 3);
    let mut expected = Expected::new();
    for round in 0..20_u64 {
        let (sector, data) = (round * 32, pattern(round, 4096));
        guest.queues[round as usize % 2].write(sector, &data);
        expected.insert(sector, data);
        if round % 5 == 4 {
            assert_eq!(guest.queues[2].ask(FLUSH, 0, &[], 0), (OK, 1));
            survives(&device, &expected);
        }
    }
    let zeros = ranges(&[(0, 8, 0), (64, 8, 1)]);
    assert_eq!(guest.queues[1].ask(WRITE_ZEROES, 0, &zeros, 0), (OK, 1));
    assert_eq!(guest.queues[0].ask(FLUSH, 0, &[], 0), (OK, 1));
    expected.extend([(0, vec![0; 4096]), (64, vec![0; 4096])]);
    survives(&device, &expected);
}

/// Several flushes that wait together are answered by one, which must be as good as each.
#[test]
fn s_555_flushes_that_are_under_way_together_cover_what_was_answered_before() {
    let (device, bed) = bed(4);
    let mut guest = Guest::new(&bed.socket, 1);
    let queue = &mut guest.queues[0];
    let mut expected = Expected::new();
    for round in 0..5_u64 {
        for slot in 0..10_u16 {
            let sector = (round * 10 + u64::from(slot)) * 32;
            let data = pattern(sector, 4096);
            queue.send(slot, OUT, sector, &data, 0);
            expected.insert(sector, data);
        }
        queue.kick();
        (0..10).for_each(|_| assert_eq!(queue.wait().1, 1));
        (0..10).for_each(|slot| queue.send(slot, FLUSH, 0, &[], 0));
        queue.kick();
        (0..10).for_each(|_| assert_eq!(queue.wait().1, 1));
        assert!((0..10).all(|slot| queue.status(slot) == OK));
        survives(&device, &expected);
    }
}

/// A driver that knows of no flush, as that of a firmware, takes a disk for one without a cache.
#[test]
fn s_555_a_guest_that_takes_no_flushes_has_every_answered_write_durable() {
    let (device, bed) = bed(5);
    let mut guest = Guest::with(&bed.socket, 1, !FLUSHES);
    let queue = &mut guest.queues[0];
    let mut expected = Expected::new();
    for round in 0..8_u64 {
        let (sector, data) = (round * 32, pattern(round, 4096));
        queue.write(sector, &data);
        expected.insert(sector, data);
        survives(&device, &expected);
    }
    assert_eq!(queue.ask(WRITE_ZEROES, 0, &ranges(&[(0, 8, 0), (64, 8, 1)]), 0), (OK, 1));
    expected.extend([(0, vec![0; 4096]), (64, vec![0; 4096])]);
    survives(&device, &expected);
}

#[test]
fn s_560_what_was_answered_is_durable_when_the_server_has_ended() {
    let (device, mut bed) = bed(6);
    let mut guest = Guest::new(&bed.socket, 1);
    let data = pattern(1, 64 << 10);
    guest.queues[0].write(8, &data);
    bed.server.take().unwrap().stop().unwrap();
    survives(&device, &Expected::from([(8, data)]));
    assert!(!bed.socket.exists());
    assert!(guest.frontend_is_gone(), "the front end is told");
}
