//! Administration of checkpoints: what a full volume does with them, what they hold, and schedules.

use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, BlockDevice, CrashChoice, QueueOptions, SimulatedDevice, SimulatedOptions, Snapshot,
};
use bedplate_fs::{
    AllocateMode, CheckpointOptions, CheckpointScope, CloneSource, ErrorKind, FileKind, FileSystem,
    InodeNo, IoMode, NewFile, OpenOptions, Queue, RollbackOptions, SpacePolicy,
};

use crate::common::assert_sound;
use crate::support::{Random, device, format, mount_as};

pub const BLOCK: u64 = 4096;
pub const MIB: usize = 1 << 20;

pub fn automatic() -> CheckpointOptions {
    CheckpointOptions { automatic: true, ..CheckpointOptions::default() }
}

pub fn names(fs: &FileSystem) -> Vec<String> {
    fs.checkpoints()
        .iter()
        .map(|checkpoint| String::from_utf8_lossy(&checkpoint.name).into_owned())
        .collect()
}

pub fn aligned(len: usize, fill: u8) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(len);
    buf.fill(fill);
    buf
}

pub fn put(
    fs: &FileSystem,
    path: &str,
    offset: u64,
    len: usize,
    fill: u8,
    mode: IoMode,
) -> bedplate_fs::Result<()> {
    let file = fs.open(path, &OpenOptions { mode: Some(mode), ..OpenOptions::create() })?;
    for at in (0..len).step_by(MIB) {
        file.write_at(&aligned(MIB.min(len - at), fill), offset + at as u64)?;
    }
    file.sync_all()
}

pub fn read(fs: &FileSystem, path: &str) -> Vec<u8> {
    let file = fs.open(path, &OpenOptions::read_only()).unwrap();
    let mut bytes = vec![0; file.size() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// A volume of 64 MiB with a file of 8 MiB that three automatic checkpoints hold in three versions,
/// the last of which is the present one, a manual and a kept one, and hardly anything free.
pub fn full(device: &Arc<dyn BlockDevice>, mode: IoMode, policy: SpacePolicy) -> FileSystem {
    format(device, 4096);
    let fs = mount_as(device, mode);
    fs.set_space_policy(policy).unwrap();
    let table = CheckpointScope::Paths(vec!["/table".into()]);
    let of_table = |automatic, kept| CheckpointOptions { scope: table.clone(), automatic, kept };
    put(&fs, "/table", 0, 4 * MIB, 1, mode).unwrap();
    fs.create_checkpoint("manual", &of_table(false, false)).unwrap();
    put(&fs, "/table", 0, 4 * MIB, 2, mode).unwrap();
    fs.create_checkpoint("kept", &of_table(true, true)).unwrap();
    for round in 0..3u8 {
        put(&fs, "/table", 0, 8 * MIB, 10 + round, mode).unwrap();
        fs.create_checkpoint(format!("auto{round}"), &of_table(true, false)).unwrap();
    }
    fs.sync().unwrap();
    let filler = fs.open("/filler", &OpenOptions::create()).unwrap();
    let mut len = fs.statfs().available_bytes - 64 * BLOCK;
    while let Err(error) = filler.allocate(AllocateMode::Preallocate { keep_size: false }, 0, len) {
        assert_eq!(error.kind, ErrorKind::NoSpace);
        len -= BLOCK;
    }
    assert_eq!(names(&fs).len(), 5, "filling took none");
    fs
}

/// S-82, S-55: what needs blocks gets them from the oldest checkpoints that may go, in every mode
/// and way; the others stay and show what they showed.
#[test]
fn s_82_a_full_volume_deletes_the_oldest_where_that_is_the_policy() {
    for mode in [IoMode::Cached, IoMode::Direct, IoMode::Concurrent, IoMode::ConcurrentCache] {
        let device = device(64 << 20, 512);
        let fs = full(&device, mode, SpacePolicy::DeleteOldest);
        // A file of one of them that is open keeps that one.
        let open = fs.open("/.checkpoints/auto0/table", &OpenOptions::read_only()).unwrap();
        put(&fs, "/table", 0, 4 * MIB, 30, mode).unwrap();
        assert_eq!(names(&fs), ["manual", "kept", "auto0", "auto2"], "{mode}");
        assert_eq!(fs.checkpoint_counts().deleted_for_space, 1);
        drop(open);
        let held = fs.hold_checkpoint("auto0").unwrap();
        assert_eq!(fs.delete_checkpoint("auto0").unwrap_err().kind, ErrorKind::Busy);
        put(&fs, "/table", 4 * MIB as u64, 4 * MIB, 31, mode).unwrap();
        put(&fs, "/new", 0, 2 * MIB, 32, mode).unwrap();
        assert_eq!(names(&fs), ["manual", "kept", "auto0"], "{mode}");
        drop(held);
        for (name, fill) in [("manual", 1), ("kept", 2)] {
            assert!(
                read(&fs, &format!("/.checkpoints/{name}/table")) == vec![fill; 4 * MIB],
                "{mode}: {name}"
            );
        }
        assert!(read(&fs, "/.checkpoints/auto0/table") == vec![10; 8 * MIB], "{mode}");
        // More than all that may go hold: refused, and nothing is deleted for nothing.
        let error = fs
            .open("/new", &OpenOptions::read_write())
            .unwrap()
            .allocate(AllocateMode::Preallocate { keep_size: true }, 0, 60 << 20)
            .unwrap_err();
        assert_eq!(error.kind, ErrorKind::NoSpace);
        assert_eq!(names(&fs), ["manual", "kept", "auto0"], "{mode}");
        assert!(
            read(&fs, "/table")[..4 * MIB] == vec![30; 4 * MIB]
                && read(&fs, "/new") == vec![32; 2 * MIB]
        );
        fs.unmount().unwrap();
        assert_sound(&device);
    }
}

/// S-55, S-82: where the policy is to refuse, which it is by default, the write fails, says why,
/// and every checkpoint stays.
#[test]
fn s_55_a_full_volume_refuses_by_default() {
    let device = device(64 << 20, 512);
    let fs = full(&device, IoMode::Concurrent, SpacePolicy::Refuse);
    let error = put(&fs, "/table", 0, 8 * MIB, 30, IoMode::Concurrent).unwrap_err();
    assert!(error.kind == ErrorKind::NoSpace && error.message.contains("delete-oldest"), "{error}");
    assert_eq!(names(&fs).len(), 5);
    // The policy is the volume's, and may change while it is full.
    fs.set_space_policy(SpacePolicy::DeleteOldest).unwrap();
    fs.unmount().unwrap();
    let fs = mount_as(&device, IoMode::Concurrent);
    assert_eq!(fs.info().checkpoints.policy, SpacePolicy::DeleteOldest);
    put(&fs, "/table", 0, 8 * MIB, 30, IoMode::Concurrent).unwrap();
    assert!(read(&fs, "/table") == vec![30; 8 * MIB]);
    fs.unmount().unwrap();
    assert_sound(&device);
}

/// S-82: a queue with I/O in flight, many writers at once, appends, allocation, and names, all on a
/// full volume: nothing waits for ever, nothing fails.
#[test]
fn s_82_room_is_made_for_queues_threads_and_names() {
    let device = device(64 << 20, 512);
    let fs = full(&device, IoMode::Concurrent, SpacePolicy::DeleteOldest);
    let file = Arc::new(fs.open("/table", &OpenOptions::read_write()).unwrap());
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let file = &file;
            scope.spawn(move || {
                for at in 0..100 {
                    file.write_at(&aligned(4096, 40), (thread * 100 + at) * BLOCK).unwrap();
                }
            });
        }
        let mut queue = Queue::new(&fs, &QueueOptions::default()).unwrap();
        for at in 400..700u64 {
            // Reads stay in flight while writes wait for room.
            queue.read(&file, AlignedBuf::zeroed(4096), 1_000 * BLOCK, 1000 + at).unwrap();
            queue.write(&file, aligned(4096, 41), at * BLOCK, at).unwrap();
            queue.submit().unwrap();
            let mut done = Vec::new();
            while done.len() < 2 {
                queue.complete(1, &mut done).unwrap();
            }
            done.into_iter().for_each(|done| assert_eq!(done.result.unwrap(), 4096));
        }
    });
    assert!(!names(&fs).contains(&"auto0".to_owned()), "{:?}", names(&fs));
    assert!(read(&fs, "/table")[..300 * 4096] == vec![40; 300 * 4096]);
    fs.create_checkpoint("last", &automatic()).unwrap();
    for i in 0..200 {
        fs.make(InodeNo::ROOT, format!("n{i}").as_bytes(), FileKind::File, NewFile::default(), 0)
            .unwrap();
    }
    assert!(names(&fs).starts_with(&["manual".to_owned(), "kept".to_owned()]));
    drop(file);
    fs.unmount().unwrap();
    assert_sound(&device);
}

/// As [`full`] makes it, and then not a block is free.
fn brimful(device: &Arc<dyn BlockDevice>) -> FileSystem {
    let fs = full(device, IoMode::Concurrent, SpacePolicy::Refuse);
    let filler = fs.open("/filler", &OpenOptions::read_write()).unwrap();
    let mut end = filler.size();
    while filler.allocate(AllocateMode::Preallocate { keep_size: false }, end, BLOCK).is_ok() {
        end += BLOCK;
    }
    drop(filler);
    fs.set_space_policy(SpacePolicy::DeleteOldest).unwrap();
    fs
}

/// S-82: no checkpoint goes for what is refused anyway: a name, an attribute, a checkpoint that
/// exists already, a rollback under open files. For the next name one goes.
#[test]
fn s_82_no_checkpoint_is_deleted_for_a_change_that_is_refused() {
    let device = device(64 << 20, 512);
    let fs = brimful(&device);
    let table = fs.lookup(InodeNo::ROOT, b"table").unwrap().ino;
    let make = |name: &[u8]| fs.make(InodeNo::ROOT, name, FileKind::File, NewFile::default(), 0);
    let open = fs.open("/table", &OpenOptions::read_write()).unwrap();
    let nowhere =
        CheckpointOptions { scope: CheckpointScope::Paths(vec!["/nowhere".into()]), ..automatic() };
    let refusals = [
        (make(b"table").map(drop), ErrorKind::Exists),
        (fs.set_xattr(table, b"user.nobody", b"other", false, true), ErrorKind::NoAttribute),
        (fs.create_checkpoint("auto0", &automatic()).map(drop), ErrorKind::Exists),
        (fs.create_checkpoint("new", &nowhere).map(drop), ErrorKind::NotFound),
        (fs.rollback("manual", &RollbackOptions::default()).map(drop), ErrorKind::Busy),
        (
            fs.clone_files(
                &CloneSource::Checkpoint { name: b"auto0".to_vec(), path: "/table".into() },
                "/table",
            )
            .map(drop),
            ErrorKind::Exists,
        ),
    ];
    for (at, (refused, kind)) in refusals.into_iter().enumerate() {
        assert_eq!(refused.unwrap_err().kind, kind, "{at}");
    }
    assert_eq!(names(&fs).len(), 5, "nothing was deleted for nothing");
    drop(open);
    make(b"wanted").unwrap();
    assert_eq!(names(&fs), ["manual", "kept", "auto1", "auto2"], "the volume was full");
    fs.unmount().unwrap();
    assert_sound(&device);
}

/// S-82: what is cloned, or rolled back to, is not what makes room for it.
#[test]
fn s_82_a_checkpoint_that_a_change_reads_makes_no_room_for_it() {
    for clones in [false, true] {
        let device = device(64 << 20, 512);
        let fs = brimful(&device);
        let shown = if clones {
            fs.clone_files(
                &CloneSource::Checkpoint { name: b"auto0".to_vec(), path: "/table".into() },
                "/clone",
            )
            .unwrap();
            "/clone"
        } else {
            fs.rollback(
                "auto0",
                &RollbackOptions { path: Some("/table".into()), ..RollbackOptions::default() },
            )
            .unwrap();
            "/table"
        };
        assert!(
            names(&fs).starts_with(&["manual", "kept", "auto0", "auto2"].map(str::to_owned)),
            "{clones}: {:?}",
            names(&fs)
        );
        assert!(read(&fs, shown) == vec![10; 8 * MIB], "{clones}");
        // Nothing holds it any more.
        fs.delete_checkpoint("auto0").unwrap();
        fs.unmount().unwrap();
        assert_sound(&device);
    }
}

/// S-83: what one checkpoint, several, or all of them hold is what deleting them frees, to the
/// block.
#[test]
fn s_83_what_deleting_any_set_would_free_is_exact() {
    for seed in 0..3 {
        let device = device(96 << 20, 512);
        format(&device, 4096);
        let fs = mount_as(&device, IoMode::Concurrent);
        let mut random = Random::new(seed);
        for round in 0..14 {
            for _ in 0..random.below(10) {
                let (path, at) = (format!("/f{}", random.below(3)), random.below(60) * BLOCK);
                put(
                    &fs,
                    &path,
                    at,
                    4096 * (1 + random.below(12)) as usize,
                    round,
                    IoMode::Concurrent,
                )
                .unwrap();
                if random.chance(4) {
                    fs.open(&path, &OpenOptions::read_write())
                        .unwrap()
                        .set_size(random.below(200_000))
                        .unwrap();
                }
                if random.chance(9) {
                    fs.remove(&path).unwrap();
                }
            }
            let paths = if random.chance(3) && fs.resolve("/f1").is_ok() {
                vec!["/f1".into()]
            } else {
                Vec::new()
            };
            let scope = if paths.is_empty() {
                CheckpointScope::Everything
            } else {
                CheckpointScope::Paths(paths)
            };
            fs.create_checkpoint(
                format!("c{round}"),
                &CheckpointOptions { scope, ..CheckpointOptions::default() },
            )
            .unwrap();
        }
        put(&fs, "/f0", 0, 60 * 4096, 99, IoMode::Concurrent).unwrap();
        while !fs.checkpoints().is_empty() {
            let set: Vec<String> = names(&fs).into_iter().filter(|_| random.chance(3)).collect();
            fs.sync().unwrap();
            let (told, all, free) = (
                fs.checkpoints_space(&set).unwrap(),
                fs.all_checkpoints_space().unwrap(),
                fs.statfs().free_bytes,
            );
            let mut order = set.clone();
            order.sort_by_cached_key(|_| random.next());
            order.iter().for_each(|name| fs.delete_checkpoint(name).unwrap());
            assert_eq!(fs.statfs().free_bytes - free, told.alone_bytes, "seed {seed}: {set:?}");
            assert_eq!(
                all.alone_bytes - told.alone_bytes,
                fs.all_checkpoints_space().unwrap().alone_bytes,
                "seed {seed}"
            );
        }
        assert_eq!(fs.all_checkpoints_space().unwrap().alone_bytes, 0);
        assert_eq!(fs.checkpoints_space(&["never"]).unwrap_err().kind, ErrorKind::NotFound);
        fs.unmount().unwrap();
        assert_sound(&device);
    }
}

/// S-82, S-52, S-54: the power is cut after every device operation of writes that make room on a
/// full volume: what is there of checkpoints shows what it showed, manual and kept ones are there,
/// what was synced is there, and the volume is sound.
#[test]
fn s_82_room_is_made_safely_under_power_cuts() {
    let size = 40 << 20;
    let mut base = Snapshot::empty(size);
    (0..size >> 20).for_each(|mib| base.write(&vec![0xdb; MIB], mib << 20));
    let simulated =
        SimulatedDevice::over(&base, &SimulatedOptions { seed: 5, ..SimulatedOptions::default() });
    let device: Arc<dyn BlockDevice> = simulated.clone();
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    fs.set_space_policy(SpacePolicy::DeleteOldest).unwrap();
    let len = 64 * 4096;
    put(&fs, "/table", 0, len, 1, IoMode::Concurrent).unwrap();
    fs.create_checkpoint("manual", &CheckpointOptions::default()).unwrap();
    for round in 0..4u8 {
        put(&fs, "/table", 0, len, 10 + round, IoMode::Concurrent).unwrap();
        fs.create_checkpoint(format!("auto{round}"), &automatic()).unwrap();
    }
    let filler = fs.open("/filler", &OpenOptions::create()).unwrap();
    let mut left = fs.statfs().available_bytes;
    while filler.allocate(AllocateMode::Preallocate { keep_size: false }, 0, left).is_err() {
        left -= BLOCK;
    }
    drop(filler);
    fs.sync().unwrap();
    let before = names(&fs);
    let start = simulated.operation_count();
    let mut states = vec![(start, 13u8)];
    for fill in 30..34u8 {
        fs.create_checkpoint(format!("auto{}", fill - 20), &automatic()).unwrap();
        put(&fs, "/table", 0, len, fill, IoMode::Concurrent).unwrap();
        states.push((simulated.operation_count(), fill));
    }
    assert!(fs.checkpoint_counts().deleted_for_space >= 3, "{before:?} became {:?}", names(&fs));
    for after in start..=simulated.operation_count() {
        let choices =
            [CrashChoice::LoseAll, CrashChoice::KeepAll, CrashChoice::Seeded(after as u64)];
        let image: Arc<dyn BlockDevice> = simulated.crash_image(after, &choices[after % 3]);
        assert_sound(&image);
        let fs = mount_as(&image, IoMode::Concurrent);
        let context = format!("cut after {after}, {:?}: {:?}", choices[after % 3], names(&fs));
        assert!(read(&fs, "/.checkpoints/manual/table") == vec![1; len], "{context}");
        for round in (0..20u8).filter(|round| names(&fs).contains(&format!("auto{round}"))) {
            // Those of the beginning show what was written before each, the later ones what was
            // synced before them.
            let shown = if round < 4 {
                10 + round
            } else if round == 10 {
                13
            } else {
                19 + round
            };
            assert!(
                read(&fs, &format!("/.checkpoints/auto{round}/table")) == vec![shown; len],
                "auto{round}: {context}"
            );
        }
        let synced = states.iter().rfind(|(at, _)| *at <= after).unwrap().1;
        let next = if synced == 13 { 30 } else { synced + 1 };
        assert!(
            read(&fs, "/table").iter().all(|byte| *byte == synced || *byte == next),
            "{context}"
        );
        assert_eq!(fs.checkpoint_counts().policy, SpacePolicy::DeleteOldest, "{context}");
        fs.unmount().unwrap();
        assert_sound(&image);
    }
    drop(fs);
}

/// Creation, listing, accounting and deletion of a thousand checkpoints, in any order: see also
/// `a_thousand_checkpoints_are_kept_and_the_middle_one_deleted`.
#[test]
fn s_83_a_thousand_checkpoints_are_counted_and_deleted_in_any_order() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    put(&fs, "/a", 0, 40_960, 0, IoMode::Concurrent).unwrap();
    let file = fs
        .open("/a", &OpenOptions { mode: Some(IoMode::Concurrent), ..OpenOptions::read_write() })
        .unwrap();
    for i in 0..1000u64 {
        file.write_at(&aligned(4096, i as u8), i % 10 * BLOCK).unwrap();
        fs.create_checkpoint(format!("c{i}"), &automatic()).unwrap();
    }
    file.write_at(&aligned(40_960, 7), 0).unwrap();
    fs.sync().unwrap();
    // The metadata takes blocks too when it grows, as many as it grows by or fewer: it has some in
    // hand.
    let free = |fs: &FileSystem| fs.statfs().free_bytes + fs.info().metadata_bytes;
    let before = free(&fs);
    let all = fs.all_checkpoints_space().unwrap().alone_bytes;
    // A version lives from the write that made it to the one ten checkpoints later: the first and
    // the last ten lives lie at the ends.
    let alone: u64 =
        names(&fs).iter().map(|name| fs.checkpoint_space(name).unwrap().alone_bytes).sum();
    assert!(alone < all, "blocks that several share belong to none alone");
    let mut random = Random::new(3);
    let mut order = names(&fs);
    order.sort_by_cached_key(|_| random.next());
    order.iter().for_each(|name| fs.delete_checkpoint(name).unwrap());
    assert!(free(&fs) >= before + all, "{} bytes instead of {}", free(&fs), before + all);
    assert_eq!(fs.all_checkpoints_space().unwrap().alone_bytes, 0);
    assert!(read(&fs, "/a") == vec![7; 40_960]);
    drop(file);
    fs.unmount().unwrap();
    assert_sound(&device);
}
