//! Deletions of checkpoints in steps: with a power cut between any two of them, and with something
//! else in their middle.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bedplate_block::{
    BlockDevice, CrashChoice, Fault, FaultRule, SimulatedDevice, Trigger, WriteFault,
};
use bedplate_fs::{
    AllocateMode, CheckpointOptions, CloneSource, ErrorKind, FileSystem, FormatOptions, IoMode,
    Limits, MountOptions, OpenOptions, RollbackOptions,
};

use crate::checkpoints::{change, everything, of, of_checkpoint, sound, whole, write};
use crate::cut_deletions::ends;
use crate::interrupted::{
    Bed, Change, bed, content, interrupted, mount_with, roll_back, truncate, used, write_full,
};
use crate::support::{Random, device, format, options};

type Tree = BTreeMap<String, Vec<u8>>;

/// What everything shows.
#[derive(Debug, PartialEq)]
pub struct Shown {
    pub present: Tree,
    pub checkpoints: BTreeMap<String, Tree>,
}

pub fn shown(fs: &FileSystem) -> Shown {
    let names = fs.checkpoints().into_iter();
    let names = names.map(|checkpoint| String::from_utf8(checkpoint.name).unwrap());
    let checkpoints = names.map(|name| (name.clone(), of_checkpoint(fs, &name))).collect();
    Shown { present: whole(fs), checkpoints }
}

/// Two directories with files that changed before, between and after checkpoints `names`, of which
/// `named` is of the first directory alone.
fn changed(fs: &FileSystem, names: &[&str], seed: u64) {
    let mut random = Random::new(seed);
    for dir in ["/d0", "/d1"] {
        fs.create_dir_all(dir).unwrap();
    }
    for name in names {
        for _ in 0..12 {
            change(fs, &mut random);
        }
        let options = if *name == "named" { of(&["/d0"]) } else { everything() };
        fs.create_checkpoint(name, &options).unwrap();
    }
    for _ in 0..12 {
        change(fs, &mut random);
    }
    fs.sync().unwrap();
}

/// S-428: whatever a power cut leaves of a deletion, every other checkpoint shows what it showed,
/// the one that goes is there as it was or not at all, and the next mount gives all of it back.
#[test]
fn s_428_a_deletion_that_a_cut_interrupts_is_ended_by_the_next_mount() {
    for (seed, goes) in [(1, "b"), (2, "named"), (3, "a"), (4, "d"), (5, "b")] {
        let device = SimulatedDevice::new(32 << 20, 1);
        let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
        format(&shared, 4096);
        let synced: Arc<OnceLock<std::sync::Weak<FileSystem>>> = Arc::default();
        let own = Arc::clone(&synced);
        let between = move |what: &'static str| {
            if let (Some(fs), "deletion") = (own.get().and_then(std::sync::Weak::upgrade), what) {
                fs.sync().unwrap();
            }
        };
        let limits = Limits {
            images_per_record: 3,
            between_records: Some(Arc::new(between)),
            ..Limits::default()
        };
        let mount =
            FileSystem::mount(shared, None, MountOptions { limits, ..options(IoMode::Direct) });
        let fs = Arc::new(mount.unwrap());
        changed(&fs, &["a", "b", "named", "d"], seed);
        synced.set(Arc::downgrade(&fs)).unwrap();
        let before = shown(&fs);
        let first = device.operation_count();
        fs.delete_checkpoint(goes).unwrap();
        let last = device.operation_count();
        let after = shown(&fs);
        assert!(!after.checkpoints.contains_key(goes));
        let free = fs.statfs().free_bytes;
        drop(fs);
        let mut unfinished = 0;
        for cut in first..=last {
            let image: Arc<dyn BlockDevice> = device.crash_image(cut, &CrashChoice::KeepAll);
            let context = format!("seed {seed}, '{goes}', cut after {cut} of {first} to {last}");
            let report = FileSystem::check(&image, None, false).unwrap();
            assert!(report.findings.is_empty(), "{context}: {:?}", report.findings);
            let read_only = MountOptions { read_only: true, ..options(IoMode::Direct) };
            let seen = shown(&FileSystem::mount(Arc::clone(&image), None, read_only).unwrap());
            assert!(seen == before || seen == after, "{context}");
            let limits = Limits { images_per_record: 3, ..Limits::default() };
            let options = MountOptions { limits, ..options(IoMode::Direct) };
            let fs = FileSystem::mount(Arc::clone(&image), None, options).unwrap();
            assert_eq!(shown(&fs), seen, "{context}");
            fs.sync().unwrap();
            if seen == after {
                unfinished += 1;
                ends(&fs, free, &context);
            }
            fs.unmount().unwrap();
            sound(&image);
        }
        assert!(unfinished > 3, "a deletion takes several records: {unfinished}");
    }
}

/// What happens beside a deletion, and what may come of it.
pub type Beside = (&'static str, fn(&FileSystem) -> bedplate_fs::Result<()>);

pub const BESIDE: [Beside; 11] = [
    ("a checkpoint of its name", |fs| {
        fs.create_checkpoint("base", &CheckpointOptions::default())?;
        assert_eq!(of_checkpoint(fs, "base"), whole(fs));
        Ok(())
    }),
    ("a look into it", |fs| {
        let gone = fs.open("/.checkpoints/base/f", &OpenOptions::read_only());
        assert_eq!(gone.unwrap_err().kind, ErrorKind::NotFound);
        let rolled = fs.rollback("base", &RollbackOptions { path: None, force: true });
        assert_eq!(rolled.unwrap_err().kind, ErrorKind::NotFound);
        let again = fs.delete_checkpoint("base");
        assert_eq!(again.unwrap_err().kind, ErrorKind::NotFound);
        assert!(fs.checkpoints().iter().all(|checkpoint| checkpoint.name != b"base"));
        Ok(())
    }),
    ("writes", |fs| {
        (0..10).for_each(|at| write(fs, "/f", at * 8192, &[90 + at as u8; 4096], IoMode::Direct));
        write(fs, "/g", 0, &[77; 50_000], IoMode::Direct);
        Ok(())
    }),
    ("a truncation", |fs| truncate(fs, "/f", 3 * 8192 + 100)),
    ("a hole", |fs| {
        let file = fs.open("/f", &OpenOptions::read_write())?;
        file.allocate(AllocateMode::PunchHole, 0, 9 * 8192)
    }),
    ("a rollback to an older one", |fs| roll_back(fs, "older", None)),
    ("a rollback to a newer one", |fs| roll_back(fs, "newer", None)),
    ("the deletion of an older one", |fs| fs.delete_checkpoint("older")),
    ("the deletion of a newer one", |fs| fs.delete_checkpoint("newer")),
    ("a clone of an older one", |fs| {
        let name = b"older".to_vec();
        let source = CloneSource::Checkpoint { name, path: "/f".into() };
        fs.clone_files(&source, "/clone").map(drop)
    }),
    ("a checkpoint and writes", |fs| {
        fs.create_checkpoint("fresh", &CheckpointOptions::default())?;
        (0..10).for_each(|at| write(fs, "/f", at * 8192, &[50 + at as u8; 4096], IoMode::Direct));
        Ok(())
    }),
];

const DELETION: Change = Change {
    what: "deletion",
    name: "deletion of a checkpoint",
    run: |fs| fs.delete_checkpoint("base"),
    after: || None,
};

/// A file of ten extents that changed after each of some checkpoints, the oldest first.
fn bed_with(names: &[&str]) -> Bed {
    let bed = bed();
    bed.fs.delete_checkpoint("base").unwrap();
    for (at, name) in names.iter().enumerate() {
        bed.fs.create_checkpoint(name, &CheckpointOptions::default()).unwrap();
        for from in [at % 2, 0] {
            for at in (from as u64..10).step_by(2) {
                let fill = 100 + 20 * from as u8 + at as u8;
                write(&bed.fs, "/f", at * 8192, &[fill; 4096], IoMode::Direct);
            }
        }
    }
    bed
}

/// Carries out one thing after so many steps of a deletion; `false` where it has fewer.
fn between(names: &[&str], (name, beside): Beside, steps: usize) -> bool {
    let mut bed = bed_with(names);
    let (device, before) = (Arc::clone(&bed.device), shown(&bed.fs));
    let story = format!("{names:?}: {name}, after step {steps}");
    let Some((deleted, others)) = interrupted(&bed, &DELETION, steps, beside) else {
        assert!(steps > 3, "a deletion takes several steps");
        return false;
    };
    deleted.unwrap_or_else(|e| panic!("{story}: {e}"));
    others.unwrap_or_else(|e| panic!("{story}: {e}"));
    let after = shown(&bed.fs);
    for (checkpoint, tree) in before.checkpoints.iter().filter(|(name, _)| *name != "base") {
        if let Some(now) = after.checkpoints.get(checkpoint) {
            assert_eq!(now, tree, "{story}: '{checkpoint}'");
        }
    }
    bed.park = Arc::default();
    bed.fs.unmount().unwrap();
    sound(&device);
    let fs = FileSystem::mount(Arc::clone(&device), None, options(IoMode::Direct)).unwrap();
    assert_eq!(shown(&fs), after, "{story}");
    for checkpoint in after.checkpoints.keys() {
        fs.delete_checkpoint(checkpoint).unwrap();
    }
    for path in ["/f", "/g", "/clone"] {
        drop(fs.remove(path));
    }
    fs.sync().unwrap();
    let (empty, free) = (fresh(), used(&fs).1);
    assert!(free.abs_diff(empty) <= 24 * 4096, "{story}: {free} free of {empty}");
    fs.unmount().unwrap();
    sound(&device);
    true
}

/// S-428, S-430, I-CKP-10: what is done between two steps meets a checkpoint that is not there any more,
/// and changes nothing that others show.
#[test]
fn s_428_s_430_i_ckp_10_what_comes_between_two_steps_of_a_deletion_meets_no_checkpoint() {
    for names in [&["older", "base", "newer"][..], &["older", "base"]] {
        let all = BESIDE.into_iter();
        for beside in all.filter(|(what, _)| names.contains(&"newer") || !what.contains("newer")) {
            (1..).find(|steps| !between(names, beside, *steps));
        }
    }
}

/// Free bytes of an empty file system of that size.
fn fresh() -> u64 {
    let device = device(32 << 20, 4096);
    format(&device, 4096);
    let fs = FileSystem::mount(device, None, options(IoMode::Direct)).unwrap();
    used(&fs).1
}

/// S-429: checkpoints that are being deleted at once hand on what an older one needs as if one had
/// gone after the other.
#[test]
fn s_429_several_deletions_at_once_leave_what_others_show() {
    for seed in 0..6 {
        let device = device(32 << 20, 4096);
        format(&device, 4096);
        let limits = Limits { images_per_record: 2, ..Limits::default() };
        let options = MountOptions { limits, ..options(IoMode::Direct) };
        let fs = FileSystem::mount(Arc::clone(&device), None, options).unwrap();
        let names = ["a", "b", "named", "d", "e", "f"];
        changed(&fs, &names, 40 + seed);
        let mut expected = shown(&fs);
        std::thread::scope(|scope| {
            for name in ["b", "d", "named", "e"] {
                let fs = &fs;
                scope.spawn(move || fs.delete_checkpoint(name).unwrap());
            }
        });
        expected.checkpoints.retain(|name, _| ["a", "f"].contains(&name.as_str()));
        assert_eq!(shown(&fs), expected, "seed {seed}");
        fs.unmount().unwrap();
        sound(&device);
    }
}

/// S-429: a checkpoint with few images is deleted by one record, but not before an older one that is
/// being deleted: what that has is nearer to the heir.
#[test]
fn s_429_a_short_deletion_waits_for_an_older_one() {
    let mut meetings = 0;
    for steps in 1..20 {
        let device = device(32 << 20, 4096);
        format(&device, 4096);
        let park = Arc::default();
        let fs = mount_with(&device, &park, 4);
        write_full(&fs, "/f");
        fs.create_checkpoint("older", &CheckpointOptions::default()).unwrap();
        fs.create_checkpoint("base", &CheckpointOptions::default()).unwrap();
        (0..10).for_each(|at| write(&fs, "/f", at * 8192, &[60; 4096], IoMode::Direct));
        fs.create_checkpoint("newer", &CheckpointOptions::default()).unwrap();
        write(&fs, "/f", 9 * 8192, &[70; 4096], IoMode::Direct);
        let mut expected = shown(&fs);
        expected.checkpoints.retain(|name, _| name == "older");
        let bed = Bed { device, fs, park };
        let meets = interrupted(&bed, &DELETION, steps, |fs| fs.delete_checkpoint("newer"));
        let Some((deleted, other)) = meets else { break };
        deleted.unwrap();
        other.unwrap();
        assert_eq!(shown(&bed.fs), expected, "after step {steps}");
        bed.fs.unmount().unwrap();
        sound(&bed.device);
        meetings += 1;
    }
    assert!(meetings > 1, "a deletion takes several steps");
}

/// S-428: a checkpoint may hold extents still of a file that is gone everywhere, and shared them: what
/// it shares blocks with is written on. A check once took that for damage, because nothing notes
/// that files share blocks for the sake of what no moment shows. The file goes before the deletion,
/// or between its first two steps.
#[test]
fn s_428_what_a_file_shared_that_is_gone_is_no_damage() {
    for goes_before in [true, false] {
        let device = SimulatedDevice::new(32 << 20, 1);
        let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
        format(&shared, 4096);
        let own: Arc<OnceLock<std::sync::Weak<FileSystem>>> = Arc::default();
        let seen = Arc::clone(&own);
        let between = move |what: &'static str| {
            if let (Some(fs), "deletion") = (seen.get().and_then(std::sync::Weak::upgrade), what) {
                if !goes_before && fs.resolve("/clone").is_ok() {
                    fs.remove("/clone").unwrap();
                }
                fs.sync().unwrap();
            }
        };
        let limits = Limits {
            images_per_record: 1,
            between_records: Some(Arc::new(between)),
            ..Limits::default()
        };
        let options = MountOptions { limits, ..options(IoMode::Direct) };
        let fs = Arc::new(FileSystem::mount(shared, None, options).unwrap());
        write_full(&fs, "/f");
        fs.clone_files(&CloneSource::Present("/f".into()), "/clone").unwrap();
        fs.create_checkpoint("base", &CheckpointOptions::default()).unwrap();
        (0..6).for_each(|at| write(&fs, "/clone", at * 8192, &[80; 4096], IoMode::Direct));
        if goes_before {
            fs.remove("/clone").unwrap();
        }
        own.set(Arc::downgrade(&fs)).unwrap();
        let first = device.operation_count();
        fs.delete_checkpoint("base").unwrap();
        let last = device.operation_count();
        let before = content(&fs, "/f");
        drop(fs);
        for cut in first..=last {
            let image: Arc<dyn BlockDevice> = device.crash_image(cut, &CrashChoice::KeepAll);
            let report = FileSystem::check(&image, None, false).unwrap();
            let context =
                format!("gone before: {goes_before}, cut after {cut} of {first} to {last}");
            assert!(report.findings.is_empty(), "{context}: {:?}", report.findings);
            let fs = FileSystem::mount(Arc::clone(&image), None, self::options(IoMode::Direct));
            let fs = fs.unwrap();
            assert_eq!(content(&fs, "/f"), before, "{context}");
            write(&fs, "/f", 0, &[90; 4096], IoMode::Direct);
            fs.unmount().unwrap();
            sound(&image);
        }
    }
}

/// The file of a deleted checkpoint's bed is what it was.
#[test]
fn s_428_a_deletion_changes_nothing_of_the_present() {
    let bed = bed();
    let before = content(&bed.fs, "/f");
    bed.fs.delete_checkpoint("base").unwrap();
    assert_eq!(content(&bed.fs, "/f"), before);
}

/// Makes a clone or deletes a checkpoint on a device that has no space below it from some call on;
/// `None` where the calls of that do not reach it.
fn no_space_from(call: u64, clones: bool) -> Option<Result<(), String>> {
    let device = SimulatedDevice::new(32 << 20, 1);
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
    let format = FormatOptions { log_bytes: Some(1 << 20), ..FormatOptions::default() };
    FileSystem::format(&shared, None, &format).unwrap();
    let limits = Limits { images_per_record: 1, ..Limits::default() };
    let options = MountOptions { limits, ..options(IoMode::Direct) };
    let fs = FileSystem::mount(Arc::clone(&shared), None, options).unwrap();
    for turn in 0..2 {
        (0..40).for_each(|at| write(&fs, "/f", at * 8192, &[turn + 1; 4096], IoMode::Direct));
        let name = ["older", "base"][usize::from(turn)];
        fs.create_checkpoint(name, &CheckpointOptions::default()).unwrap();
    }
    (0..40).for_each(|at| write(&fs, "/f", at * 8192, &[9; 4096], IoMode::Direct));
    fs.sync().unwrap();
    let rule = FaultRule::new(Fault::Write(WriteFault::NoSpace), Trigger::From(call));
    device.inject(rule);
    let done = if clones {
        fs.clone_files(&CloneSource::Present("/f".into()), "/clone").map(drop)
    } else {
        fs.delete_checkpoint("base")
    };
    if device.counters().errors == 0 {
        return None;
    }
    device.clear_faults();
    let listed: Vec<Vec<u8>> = fs.checkpoints().into_iter().map(|one| one.name).collect();
    let is_done = match clones {
        true => fs.open("/clone", &OpenOptions::read_only()).is_ok(),
        false => !listed.contains(&b"base".to_vec()),
    };
    let passing = listed.iter().any(|name| name.starts_with(b".clone-"));
    let told = format!("from call {call}, clones {clones}: {done:?}, {is_done}, {listed:?}");
    let refused = done.as_ref().is_err_and(|e| e.kind == ErrorKind::NoSpace && e.source.is_none());
    if passing || done.is_ok() && !is_done || refused && is_done {
        return Some(Err(told));
    }
    if fs.info().failed.is_none() {
        fs.sync().unwrap();
        fs.unmount().unwrap();
    } else {
        drop(fs);
    }
    let fs = FileSystem::mount(shared, None, self::options(IoMode::Direct)).unwrap();
    let there = fs.open("/clone", &OpenOptions::read_only()).is_ok();
    if done.is_ok() && clones && !there {
        return Some(Err(format!("{told}: what was made is gone")));
    }
    fs.unmount().unwrap();
    Some(Ok(()))
}

fn reported_wherever_room_ends() -> Result<(), String> {
    for clones in [false, true] {
        let mut calls = 0;
        while let Some(done) = no_space_from(calls + 1, clones) {
            done?;
            calls += 1;
        }
        assert!(calls > 3, "{calls} calls write");
    }
    Ok(())
}

/// S-428, S-432: with no space below the device from any call on, a clone or a deletion that is
/// refused has changed nothing, and one that is reported is there.
#[test]
fn s_428_s_432_what_is_made_or_deleted_is_reported_so_wherever_room_ends() {
    reported_wherever_room_ends().unwrap();
}
