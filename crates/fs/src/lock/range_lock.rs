//! Byte ranges, shared or exclusive: what `direct` takes under the shared inode lock so that
//! overlapping writes keep POSIX order.
//!
//! Held ranges are kept as disjoint segments with a count of shared holders, so a lock costs a few
//! steps of a tree whatever is in flight. A request that cannot be granted waits in line: it also
//! stands behind earlier waiters that it conflicts with, so none starves.
//!
//! - I-RNG-1: an exclusive range overlaps no other held range.
//! - I-RNG-2: neighbouring segments with the same shared count are one, so segments are bounded by
//!   the ranges held.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use super::sync::{Condvar, Held, Mutex, MutexGuard, Place};
use super::{HELP_AFTER, Help};
use crate::statistics::{Awaited, WaitMeter, Waiting};

/// Whether a range is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// With other shared holders.
    Shared,
    /// Exclusive.
    Exclusive,
}

/// Locks byte ranges of one file.
#[derive(Debug, Default)]
pub(crate) struct RangeLock {
    pub(super) state: Mutex<State>,
    /// Its rank.
    place: Place,
    /// Where waits are counted beside where the callers say.
    waits: Option<Arc<WaitMeter>>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) held: Segments,
    /// In order of arrival.
    pub(super) waiting: VecDeque<Arc<Waiter>>,
}

#[derive(Debug)]
pub(super) struct Waiter {
    range: Range<u64>,
    sharing: Sharing,
    granted: Mutex<bool>,
    wake: Condvar,
}

/// A held range; released when dropped, by the thread that took it.
#[must_use]
#[derive(Debug)]
pub(crate) struct RangeGuard<'a> {
    lock: &'a RangeLock,
    range: Range<u64>,
    sharing: Sharing,
    _held: Held,
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        self.lock.release(self.range.clone(), self.sharing);
    }
}

impl RangeLock {
    /// Makes a lock of a rank.
    pub(crate) fn at(place: Place) -> Self {
        Self { place, ..Self::default() }
    }

    /// Has waits counted for a file.
    pub(crate) fn counted_in(self, waits: &Arc<WaitMeter>) -> Self {
        Self { waits: Some(Arc::clone(waits)), ..self }
    }

    /// Locks a range that is not empty.
    pub(crate) fn lock(
        &self,
        range: Range<u64>,
        sharing: Sharing,
        help: &impl Help,
    ) -> RangeGuard<'_> {
        let held = self.place.take();
        self.obtain(range.clone(), sharing, help);
        RangeGuard { lock: self, range, sharing, _held: held }
    }

    /// Locks without a guard; [`release`](Self::release) ends it. For I/O in flight.
    pub(crate) fn acquire(&self, range: Range<u64>, sharing: Sharing, help: &impl Help) {
        self.place.check();
        self.obtain(range, sharing, help);
    }

    fn obtain(&self, range: Range<u64>, sharing: Sharing, help: &impl Help) {
        let mut state = self.state.lock();
        if state.admits(&range, sharing) {
            state.held.add(range, sharing);
            return;
        }
        let what = awaited(&range, sharing);
        let waiter =
            Arc::new(Waiter { range, sharing, granted: Mutex::new(false), wake: Condvar::new() });
        state.waiting.push_back(Arc::clone(&waiter));
        drop(state);
        let _waiting = Waiting::begin(what, self.waits.as_deref(), help.meter());
        waiter.wait(help);
    }

    /// Locks without a guard if nothing is in the way.
    pub(crate) fn try_acquire(&self, range: Range<u64>, sharing: Sharing) -> bool {
        let mut state = self.state.lock();
        let admitted = state.admits(&range, sharing);
        if admitted {
            state.held.add(range, sharing);
        }
        admitted
    }

    /// Releases exactly what was acquired, from any thread.
    pub(crate) fn release(&self, range: Range<u64>, sharing: Sharing) {
        let mut state = self.state.lock();
        state.held.remove(range, sharing);
        if !state.waiting.is_empty() {
            state.grant();
        }
    }
}

/// Returns what a range is that is waited for: the whole of a file is as good as its inode lock.
fn awaited(range: &Range<u64>, sharing: Sharing) -> Awaited {
    match sharing {
        _ if *range != (0..u64::MAX) => Awaited::ByteRange,
        Sharing::Shared => Awaited::InodeShared,
        Sharing::Exclusive => Awaited::InodeExclusive,
    }
}

impl State {
    fn admits(&self, range: &Range<u64>, sharing: Sharing) -> bool {
        let behind = |waiter: &Arc<Waiter>| {
            let apart = range.end <= waiter.range.start || waiter.range.end <= range.start;
            !apart && (sharing == Sharing::Exclusive || waiter.sharing == Sharing::Exclusive)
        };
        self.held.admits(range, sharing) && !self.waiting.iter().any(behind)
    }

    /// Grants, in order of arrival, the requests that conflict neither with a holder nor with one
    /// before them in line.
    fn grant(&mut self) {
        let mut line = Segments::default();
        let held = &mut self.held;
        self.waiting.retain(|waiter| {
            let go = held.admits(&waiter.range, waiter.sharing)
                && line.admits(&waiter.range, waiter.sharing);
            if go {
                held.add(waiter.range.clone(), waiter.sharing);
                *waiter.granted.lock() = true;
                waiter.wake.notify_one();
            } else {
                line.add_waiting(waiter.range.clone(), waiter.sharing);
            }
            !go
        });
    }
}

impl Waiter {
    fn wait(&self, help: &impl Help) {
        let mut granted = self.granted.lock();
        while !*granted {
            if self.wake.wait_for(&mut granted, HELP_AFTER).timed_out() && !*granted {
                MutexGuard::unlocked(&mut granted, || help.help());
            }
        }
    }
}

/// Disjoint segments by start: (end, shared holders or [`EXCLUSIVE`]).
#[derive(Debug, Default)]
pub(super) struct Segments(pub(super) BTreeMap<u64, (u64, u32)>);

pub(super) const EXCLUSIVE: u32 = u32::MAX;

impl Segments {
    fn admits(&self, range: &Range<u64>, sharing: Sharing) -> bool {
        let before =
            self.0.range(..range.start).next_back().filter(|(_, (end, _))| *end > range.start);
        let mut met = before.into_iter().chain(self.0.range(range.clone()));
        match sharing {
            Sharing::Exclusive => met.next().is_none(),
            Sharing::Shared => met.all(|(_, (_, holders))| *holders != EXCLUSIVE),
        }
    }

    fn add(&mut self, range: Range<u64>, sharing: Sharing) {
        assert!(range.start < range.end, "a locked range is not empty");
        if sharing == Sharing::Exclusive {
            let before = self.0.insert(range.start, (range.end, EXCLUSIVE));
            assert!(before.is_none(), "I-RNG-1");
            return;
        }
        // Alone, which is the common case: no boundary to cut at.
        if self.admits(&range, Sharing::Exclusive) {
            self.0.insert(range.start, (range.end, 1));
        } else {
            self.change(range, |holders| holders + 1);
        }
    }

    fn remove(&mut self, range: Range<u64>, sharing: Sharing) {
        if sharing == Sharing::Exclusive {
            let held = self.0.remove(&range.start);
            assert_eq!(held, Some((range.end, EXCLUSIVE)), "I-RNG-1: what is released was held");
        } else if self.0.get(&range.start) == Some(&(range.end, 1)) {
            self.0.remove(&range.start);
        } else {
            self.change(range, |holders| {
                holders.checked_sub(1).expect("what is released was held")
            });
        }
    }

    /// Adds a range that stands in line; those may overlap each other, and only the strictest
    /// counts.
    pub(super) fn add_waiting(&mut self, range: Range<u64>, sharing: Sharing) {
        self.change(range, |holders| {
            if sharing == Sharing::Exclusive || holders == EXCLUSIVE {
                EXCLUSIVE
            } else {
                holders + 1
            }
        });
    }

    /// Changes the count over `range`, cutting segments at its ends and joining what became equal
    /// (I-RNG-2).
    fn change(&mut self, range: Range<u64>, count: impl Fn(u32) -> u32) {
        let before =
            self.0.range(..range.start).next_back().filter(|(_, (end, _))| *end >= range.start);
        let first = before.map_or(range.start, |(start, _)| *start);
        let met: Vec<(u64, (u64, u32))> =
            self.0.range(first..=range.end).map(|(start, segment)| (*start, *segment)).collect();
        let mut cut = Vec::with_capacity(met.len() * 2 + 3);
        let mut at = range.start;
        for (start, (end, holders)) in met {
            self.0.remove(&start);
            cut.push((start, end.min(range.start), holders));
            cut.push((start.max(range.end), end, holders));
            // A segment that only touches the range may begin where it ends: the gap before it is
            // filled here, and not once more below.
            let (inner, inner_end) = (start.clamp(range.start, range.end), end.min(range.end));
            if at < inner {
                cut.push((at, inner, count(0)));
                at = inner;
            }
            if inner < inner_end {
                cut.push((inner, inner_end, count(holders)));
                at = inner_end;
            }
        }
        if at < range.end {
            cut.push((at, range.end, count(0)));
        }
        // A segment that begins before the range ends behind what it was cut into.
        cut.retain(|(start, end, holders)| start < end && *holders > 0);
        cut.sort_unstable_by_key(|(start, end, _)| (*start, *end));
        debug_assert!(
            cut.windows(2).all(|pair| pair[0].1 <= pair[1].0),
            "I-RNG-2: segments are disjoint, not {cut:?}"
        );
        self.join(cut.into_iter());
    }

    fn join(&mut self, segments: impl Iterator<Item = (u64, u64, u32)>) {
        let mut last: Option<(u64, u64, u32)> = None;
        for (start, end, holders) in segments {
            last = match last {
                Some((first, middle, same))
                    if middle == start && same == holders && holders != EXCLUSIVE =>
                {
                    Some((first, end, holders))
                }
                Some((first, middle, other)) => {
                    self.0.insert(first, (middle, other));
                    Some((start, end, holders))
                }
                None => Some((start, end, holders)),
            };
        }
        if let Some((start, end, holders)) = last {
            self.0.insert(start, (end, holders));
        }
    }
}
