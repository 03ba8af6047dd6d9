//! Which ranked locks the present thread holds: in debug builds alone.

use std::marker::PhantomData;

#[cfg(debug_assertions)]
use super::rank::{Rank, TABLE, TOGETHER};

#[cfg(debug_assertions)]
thread_local! {
    /// Locks that this thread holds, by index of their row, with the number of the thing they
    /// guard.
    static HELD: std::cell::RefCell<Vec<(usize, u64)>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// One lock of a kind: its row of the table, and the number by which locks of that kind are ordered
/// among each other. Nothing in a release build.
#[derive(Debug, Clone, Copy, Default)]
pub struct Place {
    #[cfg(debug_assertions)]
    known: Option<(usize, u64)>,
}

/// A hold of a ranked lock by the thread that took it; it ends when dropped, in any order. Nothing
/// in a release build.
#[must_use]
#[derive(Debug)]
pub struct Held {
    #[cfg(debug_assertions)]
    place: Place,
    _of_this_thread: PhantomData<*const ()>,
}

impl Place {
    /// Returns the place of a lock of which there is one, or which is never held together with
    /// another of its kind.
    #[inline]
    #[must_use]
    pub const fn of(lock: usize) -> Self {
        Self::numbered(lock, 0)
    }

    /// Returns the place of a lock among others of its kind, which a thread takes by rising
    /// numbers.
    #[inline]
    #[must_use]
    #[cfg_attr(
        not(debug_assertions),
        expect(unused_variables, reason = "a release build checks nothing")
    )]
    pub const fn numbered(lock: usize, number: u64) -> Self {
        Self {
            #[cfg(debug_assertions)]
            known: Some((lock, number)),
        }
    }

    /// Notes that the thread is about to take the lock, and may have to wait for it.
    ///
    /// # Panics
    /// In a debug build, when it holds a lock that is not below this one.
    #[inline]
    pub fn take(self) -> Held {
        #[cfg(debug_assertions)]
        self.check();
        self.taken()
    }

    /// Notes that the thread has taken the lock without waiting for it.
    #[inline]
    pub fn taken(self) -> Held {
        #[cfg(debug_assertions)]
        if let Some(known) = self.known {
            HELD.with_borrow_mut(|held| held.push(known));
        }
        Held {
            #[cfg(debug_assertions)]
            place: self,
            _of_this_thread: PhantomData,
        }
    }

    /// Checks the order alone: for a lock whose holds belong to no thread.
    ///
    /// # Panics
    /// As [`take`](Self::take).
    #[inline]
    pub fn check(self) {
        #[cfg(debug_assertions)]
        if let Some((lock, number)) = self.known.filter(|_| !std::thread::panicking()) {
            let wrong = HELD.with_borrow(|held| {
                let alone = |kind: usize| {
                    TOGETHER.iter().any(|(lock, under)| {
                        *lock == kind && held.iter().any(|other| other.0 == *under)
                    })
                };
                held.iter().copied().find(|other| {
                    !(is_below(*other, (lock, number)) || (other.0 == lock && alone(lock)))
                })
            });
            if let Some((other, other_number)) = wrong {
                let said = |Rank { rank, name, .. }: Rank, number: u64| {
                    format!("'{name}' (rank {rank}, number {number})")
                };
                let (wanted, held) = (said(TABLE[lock], number), said(TABLE[other], other_number));
                panic!(
                    "I-RANK-1: {wanted} is taken while {held} is held; docs/locks.md has the ranks"
                );
            }
        }
    }
}

#[cfg(debug_assertions)]
fn is_below((lock, number): (usize, u64), (next, next_number): (usize, u64)) -> bool {
    TABLE[lock].order < TABLE[next].order || (lock == next && number < next_number)
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        let Some(known) = self.place.known else { return };
        // A thread that ends has no list any more.
        let _ended = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(at) = held.iter().rposition(|other| *other == known) {
                held.remove(at);
            }
        });
    }
}
