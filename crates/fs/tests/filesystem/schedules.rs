//! Checkpoints on schedule: made, kept, and safe from clocks, failures and power cuts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bedplate_block::{BlockDevice, CrashChoice, SimulatedDevice};
use bedplate_fs::{
    CheckpointOptions, ClockReading, ErrorKind, FileSystem, IoMode, MountOptions, Schedule,
    Timestamp,
};

use crate::common::assert_sound;
use crate::keeping::{automatic, names, put};
use crate::support::{device, format, mount_as, options};

/// A moment by its hour on the wall clock, from 2026-11-21 15:00 on, and on the steady one.
fn hour(wall: i64, steady: u64) -> ClockReading {
    ClockReading {
        wall: Timestamp((1_795_273_200 + wall * 3600) * 1_000_000_000),
        steady: Duration::from_secs(steady * 3600),
    }
}

fn hourly(keep: u32) -> Schedule {
    Schedule {
        name: "hourly".into(),
        every_s: 3600,
        keep,
        paths: Vec::new(),
        last: None,
        failure: None,
    }
}

/// S-80: one a period, missed ones are one, the newest are kept and nothing else is deleted.
#[test]
fn s_80_schedules_make_and_keep_what_they_say() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let mut fs = mount_as(&device, IoMode::Concurrent);
    fs.create_checkpoint("hourly-2020-01-01T00:00Z", &CheckpointOptions::default()).unwrap();
    fs.create_checkpoint("undo", &automatic()).unwrap();
    fs.set_schedule(&hourly(3)).unwrap();
    fs.remove_schedule("hourly").unwrap();
    assert_eq!(fs.remove_schedule("hourly").unwrap_err().kind, ErrorKind::NotFound);
    fs.unmount().unwrap();
    let looking = FileSystem::mount(
        Arc::clone(&device),
        None,
        MountOptions { read_only: true, ..MountOptions::default() },
    )
    .unwrap();
    assert_eq!(looking.set_schedule(&hourly(3)).unwrap_err().kind, ErrorKind::ReadOnly);
    assert_eq!(looking.run_schedules(hour(0, 0)).unwrap_err().kind, ErrorKind::ReadOnly);
    drop(looking);
    fs = mount_as(&device, IoMode::Concurrent);
    let run = |fs: &FileSystem, now| {
        let run = fs.run_schedules(now).unwrap();
        assert!(run.failures.is_empty(), "{:?}", run.failures);
        (run.made.len(), run.deleted.len())
    };
    begin(&fs, &hourly(3), hour(0, 0));
    assert_eq!(run(&fs, hour(0, 0)), (0, 0), "not twice an hour");
    assert_eq!(run(&fs, hour(1, 1)), (1, 0));
    fs.keep_checkpoint("hourly-2026-11-21T16:00Z", true).unwrap();
    assert_eq!(run(&fs, hour(9, 9)), (1, 0), "seven missed ones are one");
    fs.unmount().unwrap();
    let fs = mount_as(&device, IoMode::Concurrent);
    assert_eq!(run(&fs, hour(10, 0)), (1, 0));
    assert_eq!(run(&fs, hour(11, 1)), (1, 1));
    let expected = [
        "hourly-2020-01-01T00:00Z",
        "undo",
        "hourly-2026-11-21T16:00Z",
        "hourly-2026-11-22T00:00Z",
        "hourly-2026-11-22T01:00Z",
        "hourly-2026-11-22T02:00Z",
    ];
    assert_eq!(
        names(&fs),
        expected,
        "the manual one, the undo, the kept one, and the three newest"
    );
    fs.unmount().unwrap();
    assert_sound(&device);
}

/// Sets a schedule and lets it have its first turn.
fn begin(fs: &FileSystem, schedule: &Schedule, now: ClockReading) {
    fs.set_schedule(schedule).unwrap();
    let run = fs.run_schedules(now).unwrap();
    assert_eq!(run.made.len() + run.failures.len(), 1, "{run:?}");
}

/// S-80: a mount that carries schedules out makes the first one at once, after it asked for what is
/// still on its way.
#[test]
fn s_80_a_mount_carries_schedules_out_by_itself() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let options = MountOptions { schedules: true, ..options(IoMode::Concurrent) };
    let fs = FileSystem::mount(Arc::clone(&device), None, options).unwrap();
    let (fs_too, asked) = (fs.clone(), Arc::new(AtomicBool::new(false)));
    let hand_over = Arc::clone(&asked);
    fs.before_scheduled(move || hand_over.store(true, Ordering::SeqCst));
    fs.set_schedule(&Schedule { every_s: 86_400 * 3650, ..hourly(3) }).unwrap();
    while fs.schedules()[0].last.is_none() || fs_too.checkpoints().is_empty() {
        std::thread::yield_now();
    }
    assert!(asked.load(Ordering::SeqCst));
    assert!(names(&fs)[0].starts_with("hourly-20") && fs.checkpoints()[0].automatic);
    drop(fs_too);
    fs.unmount().unwrap();
    assert_sound(&device);
}

/// S-80: the checkpoint of a schedule and the note that it was made survive a power cut together:
/// run again in the same period, there is one.
#[test]
fn s_80_a_power_cut_makes_no_checkpoint_twice() {
    let simulated = SimulatedDevice::new(64 << 20, 7);
    let device: Arc<dyn BlockDevice> = simulated.clone();
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    begin(&fs, &hourly(9), hour(0, 0));
    let start = simulated.operation_count();
    assert_eq!(fs.run_schedules(hour(1, 1)).unwrap().made.len(), 1);
    let end = simulated.operation_count();
    let (mut already, mut again) = (0, 0);
    for after in start..=end {
        for choice in
            [CrashChoice::LoseAll, CrashChoice::KeepAll, CrashChoice::Seeded(after as u64)]
        {
            let image: Arc<dyn BlockDevice> = simulated.crash_image(after, &choice);
            let then = mount_as(&image, IoMode::Concurrent);
            let there = names(&then).len();
            let made = then.run_schedules(hour(1, 0)).unwrap().made.len();
            assert_eq!(
                (there + made, names(&then).len()),
                (2, 2),
                "cut after {after} of {start} to {end}, {choice:?}"
            );
            assert!(there == 2 || after < end, "it had returned");
            (already, again) = (already + there - 1, again + made);
            then.unmount().unwrap();
            assert_sound(&image);
        }
    }
    assert!(already > 0 && again > 0, "{already} were there, {again} were made again");
}

/// S-81: a clock that goes back or forward makes few, deletes no wrong ones, and stops nothing.
#[test]
fn s_81_schedules_survive_a_wrong_clock() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    begin(&fs, &hourly(4), hour(0, 0));
    let mut all = BTreeSet::new();
    let mut run = |wall, steady| {
        let made = fs.run_schedules(hour(wall, steady)).unwrap().made;
        all.extend(made.iter().map(|made| made.name.clone()));
        made.len()
    };
    // Ten years forward, and for an hour of looking every minute: one.
    assert_eq!(run(87_600, 1), 1);
    assert_eq!((0..60).map(|_| run(87_600, 1)).sum::<usize>(), 0);
    // Back to the truth: the next is not ten years away.
    assert_eq!((0..60).map(|_| run(1, 1)).sum::<usize>(), 0, "not at once");
    assert_eq!(run(2, 2), 1);
    assert_eq!(run(3, 3), 1);
    // Two hours back, where the names are taken.
    assert_eq!((0..60).map(|_| run(2, 4)).sum::<usize>(), 1);
    assert_eq!(run(3, 5), 1);
    assert_eq!(run(4, 6), 1);
    let newest: Vec<Vec<u8>> =
        fs.checkpoints().into_iter().map(|checkpoint| checkpoint.name).collect();
    let expected = [
        "hourly-2026-11-21T18:00Z",
        "hourly-2026-11-21T17:00Z.2",
        "hourly-2026-11-21T18:00Z.2",
        "hourly-2026-11-21T19:00Z",
    ];
    assert_eq!(
        newest,
        expected.map(|name| name.as_bytes().to_vec()),
        "those made last, whatever they are called"
    );
    assert_eq!(all.len(), 6);
    fs.unmount().unwrap();
    assert_sound(&device);
}

/// S-80: a schedule that fails says so once a period, and others go on.
#[test]
fn s_80_one_schedule_that_fails_stops_no_other() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    let of_one = Schedule { name: "broken".into(), paths: vec!["/missing".into()], ..hourly(2) };
    assert_eq!(
        fs.set_schedule(&of_one).unwrap_err().kind,
        ErrorKind::NotFound,
        "a slip of the pen is found out at once"
    );
    put(&fs, "/missing", 0, 4096, 1, IoMode::Concurrent).unwrap();
    begin(&fs, &of_one, hour(0, 0));
    fs.remove("/missing").unwrap();
    begin(&fs, &hourly(2), hour(0, 0));
    let run = fs.run_schedules(hour(1, 1)).unwrap();
    assert!(
        run.made.len() == 1 && run.failures.len() == 1 && run.failures[0].contains("'broken'"),
        "{run:?}"
    );
    assert!(fs.run_schedules(hour(1, 1)).unwrap().failures.is_empty(), "it had its turn");
    // S-120: it is told with the reason, also after a remount and when it is added again, until it
    // goes well or is removed.
    let broken = |fs: &FileSystem| {
        fs.schedules().into_iter().find(|schedule| schedule.name == "broken").unwrap().failure
    };
    assert!(
        broken(&fs).unwrap().contains("/missing") && fs.schedules()[1].failure.is_none(),
        "{:?}",
        fs.schedules()
    );
    fs.unmount().unwrap();
    let fs = mount_as(&device, IoMode::Concurrent);
    assert!(broken(&fs).unwrap().contains("/missing"));
    put(&fs, "/missing", 0, 4096, 1, IoMode::Concurrent).unwrap();
    fs.set_schedule(&of_one).unwrap();
    assert!(broken(&fs).is_some());
    fs.run_schedules(hour(2, 2)).unwrap();
    assert_eq!(broken(&fs), None);
    fs.remove("/missing").unwrap();
    fs.run_schedules(hour(3, 3)).unwrap();
    assert!(broken(&fs).is_some());
    fs.remove_schedule("broken").unwrap();
    put(&fs, "/missing", 0, 4096, 1, IoMode::Concurrent).unwrap();
    fs.set_schedule(&of_one).unwrap();
    assert_eq!(broken(&fs), None, "another one of that name");
    for wrong in [
        Schedule { every_s: 1, ..hourly(1) },
        Schedule { keep: 0, ..hourly(1) },
        Schedule { name: "..".into(), ..hourly(1) },
    ] {
        assert_eq!(fs.set_schedule(&wrong).unwrap_err().kind, ErrorKind::Invalid);
    }
    fs.unmount().unwrap();
    assert_sound(&device);
}
