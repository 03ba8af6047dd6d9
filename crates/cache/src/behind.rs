//! Sequential readers and writers of one file, told apart for release-behind: pure arithmetic.

use std::ops::Range;

/// Which pages of a file leave the cache behind a sequential reader or writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Release {
    /// Those that were read.
    pub read: bool,
    /// Those that were written.
    pub written: bool,
}

impl Release {
    const READ: u8 = 1;
    const WRITTEN: u8 = 2;

    pub(super) fn code(self) -> u8 {
        (if self.read { Self::READ } else { 0 }) | if self.written { Self::WRITTEN } else { 0 }
    }

    pub(super) fn of_code(code: u8) -> Self {
        Self { read: code & Self::READ != 0, written: code & Self::WRITTEN != 0 }
    }
}

/// Sequential readers told apart in one file.
const READERS: usize = 8;
/// How far before or behind a reader a read still belongs to it: several requests of one reader may
/// come in another order than they were made.
const REACH_BYTES: u64 = 2 << 20;

/// A reader of one file.
#[derive(Debug, Clone, Copy, Default)]
struct Reader {
    /// Where its first read began, as long as it has made no other.
    first: Option<u64>,
    /// Where its next read is expected.
    next: u64,
    /// 0: there is none.
    used_at: u64,
}

/// The readers of one file.
#[derive(Debug, Default)]
pub(super) struct Readers {
    slots: [Reader; READERS],
    clock: u64,
}

impl Readers {
    /// Notes a read; returns the bytes that a sequential reader has left behind with it. One that
    /// reads a file from its beginning to its end in one step is sequential too.
    pub(super) fn note(&mut self, read: &Range<u64>, file_end: u64) -> Option<Range<u64>> {
        self.clock += 1;
        let clock = self.clock;
        let Some(reader) = self.slots.iter_mut().find(|reader| reader.goes_on(read.start)) else {
            let whole = read.start == 0 && read.end >= file_end;
            let oldest = self.slots.iter_mut().min_by_key(|r| r.used_at).expect("there are slots");
            let first = (!whole).then_some(read.start);
            *oldest = Reader { first, next: read.end, used_at: clock };
            return whole.then(|| read.clone());
        };
        reader.used_at = clock;
        reader.next = reader.next.max(read.end);
        Some(reader.first.take().unwrap_or(read.start)..read.end)
    }
}

impl Reader {
    fn goes_on(&self, start: u64) -> bool {
        match self.first {
            _ if self.used_at == 0 => false,
            Some(_) => start == self.next,
            None => (self.next.saturating_sub(REACH_BYTES)..=self.next.saturating_add(REACH_BYTES))
                .contains(&start),
        }
    }
}

/// Runs whose end is remembered: several are written at once, in any order.
const ENDS: usize = 4;

/// Where sequential writers are.
#[derive(Debug, Default)]
pub(super) struct Writer {
    /// Pages at which the last runs ended that belonged to one; at first the file's beginning.
    ends: [u64; ENDS],
    at: usize,
}

impl Writer {
    /// Notes a run that is about to be written; returns whether a sequential writer made it.
    pub(super) fn note(&mut self, run: &Range<u64>, long: u64) -> bool {
        let sequential = self.ends.contains(&run.start) || run.end - run.start >= long;
        if sequential {
            self.ends[self.at % ENDS] = run.end;
            self.at += 1;
        }
        sequential
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_is_sequential_from_its_second_read_on() {
        let mut readers = Readers::default();
        assert_eq!(readers.note(&(100..200), 10_000), None);
        assert_eq!(readers.note(&(200..300), 10_000), Some(100..300), "its first read too");
        assert_eq!(readers.note(&(300..400), 10_000), Some(300..400));
        assert_eq!(readers.note(&(500..600), 10_000), Some(500..600), "out of order");
        assert_eq!(readers.note(&(400..500), 10_000), Some(400..500), "and the one before");
        assert_eq!(readers.note(&(600..700), 10_000), Some(600..700));
    }

    #[test]
    fn random_readers_leave_nothing_behind_and_one_step_can_be_a_whole_scan() {
        let mut readers = Readers::default();
        for i in 1..1000_u64 {
            let at = i * 7919 % 100_000 * 4096;
            assert_eq!(readers.note(&(at..at + 4000), u64::MAX), None, "{at}");
        }
        assert_eq!(readers.note(&(0..4096), u64::MAX), None, "a header");
        assert_eq!(readers.note(&(0..4096), 4096), Some(0..4096));
        assert_eq!(readers.note(&(0..4096), 4000), Some(0..4096));
    }

    #[test]
    fn eight_readers_are_told_apart() {
        let mut readers = Readers::default();
        let step = |step: u64, reader: u64| {
            let at = reader * (1 << 30) + step * 4096;
            at..at + 4096
        };
        (1..9).for_each(|reader| assert_eq!(readers.note(&step(0, reader), u64::MAX), None));
        for at in 1..5 {
            (1..9).for_each(|reader| {
                assert!(readers.note(&step(at, reader), u64::MAX).is_some(), "{reader}");
            });
        }
    }

    #[test]
    fn a_run_is_a_sequential_writers_if_it_is_long_or_goes_on() {
        let mut writer = Writer::default();
        assert!(writer.note(&(0..3), 16), "from the beginning");
        assert!(writer.note(&(3..4), 16));
        assert!(!writer.note(&(100..101), 16));
        assert!(writer.note(&(4..20), 16));
        assert!(writer.note(&(500..516), 16) && writer.note(&(516..517), 16));
    }
}
