//! Changes of files on a full volume: checked for room as a whole before any checkpoint goes for
//! them.

use std::sync::Arc;

use bedplate_block::BlockDevice;
use bedplate_fs::{
    AllocateMode, CheckpointOptions, ErrorKind, File, FileSystem, IoMode, OpenOptions, SpacePolicy,
};

use crate::common::assert_sound;
use crate::keeping::{BLOCK, MIB, aligned, automatic, full, names, put, read};
use crate::support::{Random, device, format, mount_as};

/// Takes the last free blocks but `left`, into a file, deleting nothing for them.
fn fill_up(fs: &FileSystem, left: u64) {
    fs.set_space_policy(SpacePolicy::Refuse).unwrap();
    fs.sync().unwrap();
    let filler = fs.open("/filler", &OpenOptions::create()).unwrap();
    let mut at = filler.size();
    for blocks in (0..14).rev().map(|power| 1 << power) {
        while filler
            .allocate(AllocateMode::Preallocate { keep_size: false }, at, blocks * BLOCK)
            .is_ok()
        {
            at += blocks * BLOCK;
        }
    }
    filler.set_size(filler.size() - left * BLOCK).unwrap();
    filler.sync_all().unwrap();
}

fn open(fs: &FileSystem, path: &str, mode: IoMode) -> File {
    fs.open(path, &OpenOptions { mode: Some(mode), ..OpenOptions::create() }).unwrap()
}

/// S-82: a write whose edges find blocks, and whose middle would not even if all checkpoints went,
/// deletes none.
#[test]
fn s_82_a_write_is_checked_for_room_as_a_whole() {
    for mode in [IoMode::Cached, IoMode::Direct, IoMode::Concurrent, IoMode::ConcurrentCache] {
        let device = device(64 << 20, 512);
        let fs = full(&device, mode, SpacePolicy::Refuse);
        for left in [0, 1, 300] {
            fill_up(&fs, left);
            fs.set_space_policy(SpacePolicy::DeleteOldest).unwrap();
            let file = open(&fs, "/table", mode);
            for offset in [100, 4096] {
                let error = file.write_at(&aligned(30 * MIB, 77), offset).unwrap_err();
                assert_eq!(error.kind, ErrorKind::NoSpace, "{mode}, {left} blocks left: {error}");
                assert_eq!(
                    names(&fs).len(),
                    5,
                    "{mode}, {left} blocks left, at {offset}: {:?} are left",
                    names(&fs)
                );
            }
            for (kind, offset) in [
                (AllocateMode::ZeroRange { keep_size: true }, 100),
                (AllocateMode::Preallocate { keep_size: false }, 4096),
            ] {
                file.allocate(kind, offset, 40 << 20).unwrap_err();
                assert_eq!(names(&fs).len(), 5, "{mode}, {left} blocks left: {kind:?}");
            }
        }
        assert!(
            read(&fs, "/table") == vec![12; 8 * MIB],
            "{mode}: what is refused changes nothing"
        );
        fs.unmount().unwrap();
        assert_sound(&device);
    }
}

/// S-82: whatever is changed in whatever way on a full volume either is carried out, or is refused,
/// leaves what lies around it as it was, and deletes no checkpoint. What succeeds deletes the
/// oldest only.
#[test]
fn s_82_what_is_refused_has_deleted_nothing() {
    const MODES: [IoMode; 4] =
        [IoMode::Cached, IoMode::Direct, IoMode::Concurrent, IoMode::ConcurrentCache];
    let (mut refused, mut deleting) = (0, 0);
    for seed in 0..4 {
        let device = device(64 << 20, 512);
        let fs = full(&device, MODES[seed as usize], SpacePolicy::Refuse);
        let mut random = Random::new(seed);
        let mut model = read(&fs, "/table");
        for round in 0..40u8 {
            fill_up(&fs, 200);
            if random.chance(2) {
                fs.create_checkpoint(format!("more{round}"), &automatic()).unwrap();
            }
            fill_up(&fs, random.below(4) * random.below(100));
            fs.set_space_policy(SpacePolicy::DeleteOldest).unwrap();
            let before = names(&fs);
            let mode = MODES[random.below(4) as usize];
            let magnitude = random.below(22);
            let (at, len) = (random.below(8 << 20), 1 + random.below(1 << magnitude));
            let (at, len) = if random.chance(3) {
                (at / BLOCK * BLOCK, len.next_multiple_of(BLOCK))
            } else {
                (at, len)
            };
            let range = at as usize..(at + len) as usize;
            let file = open(&fs, "/table", mode);
            let what = random.below(6);
            let done = match what {
                0 => file.allocate(AllocateMode::PunchHole, at, len),
                1 => file.allocate(AllocateMode::ZeroRange { keep_size: true }, at, len),
                2 => file.set_size(at),
                _ => file.write_at(&aligned(range.len(), round), at).map(drop),
            };
            drop(file);
            let there = names(&fs);
            let now = read(&fs, "/table");
            match done {
                Ok(()) => {
                    match what {
                        0 | 1 => {
                            (range.start..range.end.min(model.len())).for_each(|at| model[at] = 0);
                        }
                        2 => model.resize(at as usize, 0),
                        _ => {
                            model.resize(model.len().max(range.end), 0);
                            model[range].fill(round);
                        }
                    }
                    let gone: Vec<_> = before.iter().filter(|name| !there.contains(name)).collect();
                    let oldest: Vec<_> = before
                        .iter()
                        .filter(|name| !["manual", "kept"].contains(&name.as_str()))
                        .take(gone.len())
                        .collect();
                    assert_eq!(gone, oldest, "seed {seed}, round {round}");
                    deleting += u32::from(!gone.is_empty());
                    assert!(
                        now == model,
                        "seed {seed}, round {round}: {what} of {len} bytes at {at} as {mode}"
                    );
                }
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::NoSpace, "{error}");
                    assert_eq!(
                        there, before,
                        "seed {seed}, round {round}: {what} of {len} bytes at {at} as {mode}: \
                         {error}"
                    );
                    let outside = |bytes: &[u8], at: usize| {
                        bytes.get(at).copied().filter(|_| !range.contains(&at)).unwrap_or(0)
                    };
                    assert!(
                        (0..model.len().max(now.len()))
                            .all(|at| outside(&now, at) == outside(&model, at)),
                        "seed {seed}, round {round}"
                    );
                    model = now;
                    refused += 1;
                }
            }
        }
        fs.unmount().unwrap();
        assert_sound(&device);
    }
    println!("{refused} changes were refused, {deleting} deleted checkpoints");
    assert!(refused > 0 && deleting > 0);
}

/// S-82, S-32: an append that waits for room begins only once it has it. Its first bytes, for which
/// there was room, for instance in a page that was dirty already, were appended twice.
#[test]
fn s_82_an_append_that_needs_room_is_appended_once() {
    for mode in [IoMode::Cached, IoMode::Direct, IoMode::Concurrent, IoMode::ConcurrentCache] {
        for (first, left, len) in [(4000, 1, 9000), (100, 300, 3 * MIB)] {
            let device = device(64 << 20, 512);
            let fs = full(&device, mode, SpacePolicy::Refuse);
            fill_up(&fs, left);
            fs.set_space_policy(SpacePolicy::DeleteOldest).unwrap();
            let log = fs
                .open(
                    "/log",
                    &OpenOptions { mode: Some(mode), append: true, ..OpenOptions::create() },
                )
                .unwrap();
            log.write_at(&vec![1; first], 0).unwrap();
            assert_eq!(names(&fs).len(), 5, "there was room");
            assert_eq!(log.write_at(&vec![2; len], 0).unwrap(), first as u64, "{mode}");
            assert!(
                read(&fs, "/log") == [vec![1; first], vec![2; len]].concat(),
                "{mode}: {len} bytes after {first}: the file has {}",
                log.size()
            );
            assert_eq!(names(&fs)[2..], ["auto1", "auto2"], "{mode}");
            drop(log);
            fs.unmount().unwrap();
            assert_sound(&device);
        }
    }
}

/// S-82: a checkpoint that has no block of its own stands in the way as well: without it the
/// present is written in place.
#[test]
fn s_82_a_checkpoint_goes_for_what_is_written_in_place_without_it() {
    for mode in [IoMode::Cached, IoMode::Direct, IoMode::Concurrent, IoMode::ConcurrentCache] {
        let device: Arc<dyn BlockDevice> = device(64 << 20, 512);
        format(&device, 4096);
        let fs = mount_as(&device, mode);
        put(&fs, "/table", 0, 4 * MIB, 1, mode).unwrap();
        fs.create_checkpoint("first", &automatic()).unwrap();
        fs.create_checkpoint("second", &automatic()).unwrap();
        fill_up(&fs, 0);
        fs.set_space_policy(SpacePolicy::DeleteOldest).unwrap();
        open(&fs, "/table", mode).write_at(&aligned(MIB, 2), 100).unwrap();
        assert_eq!(names(&fs), Vec::<String>::new(), "{mode}: both held the file as it was");
        assert!(read(&fs, "/table")[100..100 + MIB] == vec![2; MIB], "{mode}");
        // One that a person made has no other way out than that he deletes it.
        fill_up(&fs, 8);
        fs.create_checkpoint("manual", &CheckpointOptions::default()).unwrap();
        fs.create_checkpoint("third", &automatic()).unwrap();
        fill_up(&fs, 0);
        fs.set_space_policy(SpacePolicy::DeleteOldest).unwrap();
        let error = open(&fs, "/table", mode).write_at(&aligned(MIB, 3), 100).unwrap_err();
        assert_eq!((error.kind, names(&fs).len()), (ErrorKind::NoSpace, 2), "{mode}");
        fs.unmount().unwrap();
        assert_sound(&device);
    }
}

/// S-34: a write behind the end of a file whose last block a checkpoint needs takes two blocks, one
/// of them for that block. A cached one that had only one promised was acknowledged, and could not
/// be written.
#[test]
fn s_34_a_cached_write_behind_a_shared_end_is_promised_the_copy_of_that_end() {
    for (left, fits) in [(0, false), (1, false), (2, true)] {
        let device: Arc<dyn BlockDevice> = device(64 << 20, 512);
        format(&device, 4096);
        let fs = mount_as(&device, IoMode::Cached);
        put(&fs, "/log", 0, 100, 1, IoMode::Cached).unwrap();
        fs.create_checkpoint("manual", &CheckpointOptions::default()).unwrap();
        fill_up(&fs, left);
        let file = open(&fs, "/log", IoMode::Cached);
        let written = file.write_at(&[2; 100], 8192);
        assert_eq!(
            written.map_err(|error| error.kind).err(),
            (!fits).then_some(ErrorKind::NoSpace),
            "{left} blocks left"
        );
        file.sync_all().unwrap();
        drop(file);
        assert_eq!(read(&fs, "/log").len(), if fits { 8292 } else { 100 });
        fs.unmount().unwrap();
        assert_sound(&device);
    }
}
