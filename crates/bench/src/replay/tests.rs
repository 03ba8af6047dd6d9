use bedplate_trace::{Event, Process, TracedFile, how};

use super::plan::{Kind, plan};
use super::*;
use crate::target::TargetSpec;
use bedplate_trace::Call;

fn event(call: Call, thread: u32, begin_ns: u64, offset: u64, len: u64) -> Event {
    Event {
        process: 0,
        thread,
        call,
        how: 0,
        errno: 0,
        file: Some(0),
        flags: 0,
        begin_ns,
        took_ns: 1000,
        offset,
        asked: len,
        moved: len,
        memory_align: 1,
    }
}

fn of(events: Vec<Event>, size_bytes: u64) -> Trace {
    let file = TracedFile { path: "/f".into(), inode: 1, size_bytes, ..TracedFile::default() };
    let processes = vec![Process::default()];
    Trace { processes, files: vec![file], events, ..Trace::default() }
}

#[test]
fn s_389_each_thread_makes_its_calls_in_their_order() {
    let trace = of(
        vec![
            event(Call::Write, 1, 0, 0, 4096),
            event(Call::Write, 2, 500, 4096, 512),
            event(Call::DataSync, 1, 5000, 0, 0),
            event(Call::Read, 2, 9000, 0, 4096),
        ],
        0,
    );
    let plan = plan(&trace).unwrap();
    let kinds: Vec<Vec<Kind>> =
        plan.threads.iter().map(|ops| ops.iter().map(|op| op.kind).collect()).collect();
    assert_eq!(kinds, [[Kind::Write, Kind::SyncData], [Kind::Write, Kind::Read]]);
    assert_eq!((plan.files[0].before_bytes, plan.files[0].end_bytes), (0, 4608));
}

#[test]
fn s_389_requests_at_once_are_as_many_threads_and_later_ones_the_same() {
    let mut events: Vec<Event> = (0..3).map(|i| event(Call::Write, 1, i, i * 512, 512)).collect();
    // After all of them have ended, in another thread.
    events.push(event(Call::Write, 9, 50_000, 0, 512));
    events.iter_mut().for_each(|event| event.how = how::ASYNC);
    let plan = plan(&of(events, 0)).unwrap();
    assert_eq!(plan.threads.len(), 3);
    assert_eq!(plan.ops().count(), 4);
}

#[test]
fn what_is_not_made_again_is_counted() {
    let mut failed = event(Call::Read, 1, 0, 0, 1);
    failed.errno = 5;
    let empty = event(Call::Read, 1, 10, 0, 0);
    let sized = event(Call::Truncate, 1, 20, 0, 0);
    let trace = of(vec![failed, empty, sized, event(Call::Read, 1, 30, 0, 10)], 10);
    let left_out = plan(&trace).unwrap().left_out;
    assert_eq!(left_out, LeftOut { failed: 1, empty: 1, sized: 1, early: 0 });
    let message = plan(&of(vec![failed], 0)).unwrap_err().to_string();
    assert!(message.contains("no read, write or sync"), "{message}");
}

#[test]
fn opens_that_are_durable_make_writes_so() {
    const O_DSYNC: u32 = 0o10_000;
    let mut open = event(Call::Open, 1, 0, 0, 0);
    open.flags = O_DSYNC;
    let write = event(Call::Write, 1, 10, 0, 512);
    let plan_of = |events| plan(&of(events, 0)).unwrap().threads[0][0].kind;
    assert_eq!(plan_of(vec![open, write]), Kind::DurableWrite);
    let plain = event(Call::Open, 1, 5, 0, 0);
    assert_eq!(plan_of(vec![open, plain, write]), Kind::Write);
}

/// A target and a trace that grows a file, reads it and changes it at odd places.
fn replayed(target: &str, options: &ReplayOptions) -> Replayed {
    let mut events: Vec<Event> =
        (0..40).map(|i| event(Call::Write, 1, i * 1_000_000, i * 8192, 8192)).collect();
    events.extend((0..20).map(|i| event(Call::Read, 1, 40_000_000 + i * 2000, i * 700, 700)));
    events.push(event(Call::Write, 1, 41_000_000, 5, 100));
    events.push(event(Call::Sync, 1, 42_000_000, 0, 0));
    // What no thread has written yet.
    events.push(event(Call::Read, 1, 43_000_000, 1 << 30, 0));
    let targets = Targets::open(&[target.parse::<TargetSpec>().unwrap()], &mut |_| true).unwrap();
    replay(&of(events, 0), &targets, options).unwrap().remove(0)
}

#[test]
fn s_389_a_replay_makes_all_calls_on_every_kind_of_target() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = format!("path:{},buffered", dir.path().display());
    for target in ["raw:memory:64M", "volume:memory:96M,mode=cached", path.as_str()] {
        let told = replayed(target, &ReplayOptions::default());
        let calls = (told.reads.calls, told.writes.calls, told.syncs.calls);
        assert_eq!(calls, (20, 41, 1), "{target}");
        assert_eq!(calls.1, told.writes.traced_calls);
        assert_eq!((told.reads.bytes, told.writes.bytes), (14_000, 40 * 8192 + 100), "{target}");
        assert_eq!(told.left_out, LeftOut { empty: 1, ..LeftOut::default() });
        assert_eq!(told.rounded > 0, target.starts_with("raw"), "{target}: {}", told.rounded);
        if let Some(device) = told.device.filter(|_| target.starts_with("raw")) {
            assert_eq!((device.writes, device.flushes > 0), (41, true), "{target}");
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing stays");
}

#[test]
fn s_390_a_timed_replay_keeps_to_the_time_of_the_trace() {
    let timed = |speed| ReplayOptions { pace: Pace::Timed { speed }, is_warm: false };
    let told = replayed("raw:memory:64M", &timed(0.5));
    assert!((0.084..5.0).contains(&told.seconds), "{} s", told.seconds);
    assert!((told.traced_seconds - 0.042).abs() < 0.001, "{}", told.traced_seconds);
    let targets = Targets::open(&["memory:64M".parse().unwrap()], &mut |_| true).unwrap();
    let trace = of(vec![event(Call::Sync, 1, 0, 0, 0)], 0);
    assert!(replay(&trace, &targets, &timed(0.0)).is_err());
}
