//! The free space that the metadata keep: read at mount, mended, made by an upgrade.

use std::sync::Arc;

use bedplate_block::{BlockDevice, CrashChoice, MemoryDevice, SimulatedDevice};
use bedplate_store::{
    ExtentRow, FileBlock, PlantedBug, Record, RecordKind, RowChange, Run, Table, extent_key, plant,
};

use crate::{
    CheckpointOptions, CloneSource, ErrorKind, FileSystem, FindingKind, FormatOptions, IoMode,
    Limits, MountOptions, OpenOptions, Result, forge,
};

const SIZE: u64 = 64 << 20;
const BLOCK: u64 = 4096;

fn formatted() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(SIZE);
    FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
    device
}

fn mount(device: &Arc<dyn BlockDevice>) -> FileSystem {
    let (extents_per_pack, free_runs_open) = (Some(3), Some(2));
    let limits = Limits { extents_per_pack, free_runs_open, ..Limits::default() };
    let options = MountOptions { mode: IoMode::Concurrent, limits, ..MountOptions::default() };
    FileSystem::mount(Arc::clone(device), None, options).unwrap()
}

fn random(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}

/// Writes, cuts, removes, checkpoints and clones.
fn change(fs: &FileSystem, seed: &mut u64) -> Result<()> {
    let name = format!("/f{}", random(seed, 12));
    match random(seed, 16) {
        0 => drop(fs.remove(&name)),
        1 => drop(
            fs.create_checkpoint(format!("c{}", random(seed, 4)), &CheckpointOptions::default()),
        ),
        2 => drop(fs.delete_checkpoint(format!("c{}", random(seed, 4)))),
        3 => {
            let source = CloneSource::Present(name.clone().into());
            drop(fs.clone_files(&source, format!("/f{}", random(seed, 12))));
        }
        4 => fs.open(&name, &OpenOptions::create())?.set_size(random(seed, 60) * BLOCK)?,
        _ => {
            let file = fs.open(&name, &OpenOptions::create())?;
            let len = (1 + random(seed, 20)) * BLOCK;
            let buffer = vec![7; usize::try_from(len).expect("small")];
            file.write_at(&buffer, random(seed, 100) * BLOCK)?;
        }
    }
    Ok(())
}

fn findings(device: &Arc<dyn BlockDevice>) -> Vec<(FindingKind, String)> {
    let report = FileSystem::check(device, None, false).unwrap();
    report.findings.into_iter().map(|finding| (finding.kind, finding.message)).collect()
}

/// Free bytes, runs, and the longest run, as a mount finds them.
fn found(device: &Arc<dyn BlockDevice>) -> (u64, u64, u64) {
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = FileSystem::mount(Arc::clone(device), None, options).unwrap();
    // Regions are read, so that runs that reach over their borders are one.
    fs.state().allocator().load_everything();
    let info = fs.info();
    (info.free_bytes, info.free_runs, info.free_run_bytes_max)
}

/// S-194, I-SPC-6, I-SPC-7: what a mount reads of the free space is what it would count of all
/// extents, after unmounts and after crashes, whatever files, checkpoints and clones did.
#[test]
fn s_194_i_spc_6_i_spc_7_the_stored_free_space_is_that_of_all_extents() {
    for first in 0..4 {
        let (device, mut seed) = (formatted(), first);
        for round in 0..12 {
            let fs = mount(&device);
            assert_eq!(fs.info().recovery.extents, 0, "no extent is read");
            for _ in 0..40 {
                change(&fs, &mut seed).unwrap();
            }
            if random(&mut seed, 2) == 0 {
                fs.unmount().unwrap();
            } else {
                fs.sync().unwrap();
                drop(fs);
            }
            assert_eq!(findings(&device), [], "seed {first}, round {round}");
            let stored = found(&device);
            forge::make_old(&device, 1).unwrap();
            assert_eq!(stored, found(&device), "seed {first}, round {round}");
            forge::make_new(&device).unwrap();
        }
    }
}

/// S-194: a mistake in keeping it is found.
#[test]
fn s_194_a_free_space_that_is_kept_wrong_is_found() {
    for bug in [PlantedBug::FreedRunNotFolded, PlantedBug::SpaceFoldedTwice] {
        let (device, mut seed) = (formatted(), 5);
        for planted in [None, Some(bug)] {
            let fs = mount(&device);
            plant(planted);
            for _ in 0..60 {
                change(&fs, &mut seed).unwrap();
            }
            fs.unmount().unwrap();
        }
        plant(None);
        let found = findings(&device);
        assert!(found.iter().any(|(kind, _)| *kind == FindingKind::Space), "{bug:?}: {found:?}");
    }
}

/// S-194, I-SPC-6: cuts at any operation, metadata commits among them, leave a free space that is
/// that of the rows; one that is committed for itself is found.
#[test]
fn s_194_i_spc_6_a_power_cut_leaves_rows_and_free_space_of_one_commit() {
    let cut = |bug: Option<PlantedBug>| {
        let device = SimulatedDevice::new(SIZE, 1);
        let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
        FileSystem::format(&shared, None, &FormatOptions::default()).unwrap();
        let (fs, mut seed) = (mount(&shared), 8);
        plant(bug);
        let start = device.operation_count();
        for _ in 0..4 {
            for _ in 0..12 {
                change(&fs, &mut seed).unwrap();
            }
            fs.state().metadata_commit().unwrap();
        }
        let end = device.operation_count();
        drop(fs);
        plant(None);
        (start..=end).step_by(3).find_map(|after| {
            let image: Arc<dyn BlockDevice> =
                device.crash_image(after, &CrashChoice::Seeded(after as u64));
            let mut found = findings(&image);
            found.retain(|(kind, _)| *kind != FindingKind::Superblock);
            (!found.is_empty()).then(|| format!("cut after operation {after}: {found:?}"))
        })
    };
    assert_eq!(cut(None), None);
    let found = cut(Some(PlantedBug::SpaceCommittedApart)).expect("a mistake is found");
    assert!(found.contains("Space"), "{found}");
}

/// I-SPC-7: blocks that leave a file can be used again, also where a metadata commit has come
/// before and their region had not been read.
#[test]
fn i_spc_7_a_region_is_read_before_a_commit_changes_it() {
    let give_back = |bug: Option<PlantedBug>| {
        let device = formatted();
        let fs = mount(&device);
        let file = fs.open("/f", &OpenOptions::create()).unwrap();
        let content = vec![7; 3000 * BLOCK as usize];
        file.write_at(&content, 0).unwrap();
        for hole in (0..3000).step_by(3) {
            file.allocate(crate::AllocateMode::PunchHole, hole * BLOCK, BLOCK).unwrap();
        }
        drop(file);
        let ino = fs.resolve("/f").unwrap().ino;
        fs.unmount().unwrap();
        let fs = mount(&device);
        plant(bug);
        let state = fs.state();
        let key = extent_key(ino, FileBlock(1501));
        let row = state.row(Table::Extent, &key).unwrap().expect("the file has an extent there");
        let start = ExtentRow::decode(&row).unwrap().start;
        let rows = vec![RowChange::delete(Table::Extent, key)];
        let record = Record { kind: RecordKind::Punch, rows, exposes: None, barrier: false };
        let lsn = state.metadata().commit(record, None).lsn;
        state.metadata_commit().unwrap();
        state.release_after(lsn, Run { start, blocks: 2 });
        state.allocator().release_sealed(lsn);
        let free = fs.statfs().free_bytes;
        fs.unmount().unwrap();
        plant(None);
        let found = findings(&device);
        assert!(found.iter().all(|(kind, _)| *kind == FindingKind::AllocatedSize), "{found:?}");
        free
    };
    let free = give_back(None);
    assert!(give_back(Some(PlantedBug::ChangedRegionNotLoaded)) < free, "a mistake is noticed");
}

/// S-195: what is stored of the free space and does not count is counted anew by the next mount, or
/// by a repair; no block that is in use is given to another file meanwhile.
#[test]
fn s_195_a_free_space_that_is_lost_or_wrong_is_counted_anew() {
    let (device, mut seed) = (formatted(), 9);
    let fs = mount(&device);
    for _ in 0..60 {
        change(&fs, &mut seed).unwrap();
    }
    fs.unmount().unwrap();
    forge::put_rows(&device, &[]).unwrap();
    let fs = mount(&device);
    assert!(fs.info().recovery.extents > 0, "all extents are read");
    fs.unmount().unwrap();
    assert_eq!(findings(&device), []);
    let fs = mount(&device);
    assert_eq!(fs.info().recovery.extents, 0);
    plant(Some(PlantedBug::FreedRunNotFolded));
    for _ in 0..60 {
        change(&fs, &mut seed).unwrap();
    }
    fs.unmount().unwrap();
    plant(None);
    assert!(!findings(&device).is_empty());
    let report = FileSystem::check(&device, None, true).unwrap();
    assert!(report.is_sound() && !report.findings.is_empty(), "{report:?}");
    assert_eq!(findings(&device), []);
}

/// S-196, S-273: an upgrade that is cut at any operation leaves a volume that mounts, is sound, and
/// can be upgraded again; of the oldest format, and of the one before packs of extents.
#[test]
fn s_196_s_273_an_upgrade_that_is_cut_leaves_a_whole_volume() {
    for old in [1, 3] {
        cut_upgrade(old);
    }
}

fn cut_upgrade(old: u32) {
    let base = formatted();
    let (fs, mut seed) = (mount(&base), 3);
    for _ in 0..80 {
        change(&fs, &mut seed).unwrap();
    }
    fs.sync().unwrap();
    drop(fs);
    forge::make_old(&base, old).unwrap();
    let free = found(&base).0;
    let device = SimulatedDevice::new(SIZE, 1);
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
    copy(&base, &shared);
    let start = device.operation_count();
    let report = FileSystem::upgrade(&shared, None).unwrap();
    assert!(report.from <= old && report.to == 5 && report.extents > 0, "{report:?}");
    let mut versions = [0; 7];
    for after in start..=device.operation_count() {
        for seed in 0..3 {
            let image: Arc<dyn BlockDevice> = device.crash_image(after, &CrashChoice::Seeded(seed));
            let broken: Vec<_> = findings(&image)
                .into_iter()
                .filter(|(kind, _)| *kind != FindingKind::Superblock)
                .collect();
            assert_eq!(broken, [], "cut after operation {after}, seed {seed}");
            let fs = mount(&image);
            versions[fs.info().version as usize] += 1;
            fs.open("/f0", &OpenOptions::create()).unwrap().write_at(&[1; 5000], 0).unwrap();
            fs.unmount().unwrap();
            let again = FileSystem::upgrade(&image, None).unwrap();
            assert_eq!(again.to, 5, "cut after operation {after}, seed {seed}");
            assert_eq!(findings(&image), [], "cut after operation {after}, seed {seed}");
            assert_eq!(mount(&image).info().recovery.extents, 0);
        }
    }
    let before = versions[old as usize];
    assert!(before > 0 && versions[6] > 0, "cuts fall before and behind it: {versions:?}");
    assert_eq!(FileSystem::upgrade(&shared, None).unwrap().extents, 0, "there is nothing to do");
    assert_eq!(found(&shared).0, free);
}

fn copy(from: &Arc<dyn BlockDevice>, to: &Arc<dyn BlockDevice>) {
    let mut buffer = bedplate_block::AlignedBuf::zeroed(1 << 20);
    for at in (0..SIZE).step_by(1 << 20) {
        from.read_at(&mut buffer, at).unwrap();
        if buffer.iter().any(|byte| *byte != 0) {
            to.write_at(&buffer, at).unwrap();
        }
    }
    to.flush().unwrap();
}

/// S-197: a volume of an older format mounts as it is, stays of it, and says nothing of the free
/// space that it keeps.
#[test]
fn s_197_a_volume_of_an_older_format_stays_so() {
    let (device, mut seed) = (formatted(), 4);
    forge::make_old(&device, 1).unwrap();
    for _ in 0..2 {
        let fs = mount(&device);
        for _ in 0..40 {
            change(&fs, &mut seed).unwrap();
        }
        assert!(fs.info().version < 3);
        fs.unmount().unwrap();
        assert_eq!(findings(&device), []);
    }
}

/// S-198: an unmounted volume lets its device go, also while a program still holds the file system.
#[test]
fn s_198_an_unmounted_volume_lets_its_device_go() {
    let device = formatted();
    let (fs, mut seed) = (mount(&device), 4);
    for _ in 0..40 {
        change(&fs, &mut seed).unwrap();
    }
    fs.unmount().unwrap();
    assert_eq!(Arc::strong_count(&device), 1, "nothing keeps the device");
    let fs = mount(&device);
    drop(fs);
    assert_eq!(Arc::strong_count(&device), 1, "nothing keeps the device");
}

/// S-194: where less is in memory than is free, all that is free can be used.
#[test]
fn s_194_all_that_is_free_can_be_used() {
    let device = formatted();
    let fs = mount(&device);
    let file = fs.open("/holes", &OpenOptions::create()).unwrap();
    // Two blocks of three, over the whole volume.
    let mut at = 0;
    let end = loop {
        match file.write_at(&[3; 3 * BLOCK as usize], at) {
            Ok(_) => at += 3 * BLOCK,
            Err(error) if error.kind == ErrorKind::NoSpace => break at,
            Err(error) => panic!("{error}"),
        }
    };
    for hole in (0..end).step_by(3 * BLOCK as usize) {
        file.allocate(crate::AllocateMode::PunchHole, hole, BLOCK).unwrap();
    }
    drop(file);
    fs.unmount().unwrap();
    let fs = mount(&device);
    let (before, info) = (fs.statfs(), fs.info());
    assert!(info.free_runs > 1000, "{} runs", info.free_runs);
    let file = fs.open("/f", &OpenOptions::create()).unwrap();
    let mut written = 0;
    while file.write_at(&[4; BLOCK as usize], written).is_ok() {
        written += BLOCK;
    }
    assert!(written + 64 * BLOCK >= before.available_bytes, "{written} of {before:?}");
    drop(file);
    fs.unmount().unwrap();
    assert_eq!(findings(&device), []);
}

/// S-416: a check has the extents of one slice of the volume in memory at a time; the slices are all
/// of the volume, and none has many more extents than it may.
#[test]
fn s_416_slices_are_all_of_a_volume_and_have_few_extents_each() {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(256 << 20);
    FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
    let (files, units_of_file, unit_blocks) = (1, 3000, 2);
    let large =
        forge::Large { files, units_of_file, unit_blocks, slots_percent: 300, summed: false };
    forge::make_large(&device, &large).unwrap();
    let loaded = crate::mount::load(Arc::clone(&device), None, true, 1 << 20).unwrap();
    let superblock = loaded.found.superblock.clone();
    let slices = loaded.meta.slices(100).unwrap();
    assert!(slices.len() >= 20, "{slices:?}");
    assert_eq!(slices[0].start, 0);
    assert!(slices.windows(2).all(|pair| pair[0].end == pair[1].start), "{slices:?}");
    assert_eq!(slices.last().unwrap().end, superblock.size_bytes / BLOCK);
    let mut blocks = 0;
    for slice in slices {
        let claimed =
            crate::mount::collect_claims(&loaded.meta, &superblock, slice, |_, error| Err(error));
        let claims = claimed.unwrap().claims;
        // A region is in one slice, and has some 60 extents here.
        let (count, covered) = claims.counts();
        assert!(count <= 200, "{count} extents of {:?}", claims.slice());
        blocks += covered;
    }
    assert_eq!(blocks, 2 * 3000, "each block of an extent lies in one slice");
}
