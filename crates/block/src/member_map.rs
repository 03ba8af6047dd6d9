//! Which addresses of a device lie on which of the devices below it: the one thing that a file
//! system hears of a volume's layout.
//!
//! ```text
//!   concatenation of a and b      0 ─────── a ───────┬─────── b ─────── end     two ranges, one member each
//!   stripe over a and b           0 ───────────── a and b ───────────── end     one range: each row is on both
//! ```

use std::ops::Range;

/// A device below another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberName {
    /// Its identity, which stays when it is found at another path.
    pub id: [u8; 16],
    /// Where it is.
    pub path: String,
}

/// Addresses that all lie on the same members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberRange {
    /// The addresses, in bytes.
    pub bytes: Range<u64>,
    /// Their members by the index in [`MemberMap::members`], in order: more than one where each has
    /// a copy, or where rows lie on all of them.
    pub members: Vec<usize>,
}

/// Which addresses lie on which members.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemberMap {
    /// The members that hold any.
    pub members: Vec<MemberName>,
    /// Ranges without gaps, in order, as long as they can be; none where there are no members.
    pub ranges: Vec<MemberRange>,
    /// Addresses are being moved from one layout to another: each range names all members that
    /// may have it until that ends.
    pub is_moving: bool,
}

impl MemberMap {
    /// Returns the addresses of which every byte lies on chosen members and on no other, joined
    /// where they touch.
    #[must_use]
    pub fn only_on(&self, is_chosen: impl Fn(&MemberName) -> bool) -> Vec<Range<u64>> {
        let chosen: Vec<bool> = self.members.iter().map(is_chosen).collect();
        let mut found: Vec<Range<u64>> = Vec::new();
        for range in &self.ranges {
            if !range.members.iter().all(|member| chosen[*member]) {
                continue;
            }
            match found.last_mut() {
                Some(last) if last.end == range.bytes.start => last.end = range.bytes.end,
                _ => found.push(range.bytes.clone()),
            }
        }
        found
    }

    /// Returns how many bytes of a range of addresses each member holds, by its index.
    pub fn bytes_by_member<'a>(
        &'a self,
        bytes: &'a Range<u64>,
    ) -> impl Iterator<Item = (usize, u64)> + 'a {
        self.ranges.iter().flat_map(move |range| {
            let (from, to) = (range.bytes.start.max(bytes.start), range.bytes.end.min(bytes.end));
            let held = to.saturating_sub(from);
            range.members.iter().filter(move |_| held > 0).map(move |member| (*member, held))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> MemberMap {
        let name = |n: u8| MemberName { id: [n; 16], path: format!("/dev/{n}") };
        let range = |bytes, members: &[usize]| MemberRange { bytes, members: members.to_vec() };
        MemberMap {
            members: (0..3).map(name).collect(),
            ranges: vec![
                range(0..100, &[0]),
                range(100..150, &[1]),
                range(150..200, &[0, 1]),
                range(200..300, &[2]),
            ],
            is_moving: false,
        }
    }

    #[test]
    fn what_lies_on_chosen_members_alone_is_joined() {
        let map = map();
        let on = |chosen: &[u8]| -> Vec<(u64, u64)> {
            let ranges = map.only_on(|member| chosen.contains(&member.id[0])).into_iter();
            ranges.map(|range| (range.start, range.end)).collect()
        };
        assert_eq!(on(&[0]), [(0, 100)]);
        assert_eq!(on(&[0, 1]), [(0, 200)]);
        assert_eq!(on(&[1, 2]), [(100, 150), (200, 300)]);
        assert!(on(&[]).is_empty() && on(&[9]).is_empty());
    }

    #[test]
    fn bytes_are_counted_for_every_member_that_has_them() {
        let held: Vec<_> = map().bytes_by_member(&(90..210)).collect();
        assert_eq!(held, [(0, 10), (1, 50), (0, 50), (1, 50), (2, 10)]);
        assert_eq!(map().bytes_by_member(&(300..400)).count(), 0);
    }
}
