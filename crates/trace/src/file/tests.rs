use super::*;
use crate::slot::Call;
use crate::trace::{About, Event, Process, TracedFile};

fn event(i: u64) -> Event {
    Event {
        process: 0,
        thread: 7,
        call: if i.is_multiple_of(3) { Call::Read } else { Call::Write },
        how: 1,
        errno: 0,
        file: (!i.is_multiple_of(5)).then_some(0),
        flags: 0,
        begin_ns: i * 1000,
        took_ns: i,
        offset: i << 40,
        asked: u64::MAX - i,
        moved: i,
        memory_align: 4096,
    }
}

fn trace(events: u64) -> Trace {
    Trace {
        about: About { command: vec!["ls".into(), "-l".into()], lost: 3, ..About::default() },
        processes: vec![Process { pid: 7, parent: 1, program: "/bin/ls".into() }],
        files: vec![TracedFile { path: "/a ä".into(), inode: 9, ..TracedFile::default() }],
        events: (0..events).map(event).collect(),
    }
}

#[test]
fn a_trace_is_read_as_it_was_written() {
    for events in [0, 1, 40_000] {
        let trace = trace(events);
        let loaded = Trace::decode(&trace.encode()).unwrap();
        assert_eq!(loaded.cut, None);
        assert!(loaded.trace == trace, "{events} events");
    }
}

#[test]
fn s_387_a_trace_cut_short_is_read_up_to_the_cut() {
    let whole = trace(40_000);
    let bytes = whole.encode();
    let mut longest = 0;
    for len in (HEAD_BYTES..bytes.len()).step_by(9_973) {
        let loaded = Trace::decode(&bytes[..len]).unwrap();
        let cut = loaded.cut.expect("every part is cut");
        assert!(cut.at_bytes <= len as u64 && cut.why.contains("cut short"), "{cut:?}");
        let events = loaded.trace.events;
        assert_eq!(events[..], whole.events[..events.len()]);
        assert!(events.len() >= longest, "more bytes hold more");
        longest = events.len();
    }
    assert_eq!(longest, 2 * BLOCK_EVENTS, "two whole blocks were read");
}

#[test]
fn s_387_a_changed_byte_ends_the_trace_where_it_is() {
    let whole = trace(3_000);
    let bytes = whole.encode();
    for at in (HEAD_BYTES..bytes.len()).step_by(501) {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x10;
        let loaded = Trace::decode(&bytes).unwrap();
        let events = loaded.trace.events;
        assert!(loaded.cut.is_some_and(|cut| cut.at_bytes <= at as u64), "byte {at}");
        assert_eq!(events[..], whole.events[..events.len()]);
    }
}

#[test]
fn s_387_bytes_that_match_their_checksum_may_still_be_anything() {
    let mut state = 7_u64;
    for kind in [ABOUT, PROCESSES, FILES, EVENTS, 77] {
        for len in 0..200 {
            let mut content = Vec::new();
            for _ in 0..len {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
                content.push((state >> 40) as u8);
            }
            let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
            bytes.extend(kind.to_le_bytes());
            bytes.extend((len as u32).to_le_bytes());
            bytes.extend(checksum(kind, &content).to_le_bytes());
            bytes.extend(&content);
            assert!(Trace::decode(&bytes).unwrap().cut.is_some(), "there is no end");
        }
    }
}

#[test]
fn what_is_no_trace_is_said_in_one_sentence() {
    assert_eq!(Trace::decode(b"anything").unwrap_err(), "is not a trace");
    let mut other = trace(1).encode();
    other[8] = 9;
    assert!(Trace::decode(&other).unwrap_err().contains("version 9"));
    assert!(Trace::decode(&other[..9]).unwrap_err().contains("first bytes"));
}
