//! What the papers measured besides: pages of several sizes, scattered files, a log of its own,
//! checkpoints meanwhile, response times, shares of the processors, records under locks.

use std::time::Duration;

use bedplate_bench::{DataLayout, Oltp, Sio, Targets, Workload};

use crate::{BOTH, measure, measure_for, specs, tiny_database};

/// S-541: each size of a page and each layout is a series of its own: a page is moved with its own
/// size, and a scattered file lies in as many extents as it has pieces.
#[test]
fn s_541_pages_and_layouts_are_series() {
    let workload = Oltp {
        page_bytes: vec![2048, 8192],
        layouts: vec![DataLayout::Contiguous, DataLayout::Scattered],
        updates_percent: 0,
        cache_percent: 0.0,
        ..tiny_database()
    };
    let targets = ["raw=memory:96M", "volume:memory:128M,block=2K"];
    let found = measure(&Workload::Oltp(workload), &targets);
    let names: Vec<&str> = found.cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names[1], "2 KiB pages, scattered, 3 clients");
    assert_eq!(names.len(), 4);
    assert!(found.skipped.len() == 2 && found.skipped.iter().all(|skipped| skipped.target == 0));
    for record in &found.records {
        let (m, name) = (&record.measurement, names[record.case]);
        let page = if name.starts_with("2 KiB") { 2048 } else { 8192 };
        assert_eq!(m.bytes, m.latency["read"].count * page, "{name}");
        let Some(extents) = m.figures.get("data extents") else {
            assert_eq!(record.target, 0, "a raw device has no extents");
            continue;
        };
        // Two files of 8 MiB in pieces of 64 KiB, or in one piece or a few.
        let pieces = f64::from((16 << 20) / (64 << 10));
        if name.contains("scattered") {
            assert!(*extents >= pieces * 0.9, "{extents} extents of {pieces} pieces");
        } else {
            assert!(*extents <= 8.0, "{extents} extents");
        }
    }
}

/// S-542: a log on a device of its own stands beside one without, with as many checkpoints as were
/// asked for; afterwards none is left, and the files lie as before.
#[test]
fn s_542_logs_and_checkpoints_stand_side_by_side() {
    let workload = Oltp {
        checkpoints: vec![2, 0],
        layouts: vec![DataLayout::Contiguous, DataLayout::Scattered],
        clients: vec![2],
        ..tiny_database()
    };
    let targets =
        ["volume:memory:160M", "log=volume:memory:160M,log=memory:16M", "raw=memory:128M"];
    let found = measure_for(Duration::from_millis(200), &Workload::Oltp(workload), &targets);
    assert!(found.targets[1].file_system.as_ref().unwrap().contains("log=memory:16 MiB"));
    assert_eq!(found.skipped.len(), 3, "a raw device has one layout and no checkpoint");
    for record in &found.records {
        let (m, name) = (&record.measurement, &found.cases[record.case].name);
        let made = m.figures.get("checkpoints made").copied();
        assert_eq!(made, name.contains("2 checkpoints").then_some(2.0), "{name}");
        if made.is_some() {
            assert!(m.figures["checkpoint made ms"] > 0.0, "{name}");
        }
        assert!(m.latency.contains_key("transaction") && !m.latency.contains_key("image"));
        if record.target < 2 && name.starts_with("contiguous") {
            // Also those without a checkpoint, which come next.
            let extents = m.figures["data extents"];
            assert!((2.0..=8.0).contains(&extents), "{name}: {extents} extents of two files");
        }
    }
}

/// S-542: targets of one device have one log, and a log's device is overwritten with leave only.
#[test]
fn s_542_a_device_has_one_log_and_a_log_needs_leave() {
    let files = [(); 2].map(|()| {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        file.as_file().set_len(64 << 20).unwrap();
        file
    });
    let [data, log] = [0, 1].map(|i| files[i].path().display().to_string());
    let both = [format!("volume:{data},log={log}"), format!("volume:{data},mode=direct")];
    let open = |texts: &[String], leave: &mut dyn FnMut(&std::path::Path) -> bool| {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        Targets::open(&specs(&texts), leave).map(|_| ()).map_err(|e| e.to_string())
    };
    let refused = open(&both[..1], &mut |path| path == files[0].path()).unwrap_err();
    assert!(refused.contains(&format!("--destroy={log}")), "{refused}");
    let refused = open(&both, &mut |_| true).unwrap_err();
    assert!(refused.contains("their logs are not in one place"), "{refused}");
    open(&both[..1], &mut |_| true).unwrap();
}

/// S-543: results of transactions and accesses have response times, rates in KiB and the shares of
/// the processors, also over time.
#[test]
fn s_543_results_have_response_times_and_shares() {
    let sio =
        Sio { size_bytes: 8 << 20, block_bytes: vec![4096], threads: vec![2], ..Sio::default() };
    let time = Duration::from_millis(250);
    for (workload, kind) in
        [(Workload::Oltp(tiny_database()), "transaction"), (Workload::Sio(sio), "read")]
    {
        let found = measure_for(time, &workload, &BOTH[..2]);
        for record in found.records.iter().filter(|r| r.measurement.latency.contains_key(kind)) {
            let m = &record.measurement;
            let told = m.main_latency().unwrap();
            let p95 = told.quantile_us(0.95).unwrap();
            assert!(told.mean_us > 0.0 && told.p50_us <= p95 && p95 <= told.p99_us, "{told:?}");
            assert_eq!(m.latency[kind].mean_us, told.mean_us);
            let moved = m.kib_per_s() * 1024.0 * m.elapsed_s;
            assert!(m.bytes > 0 && (moved - m.bytes as f64).abs() < 1.0);
            let sum: f64 = m.cpu.shares_percent().iter().sum::<f64>() + m.cpu.steal_percent;
            assert!((sum - 100.0).abs() < 0.1, "{sum} % of the processors");
            assert!(m.timeline.len() >= 3, "{} samples", m.timeline.len());
            for point in &m.timeline {
                let sum = point.user_percent + point.system_percent + point.idle_percent;
                assert!(sum == 0.0 || (20.0..=100.1).contains(&sum), "{point:?}");
                assert!(point.iowait_percent <= point.idle_percent + 1e-9, "{point:?}");
            }
        }
    }
}

/// S-544: half of the accesses are at random places, as many read as was asked for, and each holds
/// the lock of its record where files have locks; elsewhere the figures say that none was held.
#[test]
fn s_544_records_are_locked_where_there_are_locks() {
    let directory = tempfile::Builder::new().tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = format!("kernel=path:{},buffered", directory.path().display());
    let workload = Sio {
        size_bytes: 4 << 20,
        block_bytes: vec![2048, 8192],
        reads_percent: vec![75, 0],
        threads: vec![3],
        ..Sio::default()
    };
    let found = measure(&Workload::Sio(workload), &[&path, "raw=memory:16M", "volume:memory:64M"]);
    assert_eq!(found.cases[3].name, "8 KiB 50% random writes, 3 thr");
    assert_eq!((found.cases[3].axis.as_str(), found.cases[3].x), ("percent of writes", 100.0));
    for record in &found.records {
        let (m, case) = (&record.measurement, &found.cases[record.case]);
        let locks = if record.target == 0 { 1.0 } else { 0.0 };
        assert_eq!(m.figures["locks per access"], locks);
        let count = |kind: &str| m.latency.get(kind).map_or(0, |l| l.count) as f64;
        let writes = 100.0 * count("write") / (count("read") + count("write"));
        assert!((writes - case.x).abs() < 10.0, "{}: {writes} % of writes", case.name);
        let per_cpu = m.figures["IOPS of a busy processor"];
        assert_eq!(per_cpu, m.rate_per_busy_cpu());
    }
}
