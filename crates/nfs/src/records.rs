//! Locks of ranges of a file, among the opens of one client: what a kernel's client gives that mounts
//! with `nolock`. Clients do not see each other's.

use std::ops::Range;

use parking_lot::{Condvar, Mutex};

/// The locks of one file.
#[derive(Debug, Default)]
pub struct Records {
    held: Mutex<Vec<Record>>,
    freed: Condvar,
}

/// A range that an open has locked.
#[derive(Debug, Clone)]
struct Record {
    owner: u64,
    range: Range<u64>,
    is_exclusive: bool,
}

impl Record {
    fn excludes(&self, owner: u64, range: &Range<u64>, is_exclusive: bool) -> bool {
        self.owner != owner
            && (self.is_exclusive || is_exclusive)
            && self.range.start < range.end
            && range.start < self.range.end
    }
}

impl Records {
    /// Waits until no other open excludes it, and locks a range; what the open had locked of it
    /// before takes the new kind.
    pub fn lock(&self, owner: u64, range: Range<u64>, is_exclusive: bool) {
        let mut held = self.held.lock();
        while held.iter().any(|record| record.excludes(owner, &range, is_exclusive)) {
            self.freed.wait(&mut held);
        }
        let is_weaker = cut(&mut held, owner, &range) && !is_exclusive;
        held.push(Record { owner, range, is_exclusive });
        if is_weaker {
            self.freed.notify_all();
        }
    }

    /// Gives back what the open has locked of a range.
    pub fn unlock(&self, owner: u64, range: &Range<u64>) {
        let mut held = self.held.lock();
        if cut(&mut held, owner, range) {
            self.freed.notify_all();
        }
    }

    /// Gives back all that the open has locked.
    pub fn end(&self, owner: u64) {
        self.unlock(owner, &(0..u64::MAX));
    }
}

/// Takes a range out of what an open has locked; returns whether there was something of it.
fn cut(held: &mut Vec<Record>, owner: u64, range: &Range<u64>) -> bool {
    let mut rests = Vec::new();
    let before = held.len();
    held.retain(|record| {
        let is_cut = record.owner == owner
            && record.range.start < range.end
            && range.start < record.range.end;
        if is_cut {
            let sides = [record.range.start..range.start, range.end..record.range.end];
            let sides = sides.into_iter().filter(|side| side.start < side.end);
            rests.extend(sides.map(|range| Record { range, ..record.clone() }));
        }
        !is_cut
    });
    let found = held.len() < before;
    held.extend(rests);
    found
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn s_579_a_range_is_locked_against_other_opens_and_its_parts_are_given_back() {
        let records = Records::default();
        let is_free = |owner, range: Range<u64>, exclusive| {
            !records.held.lock().iter().any(|record| record.excludes(owner, &range, exclusive))
        };
        records.lock(1, 10..20, true);
        records.lock(1, 15..30, false);
        assert!(is_free(1, 0..100, true), "an open does not exclude itself");
        assert!(!is_free(2, 14..15, false) && is_free(2, 15..30, false));
        assert!(!is_free(2, 29..31, true) && is_free(2, 30..31, true));
        records.unlock(1, &(12..25));
        assert!(
            is_free(2, 12..25, true) && !is_free(2, 11..12, false) && !is_free(2, 25..26, true)
        );
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| records.lock(2, 0..100, true));
            std::thread::sleep(Duration::from_millis(30));
            assert!(!waiting.is_finished());
            records.end(1);
            waiting.join().unwrap();
        });
        assert!(!is_free(1, 50..51, false));
        records.end(2);
        assert!(records.held.lock().is_empty());
    }
}
