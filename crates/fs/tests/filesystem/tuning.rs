//! Tunables: set while mounted, kept by the volume, overridden by options.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_block::{BlockDevice, CrashChoice, SimulatedDevice};
use bedplate_fs::{
    ErrorKind, FileSystem, IoMode, MountOptions, OpenOptions, Takes, Tunable, TunableSet,
    TuneOptions, TunedBy,
};

use crate::support::{device, format};

fn change(changes: &[(Tunable, Option<u64>)]) -> TuneOptions {
    TuneOptions { changes: changes.to_vec(), live_only: false }
}

fn live(changes: &[(Tunable, Option<u64>)]) -> TuneOptions {
    TuneOptions { live_only: true, ..change(changes) }
}

fn standing(fs: &FileSystem, tunable: Tunable) -> (u64, TunedBy, Option<u64>) {
    let state = fs.tunables().into_iter().find(|state| state.name == tunable.info().name).unwrap();
    (state.value, state.by, state.stored)
}

/// S-85: in effect at once, and kept, also by a volume that is not unmounted.
#[test]
fn s_85_a_tunable_counts_at_once_and_at_every_later_mount() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let fs = FileSystem::mount(Arc::clone(&device), None, MountOptions::default()).unwrap();
    assert_eq!(
        standing(&fs, Tunable::Cache),
        (Tunable::Cache.default_value(), TunedBy::Default, None)
    );
    let changes = [
        (Tunable::Cache, Some(16 << 20)),
        (Tunable::Mode, Some(3)),
        (Tunable::Sync, Some(60_000_000_000)),
        (Tunable::Threads, Some(7)),
    ];
    fs.tune(&change(&changes)).unwrap();
    assert_eq!(standing(&fs, Tunable::Cache), (16 << 20, TunedBy::Volume, Some(16 << 20)));
    assert_eq!(fs.info().mode, IoMode::Concurrent);
    assert_eq!(standing(&fs, Tunable::Threads), (7, TunedBy::Volume, Some(7)));
    // A crash: there is no unmount.
    drop(fs);
    let fs = FileSystem::mount(Arc::clone(&device), None, MountOptions::default()).unwrap();
    for (tunable, value) in changes {
        assert_eq!(standing(&fs, tunable), (value.unwrap(), TunedBy::Volume, value), "{tunable:?}");
    }
    assert_eq!(fs.open("/f", &OpenOptions::create()).unwrap().effective_mode(), IoMode::Concurrent);
    fs.tune(&change(&[(Tunable::Cache, None), (Tunable::Mode, None)])).unwrap();
    assert_eq!(
        (standing(&fs, Tunable::Cache), fs.info().mode),
        ((Tunable::Cache.default_value(), TunedBy::Default, None), IoMode::Cached)
    );
    fs.unmount().unwrap();
    let fs = FileSystem::mount(device, None, MountOptions::default()).unwrap();
    assert_eq!(
        (standing(&fs, Tunable::Mode).1, fs.tunable(Tunable::Sync)),
        (TunedBy::Default, 60_000_000_000)
    );
}

/// S-85: what was set is there after a power cut at any operation of the device since: all values
/// that were set at once, or none while they were being set, and nothing else once that had
/// returned.
#[test]
fn s_85_tunables_that_were_set_survive_a_power_cut_together() {
    let simulated = SimulatedDevice::new(64 << 20, 7);
    let device: Arc<dyn BlockDevice> = simulated.clone();
    format(&device, 4096);
    let fs = FileSystem::mount(Arc::clone(&device), None, MountOptions::default()).unwrap();
    let start = simulated.operation_count();
    let values = [(Tunable::Cache, 32 << 20), (Tunable::Mode, 3), (Tunable::Sync, 60_000_000_000)];
    fs.tune(&change(&values.map(|(tunable, value)| (tunable, Some(value))))).unwrap();
    let end = simulated.operation_count();
    assert!(end > start, "it was written");
    let mut kept = 0;
    for after in start..=end {
        for choice in
            [CrashChoice::LoseAll, CrashChoice::KeepAll, CrashChoice::Seeded(after as u64)]
        {
            let options = MountOptions { read_only: true, ..MountOptions::default() };
            let then =
                FileSystem::mount(simulated.crash_image(after, &choice), None, options).unwrap();
            let set = values.map(|(tunable, value)| standing(&then, tunable).2 == Some(value));
            assert!(
                set == [true; 3] || (set == [false; 3] && after < end),
                "{after} of {start} to {end}, {choice:?}: {set:?}"
            );
            kept += u32::from(set[0]);
        }
    }
    assert!(kept >= 3);
}

#[test]
fn a_mount_option_goes_before_what_the_volume_holds() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let mount =
        |options: MountOptions| FileSystem::mount(Arc::clone(&device), None, options).unwrap();
    let fs = mount(MountOptions::default());
    fs.tune(&change(&[
        (Tunable::ReadAheadMin, Some(1 << 20)),
        (Tunable::Cache, Some(16 << 20)),
        (Tunable::LatencySample, Some(3)),
    ]))
    .unwrap();
    fs.unmount().unwrap();
    let mut given = TunableSet::default();
    given.insert(Tunable::Cache);
    let fs = mount(MountOptions { given, read_ahead_bytes_max: 8192, ..MountOptions::default() });
    assert_eq!(
        standing(&fs, Tunable::Cache),
        (Tunable::Cache.default_value(), TunedBy::MountOption, Some(16 << 20)),
        "given, though it is the default"
    );
    assert_eq!(fs.tunable(Tunable::LatencySample), 3);
    assert_eq!(
        (fs.tunable(Tunable::ReadAheadMin), fs.tunable(Tunable::ReadAheadMax)),
        (8192, 8192),
        "the option of the pair counts"
    );
    fs.tune(&live(&[(Tunable::Cache, Some(32 << 20))])).unwrap();
    assert_eq!(standing(&fs, Tunable::Cache), (32 << 20, TunedBy::Live, Some(16 << 20)));
    fs.tune(&live(&[(Tunable::Cache, None)])).unwrap();
    assert_eq!(
        standing(&fs, Tunable::Cache),
        (16 << 20, TunedBy::Volume, Some(16 << 20)),
        "back to what the volume holds"
    );
}

#[test]
fn a_change_that_is_refused_changes_nothing() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let fs = FileSystem::mount(Arc::clone(&device), None, MountOptions::default()).unwrap();
    let before = fs.tunables();
    for (changes, part) in [
        (
            vec![(Tunable::Cache, Some(1 << 20)), (Tunable::Sync, Some(1))],
            "sync: 1ns is not from 10ms to 1d",
        ),
        (
            vec![(Tunable::ReadAheadMin, Some(4 << 20))],
            "read-ahead-min would be 4 MiB, more than read-ahead-max, which is 2 MiB",
        ),
        (
            vec![(Tunable::LogSize, Some(1 << 20))],
            "log-size: it is set once, by 'bedplate format --log-size'",
        ),
        (vec![(Tunable::MetadataCache, Some(1 << 20))], "give the mount option metadata-cache="),
    ] {
        let error = fs.tune(&change(&changes)).unwrap_err();
        assert!(error.kind == ErrorKind::Invalid && error.message.contains(part), "{error}");
    }
    assert_eq!(fs.tunables(), before);
    fs.unmount().unwrap();
    let fs = FileSystem::mount(
        device,
        None,
        MountOptions { read_only: true, cache_bytes: 128 << 20, ..MountOptions::default() },
    )
    .unwrap();
    assert_eq!(
        fs.tune(&change(&[(Tunable::Cache, Some(1 << 20))])).unwrap_err().kind,
        ErrorKind::ReadOnly
    );
    fs.tune(&live(&[(Tunable::Cache, Some(4 << 20))])).unwrap();
    assert_eq!(standing(&fs, Tunable::Cache), (4 << 20, TunedBy::Live, None));
    fs.tune(&live(&[(Tunable::Cache, Some(1))])).unwrap();
    assert_eq!(
        standing(&fs, Tunable::Cache).0,
        2 << 20,
        "16 pages for each of the 32 shards of a cache that began with 128 MiB"
    );
    assert!(fs.tunables().iter().all(
        |state| state.takes != Takes::Format || state.by == TunedBy::Format && state.value > 0
    ));
}

/// S-86: with dirty pages in a cache that shrinks below them, and files whose mode changes below
/// them.
#[test]
fn s_86_no_write_is_lost_while_the_mode_of_the_mount_and_the_cache_change() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let fs = FileSystem::mount(
        device,
        None,
        MountOptions {
            sync_interval: Duration::from_secs(3600),
            // As few shards as let it shrink below what the file has.
            cache_bytes: 32 << 20,
            ..MountOptions::default()
        },
    )
    .unwrap();
    let file = fs.open("/f", &OpenOptions::create()).unwrap();
    let fixed = fs
        .open("/g", &OpenOptions { mode: Some(IoMode::Direct), ..OpenOptions::create() })
        .unwrap();
    let mut content = vec![0; 8 << 20];
    let modes = [3, 4, 1, 2];
    for round in 0..24_u64 {
        let at = (round as usize * 977 * 1024) % (7 << 20) + 100;
        content[at..at + 300_000].fill(round as u8 + 1);
        file.write_at(&content[at..at + 300_000], at as u64).unwrap();
        let (mode, cap) = (modes[round as usize % 4], [256 << 10, 32 << 20][round as usize % 2]);
        fs.tune(&live(&[(Tunable::Mode, Some(mode)), (Tunable::Cache, Some(cap))])).unwrap();
        assert_eq!((file.effective_mode() as u64, fixed.effective_mode()), (mode, IoMode::Direct));
        assert!(
            fs.info().cache.resident_bytes
                <= fs.tunable(Tunable::Cache).max(fs.tunables()[1].value)
        );
        let mut seen = vec![0; file.size() as usize];
        file.read_at(&mut seen, 0).unwrap();
        assert!(seen == content[..seen.len()], "round {round}");
    }
}

#[test]
fn a_shorter_sync_interval_counts_for_a_daemon_that_sleeps() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let fs = FileSystem::mount(
        device,
        None,
        MountOptions { sync_interval: Duration::from_secs(3600), ..MountOptions::default() },
    )
    .unwrap();
    let file = fs.open("/f", &OpenOptions::create()).unwrap();
    file.write_at(&[1; 100_000], 0).unwrap();
    assert!(fs.info().cache.dirty_bytes > 0);
    fs.tune(&live(&[(Tunable::Sync, Some(10_000_000))])).unwrap();
    let began = Instant::now();
    while fs.info().cache.dirty_bytes > 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "the daemon sleeps on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An extent size of 3000 bytes was taken from a tunable and from a mount option, and did not mean
/// what it said; of a file it was refused.
#[test]
fn an_extent_size_of_broken_blocks_is_refused_as_tunable_and_as_option() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let odd = MountOptions { extent_size_bytes: 3000, ..MountOptions::default() };
    let error = FileSystem::mount(Arc::clone(&device), None, odd).err().unwrap();
    assert!(
        error.kind == ErrorKind::Invalid
            && error.message.contains("extent-size=3000")
            && error.message.contains("block size 4096"),
        "{error}"
    );
    let fs = FileSystem::mount(device, None, MountOptions::default()).unwrap();
    for options in [
        change(&[(Tunable::ExtentSize, Some(3000))]),
        live(&[(Tunable::ExtentSize, Some(4096 + 512))]),
    ] {
        let error = fs.tune(&options).unwrap_err();
        assert!(
            error.kind == ErrorKind::Invalid
                && error.message.contains("a multiple of the block size 4096"),
            "{error}"
        );
    }
    assert_eq!(standing(&fs, Tunable::ExtentSize), (0, TunedBy::Default, None));
    fs.tune(&change(&[(Tunable::ExtentSize, Some(8192))])).unwrap();
    fs.tune(&change(&[(Tunable::ExtentSize, Some(0))])).unwrap();
}

/// A report over a table that is larger than the cache by far must not cost the transactions their
/// pages: admission is scan-resistant, and can be switched off for a file, for what a directory
/// gets, or for the whole mount, while all are in use.
#[test]
fn a_scan_leaves_the_hot_set_in_the_cache_and_admission_is_switched_live() {
    let device = device(128 << 20, 512);
    format(&device, 4096);
    let options = MountOptions {
        mode: IoMode::ConcurrentCache,
        cache_bytes: 4 << 20,
        read_ahead_bytes_max: 0,
        ..MountOptions::default()
    };
    let fs = FileSystem::mount(device, None, options).unwrap();
    let file = |path: &str, bytes: usize| {
        let file = fs.open(path, &OpenOptions::create()).unwrap();
        (0..bytes)
            .step_by(1 << 20)
            .try_for_each(|at| file.write_at(&vec![7; 1 << 20], at as u64).map(drop))
            .unwrap();
        file
    };
    let (hot, table) = (file("/hot", 2 << 20), file("/table", 64 << 20));
    // Two megabytes of hot pages, at random places of the file, as an index has them.
    let touch = || {
        (0..512).for_each(|n| {
            assert_eq!(hot.read_at(&mut [0; 4096], n * 211 % 512 * 4096).unwrap(), 4096);
        });
    };
    let hit_ratio = || {
        let before = hot.counters();
        touch();
        let counters = hot.counters().since(&before);
        counters.cache_hits as f64 / (counters.cache_hits + counters.cache_misses) as f64
    };
    let scan = || {
        (0..64 << 20)
            .step_by(8192)
            .for_each(|at| assert_eq!(table.read_at(&mut [0; 8192], at).unwrap(), 8192));
    };
    (0..4).for_each(|_| touch());
    assert!(hit_ratio() > 0.99, "they fit");
    scan();
    let ratio = hit_ratio();
    assert!(ratio > 0.95, "after the scan {ratio} of the hot reads were answered by the cache");
    let resident = |fs: &FileSystem| fs.info().cache.resident_bytes;
    // Off for the table: nothing of it is kept.
    fs.set_io_mode(table.ino(), Some(IoMode::Concurrent)).unwrap();
    let before = resident(&fs);
    scan();
    assert!(resident(&fs) <= before && table.counters().cache_misses > 0);
    assert!(hit_ratio() > 0.95);
    // Off for the mount: the hot file is not kept either; on again: it is.
    fs.tune(&live(&[(Tunable::Mode, Some(3))])).unwrap();
    assert_eq!((hot.effective_mode(), resident(&fs)), (IoMode::Concurrent, 0));
    fs.tune(&live(&[(Tunable::Mode, Some(4))])).unwrap();
    (0..2).for_each(|_| touch());
    assert!(hit_ratio() > 0.99);
}
