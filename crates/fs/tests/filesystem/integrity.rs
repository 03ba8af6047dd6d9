//! Checksums of file data on a device with one copy: what is given, told, refused, and found.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_block::{AlignedBuf, BlockDevice, MemoryDevice, QueueOptions};
use bedplate_fs::{
    AllocateMode, CheckpointOptions, CloneSource, ErrorKind, File, FileSystem, FindingKind,
    InodeNo, IoMode, OpenOptions, Queue,
};

use crate::common::{SIZE, assert_sound};
use crate::support::{Random, format, mount_as};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 24;

fn volume() -> (Arc<dyn BlockDevice>, FileSystem) {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(SIZE);
    format(&device, BLOCK as u32);
    let fs = mount_as(&device, IoMode::Concurrent);
    fs.set_integrity(InodeNo::ROOT, true).unwrap();
    (device, fs)
}

fn content(seed: u64, len: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(len as usize);
    Random::new(seed).fill(&mut buf);
    buf
}

fn written(fs: &FileSystem, path: &str, seed: u64) -> File {
    let file = fs.open(path, &OpenOptions::create()).unwrap();
    file.write_at(&content(seed, BLOCKS * BLOCK), 0).unwrap();
    file.sync_all().unwrap();
    file
}

/// Where each block of a file lies on the volume, in bytes.
fn places(file: &File) -> Vec<u64> {
    let extents = file.extents().unwrap();
    extents
        .iter()
        .flat_map(|extent| (0..extent.len / BLOCK).map(|i| extent.volume_offset + i * BLOCK))
        .collect()
}

/// Changes one bit of the device; again takes it back.
fn turn(device: &Arc<dyn BlockDevice>, at: u64) {
    let mut block = AlignedBuf::zeroed(BLOCK as usize);
    let start = at - at % BLOCK;
    device.read_at(&mut block, start).unwrap();
    block[(at - start) as usize] ^= 16;
    device.write_at(&block, start).unwrap();
}

/// Appends to `/f`; returns where.
fn appended(fs: &FileSystem, bytes: &[u8]) -> u64 {
    let options = OpenOptions { append: true, ..OpenOptions::read_write() };
    fs.open("/f", &options).unwrap().write_at(bytes, 0).unwrap()
}

/// Reads with a fresh open; an aligned buffer.
fn read(fs: &FileSystem, path: &str, offset: u64, len: u64) -> bedplate_fs::Result<AlignedBuf> {
    let file = fs.open(path, &OpenOptions::read_only())?;
    let mut buf = AlignedBuf::zeroed(len as usize);
    file.read_at(&mut buf, offset)?;
    Ok(buf)
}

/// S-280: set, inherited, told, taken away; what was there before has no checksums, and what got
/// them keeps them.
#[test]
fn s_280_checksums_are_set_inherited_and_taken_away() {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(SIZE);
    format(&device, BLOCK as u32);
    let fs = mount_as(&device, IoMode::Concurrent);
    let file = written(&fs, "/before", 1);
    assert!(!fs.integrity(file.ino()).unwrap());
    fs.set_integrity(file.ino(), true).unwrap();
    assert_eq!(
        (fs.integrity(file.ino()).unwrap(), fs.summed_bytes(file.ino()).unwrap()),
        (true, 0)
    );
    file.write_at(&content(2, 2 * BLOCK), 3 * BLOCK).unwrap();
    file.write_at(&[7; 10], 8 * BLOCK + 5).unwrap();
    assert_eq!(fs.summed_bytes(file.ino()).unwrap(), 3 * BLOCK);
    let dir = fs.create_dir_all("/d/e").unwrap();
    let top = fs.resolve("/d").unwrap();
    fs.set_integrity(top.ino, true).unwrap();
    assert!(!fs.integrity(dir.ino).unwrap(), "what was there stays as it was");
    let inherits = written(&fs, "/d/f", 3);
    assert_eq!(fs.summed_bytes(inherits.ino()).unwrap(), BLOCKS * BLOCK);
    fs.set_integrity(inherits.ino(), false).unwrap();
    inherits.write_at(&content(4, BLOCK), 0).unwrap();
    inherits.write_at(&[9; 3], 2 * BLOCK + 9).unwrap();
    assert_eq!(fs.summed_bytes(inherits.ino()).unwrap(), (BLOCKS - 2) * BLOCK);
    inherits.set_size(5 * BLOCK + 1).unwrap();
    inherits.set_size(9 * BLOCK).unwrap();
    let mut tail = AlignedBuf::zeroed(2 * BLOCK as usize);
    inherits.read_at(&mut tail, 5 * BLOCK).unwrap();
    assert!(tail[0] == content(3, BLOCKS * BLOCK)[5 * BLOCK as usize]);
    assert!(tail[1..].iter().all(|byte| *byte == 0), "S-10: zeros follow the old end");
    let link = fs.symlink(InodeNo::ROOT, b"l", b"f", bedplate_fs::NewFile::default());
    let refused = fs.set_integrity(link.unwrap().ino, true).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Invalid);
    drop((file, inherits));
    fs.unmount().unwrap();
    assert_sound(&device);
    let fs = mount_as(&device, IoMode::Concurrent);
    let ino = fs.resolve("/before").unwrap().ino;
    assert_eq!((fs.integrity(ino).unwrap(), fs.summed_bytes(ino).unwrap()), (true, 3 * BLOCK));
}

/// S-281: a bit that turned, in any block, is never read: not by whole blocks, parts, a cache, a
/// queue, a checkpoint, a clone or a copy-on-write, whether memory or the tree has the checksums.
#[test]
fn s_281_what_is_not_what_was_written_is_not_read() {
    let (device, fs) = volume();
    let places = places(&written(&fs, "/f", 5));
    fs.create_checkpoint("c", &CheckpointOptions::default()).unwrap();
    fs.clone_files(&CloneSource::Present("/f".into()), "/clone").unwrap();
    each_bit_is_seen(&device, &fs, &places, 0);
    assert_eq!(fs.info().integrity.tree_lookups, 0, "{:?}", fs.info().integrity);
    fs.unmount().unwrap();
    let fs = mount_as(&device, IoMode::Concurrent);
    each_bit_is_seen(&device, &fs, &places, 1);
    let counts = fs.info().integrity;
    assert!(counts.lost_blocks > 0 && counts.healed_blocks == 0, "{counts:?}");
    assert!(counts.tree_lookups > 0 && counts.verified_blocks > counts.wrong_blocks, "{counts:?}");
}

fn each_bit_is_seen(device: &Arc<dyn BlockDevice>, fs: &FileSystem, places: &[u64], round: u64) {
    let expected = content(5, BLOCKS * BLOCK);
    for (number, place) in places.iter().enumerate() {
        let at = number as u64 * BLOCK;
        turn(device, place + (at + round) % 4001);
        for path in ["/f", "/.checkpoints/c/f", "/clone"] {
            for (from, len) in [(at, BLOCK), (0, BLOCKS * BLOCK), (at + 512, 512), (at + 1, 9)] {
                let error = read(fs, path, from, len).unwrap_err();
                assert_eq!(error.kind, ErrorKind::Io, "round {round}, {path}: {error}");
                let told = [format!("at byte {at}"), format!("block {} ", place / BLOCK)];
                assert!(told.iter().all(|told| error.message.contains(told)), "{error}");
            }
        }
        let other = if number == 0 { BLOCK } else { 0 };
        let right = read(fs, "/f", other, BLOCK).unwrap();
        assert!(right[..] == expected[other as usize..(other + BLOCK) as usize]);
        let cached = OpenOptions { mode: Some(IoMode::Cached), ..OpenOptions::read_only() };
        let cached = fs.open("/clone", &cached).unwrap();
        assert!(cached.read_at(&mut [0; 100], at + 7).is_err(), "through the cache");
        let file = Arc::new(fs.open("/f", &OpenOptions::read_write()).unwrap());
        let part = file.write_at(&[1; 5], at + 2).unwrap_err();
        assert_eq!(part.kind, ErrorKind::Io, "what a write keeps is compared: {part}");
        let mut queue = Queue::new(fs, &QueueOptions::default()).unwrap();
        queue.read(&file, AlignedBuf::zeroed(BLOCK as usize), at, 1).unwrap();
        let mut done = Vec::new();
        queue.complete(1, &mut done).unwrap();
        assert!(done[0].result.is_err(), "by a queue");
        turn(device, place + (at + round) % 4001);
    }
    let all = read(fs, "/f", 0, BLOCKS * BLOCK).unwrap();
    assert!(all[..] == expected[..], "round {round}");
}

/// S-281, S-285: blocks in each other's place, and writes that never arrived, are seen; a check of
/// the data names each, in checkpoints too, and a plain check reads none.
#[test]
fn s_285_a_check_of_the_data_names_every_wrong_block() {
    let (device, fs) = volume();
    let file = written(&fs, "/f", 6);
    fs.create_checkpoint("c", &CheckpointOptions::default()).unwrap();
    let past = places(&file);
    file.write_at(&content(7, 2 * BLOCK), 4 * BLOCK).unwrap();
    let now = places(&file);
    assert!(now[4] != past[4] && now[3] == past[3]);
    let ino = file.ino();
    drop(file);
    fs.unmount().unwrap();
    let report = FileSystem::check_data(&device, None).unwrap();
    assert_eq!((report.findings.len(), report.summed_blocks), (0, BLOCKS + 2), "each once");
    let mut one = AlignedBuf::zeroed(BLOCK as usize);
    let mut two = AlignedBuf::zeroed(BLOCK as usize);
    device.read_at(&mut one, past[4]).unwrap();
    device.read_at(&mut two, now[9]).unwrap();
    device.write_at(&two, past[4]).unwrap();
    device.write_at(&one, now[9]).unwrap();
    device.write_at(&AlignedBuf::zeroed(BLOCK as usize), now[5]).unwrap();
    assert_sound(&device);
    let report = FileSystem::check_data(&device, None).unwrap();
    assert_eq!((report.findings.len(), report.wrong_blocks), (3, 3), "{report:?}");
    for (number, place) in [(4, past[4]), (9, now[9]), (5, now[5])] {
        let told = format!("inode {} at byte {}: block {} ", ino.0, number * BLOCK, place / BLOCK);
        let finding = report.findings.iter().find(|finding| finding.message.starts_with(&told));
        assert!(finding.is_some_and(|it| it.kind == FindingKind::Data && !it.repairable), "{told}");
    }
    let fs = mount_as(&device, IoMode::Direct);
    assert!(read(&fs, "/f", 4 * BLOCK, BLOCK).unwrap()[..] == content(7, 2 * BLOCK)[..4096]);
    for number in [5, 9] {
        assert_eq!(read(&fs, "/f", number * BLOCK, BLOCK).unwrap_err().kind, ErrorKind::Io);
    }
    assert!(read(&fs, "/.checkpoints/c/f", 4 * BLOCK, BLOCK).is_err());
    // Written anew, or given up, it is well again.
    let file = fs.open("/f", &OpenOptions::read_write()).unwrap();
    file.write_at(&content(8, BLOCK), 9 * BLOCK).unwrap();
    file.allocate(bedplate_fs::AllocateMode::PunchHole, 5 * BLOCK, BLOCK).unwrap();
    assert!(read(&fs, "/f", 0, BLOCKS * BLOCK).is_ok());
}

/// S-282, I-SUM-2: no write, whole or in part, and no move of the file's end changes a block with a checksum
/// where it lies; not even once the file gives none any more.
#[test]
fn s_282_blocks_with_checksums_are_never_written_in_place() {
    for (on, mode) in [(true, IoMode::Concurrent), (true, IoMode::Cached), (false, IoMode::Direct)]
    {
        let (device, fs) = volume();
        let path = OpenOptions { mode: Some(mode), ..OpenOptions::create() };
        drop(written(&fs, "/f", 9));
        let file = fs.open("/f", &path).unwrap();
        fs.set_integrity(file.ino(), on).unwrap();
        let places = places(&file);
        let block = |place: u64| {
            let mut bytes = AlignedBuf::zeroed(BLOCK as usize);
            device.read_at(&mut bytes, place).unwrap();
            bytes.to_vec()
        };
        let before: Vec<_> = places.iter().map(|place| block(*place)).collect();
        // Keeps what is freed from being used again.
        fs.create_checkpoint("c", &CheckpointOptions::default()).unwrap();
        file.write_at(&content(1, BLOCK), 0).unwrap();
        file.write_at(&[1; 700], BLOCK + 100).unwrap();
        file.write_at(&content(2, 512), 2 * BLOCK + 512).unwrap();
        for mode in [
            bedplate_fs::AllocateMode::PunchHole,
            bedplate_fs::AllocateMode::ZeroRange { keep_size: true },
        ] {
            file.allocate(mode, 3 * BLOCK + 10, 2 * BLOCK).unwrap();
        }
        file.set_size(20 * BLOCK + 17).unwrap();
        file.set_size(21 * BLOCK + 17).unwrap();
        appended(&fs, &[5; 9000]);
        file.sync_all().unwrap();
        for (place, was) in places.iter().zip(&before) {
            assert!(block(*place) == *was, "{mode}, {on}: byte {place} of the volume");
        }
        let old = read(&fs, "/.checkpoints/c/f", 0, BLOCKS * BLOCK).unwrap();
        assert!(old[..] == content(9, BLOCKS * BLOCK)[..]);
    }
}

/// S-280: a write of more blocks than one record has checksums for is several records.
#[test]
fn s_280_a_large_write_has_all_its_checksums() {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(SIZE);
    format(&device, 512);
    let fs = mount_as(&device, IoMode::Concurrent);
    fs.set_integrity(InodeNo::ROOT, true).unwrap();
    let file = fs.open("/f", &OpenOptions::create()).unwrap();
    let all = content(3, (10 << 20) + 512);
    file.write_at(&all, 512).unwrap();
    file.write_at(&all[..(9 << 20) + 13], 100).unwrap();
    assert_eq!(appended(&fs, &all[..5 << 20]), (10 << 20) + 1024);
    assert_eq!(fs.summed_bytes(file.ino()).unwrap(), (15 << 20) + 1024);
    let found = read(&fs, "/f", 0, (15 << 20) + 1024).unwrap();
    assert!(found[..100] == [0; 100] && found[100..(9 << 20) + 113] == all[..(9 << 20) + 13]);
    assert!(found[(10 << 20) + 1024..] == all[..5 << 20]);
    drop(file);
    fs.unmount().unwrap();
    let report = FileSystem::check_data(&device, None).unwrap();
    assert!(report.findings.is_empty() && report.summed_blocks == (15 << 11) + 2, "{report:?}");
}

/// S-281: a block that a file shares with a clone is copied before a part of it is zeroed, and in a
/// file with integrity the copy has a checksum: it is zeroed all the same, by a hole, a range of
/// zeros, a shorter end and growth over what lay behind the end.
#[test]
fn s_281_a_shared_block_is_zeroed_in_part_when_its_copy_has_a_checksum() {
    let (device, fs) = volume();
    fs.set_integrity(InodeNo::ROOT, false).unwrap();
    type Zero = fn(&File);
    let ways: [(&str, Zero); 4] = [
        ("/hole", |file| file.allocate(AllocateMode::PunchHole, 100, 2 * BLOCK).unwrap()),
        ("/zeros", |file| {
            file.allocate(AllocateMode::ZeroRange { keep_size: true }, 100, 2 * BLOCK).unwrap();
        }),
        ("/end", |file| {
            file.set_size(100).unwrap();
            file.set_size(2 * BLOCK + 100).unwrap();
            file.write_at(&content(7, BLOCKS * BLOCK)[2 * BLOCK as usize + 100..], 2 * BLOCK + 100)
                .unwrap();
        }),
        ("/growth", |file| {
            file.write_at(&content(7, BLOCKS * BLOCK)[2 * BLOCK as usize + 100..], 2 * BLOCK + 100)
                .unwrap();
        }),
    ];
    for (path, zero) in ways {
        let file = written(&fs, path, 7);
        if path == "/growth" {
            // What lay behind the end is still on the device.
            file.set_size(100).unwrap();
        }
        let clone = format!("{path}.clone");
        fs.clone_files(&CloneSource::Present(path.into()), &clone).unwrap();
        fs.set_integrity(file.ino(), true).unwrap();
        zero(&file);
        let mut expected = content(7, BLOCKS * BLOCK);
        expected[100..2 * BLOCK as usize + 100].fill(0);
        assert!(read(&fs, path, 0, BLOCKS * BLOCK).unwrap()[..] == expected[..], "{path}");
    }
    fs.unmount().unwrap();
    let report = FileSystem::check_data(&device, None).unwrap();
    assert!(report.findings.is_empty(), "{report:?}");
}

/// S-282: what is moved together, written before the file had checksums or since, has them after.
#[test]
fn s_282_what_is_moved_together_is_compared_and_has_checksums() {
    let (device, fs) = volume();
    fs.set_integrity(InodeNo::ROOT, false).unwrap();
    let (one, two) = (OpenOptions::create(), OpenOptions::create());
    let (file, other) = (fs.open("/f", &one).unwrap(), fs.open("/g", &two).unwrap());
    for at in (0..BLOCKS * BLOCK).step_by(BLOCK as usize) {
        if at == 8 * BLOCK {
            fs.set_integrity(file.ino(), true).unwrap();
        }
        file.write_at(&content(at, BLOCK), at).unwrap();
        other.write_at(&content(1, BLOCK), at).unwrap();
    }
    assert_eq!(fs.summed_bytes(file.ino()).unwrap(), (BLOCKS - 8) * BLOCK);
    let place = places(&file)[12];
    turn(&device, place);
    let wrong = fs.defragment(file.ino(), 0, false).unwrap_err();
    assert_eq!(wrong.kind, ErrorKind::Io, "nothing wrong is copied, and given a checksum");
    turn(&device, place);
    let mut from = Some(0);
    while let Some(at) = from {
        from = fs.defragment(file.ino(), at, false).unwrap().next;
    }
    assert_eq!(fs.summed_bytes(file.ino()).unwrap(), BLOCKS * BLOCK);
    for at in (0..BLOCKS * BLOCK).step_by(BLOCK as usize) {
        assert!(read(&fs, "/f", at, BLOCK).unwrap()[..] == content(at, BLOCK)[..]);
    }
}

/// S-280, S-281, I-SUM-1: the setting comes and goes in the midst of writes. A block that was filled in part
/// by a write that began without it once got a checksum of that part.
#[test]
fn s_280_the_setting_changes_in_the_midst_of_writes() {
    let (device, fs) = volume();
    let file = fs.open("/f", &OpenOptions::create()).unwrap();
    let (ino, mut model) = (file.ino(), vec![0; 40_000_000]);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                if ended.load(Ordering::Relaxed) {
                    break;
                }
                fs.set_integrity(ino, round % 2 == 0).unwrap();
            }
        });
        let mut random = Random::new(3);
        let work = std::panic::AssertUnwindSafe(|| {
            for round in 0..8000 {
                // Mostly in blocks that were holes.
                let at = round * 4500 + random.below(3000) as usize;
                let len = 1 + random.below(2500) as usize;
                model[at..at + len].fill(round as u8);
                file.write_at(&model[at..at + len], at as u64).unwrap();
            }
        });
        let worked = std::panic::catch_unwind(work);
        ended.store(true, Ordering::Relaxed);
        worked.unwrap();
    });
    model.truncate(file.size() as usize);
    let mut found = vec![1; model.len()];
    file.read_at(&mut found, 0).unwrap();
    assert!(found == model);
    drop(file);
    fs.unmount().unwrap();
    let report = FileSystem::check_data(&device, None).unwrap();
    assert!(report.findings.is_empty(), "{report:?}");
}

/// S-284: what a scrub asks: whether a block is what was written is known as long as the extent has
/// it with a checksum, and not once it was given up, when the checksum that is still there is of
/// something that no file has.
#[test]
fn s_284_what_was_written_is_known_of_blocks_in_use_alone() {
    let (_device, fs) = volume();
    let file = written(&fs, "/f", 11);
    let all = content(11, BLOCKS * BLOCK);
    let (ino, place) = (file.ino(), places(&file)[3]);
    let says = |place: u64, block: u64| {
        let bytes = &all[(block * BLOCK) as usize..((block + 1) * BLOCK) as usize];
        fs.is_as_written(ino, (0, place), bytes).unwrap()
    };
    assert_eq!(
        (says(place, 3), says(place, 4), says(place + 512, 3)),
        (Some(true), Some(false), None)
    );
    assert_eq!(fs.is_as_written(ino, (0, place), &all[..512]).unwrap(), None, "a part of a block");
    file.write_at(&content(12, BLOCK), 3 * BLOCK).unwrap();
    assert_eq!(says(place, 3), None, "the file has another block there");
    assert_eq!(says(places(&file)[2], 2), Some(true));
    fs.set_integrity(ino, false).unwrap();
    file.write_at(&content(13, BLOCKS * BLOCK), 0).unwrap();
    assert_eq!((says(place, 3), says(places(&file)[0], 0)), (None, None));
}

/// S-281, I-SUM-4: a block that is used again is compared with the checksum that it has now, though
/// the one before was remembered, and while others read.
#[test]
fn s_281_a_block_that_is_used_again_has_its_new_checksum() {
    let rounds = 600;
    let (_device, fs) = volume();
    let file = written(&fs, "/f", 20);
    // What is free is soon used again.
    let filler = fs.open("/filler", &OpenOptions::create()).unwrap();
    let len = fs.statfs().free_bytes - (1 << 20) - 80 * BLOCK;
    filler.allocate(AllocateMode::Preallocate { keep_size: false }, 0, len).unwrap();
    let mut used = std::collections::HashSet::new();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut buf = AlignedBuf::zeroed((BLOCKS * BLOCK) as usize);
        let (file, ended) = (&file, &ended);
        let reader = scope.spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                file.read_at(&mut buf, 0).unwrap();
            }
        });
        let mut came_round = 0;
        let work = std::panic::AssertUnwindSafe(|| {
            for round in 0..rounds {
                let at = round % BLOCKS * BLOCK;
                let place = places(file)[(round % BLOCKS) as usize];
                came_round += u64::from(!used.insert(place));
                let part = content(100 + round, BLOCK);
                file.write_at(&part, at).unwrap();
                // What was freed may be used again.
                if round % 7 == 0 { fs.sync() } else { file.sync_data() }.unwrap();
                let mut found = AlignedBuf::zeroed(BLOCK as usize);
                file.read_at(&mut found, at).unwrap();
                assert!(found[..] == part[..], "round {round}");
            }
        });
        let worked = std::panic::catch_unwind(work);
        ended.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        worked.unwrap();
        assert!(came_round > rounds / 2, "{came_round} blocks of {rounds} were used again");
    });
}

/// S-281: of many reads that a queue has in flight, those that bring a wrong block fail, each with
/// its byte, and the others bring what was written; also in parts, and where a file has checksums
/// of some blocks only.
#[test]
fn s_281_a_queue_compares_what_its_reads_bring() {
    let (device, fs) = volume();
    let file = Arc::new(written(&fs, "/f", 21));
    fs.set_integrity(file.ino(), false).unwrap();
    file.write_at(&content(22, BLOCK), 4 * BLOCK).unwrap();
    let mut expected = content(21, BLOCKS * BLOCK);
    expected[4 * BLOCK as usize..5 * BLOCK as usize].copy_from_slice(&content(22, BLOCK));
    let places = places(&file);
    let wrong = [2, 9, 10, 23];
    wrong.iter().for_each(|number| turn(&device, places[*number as usize] + 77 + number));
    let mut queue = Queue::new(&fs, &QueueOptions { depth_max: 64, ..Default::default() }).unwrap();
    let lens = [BLOCK, 2 * BLOCK, 3 * BLOCK, 512];
    for round in 0..40 {
        let mut reads = Vec::new();
        for token in 0..64 {
            let len = lens[(token % 4) as usize];
            let at = (round * 7 + token * 5) % (BLOCKS - 2) * BLOCK;
            queue.read(&file, AlignedBuf::zeroed(len as usize), at, token).unwrap();
            reads.push((at, len));
        }
        let mut done = Vec::new();
        while queue.in_flight() > 0 {
            queue.complete(1, &mut done).unwrap();
        }
        assert_eq!(done.len(), reads.len());
        for completion in done {
            let (at, len) = reads[completion.token as usize];
            let first_wrong = (at / BLOCK..(at + len).div_ceil(BLOCK)).find(|n| wrong.contains(n));
            match (completion.result, first_wrong) {
                (Err(error), Some(number)) => {
                    let told = format!("at byte {}: block ", number * BLOCK);
                    assert!(error.message.contains(&told), "{error}");
                }
                (Ok(bytes), None) => {
                    let bytes = &completion.buf.unwrap()[..bytes];
                    assert!(*bytes == expected[at as usize..(at + len) as usize]);
                }
                (result, wrong) => panic!("{len} bytes at {at}, {wrong:?}: {result:?}"),
            }
        }
    }
    // With nothing in flight any more, all locks are free.
    file.write_at(&content(23, BLOCKS * BLOCK), 0).unwrap();
}
