//! Defragmentation: files lie together afterwards, nothing of them changes, whatever uses them
//! meanwhile and wherever the power goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_block::{
    AlignedBuf, BlockDevice, CrashChoice, Geometry, MemoryDevice, SimulatedDevice, SimulatedOptions,
};
use bedplate_fs::{
    AllocateMode, CheckpointOptions, ErrorKind, File, FileSystem, InodeNo, IoMode, OpenOptions,
};

use crate::support::{Random, device, format, mount_as};

const BLOCK: u64 = 4096;

/// Writes the blocks of a file in another order than that of the file.
fn scattered(fs: &FileSystem, path: &str, blocks: u64, mode: IoMode) -> File {
    let file = fs
        .open(path, &OpenOptions { mode: Some(IoMode::Concurrent), ..OpenOptions::create() })
        .unwrap();
    file.set_size(blocks * BLOCK).unwrap();
    let mut order: Vec<u64> = (0..blocks).collect();
    let mut random = Random::new(blocks);
    (1..order.len()).rev().for_each(|i| order.swap(i, random.below(i as u64 + 1) as usize));
    for at in order {
        file.write_at(&page(at), at * BLOCK).unwrap();
    }
    fs.sync().unwrap();
    drop(file);
    fs.open(path, &OpenOptions { mode: Some(mode), ..OpenOptions::read_write() }).unwrap()
}

fn page(at: u64) -> AlignedBuf {
    let mut page = AlignedBuf::zeroed(BLOCK as usize);
    page.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&at.to_le_bytes()));
    page
}

fn holds_its_pages(file: &File, blocks: u64) {
    let mut read = AlignedBuf::zeroed(BLOCK as usize);
    for at in 0..blocks {
        assert_eq!(file.read_at(&mut read, at * BLOCK).unwrap(), BLOCK as usize);
        assert!(*read == *page(at), "block {at}");
    }
}

/// All steps; returns bytes moved and bytes without a better place.
fn defragment(fs: &FileSystem, ino: InodeNo, unshare: bool) -> (u64, u64) {
    let (mut from, mut moved, mut stuck) = (Some(0), 0, 0);
    while let Some(at) = from {
        let step = fs.defragment(ino, at, unshare).unwrap();
        assert!(step.next.is_none_or(|next| next > at), "it goes on");
        (from, moved, stuck) = (step.next, moved + step.moved_bytes, stuck + step.stuck_bytes);
    }
    (moved, stuck)
}

fn sound(device: &Arc<dyn BlockDevice>) {
    let report = FileSystem::check(device, None, false).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// S-72: one run where there is room for one, the same content, and no block lost.
#[test]
fn s_72_a_scattered_file_lies_together_again() {
    for mode in [IoMode::Concurrent, IoMode::Cached] {
        let device = device(64 << 20, 512);
        format(&device, BLOCK as u32);
        let fs = mount_as(&device, mode);
        let file = scattered(&fs, "/file", 1500, mode);
        let before = fs.fragmentation(file.ino()).unwrap();
        assert!(
            before.runs > 1000 && before.bytes == 1500 * BLOCK && before.shared == 0,
            "{before:?}"
        );
        let free = fs.statfs().free_bytes;
        let (moved, stuck) = defragment(&fs, file.ino(), false);
        assert_eq!((moved, stuck), (1500 * BLOCK, 0));
        let after = fs.fragmentation(file.ino()).unwrap();
        assert_eq!((after.runs, after.bytes), (1, before.bytes));
        assert_eq!(defragment(&fs, file.ino(), false), (0, 0), "nothing is left to do");
        holds_its_pages(&file, 1500);
        fs.sync().unwrap();
        assert_eq!(fs.statfs().free_bytes, free);
        let dir = fs.create_dir_all("/dir").unwrap();
        assert_eq!(fs.defragment(dir.ino, 0, false).unwrap_err().kind, ErrorKind::Invalid);
        drop(file);
        fs.unmount().unwrap();
        sound(&device);
        let fs = mount_as(&device, mode);
        holds_its_pages(&fs.open("/file", &OpenOptions::read_only()).unwrap(), 1500);
    }
}

/// S-73: what a checkpoint needs stays where it is; with `unshare` the file gets its own, and the
/// checkpoint shows what it showed.
#[test]
fn s_73_shared_blocks_stay_unless_asked_for() {
    let device = device(64 << 20, 512);
    format(&device, BLOCK as u32);
    let fs = mount_as(&device, IoMode::Concurrent);
    let file = scattered(&fs, "/file", 600, IoMode::Concurrent);
    fs.create_checkpoint("c", &CheckpointOptions::default()).unwrap();
    for at in (0..200).rev() {
        file.write_at(&page(at), at * BLOCK).unwrap();
    }
    let before = fs.fragmentation(file.ino()).unwrap();
    assert!(before.shared > 300, "{before:?}");
    let (moved, _) = defragment(&fs, file.ino(), false);
    assert!(moved <= 200 * BLOCK, "{moved}");
    let after = fs.fragmentation(file.ino()).unwrap();
    assert!(after.shared == before.shared && after.runs < before.runs - 190, "{after:?}");
    holds_its_pages(&file, 600);
    defragment(&fs, file.ino(), true);
    let after = fs.fragmentation(file.ino()).unwrap();
    assert_eq!((after.shared, after.runs), (0, 1));
    holds_its_pages(&file, 600);
    let old = fs.open("/.checkpoints/c/file", &OpenOptions::read_only()).unwrap();
    holds_its_pages(&old, 600);
    assert_eq!(fs.defragment(old.ino(), 0, false).unwrap_err().kind, ErrorKind::ReadOnly);
    drop(old);
    fs.delete_checkpoint("c").unwrap();
    drop(file);
    fs.unmount().unwrap();
    sound(&device);
}

/// Readers and writers notice nothing meanwhile: every block holds what its last writer wrote.
#[test]
fn s_72_readers_and_writers_go_on_meanwhile() {
    let device = device(96 << 20, 512);
    format(&device, BLOCK as u32);
    for mode in [IoMode::Concurrent, IoMode::Direct, IoMode::Cached, IoMode::ConcurrentCache] {
        let fs = mount_as(&device, mode);
        let file = scattered(&fs, &format!("/{mode}"), 400, mode);
        fs.set_untorn(file.ino(), (mode == IoMode::Direct).then_some(4096)).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let (file, stop) = (&file, &stop);
                scope.spawn(move || {
                    let mut random = Random::new(thread);
                    let mut read = AlignedBuf::zeroed(BLOCK as usize);
                    while !stop.load(Ordering::Relaxed) {
                        // Each thread writes blocks of its own: what they will hold in the end is
                        // known.
                        let at = random.below(200) * 2 + thread;
                        file.write_at(&page(at), at * BLOCK).unwrap();
                        let other = random.below(400);
                        file.read_at(&mut read, other * BLOCK).unwrap();
                        assert!(*read == *page(other), "{mode}, block {other}");
                    }
                });
            }
            for round in 0..6 {
                defragment(&fs, file.ino(), true);
                if round % 2 == 0 {
                    fs.create_checkpoint(format!("{mode}{round}"), &CheckpointOptions::default())
                        .unwrap();
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        holds_its_pages(&file, 400);
        drop(file);
        fs.unmount().unwrap();
        sound(&device);
    }
}

/// Writes a file until the volume is full.
fn fill(fs: &FileSystem) -> File {
    let filler = fs
        .open("/filler", &OpenOptions { mode: Some(IoMode::Concurrent), ..OpenOptions::create() })
        .unwrap();
    let mut at = 0;
    while filler.write_at(&page(0), at).is_ok() {
        at += BLOCK;
    }
    filler
}

/// I-CHG-1, S-72: a file that is not open is moved as a change that checkpoints wait for.
#[test]
fn i_chg_1_s_72_a_closed_file_is_moved_like_an_open_one() {
    let device = device(40 << 20, 512);
    format(&device, BLOCK as u32);
    let fs = mount_as(&device, IoMode::Concurrent);
    let ino = scattered(&fs, "/file", 100, IoMode::Concurrent).ino();
    assert_eq!(defragment(&fs, ino, false), (100 * BLOCK, 0));
    fs.unmount().unwrap();
    sound(&device);
    let fs = mount_as(&device, IoMode::Concurrent);
    holds_its_pages(&fs.open("/file", &OpenOptions::read_only()).unwrap(), 100);
}

/// A copy that would lie as scattered as the file is not made.
#[test]
fn s_72_a_file_stays_where_the_free_space_lies_no_better() {
    let device = device(40 << 20, 512);
    format(&device, BLOCK as u32);
    let fs = mount_as(&device, IoMode::Concurrent);
    let file = scattered(&fs, "/file", 200, IoMode::Concurrent);
    let filler = fill(&fs);
    for at in (0..2400).step_by(2) {
        filler.allocate(AllocateMode::PunchHole, at * BLOCK, BLOCK).unwrap();
    }
    fs.sync().unwrap();
    // The runs that were kept for metadata are the largest: another file takes them, and single
    // blocks are left, enough for several windows.
    let other = fs.open("/other", &OpenOptions::create()).unwrap();
    let part = AlignedBuf::zeroed(512 * BLOCK as usize);
    other.write_at(&part, 0).unwrap();
    let before = file.extents().unwrap();
    let (moved, stuck) = defragment(&fs, file.ino(), false);
    assert_eq!(moved, 0);
    assert!(stuck > 100 * BLOCK, "{stuck}");
    assert_eq!(file.extents().unwrap(), before);
}

/// What was acknowledged has its blocks: those reserved for dirty pages of a file that is written
/// untorn are not spent on a copy, and a volume that fills up afterwards takes the pages.
#[test]
fn s_72_a_move_leaves_dirty_pages_their_blocks() {
    let device = device(40 << 20, 512);
    format(&device, BLOCK as u32);
    let fs = mount_as(&device, IoMode::Cached);
    let file = scattered(&fs, "/file", 64, IoMode::Cached);
    fs.set_untorn(file.ino(), Some(BLOCK as u32)).unwrap();
    for at in 0..64 {
        file.write_at(&page(1000 + at), at * BLOCK).unwrap();
    }
    assert!(fs.defragment(file.ino(), 0, false).unwrap().moved_bytes <= 64 * BLOCK);
    drop(fill(&fs));
    fs.sync().unwrap();
    drop(file);
    fs.unmount().unwrap();
    sound(&device);
    let fs = mount_as(&device, IoMode::Concurrent);
    let file = fs.open("/file", &OpenOptions::read_only()).unwrap();
    let mut read = AlignedBuf::zeroed(BLOCK as usize);
    for at in 0..64 {
        file.read_at(&mut read, at * BLOCK).unwrap();
        assert!(*read == *page(1000 + at), "block {at}");
    }
}

/// A full volume has no better place: the file stays as it is, and is told to.
#[test]
fn s_72_without_room_a_file_stays_where_it_is() {
    let device = device(40 << 20, 512);
    format(&device, BLOCK as u32);
    let fs = mount_as(&device, IoMode::Concurrent);
    let file = scattered(&fs, "/file", 600, IoMode::Concurrent);
    let _filler = fill(&fs);
    let before = file.extents().unwrap();
    assert_eq!(defragment(&fs, file.ino(), false).0, 0);
    assert_eq!(file.extents().unwrap(), before);
    holds_its_pages(&file, 600);
}

/// A formatted volume on a device that loses what was not flushed.
fn simulated() -> Arc<SimulatedDevice> {
    let geometry = Geometry {
        logical_block_size: 512,
        physical_block_size: 512,
        untorn_unit: 512,
        volatile_cache: true,
        ..MemoryDevice::GEOMETRY
    };
    let blank = MemoryDevice::with_geometry(40 << 20, geometry);
    let shared: Arc<dyn BlockDevice> = Arc::clone(&blank) as _;
    format(&shared, BLOCK as u32);
    SimulatedDevice::over(
        &blank.snapshot(),
        &SimulatedOptions { geometry, ..SimulatedOptions::default() },
    )
}

/// S-72: of one window, each write alone arrives before the power goes. The record of the move
/// counts only with the copy.
#[test]
fn s_72_a_record_that_arrives_without_its_copy_moves_nothing() {
    let device = simulated();
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
    let fs = mount_as(&shared, IoMode::Concurrent);
    let file = scattered(&fs, "/file", 64, IoMode::Concurrent);
    let first = device.operation_count();
    assert!(fs.defragment(file.ino(), 0, false).unwrap().moved_bytes > 0);
    file.sync_data().unwrap();
    let last = device.operation_count();
    drop((file, fs));
    let mut alone = 0;
    for after in first..=last {
        for kept in device.unflushed(after) {
            let image: Arc<dyn BlockDevice> =
                device.crash_image(after, &CrashChoice::Keep(vec![kept]));
            let fs = mount_as(&image, IoMode::Concurrent);
            holds_its_pages(&fs.open("/file", &OpenOptions::read_only()).unwrap(), 64);
            alone += 1;
        }
    }
    assert!(alone > 1, "the copy and the record were in the air together");
}

/// S-72 under power cuts: at every operation of the device, with what was not flushed lost or there
/// in part, the file holds what it held.
#[test]
fn s_72_a_power_cut_finds_every_block_where_it_was_or_where_it_went() {
    let device = simulated();
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
    let fs = mount_as(&shared, IoMode::Concurrent);
    let file = scattered(&fs, "/file", 700, IoMode::Concurrent);
    fs.create_checkpoint("c", &CheckpointOptions::default()).unwrap();
    for at in (0..40).rev() {
        file.write_at(&page(at), at * BLOCK).unwrap();
    }
    file.sync_data().unwrap();
    let first = device.operation_count();
    let ino = file.ino();
    let mut from = Some(0);
    while let Some(at) = from {
        from = fs.defragment(ino, at, true).unwrap().next;
        if at % 3 == 0 {
            // The blocks that were left behind are used again.
            file.sync_data().unwrap();
            file.write_at(&page(650), 650 * BLOCK).unwrap();
        }
    }
    file.sync_data().unwrap();
    let last = device.operation_count();
    assert!(fs.fragmentation(ino).unwrap().runs < 8 && last > first + 4);
    drop((file, fs));
    for after in first..=last {
        for choice in [
            CrashChoice::LoseAll,
            CrashChoice::Seeded(after as u64),
            CrashChoice::Seeded(!(after as u64)),
        ] {
            let image: Arc<dyn BlockDevice> = device.crash_image(after, &choice);
            let fs = mount_as(&image, IoMode::Concurrent);
            for path in ["/file", "/.checkpoints/c/file"] {
                holds_its_pages(&fs.open(path, &OpenOptions::read_only()).unwrap(), 700);
            }
            fs.unmount().unwrap();
            sound(&image);
        }
    }
}
