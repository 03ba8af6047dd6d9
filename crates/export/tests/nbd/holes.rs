//! Holes and zeros: trim, write-zeroes, block status, read-only exports.

use std::sync::Arc;

use bedplate_block::MemoryDevice;
use bedplate_export::FileDisk;
use bedplate_fs::{AllocateMode, CheckpointOptions, IoMode, OpenOptions};

use crate::bed::{self, Bed, PLACES, Place};
use crate::client::{Client, FUA, NO_HOLE, REQ_ONE, TRIM, ZEROES};
use crate::data::pattern;

const DATA: u32 = 0;
const UNWRITTEN: u32 = 2;
const HOLE: u32 = 3;

#[test]
fn s_342_block_status_tells_data_holes_and_what_is_not_written() {
    for place in PLACES {
        let bed = Bed::new(place, 4 << 20);
        let mut client = Client::open(&bed.socket, "disk", true);
        assert_eq!(client.status(0, 0, 4 << 20), [(4 << 20, HOLE)]);
        assert_eq!(client.write(0, 1 << 20, &pattern(1, 1 << 20)), 0);
        let told = client.status(0, 0, 4 << 20);
        assert_eq!(told, [(1 << 20, HOLE), (1 << 20, DATA), (2 << 20, HOLE)], "{place:?}");
        assert_eq!(client.status(REQ_ONE, 512 << 10, 3 << 20), [(512 << 10, HOLE)]);
        assert_eq!(client.status(0, (1 << 20) + 4096, 8192), [(8192, DATA)]);
        if place == Place::System {
            continue;
        }
        // Blocks that are there and read as zeros are told from holes.
        assert_eq!(client.ask(ZEROES, NO_HOLE, 3 << 20, 64 << 10).0, 0);
        let told = client.status(0, 2 << 20, 2 << 20);
        assert_eq!(told, [(1 << 20, HOLE), (64 << 10, UNWRITTEN), ((1 << 20) - (64 << 10), HOLE)]);
        assert_eq!(client.status(REQ_ONE, 3 << 20, 1 << 20), [(64 << 10, UNWRITTEN)]);
        assert_eq!(client.write(0, 3 << 20, &[1; 4096]), 0);
        let told = client.status(0, 3 << 20, 64 << 10);
        assert_eq!(told, [(4096, DATA), (60 << 10, UNWRITTEN)], "{place:?}");
    }
}

/// Status is told of what the range ends in, too, where it begins within a preallocated extent.
#[test]
fn s_342_a_range_that_begins_within_what_is_not_written_reads_as_zeros() {
    let bed = Bed::new(Place::Volume, 4 << 20);
    let options = OpenOptions { mode: Some(IoMode::Concurrent), ..OpenOptions::read_write() };
    let file = bed.fs.as_ref().unwrap().open("/disk", &options).unwrap();
    file.allocate(AllocateMode::Preallocate { keep_size: true }, 0, 1 << 20).unwrap();
    let mut client = Client::open(&bed.socket, "disk", true);
    assert_eq!(client.status(0, 0, 1 << 20), [(1 << 20, UNWRITTEN)]);
    assert_eq!(client.status(0, 8192, 1 << 20), [((1 << 20) - 8192, UNWRITTEN), (8192, HOLE)]);
}

#[test]
fn s_343_zeros_are_exactly_where_they_were_asked_for() {
    for place in PLACES {
        let bed = Bed::new(place, 1 << 20);
        let mut client = Client::open(&bed.socket, "disk", true);
        let mut model = pattern(3, 1 << 20);
        assert_eq!(client.write(0, 0, &model), 0);
        let ranges = [
            (0, 65_536, 0),
            (100_001, 7, NO_HOLE),
            (200_000, 50_000, 0),
            (300_000, 50_001, NO_HOLE),
            (1_048_575, 1, FUA),
            (512 * 1024, 512, FUA | NO_HOLE),
        ];
        for (offset, len, flags) in ranges {
            assert_eq!(client.ask(ZEROES, flags, offset, len).0, 0, "{place:?} {offset}");
            model[offset as usize..][..len as usize].fill(0);
            assert!(client.read(0, 1 << 20) == model, "{place:?}: zeros at {offset}, {len} bytes");
        }
        let told = client.status(REQ_ONE, 0, 65_536);
        assert_eq!(told, [(65_536, HOLE)], "{place:?}: zeros may be a hole where nothing forbids");
    }
}

#[test]
fn s_343_a_trim_gives_blocks_back_and_changes_nothing_beside_them() {
    for place in PLACES {
        let bed = Bed::new(place, 1 << 20);
        let mut client = Client::open(&bed.socket, "disk", true);
        let data = pattern(4, 1 << 20);
        assert_eq!(client.write(0, 0, &data), 0);
        for (offset, len, flags) in [(70_001, 200_000, 0), (5, 3, 0), (524_288, 8192, FUA)] {
            assert_eq!(client.ask(TRIM, flags, offset, len).0, 0);
            let (from, to) = (offset as usize, offset as usize + len as usize);
            let read = client.read(0, 1 << 20);
            assert!(read[..from.min(70_001)] == data[..from.min(70_001)], "{place:?} before");
            assert!(read[600_000..] == data[600_000..], "{place:?} behind");
            let inside = &read[from..to];
            assert!(inside.iter().zip(&data[from..]).all(|(byte, was)| *byte == 0 || byte == was));
        }
        assert_eq!(client.status(REQ_ONE, 131_072, 65_536), [(65_536, HOLE)], "{place:?}");
    }
}

#[test]
fn s_344_an_export_of_a_checkpoint_shows_its_bytes_and_refuses_every_change() {
    let fs = bed::volume(MemoryDevice::new(256 << 20));
    let disk = bed::file_disk(&fs, 1 << 20);
    let (old, new) = (pattern(1, 65_536), pattern(2, 65_536));
    bedplate_export::Disk::write_at(&disk, &old, 4096).unwrap();
    fs.create_checkpoint("then", &CheckpointOptions::default()).unwrap();
    bedplate_export::Disk::write_at(&disk, &new, 4096).unwrap();
    let options = OpenOptions { mode: Some(IoMode::Concurrent), ..OpenOptions::read_only() };
    let then = fs.open("/.checkpoints/then/disk", &options).unwrap();
    let shown = Arc::new(FileDisk::new(&fs, then, true).unwrap());
    let bed = Bed::serve(tempfile::tempdir().unwrap(), Some(fs), shown);
    let mut client = Client::open(&bed.socket, "disk", true);
    assert_eq!(client.flags & 2, 2, "it is told to be read-only");
    assert!(client.read(4096, 65_536) == old);
    assert_eq!(client.write(0, 4096, &[1; 4096]), 1);
    for kind in [TRIM, ZEROES] {
        assert_eq!(client.ask(kind, 0, 0, 4096).0, 1);
    }
    assert_eq!(client.ask(crate::client::FLUSH, 0, 0, 0).0, 0);
    assert!(client.read(4096, 65_536) == old);
    assert_eq!(client.status(REQ_ONE, 4096, 65_536), [(65_536, DATA)]);
}
