//! The store and its region on devices that keep count and fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bedplate_block::{
    BlockDevice, CrashChoice, DeviceCall, Fault, FaultRule, FlushFault, Hook, HookedDevice,
    ReadFault, SimulatedDevice, SimulatedOptions, Trigger,
};

use crate::engine::{Engine, NEXT_INO};
use crate::{ErrorKind, FileSystem, FormatOptions, MountOptions};
use bedplate_store::{
    ByteRun, CONTENT_BYTES, COPY_B, COPY_BYTES, Lists, Record, RecordKind, RowChange, Superblock,
    Table,
};

const SIZE: u64 = 64 << 20;

fn quiet() -> MountOptions {
    MountOptions {
        sync_interval: std::time::Duration::from_secs(86_400),
        ..MountOptions::default()
    }
}

fn volume() -> Arc<SimulatedDevice> {
    let device = SimulatedDevice::new(SIZE, 1);
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
    format(&shared, 1 << 20);
    device
}

fn format(device: &Arc<dyn BlockDevice>, log_bytes: u64) {
    let options =
        FormatOptions { log_bytes: Some(log_bytes), force: true, ..FormatOptions::default() };
    FileSystem::format(device, None, &options).unwrap();
}

fn mount(device: Arc<dyn BlockDevice>) -> Arc<Engine> {
    crate::mount::mount(device, None, quiet()).unwrap()
}

fn set(fs: &Engine, name: &[u8], value: Vec<u8>) {
    let rows = vec![RowChange::put(Table::Setting, name.to_vec(), value)];
    let _committed = fs
        .metadata()
        .commit(Record { kind: RecordKind::Setting, rows, exposes: None, barrier: false }, None);
}

fn get(fs: &Engine, name: &[u8]) -> Option<Vec<u8>> {
    fs.row(Table::Setting, name).unwrap()
}

/// I-META-1: what memory showed last is what replay ends with, whatever the threads did.
#[test]
fn i_meta_1_the_log_has_the_order_of_memory() {
    let device = volume();
    let fs = mount(Arc::clone(&device) as _);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let fs = &fs;
            scope.spawn(move || {
                (0..500u16).for_each(|i| {
                    set(fs, b"contended", [&[thread], i.to_le_bytes().as_slice()].concat());
                });
            });
        }
    });
    let last = get(&fs, b"contended");
    fs.sync_to(fs.last_lsn()).unwrap();
    let image: Arc<dyn BlockDevice> =
        device.crash_image(device.operation_count(), &CrashChoice::LoseAll);
    assert_eq!(get(&mount(image), b"contended"), last);
}

/// I-META-1: a record that names a row twice ends, after a replay too, with what it says last.
#[test]
fn i_meta_1_replay_applies_the_rows_of_a_record_in_their_order() {
    let device = volume();
    let fs = mount(Arc::clone(&device) as _);
    let put = |name: &[u8], value: u8| RowChange::put(Table::Setting, name.to_vec(), vec![value]);
    let rows = vec![
        put(b"twice", 1),
        put(b"gone", 1),
        put(b"twice", 2),
        RowChange::delete(Table::Setting, b"gone".to_vec()),
    ];
    let _committed = fs
        .metadata()
        .commit(Record { kind: RecordKind::Setting, rows, exposes: None, barrier: false }, None);
    let both = |fs: &Engine| (get(fs, b"twice"), get(fs, b"gone"));
    assert_eq!(both(&fs), (Some(vec![2]), None));
    fs.sync_to(fs.last_lsn()).unwrap();
    let image: Arc<dyn BlockDevice> =
        device.crash_image(device.operation_count(), &CrashChoice::LoseAll);
    assert_eq!(both(&mount(image)), (Some(vec![2]), None));
}

/// I-META-2 and I-META-3: a power cut at any moment of metadata commits, also of those that a full
/// log asks for, leaves one prefix of the changes, with everything synced in it.
#[test]
fn i_meta_2_and_3_a_commit_holds_exactly_a_prefix() {
    let device = volume();
    let fs = mount(Arc::clone(&device) as _);
    let mut synced = vec![(device.operation_count(), 0u32)];
    for i in 1..=40u32 {
        set(&fs, b"first", i.to_le_bytes().to_vec());
        set(&fs, b"bulk", vec![7; 60_000]);
        set(&fs, b"last", i.to_le_bytes().to_vec());
        match i % 5 {
            0 => fs.metadata_commit().unwrap(),
            _ => fs.sync_to(fs.last_lsn()).unwrap(),
        }
        synced.push((device.operation_count(), i));
    }
    assert!(fs.log_info().metadata_commits > 8, "the log was full at least once");
    let number = |fs: &Engine, name: &[u8]| {
        get(fs, name).map_or(0, |bytes| u32::from_le_bytes(bytes.try_into().unwrap()))
    };
    for after in (synced[0].0..=device.operation_count()).step_by(3) {
        for choice in [CrashChoice::LoseAll, CrashChoice::Seeded(after as u64)] {
            let recovered = mount(device.crash_image(after, &choice));
            let (first, last) = (number(&recovered, b"first"), number(&recovered, b"last"));
            let promised = synced.iter().rfind(|(end, _)| *end <= after).unwrap().1;
            assert!(
                last == first || last + 1 == first,
                "I-META-2: cut after {after}: first {first}, last {last}"
            );
            assert!(
                last >= promised,
                "I-META-3: cut after {after}: step {promised} was synced, {last} is there"
            );
        }
    }
}

/// Acts once, before a write to a range.
struct BeforeWrite {
    range: std::ops::Range<u64>,
    /// Writes there that come first.
    skip: AtomicUsize,
    act: parking_lot::Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl std::fmt::Debug for BeforeWrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "acts before a write to {:?}", self.range)
    }
}

impl Hook for BeforeWrite {
    fn call(
        &self,
        call: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> bedplate_block::Result<()>,
    ) -> bedplate_block::Result<()> {
        if let DeviceCall::Write { offset, .. } = call
            && self.range.contains(&offset)
            && self.act.lock().is_some()
            && self
                .skip
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
                .is_err()
        {
            let act = self.act.lock().take();
            act.into_iter().for_each(|act| act());
        }
        pass()
    }
}

fn before_write(
    device: &Arc<SimulatedDevice>,
    run: ByteRun,
    skip: usize,
) -> Arc<HookedDevice<BeforeWrite>> {
    let (range, act) = (run.start..run.end(), parking_lot::Mutex::default());
    let hook = BeforeWrite { range, skip: AtomicUsize::new(skip), act };
    HookedDevice::new(Arc::clone(device) as _, hook)
}

/// I-META-3: another thread fills the log up before a metadata commit has written anything, and the
/// power fails. The log still has what the tree has not.
#[test]
fn i_meta_3_the_log_is_not_written_over_before_the_tree_has_what_it_held() {
    let device = volume();
    let tree = copy_at(&(Arc::clone(&device) as _), 0).unwrap().chunks[0];
    let hooked = before_write(&device, tree, 0);
    let fs = mount(Arc::clone(&hooked) as _);
    let synced = |name: &str, step: u8| {
        set(&fs, format!("{name}-{step}").as_bytes(), vec![step; 30_000]);
        fs.sync_to(fs.last_lsn()).unwrap();
    };
    fs.metadata_commit().unwrap();
    let has_room = || fs.log_info().used_bytes + (80 << 10) < fs.log_info().size_bytes;
    let mut before = 0;
    while has_room() && before < 40 {
        synced("before", before);
        before += 1;
    }
    assert!((10..40).contains(&before), "{before}");
    let cut = std::thread::scope(|scope| {
        let (go, told) = std::sync::mpsc::sync_channel::<()>(0);
        let (done, ended) = std::sync::mpsc::sync_channel::<()>(0);
        *hooked.act.lock() = Some(Box::new(move || {
            go.send(()).unwrap();
            ended.recv().unwrap();
        }));
        let (synced, has_room, device) = (&synced, &has_room, &device);
        let beside = scope.spawn(move || {
            told.recv().unwrap();
            (0..40).take_while(|_| has_room()).for_each(|step| synced("beside", step));
            let cut = device.operation_count();
            done.send(()).unwrap();
            cut
        });
        let committed = fs.metadata_commit();
        // Where it wrote nothing there, the other thread waits no longer.
        drop(hooked.act.lock().take());
        committed.unwrap();
        beside.join().unwrap()
    });
    let recovered = mount(device.crash_image(cut, &CrashChoice::LoseAll));
    for step in 0..before {
        let name = format!("before-{step}");
        assert_eq!(get(&recovered, name.as_bytes()), Some(vec![step; 30_000]), "{name}");
    }
}

/// I-META-4: rows never vanish from readers while they move from memory into the tree.
#[test]
fn i_meta_4_readers_see_rows_all_through_a_commit() {
    let fs = mount(volume() as _);
    (0..200u32).for_each(|i| set(&fs, &i.to_be_bytes(), vec![1]));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut looks = 0;
            while !done.load(Ordering::Relaxed) || looks < 100 {
                let mut seen = 0;
                let visit = |key: &[u8], _: &[u8]| {
                    seen += u32::from(key.len() == 4);
                    Ok(std::ops::ControlFlow::Continue(()))
                };
                fs.scan_table(Table::Setting, visit).unwrap();
                assert_eq!(seen, 200);
                assert!(get(&fs, &(looks % 200u32).to_be_bytes()).is_some());
                looks += 1;
            }
        });
        for round in 0..30u8 {
            (0..200u32).for_each(|i| set(&fs, &i.to_be_bytes(), vec![round]));
            fs.metadata_commit().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
}

/// I-REG-1: a power cut at any moment while the region grows leaves a tree that opens, with
/// everything synced in it.
#[test]
fn i_reg_1_the_region_grows_before_it_is_used() {
    let device = volume();
    let fs = mount(Arc::clone(&device) as _);
    let (before, start) = (fs.superblock().metadata_len, device.operation_count());
    let mut synced = vec![(start, 0u32)];
    for i in 0..40u32 {
        (0..50u32).for_each(|j| set(&fs, format!("{i}-{j}").as_bytes(), vec![3; 1500]));
        fs.metadata_commit().unwrap();
        synced.push((device.operation_count(), i + 1));
    }
    assert!(fs.superblock().metadata_len > before, "it did grow");
    for after in
        (start..=device.operation_count()).step_by(1 + (device.operation_count() - start) / 150)
    {
        let recovered = mount(device.crash_image(after, &CrashChoice::Seeded(after as u64)));
        let promised = synced.iter().rfind(|(end, _)| *end <= after).unwrap().1;
        assert!(
            (0..promised).all(|i| get(&recovered, format!("{i}-49").as_bytes()).is_some()),
            "cut after {after}"
        );
    }
}

/// I-REG-2 and S-33: after one failed flush nothing is durable again, although the device has
/// recovered; reads go on.
#[test]
fn i_reg_2_s_33_a_failed_flush_is_final() {
    let device = volume();
    let fs = mount(Arc::clone(&device) as _);
    set(&fs, b"x", vec![1]);
    device.inject(FaultRule::new(Fault::Flush(FlushFault::Fail), Trigger::Next(1)));
    assert_eq!(fs.metadata_commit().unwrap_err().kind, ErrorKind::Io);
    device.clear_faults();
    let flushes = device.counters().flushes;
    assert!(
        fs.metadata_commit().is_err()
            && fs.sync_to(fs.last_lsn()).is_err()
            && fs.sync_to(crate::Lsn(0)).is_err()
    );
    assert_eq!(
        device.counters().flushes,
        flushes,
        "a flush after a failed one proves nothing and is not asked for"
    );
    let refused = fs.begin_change().unwrap_err();
    assert_eq!(refused.kind, ErrorKind::ReadOnly);
    assert!(
        refused.message.contains("turned read-only")
            && refused.message.matches("mend the device, unmount and mount again").count() == 1,
        "{refused}"
    );
    assert_eq!(get(&fs, b"x"), Some(vec![1]));
}

fn superblock() -> Superblock {
    Superblock {
        uuid: [7; 16],
        generation: 1,
        block_size: 4096,
        size_bytes: SIZE,
        clean: true,
        log_separate: false,
        log: ByteRun { start: COPY_BYTES, len: 1 << 20 },
        metadata_len: 4096,
        chunks: vec![ByteRun { start: 2 << 20, len: 1 << 20 }],
        lists: Lists::default(),
        keeps_space: false,
        packs: false,
        sums: false,
        carries: false,
    }
}

/// I-SB-1: a power cut at any moment of an update leaves a superblock: the old or the new one.
#[test]
fn i_sb_1_an_update_leaves_one_whole_copy() {
    let device = SimulatedDevice::new(SIZE, 1);
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
    superblock().write(&shared).unwrap();
    let start = device.operation_count();
    Superblock { generation: 2, clean: false, ..superblock() }.write(&shared).unwrap();
    for after in start..=device.operation_count() {
        for seed in 0..50 {
            let image: Arc<dyn BlockDevice> = device.crash_image(after, &CrashChoice::Seeded(seed));
            let found = Superblock::read(&image).unwrap().superblock;
            assert!(matches!(found.generation, 1 | 2), "cut after {after}, seed {seed}");
            assert_eq!(found.clean, found.generation == 1);
        }
    }
}

/// Says whether the copy of the superblock at an address is whole.
fn is_whole(device: &Arc<dyn BlockDevice>, at: u64) -> bool {
    copy_at(device, at).is_some()
}

fn copy_at(device: &Arc<dyn BlockDevice>, at: u64) -> Option<Superblock> {
    let mut copy = bedplate_block::AlignedBuf::zeroed(CONTENT_BYTES);
    device.read_at(&mut copy, at).unwrap();
    Superblock::decode(&copy, at).ok()
}

/// I-SB-3, S-39, S-37: the power fails between the two superblocks of a growth, and once more at
/// any moment of the mount that follows and uses what grew. Whichever copy is then lost, the other
/// one shows everything that was promised.
#[test]
fn i_sb_3_s_37_s_39_either_superblock_is_enough_after_a_growth_that_was_cut() {
    let device = volume();
    // A log that holds everything: the metadata commit alone lets the region grow.
    format(&(Arc::clone(&device) as _), 16 << 20);
    let fs = mount(Arc::clone(&device) as _);
    (0..60u32).for_each(|i| set(&fs, format!("{i}").as_bytes(), vec![3; 40_000]));
    fs.sync_to(fs.last_lsn()).unwrap();
    let synced = device.operation_count();
    fs.metadata_commit().unwrap();
    let everything =
        |fs: &Engine| [0u32, 30, 59].iter().all(|i| get(fs, format!("{i}").as_bytes()).is_some());
    let mut judged = 0;
    let choice = CrashChoice::KeepAll;
    for after in synced..=device.operation_count() {
        let image: Arc<dyn BlockDevice> = device.crash_image(after, &choice);
        let (Some(a), Some(b)) = (copy_at(&image, 0), copy_at(&image, COPY_B)) else { continue };
        if a.metadata_len == b.metadata_len {
            continue;
        }
        let second = SimulatedDevice::over(
            &device.crash_content(after, &choice),
            &SimulatedOptions::default(),
        );
        let fs = mount(Arc::clone(&second) as _);
        let operations = second.operation_count();
        drop(fs);
        // The end is where the tree relies on what grew and the superblocks are written next.
        for cut in (0..=operations)
            .filter(|cut| cut + 12 > operations || cut.is_multiple_of(1 + operations / 6))
        {
            let found: Arc<dyn BlockDevice> =
                second.crash_image(cut, &CrashChoice::Seeded(cut as u64));
            for (lost, kept) in
                [(0, COPY_B), (COPY_B, 0)].into_iter().filter(|(_, kept)| is_whole(&found, *kept))
            {
                let image: Arc<dyn BlockDevice> =
                    second.crash_image(cut, &CrashChoice::Seeded(cut as u64));
                image.write_at(&bedplate_block::AlignedBuf::zeroed(CONTENT_BYTES), lost).unwrap();
                let context = format!(
                    "cut after {after}, then after {cut}, then the copy at byte {lost} is lost and \
                     that at {kept} is left"
                );
                let recovered = crate::mount::mount(image, None, quiet())
                    .unwrap_or_else(|e| panic!("{context}: {e}"));
                assert!(everything(&recovered), "{context}");
                judged += 1;
            }
        }
    }
    assert!(judged > 20, "the copies differed at some moment of the growth: {judged}");
}

/// I-SB-2 and S-36: a superblock whose regions overlap or leave the volume is refused by its field.
#[test]
fn i_sb_2_s_36_impossible_regions_are_refused() {
    let base = superblock();
    let chunk = |start, len| Superblock { chunks: vec![ByteRun { start, len }], ..base.clone() };
    let hostile = [
        chunk(COPY_BYTES, 1 << 20),
        chunk(COPY_B - 4096, 8192),
        chunk(SIZE - 4096, 8192),
        chunk(u64::MAX - 4095, 8192),
        chunk(3 << 20, 100),
        Superblock { log: ByteRun { start: u64::MAX, len: u64::MAX }, ..base.clone() },
        Superblock { log: ByteRun { start: 0, len: 1 << 20 }, ..base.clone() },
        Superblock { metadata_len: 2 << 20, ..base.clone() },
        Superblock { block_size: 3000, ..base.clone() },
        Superblock { size_bytes: 4096, ..base.clone() },
    ];
    for superblock in hostile {
        let device: Arc<dyn BlockDevice> = SimulatedDevice::over(
            &bedplate_block::MemoryDevice::new(SIZE).snapshot(),
            &SimulatedOptions::default(),
        );
        superblock.write_unchecked(&device).unwrap();
        let error = Superblock::read(&device).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt, "{superblock:?}");
        assert!(error.message.contains("impossible"), "{error}");
    }
}

/// The tree's library serves nothing after one failure that it was told of: a single unreadable
/// page made all names unreadable until the next mount, and a failed commit those that were not in
/// its cache.
#[test]
fn s_35_a_read_of_the_tree_that_fails_fails_alone() {
    let name = |i: u32| format!("row-{i:05}").into_bytes();
    for latched in [false, true] {
        let device = volume();
        let fs = mount(Arc::clone(&device) as _);
        (0..4000).for_each(|i| set(&fs, &name(i), vec![i as u8; 300]));
        fs.metadata_commit().unwrap();
        drop(fs);
        // A cache of nothing, so that reads reach the device.
        let options = MountOptions { metadata_cache_bytes: 0, ..quiet() };
        let fs = crate::mount::mount(Arc::clone(&device) as _, None, options).unwrap();
        if latched {
            set(&fs, b"x", vec![1]);
            device.inject(FaultRule::new(Fault::Flush(FlushFault::Fail), Trigger::Next(1)));
            fs.metadata_commit().unwrap_err();
            device.clear_faults();
        }
        let written = device.counters().writes;
        device.inject(FaultRule::new(Fault::Read(ReadFault::Fail), Trigger::Next(1)));
        let failed: Vec<_> =
            (0..4000).filter_map(|i| fs.row(Table::Setting, &name(i)).err()).collect();
        assert_eq!(failed.len(), 1, "{failed:?}");
        assert!(
            failed[0].message.contains("at byte") || failed[0].message.contains("offset"),
            "{}",
            failed[0]
        );
        for i in 0..4000 {
            assert_eq!(get(&fs, &name(i)), Some(vec![i as u8; 300]));
        }
        let now = fs.metadata_commit();
        assert_eq!(now.is_err(), latched, "{now:?}");
        assert!(
            !latched || device.counters().writes == written,
            "nothing is written after a failed flush"
        );
    }
}

/// I-NAM-2: threads that make inodes commit them in any order, so the reservation of their numbers
/// is in the log before a number is given out.
#[test]
fn i_nam_2_a_number_is_given_out_once_its_reservation_is_logged() {
    let device = volume();
    let fs = mount(Arc::clone(&device) as _);
    for _ in 0..3000 {
        let given = fs.new_ino();
        let reserved =
            get(&fs, NEXT_INO).map(|value| u64::from_le_bytes(value.try_into().unwrap()));
        assert!(reserved.is_some_and(|end| given.0 < end), "{given:?} of {reserved:?}");
    }
}

/// S-33: a flush of the log that fails while a metadata commit is under way may take pages of the
/// tree with it. The commit went on: its flush succeeded, it wrote the header that names them, and
/// after a power cut the tree was damaged.
#[test]
fn s_33_a_metadata_commit_ends_where_a_flush_of_the_log_fails() {
    let mut failed = 0;
    for skip in 0..100 {
        let device = volume();
        let tree = copy_at(&(Arc::clone(&device) as _), 0).unwrap().chunks[0];
        let hooked = before_write(&device, tree, skip);
        let fs = mount(Arc::clone(&hooked) as _);
        set(&fs, b"first", vec![7; 60_000]);
        fs.sync_to(fs.last_lsn()).unwrap();
        let (beside, faulty) = (Arc::downgrade(&fs), Arc::clone(&device));
        *hooked.act.lock() = Some(Box::new(move || {
            let fs = beside.upgrade().unwrap();
            faulty.inject(FaultRule::new(Fault::Flush(FlushFault::Fail), Trigger::Next(1)));
            let synced = std::thread::spawn(move || {
                set(&fs, b"later", vec![1]);
                fs.sync_to(fs.last_lsn())
            });
            assert!(synced.join().unwrap().is_err(), "the log's flush fails");
        }));
        let committed = fs.metadata_commit();
        if hooked.act.lock().take().is_some() {
            committed.unwrap();
            break;
        }
        failed += 1;
        assert!(committed.is_err(), "before write {skip}: what it wrote may be lost");
        let image: Arc<dyn BlockDevice> =
            device.crash_image(device.operation_count(), &CrashChoice::LoseAll);
        let report = FileSystem::check(&image, None, false).unwrap();
        assert!(report.findings.is_empty(), "before write {skip}: {:?}", report.findings);
        assert_eq!(get(&mount(image), b"first"), Some(vec![7; 60_000]), "the log had it");
    }
    assert!((2..100).contains(&failed), "each write of a commit had its turn: {failed}");
}
