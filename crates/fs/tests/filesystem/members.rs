//! Placement: files lie on the members that were chosen, whatever writes them, and move there while
//! they are in use and wherever the power goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_block::{
    AlignedBuf, BlockDevice, CrashChoice, Geometry, HookedDevice, JoinedMembers, MemoryDevice,
    SimulatedDevice, SimulatedOptions,
};
use bedplate_fs::{
    AllocateMode, CheckpointOptions, CloneSource, ErrorKind, File, FilePlacement, FileSystem,
    InodeNo, IoMode, NewFile, OpenOptions, PlacementState, Reason,
};

use crate::support::{Random, device, format, mount_as};

const BLOCK: u64 = 4096;
const SIZE: u64 = 96 << 20;
const HALF: u64 = SIZE / 2;

/// A formatted volume of two members, one behind the other.
fn volume() -> Arc<HookedDevice<JoinedMembers>> {
    let device = device(SIZE, 512);
    format(&device, BLOCK as u32);
    JoinedMembers::over(device, 2)
}

fn shared(device: &Arc<HookedDevice<JoinedMembers>>) -> Arc<dyn BlockDevice> {
    Arc::clone(device) as _
}

fn mounted(device: &Arc<HookedDevice<JoinedMembers>>, mode: IoMode) -> FileSystem {
    mount_as(&shared(device), mode)
}

fn page(at: u64) -> AlignedBuf {
    let mut page = AlignedBuf::zeroed(BLOCK as usize);
    page.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&at.to_le_bytes()));
    page
}

fn write_pages(file: &File, blocks: std::ops::Range<u64>) {
    for at in blocks {
        assert_eq!(file.write_at(&page(at), at * BLOCK).unwrap(), at * BLOCK);
    }
}

fn holds_its_pages(file: &File, blocks: u64) {
    let mut read = AlignedBuf::zeroed(BLOCK as usize);
    for at in 0..blocks {
        assert_eq!(file.read_at(&mut read, at * BLOCK).unwrap(), BLOCK as usize);
        assert!(*read == *page(at), "block {at}");
    }
}

fn create(fs: &FileSystem, path: &str) -> File {
    let options = OpenOptions { mode: Some(IoMode::Concurrent), ..OpenOptions::create() };
    fs.open(path, &options).unwrap()
}

fn place(fs: &FileSystem, ino: InodeNo, member: &str) {
    fs.set_placement(ino, Some(&[member.to_owned()])).unwrap();
}

/// Bytes of a file on each of the two members.
fn on_members(file: &File) -> [u64; 2] {
    let mut bytes = [0; 2];
    for extent in file.extents().unwrap() {
        let end = extent.volume_offset + extent.len;
        let first = HALF.clamp(extent.volume_offset, end) - extent.volume_offset;
        bytes[0] += first;
        bytes[1] += extent.len - first;
    }
    bytes
}

/// All steps; returns the bytes that moved, and whether the members were full.
fn move_all(fs: &FileSystem, ino: InodeNo, unshare: bool) -> (u64, bool) {
    let (mut from, mut moved, mut is_full) = (Some(0), 0, false);
    while let Some(at) = from {
        let step = fs.move_placed(ino, at, unshare).unwrap();
        assert!(step.next.is_none_or(|next| next > at), "it goes on");
        (from, moved, is_full) = (step.next, moved + step.moved_bytes, step.is_full);
    }
    (moved, is_full)
}

fn told(fs: &FileSystem, ino: InodeNo) -> FilePlacement {
    fs.placement(ino).unwrap()
}

fn sound(device: &Arc<dyn BlockDevice>) {
    let report = FileSystem::check(device, None, false).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// S-616: what can be chosen is a part of the volume that lies on the members alone; anything else
/// is refused with what to do instead.
#[test]
fn s_616_only_what_holds_a_part_alone_can_be_chosen() {
    let device = volume();
    let fs = mounted(&device, IoMode::Concurrent);
    let file = create(&fs, "/file");
    let refused = |members: &[&str]| {
        let members: Vec<String> = members.iter().map(|&name| name.to_owned()).collect();
        let error = fs.set_placement(file.ino(), Some(&members)).unwrap_err();
        (error.kind, error.message)
    };
    let (kind, why) = refused(&["/dev/member7"]);
    assert!(
        kind == ErrorKind::Invalid && why.contains("these are /dev/member0, /dev/member1"),
        "{why}"
    );
    assert!(refused(&["member0", "member1"]).1.contains("needs no placement"));
    assert!(refused(&[]).1.contains("name some"));
    let mut striped = JoinedMembers::map_of(SIZE, 2);
    striped.ranges.truncate(1);
    (striped.ranges[0].bytes, striped.ranges[0].members) = (0..SIZE, vec![0, 1]);
    device.set(striped.clone());
    assert!(refused(&["member0"]).1.contains("as rows of a stripe or RAID-5"));
    striped.is_moving = true;
    device.set(striped);
    assert_eq!(refused(&["member0"]).0, ErrorKind::Busy);
    // The file system ends within the first member.
    let mut longer = JoinedMembers::map_of(2 * SIZE, 2);
    longer.members[1].path = "/dev/new".to_owned();
    device.set(longer);
    assert!(refused(&["new"]).1.contains("bedplate grow"));
    assert_eq!(told(&fs, file.ino()).state, PlacementState::Anywhere);
    drop(file);
    let link = fs.symlink(InodeNo::ROOT, b"link", b"file", NewFile::default()).unwrap();
    assert!(fs.set_placement(link.ino, Some(&["member0".to_owned()])).is_err());

    let plain = crate::support::device(SIZE, 512);
    format(&plain, BLOCK as u32);
    let fs = mount_as(&plain, IoMode::Concurrent);
    let ino = create(&fs, "/file").ino();
    let error = fs.set_placement(ino, Some(&["member0".to_owned()])).unwrap_err();
    assert!(error.message.contains("lies on one device"), "{error}");
    assert!(told(&fs, ino).on.is_empty());
}

/// S-617: whatever gives a placed file blocks takes them from its members: writes in every mode,
/// appends, preallocation, holes, untorn pages, and what a checkpoint redirects.
#[test]
fn s_617_all_new_blocks_of_a_placed_file_lie_on_its_members() {
    for mode in [IoMode::Concurrent, IoMode::Direct, IoMode::Cached, IoMode::ConcurrentCache] {
        let device = volume();
        let fs = mounted(&device, mode);
        for (member, at) in [("member1", 1), ("member0", 0)] {
            let name = format!("/{member}");
            let file = fs.open(&name, &OpenOptions::create()).unwrap();
            place(&fs, file.ino(), member);
            write_pages(&file, 0..200);
            fs.sync().unwrap();
            let preallocate = AllocateMode::Preallocate { keep_size: true };
            file.allocate(preallocate, 2 << 20, 1 << 20).unwrap();
            write_pages(&file, 300..310);
            fs.set_untorn(file.ino(), Some(BLOCK as u32)).unwrap();
            write_pages(&file, 50..60);
            fs.sync().unwrap();
            fs.set_untorn(file.ino(), None).unwrap();
            fs.create_checkpoint(name.trim_matches('/'), &CheckpointOptions::default()).unwrap();
            write_pages(&file, 100..150);
            file.write_at(b"odd", 333).unwrap();
            file.write_at(&page(333)[..333], 0).unwrap();
            fs.sync().unwrap();
            let bytes = on_members(&file);
            assert!(bytes[1 - at] == 0 && bytes[at] > 1 << 20, "{mode}, {member}: {bytes:?}");
            assert_eq!(file.counters().reason(Reason::Elsewhere), 0);
            let told = told(&fs, file.ino());
            assert_eq!((told.state, told.misplaced_bytes), (PlacementState::Placed, 0));
            assert_eq!(told.on[0].bytes, bytes[at]);
            assert!(told.on.len() == 1 && told.on[0].path == format!("/dev/{member}"));
        }
        fs.unmount().unwrap();
        sound(&shared(&device));
    }
}

/// S-618: a member that is full fails nothing: the rest lies elsewhere, counted and told, and moves
/// once there is room.
#[test]
fn s_618_a_full_member_fails_no_write_and_what_lies_elsewhere_is_counted() {
    let device = volume();
    let fs = mounted(&device, IoMode::Concurrent);
    let filler = create(&fs, "/filler");
    place(&fs, filler.ino(), "member1");
    let mut at = 0;
    while filler.counters().reason(Reason::Elsewhere) == 0 {
        write_pages(&filler, at..at + 16);
        at += 16;
    }
    let elsewhere = on_members(&filler)[0];
    assert!(elsewhere > 0 && elsewhere <= 16 * BLOCK, "the member is full first: {elsewhere}");
    let told_of = told(&fs, filler.ino());
    assert_eq!((told_of.misplaced_bytes, told_of.shared_bytes), (elsewhere, 0));
    let file = create(&fs, "/file");
    place(&fs, file.ino(), "member1");
    write_pages(&file, 0..64);
    assert_eq!(on_members(&file), [64 * BLOCK, 0]);
    assert_eq!(file.counters().reason(Reason::Elsewhere), 64);
    assert_eq!(move_all(&fs, file.ino(), false), (0, true));
    // As much as there is room for moves.
    filler.allocate(AllocateMode::PunchHole, 0, 40 * BLOCK).unwrap();
    let (moved, is_full) = move_all(&fs, file.ino(), false);
    assert!(is_full && moved == 40 * BLOCK, "{moved}");
    filler.allocate(AllocateMode::PunchHole, 0, 100 * BLOCK).unwrap();
    assert_eq!(move_all(&fs, file.ino(), false), (24 * BLOCK, false));
    assert_eq!(on_members(&file), [0, 64 * BLOCK]);
    holds_its_pages(&file, 64);
    drop((file, filler));
    fs.unmount().unwrap();
    sound(&shared(&device));
}

/// S-618: pages in the cache have their blocks reserved, whichever member is full.
#[test]
fn s_618_cached_pages_of_a_placed_file_reach_the_device_whatever_is_full() {
    let device = volume();
    let fs = mounted(&device, IoMode::Cached);
    let filler = create(&fs, "/filler");
    place(&fs, filler.ino(), "member1");
    let file = fs.open("/file", &OpenOptions::create()).unwrap();
    place(&fs, file.ino(), "member1");
    write_pages(&file, 0..64);
    // While these wait, something else takes all there is.
    let data = AlignedBuf::zeroed(64 << 10);
    let mut at = 0;
    while filler.write_at(&data, at).is_ok() {
        at += 64 << 10;
    }
    fs.sync().unwrap();
    holds_its_pages(&file, 64);
    assert_eq!(on_members(&file).iter().sum::<u64>(), 64 * BLOCK);
    drop((file, filler));
    fs.unmount().unwrap();
    sound(&shared(&device));
}

/// S-619, I-PLC-3: what lies elsewhere moves, data and preallocated space, and nothing of the file changes.
#[test]
fn s_619_i_plc_3_a_file_moves_to_its_members() {
    for mode in [IoMode::Concurrent, IoMode::Cached] {
        let device = volume();
        let fs = mounted(&device, mode);
        let file = create(&fs, "/file");
        write_pages(&file, 0..1500);
        file.allocate(AllocateMode::Preallocate { keep_size: true }, 8 << 20, 3 << 20).unwrap();
        file.allocate(AllocateMode::PunchHole, 1400 * BLOCK, 10 * BLOCK).unwrap();
        write_pages(&file, 1400..1410);
        fs.sync().unwrap();
        let all: u64 = on_members(&file).iter().sum();
        for (member, at) in [("member1", 1), ("member0", 0), ("member1", 1)] {
            let away = on_members(&file)[1 - at];
            place(&fs, file.ino(), member);
            assert_eq!(told(&fs, file.ino()).misplaced_bytes, away);
            assert_eq!(move_all(&fs, file.ino(), false), (away, false));
            assert_eq!((on_members(&file)[at], on_members(&file)[1 - at]), (all, 0));
            assert_eq!(move_all(&fs, file.ino(), false), (0, false), "nothing is left to do");
            holds_its_pages(&file, 1500);
        }
        assert!(fs.fragmentation(file.ino()).unwrap().runs < 12, "it lies together");
        // Closed, and no longer placed: it stays.
        let ino = file.ino();
        drop(file);
        fs.set_placement(ino, None).unwrap();
        assert_eq!(move_all(&fs, ino, false), (0, false));
        assert_eq!(told(&fs, ino).state, PlacementState::Anywhere);
        let dir = fs.create_dir_all("/dir").unwrap();
        assert_eq!(fs.move_placed(dir.ino, 0, false).unwrap_err().kind, ErrorKind::Invalid);
        fs.unmount().unwrap();
        sound(&shared(&device));
        let fs = mounted(&device, mode);
        holds_its_pages(&fs.open("/file", &OpenOptions::read_only()).unwrap(), 1500);
    }
}

/// S-619: what a checkpoint or a clone needs stays and is told; with `unshare` the file gets its own.
#[test]
fn s_619_shared_blocks_stay_unless_asked_for() {
    let device = volume();
    let fs = mounted(&device, IoMode::Concurrent);
    let file = create(&fs, "/file");
    place(&fs, file.ino(), "member0");
    write_pages(&file, 0..300);
    fs.create_checkpoint("c", &CheckpointOptions::default()).unwrap();
    fs.clone_files(&CloneSource::Present("/file".into()), "/clone").unwrap();
    write_pages(&file, 0..100);
    place(&fs, file.ino(), "member1");
    assert_eq!(move_all(&fs, file.ino(), false), (100 * BLOCK, false));
    let stays = told(&fs, file.ino());
    assert_eq!((stays.misplaced_bytes, stays.shared_bytes), (200 * BLOCK, 200 * BLOCK));
    assert_eq!(move_all(&fs, file.ino(), true), (200 * BLOCK, false));
    assert_eq!(on_members(&file), [0, 300 * BLOCK]);
    let clone = fs.open("/clone", &OpenOptions::read_write()).unwrap();
    assert_eq!(told(&fs, clone.ino()).members[0].path.as_deref(), Some("/dev/member0"));
    write_pages(&clone, 0..20);
    assert_eq!(on_members(&clone), [300 * BLOCK, 0], "a clone is placed as its source was");
    for path in ["/file", "/clone", "/.checkpoints/c/file"] {
        holds_its_pages(&fs.open(path, &OpenOptions::read_only()).unwrap(), 300);
    }
    drop((file, clone));
    fs.delete_checkpoint("c").unwrap();
    fs.unmount().unwrap();
    sound(&shared(&device));
}

/// Ends what goes on beside a test, also where that fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// S-619: readers and writers notice nothing meanwhile: every block holds what its last writer
/// wrote.
#[test]
fn s_619_readers_and_writers_go_on_while_a_file_moves() {
    let device = volume();
    for mode in [IoMode::Concurrent, IoMode::Direct, IoMode::Cached, IoMode::ConcurrentCache] {
        let fs = mounted(&device, mode);
        let name = format!("/{mode}");
        let file = fs.open(&name, &OpenOptions::create()).unwrap();
        write_pages(&file, 0..400);
        fs.sync().unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stops = Stops(&stop);
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
                place(&fs, file.ino(), if round % 2 == 0 { "member1" } else { "member0" });
                move_all(&fs, file.ino(), true);
                if round == 3 {
                    fs.create_checkpoint(format!("{mode}"), &CheckpointOptions::default()).unwrap();
                }
            }
        });
        fs.sync().unwrap();
        move_all(&fs, file.ino(), true);
        assert_eq!(on_members(&file)[1], 0, "{mode}");
        holds_its_pages(&file, 400);
        drop(file);
        fs.unmount().unwrap();
        sound(&shared(&device));
    }
}

/// S-620: a placement survives the mount, and what is made in a directory takes it over, all the
/// way down.
#[test]
fn s_620_a_placement_is_taken_over_and_survives() {
    let device = volume();
    let fs = mounted(&device, IoMode::Concurrent);
    let dir = fs.create_dir_all("/dir").unwrap();
    place(&fs, dir.ino, "member1");
    fs.create_dir_all("/dir/below").unwrap();
    let before = create(&fs, "/dir/below/before");
    write_pages(&before, 0..50);
    assert_eq!(on_members(&before), [0, 50 * BLOCK]);
    drop(before);
    fs.unmount().unwrap();
    sound(&shared(&device));
    let fs = mounted(&device, IoMode::Concurrent);
    let before = fs.open("/dir/below/before", &OpenOptions::read_write()).unwrap();
    write_pages(&before, 50..100);
    assert_eq!(on_members(&before), [0, 100 * BLOCK]);
    let after = create(&fs, "/dir/after");
    write_pages(&after, 0..50);
    assert_eq!(on_members(&after), [0, 50 * BLOCK]);
    let found = told(&fs, dir.ino);
    assert_eq!((found.state, found.members.len()), (PlacementState::Placed, 1));
    assert!(found.members[0].path.as_deref() == Some("/dev/member1") && found.on.is_empty());
    // What has no meaning places nothing.
    fs.set_xattr(after.ino(), b"user.bedplate.place", b"nonsense", false, true).unwrap();
    assert_eq!(told(&fs, after.ino()).state, PlacementState::Anywhere);
}

/// S-621: members that leave, come and move are followed at once, and fail no write.
#[test]
fn s_621_a_placement_goes_by_the_members_that_there_are() {
    let device = volume();
    let fs = mounted(&device, IoMode::Concurrent);
    let file = create(&fs, "/file");
    place(&fs, file.ino(), "member1");
    write_pages(&file, 0..20);
    let now = JoinedMembers::map_of(SIZE, 2);
    // The members change places.
    let mut turned = now.clone();
    (turned.ranges[0].members, turned.ranges[1].members) = (vec![1], vec![0]);
    device.set(turned);
    write_pages(&file, 20..40);
    assert_eq!(on_members(&file), [20 * BLOCK, 20 * BLOCK]);
    assert_eq!(told(&fs, file.ino()).misplaced_bytes, 20 * BLOCK);
    assert_eq!(move_all(&fs, file.ino(), false), (20 * BLOCK, false));
    // Addresses move: nothing is promised until that ends.
    device.set(bedplate_block::MemberMap { is_moving: true, ..now.clone() });
    write_pages(&file, 40..50);
    assert_eq!(told(&fs, file.ino()).state, PlacementState::Moving);
    assert_eq!(move_all(&fs, file.ino(), false), (0, false));
    // It leaves: a write goes anywhere, and the placement is told without it.
    let mut without = JoinedMembers::map_of(SIZE, 1);
    without.ranges[0].bytes = 0..SIZE;
    device.set(without);
    write_pages(&file, 50..60);
    let gone = told(&fs, file.ino());
    assert_eq!((gone.state, gone.members[0].path.as_deref()), (PlacementState::NoPart, None));
    assert_eq!(gone.members[0].id, "01010101-0101-0101-0101-010101010101");
    assert_eq!(file.counters().reason(Reason::Elsewhere), 0, "nothing was asked for any more");
    // And comes back at another path.
    let mut renamed = now;
    renamed.members[1].path = "/dev/other".to_owned();
    device.set(renamed);
    write_pages(&file, 60..70);
    let back = told(&fs, file.ino());
    assert_eq!(back.members[0].path.as_deref(), Some("/dev/other"));
    holds_its_pages(&file, 70);
    assert_eq!(fs.placement(file.ino()).unwrap().state, PlacementState::Placed);
    move_all(&fs, file.ino(), false);
    assert_eq!(on_members(&file), [0, 70 * BLOCK]);
}

/// S-617: where the file system becomes smaller than the members reach, its files move before the
/// end.
#[test]
fn s_617_a_placed_file_is_in_no_way_of_a_smaller_file_system() {
    let device = volume();
    let fs = mounted(&device, IoMode::Concurrent);
    let file = create(&fs, "/file");
    place(&fs, file.ino(), "member1");
    write_pages(&file, 0..200);
    fs.sync().unwrap();
    let size = HALF - (4 << 20);
    while !fs.shrink(size).unwrap().is_done {}
    assert_eq!(on_members(&file), [200 * BLOCK, 0]);
    write_pages(&file, 200..220);
    assert!(file.counters().reason(Reason::Elsewhere) > 0);
    holds_its_pages(&file, 220);
    drop(file);
    fs.unmount().unwrap();
    sound(&shared(&device));
}

/// A formatted volume on a device that loses what was not flushed, with its two members.
fn simulated() -> (Arc<SimulatedDevice>, Arc<HookedDevice<JoinedMembers>>) {
    let geometry = Geometry {
        logical_block_size: 512,
        physical_block_size: 512,
        untorn_unit: 512,
        volatile_cache: true,
        ..MemoryDevice::GEOMETRY
    };
    let blank = MemoryDevice::with_geometry(SIZE, geometry);
    let unshared: Arc<dyn BlockDevice> = Arc::clone(&blank) as _;
    format(&unshared, BLOCK as u32);
    let options = SimulatedOptions { geometry, ..SimulatedOptions::default() };
    let simulated = SimulatedDevice::over(&blank.snapshot(), &options);
    let members = JoinedMembers::over(Arc::clone(&simulated) as _, 2);
    (simulated, members)
}

/// S-623 under power cuts: at every operation of the device, with what was not flushed lost or there
/// in part, the file holds what it held, and the move goes on where it was cut.
#[test]
fn s_623_a_power_cut_finds_every_block_where_it_was_or_where_it_went() {
    let (device, members) = simulated();
    let fs = mounted(&members, IoMode::Concurrent);
    let file = create(&fs, "/file");
    place(&fs, file.ino(), "member0");
    write_pages(&file, 0..600);
    fs.create_checkpoint("c", &CheckpointOptions::default()).unwrap();
    write_pages(&file, 0..40);
    file.sync_data().unwrap();
    let (first, ino) = (device.operation_count(), file.ino());
    place(&fs, ino, "member1");
    let mut from = Some(0);
    while let Some(at) = from {
        from = fs.move_placed(ino, at, true).unwrap().next;
        if at % 3 == 0 {
            // The blocks that were left behind are used again.
            file.sync_data().unwrap();
            write_pages(&file, 550..551);
        }
    }
    file.sync_data().unwrap();
    let last = device.operation_count();
    assert!(on_members(&file)[0] == 0 && last > first + 4);
    drop((file, fs));
    for after in first..=last {
        for choice in [
            CrashChoice::LoseAll,
            CrashChoice::Seeded(after as u64),
            CrashChoice::Seeded(!(after as u64)),
        ] {
            let image: Arc<dyn BlockDevice> = device.crash_image(after, &choice);
            let members = JoinedMembers::over(image, 2);
            let fs = mounted(&members, IoMode::Concurrent);
            for path in ["/file", "/.checkpoints/c/file"] {
                holds_its_pages(&fs.open(path, &OpenOptions::read_only()).unwrap(), 600);
            }
            let file = fs.open("/file", &OpenOptions::read_write()).unwrap();
            move_all(&fs, ino, true);
            let placed = told(&fs, ino).members[0].path.as_deref() == Some("/dev/member1");
            assert_eq!(on_members(&file)[usize::from(!placed)], 0);
            holds_its_pages(&file, 600);
            drop(file);
            fs.unmount().unwrap();
            sound(&shared(&members));
        }
    }
}
