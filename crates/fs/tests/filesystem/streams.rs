//! Files that are written over in order through opens that let their writes wait, as those of a
//! mount do.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bedplate_block::{AlignedBuf, BlockDevice, HookedDevice};
use bedplate_fs::{FileSystem, IoMode, MountOptions, OpenOptions};

use crate::delayed::{Growing, MODES, PAGE, change, growing};
use crate::odd::Refusing;
use crate::support::{device, format, mount_as, options};

/// A file of so many bytes, all of them durable.
fn written(mode: IoMode, len: usize) -> Growing {
    let mut it = Growing::new(mode);
    while it.model.len() < len {
        it.append(PAGE.min(len - it.model.len()), 1);
    }
    it.file.sync_all().unwrap();
    it
}

fn page(fill: u8) -> AlignedBuf {
    AlignedBuf::from_slice(&[fill; PAGE])
}

/// What PostgreSQL's buffers give back of a table that is loaded or vacuumed, was a write of the
/// device for each page.
#[test]
fn s_365_pages_written_over_in_order_reach_the_device_in_large_pieces() {
    for mode in MODES {
        let mut it = written(mode, 4 << 20);
        let before = it.device.counters();
        for round in 0..512 {
            it.write(round * PAGE, &page(round as u8));
            // As a table that grows meanwhile: what makes it grow is no jump.
            if round % 4 == 0 {
                it.append(PAGE, 200);
            }
            if round % 97 == 0 {
                Growing::holds(&it.file, &it.model, "read while it is written over");
            }
        }
        it.file.sync_data().unwrap();
        let after = it.device.counters();
        let (writes, flushes) = (after.writes - before.writes, after.flushes - before.flushes);
        assert!(writes <= 24 && flushes <= 2, "{mode}: {writes} writes, {flushes} flushes");
        assert!(it.file.counters().delayed >= 500, "{mode}: {}", it.file.counters().delayed);
        assert_eq!(it.waiting(), 0);
        it.compare_after_death(&mode.to_string());
    }
}

/// Pages that are written here and there, also again and again, are written at once; so is all that
/// a sync is asked for, and all where the tunable says so.
#[test]
fn s_365_only_what_goes_on_waits() {
    let mut it = written(IoMode::Concurrent, 1 << 20);
    let before = it.file.counters().delayed;
    for round in 0..100 {
        it.write((round * 37 % 127) * PAGE, &page(round as u8));
        it.write(11 * PAGE, &page(round as u8));
    }
    assert_eq!((it.file.counters().delayed - before, it.waiting()), (0, 0));
    it.compare_after_death("pages here and there");

    let none = MountOptions { delay_writes_bytes: 0, ..options(IoMode::Concurrent) };
    let plain = options(IoMode::Concurrent);
    let cases = [
        (OpenOptions::create(), plain.clone()),
        (OpenOptions { data_sync: true, ..growing() }, plain.clone()),
        (OpenOptions { direct_flag: true, ..growing() }, plain),
        (growing(), none),
    ];
    for (open, mount) in cases {
        let device = device(32 << 20, 512);
        format(&device, 4096);
        let fs = FileSystem::mount(Arc::clone(&device), None, mount).unwrap();
        let file = fs.open("/f", &open).unwrap();
        (0..2).for_each(|round| {
            for at in 0..32 {
                file.write_at(&page(round), at * PAGE as u64).unwrap();
            }
            file.sync_all().unwrap();
        });
        for at in 0..32 {
            file.write_at(&page(9), at * PAGE as u64).unwrap();
        }
        assert_eq!((file.counters().delayed, fs.info().delayed_bytes), (0, 0), "{open:?}");
    }
}

/// S-20, S-50: what needs the bytes on the device has them, and nothing else of the file is lost.
#[test]
fn s_366_whatever_else_changes_the_file_finds_what_waited() {
    for mode in MODES {
        for other in 0..12 {
            let mut it = written(mode, 150_000);
            for round in 0..5u8 {
                let pages = it.model.len() / PAGE;
                for at in 0..pages {
                    it.write(at * PAGE, &page((usize::from(round) * 10 + at) as u8));
                }
                let waits = it.waiting() > 0;
                assert!(waits, "{mode}, change {other}: the last pages wait");
                change(&mut it, other, round);
                Growing::holds(&it.file, &it.model, &format!("{mode}, change {other}"));
            }
            it.file.sync_all().unwrap();
            it.compare_after_death(&format!("{mode}, change {other}"));
        }
    }
}

/// Another open writes the same sectors: whole ones, or in part, which is held too.
#[test]
fn s_366_a_write_of_another_open_comes_after_what_waits() {
    for mode in MODES {
        for (skip, len, again) in [(0, PAGE, true), (100, 300, true), (100, 300, false)] {
            let mut it = written(mode, 40 * PAGE);
            let other = it.fs.open("/f", &OpenOptions::read_write()).unwrap();
            for at in 0..16 {
                it.write(at * PAGE, &page(50 + at as u8));
            }
            assert!(it.waiting() > 0, "{mode}");
            let at = 15 * PAGE + skip;
            other.write_at(&AlignedBuf::from_slice(&vec![7; len]), at as u64).unwrap();
            it.model[at..at + len].fill(7);
            Growing::holds(&it.file, &it.model, &format!("{mode}: after {len} bytes"));
            if again {
                // The stream goes on over what is held.
                it.write(16 * PAGE, &page(90));
                it.write(15 * PAGE, &page(91));
            }
            Growing::holds(&it.file, &it.model, &format!("{mode}: again, after {len} bytes"));
            it.file.sync_data().unwrap();
            it.compare_after_death(&format!("{mode}: {len} bytes"));
        }
    }
}

/// An odd write that is held grows into sectors that wait.
#[test]
fn s_366_an_odd_write_that_is_held_does_not_grow_over_what_waits() {
    for mode in [IoMode::Direct, IoMode::Concurrent] {
        let mut it = written(mode, 40 * PAGE);
        let other = it.fs.open("/f", &OpenOptions::read_write()).unwrap();
        it.write(15 * PAGE, &page(50));
        let step = 16 * PAGE;
        other.write_at(&[7; 500], step as u64 - 600).unwrap();
        it.model[step - 600..step - 100].fill(7);
        it.write(step, &page(51));
        assert!(it.waiting() > 0, "{mode}: it goes on");
        other.write_at(&[8; 300], step as u64 - 100).unwrap();
        it.model[step - 100..step + 200].fill(8);
        Growing::holds(&it.file, &it.model, &format!("{mode}: held beside what waited"));
        it.file.sync_data().unwrap();
        it.compare_after_death(&mode.to_string());
    }
}

/// S-20, I-DLY-2: threads that write over parts of one file in order, each through its own open, see
/// what they wrote.
#[test]
fn s_366_i_dly_2_threads_that_write_over_one_file_lose_nothing() {
    const PART: u64 = 48;
    for mode in MODES {
        let mut it = written(mode, 6 * PART as usize * PAGE);
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                let fs = &it.fs;
                scope.spawn(move || {
                    let file = fs.open("/f", &growing()).unwrap();
                    for round in 1..4u8 {
                        for at in thread * PART..(thread + 1) * PART {
                            file.write_at(&page(40 * round + thread as u8), at * PAGE as u64)
                                .unwrap();
                            let mut buf = [0; PAGE];
                            file.read_at(&mut buf, at * PAGE as u64).unwrap();
                            assert_eq!(buf, [40 * round + thread as u8; PAGE], "S-20");
                        }
                    }
                });
            }
            let fs = &it.fs;
            scope.spawn(move || (0..5).for_each(|_| fs.sync().unwrap()));
        });
        for thread in 0..6 {
            let part = PART as usize * PAGE;
            it.model[thread * part..(thread + 1) * part].fill(120 + thread as u8);
        }
        it.file.sync_all().unwrap();
        it.compare_after_death(&mode.to_string());
    }
}

#[test]
fn s_367_the_next_sync_tells_what_could_not_be_written_and_all_is_bounded() {
    let hooked = HookedDevice::new(device(64 << 20, 512), Refusing::default());
    let device: Arc<dyn BlockDevice> = Arc::clone(&hooked) as Arc<dyn BlockDevice>;
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    let file = fs.open("/f", &growing()).unwrap();
    for at in 0..512u64 {
        file.write_at(&page(1), at * PAGE as u64).unwrap();
    }
    file.sync_all().unwrap();
    // A step has to be reached before what goes on may wait.
    for at in 0..9 {
        file.write_at(&page(2), at * PAGE as u64).unwrap();
    }
    hooked.0.store(true, Ordering::SeqCst);
    let taken = (9..512u64)
        .take_while(|at| file.write_at(&page(2), at * PAGE as u64).is_ok())
        .inspect(|_| assert!(fs.info().delayed_bytes <= 16 << 20, "S-302"))
        .count();
    assert!(taken >= 100, "up to the end of a piece: {taken}");
    assert!(file.sync_data().is_err());
    let mut model = vec![1; 512 * PAGE];
    model[..(9 + taken) * PAGE].fill(2);
    Growing::holds(&file, &model, "what was refused is not there, what was taken is");
    hooked.0.store(false, Ordering::SeqCst);
    file.sync_data().unwrap();
    assert_eq!(fs.info().delayed_bytes, 0);
    Growing::holds(&file, &model, "it was tried again");
}
