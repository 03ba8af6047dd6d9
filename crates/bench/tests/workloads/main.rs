//! Each workload, tiny, on memory: as a raw device and as a volume in every mode that plays a part
//! in it.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod databases;
mod images;
mod papers;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bedplate_bench::{
    Cached, Checkpoint, Copy, Increments, LogState, Mixed, Oltp, PageMoves, Redo, Results, Scan,
    Schedule, Sequential, TargetSpec, Targets, Workload, WorkloadResults, Writers, run_workload,
};

const SCHEDULE: Schedule =
    Schedule { rounds: 1, time: Duration::from_millis(120), warm_up: Duration::from_millis(10) };

fn specs(texts: &[&str]) -> Vec<TargetSpec> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn measure(workload: &Workload, texts: &[&str]) -> WorkloadResults {
    measure_for(SCHEDULE.time, workload, texts)
}

fn measure_for(time: Duration, workload: &Workload, texts: &[&str]) -> WorkloadResults {
    let targets = Targets::open(&specs(texts), &mut |_| false).unwrap();
    let mut results = Results::begin(vec!["test".into()]);
    let schedule = Schedule { time, ..SCHEDULE };
    run_workload(workload, &targets, &schedule, &mut results, &AtomicBool::new(false), &mut |_| {})
        .unwrap();
    assert!(!results.interrupted);
    let found = results.workloads.remove(0);
    for record in &found.records {
        assert!(record.measurement.rate > 0.0, "{} {}", found.name, found.cases[record.case].name);
    }
    let skipped = found.skipped.len();
    assert_eq!(found.records.len() + skipped, found.cases.len() * texts.len());
    found
}

const BOTH: [&str; 3] = [
    "raw=memory:96M",
    "volume:memory:128M",
    "whole=volume:memory:128M,mode=direct,inode-lock=whole",
];
const CACHED: [&str; 4] = [
    "raw=memory:96M",
    "volume:memory:128M",
    "volume:memory:128M,mode=concurrent+cache",
    "volume:memory:128M,mode=cached",
];
const CACHES: [&str; 4] = [
    "raw=memory:96M",
    "volume:memory:128M,mode=cached",
    "volume:memory:128M,mode=direct",
    "volume:memory:128M,mode=concurrent+cache",
];

#[test]
fn increments_reads_every_step() {
    let steps = vec![(1, 4 << 10), (4096, 1 << 20), (1 << 20, 4 << 20)];
    let found = measure(&Workload::Increments(Increments { size_bytes: 4 << 20, steps }), &CACHES);
    let raw_bytes = found
        .records
        .iter()
        .find(|r| r.target == 0 && r.case == 0)
        .unwrap()
        .measurement
        .device
        .unwrap()
        .read_bytes;
    assert_eq!(raw_bytes, 4096 * 512, "a raw device gives a sector for every byte");
    assert!(found.records.iter().all(|r| r.measurement.ops > 0));
}

fn tiny_database() -> Oltp {
    let ramp = Duration::from_millis(10);
    Oltp {
        data_bytes: 16 << 20,
        files: 2,
        tables: 4,
        log_bytes: 4 << 20,
        clients: vec![3],
        writers: 1,
        ramp,
        ..Oltp::default()
    }
}

#[test]
fn oltp_commits_by_calls_and_by_lists() {
    for moves in [PageMoves::Calls, PageMoves::Lists] {
        let found = measure(&Workload::Oltp(Oltp { moves, ..tiny_database() }), &BOTH);
        for record in &found.records {
            let m = &record.measurement;
            assert!(
                m.latency["transaction"].count == m.ops && m.latency.contains_key("commit"),
                "{:?}",
                m.latency.keys()
            );
            assert!(!m.timeline.is_empty());
            assert!(m.device.unwrap().flushes > 0, "a commit is durable");
        }
    }
}

#[test]
fn writers_write_every_section_once() {
    let found = measure(
        &Workload::Writers(Writers { size_bytes: 4 << 20, block_bytes: 8192, threads: vec![1, 3] }),
        &BOTH,
    );
    for record in &found.records {
        let threads = found.cases[record.case].x as u64;
        let expected = (4 << 20) / 8192 / threads * threads;
        assert_eq!(record.measurement.ops, expected);
        assert!(
            record.measurement.device.unwrap().writes >= expected,
            "{:?}",
            record.measurement.device
        );
    }
}

#[test]
fn mixed_runs_by_threads_and_by_queues() {
    let workload = Mixed {
        size_bytes: 8 << 20,
        reads_percent: vec![100, 0, 50],
        random_percent: vec![100, 0],
        threads: vec![2],
        depths: vec![8],
        ..Mixed::default()
    };
    let found = measure(&Workload::Mixed(workload), &BOTH);
    for record in &found.records {
        let (m, case) = (&record.measurement, &found.cases[record.case].name);
        assert_eq!(m.latency.contains_key("read"), !case.contains(" writes"), "{case}");
        assert_eq!(
            m.latency.contains_key("write"),
            !case.contains(" reads") || case.contains('%'),
            "{case}"
        );
        // Both between the same two looks: what the threads count themselves has a window of its
        // own, and a busy machine looks late.
        let device = m.device.unwrap();
        let per_op = (device.reads + device.writes) as f64 / m.ops_observed as f64;
        assert!(
            (0.5..2.0).contains(&per_op),
            "{case}: {per_op} device operations for each of ours"
        );
    }
}

#[test]
fn mixed_shows_where_the_whole_lock_begins_to_matter() {
    let latencies = vec![Duration::ZERO, Duration::from_millis(3)];
    let workload = Mixed {
        size_bytes: 8 << 20,
        reads_percent: vec![0],
        threads: vec![8],
        depths: vec![],
        latencies,
        ..Mixed::default()
    };
    let found = measure(&Workload::Mixed(workload), &BOTH);
    let rate = |target: usize| {
        found.records.iter().find(|r| r.case == 1 && r.target == target).unwrap().measurement.rate
    };
    // Eight writers wait side by side for a slow device, or one after the other.
    assert!(
        rate(1) > 2.0 * rate(2),
        "concurrent {} and whole-file lock {} writes a second",
        rate(1),
        rate(2)
    );
    let waits = |target: usize| {
        found
            .records
            .iter()
            .find(|r| r.case == 1 && r.target == target)
            .unwrap()
            .measurement
            .lock_waits_per_op
            .unwrap()
    };
    assert!(waits(2) > 0.5 && waits(1) == 0.0);
    // S-502: the class is the lock of the file. S-504: the device had up to eight writes at once, or
    // one, and was busy nearly all the time.
    let of = |target: usize| {
        &found.records.iter().find(|r| r.case == 1 && r.target == target).unwrap().measurement
    };
    assert_eq!(of(2).waits["inode_exclusive"].count, {
        let all = of(2).waits.iter().filter(|(class, _)| *class != "device");
        all.map(|(_, time)| time.count).sum::<u64>()
    });
    assert!(of(2).waits["inode_exclusive"].ns > 0 && of(2).waits["device"].ns > 0);
    assert!(!of(2).waits.contains_key("queue"), "S-503: memory has no threads");
    for target in [1, 2] {
        let [device] = &of(target).devices[..] else { panic!("S-504: one device") };
        assert!(device.busy_percent > 50.0 && device.busy_percent <= 100.0, "S-504: {device:?}");
        assert!(!device.series.is_empty(), "S-504: {device:?}");
    }
    let depth = |target: usize| of(target).devices[0].queue_depth_mean;
    assert!(depth(1) > 2.0 * depth(2) && depth(2) <= 1.1, "S-504: {} and {}", depth(1), depth(2));
}

#[test]
fn sequential_reads_all_streams() {
    let found = measure(
        &Workload::Sequential(Sequential {
            size_bytes: 4 << 20,
            block_bytes: 1 << 20,
            streams: vec![1, 3],
        }),
        &CACHES,
    );
    assert!(
        found
            .records
            .iter()
            .all(|r| r.measurement.bytes == (4 << 20) * found.cases[r.case].x as u64)
    );
}

#[test]
fn sequential_spreads_streams_over_places() {
    let workload = Sequential { size_bytes: 4 << 20, block_bytes: 1 << 20, streams: vec![4] };
    let found = measure(&Workload::Sequential(workload), &["raw:memory:16M+memory:16M"]);
    assert_eq!(found.targets[0].places.len(), 2);
}

#[test]
fn cached_gives_the_second_level_what_the_database_gives_up() {
    let workload = Cached {
        database: Oltp { updates_percent: 25, ..tiny_database() },
        clients: 2,
        memory_percent: 60.0,
        cache_percents: vec![50.0, 5.0],
    };
    let found = measure_for(Duration::from_millis(400), &Workload::Cached(workload), &CACHED);
    // Reads of a transaction that reach the device, where the database's own cache holds next to
    // nothing.
    let reads = |target: usize| {
        let m =
            &found.records.iter().find(|r| r.case == 1 && r.target == target).unwrap().measurement;
        m.device.unwrap().reads as f64 / m.ops_observed as f64
    };
    assert!(
        reads(2) < reads(0) * 0.7,
        "{} reads with a second level, {} without",
        reads(2),
        reads(0)
    );
}

/// S-110: pages that transactions use again and again stay in the library cache while a file many
/// times its size is read from end to end.
#[test]
fn s_110_a_scan_does_not_evict_what_transactions_use() {
    let database =
        Oltp { data_bytes: 8 << 20, updates_percent: 0, cache_percent: 1.0, ..tiny_database() };
    let workload =
        Scan { database, clients: 3, cache_percent: 50.0, multiples: vec![6], ..Scan::default() };
    // Slow devices: transactions go on while the scan lasts, however busy the processors are.
    let modes = [
        "raw=memory:96M,latency=1ms",
        "volume:memory:128M,mode=concurrent+cache,latency=1ms",
        "volume:memory:128M,mode=cached,latency=1ms",
    ];
    let found = measure_for(Duration::from_millis(400), &Workload::Scan(workload), &modes);
    for record in &found.records {
        let figure = |name: &str| record.measurement.figures[name];
        let hits = [figure("before hits %"), figure("during hits %"), figure("then hits %")];
        let label = &found.targets[record.target].label;
        assert!(
            figure("scan MiB/s") > 0.0 && figure("then tps") > 0.0 && figure("during p99 µs") > 0.0,
            "{label}: {:?}",
            record.measurement.figures
        );
        if record.target == 0 {
            assert_eq!(hits, [0.0; 3], "a raw device has no cache");
            continue;
        }
        assert!(
            hits[0] > 60.0 && hits.iter().all(|during| *during > hits[0] - 15.0),
            "{label}: hits of {hits:?} percent"
        );
        let timeline = &record.measurement.timeline;
        assert!(timeline.windows(2).all(|pair| pair[0].t_s < pair[1].t_s) && !timeline.is_empty());
    }
}

/// As root the kernel's page cache can be limited; otherwise it is said why its cases are not
/// measured.
#[test]
fn the_page_cache_gets_no_more_memory_than_other_caches() {
    let directory = tempfile::Builder::new().tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let kernel = format!("path:{},buffered", directory.path().display());
    let database =
        Oltp { data_bytes: 64 << 20, updates_percent: 0, cache_percent: 0.5, ..tiny_database() };
    let workload =
        Scan { database, clients: 2, cache_percent: 10.0, multiples: vec![4], ..Scan::default() };
    let found =
        measure(&Workload::Scan(workload), &["volume:memory:192M,mode=concurrent+cache", &kernel]);
    match found.skipped.first() {
        Some(skipped) => assert!(
            skipped.target == 1 && skipped.reason.contains("page cache"),
            "{}",
            skipped.reason
        ),
        None => {
            let figures = &found
                .records
                .iter()
                .find(|record| record.target == 1)
                .unwrap()
                .measurement
                .figures;
            // With all of the machine's memory nearly everything would be found there.
            assert!(figures.get("then hits %").is_none_or(|hits| *hits < 80.0), "{figures:?}");
        }
    }
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    assert!(!groups.contains("bedplate-bench-"), "back in its own group: {groups}");
}

#[test]
fn redo_counts_writes_and_flushes() {
    let states = vec![LogState::Extending, LogState::Unwritten, LogState::Written];
    let found = measure(
        &Workload::Redo(Redo {
            append_bytes: vec![512, 4096],
            committers: vec![1, 2],
            states,
            size_bytes: 8 << 20,
        }),
        &BOTH,
    );
    for record in found.records.iter().filter(|r| r.target == 0) {
        let m = &record.measurement;
        let device = m.device.unwrap();
        let per_commit = |count: u64| count as f64 / m.ops_observed as f64;
        assert!(
            (per_commit(device.writes) - 1.0).abs() < 0.2
                && (per_commit(device.flushes) - 1.0).abs() < 0.2,
            "{device:?}"
        );
    }
}

#[test]
fn copy_moves_every_byte() {
    let found = measure(
        &Workload::Copy(Copy {
            size_bytes: 8 << 20,
            requests: vec![(4096, 1), (1 << 20, 1), (1 << 20, 3)],
        }),
        &CACHES,
    );
    for record in &found.records {
        assert_eq!(
            record.measurement.latency["write"].count,
            (8 << 20) / found.cases[record.case].x as u64
        );
    }
}

#[test]
fn checkpoint_compares_with_before() {
    let workload = Workload::Checkpoint(Checkpoint {
        size_bytes: 8 << 20,
        page_bytes: 8192,
        depth: 8,
        threads: 3,
    });
    let found = measure(
        &workload,
        &["volume:memory:128M", "direct=volume:memory:128M,mode=direct", "raw=raw:memory:96M"],
    );
    assert_eq!((found.cases.len(), found.skipped.len()), (8, 8), "a raw device keeps no image");
    for record in &found.records {
        let m = &record.measurement;
        assert_eq!((m.ops, m.latency["write"].count), (1024, 1024), "each page once");
        assert!(m.figures.values().all(|value| *value > 0.0), "{:?}", m.figures);
        let first = found.cases[record.case].name.ends_with("first pass");
        let written = m.device.unwrap().written_bytes;
        assert!(written >= 8 << 20, "first {first}: {written}");
    }
}

#[test]
fn an_interrupted_run_keeps_whole_rounds() {
    let targets = Targets::open(&specs(&BOTH), &mut |_| false).unwrap();
    let mut results = Results::begin(vec![]);
    let stop = AtomicBool::new(false);
    let workload = Workload::Mixed(Mixed {
        size_bytes: 8 << 20,
        reads_percent: vec![100],
        threads: vec![1, 2],
        depths: vec![],
        ..Mixed::default()
    });
    let mut calls = 0;
    // Interrupted in the middle of the second round.
    let schedule = Schedule { rounds: 50, ..SCHEDULE };
    run_workload(&workload, &targets, &schedule, &mut results, &stop, &mut |progress| {
        calls += 1;
        if progress.done == 3 + 6 + 4 {
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    })
    .unwrap();
    assert!(results.interrupted);
    let records = &results.workloads[0].records;
    assert_eq!(
        records.len(),
        6 + 3,
        "the first round whole, of the second the case that all targets finished"
    );
}

#[test]
fn refusals_are_one_sentence_each() {
    let small = Targets::open(&specs(&["memory:1M"]), &mut |_| false).unwrap();
    let run = |workload: Workload| {
        let mut results = Results::begin(vec![]);
        run_workload(
            &workload,
            &small,
            &SCHEDULE,
            &mut results,
            &AtomicBool::new(false),
            &mut |_| {},
        )
        .unwrap_err()
        .to_string()
    };
    assert!(
        run(Workload::Mixed(Mixed::default())).contains("it holds 1 MiB and mixed needs 1 GiB")
    );
    assert!(
        run(Workload::Mixed(Mixed { block_bytes: vec![1000], ..Mixed::default() }))
            .contains("multiple of 512")
    );
    assert!(
        run(Workload::Mixed(Mixed {
            locking: true,
            size_bytes: 1 << 19,
            depths: vec![],
            ..Mixed::default()
        }))
        .contains("advisory locks")
    );
    assert!(
        run(Workload::Oltp(Oltp { clients: vec![], ..Oltp::default() })).contains("at least 1")
    );
    assert!(
        run(Workload::Redo(Redo { append_bytes: vec![100], ..Redo::default() }))
            .contains("multiple of 512")
    );
    let open = |texts: &[&str]| {
        Targets::open(&specs(texts), &mut |_| false).map(|_| ()).unwrap_err().to_string()
    };
    assert!(open(&[]).contains("at least one --target"));
    assert!(open(&["memory:1M", "memory:2M"]).contains("two targets are called"));
    assert!(open(&["raw:/dev/zero"]).contains("--destroy=/dev/zero"));
    assert!(open(&["raw:/nonexistent"]).contains("no such device"));
    assert!(open(&["path:/etc/passwd"]).contains("directory"));
}
