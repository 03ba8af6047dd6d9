//! Discovered direct I/O: what passes the library cache because it is large, and what write-behind
//! of one file and the sizes of pieces come to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_block::{
    AlignedBuf, BlockDevice, Fault, FaultRule, SimulatedDevice, Trigger, WriteFault,
};
use bedplate_fs::{
    AllocateMode, CheckpointOptions, ErrorKind, File, FileSystem, IoMode, MountOptions,
    OpenOptions, Tunable, TuneOptions,
};

use crate::support::{Random, Skewed, device, format, mount_as, options};

const KIB: usize = 1024;
const LARGE: usize = 64 * KIB;

fn large(mode: IoMode) -> MountOptions {
    MountOptions { direct_above_bytes: LARGE as u64, cache_bytes: 1 << 20, ..options(mode) }
}

fn volume(mount: MountOptions) -> FileSystem {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    FileSystem::mount(device, None, mount).unwrap()
}

fn open(fs: &FileSystem, mode: IoMode) -> File {
    fs.open("/f", &OpenOptions { mode: Some(mode), ..OpenOptions::create() }).unwrap()
}

fn aligned(bytes: &[u8]) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(bytes.len());
    buf.copy_from_slice(bytes);
    buf
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 512 * 31 + at % 251 + seed) as u8).collect()
}

fn read(file: &File, offset: usize, len: usize) -> Vec<u8> {
    let mut buf = AlignedBuf::zeroed(len);
    let len = file.read_at(&mut buf, offset as u64).unwrap();
    buf[..len].to_vec()
}

fn tune(fs: &FileSystem, bytes: u64) {
    let changes = vec![(Tunable::DirectAbove, Some(bytes))];
    fs.tune(&TuneOptions { changes, live_only: true }).unwrap();
}

/// S-519: large reads leave the cache as it is, of which a scan would evict every page.
#[test]
fn s_519_large_reads_change_no_page_of_the_cache() {
    for mode in [IoMode::Cached, IoMode::ConcurrentCache] {
        let fs = volume(large(mode));
        let file = open(&fs, mode);
        let content = pattern(8 << 20, 0);
        file.write_at(&aligned(&content), 0).unwrap();
        file.sync_data().unwrap();
        // Hot pages, from a buffer that is not as large.
        (0..8).for_each(|page| assert_eq!(read(&file, page * 8192, 4096).len(), 4096));
        let (cache, counters) = (fs.info().cache, file.counters());
        assert!(cache.resident_bytes >= 8 * 4096, "{mode:?}: {cache:?}");
        for (step, expected) in content.chunks(LARGE).enumerate() {
            assert!(read(&file, step * LARGE, LARGE) == expected, "{mode:?}: {step}");
        }
        assert_eq!(fs.info().cache, cache, "{mode:?}: S-519");
        let now = file.counters().since(&counters);
        assert_eq!((now.large, now.reads, now.direct), (128, 128, 128), "{mode:?}");
        assert_eq!((now.cache_hits, now.cache_misses, now.read_bytes), (0, 0, 8 << 20));
        (0..8).for_each(|page| assert_eq!(read(&file, page * 8192, 4096).len(), 4096));
        let now = file.counters().since(&counters);
        assert_eq!((now.cache_hits, now.cache_misses), (8, 0), "{mode:?}: hot pages stay hits");
        assert_eq!(fs.info().counters.large, file.counters().large, "{mode:?}");
    }
}

/// S-519: a large write goes to the device and leaves no page; S-520: what it meets of dirty pages
/// is not lost.
#[test]
fn s_519_large_writes_leave_no_page_and_are_what_is_read_then() {
    let fs = volume(large(IoMode::Cached));
    let file = open(&fs, IoMode::Cached);
    let mut content = pattern(1 << 20, 3);
    content.chunks(4096).enumerate().for_each(|(page, bytes)| {
        file.write_at(bytes, page as u64 * 4096).unwrap();
    });
    file.sync_data().unwrap();
    // Pages that are clean, and dirty ones on both edges and within.
    (0..64).for_each(|page| drop(read(&file, page * 4096, 4096)));
    for (at, len) in [(LARGE - 300, 1000), (LARGE + 9000, 10), (2 * LARGE - 1, 2)] {
        file.write_at(&vec![0xAA; len], at as u64).unwrap();
        content[at..at + len].fill(0xAA);
    }
    let (resident, before) = (fs.info().cache.resident_bytes, file.counters());
    let replaced = pattern(LARGE, 77);
    file.write_at(&aligned(&replaced), LARGE as u64).unwrap();
    content[LARGE..2 * LARGE].copy_from_slice(&replaced);
    let now = file.counters().since(&before);
    assert_eq!((now.large, now.writes, now.written_bytes), (1, 1, LARGE as u64));
    assert_eq!(fs.info().cache.resident_bytes, resident - LARGE as u64, "they are forgotten");
    for step in 0..1 << 8 {
        assert_eq!(read(&file, step * 4096, 4096), content[step * 4096..][..4096], "page {step}");
    }
    // From the middle of a page to the middle of another, both dirty.
    let (start, end) = (3 * LARGE + 512, 4 * LARGE + 1024);
    for at in [start - 512, end] {
        file.write_at(&[0xBB; 512], at as u64).unwrap();
        content[at..at + 512].fill(0xBB);
    }
    let replaced = pattern(end - start, 9);
    file.write_at(&aligned(&replaced), start as u64).unwrap();
    content[start..end].copy_from_slice(&replaced);
    assert_eq!(file.counters().since(&before).large, 2);
    let mut seen = vec![0; content.len()];
    file.read_at(&mut seen, 0).unwrap();
    assert!(seen == content, "S-520");
}

/// S-519: large appends, also to a file whose end is dirty.
#[test]
fn s_519_a_large_append_comes_behind_what_is_dirty() {
    let fs = volume(large(IoMode::Cached));
    let file = fs
        .open(
            "/f",
            &OpenOptions { append: true, mode: Some(IoMode::Cached), ..OpenOptions::create() },
        )
        .unwrap();
    let mut content = Vec::new();
    for (step, len) in [512, LARGE, 1000, LARGE, 24, LARGE, 4096, 2 * LARGE].iter().enumerate() {
        let bytes = pattern(*len, step);
        assert_eq!(file.write_at(&aligned(&bytes), 0).unwrap(), content.len() as u64);
        content.extend(bytes);
    }
    assert_eq!(file.counters().large, 3, "one began within a sector");
    assert!(read(&file, 0, content.len().next_multiple_of(512)) == content);
    drop(file);
    fs.sync().unwrap();
}

/// S-520: what is short, or what the device does not take as it lies, goes through pages.
#[test]
fn s_520_short_and_unaligned_requests_stay_in_the_cache() {
    let fs = volume(large(IoMode::Cached));
    let file = open(&fs, IoMode::Cached);
    let mut content = pattern(1 << 20, 0);
    file.write_at(&content, 0).unwrap();
    file.sync_data().unwrap();
    // An array lies wherever its allocation is: that write was large if it lay well.
    let before = file.counters().large;
    for (offset, len, skew) in [
        (0, LARGE - 512, 0),
        (0, LARGE + 100, 0),
        (100, LARGE, 0),
        (0, LARGE, 8),
        (512, LARGE - 4096, 0),
    ] {
        let mut buf = Skewed::new(len, skew);
        assert_eq!(file.read_at(buf.bytes(), offset as u64).unwrap(), len);
        assert!(*buf.bytes() == content[offset..offset + len], "{offset} {len} {skew}");
        buf.bytes().copy_from_slice(&pattern(len, offset + skew));
        file.write_at(buf.bytes(), offset as u64).unwrap();
        content[offset..offset + len].copy_from_slice(buf.bytes());
    }
    assert_eq!(file.counters().large, before);
    assert!(read(&file, 0, content.len()) == content);
}

/// S-520: holes and what lies behind the end are zeros, also where the end on the device is still
/// another one, with what was cut off behind it.
#[test]
fn s_520_holes_and_the_end_of_the_file_read_as_ever() {
    let fs = volume(large(IoMode::Cached));
    let file = open(&fs, IoMode::Cached);
    file.write_at(&aligned(&[0xEE; 2 * LARGE]), 0).unwrap();
    file.set_size(5000).unwrap();
    file.sync_all().unwrap();
    let mut buf = aligned(&[0x55; LARGE]);
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 5000);
    assert!(buf[..5000].iter().all(|byte| *byte == 0xEE));
    assert_eq!(file.read_at(&mut buf, 8192).unwrap(), 0, "behind the end");
    // Dirty, and so the device knows another end.
    file.write_at(&[7; 10], 1 << 20).unwrap();
    let seen = read(&file, 0, LARGE);
    assert!(seen[..5000].iter().all(|byte| *byte == 0xEE));
    assert!(seen.len() == LARGE && seen[5000..].iter().all(|byte| *byte == 0), "S-520");
    let end = read(&file, (1 << 20) - LARGE + 512, LARGE);
    assert_eq!((end.len(), &end[LARGE - 512..][..3]), (LARGE - 502, &[7; 3][..]));
    // Into a hole, far behind the end, and over its edges.
    file.write_at(&aligned(&[9; LARGE]), 4 << 20).unwrap();
    assert_eq!(file.size(), (4 << 20) + LARGE as u64);
    let across = read(&file, (4 << 20) - LARGE / 2, LARGE);
    assert!(across[..LARGE / 2].iter().all(|byte| *byte == 0));
    assert!(across[LARGE / 2..].iter().all(|byte| *byte == 9));
    let large = file.counters().large;
    assert_eq!(large, 7, "all of these but the two short writes");
}

/// S-519, S-520: whatever comes in whatever order, with checkpoints and checksums, against a vector.
#[test]
fn s_519_s_520_any_order_of_large_and_small_requests_reads_as_a_vector() {
    for seed in 0..12 {
        let device = device(96 << 20, 512);
        format(&device, if seed % 3 == 0 { 512 } else { 4096 });
        let mount = MountOptions { direct_above_bytes: 16 << 10, ..large(IoMode::Cached) };
        let fs = FileSystem::mount(Arc::clone(&device), None, mount).unwrap();
        let file = open(&fs, IoMode::Cached);
        fs.set_integrity(file.ino(), seed % 4 == 1).unwrap();
        let mut model = Vec::new();
        let mut random = Random::new(seed + 1);
        for step in 0..250 {
            one_step(&fs, &file, &mut model, &mut random, step);
        }
        assert!(file.counters().large > 40, "{:?}", file.counters());
        file.sync_all().unwrap();
        drop(file);
        fs.unmount().unwrap();
        let report = FileSystem::check(&device, None, false).unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
        let fs = mount_as(&device, IoMode::Direct);
        let file = open(&fs, IoMode::Direct);
        assert!(read(&file, 0, model.len().next_multiple_of(512)) == model, "seed {seed}");
    }
}

fn one_step(fs: &FileSystem, file: &File, model: &mut Vec<u8>, random: &mut Random, step: usize) {
    let is_large = random.chance(2);
    let unit = if random.chance(3) { 1 } else { 512 };
    let offset = random.below((512 << 10) / unit) as usize * unit as usize;
    let len = (if is_large { 16 << 10 } else { 0 })
        + (1 + random.below((if is_large { 64 << 10 } else { 9000 }) / unit) as usize)
            * unit as usize;
    match random.below(12) {
        0..5 => {
            let bytes = pattern(len, step);
            file.write_at(&aligned(&bytes), offset as u64).unwrap();
            model.resize(model.len().max(offset + len), 0);
            model[offset..offset + len].copy_from_slice(&bytes);
        }
        5..9 => {
            let seen = read(file, offset, len);
            let expected = &model[offset.min(model.len())..(offset + len).min(model.len())];
            assert!(seen == expected, "step {step}: {len} bytes at {offset} of {}", model.len());
        }
        9 => {
            file.set_size(offset as u64).unwrap();
            model.resize(offset, 0);
        }
        10 => match random.below(3) {
            0 => file.sync_data().unwrap(),
            1 => fs.sync().unwrap(),
            _ => {
                let name = format!("c{step}");
                fs.create_checkpoint(&name, &CheckpointOptions::default()).unwrap();
            }
        },
        _ => {
            file.allocate(AllocateMode::PunchHole, offset as u64, len as u64).unwrap();
            let end = (offset + len).min(model.len());
            model[offset.min(end)..end].fill(0);
        }
    }
    assert_eq!(file.size(), model.len() as u64);
}

/// S-519: it is set, and turned off, while the file is in use.
#[test]
fn s_519_it_counts_at_once_and_0_turns_it_off() {
    let fs = volume(MountOptions { direct_above_bytes: 0, ..large(IoMode::Cached) });
    let file = open(&fs, IoMode::Cached);
    file.write_at(&aligned(&pattern(1 << 20, 0)), 0).unwrap();
    read(&file, 0, 1 << 20);
    assert_eq!(file.counters().large, 0, "it is off");
    for (bytes, passed) in [(LARGE as u64, 1), (LARGE as u64 + 1, 1), (512, 2), (0, 2)] {
        tune(&fs, bytes);
        read(&file, 0, LARGE);
        assert_eq!(file.counters().large, passed, "from {bytes} bytes on");
    }
    assert_eq!(Tunable::DirectAbove.parse("off").unwrap(), 0);
}

/// S-520: a write-behind that failed is told to the next sync, whatever wrote the pages out before:
/// a large read, a seek, an open in another mode, or a copy. All of these once swallowed it.
#[test]
fn s_520_a_failed_write_behind_is_told_to_the_next_sync_whatever_comes_before_it() {
    for others in 0..5 {
        let simulated = SimulatedDevice::new(64 << 20, 1);
        let device: Arc<dyn BlockDevice> = Arc::clone(&simulated) as _;
        format(&device, 4096);
        let fs = FileSystem::mount(device, None, large(IoMode::Cached)).unwrap();
        let mut file = open(&fs, IoMode::Cached);
        file.write_at(&aligned(&[1; LARGE]), 0).unwrap();
        file.sync_all().unwrap();
        let at = file.extents().unwrap()[0].volume_offset;
        file.write_at(&[2; 4096], 8192).unwrap();
        let rule = FaultRule::new(Fault::Write(WriteFault::Fail), Trigger::Always);
        // Also where it would be written anew.
        simulated.inject(rule.within(at..64 << 20));
        // What cannot be written is read where it is.
        let mut expected = vec![1; LARGE];
        expected[8192..12_288].fill(2);
        assert!(read(&file, 0, LARGE) == expected);
        let replaced = aligned(&[3; LARGE]);
        file.write_at(&replaced, 0).unwrap();
        assert!(read(&file, 0, LARGE) == *replaced, "and written over where it is");
        assert_eq!(file.counters().large, 1, "the first write alone");
        simulated.clear_faults();
        match others {
            0 => assert!(read(&file, 0, LARGE) == *replaced),
            1 => assert_eq!(file.seek_hole(0).unwrap(), Some(LARGE as u64)),
            2 => {
                drop(file);
                file = open(&fs, IoMode::Direct);
                assert_eq!(file.effective_mode(), IoMode::Direct);
            }
            3 => {
                let target = fs.open("/g", &OpenOptions::create()).unwrap();
                assert_eq!(file.copy_range(0, &target, 0, 1 << 20).unwrap(), LARGE as u64);
            }
            _ => drop(fs.create_checkpoint("c", &CheckpointOptions::default()).unwrap()),
        }
        let told = file.sync_data().unwrap_err();
        assert_eq!(told.kind, ErrorKind::Io, "{others}: {told}");
        file.sync_data().unwrap();
        assert!(read(&file, 0, LARGE) == *replaced, "{others}");
    }
}

/// S-21: a large write is seen whole or not at all, by large and by small reads.
#[test]
fn s_21_a_large_write_is_seen_whole_or_not_at_all() {
    let fs = volume(large(IoMode::Cached));
    let file = open(&fs, IoMode::Cached);
    file.write_at(&aligned(&[0; LARGE]), 0).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for part in [LARGE, 16 * KIB, 1000] {
            let (file, done) = (&file, &done);
            scope.spawn(move || {
                let mut newest = 0;
                while !done.load(Ordering::Relaxed) {
                    let seen = read(file, 0, part);
                    assert!(seen.iter().all(|byte| *byte == seen[0]), "{part}: S-21");
                    assert!(seen[0] >= newest, "{part}: {} after {newest}: S-20", seen[0]);
                    newest = seen[0];
                }
            });
        }
        for turn in 1..=200_u8 {
            // Every third through pages.
            let skew = if turn % 3 == 0 { 8 } else { 0 };
            let mut bytes = Skewed::new(LARGE, skew);
            bytes.bytes().fill(turn);
            file.write_at(bytes.bytes(), 0).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// S-521: a file has its own measure of what may be dirty, beside the shares of the cache.
#[test]
fn s_521_write_behind_of_one_file_is_set_by_tunables() {
    let fs = volume(MountOptions { cache_bytes: 16 << 20, ..options(IoMode::Cached) });
    // Past the cache: a sync of much has helpers that may come late.
    open(&fs, IoMode::Direct).write_at(&aligned(&vec![1; 8 << 20]), 0).unwrap();
    let file = open(&fs, IoMode::Cached);
    let tune = |tunable, value| {
        fs.tune(&TuneOptions { changes: vec![(tunable, Some(value))], live_only: true }).unwrap();
    };
    let write = |places: std::ops::Range<u64>| {
        let before = fs.info().cache.write_behind_bytes;
        for place in places {
            file.write_at(&[2; 4096], place * 40_960 + 8192).unwrap();
        }
        before
    };
    assert_eq!(write(0..40), fs.info().cache.write_behind_bytes, "off");
    tune(Tunable::WriteBehindRandom, 20);
    let before = write(40..61);
    // In the background.
    while fs.info().cache.dirty_bytes > 40 * 4096 {
        std::thread::yield_now();
    }
    let written = fs.info().cache.write_behind_bytes - before;
    assert_eq!(written, 21 * 4096, "what was dirty before stays");
    file.sync_data().unwrap();
    tune(Tunable::WriteBehindClusters, 1);
    file.write_at(&vec![3; (128 << 10) + 1], 4 << 20).unwrap();
    while fs.info().cache.dirty_bytes > 4096 {
        std::thread::yield_now();
    }
}

/// S-519: what a request is broken up into is told.
#[test]
fn s_519_the_sizes_of_pieces_are_told() {
    for (cache, piece) in [(128 << 20, 1 << 20), (1 << 20, 128 << 10)] {
        let fs = volume(MountOptions { cache_bytes: cache, ..options(IoMode::Cached) });
        assert_eq!(fs.info().cached_piece_bytes_max, piece);
        assert!(fs.info().direct_piece_bytes_max >= 1 << 30);
    }
}
