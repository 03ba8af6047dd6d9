//! Locks of ranges of a file, among the opens of one client: what a kernel's client gives that mounts
//! with `nolock`. Clients do not see each other's.

use std::ops::Range;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::ranges::Ranges;
use crate::session::LockOwner;
use crate::wire::locks::Holder;

/// How often one that waits looks whether it is to give up.
const LOOK: Duration = Duration::from_millis(50);

/// The locks of one file.
#[derive(Debug, Default)]
pub struct Records {
    held: Mutex<Vec<(LockOwner, Ranges)>>,
    freed: Condvar,
}

impl Records {
    /// Locks a range where no other owner excludes it, or once none does if `waits`; what the owner
    /// had locked of it before takes the new kind. Returns whether it is locked.
    pub fn lock(
        &self,
        owner: LockOwner,
        range: Range<u64>,
        is_exclusive: bool,
        (waits, gives_up): (bool, &dyn Fn() -> bool),
    ) -> bool {
        let mut held = self.held.lock();
        while excluding(&held, owner, &range, is_exclusive).is_some() {
            if !waits || gives_up() {
                return false;
            }
            self.freed.wait_for(&mut held, LOOK);
        }
        let at = held.iter().position(|(known, _)| known.number == owner.number);
        let at = at.unwrap_or_else(|| {
            held.push((owner, Ranges::default()));
            held.len() - 1
        });
        held[at].1.lock(range, is_exclusive);
        if !is_exclusive {
            // It may have been an exclusive one.
            self.freed.notify_all();
        }
        true
    }

    /// Gives back what the owner has locked of a range.
    pub fn unlock(&self, owner: LockOwner, range: &Range<u64>) {
        let mut held = self.held.lock();
        let mut found = false;
        held.retain_mut(|(known, ranges)| {
            found |= known.number == owner.number && ranges.unlock(range);
            !ranges.is_empty()
        });
        if found {
            self.freed.notify_all();
        }
    }

    /// Returns the lock that keeps an owner from another one.
    pub fn find(&self, owner: LockOwner, range: &Range<u64>, is_exclusive: bool) -> Option<Holder> {
        excluding(&self.held.lock(), owner, range, is_exclusive)
    }
}

fn excluding(
    held: &[(LockOwner, Ranges)],
    owner: LockOwner,
    range: &Range<u64>,
    is_exclusive: bool,
) -> Option<Holder> {
    let others = held.iter().filter(|(known, _)| known.number != owner.number);
    let mut found = others.filter_map(|(known, ranges)| {
        let locked = ranges.excluding(range, is_exclusive)?;
        Some(Holder {
            is_exclusive: locked.is_exclusive,
            process: known.process,
            owner: known.number.to_be_bytes().to_vec(),
            range: locked.range.clone(),
        })
    });
    found.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(number: u64) -> LockOwner {
        LockOwner { number, process: 1 }
    }

    #[test]
    fn s_579_a_range_is_locked_against_other_opens_and_its_parts_are_given_back() {
        let records = Records::default();
        let lock = |number, range, is_exclusive, waits| {
            records.lock(owner(number), range, is_exclusive, (waits, &|| false))
        };
        let is_free = |number, range: Range<u64>, exclusive| {
            records.find(owner(number), &range, exclusive).is_none()
        };
        assert!(lock(1, 10..20, true, false) && lock(1, 15..30, false, false));
        assert!(is_free(1, 0..100, true), "an open does not exclude itself");
        assert!(!is_free(2, 14..15, false) && is_free(2, 15..30, false));
        assert!(!is_free(2, 29..31, true) && is_free(2, 30..31, true));
        assert!(!lock(2, 14..15, false, false));
        records.unlock(owner(1), &(12..25));
        assert!(
            is_free(2, 12..25, true) && !is_free(2, 11..12, false) && !is_free(2, 25..26, true)
        );
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| lock(2, 0..100, true, true));
            std::thread::sleep(Duration::from_millis(30));
            assert!(!waiting.is_finished());
            records.unlock(owner(1), &(0..u64::MAX));
            assert!(waiting.join().unwrap());
        });
        assert!(!is_free(1, 50..51, false));
        let gives_up = records.lock(owner(1), 50..51, false, (true, &|| true));
        assert!(!gives_up, "it is not waited for any more");
        records.unlock(owner(2), &(0..u64::MAX));
        assert!(records.held.lock().is_empty());
    }
}
