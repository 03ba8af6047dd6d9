//! What is counted and timed, file by file, and how it is found again.

use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, BlockDevice, Fault, FaultRule, QueueOptions, ReadFault, SimulatedDevice, Trigger,
};
use bedplate_fs::{
    CheckpointOptions, FileSystem, InodeNo, IoMode, MountOptions, OpenOptions, Queue,
    QueueCompletion, Reason, RenameMode, Tunable, TuneOptions,
};

use crate::support::{device, format, options};

/// A volume on which every read and write is timed.
fn timed(mode: IoMode) -> FileSystem {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    FileSystem::mount(device, None, MountOptions { latency_sample: 1, ..options(mode) }).unwrap()
}

fn aligned(len: usize) -> AlignedBuf {
    AlignedBuf::zeroed(len)
}

#[test]
fn each_file_has_counters_and_latencies_of_its_own() {
    let fs = timed(IoMode::Concurrent);
    let (a, b) = (
        fs.open("/a", &OpenOptions::create()).unwrap(),
        fs.open("/b", &OpenOptions::create()).unwrap(),
    );
    (0..10).for_each(|at| assert_eq!(a.write_at(&aligned(4096), at * 4096).unwrap(), at * 4096));
    (0..3).for_each(|at| assert_eq!(a.read_at(&mut aligned(4096), at * 4096).unwrap(), 4096));
    b.write_at(&aligned(8192), 0).unwrap();
    a.sync_data().unwrap();
    let activity = fs.activity(a.ino()).unwrap();
    assert_eq!(
        (activity.counters.reads, activity.counters.writes, activity.counters.syncs),
        (3, 10, 1)
    );
    assert_eq!(
        (
            activity.latencies.read.count,
            activity.latencies.write.count,
            activity.latencies.sync.count
        ),
        (3, 10, 1)
    );
    assert!(
        activity.counters.sync_wait_ns > 0 && activity.latencies.write.percentile_ns(0.5).is_some()
    );
    assert_eq!(
        (activity.effective_mode, activity.opens, activity.mixed),
        (Some(IoMode::Concurrent), 1, false)
    );
    let whole = fs.info().latencies;
    assert_eq!((whole.read.count, whole.write.count, whole.sync.count), (3, 11, 1));
    fs.unmount().unwrap();
}

#[test]
fn a_read_counts_the_bytes_that_it_read_and_one_that_fails_counts_nothing() {
    for mode in [IoMode::Direct, IoMode::Concurrent] {
        let simulated = SimulatedDevice::new(64 << 20, 1);
        let device: Arc<dyn BlockDevice> = Arc::clone(&simulated) as _;
        format(&device, 4096);
        let fs = FileSystem::mount(device, None, options(mode)).unwrap();
        let file = fs.open("/f", &OpenOptions::create()).unwrap();
        file.write_at(&aligned(5000), 0).unwrap();
        let read = |offset| file.read_at(&mut aligned(4096), offset);
        assert_eq!([0, 4096, 8192].map(|offset| read(offset).unwrap()), [4096, 904, 0]);
        simulated.inject(FaultRule::new(Fault::Read(ReadFault::Fail), Trigger::Next(1)));
        read(0).unwrap_err();
        let counters = fs.activity(file.ino()).unwrap().counters;
        assert_eq!((counters.reads, counters.read_bytes), (3, 5000), "{mode:?}");
        drop(file);
        fs.unmount().unwrap();
    }
}

#[test]
fn queued_operations_are_timed_from_the_device_queue_to_their_completion() {
    let fs = timed(IoMode::Concurrent);
    let file = Arc::new(fs.open("/f", &OpenOptions::create()).unwrap());
    file.write_at(&aligned(64 << 10), 0).unwrap();
    fs.reset_statistics(None).unwrap();
    let mut queue = Queue::new(&fs, &QueueOptions::default()).unwrap();
    for at in 0..4 {
        assert!(queue.read(&file, aligned(4096), at * 4096, at).is_ok());
        assert!(queue.write(&file, aligned(4096), at * 4096, 10 + at).is_ok());
    }
    let mut done: Vec<QueueCompletion> = Vec::new();
    queue.complete(8, &mut done).unwrap();
    assert!(done.iter().all(|completion| completion.result.is_ok()) && done.len() == 8);
    let activity = fs.activity(file.ino()).unwrap();
    assert_eq!((activity.counters.reads, activity.counters.writes), (4, 4));
    assert_eq!((activity.latencies.read.count, activity.latencies.write.count), (4, 4));
    drop((queue, file));
    fs.unmount().unwrap();
}

#[test]
fn nothing_is_timed_where_that_is_off_and_everything_is_counted() {
    let fs = timed(IoMode::Concurrent);
    fs.tune(&TuneOptions { changes: vec![(Tunable::LatencySample, Some(0))], live_only: true })
        .unwrap();
    let file = fs.open("/f", &OpenOptions::create()).unwrap();
    // What this thread had drawn before passes first.
    file.write_at(&aligned(4096), 0).unwrap();
    let before = fs.activity(file.ino()).unwrap().latencies;
    (0..100).for_each(|_| assert_eq!(file.write_at(&aligned(4096), 0).unwrap(), 0));
    file.sync_data().unwrap();
    let after = fs.activity(file.ino()).unwrap();
    assert_eq!(after.latencies, before);
    assert_eq!(
        (after.counters.writes, after.counters.syncs, after.counters.sync_wait_ns),
        (101, 1, 0)
    );
    fs.unmount().unwrap();
}

#[test]
fn a_reset_begins_anew_with_one_file_or_with_all() {
    let fs = timed(IoMode::Cached);
    let files = ["/a", "/b"].map(|path| fs.open(path, &OpenOptions::create()).unwrap());
    for file in &files {
        file.write_at(b"content", 0).unwrap();
        file.read_at(&mut [0; 7], 0).unwrap();
    }
    fs.reset_statistics(Some(files[0].ino())).unwrap();
    let reads = |fs: &FileSystem| {
        files.each_ref().map(|file| fs.activity(file.ino()).unwrap().counters.reads)
    };
    assert_eq!(reads(&fs), [0, 1]);
    fs.reset_statistics(None).unwrap();
    assert_eq!(reads(&fs), [0, 0]);
    assert_eq!((fs.info().counters.reads, fs.info().latencies.read.count), (0, 0));
    assert!(fs.reset_statistics(Some(InodeNo(999))).is_err());
    fs.unmount().unwrap();
}

#[test]
fn files_that_did_anything_are_listed_in_pages_with_their_paths() {
    let fs = timed(IoMode::Concurrent);
    fs.create_dir_all("/d/e").unwrap();
    let paths: Vec<String> = (0..25).map(|n| format!("/d/e/f{n}")).collect();
    for path in &paths {
        fs.open(path, &OpenOptions::create()).unwrap().write_at(&aligned(512), 0).unwrap();
    }
    drop(fs.open("/idle", &OpenOptions::create()).unwrap());
    let (mut found, mut after) = (Vec::new(), InodeNo(0));
    loop {
        let page = fs.activities(after, 10);
        let Some(last) = page.last() else { break };
        after = last.ino;
        found.extend(page.iter().map(|activity| activity.ino));
    }
    assert_eq!(found.len(), 25, "the idle one is not among them");
    let told = |fs: &FileSystem| {
        let mut told: Vec<String> = fs
            .paths_of(&found)
            .unwrap()
            .into_values()
            .map(|place| String::from_utf8(place.path).unwrap())
            .collect();
        told.sort();
        told
    };
    let mut expected = paths.clone();
    expected.sort();
    assert_eq!(told(&fs), expected);
    let d = fs.resolve("/d").unwrap().ino;
    fs.rename(d, b"e", InodeNo::ROOT, b"moved", RenameMode::Replace).unwrap();
    assert!(told(&fs).iter().all(|path| path.starts_with("/moved/f")));
    fs.remove("/moved/f0").unwrap();
    assert_eq!(told(&fs).len(), 24, "what has no name has no path");
    fs.unmount().unwrap();
}

#[test]
fn a_write_to_blocks_that_a_checkpoint_needs_is_counted_as_shared() {
    let fs = timed(IoMode::Concurrent);
    let file = fs.open("/f", &OpenOptions::create()).unwrap();
    file.write_at(&aligned(16384), 0).unwrap();
    file.sync_all().unwrap();
    let shared = || file.counters().reason(Reason::Shared);
    file.write_at(&aligned(4096), 0).unwrap();
    assert_eq!(shared(), 0);
    fs.create_checkpoint("c", &CheckpointOptions::default()).unwrap();
    file.write_at(&aligned(4096), 0).unwrap();
    assert_eq!((shared(), file.counters().reason(Reason::Hole)), (1, 0), "redirected, not filled");
    file.write_at(&aligned(4096), 0).unwrap();
    assert_eq!(shared(), 1, "its own by now");
    file.write_at(&aligned(512), 8192).unwrap();
    assert_eq!(shared(), 2, "a part of a block is copied first");
    drop(file);
    fs.unmount().unwrap();
}
