//! Files of traces: any bytes behind checksums that are right, and what is told of what they hold.

use bedplate_trace::{Trace, forged, layout_hints, mix, reuse_curve, summarized, waits};

use crate::input::Input;

/// Reads bytes as a trace, as they are, and again as blocks whose checksums match: the content of
/// each is what the input says. What was read is summed up in every way.
pub fn run(data: &[u8]) {
    tell(data);
    let mut input = Input::new(data);
    let mut blocks: Vec<(u32, &[u8])> = Vec::new();
    while !input.is_empty() {
        let (kind, len) = (input.u8() % 6, input.u16() % 2048);
        blocks.push((kind.into(), input.bytes(len.into())));
    }
    tell(&forged(&blocks));
}

fn tell(bytes: &[u8]) {
    let Ok(loaded) = Trace::decode(bytes) else { return };
    let trace = loaded.trace;
    let summary = summarized(&trace);
    assert!(summary.calls == trace.events.len() as u64, "each call is counted once");
    let waits = waits(&trace);
    assert!((0.0..=1.0).contains(&waits.any_share()), "{waits:?}");
    assert!((0.0..=1.0).contains(&waits.thread_share()), "{waits:?}");
    let hints = layout_hints(&mix(&trace, &summary));
    assert!(hints.iter().all(|hint| !hint.because.is_empty()));
    // Each page is looked at, so calls that claim to move more than memory holds take long.
    let moved = trace.events.iter().fold(0, |sum: u64, event| sum.saturating_add(event.moved));
    if moved <= MOVED_MAX {
        curve_is_sound(&trace);
    }
    // What is read is written again as it was.
    if loaded.cut.is_none() && trace.events.is_sorted_by_key(|event| event.begin_ns) {
        let again = Trace::decode(&trace.encode()).expect("what was written is a trace");
        assert!(again.cut.is_none(), "{:?}", again.cut);
        assert_eq!(again.trace, trace);
    }
}

/// Bytes of calls up to which their pages are looked at.
const MOVED_MAX: u64 = 1 << 32;

fn curve_is_sound(trace: &Trace) {
    let curve = reuse_curve(trace);
    let rates: Vec<f64> = curve.points.iter().map(|point| point.hit_rate).collect();
    assert!(rates.iter().all(|rate| (0.0..=1.0).contains(rate)), "{rates:?}");
    assert!(rates.is_sorted(), "a larger cache answers no less: {rates:?}");
}
