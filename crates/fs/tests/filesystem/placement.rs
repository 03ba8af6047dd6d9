//! Where blocks come to lie: sizes of extents that are asked for, and files that are put together
//! in the background.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_block::{AlignedBuf, BlockDevice};
use bedplate_fs::{
    CheckpointOptions, DefragmenterState, ErrorKind, File, FileSystem, IoMode, MountOptions,
    OpenOptions, Tunable, TuneOptions,
};

use crate::support::{Random, device, format, mount_as, options};

const BLOCK: u64 = 4096;
const FILES: u64 = 8;
const APPENDS: u64 = 64;
/// Bytes of one append.
const APPEND: u64 = 16 << 10;

fn name(file: u64) -> String {
    format!("/dir/f{file}")
}

/// Appends to several files in turns, each append an open of its own; returns their mean length of
/// runs in bytes.
fn append_in_turns(fs: &FileSystem) -> u64 {
    let data = AlignedBuf::from_slice(&[5; APPEND as usize]);
    for round in 0..APPENDS {
        for file in 0..FILES {
            let file = fs.open(name(file), &OpenOptions::create()).unwrap();
            file.write_at(&data, round * APPEND).unwrap();
        }
    }
    let all = (0..FILES).map(|file| fs.fragmentation(fs.resolve(name(file)).unwrap().ino).unwrap());
    let (runs, bytes) =
        all.fold((0, 0), |(runs, bytes), state| (runs + state.runs, bytes + state.bytes));
    assert_eq!(bytes, FILES * APPENDS * APPEND);
    bytes / runs
}

fn volume() -> (Arc<dyn BlockDevice>, FileSystem) {
    let device = device(128 << 20, 512);
    format(&device, BLOCK as u32);
    let fs = mount_as(&device, IoMode::Concurrent);
    fs.create_dir_all("/dir").unwrap();
    (device, fs)
}

/// S-103: files that grow in turns lie in runs of the size asked for, by their directory or by the
/// volume; without it they lie in pieces.
#[test]
fn s_103_files_that_grow_in_turns_lie_in_runs_of_the_size_asked_for() {
    let (_, fs) = volume();
    let without = append_in_turns(&fs);
    assert!(without <= 2 * APPEND, "{without} bytes: nothing would be gained by a hint");

    let (device, fs) = volume();
    let dir = fs.resolve("/dir").unwrap().ino;
    fs.set_extent_size(dir, Some(512 << 10)).unwrap();
    assert!(append_in_turns(&fs) >= 512 << 10);
    let file = fs.resolve(name(0)).unwrap().ino;
    assert_eq!(
        (fs.extent_size(file).unwrap(), fs.extent_size(dir).unwrap()),
        (Some(512 << 10), Some(512 << 10)),
        "taken over from the directory"
    );
    let free = fs.statfs().free_bytes;
    fs.unmount().unwrap();
    assert!(FileSystem::check(&device, None, false).unwrap().findings.is_empty());
    let fs = mount_as(&device, IoMode::Concurrent);
    assert_eq!(
        (fs.statfs().free_bytes, fs.extent_size(file).unwrap()),
        (free, Some(512 << 10)),
        "it costs no space and survives"
    );
    fs.set_extent_size(file, None).unwrap();
    assert_eq!(fs.extent_size(file).unwrap(), None);

    let (_, fs) = volume();
    fs.tune(&TuneOptions {
        changes: vec![(Tunable::ExtentSize, Some(256 << 10))],
        live_only: false,
    })
    .unwrap();
    assert!(append_in_turns(&fs) >= 256 << 10);
    for wrong in [1, BLOCK + 1, 2 << 30] {
        assert_eq!(
            fs.set_extent_size(fs.resolve("/dir").unwrap().ino, Some(wrong)).unwrap_err().kind,
            ErrorKind::Invalid,
            "{wrong}"
        );
    }
}

/// S-103: what a checkpoint makes go elsewhere goes there in runs of that size too, when files are
/// written over in turns.
#[test]
fn s_103_redirected_writes_lie_together() {
    let runs = |hint: Option<u64>| {
        let (_, fs) = volume();
        fs.set_extent_size(fs.resolve("/dir").unwrap().ino, hint).unwrap();
        append_in_turns(&fs);
        fs.create_checkpoint("c", &CheckpointOptions::default()).unwrap();
        append_in_turns(&fs)
    };
    let (without, with) = (runs(None), runs(Some(512 << 10)));
    assert!(without <= 2 * APPEND && with >= 256 << 10, "{without} and {with} bytes on average");
}

/// S-103: reserved room belongs to no file's data: it fails no write of others, and goes with the
/// file.
#[test]
fn s_103_room_that_is_kept_fails_nobody() {
    let (_, fs) = volume();
    fs.set_extent_size(fs.resolve("/dir").unwrap().ino, Some(16 << 20)).unwrap();
    append_in_turns(&fs);
    let other = fs.open("/other", &OpenOptions::create()).unwrap();
    let piece = AlignedBuf::from_slice(&[7; 1 << 20]);
    let (available, mut at) = (fs.statfs().available_bytes, 0);
    while other.write_at(&piece, at).is_ok() {
        at += 1 << 20;
    }
    assert!(at + (2 << 20) > available, "{at} of {available} bytes were found");
    (0..FILES).for_each(|file| fs.remove(name(file)).unwrap());
    fs.remove("/other").unwrap();
}

fn page(at: u64) -> AlignedBuf {
    AlignedBuf::from_slice(&vec![at as u8 | 1; BLOCK as usize])
}

/// A file whose blocks were written in any order.
fn scattered(fs: &FileSystem, path: &str, blocks: u64) -> File {
    let file = fs.open(path, &OpenOptions::create()).unwrap();
    file.set_size(blocks * BLOCK).unwrap();
    let mut order: Vec<u64> = (0..blocks).collect();
    let mut random = Random::new(blocks);
    (1..order.len()).rev().for_each(|i| order.swap(i, random.below(i as u64 + 1) as usize));
    order.into_iter().for_each(|at| file.write_at(&page(at), at * BLOCK).map(drop).unwrap());
    file
}

fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn rate(fs: &FileSystem, rate: u64, load: u64) {
    fs.tune(&TuneOptions {
        changes: vec![(Tunable::DefragRate, Some(rate)), (Tunable::DefragLoad, Some(load))],
        live_only: false,
    })
    .unwrap();
}

/// S-104: the worst files are put together by themselves, and what they hold stays; what is told of
/// it is true, also of a file with more extents than are looked at in one go (I-MOV-1).
#[test]
fn s_104_scattered_files_are_put_together_in_the_background() {
    let (device, fs) = volume();
    let (bad, worse) = (scattered(&fs, "/bad", 300), scattered(&fs, "/worse", 5000));
    let whole = fs.open("/whole", &OpenOptions::create()).unwrap();
    whole.write_at(&AlignedBuf::zeroed(1 << 20), 0).unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.info().defragmenter.state, DefragmenterState::Off, "nothing moves by itself");
    rate(&fs, 1 << 30, 1 << 30);
    wait_until("it is not put together", || {
        fs.info().defragmenter.files == 2 && fs.info().defragmenter.state == DefragmenterState::Idle
    });
    let report = fs.info().defragmenter;
    assert_eq!(
        (report.moved_bytes, report.waiting_files, report.surveys),
        (5300 * BLOCK, 0, 1),
        "{report:?}"
    );
    let last: Vec<_> =
        report.last.iter().map(|file| (file.ino, file.after.runs, file.stuck_bytes)).collect();
    assert_eq!(last, [(bad.ino(), 1, 0), (worse.ino(), 1, 0)], "the worst came first");
    for (file, blocks) in [(&bad, 300), (&worse, 5000)] {
        assert_eq!(fs.fragmentation(file.ino()).unwrap().runs, 1);
        let mut read = AlignedBuf::zeroed(BLOCK as usize);
        for at in 0..blocks {
            file.read_at(&mut read, at * BLOCK).unwrap();
            assert!(*read == *page(at), "block {at}");
        }
    }
    drop((bad, worse, whole));
    fs.unmount().unwrap();
    assert!(FileSystem::check(&device, None, false).unwrap().findings.is_empty());
}

/// S-104: nothing is moved while programs do more than the load allows, nor faster than the rate,
/// and it ends when it is turned off.
#[test]
fn s_104_what_is_moved_waits_for_programs() {
    let device = device(128 << 20, 512);
    format(&device, BLOCK as u32);
    let fs = FileSystem::mount(
        device,
        None,
        MountOptions { defrag_load_max: 0, ..options(IoMode::Concurrent) },
    )
    .unwrap();
    let file = scattered(&fs, "/file", 2000);
    let before = fs.fragmentation(file.ino()).unwrap();
    let mut read = AlignedBuf::zeroed(BLOCK as usize);
    rate(&fs, 1 << 30, 0);
    wait_until("it does not wait", || {
        file.read_at(&mut read, 0).unwrap();
        fs.info().defragmenter.state == DefragmenterState::Waiting
    });
    assert!(fs.info().defragmenter.waits > 0);
    // 4 KiB a second: what a second's quarter moves is one step.
    rate(&fs, 0, 0);
    wait_until("it does not end", || fs.info().defragmenter.state == DefragmenterState::Off);
    let moved = fs.info().defragmenter.moved_bytes;
    rate(&fs, 4096, 1 << 30);
    wait_until("it does not go on", || {
        fs.info().defragmenter.moved_bytes > moved
            || fs.fragmentation(file.ino()).unwrap().runs == 1
    });
    std::thread::sleep(Duration::from_millis(250));
    assert!(
        fs.info().defragmenter.moved_bytes - moved <= 1 << 20,
        "one step, and a pause that pays for it"
    );
    rate(&fs, 0, 200);
    wait_until("it does not end", || fs.info().defragmenter.state == DefragmenterState::Off);
    assert!(fs.fragmentation(file.ino()).unwrap().runs <= before.runs);
}
