//! Ranges of a file that one owner has locked, as the lock calls of programs and of the network change
//! them: a new lock replaces the kind of what it covers, an unlock may leave two parts, and neighbours of
//! one kind are one range.

use std::ops::Range;

/// Behind the last byte that a lock can have: the system's offsets end there.
pub const LOCK_END: u64 = 1 << 63;
/// What `flock` locks: the file as a whole, apart from all its bytes.
pub const WHOLE_FILE: Range<u64> = LOCK_END..LOCK_END + 1;

/// A range that is locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locked {
    /// The bytes, or [`WHOLE_FILE`].
    pub range: Range<u64>,
    /// No other owner has a lock of any of them.
    pub is_exclusive: bool,
}

/// The ranges of one owner: in their order, and none over another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges(Vec<Locked>);

impl Ranges {
    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns how many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns them.
    pub fn iter(&self) -> impl Iterator<Item = &Locked> {
        self.0.iter()
    }

    /// Locks a range.
    pub fn lock(&mut self, range: Range<u64>, is_exclusive: bool) {
        self.unlock(&range);
        self.0.push(Locked { range, is_exclusive });
        self.0.sort_by_key(|locked| locked.range.start);
        // Bytes and the file as a whole are never neighbours.
        let joins = |a: &Locked, b: &Locked| {
            a.range.end == b.range.start
                && a.is_exclusive == b.is_exclusive
                && b.range.start != LOCK_END
        };
        self.0.dedup_by(|next, before| {
            let joined = joins(before, next);
            if joined {
                before.range.end = next.range.end;
            }
            joined
        });
    }

    /// Unlocks a range. Returns whether something of it was locked.
    pub fn unlock(&mut self, range: &Range<u64>) -> bool {
        let before = std::mem::take(&mut self.0);
        let mut found = false;
        for locked in before {
            if !overlap(&locked.range, range) {
                self.0.push(locked);
                continue;
            }
            found = true;
            let sides = [locked.range.start..range.start, range.end..locked.range.end];
            let sides = sides.into_iter().filter(|side| side.start < side.end);
            self.0.extend(sides.map(|range| Locked { range, ..locked.clone() }));
        }
        found
    }

    /// Returns what of them excludes a lock of another owner.
    #[must_use]
    pub fn excluding(&self, range: &Range<u64>, is_exclusive: bool) -> Option<&Locked> {
        self.0
            .iter()
            .find(|locked| (locked.is_exclusive || is_exclusive) && overlap(&locked.range, range))
    }

    /// Returns whether all of a range is locked in this kind.
    #[must_use]
    pub fn covers(&self, range: &Range<u64>, is_exclusive: bool) -> bool {
        self.0.iter().any(|locked| {
            locked.is_exclusive == is_exclusive
                && locked.range.start <= range.start
                && range.end <= locked.range.end
        })
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(ranges: &Ranges) -> Vec<(u64, u64, bool)> {
        let told = ranges.iter().map(|one| (one.range.start, one.range.end, one.is_exclusive));
        told.collect()
    }

    #[test]
    fn s_606_ranges_split_and_join() {
        let mut ranges = Ranges::default();
        ranges.lock(10..20, true);
        ranges.lock(20..30, true);
        assert_eq!(told(&ranges), [(10, 30, true)]);
        ranges.lock(15..18, false);
        assert_eq!(told(&ranges), [(10, 15, true), (15, 18, false), (18, 30, true)]);
        assert!(ranges.unlock(&(16..25)) && !ranges.unlock(&(16..25)));
        assert_eq!(told(&ranges), [(10, 15, true), (15, 16, false), (25, 30, true)]);
        assert!(ranges.covers(&(11..15), true) && !ranges.covers(&(11..16), true));
        assert!(ranges.excluding(&(15..16), false).is_none());
        assert_eq!(ranges.excluding(&(0..100), false).map(|one| one.range.start), Some(10));
        ranges.lock(25..LOCK_END, true);
        ranges.lock(WHOLE_FILE, true);
        assert_eq!(ranges.len(), 4, "the file as a whole stays apart");
        assert!(ranges.unlock(&(0..LOCK_END)));
        assert_eq!(told(&ranges), [(LOCK_END, LOCK_END + 1, true)]);
    }
}
