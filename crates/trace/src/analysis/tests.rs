use super::*;
use crate::slot::Call;
use crate::trace::{Event, Trace, TracedFile};

const DIRECT: u32 = super::summary::libc_flags::O_DIRECT;

fn event(call: Call, begin_ns: u64, offset: u64, asked: u64) -> Event {
    Event {
        process: 0,
        thread: 1,
        call,
        how: 0,
        errno: 0,
        file: Some(0),
        flags: 0,
        begin_ns,
        took_ns: 10,
        offset,
        asked,
        moved: asked,
        memory_align: 512,
    }
}

fn of(events: Vec<Event>) -> Summary {
    let files = vec![TracedFile { path: "/f".into(), ..TracedFile::default() }];
    summarized(&Trace { files, events, ..Trace::default() })
}

#[test]
fn sizes_alignment_and_order_are_counted() {
    let told = of(vec![
        event(Call::Read, 0, 0, 8192),
        event(Call::Read, 20, 8192, 8192),
        // A second stream does not hide the first.
        event(Call::Read, 40, 1 << 20, 512),
        event(Call::Read, 60, 16384, 8192),
        event(Call::Read, 80, (1 << 20) + 512, 100),
    ]);
    let reads = &told.files[0].reads;
    assert_eq!((reads.calls, reads.bytes, reads.sequential), (5, 3 * 8192 + 612, 3));
    assert_eq!((reads.aligned_512, reads.aligned_4096, reads.memory_512), (4, 3, 5));
    assert_eq!(reads.usual_size(), Some(8192));
    assert_eq!((told.files[0].depth_max, told.files[0].depth_mean), (1, 1.0));
}

#[test]
fn a_sync_waits_for_what_was_written_since_the_one_before() {
    let mut slow = event(Call::DataSync, 90, 0, 0);
    slow.took_ns = 5_000;
    let told = of(vec![
        event(Call::Write, 0, 0, 100),
        event(Call::Write, 20, 100, 50),
        event(Call::Sync, 40, 0, 0),
        event(Call::Sync, 60, 0, 0),
        event(Call::Write, 80, 0, 7),
        slow,
    ]);
    let syncs = &told.files[0].syncs;
    assert_eq!((syncs.calls, syncs.waited_bytes, syncs.waited_writes, syncs.idle), (3, 157, 3, 1));
    assert_eq!((syncs.took_ns_p50, syncs.took_ns_max), (10, 5_000));
    assert_eq!((told.longest_syncs[0].bytes, told.longest_syncs[0].writes), (7, 1));
}

#[test]
fn what_failed_is_told_with_its_error_and_its_flags() {
    let mut refused = event(Call::Open, 0, 0, 0);
    (refused.errno, refused.flags) = (22, DIRECT);
    let mut missing = event(Call::Open, 5, 0, 0);
    (missing.errno, missing.file) = (2, None);
    let told = of(vec![refused, refused, missing]);
    assert!(told.files.is_empty(), "no call on it succeeded");
    let first = &told.failures[0];
    assert_eq!((first.call, first.errno.as_str(), first.count), ("open", "EINVAL", 2));
    assert_eq!((first.path.as_str(), &first.flags[..]), ("/f", &["O_DIRECT"][..]));
    assert_eq!(told.failures[1].errno, "ENOENT");
}

#[test]
fn calls_that_overlap_are_the_depth() {
    let mut all: Vec<Event> = (0..4).map(|i| event(Call::Write, i, i * 512, 512)).collect();
    all.push(event(Call::Write, 50, 0, 512));
    let told = of(all);
    assert_eq!(told.files[0].depth_max, 4);
    assert!((told.files[0].depth_mean - 11.0 / 5.0).abs() < 1e-9);
}
