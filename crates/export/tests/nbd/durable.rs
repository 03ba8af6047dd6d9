//! What is durable, under power cuts.

use std::collections::HashMap;
use std::sync::Arc;

use bedplate_block::{BlockDevice, CrashChoice, SimulatedDevice};
use bedplate_export::Disk;
use bedplate_fs::{FileSystem, MountOptions, OpenOptions};

use crate::bed::{self, Bed};
use crate::client::{Client, FLUSH, FUA, NO_HOLE, READ, TRIM, WRITE, ZEROES};
use crate::data::pattern;

const SIZE: u64 = 8 << 20;
const BLOCK: u64 = 16 << 10;

/// Returns the file as it is after a power cut that loses all that was not flushed, or some of it.
fn after_a_cut(device: &SimulatedDevice, choice: &CrashChoice) -> Vec<u8> {
    let left: Arc<dyn BlockDevice> = device.crash_image(device.operation_count(), choice);
    let fs = FileSystem::mount(left, None, MountOptions::default()).unwrap();
    let file = fs.open("/disk", &OpenOptions::read_only()).unwrap();
    let mut content = vec![0; SIZE as usize];
    assert_eq!(file.read_at(&mut content, 0).unwrap(), content.len());
    content
}

fn survives(device: &SimulatedDevice, expected: &HashMap<u64, Vec<u8>>) {
    for choice in [CrashChoice::LoseAll, CrashChoice::Seeded(7)] {
        let found = after_a_cut(device, &choice);
        for (offset, data) in expected {
            assert!(found[*offset as usize..][..data.len()] == data[..], "{choice:?}: {offset}");
        }
    }
}

#[test]
fn s_340_what_fua_or_a_flush_covers_outlives_a_power_cut_on_every_connection() {
    let device = SimulatedDevice::new(128 << 20, 3);
    let fs = bed::volume(Arc::clone(&device) as _);
    let disk: Arc<dyn Disk> = Arc::new(bed::file_disk(&fs, SIZE));
    disk.sync().unwrap();
    let bed = Bed::serve(tempfile::tempdir().unwrap(), Some(fs), disk);
    let mut clients: Vec<Client> =
        (0..3).map(|_| Client::open(&bed.socket, "disk", true)).collect();
    let mut expected = HashMap::new();
    for round in 0..20_u64 {
        let offset = round * BLOCK;
        // One that is aligned and goes through the queue, and one that is not and does not.
        let (at, len) = if round % 4 == 3 { (offset + 77, 1000) } else { (offset, 8192) };
        let data = pattern(round, len);
        assert_eq!(clients[0].write(FUA, at, &data), 0);
        expected.insert(at, data);
        survives(&device, &expected);
    }
    for round in 20..40_u64 {
        let (at, data) = (round * BLOCK, pattern(round, 4096));
        assert_eq!(clients[round as usize % 2].write(0, at, &data), 0);
        expected.insert(at, data);
    }
    // Asked for on a third connection.
    assert_eq!(clients[2].ask(FLUSH, 0, 0, 0).0, 0);
    survives(&device, &expected);
    for (kind, flags, offset) in [(ZEROES, FUA, 0), (ZEROES, FUA | NO_HOLE, BLOCK)] {
        assert_eq!(clients[1].ask(kind, flags, offset, 8192).0, 0);
        expected.insert(offset, vec![0; 8192]);
        survives(&device, &expected);
    }
    assert_eq!(clients[1].ask(TRIM, FUA, 2 * BLOCK, 8192).0, 0);
    expected.insert(2 * BLOCK, vec![0; 8192]);
    survives(&device, &expected);
}

/// Several flushes that wait together are answered by one, which must be as good as each.
#[test]
fn s_340_flushes_that_are_answered_together_cover_as_much() {
    let device = SimulatedDevice::new(128 << 20, 4);
    let fs = bed::volume(Arc::clone(&device) as _);
    let disk: Arc<dyn Disk> = Arc::new(bed::file_disk(&fs, SIZE));
    let bed = Bed::serve(tempfile::tempdir().unwrap(), Some(fs), disk);
    let mut client = Client::open(&bed.socket, "disk", true);
    let mut expected = HashMap::new();
    for round in 0..5_u64 {
        let mut waiting = HashMap::new();
        for number in 0..20 {
            let at = (round * 20 + number) * BLOCK;
            let data = pattern(at, 4096);
            waiting.insert(client.send(WRITE, FUA, at, 4096, &data), (at, data));
            client.send(FLUSH, 0, 0, 0, &[]);
            client.send(READ, 0, at, 512, &[]);
        }
        for _ in 0..60 {
            let answer = client.answer();
            assert_eq!(answer.errno, 0);
            if let Some((at, data)) = waiting.remove(&answer.cookie) {
                expected.insert(at, data);
            }
        }
        assert!(waiting.is_empty());
        survives(&device, &expected);
    }
}
