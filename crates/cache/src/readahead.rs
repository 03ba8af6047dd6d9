//! When to read ahead and how much: recognises several sequential readers of one file. Pure; the
//! caller does the reading.
//!
//! ```text
//!   miss, nothing known ──► remembered; miss right behind it (or at offset 0) ──► reads the smallest window at once, marker in its middle
//!   marker reached ──► the next window, twice as large, up to the largest, is read in the background; marker on its first page
//!   miss inside what was read ahead (evicted before use) ──► window halved, begins anew there
//! ```
//!
//! So a reader inside window k finds window k+1 on its way, and hits that meet no marker cost
//! nothing.

use std::ops::Range;

/// Sequential readers told apart in one file.
const STREAMS: usize = 8;
/// Pages that a sequential reader may skip.
const SLACK: u64 = 8;

/// Window sizes in pages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Windows {
    pub(super) min: u64,
    /// 0: no read-ahead.
    pub(super) max: u64,
}

/// What to read for a miss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// The pages to read now go up to here (at least to the end of what was asked for).
    pub(super) end: u64,
    /// The page whose use triggers the next window, when it lies in what is read now.
    pub(super) marker: Option<u64>,
    /// What to read in the background; its first page is its marker.
    pub(super) ahead: Option<Range<u64>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    /// The page expected next: known when the stream moved by a miss or a marker.
    next: u64,
    /// End of what was read for it.
    ahead_end: u64,
    marker: u64,
    /// Last window in pages; 0: not yet sequential.
    window: u64,
    used_at: u64,
}

#[derive(Debug, Default)]
pub(super) struct Streams {
    slots: [Stream; STREAMS],
    clock: u64,
}

impl Streams {
    /// Pages `asked` were wanted and the first is not in memory. Nothing at or after `file_end` is
    /// planned.
    pub(super) fn miss(&mut self, asked: &Range<u64>, file_end: u64, windows: Windows) -> Plan {
        if windows.max == 0 {
            return Plan { end: asked.end, marker: None, ahead: None };
        }
        self.clock += 1;
        let clock = self.clock;
        let Some(stream) = self.follows(asked.start) else {
            let oldest = self.slots.iter_mut().min_by_key(|s| s.used_at).expect("there are slots");
            *oldest = Stream {
                next: asked.end,
                ahead_end: asked.end,
                marker: u64::MAX,
                window: 0,
                used_at: clock,
            };
            if asked.start == 0 {
                return oldest.begin(asked, file_end, windows);
            }
            return Plan { end: asked.end, marker: None, ahead: None };
        };
        stream.used_at = clock;
        if stream.window == 0 {
            return stream.begin(asked, file_end, windows);
        }
        if asked.start < stream.ahead_end {
            stream.window = (stream.window / 2).max(windows.min);
            stream.ahead_end = asked.end;
        }
        stream.ahead_end = stream.ahead_end.max(asked.end);
        stream.next = asked.end;
        Plan { end: asked.end, marker: None, ahead: stream.extend(file_end, windows) }
    }

    fn follows(&mut self, page: u64) -> Option<&mut Stream> {
        self.slots
            .iter_mut()
            .find(|s| s.used_at > 0 && s.next <= page && page <= s.next.max(s.ahead_end) + SLACK)
    }

    /// A marked page was used. Returns what to read in the background; its first page is its
    /// marker.
    pub(super) fn marker(
        &mut self,
        page: u64,
        file_end: u64,
        windows: Windows,
    ) -> Option<Range<u64>> {
        self.clock += 1;
        let clock = self.clock;
        if windows.max == 0 {
            // Turned off since the page was marked.
            return None;
        }
        let stream = self.slots.iter_mut().find(|s| s.window > 0 && s.marker == page)?;
        stream.used_at = clock;
        stream.next = page + 1;
        stream.extend(file_end, windows)
    }
}

impl Stream {
    /// The stream has just proved sequential.
    fn begin(&mut self, asked: &Range<u64>, file_end: u64, windows: Windows) -> Plan {
        let end = asked.end.max((asked.start + windows.min).min(file_end));
        let middle = asked.start + windows.min / 2;
        *self = Self {
            next: asked.end,
            ahead_end: end,
            window: windows.min.max(end - asked.start),
            ..*self
        };
        if asked.end <= middle && middle < end {
            self.marker = middle;
            return Plan { end, marker: Some(middle), ahead: None };
        }
        Plan { end, marker: None, ahead: self.extend(file_end, windows) }
    }

    fn extend(&mut self, file_end: u64, windows: Windows) -> Option<Range<u64>> {
        debug_assert!(
            windows.min <= windows.max,
            "the first window is no larger than the largest: {windows:?}"
        );
        let start = self.ahead_end;
        self.window = (self.window * 2).clamp(windows.min, windows.max);
        let end = (start + self.window).min(file_end);
        if start >= end {
            return None;
        }
        self.ahead_end = end;
        self.marker = start;
        Some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOWS: Windows = Windows { min: 16, max: 512 };
    const END: u64 = 1 << 30;

    fn plan(end: u64, marker: Option<u64>, ahead: Option<Range<u64>>) -> Plan {
        Plan { end, marker, ahead }
    }

    #[test]
    fn the_window_doubles_from_the_smallest_to_the_largest() {
        let mut streams = Streams::default();
        assert_eq!(streams.miss(&(0..1), END, WINDOWS), plan(16, Some(8), None));
        let mut marker = 8;
        let mut at = 16;
        for window in [32, 64, 128, 256, 512, 512] {
            assert_eq!(streams.marker(marker, END, WINDOWS), Some(at..at + window));
            marker = at;
            at += window;
        }
    }

    #[test]
    fn a_single_miss_reads_what_was_asked_and_the_second_begins_a_stream() {
        let mut streams = Streams::default();
        assert_eq!(streams.miss(&(100..101), END, WINDOWS), plan(101, None, None));
        assert_eq!(streams.miss(&(101..102), END, WINDOWS), plan(117, Some(109), None));
    }

    /// A marker outlives a change of the tunables: a reader that met one after read-ahead was
    /// turned off panicked, and the mount refused every request from then on.
    #[test]
    fn a_marker_from_before_read_ahead_was_turned_off_reads_nothing() {
        let mut streams = Streams::default();
        assert_eq!(streams.miss(&(0..1), END, WINDOWS).marker, Some(8));
        assert_eq!(streams.marker(8, END, Windows { min: 0, max: 0 }), None);
        assert_eq!(streams.marker(8, END, Windows { min: 16, max: 0 }), None);
        assert_eq!(streams.marker(8, END, WINDOWS), Some(16..48), "it goes on when turned on");
    }

    #[test]
    fn random_misses_never_read_ahead() {
        let mut streams = Streams::default();
        for i in 1..1000_u64 {
            let page = i * 7919 % 100_000 * 64;
            assert_eq!(streams.miss(&(page..page + 2), END, WINDOWS), plan(page + 2, None, None));
        }
    }

    #[test]
    fn large_steps_read_ahead_at_once() {
        let mut streams = Streams::default();
        assert_eq!(streams.miss(&(1000..1256), END, WINDOWS), plan(1256, None, None));
        assert_eq!(streams.miss(&(1256..1512), END, WINDOWS), plan(1512, None, Some(1512..2024)));
    }

    #[test]
    fn eight_interleaved_readers_are_told_apart() {
        let mut streams = Streams::default();
        let mut markers = Vec::new();
        for reader in 1..9_u64 {
            streams.miss(&(reader * 10_000..reader * 10_000 + 1), END, WINDOWS);
        }
        for reader in 1..9_u64 {
            markers.extend(
                streams.miss(&(reader * 10_000 + 1..reader * 10_000 + 2), END, WINDOWS).marker,
            );
        }
        assert_eq!(markers.len(), 8);
        assert!(markers.iter().all(|&m| streams.marker(m, END, WINDOWS).is_some()));
    }

    #[test]
    fn losing_pages_that_were_read_ahead_halves_the_window() {
        let mut streams = Streams::default();
        streams.miss(&(0..1), END, WINDOWS);
        assert_eq!(streams.marker(8, END, WINDOWS), Some(16..48));
        assert_eq!(streams.marker(16, END, WINDOWS), Some(48..112));
        assert_eq!(streams.miss(&(30..31), END, WINDOWS), plan(31, None, Some(31..95)));
    }

    #[test]
    fn nothing_is_read_beyond_the_end() {
        let mut streams = Streams::default();
        assert_eq!(streams.miss(&(0..1), 3, WINDOWS), plan(3, None, None));
        assert_eq!(streams.miss(&(2..3), 3, WINDOWS), plan(3, None, None));
    }
}
