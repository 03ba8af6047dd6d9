//! Reads or writes of a file.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::trace::Event;

/// Reads or writes of one file.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Moves {
    /// Calls that succeeded.
    pub calls: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Calls by the size asked for.
    pub sizes: BTreeMap<u64, u64>,
    /// Calls that began where one of the last calls on the file ended.
    pub sequential: u64,
    /// Calls whose place and size are multiples of 512.
    pub aligned_512: u64,
    /// Calls whose place and size are multiples of 4096.
    pub aligned_4096: u64,
    /// Calls whose memory is aligned to 512.
    pub memory_512: u64,
    /// The time they took together, in nanoseconds.
    pub took_ns: u64,
    /// The longest, in nanoseconds.
    pub took_ns_max: u64,
    /// Asynchronous requests among them.
    pub requests: u64,
}

/// Streams that are told apart in one file.
const STREAMS: usize = 8;

/// Ends of the last calls.
#[derive(Debug, Default)]
pub(super) struct Streams {
    ends: [Option<u64>; STREAMS],
    next: usize,
}

impl Streams {
    /// Takes a call in, and tells whether it goes on where another ended.
    pub(super) fn goes_on(&mut self, offset: u64, moved: u64) -> bool {
        let end = offset.checked_add(moved);
        if let Some(stream) = self.ends.iter_mut().find(|end| **end == Some(offset)) {
            *stream = end;
            return true;
        }
        self.ends[self.next] = end;
        self.next = (self.next + 1) % STREAMS;
        false
    }
}

impl Moves {
    pub(super) fn add(&mut self, event: &Event, streams: &mut Streams) {
        self.calls += 1;
        self.bytes = self.bytes.saturating_add(event.moved);
        *self.sizes.entry(event.asked).or_default() += 1;
        self.sequential += u64::from(streams.goes_on(event.offset, event.moved));
        let is_aligned = |to: u64| (event.offset | event.asked).is_multiple_of(to);
        self.aligned_512 += u64::from(is_aligned(512));
        self.aligned_4096 += u64::from(is_aligned(4096));
        self.memory_512 += u64::from(event.memory_align >= 512);
        self.took_ns = self.took_ns.saturating_add(event.took_ns);
        self.took_ns_max = self.took_ns_max.max(event.took_ns);
        self.requests += u64::from(event.how & crate::slot::how::ASYNC != 0);
    }

    /// Returns the size that is asked for most.
    #[must_use]
    pub fn usual_size(&self) -> Option<u64> {
        self.sizes.iter().max_by_key(|(_, calls)| **calls).map(|(size, _)| *size)
    }

    /// Returns which part of the calls a count of them is, from 0 to 1.
    #[must_use]
    pub fn part(&self, count: u64) -> f64 {
        if self.calls == 0 { 0.0 } else { count as f64 / self.calls as f64 }
    }
}
