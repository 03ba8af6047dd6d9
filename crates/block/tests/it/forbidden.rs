//! Where io_uring is forbidden, server threads take over, and the device says why.

use std::collections::BTreeMap;

use bedplate_block::{
    AlignedBuf, BlockDevice, DeviceOptions, Engine, ErrorKind, QueueOptions, Request, RequestKind,
    Segment, open,
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::image::Image;

/// Makes io_uring_setup fail in this thread, for good, as container runtimes do.
fn forbid_uring(errno: i32) {
    let rules = BTreeMap::from([(libc::SYS_io_uring_setup, Vec::new())]);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter =
        SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno as u32), arch)
            .unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}

fn in_thread_without_uring(errno: i32, test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            forbid_uring(errno);
            test();
        });
        thread.join().unwrap();
    });
}

fn write_and_read_back(device: &dyn BlockDevice) {
    let mut queue = device.queue(&QueueOptions::default()).unwrap();
    let first = Segment { offset: 4096, len: 4096 };
    let buf = Some(AlignedBuf::from_slice(&[7; 4096]));
    queue
        .push(Request { token: 1, kind: RequestKind::Write, buf, first, rest: Vec::new() })
        .unwrap();
    let mut out = Vec::new();
    assert_eq!(queue.complete(1, &mut out).unwrap(), 1);
    assert!(out[0].result.is_ok());
    let mut back = AlignedBuf::zeroed(4096);
    device.read_at(&mut back, 4096).unwrap();
    assert!(back.iter().all(|byte| *byte == 7));
}

#[test]
fn forbidden_uring_gives_server_threads_and_the_reason() {
    for (errno, words) in [
        (libc::EPERM, "forbidden"),
        (libc::ENOSYS, "offers no io_uring"),
        (libc::ENOMEM, "cannot be set up"),
    ] {
        let image = Image::new(1 << 20);
        in_thread_without_uring(errno, || {
            let report = open(&image.path, &DeviceOptions::default()).unwrap().engine();
            assert_eq!(report.name, "threads");
            assert!(
                report.fallback.as_deref().is_some_and(|reason| reason.contains(words)),
                "{report:?}"
            );
            write_and_read_back(&*open(&image.path, &DeviceOptions::default()).unwrap());
        });
    }
}

#[test]
fn uring_forbidden_after_the_open_gives_server_threads_too() {
    let image = Image::new(1 << 20);
    let device = open(&image.path, &DeviceOptions::default()).unwrap();
    in_thread_without_uring(libc::EPERM, || write_and_read_back(&*device));
    let report = device.engine();
    assert!(
        report.name == "threads"
            && report.fallback.is_some_and(|reason| reason.contains("forbidden"))
    );
}

#[test]
fn uring_demanded_and_forbidden_is_an_error() {
    let image = Image::new(1 << 20);
    in_thread_without_uring(libc::EPERM, || {
        let options = DeviceOptions { engine: Engine::Uring, ..DeviceOptions::default() };
        let error = open(&image.path, &options).unwrap_err();
        assert!(
            error.kind == ErrorKind::Unsupported && error.detail.contains("forbidden"),
            "{error}"
        );
    });
}

/// S-509: how many servers there are, how many are at work, and how often all were.
#[test]
fn s_509_busy_servers_are_counted() {
    let image = Image::new(1 << 20);
    let options =
        DeviceOptions { engine: Engine::Threads, server_threads: 1, ..DeviceOptions::default() };
    let device = open(&image.path, &options).unwrap();
    assert_eq!((device.engine().name, device.engine().fallback), ("threads", None));
    let mut queue = device.queue(&QueueOptions::default()).unwrap();
    let first = Segment { offset: 0, len: 1 << 20 };
    // One submission after the other, without waiting: sooner or later one finds the only server at
    // work.
    while device.counters().saturated == 0 {
        let buf = Some(AlignedBuf::zeroed(1 << 20));
        queue
            .push(Request { token: 0, kind: RequestKind::Write, buf, first, rest: Vec::new() })
            .unwrap();
        queue.submit().unwrap();
        queue.complete(queue.in_flight() / 64, &mut Vec::new()).unwrap();
    }
    queue.complete(queue.in_flight(), &mut Vec::new()).unwrap();
    let told = || device.engine().threads.unwrap();
    assert_eq!((told().count, told().count_max), (1, 1), "S-509");
    assert_eq!(told().waited, device.counters().saturated, "S-509");
    // The server answers before it counts as idle.
    while told().busy > 0 {
        std::thread::yield_now();
    }
    assert_eq!(told().waiting, 0, "S-509");
}

/// S-503: what finds the only server at work says how long it waited for it; what finds it idle
/// says that it did not.
#[test]
fn s_503_a_request_says_how_long_it_waited_for_a_server() {
    let image = Image::new(1 << 20);
    let options =
        DeviceOptions { engine: Engine::Threads, server_threads: 1, ..DeviceOptions::default() };
    let device = open(&image.path, &options).unwrap();
    let mut queue = device.queue(&QueueOptions::default()).unwrap();
    let mut waited = |count: u64| {
        for token in 0..count {
            let (buf, first) = (Some(AlignedBuf::zeroed(4096)), Segment { offset: 0, len: 4096 });
            let request = Request { token, kind: RequestKind::Write, buf, first, rest: Vec::new() };
            queue.push(request).unwrap();
        }
        let mut done = Vec::new();
        queue.complete(count as usize, &mut done).unwrap();
        done.sort_by_key(|completion| completion.token);
        // The server answers before it counts as idle.
        while device.engine().threads.unwrap().busy > 0 {
            std::thread::yield_now();
        }
        done.iter().map(|completion| completion.waited_ns > 0).collect::<Vec<_>>()
    };
    assert_eq!(waited(1), [false], "S-503");
    assert_eq!(waited(3), [false, true, true], "S-503: one server takes one after the other");
    assert_eq!(waited(1), [false], "S-503");
}

/// The report's type is reachable and comparable for programs that log it.
#[test]
fn an_allowed_engine_reports_no_fallback() {
    let image = Image::new(1 << 20);
    let device =
        open(&image.path, &DeviceOptions { engine: Engine::Threads, ..DeviceOptions::default() })
            .unwrap();
    let report: bedplate_block::EngineReport = BlockDevice::engine(&*device);
    let threads = bedplate_block::EngineThreads { count_max: 32, ..Default::default() };
    let expected =
        bedplate_block::EngineReport { name: "threads", fallback: None, threads: Some(threads) };
    assert_eq!(report, expected, "no queue was asked for, so no thread was started");
}
