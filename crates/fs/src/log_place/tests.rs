//! Intent logs that move and change their size while programs go on, and logs whose device is lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bedplate_block::{
    AlignedBuf, BlockDevice, CrashChoice, DeviceCall, Fault, FaultRule, FlushFault, Hook,
    HookedDevice, MemoryDevice, SimulatedDevice, Trigger,
};
use bedplate_store::{PlantedBug, plant};

use crate::{
    AllocateMode, ErrorKind, FileSystem, FormatOptions, InodeNo, IoMode, LogMoveOptions,
    MountOptions, OpenOptions, Result,
};

pub(super) const MIB: u64 = 1 << 20;
pub(super) const VOLUME: u64 = 48 * MIB;

pub(super) fn quiet() -> MountOptions {
    MountOptions {
        mode: IoMode::Concurrent,
        sync_interval: Duration::from_secs(3600),
        ..MountOptions::default()
    }
}

pub(super) fn format(data: &Arc<dyn BlockDevice>, log: Option<&Arc<dyn BlockDevice>>) {
    let options = FormatOptions { log_bytes: Some(MIB), ..FormatOptions::default() };
    FileSystem::format(data, log, &options).unwrap();
}

pub(super) fn mount(
    data: &Arc<dyn BlockDevice>,
    log: Option<&Arc<dyn BlockDevice>>,
) -> Result<FileSystem> {
    FileSystem::mount(Arc::clone(data), log.cloned(), quiet())
}

pub(super) fn put(fs: &FileSystem, path: &str, len: u64, fill: u8) {
    let mut buf = AlignedBuf::zeroed(len as usize);
    buf.fill(fill);
    fs.open(path, &OpenOptions::create()).unwrap().write_at(&buf, 0).unwrap();
}

pub(super) fn is_filled(fs: &FileSystem, path: &str, len: u64, fill: u8) -> bool {
    let Ok(file) = fs.open(path, &OpenOptions::read_only()) else { return false };
    let mut buf = AlignedBuf::zeroed(len as usize);
    let read = file.read_at(&mut buf, 0);
    read.is_ok_and(|read| read as u64 == len) && buf.iter().all(|byte| *byte == fill)
}

fn sized(size_bytes: u64) -> LogMoveOptions {
    LogMoveOptions { size_bytes: Some(size_bytes), ..LogMoveOptions::default() }
}

fn assert_sound(data: &Arc<dyn BlockDevice>, log: &Arc<dyn BlockDevice>) {
    let separate = FileSystem::probe(data).unwrap().log_separate;
    let report = FileSystem::check(data, separate.then_some(log), false).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// S-394: the log moves and changes its size while programs write and sync; none of them fails, and
/// what they wrote is there after an unmount, and after a process that just ended.
#[test]
fn s_394_programs_go_on_while_the_log_moves_and_changes_its_size() {
    let data: Arc<dyn BlockDevice> = MemoryDevice::new(4 * VOLUME);
    let log: Arc<dyn BlockDevice> = MemoryDevice::new(9 * MIB);
    format(&data, None);
    let fs = &mount(&data, None).unwrap();
    let (ended, synced) = (&AtomicBool::new(false), &[const { AtomicU64::new(0) }; 3]);
    let home = fs.info().log.clone();
    assert!(!home.separate && home.size_bytes == MIB);
    std::thread::scope(|scope| {
        for (n, last) in synced.iter().enumerate() {
            scope.spawn(move || {
                let path = format!("/w{n}");
                let file = fs.open(&path, &OpenOptions::create()).unwrap();
                for round in 1.. {
                    let mut buf = AlignedBuf::zeroed(8192);
                    buf[..8].copy_from_slice(&u64::to_le_bytes(round));
                    file.write_at(&buf, round % 64 * 8192).unwrap();
                    file.sync_all().unwrap();
                    last.store(round, Ordering::SeqCst);
                    if ended.load(Ordering::SeqCst) {
                        return;
                    }
                }
            });
        }
        let moves = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..4 {
                let moved = fs.move_log(Some(Arc::clone(&log)), &sized(2 * MIB)).unwrap();
                assert_eq!((moved.to.device.as_deref(), moved.left), (Some(log.name()), None));
                assert!(fs.info().log.separate && fs.info().log.size_bytes == 2 * MIB);
                fs.resize_log(8 * MIB, false).unwrap();
                fs.resize_log(MIB, false).unwrap();
                fs.move_log(None, &sized((1 + round % 2) * MIB)).unwrap();
                fs.resize_log(6 * MIB, false).unwrap();
                fs.resize_log(3 * MIB, false).unwrap();
                assert_eq!((fs.info().log.separate, fs.info().log.size_bytes), (false, 3 * MIB));
            }
        }));
        ended.store(true, Ordering::SeqCst);
        moves.unwrap();
    });
    let whole = |fs: &FileSystem| {
        for (n, last) in synced.iter().enumerate() {
            let last = last.load(Ordering::SeqCst);
            let file = fs.open(format!("/w{n}"), &OpenOptions::read_only()).unwrap();
            let mut buf = AlignedBuf::zeroed(4096);
            file.read_at(&mut buf, last % 64 * 8192).unwrap();
            assert_eq!(buf[..8], last.to_le_bytes());
        }
    };
    whole(fs);
    // As when the process just ends: the device has what it was told.
    let killed = copy(&data);
    whole(&mount(&killed, None).unwrap());
    fs.clone().unmount().unwrap();
    assert_sound(&data, &log);
    let fs = mount(&data, None).unwrap();
    whole(&fs);
    // From there it goes away once more, and a mount without it is refused.
    fs.move_log(Some(log), &LogMoveOptions::default()).unwrap();
    assert!(mount(&data, None).is_err(), "the log is not there");
}

pub(super) fn copy(device: &Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    let copy: Arc<dyn BlockDevice> = MemoryDevice::new(device.size_bytes());
    let mut buf = AlignedBuf::zeroed(MIB as usize);
    for at in (0..device.size_bytes()).step_by(MIB as usize) {
        device.read_at(&mut buf, at).unwrap();
        copy.write_at(&buf, at).unwrap();
    }
    copy
}

/// How far both devices were at a moment, and what had been promised by then.
type Moment = ([usize; 2], usize);

#[derive(Debug)]
struct Watch {
    devices: [Arc<SimulatedDevice>; 2],
    moments: Arc<Mutex<Vec<Moment>>>,
    promised: Arc<AtomicU64>,
}

impl Hook for Watch {
    fn call(
        &self,
        _: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> bedplate_block::Result<()>,
    ) -> bedplate_block::Result<()> {
        let done = pass();
        let counts = [0, 1].map(|at| self.devices[at].operation_count());
        let promised = self.promised.load(Ordering::SeqCst) as usize;
        self.moments.lock().unwrap().push((counts, promised));
        done
    }
}

/// Moves and resizes a log between writes, cuts the power at many moments, and returns what is
/// wrong then.
fn cuts(bug: Option<PlantedBug>) -> Option<String> {
    let devices = [SimulatedDevice::new(VOLUME, 1), SimulatedDevice::new(4 * MIB, 2)];
    format(&(Arc::clone(&devices[0]) as _), None);
    devices.iter().for_each(|device| device.make_all_durable());
    let (moments, promised) = (Arc::new(Mutex::default()), Arc::new(AtomicU64::new(0)));
    let [data, log] = [0, 1].map(|at| {
        let (devices, moments) = (devices.clone(), Arc::clone(&moments));
        let watch = Watch { devices: devices.clone(), moments, promised: Arc::clone(&promised) };
        HookedDevice::new(Arc::clone(&devices[at]) as _, watch) as Arc<dyn BlockDevice>
    });
    let fs = mount(&data, None).unwrap();
    let mut count = 0;
    let mut work = |fs: &FileSystem| {
        for _ in 0..3 {
            put(fs, &format!("/f{count}"), 20_000, count as u8 + 1);
            fs.sync().unwrap();
            count += 1;
            promised.store(count, Ordering::SeqCst);
        }
    };
    plant(bug);
    let mut returned = Vec::new();
    let mut note = |separate: bool, size: u64| {
        returned.push((moments.lock().unwrap().len(), separate, size));
    };
    work(&fs);
    fs.move_log(Some(Arc::clone(&log)), &sized(MIB)).unwrap();
    note(true, MIB);
    work(&fs);
    fs.resize_log(3 * MIB, false).unwrap();
    note(true, 3 * MIB);
    work(&fs);
    fs.resize_log(MIB, false).unwrap();
    note(true, MIB);
    fs.move_log(None, &sized(MIB)).unwrap();
    note(false, MIB);
    work(&fs);
    fs.resize_log(2 * MIB, false).unwrap();
    note(false, 2 * MIB);
    work(&fs);
    fs.resize_log(MIB, false).unwrap();
    note(false, MIB);
    work(&fs);
    plant(None);
    let moments = moments.lock().unwrap().clone();
    for (at, (counts, promised)) in moments.iter().enumerate() {
        let reached = returned.iter().rposition(|(moment, ..)| at + 1 >= *moment);
        for (data_choice, log_choice) in [
            (CrashChoice::LoseAll, CrashChoice::LoseAll),
            (CrashChoice::LoseAll, CrashChoice::KeepAll),
            (CrashChoice::KeepAll, CrashChoice::LoseAll),
            (CrashChoice::Seeded(at as u64), CrashChoice::Seeded(7 + at as u64)),
        ] {
            let data: Arc<dyn BlockDevice> = devices[0].crash_image(counts[0], &data_choice);
            let log: Arc<dyn BlockDevice> = devices[1].crash_image(counts[1], &log_choice);
            let context = format!("cut {at} of {}, {data_choice:?}", moments.len());
            if let Err(what) = judge(&data, &log, *promised, &returned, reached) {
                return Some(format!("{context}: {what}"));
            }
        }
    }
    None
}

/// Looks at what a cut left: all that was promised, and the log where it was or where it went.
fn judge(
    data: &Arc<dyn BlockDevice>,
    log: &Arc<dyn BlockDevice>,
    promised: usize,
    returned: &[(usize, bool, u64)],
    reached: Option<usize>,
) -> std::result::Result<(), String> {
    let probed = FileSystem::probe(data).map_err(|e| e.to_string())?;
    let fs = mount(data, probed.log_separate.then_some(log)).map_err(|e| e.to_string())?;
    let place = (probed.log_separate, probed.log_bytes);
    let was = reached.map_or((false, MIB), |at| (returned[at].1, returned[at].2));
    let next = returned.get(reached.map_or(0, |at| at + 1)).map(|one| (one.1, one.2));
    if place != was && Some(place) != next {
        return Err(format!("the log is {place:?}, and was {was:?}"));
    }
    if let Some(lost) =
        (0..promised).find(|n| !is_filled(&fs, &format!("/f{n}"), 20_000, *n as u8 + 1))
    {
        return Err(format!("file {lost} of {promised} that were synced is lost"));
    }
    put(&fs, "/after", 5000, 99);
    fs.unmount().map_err(|e| e.to_string())?;
    let report = FileSystem::check(data, probed.log_separate.then_some(log), false)
        .map_err(|e| e.to_string())?;
    if report.findings.is_empty() { Ok(()) } else { Err(format!("{:?}", report.findings)) }
}

/// S-395, I-LOG-9
#[test]
fn s_395_a_power_cut_leaves_a_log_whole_in_one_of_the_two_places() {
    assert_eq!(cuts(None), None);
}

#[test]
fn s_395_a_switch_before_the_old_log_was_applied_is_found() {
    let found = std::panic::catch_unwind(|| cuts(Some(PlantedBug::LogSwitchedFirst)));
    plant(None);
    assert!(found.is_err() || found.is_ok_and(|found| found.is_some()));
}

/// Takes all room there is when the log's new place is made ready, and the power is cut then.
struct Filler {
    fs: Mutex<Option<FileSystem>>,
    data: Arc<SimulatedDevice>,
    left: Mutex<Option<Arc<MemoryDevice>>>,
}

impl std::fmt::Debug for Filler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filler").finish_non_exhaustive()
    }
}

impl Hook for Filler {
    fn call(
        &self,
        call: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> bedplate_block::Result<()>,
    ) -> bedplate_block::Result<()> {
        let is_new_place = matches!(call, DeviceCall::WriteZeroes { len, .. } if len >= MIB);
        if let Some(fs) = is_new_place.then(|| self.fs.lock().unwrap().take()).flatten() {
            let filling = std::thread::spawn(move || fill_up(&fs));
            filling.join().unwrap();
            let now = self.data.operation_count();
            *self.left.lock().unwrap() = Some(self.data.crash_image(now, &CrashChoice::KeepAll));
        }
        pass()
    }
}

fn fill_up(fs: &FileSystem) {
    let file = fs.open("/filler", &OpenOptions::create()).unwrap();
    let mut buf = AlignedBuf::zeroed(64 << 10);
    buf.fill(0xee);
    let mut at = 0;
    while file.write_at(&buf, at).is_ok() {
        at += buf.len() as u64;
    }
}

/// Fills a volume while its log moves, as far as there is room, and cuts the power then; returns
/// whether what had been synced is there.
fn filled_meanwhile() -> bool {
    let data = SimulatedDevice::new(VOLUME, 1);
    let shared = Arc::clone(&data) as Arc<dyn BlockDevice>;
    format(&shared, None);
    let fs = mount(&shared, None).unwrap();
    put(&fs, "/synced", 50_000, 5);
    fs.sync().unwrap();
    let filler = Filler { fs: Mutex::new(Some(fs.clone())), data, left: Mutex::default() };
    let log = HookedDevice::new(MemoryDevice::new(4 * MIB) as Arc<dyn BlockDevice>, filler);
    let _ends_one_way_or_the_other =
        fs.move_log(Some(Arc::clone(&log) as _), &LogMoveOptions::default());
    let left = log.left.lock().unwrap().take().expect("the new place was made ready");
    mount(&(left as _), None).is_ok_and(|fs| is_filled(&fs, "/synced", 50_000, 5))
}

/// S-396, I-LPL-1: what the log leaves is given to files once it has left.
#[test]
fn s_396_the_old_place_is_not_written_to_before_the_log_has_left_it() {
    assert!(filled_meanwhile());
    plant(Some(PlantedBug::LogPlaceFreedEarly));
    let found = std::panic::catch_unwind(filled_meanwhile);
    plant(None);
    assert!(!found.is_ok_and(|whole| whole), "LogPlaceFreedEarly");
}

/// S-396: the blocks, or the device, are for other use then.
#[test]
fn s_396_the_old_place_is_for_other_use_once_the_log_has_left_it() {
    let data: Arc<dyn BlockDevice> = MemoryDevice::new(VOLUME);
    let log: Arc<dyn BlockDevice> = MemoryDevice::new(4 * MIB);
    format(&data, None);
    let fs = mount(&data, None).unwrap();
    let free = fs.statfs().free_bytes;
    fs.move_log(Some(Arc::clone(&log)), &LogMoveOptions::default()).unwrap();
    assert!(fs.statfs().free_bytes >= free + MIB, "the blocks of the volume are free");
    fs.move_log(None, &sized(MIB)).unwrap();
    assert!(fs.statfs().free_bytes.abs_diff(free) < MIB);
    let other: Arc<dyn BlockDevice> = MemoryDevice::new(VOLUME);
    format(&other, Some(&log));
    // And a dry run changes nothing.
    let before = (fs.statfs().free_bytes, fs.info().log.size_bytes);
    let planned =
        fs.move_log(None, &LogMoveOptions { dry_run: true, ..sized(2 * MIB) }).unwrap_err();
    assert_eq!(planned.kind, ErrorKind::Invalid);
    assert_eq!(fs.resize_log(2 * MIB, true).unwrap().to.size_bytes, 2 * MIB);
    assert_eq!((fs.statfs().free_bytes, fs.info().log.size_bytes), before);
    fs.unmount().unwrap();
    assert_sound(&data, &log);
}

/// S-397
#[test]
fn s_397_a_move_that_cannot_be_is_refused_and_changes_nothing() {
    let data: Arc<dyn BlockDevice> = MemoryDevice::new(VOLUME);
    let [small, used, log]: [Arc<dyn BlockDevice>; 3] =
        [MIB / 2, VOLUME, 4 * MIB].map(|size| MemoryDevice::new(size) as _);
    format(&data, None);
    format(&used, None);
    let fs = mount(&data, None).unwrap();
    let home = || (fs.info().log.separate, fs.info().log.size_bytes, fs.statfs().free_bytes);
    let before = home();
    let refused = |done: Result<crate::LogMove>, kind: ErrorKind, part: &str| {
        let error = done.unwrap_err();
        assert!(error.kind == kind && error.message.contains(part), "{error:?}");
        assert_eq!(home(), before);
    };
    let plain = LogMoveOptions::default();
    refused(fs.move_log(None, &plain), ErrorKind::Invalid, "on itself already");
    refused(fs.move_log(Some(small), &plain), ErrorKind::Invalid, "at least");
    refused(fs.move_log(Some(used), &plain), ErrorKind::Exists, "holds a Bedplate volume");
    refused(fs.move_log(Some(Arc::clone(&log)), &sized(4 * MIB)), ErrorKind::Invalid, "too little");
    refused(fs.resize_log(MIB, false), ErrorKind::Invalid, "already");
    refused(fs.resize_log(100, false), ErrorKind::Invalid, "use 1 MiB");
    refused(fs.resize_log(20 * MIB, false), ErrorKind::Invalid, "a quarter");
    let other: Arc<dyn BlockDevice> = MemoryDevice::new(VOLUME);
    format(&other, Some(&log));
    refused(fs.move_log(Some(Arc::clone(&log)), &plain), ErrorKind::Exists, "intent log");
    let file = fs.open("/big", &OpenOptions::create()).unwrap();
    let room = fs.statfs().available_bytes / MIB * MIB - MIB;
    file.allocate(AllocateMode::Preallocate { keep_size: true }, 0, room).unwrap();
    fs.sync().unwrap();
    let before = home();
    let error = fs.resize_log(8 * MIB, false).unwrap_err();
    assert!(
        error.kind == ErrorKind::NoSpace && error.message.contains("no free run of 8 MiB"),
        "{error:?}"
    );
    assert_eq!(home(), before);
}

/// S-398: with the log's device gone after an unmount the log comes home and nothing is lost, also
/// where the power goes meanwhile.
#[test]
fn s_398_a_clean_file_system_whose_log_device_is_lost_gets_its_log_home() {
    let log: Arc<dyn BlockDevice> = MemoryDevice::new(4 * MIB);
    let device = SimulatedDevice::new(VOLUME, 3);
    let data = Arc::clone(&device) as Arc<dyn BlockDevice>;
    format(&data, Some(&log));
    let fs = mount(&data, Some(&log)).unwrap();
    put(&fs, "/kept", 100_000, 7);
    fs.unmount().unwrap();
    assert_eq!(mount(&data, None).err().unwrap().kind, ErrorKind::NotFound);
    let plain = LogMoveOptions::default();
    let dry = LogMoveOptions { dry_run: true, ..plain };
    let before = device.operation_count();
    FileSystem::bring_log_home(Arc::clone(&data), &dry).unwrap();
    assert_eq!(device.operation_count(), before, "a dry run writes nothing");
    let moved = FileSystem::bring_log_home(Arc::clone(&data), &plain).unwrap();
    assert_eq!(moved.to.size_bytes, MIB);
    for at in before..=device.operation_count() {
        for choice in [CrashChoice::LoseAll, CrashChoice::KeepAll, CrashChoice::Seeded(at as u64)] {
            let left: Arc<dyn BlockDevice> = device.crash_image(at, &choice);
            if FileSystem::probe(&left).unwrap().log_separate {
                let again = FileSystem::bring_log_home(Arc::clone(&left), &plain);
                again.unwrap_or_else(|e| panic!("cut {at}, {choice:?}: {e}"));
            }
            let fs = mount(&left, None).unwrap();
            assert!(!fs.info().recovery.needed, "it was unmounted");
            assert!(is_filled(&fs, "/kept", 100_000, 7), "cut {at}, {choice:?}");
            put(&fs, "/more", 1000, 8);
            fs.unmount().unwrap();
            assert_sound(&left, &log);
        }
    }
    let again = FileSystem::bring_log_home(data, &plain).unwrap_err();
    assert!(again.message.contains("on itself already"), "{again}");
}

/// S-398: what the log alone had is given up by force only.
#[test]
fn s_398_a_log_that_may_have_held_something_is_given_up_by_force_only() {
    let log: Arc<dyn BlockDevice> = MemoryDevice::new(4 * MIB);
    let data: Arc<dyn BlockDevice> = MemoryDevice::new(VOLUME);
    format(&data, Some(&log));
    let fs = mount(&data, Some(&log)).unwrap();
    put(&fs, "/old", 10_000, 1);
    fs.state().metadata_commit().unwrap();
    put(&fs, "/new", 10_000, 2);
    fs.sync().unwrap();
    let killed = copy(&data);
    let plain = LogMoveOptions::default();
    let error = FileSystem::bring_log_home(Arc::clone(&killed), &plain).unwrap_err();
    for part in ["was not unmounted", "--force", "-o log=PATH", "acknowledged"] {
        assert!(error.message.contains(part), "{error}");
    }
    let whole = mount(&killed, Some(&log)).unwrap();
    assert!(is_filled(&whole, "/new", 10_000, 2), "the refusal changed nothing");
    drop(whole);
    let killed = copy(&data);
    let forced = LogMoveOptions { force: true, ..plain };
    FileSystem::bring_log_home(Arc::clone(&killed), &forced).unwrap();
    let fs = mount(&killed, None).unwrap();
    assert!(is_filled(&fs, "/old", 10_000, 1) && fs.resolve("/new").is_err());
    fs.unmount().unwrap();
    assert_sound(&killed, &log);
}

/// S-399: what lies beyond the new end of a file system may be its log.
#[test]
fn s_399_a_file_system_becomes_smaller_than_where_its_log_lay() {
    let data: Arc<dyn BlockDevice> = MemoryDevice::new(4 * VOLUME);
    format(&data, None);
    let fs = mount(&data, None).unwrap();
    let file = fs.open("/big", &OpenOptions::create()).unwrap();
    file.allocate(AllocateMode::Preallocate { keep_size: true }, 0, 3 * VOLUME).unwrap();
    put(&fs, "/kept", 100_000, 3);
    fs.resize_log(8 * MIB, false).unwrap();
    let place = fs.state().superblock().log;
    assert!(place.start > 2 * VOLUME, "{place:?}");
    drop(file);
    fs.unlink(InodeNo::ROOT, b"big").unwrap();
    fs.sync().unwrap();
    let plan = fs.plan_shrink(VOLUME).unwrap();
    assert!(plan.metadata_bytes >= 8 * MIB, "{plan:?}");
    while !fs.shrink(VOLUME).unwrap().is_done {}
    let place = fs.state().superblock().log;
    assert!(place.end() <= VOLUME && place.len == 8 * MIB, "{place:?}");
    fs.unmount().unwrap();
    let fs = mount(&data, None).unwrap();
    assert!(is_filled(&fs, "/kept", 100_000, 3));
    fs.unmount().unwrap();
    assert_sound(&data, &data);
}

/// S-395: a flush that fails while the new place is made ready may have lost what was written
/// before, so nothing is acknowledged any more.
#[test]
fn s_395_a_flush_that_fails_on_the_way_is_the_last_one() {
    let device = SimulatedDevice::new(VOLUME, 4);
    let data = Arc::clone(&device) as Arc<dyn BlockDevice>;
    format(&data, None);
    let fs = mount(&data, None).unwrap();
    put(&fs, "/written", 10_000, 1);
    device.inject(FaultRule::new(Fault::Flush(FlushFault::Fail), Trigger::Next(1)));
    fs.resize_log(2 * MIB, false).unwrap_err();
    device.clear_faults();
    fs.sync().unwrap_err();
    let error = fs.resize_log(2 * MIB, false).unwrap_err();
    assert_eq!(error.kind, ErrorKind::ReadOnly, "{error}");
}
