//! Bytes in and out, and what the guest is told of its disk.

use std::os::unix::fs::PermissionsExt;

use bedplate_block::MemoryDevice;
use bedplate_export::FileDisk;
use bedplate_export::vhost::Server;
use bedplate_fs::{IoMode, OpenOptions};

use crate::bed::{Bed, pattern, settings};
use crate::guest::{
    DISCARD, EVENT_IDX, FLUSH, GET_ID, Guest, IN, IOERR, OK, OUT, Queue, SIZE, UNSUPP,
    WRITE_ZEROES, ranges,
};
use crate::places::{self, PLACES, Place};

const DISK_BYTES: usize = 4 << 20;
const SLOTS: u16 = SIZE / 3;

/// A small generator, the same each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % below
    }
}

/// Drives one queue with many requests at once within a part of the disk, and compares.
fn exercise(queue: &mut Queue, dice: &mut Dice, model: &mut [u8], first: u64, rounds: usize) {
    let sectors = model.len() as u64 / 512;
    for round in 0..rounds {
        let before = queue.available;
        let mut reads = Vec::new();
        // Requests that are under way together do not touch.
        let part = sectors / u64::from(SLOTS);
        for slot in 0..SLOTS {
            let count = 1 + dice.roll(part.min(16));
            let sector = u64::from(slot) * part + dice.roll(part - count + 1);
            let range = (sector * 512) as usize..((sector + count) * 512) as usize;
            if dice.roll(2) == 0 {
                let data = pattern(round as u64 * 100 + u64::from(slot), range.len());
                queue.send(slot, OUT, first + sector, &data, 0);
                model[range].copy_from_slice(&data);
            } else {
                queue.send(slot, IN, first + sector, &[], range.len() as u32);
                reads.push((slot, range));
            }
        }
        queue.kick_if_wanted(before);
        for _ in 0..SLOTS {
            let (head, _) = queue.wait();
            assert_eq!(queue.status(head / 3), OK);
        }
        for (slot, range) in reads {
            assert!(queue.data(slot, range.len()) == model[range.clone()], "{range:?}");
        }
    }
}

/// I-VHO-2: each of many requests at once is answered once.
#[test]
fn s_554_many_requests_on_several_queues_at_once_move_the_bytes_that_they_name() {
    for place in PLACES {
        for wanted in [!0, !EVENT_IDX] {
            let bed = Bed::new(place, DISK_BYTES as u64);
            let mut guest = Guest::with(&bed.socket, 4, wanted);
            let mut model = vec![0; DISK_BYTES];
            let part = DISK_BYTES / 4;
            std::thread::scope(|scope| {
                for (queue, model) in guest.queues.iter_mut().zip(model.chunks_mut(part)) {
                    let index = queue.index as u64;
                    let first = index * (part as u64 / 512);
                    scope.spawn(move || {
                        exercise(queue, &mut Dice(index + 1), model, first, 30);
                    });
                }
            });
            let mut found = vec![0; DISK_BYTES];
            bed.disk.read_at(&mut found, 0).unwrap();
            assert!(found == model, "{place:?}");
        }
    }
}

#[test]
fn s_556_zeros_are_exactly_where_they_were_asked_for() {
    const UNMAP: u32 = 1;
    for place in PLACES {
        let bed = Bed::new(place, 1 << 20);
        let mut guest = Guest::new(&bed.socket, 1);
        let queue = &mut guest.queues[0];
        let mut model = pattern(3, 1 << 20);
        for (at, data) in model.chunks(64 << 10).enumerate() {
            queue.write(at as u64 * 128, data);
        }
        let asked = [(0, 128, 0), (201, 7, UNMAP), (512, 512, UNMAP), (1200, 1, 0), (2047, 1, 0)];
        assert_eq!(queue.ask(WRITE_ZEROES, 0, &ranges(&asked), 0), (OK, 1));
        for (sector, count, _) in asked {
            model[sector as usize * 512..][..count as usize * 512].fill(0);
        }
        // What is discarded may read as anything; nothing beside it changes.
        assert_eq!(queue.ask(DISCARD, 0, &ranges(&[(1600, 64, 0), (0, 0, 0)]), 0), (OK, 1));
        let mut found = vec![0; 1 << 20];
        bed.disk.read_at(&mut found, 0).unwrap();
        found[1600 * 512..1664 * 512].fill(0);
        model[1600 * 512..1664 * 512].fill(0);
        assert!(found == model, "{place:?}");
        if place != Place::System {
            let runs = bed.disk.runs(512 * 512, 512 * 512, 8).unwrap();
            assert_eq!(runs[0].allocation, bedplate_export::Allocation::Hole, "it was unmapped");
            let runs = bed.disk.runs(0, 64 << 10, 8).unwrap();
            assert_ne!(runs[0].allocation, bedplate_export::Allocation::Hole, "it was not");
        }
        for (kind, range, status) in [
            (DISCARD, (0, 1, UNMAP), UNSUPP),
            (WRITE_ZEROES, (0, 1, 2), UNSUPP),
            (WRITE_ZEROES, (2047, 2, 0), IOERR),
            (DISCARD, (u64::MAX, 1, 0), IOERR),
            (DISCARD, (0, u32::MAX, 0), IOERR),
        ] {
            assert_eq!(queue.ask(kind, 0, &ranges(&[range]), 0).0, status, "{kind} {range:?}");
        }
        let many = ranges(&[(0, 1, 0); 17]);
        assert_eq!(queue.ask(DISCARD, 0, &many, 0).0, IOERR, "more than it was told of");
        assert_eq!(queue.ask(DISCARD, 0, &many[..15], 0).0, IOERR, "a part of one");
        let mut found = vec![0; 1 << 20];
        bed.disk.read_at(&mut found, 0).unwrap();
        found[1600 * 512..1664 * 512].fill(0);
        assert!(found == model, "{place:?}: what was refused changed nothing");
    }
}

#[test]
fn s_557_a_disk_that_is_read_only_refuses_every_change() {
    let content = pattern(1, 64 << 10);
    // The file itself would take writes.
    let fs = places::volume(MemoryDevice::new(64 << 20));
    let options = OpenOptions { mode: Some(IoMode::Concurrent), ..OpenOptions::create() };
    let file = fs.open("/disk", &options).unwrap();
    file.write_at(&content, 0).unwrap();
    let disk = FileDisk::new(&fs, file, true).unwrap();
    let bed = Bed::serve(tempfile::tempdir().unwrap(), Some(fs), std::sync::Arc::new(disk));
    let mut guest = Guest::new(&bed.socket, 1);
    assert_eq!(guest.features & (1 << 5 | 1 << 13 | 1 << 14), 1 << 5, "it is told so");
    let queue = &mut guest.queues[0];
    assert_eq!(queue.ask(OUT, 0, &[1; 512], 0).0, IOERR);
    assert_eq!(queue.ask(DISCARD, 0, &ranges(&[(0, 8, 0)]), 0).0, IOERR);
    assert_eq!(queue.ask(WRITE_ZEROES, 0, &ranges(&[(0, 8, 0)]), 0).0, IOERR);
    assert_eq!(queue.ask(FLUSH, 0, &[], 0).0, OK);
    assert!(queue.read(0, 64 << 10) == content);
    let mut found = vec![0; 64 << 10];
    bed.disk.read_at(&mut found, 0).unwrap();
    assert!(found == content);
}

#[test]
fn s_561_the_guest_is_told_of_size_units_and_serial_number() {
    let bed = Bed::new(Place::Volume, (1 << 20) + 700);
    let mut guest = Guest::new(&bed.socket, 1);
    let config = guest.config(60);
    let u32_at = |at: usize| u32::from_le_bytes(config[at..at + 4].try_into().unwrap());
    assert_eq!(u64::from_le_bytes(config[..8].try_into().unwrap()), 2049, "whole sectors");
    assert_eq!((u32_at(8), u32_at(12)), (256 << 10, 126), "126 buffers of 256 KiB at most");
    assert_eq!((u32_at(20), config[24], u32_at(28)), (512, 3, 16), "8 KiB are preferred");
    assert_eq!(config[34..36], [4, 0], "queues");
    assert_eq!((u32_at(36), u32_at(40), config[56]), (1 << 22, 16, 1));
    assert_eq!(guest.config(256)[60..], [0; 196], "nothing is told beyond");
    assert_eq!(guest.frontend_queues(), 4);
    let queue = &mut guest.queues[0];
    assert_eq!(queue.ask(GET_ID, 0, &[], 20), (OK, 21));
    assert_eq!(queue.data(0, 20), b"of a test\0\0\0\0\0\0\0\0\0\0\0");
    // A shorter buffer gets a part, a longer one no more.
    assert_eq!(queue.ask(GET_ID, 0, &[], 4), (OK, 5));
    assert_eq!(queue.ask(GET_ID, 0, &[], 512), (OK, 20));
    queue.write(2048, &[7; 512]);
    assert_eq!(queue.ask(IN, 2049, &[], 512).0, IOERR, "a part of a sector is not served");
}

#[test]
fn s_561_settings_out_of_their_range_are_refused_with_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let (_fs, disk) = Place::System.disk(dir.path(), 1 << 20);
    let good = settings(&dir.path().join("socket"));
    for (settings, says) in [
        (bedplate_export::vhost::Settings { queues_max: 0, ..good.clone() }, "0 queues: choose 1"),
        (bedplate_export::vhost::Settings { queues_max: 257, ..good.clone() }, "257 queues"),
        (bedplate_export::vhost::Settings { queue_size_max: 100, ..good.clone() }, "power of two"),
        (bedplate_export::vhost::Settings { queue_size_max: 1, ..good.clone() }, "power of two"),
        (
            bedplate_export::vhost::Settings { serial: "a".repeat(21), ..good.clone() },
            "at most 20 printable",
        ),
        (bedplate_export::vhost::Settings { serial: "ä".into(), ..good.clone() }, "printable"),
    ] {
        let error = Server::start(std::sync::Arc::clone(&disk), &settings).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
        assert!(!good.socket.exists());
    }
}

#[test]
fn s_562_a_socket_is_for_its_owner_alone_and_one_left_behind_is_in_no_way() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let (_fs, disk) = Place::System.disk(dir.path(), 1 << 20);
    let server = Server::start(std::sync::Arc::clone(&disk), &settings(&socket)).unwrap();
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert!(Server::start(disk, &settings(&socket)).is_err(), "it is in use");
    server.stop().unwrap();
    assert!(!socket.exists());
}
