//! What an operation costs the device: calls are counted, not timed.

use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice, DeviceCounters};
use bedplate_fs::{AllocateMode, File, FileSystem, InodeNo, IoMode, OpenOptions, Reason};

use crate::support::{device, format, mount_as};

struct Bench {
    device: Arc<dyn BlockDevice>,
    fs: FileSystem,
    file: File,
}

impl Bench {
    fn new(mode: IoMode) -> Self {
        let device = device(64 << 20, 512);
        format(&device, 4096);
        let fs = mount_as(&device, mode);
        let file = fs.open("/file", &OpenOptions::create()).expect("it opens");
        Self { device, fs, file }
    }

    /// A file of written blocks, with nothing left to sync.
    fn written(mode: IoMode, bytes: usize) -> Self {
        let bench = Self::new(mode);
        bench.file.write_at(&AlignedBuf::zeroed(bytes), 0).expect("there is room");
        bench.file.sync_all().expect("a sync succeeds");
        // The first overwrite of bytes that a sync has just exposed seals their record; from then
        // on there is nothing to think of.
        bench.file.write_at(&AlignedBuf::zeroed(bytes), 0).expect("there is room");
        bench.file.sync_all().expect("a sync succeeds");
        bench
    }

    /// Reads, writes and flushes that the device served during `work`.
    fn cost(&self, work: impl FnOnce(&File)) -> (u64, u64, u64) {
        let before = self.device.counters();
        work(&self.file);
        let DeviceCounters { reads, writes, flushes, .. } = self.device.counters();
        (reads - before.reads, writes - before.writes, flushes - before.flushes)
    }
}

#[test]
fn io_on_written_blocks_is_one_call_of_the_device() {
    for mode in [IoMode::Concurrent, IoMode::Direct] {
        let bench = Bench::written(mode, 1 << 20);
        let mut buf = AlignedBuf::zeroed(8192);
        assert_eq!(bench.cost(|file| _ = file.read_at(&mut buf, 40_960).unwrap()), (1, 0, 0));
        assert_eq!(bench.cost(|file| _ = file.write_at(&buf, 40_960).unwrap()), (0, 1, 0));
        assert_eq!(
            bench.cost(|file| _ = file.write_at(&buf[..512], 41_472).unwrap()),
            (0, 1, 0),
            "a sector needs no read"
        );
        assert_eq!(bench.cost(|file| file.sync_data().unwrap()), (0, 0, 1), "nothing to log");
        let counters = bench.file.counters();
        assert_eq!((counters.misaligned, counters.reason(Reason::Split)), (0, 0));
    }
}

#[test]
fn a_durable_append_costs_one_flush() {
    for (len, writes) in [(512, 1), (4096, 1), (8192, 2)] {
        let bench = Bench::written(IoMode::Concurrent, 65_536);
        let record = AlignedBuf::zeroed(len);
        for i in 0..20u64 {
            let cost = bench.cost(|file| {
                file.write_at(&record, 65_536 + i * len as u64).unwrap();
                file.sync_data().unwrap();
            });
            // The record has the data of a small one.
            assert_eq!(cost, (0, writes, 1), "one flush; append {i} of {len} bytes");
        }
        assert_eq!(bench.file.extents().unwrap().len(), 1, "appends stay contiguous");
    }
}

#[test]
fn a_durable_write_into_preallocated_blocks_costs_one_flush() {
    let bench = Bench::new(IoMode::Concurrent);
    bench.file.allocate(AllocateMode::Preallocate { keep_size: false }, 0, 1 << 20).unwrap();
    bench.file.sync_all().unwrap();
    let page = AlignedBuf::zeroed(8192);
    for i in 0..10 {
        let cost = bench.cost(|file| {
            file.write_at(&page, i * 16_384).unwrap();
            file.sync_data().unwrap();
        });
        assert_eq!(cost, (0, 2, 1));
    }
    assert_eq!(bench.file.counters().reason(Reason::Unwritten), 10);
}

#[test]
fn s_6_a_synchronous_write_is_durable_for_one_flush() {
    let bench = Bench::written(IoMode::Concurrent, 65_536);
    let file = bench
        .fs
        .open("/file", &OpenOptions { data_sync: true, ..OpenOptions::read_write() })
        .unwrap();
    let page = AlignedBuf::zeroed(8192);
    assert_eq!(bench.cost(|_| _ = file.write_at(&page, 8192).unwrap()), (0, 1, 1));
    assert_eq!(bench.cost(|_| _ = file.write_at(&page, 65_536).unwrap()), (0, 2, 1));
}

/// S-3: a rollback journal is made so, with each transaction.
#[test]
fn s_3_a_directory_whose_names_are_durable_is_synced_without_a_flush() {
    let bench = Bench::new(IoMode::Concurrent);
    let journal = bench.fs.open("/journal", &OpenOptions::create()).unwrap();
    journal.write_at(&AlignedBuf::zeroed(4096), 0).unwrap();
    assert_eq!(bench.cost(|_| journal.sync_data().unwrap()).2, 1);
    let sync = |_: &File| bench.fs.sync_inode(InodeNo::ROOT).unwrap();
    assert_eq!(bench.cost(sync), (0, 0, 0), "the name is durable");
    bench.fs.remove("/journal").unwrap();
    assert_eq!(bench.cost(sync), (0, 1, 1), "its removal is not");
    assert_eq!(bench.cost(sync), (0, 0, 0));
}

#[test]
fn what_is_not_aligned_is_counted_under_its_reason() {
    let bench = Bench::written(IoMode::Concurrent, 65_536);
    let mut buf = AlignedBuf::zeroed(8192);
    bench.file.write_at(&buf[..4096], 100).unwrap();
    bench.file.write_at(&buf[..100], 4096).unwrap();
    bench.file.read_at(&mut buf[1..4097], 0).unwrap();
    let counters = bench.file.counters();
    assert_eq!(counters.misaligned, 3);
    assert_eq!(counters.reason(Reason::UnalignedOffset), 1);
    assert_eq!(counters.reason(Reason::UnalignedLength), 1);
    assert_eq!(counters.reason(Reason::UnalignedBuffer), 1);
}

#[test]
fn a_long_truncation_is_logged_in_bounded_records() {
    let bench = Bench::new(IoMode::Concurrent);
    let page = AlignedBuf::zeroed(4096);
    bench.file.set_size(4096 * 6000).unwrap();
    for i in 0..3000 {
        bench.file.write_at(&page, i * 8192).unwrap();
    }
    assert_eq!(bench.file.extents().unwrap().len(), 3000);
    bench.fs.sync().unwrap();
    let records = bench.fs.info().log.records;
    bench.file.set_size(10_000).unwrap();
    bench.file.sync_data().unwrap();
    let free = bench.fs.statfs().free_bytes;
    assert!(bench.fs.info().log.records - records >= 3);
    assert_eq!(bench.file.extents().unwrap().len(), 2);
    assert_eq!(bench.file.attr().unwrap().allocated_bytes, 8192);
    bench.file.set_size(0).unwrap();
    assert_eq!(bench.fs.statfs().free_bytes, free + 8192);
}
